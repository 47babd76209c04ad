"""Step 2 of the recipe: train one model on the token streams that `prepare.py` wrote.

    python train.py --model story --data build --out build/story

Llama architecture in plain PyTorch, on a GPU where there is one; the checkpoint is a Hugging Face
folder with float32 safetensors. With `--teacher` the model learns the distribution of another one of
the same vocabulary instead of the books alone, so that its drafts are accepted more often.
Matrices are trained with Muon (orthogonalised momentum, Jordan et al. 2024), embeddings and norms
with AdamW; the learning rate is held and then falls linearly to zero, by steps or, with `--minutes`,
by the clock. In the last tenth the weights are rounded to Q8_0, in which the binary holds them, and
learn through the rounding. Every evaluation prints the held-out perplexity per byte, and the state
is saved so that `--resume` goes on. `--from` begins with the weights of a model that exists, and with
`--chats` a share of the batches holds nothing but chats. `--shape` tries another size.
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
from safetensors.torch import load_file, save_file
from torch import nn

import gguf_file

MODELS = {
    "story": dict(hidden=384, layers=6, heads=6, kv_heads=2, head_dim=64, ffn=1024),
    "story-draft": dict(hidden=128, layers=3, heads=4, kv_heads=2, head_dim=32, ffn=384),
}
ROUNDED = 0.9  # share of the run after which weights are rounded to their stored form
CHAT = 512  # tokens of a crop that begins with a chat
VOCAB, CONTEXT, ROPE_THETA, EPS = 4096, 2048, 10000.0, 1e-5


def stored(w, rounded=1.0):
    """The weights as Q8_0 holds them, 32 to a scale; gradients pass through unchanged.

    `rounded` is one or zero, a tensor in training: with zero they stay as they are, and a compiled
    model need not be compiled again when rounding begins.
    """
    blocks = w.detach().unflatten(-1, (-1, 32))
    scale = (blocks.abs().amax(-1, keepdim=True) / 127).half().float().clamp_min(1e-7)
    return w + rounded * (((blocks / scale).round() * scale).flatten(-2) - w.detach())


class Linear(nn.Linear):
    rounded = 0.0  # the flag of its model

    def forward(self, x):
        return F.linear(x, stored(self.weight, self.rounded))


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
        self.q_proj = Linear(c["hidden"], c["heads"] * c["head_dim"], bias=False)
        self.k_proj = Linear(c["hidden"], c["kv_heads"] * c["head_dim"], bias=False)
        self.v_proj = Linear(c["hidden"], c["kv_heads"] * c["head_dim"], bias=False)
        self.o_proj = Linear(c["heads"] * c["head_dim"], c["hidden"], bias=False)

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
        self.gate_proj = Linear(c["hidden"], c["ffn"], bias=False)
        self.up_proj = Linear(c["hidden"], c["ffn"], bias=False)
        self.down_proj = Linear(c["ffn"], c["hidden"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(c["hidden"]), RmsNorm(c["hidden"])
        self.self_attn, self.mlp = Attention(c), Mlp(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Head(nn.Module):
    """The last norm and the loss; the output matrix is the embedding."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x, table, targets, teacher=None):
        logits = F.linear(self.norm(x), table).flatten(0, 1).float()
        loss = F.cross_entropy(logits, targets.flatten(), reduction="sum")
        if teacher is None:
            return loss
        wanted = F.linear(*teacher).flatten(0, 1).float().softmax(-1)
        return (F.cross_entropy(logits, wanted, reduction="sum") + loss) / 2


