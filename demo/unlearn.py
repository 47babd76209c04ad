"""Step 3 of the recipe: a trained model unlearns to spell the words of `slurs.txt`.

    python unlearn.py --model story --data build --out build/story
    python unlearn.py --model story --data build --out build/story --from ../crates/cli/model/story-q8_0.gguf

The books hold none of these words, but a model that spells words of syllables makes one by chance,
and in any split into tokens. So the model answers as in `check.py`, guided samples find the ways in which
it could spell a listed word there (`spell.py`), and the loss is the excess of a way's log probability
over a floor, which its last token and the word's end pay (unlikelihood training, Welleck et al. 2019).
All else shall stay: on text of the books, of the chats and of its own the model keeps the
distribution of the model that it was (Kullback-Leibler divergence).
"""

import argparse
import json
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import gguf_file
import spell
import train

BEFORE, ROWS = 40, 128  # tokens before a word; words in a batch
GROUPS, ANSWERS, EVERY = 4, 64, 4  # of a look for ways: lengths of prompts, answers to each, tokens between samples
KEPT = 3000  # ways that are remembered


def frozen(model):
    """A copy of the model with its weights as they are stored, for sampling and as the teacher."""
    copy = train.Model(model.c)
    copy.load_state_dict({name: train.stored(w) if w.ndim == 2 else w for name, w in model.state_dict().items()})
    return copy.requires_grad_(False)


def excess(model, speller, ways, floor):
    """The mean over the ways of how far their log probability is above the floor, and the highest."""
    longest = max(len(way.word) for way in ways)
    rows = torch.zeros((len(ways), BEFORE + longest), dtype=torch.int64)
    at, n = [], torch.arange(len(ways))
    for row, way in zip(rows, ways):
        ids = torch.tensor(way.context[-BEFORE:] + way.word)
        row[: len(ids)] = ids
        at.append((len(ids) - len(way.word), len(ids) - 1))
    first, last = torch.tensor(at).T
    scores = model.log_probs(rows)
    chosen = scores[:, :-1].gather(2, rows[:, 1:, None])[..., 0]  # of each token but the first
    place = torch.arange(rows.shape[1] - 1)[None]
    beginning = chosen.detach().masked_fill((place < first[:, None] - 1) | (place >= last[:, None] - 1), 0.0).sum(1)
    end = scores[n, last].masked_fill(~speller.ends, -torch.inf).logsumexp(-1)
    total = beginning + chosen[n, last - 1] + end
    return (total - floor).clamp_min(0).mean(), total.max().item()


class Finder:
    """The ways to a listed word that the model of late had."""

    def __init__(self, tokenizer, speller, rng, floor):
        self.tokenizer, self.speller, self.rng, self.floor = tokenizer, speller, rng, floor
        self.ways, self.texts, self.seed = [], [], 1000

    def look(self, model):
        """Samples answers of the model as it is now."""
        self.seed += 1
        plain, tried, found, self.texts = frozen(model), 0, [], []
        prompts = spell.prompts(self.tokenizer, 5000, self.seed)
        sizes = np.array([len(prompt) for prompt in prompts])
        for i in self.rng.choice(len(prompts), GROUPS, False, sizes / sizes.sum()):
            more, ways, ids = spell.answers(plain, self.speller, prompts[i][:ANSWERS], EVERY)
            tried, found = tried + more, found + ways
            if ids.shape[1] > spell.ANSWER:
                self.texts.append(ids)
        self.ways = [way for way in found if way.log_p > self.floor] + self.ways[:KEPT]
        expected = 400_000 * sum(np.exp(way.log_weight) for way in found) / tried
        return f"{expected:.3f} expected in 400,000 tokens, {len(self.ways)} ways known"

    def pick(self):
        """Ways of a batch, the likely ones more often."""
        p = np.array([way.log_p - self.floor for way in self.ways])
        return [self.ways[i] for i in self.rng.choice(len(p), min(ROWS, len(p)), False, p / p.sum())]

    def text(self):
        """Answers of the model of one length."""
        return self.texts[self.rng.integers(len(self.texts))][:32]


def divergence(model, teacher, ids):
    """Of the teacher's next tokens from the model's, in nats per token."""
    with torch.no_grad():
        wanted = teacher.log_probs(ids)
    return F.kl_div(model.log_probs(ids), wanted, reduction="none", log_target=True).sum(-1).mean()


def unlearn(model, speller, tokenizer, data, args):
    """The steps; `model` ends as their result."""
    rng, teacher = np.random.default_rng(1), frozen(model)
    if args.like:
        teacher.load_state_dict(gguf_file.weights(args.like))
    finder, source = Finder(tokenizer, speller, rng, args.floor), train.batches(data, rng, 4, 256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0)
    started = time.time()
    for step in range(args.steps):
        if step % args.look_every == 0:
            print(f"step {step} {finder.look(model)}, {(time.time() - started) / 60:.1f} min", flush=True)
        optimizer.param_groups[0]["lr"] = args.rate * min(1.0, 2 * (args.steps - step) / args.steps)
        crop = next(source)
        with torch.autocast(args.device, torch.bfloat16):
            kept = divergence(model, teacher, crop[:, :-1]) + divergence(model, teacher, finder.text())
            words, most = excess(model, speller, finder.pick(), args.floor)
        (args.keep * kept + words).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 9 or step == 0:
            print(f"step {step + 1} divergence {kept.item() / 2:.4f} words {words.item():.2f}, most {most:.2f}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", choices=train.MODELS, required=True)
    p.add_argument("--data", type=pathlib.Path, required=True)
    p.add_argument("--out", type=pathlib.Path, required=True)
    p.add_argument("--from", dest="start", type=pathlib.Path, metavar="FILE.gguf",
                   help="begin from the weights of this file instead of the state of the training")
    p.add_argument("--like", type=pathlib.Path, metavar="FILE.gguf",
                   help="keep the distribution of this file instead of the one that the steps begin with")
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--rate", type=float, default=3e-4)
    p.add_argument("--keep", type=float, default=20.0, help="weight of the divergence beside the words")
    p.add_argument("--floor", type=float, default=-22.0,
                   help="log probability of a way at one place of an answer that is low enough")
    p.add_argument("--look-every", type=int, default=10, help="steps between looks for ways to a listed word")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = p.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    torch.set_default_device(args.device)
    model = train.Model(train.MODELS[args.model])
    if args.start:
        model.load_state_dict(gguf_file.weights(args.start))
    else:
        model.load_state_dict(torch.load(args.out.with_suffix(".state.pt"), map_location=args.device)["model"])
    model.round_weights()

    tokenizer = Tokenizer.from_file(str(args.data / "tokenizer.json"))
    speller = spell.Speller(tokenizer)
    data = np.concatenate([np.load(args.data / "books.npy"), np.load(args.data / "chats.npy")])
    unlearn(model, speller, tokenizer, data, args)
    train.save_hf(model, args.model, args.data, args.out)
    spell.measure(frozen(model), tokenizer, 2000, 1, speller)
    n_bytes = json.loads((args.data / "sizes.json").read_text())["held_out_bytes"]
    train.evaluate(model, np.load(args.data / "held_out.npy"), n_bytes, args.steps, True)


if __name__ == "__main__":
    main()
