"""Makes GGUF files of the classifier fixtures, as converters write them.

    python crates/model/tests/rankers/make_gguf.py        (numpy, gguf)

Each file holds the weights of the folder `NAME` under the names of the `gguf` package and no
tokenizer, which the tests add; its recipe is kept as `gguf/NAME.json`, see `gguf_recipes.py`. Files
of RoBERTa call themselves `bert`, and their table of positions begins with the first one that a text
uses.
"""

import json
import pathlib
import sys

import gguf

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from gguf_recipes import Checkpoint, Recipe

# Names of the tensors of the classifier, which the package maps only within its converter.
HEAD = {"classifier.dense": "cls", "classifier.out_proj": "cls.output"}
# name: positions that no text uses
CASES = {"xlm-roberta": 1}


def main():
    (HERE / "gguf").mkdir(exist_ok=True)
    for name, n_skipped in CASES.items():
        config = json.loads((HERE / name / "config.json").read_text())
        checkpoint = Checkpoint(HERE / name)
        kind = gguf.MODEL_ARCH.BERT
        recipe = Recipe(checkpoint, gguf.MODEL_ARCH_NAMES[kind])
        writer = recipe.writer
        n_layers = config["num_hidden_layers"]
        writer.add_context_length(config["max_position_embeddings"] - n_skipped)
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_block_count(n_layers)
        writer.add_head_count(config["num_attention_heads"])
        writer.add_layer_norm_eps(config["layer_norm_eps"])
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.RANK)
        writer.add_token_type_count(config["type_vocab_size"])
        names = gguf.get_tensor_name_map(kind, n_layers)
        for key, x in checkpoint.state.items():
            stem, suffix = key.rsplit(".", 1)
            gguf_name = HEAD.get(stem) or names.get_name(stem.removeprefix("roberta."))
            assert gguf_name, key
            if "position_embeddings" in key:
                x = x[n_skipped:]
            recipe.tensor(f"{gguf_name}.{suffix}", x, wide=x.ndim != 2)
        written = recipe.save(HERE / "gguf" / f"{name}.json")
        print(f"{name}: {len(written)} bytes")


if __name__ == "__main__":
    main()
