"""Makes the golden fixture of RWKV-7, whose reference is the package of its author.

    python crates/model/tests/golden/rwkv7.py        (torch, rwkv)

transformers has no RWKV-7, so the logits are those of `rwkv.model.RWKV_x070`. The weights are drawn
under the names of that package and stored under those of flash-linear-attention, whose folders are what
is published. The prompt has 150 tokens, as those of all models with a state, see `hybrids.py`.

The package has one number for the norm of a head's output, 64e-5, whatever the heads, and folders say
the number of the other norms, which is a head's share of it. With heads of 16 that is 4e-5, so the
package's other norms are given this number in place of their own.
"""

import functools
import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile
import types

os.environ |= dict(RWKV_V7_ON="1", RWKV_CUDA_ON="0", PYTORCH_JIT="0")

import rwkv.model
import torch

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import hybrids
from fixtures import STRIDE, Draws, reference, some_columns, write

NAME, VOCAB, N_GREEDY = "rwkv7", 256, 16
HIDDEN, HEAD, FFN, N_LAYERS = 32, 16, 64, 3
RANKS = dict(w=8, a=16, v=24, g=32)
HEAD_EPS = 64e-5
EPS = HEAD_EPS / HEAD

CONFIG = dict(
    a_low_rank_dim=RANKS["a"],
    architectures=["RWKV7ForCausalLM"],
    attn=None,
    attn_mode="chunk",
    bos_token_id=0,
    decay_low_rank_dim=RANKS["w"],
    dtype="bfloat16",
    eos_token_id=1,
    fuse_cross_entropy=True,
    fuse_norm=False,
    gate_low_rank_dim=RANKS["g"],
    head_dim=HEAD,
    hidden_act="sqrelu",
    hidden_ratio=FFN / HIDDEN,
    hidden_size=HIDDEN,
    initializer_range=0.02,
    intermediate_size=FFN,
    max_position_embeddings=2048,
    model_type="rwkv7",
    norm_bias=True,
    norm_eps=EPS,
    norm_first=True,
    num_heads=HIDDEN // HEAD,
    num_hidden_layers=N_LAYERS,
    tie_word_embeddings=False,
    use_cache=True,
    v_low_rank_dim=RANKS["v"],
    value_dim=[HIDDEN] * N_LAYERS,
    vocab_size=VOCAB,
)


class Reference:
    """The package's model, as `fixtures.reference` calls one."""

    def __init__(self, weights):
        norm = functools.partial(torch.nn.functional.layer_norm, eps=EPS)
        rwkv.model.F = types.SimpleNamespace(layer_norm=norm)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model"
            torch.save(weights, f"{path}.pth")
            self.model = rwkv.model.RWKV_x070(str(path), "cpu fp32")

    def __call__(self, tokens, use_cache):
        logits, _ = self.model.forward(tokens[0].tolist(), None, full_output=True)
        return types.SimpleNamespace(logits=logits[None])


