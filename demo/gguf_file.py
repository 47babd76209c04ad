"""Reads one of our GGUF files back: the tokenizer, and the weights as they are used.

The weights learn through Q8_0 rounding, so that those of the file are the trained model, and further
steps can begin from it without the state of the training.
"""

import pathlib

import gguf
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL = 3  # the type of special tokens in `tokenizer.ggml.token_type`
NAMES = {
    "token_embd": "embed_tokens", "output_norm": "norm",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def tokenizer(path: pathlib.Path) -> Tokenizer:
    """The byte-level BPE tokenizer of the file."""
    fields = gguf.GGUFReader(path).fields
    tokens, merges, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges", "token_type"))
    bpe = models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(merge.split(" ")) for merge in merges])
    read = Tokenizer(bpe)
    read.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    read.decoder = decoders.ByteLevel()
    read.add_special_tokens([AddedToken(t, special=True) for t, kind in zip(tokens, types) if kind == CONTROL])
    return read


def weights(path: pathlib.Path) -> dict[str, torch.Tensor]:
    """The dequantized weights, under the names of `train.Model`."""
    reader = gguf.GGUFReader(path)
    heads = {f"attn_{x}": int(reader.fields[f"llama.attention.head_count{key}"].contents()) for x, key in (("q", ""), ("k", "_kv"))}
    state = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        *block, name = tensor.name.removesuffix(".weight").removeprefix("blk.").split(".")
        if name in heads:  # a file holds the two halves of each rotated head interleaved
            values = values.unflatten(0, (heads[name], -1, 2)).transpose(1, 2).flatten(0, 2)
        state[".".join([*(["layers", *block] if block else []), NAMES[name], "weight"])] = values
    return state
