"""Writes the embedded story-teller as a Hugging Face folder in f32, the source of `docs/quantize.md`.

    pip install gguf safetensors
    python demo/folder.py crates/cli/model/story-q8_0.gguf story

The weights are those of the GGUF file, dequantized; training rounded them to its type, so nothing is
lost. Rows of q and k go back from pairs to halves.
"""

import json
import pathlib
import sys

import gguf
import numpy as np
from gguf.quants import dequantize
from safetensors.numpy import save_file

PARTS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def main(source, out):
    reader = gguf.GGUFReader(source)
    get = lambda key: reader.fields[key].contents()  # noqa: E731
    heads, kv_heads = get("llama.attention.head_count"), get("llama.attention.head_count_kv")
    state = {}
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        values = dequantize(tensor.data, tensor.tensor_type).reshape(shape).astype(np.float32)
        name = WHOLE.get(tensor.name)
        if name is None:
            _, layer, part, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{PARTS[part]}.weight"
            if part in ("attn_q", "attn_k"):
                n = heads if part == "attn_q" else kv_heads
                pairs = values.reshape(n, shape[0] // n // 2, 2, shape[1])
                values = pairs.swapaxes(1, 2).reshape(shape)
        state[name] = np.ascontiguousarray(values)
    out.mkdir(parents=True)
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "vocab_size": get("llama.vocab_size"), "hidden_size": get("llama.embedding_length"),
        "intermediate_size": get("llama.feed_forward_length"),
        "num_hidden_layers": get("llama.block_count"), "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": get("llama.attention.key_length"),
        "hidden_act": "silu", "max_position_embeddings": get("llama.context_length"),
        "rms_norm_eps": float(f"{get('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": get("llama.rope.freq_base"), "tie_word_embeddings": True,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": get("tokenizer.ggml.eos_token_id"),
    }
    tokens, kinds = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
    added = [
        {"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for i, kind in enumerate(kinds) if kind == gguf.TokenType.CONTROL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in get("tokenizer.ggml.merges")],
        },
    }
    eos = tokens[get("tokenizer.ggml.eos_token_id")]
    template = {"eos_token": eos, "chat_template": get("tokenizer.chat_template")}
    for name, value in [("config", config), ("tokenizer", tokenizer), ("tokenizer_config", template)]:
        (out / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
