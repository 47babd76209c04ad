"""Makes GGUF files of the fixtures of encoder-decoder models, as converters write them.

    python crates/model/tests/seq2seq/make_gguf.py        (numpy, gguf)

Each file holds the weights of the folder `NAME` under the names of the `gguf` package and no tokenizer;
its recipe is kept as `gguf/NAME.json`, see `gguf_recipes.py`. The format has no key for the distance
beyond which the last bucket is used: readers take 128.
"""

import json
import pathlib
import sys

import gguf

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from gguf_recipes import Checkpoint, Recipe

CASES = ["t5-gated"]


def main():
    (HERE / "gguf").mkdir(exist_ok=True)
    for name in CASES:
        config = json.loads((HERE / name / "config.json").read_text())
        checkpoint = Checkpoint(HERE / name)
        kind = gguf.MODEL_ARCH.T5
        recipe = Recipe(checkpoint, gguf.MODEL_ARCH_NAMES[kind])
        writer = recipe.writer
        writer.add_context_length(512)
        writer.add_embedding_length(config["d_model"])
        writer.add_feed_forward_length(config["d_ff"])
        writer.add_block_count(config["num_layers"])
        writer.add_decoder_block_count(config["num_decoder_layers"])
        writer.add_head_count(config["num_heads"])
        writer.add_key_length(config["d_kv"])
        writer.add_value_length(config["d_kv"])
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        writer.add_relative_attn_buckets_count(config["relative_attention_num_buckets"])
        writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
        writer.add_decoder_start_token_id(config["decoder_start_token_id"])
        writer.add_eos_token_id(config["eos_token_id"])
        n_layers = max(config["num_layers"], config["num_decoder_layers"])
        names = gguf.get_tensor_name_map(kind, n_layers)
        for key, x in checkpoint.state.items():
            stem, suffix = key.rsplit(".", 1)
            gguf_name = names.get_name(stem)
            assert gguf_name, key
            recipe.tensor(f"{gguf_name}.{suffix}", x, wide=x.ndim != 2)
        written = recipe.save(HERE / "gguf" / f"{name}.json")
        print(f"{name}: {len(written)} bytes")


if __name__ == "__main__":
    main()
