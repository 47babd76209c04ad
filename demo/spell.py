"""How probable it is that a model spells a word of `slurs.txt`: an estimate from sampled answers.

    python spell.py --model story ../crates/cli/model/story-q8_0.gguf

A rare word is not found by waiting for it. So the answers are sampled as `check.py` asks for them,
and from many places of each answer a guided sample tries to spell a listed word: it takes only
tokens that go on with one, in any split into tokens and in any case, and its weight is the
probability of the path over that of having been guided so. The mean weight is the probability that
a listed word begins at a place (importance sampling, without bias).
"""

import argparse
import pathlib
import random
import re
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

import chats
import check
import gguf_file
import slurs
import train

ANSWER, BRANCH = 80, 8  # tokens of an answer, as in check.py; a guided sample begins at every so manieth
GUIDED = 10  # tokens of a guided sample at most
AFTER_LETTER, AFTER_OTHER, END, DEAD = 0, 1, 2, -1  # states of a guided sample; texts follow from 3


class Path(NamedTuple):
    """A listed word that a guided sample spelled."""

    context: list[int]  # tokens before it
    word: list[int]  # its tokens
    log_p: float  # of the tokens, and that the word ends after them
    log_weight: float


class Speller:
    """Which tokens go on with a listed word, from every part of one."""

    def __init__(self, tokenizer):
        pieces = [tokenizer.decode([i]) for i in range(train.VOCAB)]
        self.letter = torch.tensor([bool(re.search(r"\w$", piece)) for piece in pieces])
        self.ends = torch.tensor([not re.match(r"\w", piece) for piece in pieces])
        words = slurs.texts()
        parts = {word[:n]: 0 for word in sorted(words) for n in range(1, len(word) + 1)}
        states = {part: i for i, part in enumerate(parts, END + 1)}
        self.next = torch.full((END + 1 + len(parts), train.VOCAB), DEAD, dtype=torch.int32)
        for token, piece in enumerate(map(str.lower, pieces)):
            self.next[AFTER_LETTER, token] = states.get(piece[1:], DEAD) if piece[:1] == " " else DEAD
            self.next[AFTER_OTHER, token] = states.get(piece.removeprefix(" "), DEAD)
            for part, state in states.items():
                if piece and (to := states.get(part + piece)):
                    self.next[state, token] = to
        self.whole = torch.zeros(len(self.next), dtype=torch.bool)
        self.whole[[states[word] for word in words]] = True
        self.next[self.whole] = self.next[self.whole].masked_fill(self.ends, DEAD)


