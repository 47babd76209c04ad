"""Step 3 of the recipe: a trained model unlearns to spell the words of `slurs.txt`.

    python unlearn.py --model story --data build --out build/story

The books hold none of these words, but a model that spells words of syllables makes one by chance,
twice in 5,000 answers at temperature 1. Here each spelling of each word stands after random text,
and the loss is the excess of its last token's log probability over a floor (unlikelihood training,
Welleck et al. 2019). Where other words of the books begin alike (jewel), the loss is that of the
word's end: of all tokens that do not go on with a letter. A part of each batch stays text of the books.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import slurs
import train

FLOOR, CONTEXT = -13.0, 8  # log probability that is low enough; tokens of text before a word


def spellings() -> list[str]:
    """Each listed word in every case and number, at the start of a text and after a space."""
    lines = (line.strip() for line in slurs.LIST.read_text(encoding="utf-8").splitlines())
    found = set()
    for word in (line for line in lines if line and not line.startswith("#")):
        plural = word[:-1] + "ies" if word.endswith("y") else word + "s"
        for form in (word, plural, word + "es"):
            if slurs.pattern().fullmatch(form):
                found |= {lead + case for case in (form, form.capitalize()) for lead in (" ", "")}
    return sorted(found)


def logits(model, ids):
    x = F.embedding(ids, train.stored(model.embed_tokens.weight))
    cos, sin = (t[: ids.shape[1]].to(torch.bfloat16) for t in (model.cos, model.sin))
    for layer in model.layers:
        x = layer(x, cos, sin)
    return F.linear(model.norm(x), train.stored(model.embed_tokens.weight)).float()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", choices=train.MODELS, required=True)
    p.add_argument("--data", type=pathlib.Path, required=True)
    p.add_argument("--out", type=pathlib.Path, required=True)
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--rate", type=float, default=5e-4)
    p.add_argument("--share", type=float, default=0.4, help="share of the way that the weights go")
    p.add_argument("--threads", type=int, default=1)
    args = p.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(1)
    model = train.Model(train.MODELS[args.model])
    model.load_state_dict(torch.load(args.out.with_suffix(".state.pt"))["model"])
    model.round_weights()

    before = {name: value.detach().clone() for name, value in model.named_parameters()}

    tokenizer = Tokenizer.from_file(str(args.data / "tokenizer.json"))
    pieces = [tokenizer.id_to_token(i) for i in range(train.VOCAB)]
    ends = torch.tensor([not piece[0].isascii() or not piece[0].isalnum() for piece in pieces])
    data = np.concatenate([np.load(args.data / "books.npy"), np.load(args.data / "chats.npy")])
    text = data[:4_000_000].tobytes()  # enough to find words that begin alike
    words = []  # (ids, whether other words begin with them)
    for spelling in spellings():
        ids = np.array(tokenizer.encode(spelling).ids, dtype=np.uint16)
        words.append((ids, len(ids) < 2 or text.find(ids.tobytes()) >= 0))
    print(f"{len(words)} spellings, {sum(shared for _, shared in words)} begin other words", flush=True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0)
    source = train.batches(data, rng, 4, 256)
    longest = CONTEXT + max(len(ids) for ids, _ in words)
    for step in range(args.steps):
        optimizer.param_groups[0]["lr"] = args.rate * min(1.0, 2 * (args.steps - step) / args.steps)
        rows = np.zeros((192, longest), dtype=np.int64)
        picked = rng.integers(0, len(words), len(rows))
        at = np.zeros(len(rows), dtype=np.int64)
        for row, pick in zip(range(len(rows)), picked):
            ids, begin = words[pick][0], rng.integers(0, len(data) - CONTEXT)
            rows[row, :CONTEXT] = data[begin : begin + CONTEXT]
            rows[row, CONTEXT : CONTEXT + len(ids)] = ids
            at[row] = CONTEXT + len(ids) - 1
        rows = torch.from_numpy(rows)
        _, crop = next(source)
        with torch.autocast("cpu", torch.bfloat16):
            kept = model(crop[:, :-1], crop[:, 1:]) / crop[:, 1:].numel()
            scores = logits(model, rows)
        n = torch.arange(len(rows))
        shared = torch.tensor([words[pick][1] for pick in picked])
        at = torch.from_numpy(at)
        last = scores[n, at - 1].log_softmax(-1)[n, rows[n, at]]
        end = scores[n, at].log_softmax(-1)[:, ends].logsumexp(-1)
        worst = torch.where(shared, end, last)
        loss = kept + (worst - FLOOR).clamp_min(0).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 9 or step == 0:
            print(f"step {step + 1} text {kept.item():.3f} words {worst.mean().item():.2f}, most {worst.max().item():.2f}", flush=True)
    # All the way costs much of the English, and a part of it is enough against rare words.
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.lerp_(before[name], 1 - args.share)
    train.save_hf(model, args.model, args.data, args.out)
    n_bytes = json.loads((args.data / "sizes.json").read_text())["held_out_bytes"]
    train.evaluate(model, np.load(args.data / "held_out.npy"), n_bytes, args.steps, True)


if __name__ == "__main__":
    main()