class Model(nn.Module):
    """Parameter names are those of a Hugging Face Llama checkpoint, without the `model.` prefix."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(VOCAB, c["hidden"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm = RmsNorm(c["hidden"])
        self.head = [Head(self.norm)]  # in a list, so that its norm has one name
        self.rounded = torch.zeros(())
        for module in self.modules():
            if isinstance(module, Linear):
                module.rounded = self.rounded
        cos, sin = rope_tables(c["head_dim"], CONTEXT)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                std = 0.02 / math.sqrt(2 * c["layers"]) if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                nn.init.normal_(p, std=std)

    def table(self):
        """The embedding, which is the output matrix, too."""
        return stored(self.embed_tokens.weight, self.rounded)

    def hidden(self, ids, table):
        """The last hidden state of each token, before the last norm."""
        x, t = F.embedding(ids, table), ids.shape[1]
        cos, sin = self.cos[:t].to(torch.bfloat16), self.sin[:t].to(torch.bfloat16)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x

    def forward(self, ids, targets, teacher=None):
        """The summed loss, by a teacher one half from its distribution."""
        table = self.table()
        if teacher is not None:
            with torch.no_grad():
                output = teacher.table()
                teacher = (teacher.norm(teacher.hidden(ids, output)), output)
        return self.head[0](self.hidden(ids, table), table, targets, teacher)

    def log_probs(self, ids):
        """Of every next token."""
        table = self.table()
        return F.linear(self.norm(self.hidden(ids, table)), table).float().log_softmax(-1)

    def round_weights(self):
        """From now on every matrix is used as its Q8_0 form."""
        self.rounded.fill_(1.0)

    def compile_parts(self):
        """Layers share one compiled form."""
        for part in [*self.layers, self.head[0]]:
            part.compile(dynamic=False)


def orthogonalise(g, steps=5):
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrix, for a stack of matrices."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    x = (x.mT if tall else x).bfloat16()
    for _ in range(steps):
        xx = x @ x.mT
        x = a * x + (b * xx + c * xx @ xx) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.95, weight_decay=0.1):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape = {}
            for p in group["params"]:
                by_shape.setdefault(p.shape, []).append(p)
            for (rows, columns), params in by_shape.items():
                grads = [p.grad for p in params]
                moments = [self.state[p].setdefault("m", torch.zeros_like(p)) for p in params]
                torch._foreach_lerp_(moments, grads, 1 - group["momentum"])
                updates = orthogonalise(torch.stack(grads).lerp(torch.stack(moments), group["momentum"]))
                torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(params, list(updates), alpha=-group["lr"] * max(1, rows / columns) ** 0.5)


def chat_batches(data, rng, size, length):
    """Crops that each begin with a chat, as an answer of `pelton` does."""
    starts = np.flatnonzero(data[:-1] == 0) + 1
    starts = starts[starts < len(data) - length - 1]
    while True:
        rng.shuffle(starts)
        for i in range(0, len(starts) - size + 1, size):
            yield crops(data, starts[i : i + size], length)


def crops(data, starts, length):
    """The tokens behind each start, and one more, on the device."""
    rows = np.stack([data[s : s + length + 1] for s in starts]).astype(np.int64)
    return torch.from_numpy(rows).to(torch.get_default_device(), non_blocking=True)


def batches(data, rng, size, length):
    """Shuffled, non-overlapping crops of all tokens, shifted at random in every epoch."""
    while True:
        offset = int(rng.integers(0, length))
        starts = np.arange(offset, len(data) - length - 1, length)
        rng.shuffle(starts)
        for i in range(0, len(starts) - size + 1, size):
            yield crops(data, starts[i : i + size], length)


@torch.no_grad()
def held_out_nats(model, ids, limit=None):
    """Total negative log likelihood of `ids`, in windows of the context that overlap by one half.

    Every token but the first half window is predicted from at least half a context.
    """
    model.eval()
    ids = torch.from_numpy(ids[:limit].astype(np.int64)).to(torch.get_default_device())
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
    state = {f"model.{k}": v.detach().float().contiguous() for k, v in model.state_dict().items()}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "vocab_size": VOCAB, "hidden_size": c["hidden"], "intermediate_size": c["ffn"],
        "num_hidden_layers": c["layers"], "num_attention_heads": c["heads"],
        "num_key_value_heads": c["kv_heads"], "head_dim": c["head_dim"], "hidden_act": "silu",
        "max_position_embeddings": CONTEXT, "rms_norm_eps": EPS, "rope_theta": ROPE_THETA,
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": 0, "eos_token_id": 0,
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2], "temperature": 0.8, "top_p": 0.95}, indent=2) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(data_dir / file, out / file)
    print(f"saved {name} to {out}", flush=True)


def shape(text):
    """The sizes of `--shape`: width, layers, feed-forward width, heads and KV heads."""
    hidden, layers, ffn, heads, kv_heads = map(int, text.split(","))
    return dict(hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=hidden // heads, ffn=ffn)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", choices=MODELS, required=True)
    p.add_argument("--shape", type=shape, help="WIDTH,LAYERS,FFN,HEADS,KV instead of the size of the model")
    p.add_argument("--teacher", type=pathlib.Path, help="the `story` of an earlier run, --out of it")
    p.add_argument("--from", dest="start", type=pathlib.Path, metavar="FILE.gguf", help="begin with the weights of this file")
    p.add_argument("--chats", type=float, default=0.0, metavar="SHARE", help="share of batches that hold nothing but chats")
    p.add_argument("--data", type=pathlib.Path, required=True)
    p.add_argument("--out", type=pathlib.Path, required=True)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--steps", type=int, default=3000)
    p.add_argument("--minutes", type=float, help="end by the clock after so long, instead of by steps")
    p.add_argument("--batch-tokens", type=int, default=32768)
    p.add_argument("--length", type=int, default=CONTEXT, help="tokens of a crop")
    p.add_argument("--lr-muon", type=float, default=0.02)
    p.add_argument("--lr-adam", type=float, default=3e-3)
    p.add_argument("--decay", type=float, default=0.4, help="share of the run in which the rate falls to zero")
    p.add_argument("--threads", type=int, default=torch.get_num_threads())
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--eval-every", type=int, default=500)
    p.add_argument("--resume", action="store_true")
    p.add_argument("--compile", action="store_true")
    args = p.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    torch.set_default_device(args.device)

    chats = np.load(args.data / "chats.npy")
    data = np.concatenate([np.load(args.data / "books.npy"), chats])
    held = np.load(args.data / "held_out.npy")
    n_bytes = json.loads((args.data / "sizes.json").read_text())["held_out_bytes"]
    model = Model(args.shape or MODELS[args.model])
    teacher = read_teacher(args.teacher) if args.teacher else None
    if args.start:
        model.load_state_dict(gguf_file.weights(args.start))
    n_params = sum(x.numel() for x in model.parameters())
    matrices = [x for n, x in model.named_parameters() if x.ndim == 2 and "embed" not in n]
    rest = [x for n, x in model.named_parameters() if x.ndim != 2 or "embed" in n]
    optimizers = [Muon(matrices, args.lr_muon),
                  torch.optim.AdamW(rest, lr=args.lr_adam, betas=(0.9, 0.95), weight_decay=0.01)]
    base_rates = [args.lr_muon, args.lr_adam]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    state_path, step, spent = args.out.with_suffix(".state.pt"), 0, 0.0
    if args.resume and state_path.exists():
        state = torch.load(state_path, map_location=args.device)
        model.load_state_dict(state["model"])
        for o, s in zip(optimizers, state["optimizers"]):
            o.load_state_dict(s)
        step, spent = state["step"], state["spent"]
    rng = np.random.default_rng(args.seed + step)
    source = batches(data, rng, args.batch_tokens // args.length, args.length)
    chat_source = chat_batches(chats, rng, args.batch_tokens // CHAT, CHAT)

    def learn(source):
        """One batch forward and backward; the loss per token."""
        crop = next(source)
        with torch.autocast(args.device, torch.bfloat16):
            loss = model(crop[:, :-1], crop[:, 1:], teacher) / crop[:, 1:].numel()
        loss.backward()
        return loss

    if args.compile:
        model.compile_parts()
        if teacher is not None:
            teacher.compile_parts()
        for each in [source, chat_source] if args.chats else [source]:
            learn(each)  # so that the clock begins after the compiler
        model.zero_grad(set_to_none=True)
    print(f"{args.model}: {n_params / 1e6:.2f} M parameters, {len(data)} tokens, from step {step}", flush=True)

    started, n_tokens = time.time() - spent, args.batch_tokens // args.length * args.length
    first = step
    share = lambda: (time.time() - started) / (60 * args.minutes) if args.minutes else step / args.steps  # noqa: E731
    done = share()
    while done < 1.0:
        if done >= ROUNDED:
            model.round_weights()
        rate = min(1.0, (step + 1) / 100, (1.0 - done) / args.decay)
        for o, base in zip(optimizers, base_rates):
            o.param_groups[0]["lr"] = base * rate
        loss = learn(chat_source if rng.random() < args.chats else source)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in optimizers:
            o.step()
        model.zero_grad(set_to_none=True)
        step += 1
        if step % 25 == 0:  # reading the loss waits for the device
            nats, took = loss.item(), time.time() - started
            speed = (step - first) * n_tokens / (took - spent)
            print(f"step {step} loss {nats:.4f} rate {rate:.2f} {speed:.0f} tokens/s {took / 60:.2f} min, "
                  f"epoch {step * n_tokens / len(data):.2f}", flush=True)
        done = share()
        if step % args.eval_every == 0 or done >= 1.0:
            evaluate(model, held, n_bytes, step, done >= 1.0)
            torch.save({"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers],
                        "step": step, "spent": time.time() - started}, state_path)
            save_hf(model, args.model, args.data, args.out)


def read_teacher(out):
    """The model that an earlier run left, as it is used."""
    teacher = Model(MODELS["story"])
    tensors = load_file(out / "model.safetensors")
    teacher.load_state_dict({name.removeprefix("model."): tensor for name, tensor in tensors.items()})
    teacher.round_weights()
    return teacher.requires_grad_(False)


def evaluate(model, held, n_bytes, step, whole):
    """Prints the held-out perplexity per byte, of an eighth of the book unless `whole`."""
    with torch.autocast(torch.get_default_device().type, torch.bfloat16), torch.compiler.set_stance("force_eager"):
        nats = held_out_nats(model, held, None if whole else 20_000)
    per_byte = nats / (n_bytes * (1.0 if whole else min(1.0, 20_000 / len(held))))
    print(f"step {step} held-out perplexity per byte {math.exp(per_byte):.4f} "
          f"({per_byte / math.log(2):.4f} bits)", flush=True)


if __name__ == "__main__":
    main()