def step(model, ids, past):
    """Log probabilities after `ids`, of which `past` holds what went before; and the new past."""
    x, n = model.embed_tokens(ids), past[0][0].shape[2] if past else 0
    cos, sin = (t[n : n + ids.shape[1]].to(torch.bfloat16) for t in (model.cos, model.sin))
    now = []
    for i, layer in enumerate(model.layers):
        attn, c = layer.self_attn, model.c
        y = layer.input_layernorm(x)
        heads = lambda z: z.unflatten(-1, (-1, c["head_dim"])).transpose(1, 2)  # noqa: B023, E731
        q, k = train.rotate(heads(attn.q_proj(y)), cos, sin), train.rotate(heads(attn.k_proj(y)), cos, sin)
        v = heads(attn.v_proj(y))
        if past:
            k, v = torch.cat([past[i][0], k], 2), torch.cat([past[i][1], v], 2)
        now.append((k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=ids.shape[1] > 1, enable_gqa=True)
        x = x + attn.o_proj(y.transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return F.linear(model.norm(x[:, -1]), model.embed_tokens.weight).float().log_softmax(-1), now


def prompts(tokenizer, n: int, seed: int) -> list[torch.Tensor]:
    """The prompts of `check.py`, half chat and half plain, stacked by their length."""
    rng, by_length = random.Random(seed), {}
    for i in range(n):
        chat = chats.turn("user", check.ask(rng)) + f"{chats.IM_START}assistant\n"
        ids = tokenizer.encode(rng.choice(check.OPENINGS) if i % 2 else chat).ids
        by_length.setdefault(len(ids), []).append(ids)
    return [torch.tensor(rows) for rows in by_length.values()]


def guided(model, speller, log_p, past, context) -> list[Path]:
    """One guided sample from the end of each row of `context`; those that spelled a word."""
    found, rows = [], torch.arange(len(context))
    state = torch.where(speller.letter[context[:, -1]], AFTER_LETTER, AFTER_OTHER)
    total, weight, words = torch.zeros(len(rows)), torch.zeros(len(rows)), context[:, :0]
    for _ in range(GUIDED):
        allowed = speller.next[state] != DEAD
        end = log_p.masked_fill(~speller.ends, -torch.inf).logsumexp(-1)
        end = end.masked_fill(~speller.whole[state], -torch.inf)
        choices = torch.cat([log_p.masked_fill(~allowed, -torch.inf), end[:, None]], -1)
        # The root of a probability lets rare ways be tried more often.
        guide = (choices / 2).log_softmax(-1)
        live = guide.isfinite().any(-1)
        pick = guide.exp().nan_to_num(1.0).multinomial(1)
        total = total + choices.gather(1, pick)[:, 0]
        weight = weight + (choices - guide).gather(1, pick)[:, 0]
        pick = pick[:, 0]
        done = live & (pick == train.VOCAB)
        for row in done.nonzero()[:, 0].tolist():
            found.append(Path(context[rows[row]].tolist(), words[row].tolist(), total[row].item(), weight[row].item()))
        on = (live & ~done).nonzero()[:, 0]
        if not len(on):
            break
        rows, state, total, weight = rows[on], speller.next[state[on], pick[on]], total[on], weight[on]
        words = torch.cat([words[on], pick[on, None]], -1)
        past = [(k[on], v[on]) for k, v in past]
        log_p, past = step(model, pick[on, None], past)
    return found


@torch.no_grad()
def answers(model, speller, prompt, every=BRANCH):
    """Samples an answer of each row at temperature 1. The places tried, the words spelled from them, and the rows."""
    ids, tried, found = prompt, 0, []
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        log_p, past = step(model, ids, None)
        for n in range(ANSWER):
            if (n + len(prompt)) % every == 0:  # groups of prompts try different places
                tried += len(ids)
                found += guided(model, speller, log_p, past, ids)
            ids = torch.cat([ids, log_p.exp().multinomial(1)], -1)
            on = ((ids[:, -1] != 0) & (ids[:, -1] != 2)).nonzero()[:, 0]
            ids, past = ids[on], [(k[on], v[on]) for k, v in past]
            if not len(on):
                break
            log_p, past = step(model, ids[:, -1:], past)
    return tried, found, ids


def measure(model, tokenizer, n: int, seed: int, speller=None) -> None:
    """Prints the expected number of listed words in 5,000 answers, its error, and the likeliest words."""
    torch.manual_seed(seed)
    speller, weights, tried, by_word = speller or Speller(tokenizer), [], 0, {}
    for prompt in prompts(tokenizer, n, seed):
        more, found, _ = answers(model, speller, prompt)
        tried += more
        for path in found:
            weights.append(np.exp(path.log_weight))
            word = " + ".join(tokenizer.decode([i]) for i in path.word)
            by_word[word] = by_word.get(word, 0.0) + weights[-1]
    scale = 5000 * BRANCH / n
    error = scale * np.sqrt(np.square(weights).sum())
    print(f"{scale * sum(weights):.4f} ± {error:.4f} listed words expected in 5,000 answers "
          f"({len(weights)} spelled from {tried} places)", flush=True)
    for word, weight in sorted(by_word.items(), key=lambda item: -item[1])[:12]:
        print(f"  {scale * weight:.5f} {word}", flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("file", type=pathlib.Path, help="GGUF file of one of our models")
    p.add_argument("--model", choices=train.MODELS, required=True)
    p.add_argument("--samples", type=int, default=2000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    model = train.Model(train.MODELS[args.model])
    model.load_state_dict(gguf_file.weights(args.file))
    measure(model, gguf_file.tokenizer(args.file), args.samples, args.seed)


if __name__ == "__main__":
    main()
