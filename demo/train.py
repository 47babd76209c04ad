"""Step 2 of the recipe: train one model on the token streams that `prepare.py` wrote.

    python train.py --model story --data build --out build/story

Llama architecture in plain PyTorch; the checkpoint is a Hugging Face folder with bf16 safetensors.
Matrices are trained with Muon (orthogonalised momentum, Jordan et al. 2024), embeddings and norms
with AdamW; the learning rate is held and then falls linearly to zero. Every evaluation prints the
held-out perplexity per byte, and the state is saved so that `--resume` goes on.
"""

import argparse
import json
import math
import pathlib
import shutil
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

MODELS = {
    "story": dict(hidden=384, layers=5, heads=6, kv_heads=2, head_dim=64, ffn=1024, dropout=0.05),
    "story-draft": dict(hidden=128, layers=3, heads=4, kv_heads=2, head_dim=32, ffn=384, dropout=0.0),
}
# Crop length until a share of the steps: short crops learn words cheaply, the last quarter sees it all.
LENGTHS = ((0.4, 256), (0.75, 512), (1.0, 1024))
VOCAB, CONTEXT, ROPE_THETA, EPS = 4096, 1024, 10000.0, 1e-5


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), EPS)


def rope_tables(head_dim, length):
    inv = ROPE_THETA ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(length).float(), inv)
    return torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c["hidden"], c["heads"] * c["head_dim"], bias=False)
        self.k_proj = nn.Linear(c["hidden"], c["kv_heads"] * c["head_dim"], bias=False)
        self.v_proj = nn.Linear(c["hidden"], c["kv_heads"] * c["head_dim"], bias=False)
        self.o_proj = nn.Linear(c["heads"] * c["head_dim"], c["hidden"], bias=False)

    def forward(self, x, cos, sin):
        c, (b, t, _) = self.c, x.shape
        split = lambda y, n: y.view(b, t, n, c["head_dim"]).transpose(1, 2)  # noqa: E731
        q = rotate(split(self.q_proj(x), c["heads"]), cos, sin)
        k = rotate(split(self.k_proj(x), c["kv_heads"]), cos, sin)
        v = split(self.v_proj(x), c["kv_heads"])
        group = c["heads"] // c["kv_heads"]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden"], c["ffn"], bias=False)
        self.up_proj = nn.Linear(c["hidden"], c["ffn"], bias=False)
        self.down_proj = nn.Linear(c["ffn"], c["hidden"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(c["hidden"]), RmsNorm(c["hidden"])
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.dropout = c["dropout"]

    def forward(self, x, cos, sin):
        drop = lambda y: F.dropout(y, self.dropout, self.training)  # noqa: E731
        x = x + drop(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + drop(self.mlp(self.post_attention_layernorm(x)))


class Model(nn.Module):
    """Parameter names are those of a Hugging Face Llama checkpoint, without the `model.` prefix."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(VOCAB, c["hidden"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm = RmsNorm(c["hidden"])
        cos, sin = rope_tables(c["head_dim"], CONTEXT)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                std = 0.02 / math.sqrt(2 * c["layers"]) if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                nn.init.normal_(p, std=std)

    def forward(self, ids, targets):
        t = ids.shape[1]
        x = self.embed_tokens(ids)
        cos, sin = self.cos[:t].to(torch.bfloat16), self.sin[:t].to(torch.bfloat16)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.norm(x), self.embed_tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")


def orthogonalise(g, steps=5):
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrix."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = (x.T if tall else x).bfloat16()
    for _ in range(steps):
        xx = x @ x.T
        x = a * x + (b * xx + c * xx @ xx) @ x
    return (x.T if tall else x).float()


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.95, weight_decay=0.1):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(m, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def batches(data, rng, size, length):
    """Shuffled, non-overlapping crops of all tokens, shifted at random in every epoch."""
    epoch = 0
    while True:
        offset = int(rng.integers(0, length))
        starts = np.arange(offset, len(data) - length - 1, length)
        rng.shuffle(starts)
        for i in range(0, len(starts) - size + 1, size):
            crop = np.stack([data[s : s + length + 1] for s in starts[i : i + size]]).astype(np.int64)
            yield epoch + i / len(starts), torch.from_numpy(crop)
        epoch += 1


@torch.no_grad()
def held_out_nats(model, ids, limit=None):
    """Total negative log likelihood of `ids`, in windows of the context that overlap by one half.

    Every token but the first half window is predicted from at least half a context.
    """
    model.eval()
    ids = torch.from_numpy(ids[:limit].astype(np.int64))
    total, half = 0.0, CONTEXT // 2
    for start in range(0, len(ids) - 1, half):
        window = ids[start : start + CONTEXT + 1]
        inputs, targets = window[:-1].clone(), window[1:].clone()
        if start:
            targets[:half] = -100
        if (targets != -100).any():
            total += model(inputs[None], targets[None]).item()
    model.train()
    return total


def save_hf(model, name, data_dir, out):
    """Writes the Hugging Face folder."""
    out.mkdir(parents=True, exist_ok=True)
    c = model.c
    state = {f"model.{k}": v.detach().to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "vocab_size": VOCAB, "hidden_size": c["hidden"], "intermediate_size": c["ffn"],
        "num_hidden_layers": c["layers"], "num_attention_heads": c["heads"],
        "num_key_value_heads": c["kv_heads"], "head_dim": c["head_dim"], "hidden_act": "silu",
        "max_position_embeddings": CONTEXT, "rms_norm_eps": EPS, "rope_theta": ROPE_THETA,
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": 0, "eos_token_id": 0,
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2], "temperature": 0.6, "top_p": 0.95}, indent=2) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(data_dir / file, out / file)
    print(f"saved {name} to {out}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", choices=MODELS, required=True)
    p.add_argument("--data", type=pathlib.Path, required=True)
    p.add_argument("--out", type=pathlib.Path, required=True)
    p.add_argument("--steps", type=int, default=3000)
    p.add_argument("--batch-tokens", type=int, default=4096)
    p.add_argument("--lr-muon", type=float, default=0.015)
    p.add_argument("--lr-adam", type=float, default=2e-3)
    p.add_argument("--decay", type=float, default=0.4, help="share of the steps in which the rate falls to zero")
    p.add_argument("--threads", type=int, default=torch.get_num_threads())
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--eval-every", type=int, default=250)
    p.add_argument("--resume", action="store_true")
    p.add_argument("--compile", action="store_true")
    args = p.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)

    data = np.concatenate([np.load(args.data / "books.npy"), np.load(args.data / "chats.npy")])
    held = np.load(args.data / "held_out.npy")
    n_bytes = json.loads((args.data / "sizes.json").read_text())["held_out_bytes"]
    model = Model(MODELS[args.model])
    n_params = sum(x.numel() for x in model.parameters())
    matrices = [x for n, x in model.named_parameters() if x.ndim == 2 and "embed" not in n]
    rest = [x for n, x in model.named_parameters() if x.ndim != 2 or "embed" in n]
    optimizers = [Muon(matrices, args.lr_muon),
                  torch.optim.AdamW(rest, lr=args.lr_adam, betas=(0.9, 0.95), weight_decay=0.01)]
    base_rates = [args.lr_muon, args.lr_adam]
    state_path, first = args.data / f"{args.model}.state.pt", 0
    if args.resume and state_path.exists():
        state = torch.load(state_path)
        model.load_state_dict(state["model"])
        for o, s in zip(optimizers, state["optimizers"]):
            o.load_state_dict(s)
        first = state["step"]
    run = torch.compile(model, dynamic=False) if args.compile else model
    print(f"{args.model}: {n_params / 1e6:.2f} M parameters, {len(data)} tokens, steps {first}..{args.steps}", flush=True)

    length, source, started = 0, None, time.time()
    for step in range(first, args.steps):
        wanted = next(length for until, length in LENGTHS if step < args.steps * until)
        if wanted != length:
            length = wanted
            source = batches(data, np.random.default_rng(args.seed + step), args.batch_tokens // length, length)
        rate = min(1.0, (step + 1) / 100, (args.steps - step) / (args.decay * args.steps))
        for o, base in zip(optimizers, base_rates):
            o.param_groups[0]["lr"] = base * rate
        epoch, crop = next(source)
        with torch.autocast("cpu", torch.bfloat16):
            loss = run(crop[:, :-1], crop[:, 1:]) / crop[:, 1:].numel()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in optimizers:
            o.step()
        model.zero_grad(set_to_none=True)
        if step % 25 == 0:
            took = time.time() - started
            speed = (step - first + 1) * args.batch_tokens / took
            print(f"step {step} loss {loss.item():.4f} {speed:.0f} tokens/s {took / 60:.1f} min", flush=True)
        last = step + 1 == args.steps
        if (step + 1) % args.eval_every == 0 or last:
            with torch.autocast("cpu", torch.bfloat16):
                nats = held_out_nats(model, held, None if last else 20_000)
            share = 1.0 if last else min(1.0, 20_000 / len(held))
            per_byte = nats / (n_bytes * share)
            print(f"step {step + 1} held-out perplexity per byte {math.exp(per_byte):.4f} "
                  f"({per_byte / math.log(2):.4f} bits)", flush=True)
            torch.save({"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers],
                        "step": step + 1}, state_path)
            save_hf(model, args.model, args.data, args.out)


if __name__ == "__main__":
    main()