def draw(seed):
    """Weights under the package's names, and their draws."""
    weights, draws = {}, Draws(seed)

    def put(name, *shape, low=None, high=None, scale=None):
        x = torch.empty(shape)
        weights[name] = draws.spread(x, scale) if low is None else draws.uniform(x, low, high)

    def norm(name):
        put(f"{name}.weight", HIDDEN, low=0.5, high=1.5)
        put(f"{name}.bias", HIDDEN, scale=0.3)

    def matrix(name, n, k):
        put(f"{name}.weight", n, k, scale=0.9 / k**0.5)

    def latent(name, k, n):
        # Drawn as it is stored, see `published`.
        put(name, n, k, scale=0.9 / k**0.5)
        weights[name] = weights[name].T.contiguous()

    put("emb.weight", VOCAB, HIDDEN, scale=1.0)
    norm("blocks.0.ln0")
    for i in range(N_LAYERS):
        block = f"blocks.{i}"
        att, ffn = f"{block}.att", f"{block}.ffn"
        norm(f"{block}.ln1")
        norm(f"{block}.ln2")
        norm(f"{att}.ln_x")
        for letter in "rwkvag":
            put(f"{att}.x_{letter}", 1, 1, HIDDEN, low=0.0, high=1.0)
        put(f"{ffn}.x_k", 1, 1, HIDDEN, low=0.0, high=1.0)
        for letter, rank in RANKS.items():
            if letter == "v" and i == 0:
                continue
            latent(f"{att}.{letter}1", HIDDEN, rank)
            latent(f"{att}.{letter}2", rank, HIDDEN)
        # What is kept from one token to the next lies between about 0.6 and 0.999.
        put(f"{att}.w0", 1, 1, HIDDEN, low=-6.0, high=1.0)
        put(f"{att}.a0", 1, 1, HIDDEN, scale=1.0)
        if i > 0:
            put(f"{att}.v0", 1, 1, HIDDEN, scale=1.0)
        put(f"{att}.k_k", 1, 1, HIDDEN, low=0.5, high=1.0)
        put(f"{att}.k_a", 1, 1, HIDDEN, low=0.5, high=1.25)
        put(f"{att}.r_k", HIDDEN // HEAD, HEAD, scale=0.3)
        for name in ("receptance", "key", "value", "output"):
            matrix(f"{att}.{name}", HIDDEN, HIDDEN)
        matrix(f"{ffn}.key", FFN, HIDDEN)
        matrix(f"{ffn}.value", HIDDEN, FFN)
    norm("ln_out")
    matrix("head", VOCAB, HIDDEN)
    return weights, draws


def published(weights):
    """The tensors under the names of flash-linear-attention; latents are turned around there."""
    parts = dict(att="attn", ln0="pre_norm", ln1="attn_norm", ln2="ffn_norm")
    matrices = dict(receptance="r_proj", key="k_proj", value="v_proj", output="o_proj", ln_x="g_norm")
    ends = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}
    out = {}
    for name, x in weights.items():
        words = name.split(".")
        if words[0] != "blocks":
            top = dict(emb="model.embeddings", ln_out="model.norm", head="lm_head")
            out[".".join([top[words[0]], *words[1:]])] = x
            continue
        layer, part, rest = words[1], words[2], words[3:]
        if part == "att" and len(rest[0]) == 2 and rest[0][1] in ends:
            letter, end = rest[0]
            rest = [f"{letter}_lora", "lora", ends[end]]
            x = x.flatten() if end == "0" else x.T
        elif part == "att" and rest[0] in matrices:
            rest = [matrices[rest[0]], *rest[1:]]
        elif rest[0] in ("k_k", "k_a") or part == "ffn" and rest[0] == "x_k":
            x = x.flatten()
        out[".".join(["model.layers", layer, parts.get(part, part), *rest])] = x
    return {name: x.bfloat16().contiguous() for name, x in out.items()}


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    first = hybrids.first_seed(NAME)
    for seed in range(first, first + 300):
        weights, draws = draw(seed)
        model = Reference(dict(weights))
        rows, margin = reference(model, VOCAB, hybrids.N_PROMPT, N_GREEDY, seed)
        if margin > 0.01:
            break
    else:
        raise SystemExit(f"{NAME}: no seed without a near tie")
    case = dict(seed=seed, margin=round(margin, 4), max_context=None, stride=STRIDE)
    largest = rows["logits"].abs().max()
    rows["logits"] = some_columns(rows["logits"])
    write(HERE / NAME, CONFIG, published(weights), rows, case, draws)
    versions = json.loads((HERE / "versions.json").read_text())
    versions["rwkv"] = importlib.metadata.version("rwkv")
    (HERE / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")
    print(f"{NAME}: seed {seed}, margin {margin:.4f}, largest logit {largest:.2f}")


if __name__ == "__main__":
    main()
