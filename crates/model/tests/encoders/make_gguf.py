"""Makes GGUF files of the encoder fixtures, as converters write them.

    python crates/model/tests/encoders/make_gguf.py        (numpy, gguf)

Each file holds the weights of the folder `NAME` under the names of the `gguf` package and no
tokenizer; its recipe is kept as `gguf/NAME.json`, see `gguf_recipes.py`. Files of RoBERTa call
themselves `bert`, and their table of positions begins with the first one that a text uses.
"""

import json
import pathlib
import sys

import gguf

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from gguf_recipes import Checkpoint, Recipe

# name: (architecture, kind of pooling, positions that no text uses)
CASES = {
    "bert": ("BERT", gguf.PoolingType.CLS, 0),
    "roberta": ("BERT", gguf.PoolingType.MEAN, 2),
    "nomic-bert": ("NOMIC_BERT", gguf.PoolingType.MEAN, 0),
}


def main():
    (HERE / "gguf").mkdir(exist_ok=True)
    for name, (arch, pooling, n_skipped) in CASES.items():
        config = json.loads((HERE / name / "config.json").read_text())
        checkpoint = Checkpoint(HERE / name)
        kind = getattr(gguf.MODEL_ARCH, arch)
        recipe = Recipe(checkpoint, gguf.MODEL_ARCH_NAMES[kind])
        writer = recipe.writer
        field = lambda *names: next(config[x] for x in names if x in config)
        n_layers = field("num_hidden_layers", "n_layer")
        writer.add_context_length(field("max_position_embeddings", "n_positions") - n_skipped)
        writer.add_embedding_length(field("hidden_size", "n_embd"))
        writer.add_feed_forward_length(field("intermediate_size", "n_inner"))
        writer.add_block_count(n_layers)
        writer.add_head_count(field("num_attention_heads", "n_head"))
        writer.add_layer_norm_eps(field("layer_norm_eps", "layer_norm_epsilon"))
        writer.add_causal_attention(False)
        writer.add_pooling_type(pooling)
        writer.add_token_type_count(config["type_vocab_size"])
        if "rotary_emb_base" in config:
            writer.add_rope_freq_base(config["rotary_emb_base"])
        names = gguf.get_tensor_name_map(kind, n_layers)
        for key, x in checkpoint.state.items():
            stem, suffix = key.rsplit(".", 1)
            gguf_name = names.get_name(stem)
            assert gguf_name, key
            if "position_embeddings" in key:
                x = x[n_skipped:]
            recipe.tensor(f"{gguf_name}.{suffix}", x, wide=x.ndim != 2)
        written = recipe.save(HERE / "gguf" / f"{name}.json")
        print(f"{name}: {len(written)} bytes")


if __name__ == "__main__":
    main()
