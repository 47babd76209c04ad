"""Makes GGUF files of the encoder fixtures, as converters write them.

    python crates/model/tests/encoders/make_gguf.py

Each file, `gguf/NAME.gguf`, holds the weights of the folder `NAME` under the names of the `gguf`
package and no tokenizer. Files of RoBERTa call themselves `bert`, and their table of positions begins
with the one that a text uses first.
"""

import json
import pathlib

import gguf
import safetensors.torch
import torch

HERE = pathlib.Path(__file__).parent

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
        state = safetensors.torch.load_file(HERE / name / "model.safetensors")
        kind = getattr(gguf.MODEL_ARCH, arch)
        writer = gguf.GGUFWriter(HERE / "gguf" / f"{name}.gguf", gguf.MODEL_ARCH_NAMES[kind])
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
        for key, x in state.items():
            stem, suffix = key.rsplit(".", 1)
            gguf_name = names.get_name(stem)
            assert gguf_name, key
            if "position_embeddings" in key:
                x = x[n_skipped:]
            x = x.contiguous()
            if x.dim() == 2:
                bf16 = gguf.GGMLQuantizationType.BF16
                bits = x.view(torch.uint8).numpy()
                writer.add_tensor(f"{gguf_name}.{suffix}", bits, raw_dtype=bf16)
            else:
                writer.add_tensor(f"{gguf_name}.{suffix}", x.float().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        print(name)


if __name__ == "__main__":
    main()
