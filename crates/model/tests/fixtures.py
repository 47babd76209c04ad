"""What the generators of fixtures have in common."""

import json
import shutil
import sys

import safetensors.torch
import torch

from stored import Runs, drawn, store

# Shorter runs of drawn weights are stored as bytes.
RUN = 128
# Distance of the logits of a row that references keep.
STRIDE = 4


class Draws:
    """The weights of a fixture, rounded to bf16, of which only the seed and the bounds are stored."""

    def __init__(self, seed):
        self.seed, self.n, self.runs = seed, 0, Runs(RUN, unit=2)

    def uniform(self, tensor, low, high):
        """Fills a tensor with the next numbers between two bounds."""
        # Few digits, which every reader of JSON takes for the same number.
        low, high, n = float(f"{low:.4g}"), float(f"{high:.4g}"), tensor.numel()
        bits = drawn(self.seed, self.n, n, low, high)
        self.runs.add((self.n, low, high), bits.tobytes())
        self.n += n
        values = torch.from_numpy(bits.view("int16")).view(torch.bfloat16)
        return tensor.copy_(values.float().reshape(tensor.shape))

    def spread(self, tensor, deviation):
        """Fills a tensor with the next numbers around zero, of this standard deviation."""
        return self.uniform(tensor, -deviation * 3**0.5, deviation * 3**0.5)


def reference(model, vocab_size, n_prompt, n_greedy, seed):
    """A random prompt, logits of every row and the greedy continuation; and how clearly that leads.

    The margin is the smallest distance of the best two logits, relative to the row's largest magnitude.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, vocab_size, (n_prompt,), generator=generator)
    prompt, margin = tokens.clone(), float("inf")
    for _ in range(n_greedy):
        # The whole sequence again every time: no cache of the reference is in play.
        logits = model(tokens[None], use_cache=False).logits[0]
        best = logits[-1].topk(2).values
        margin = min(margin, ((best[0] - best[1]) / logits[-1].abs().max()).item())
        tokens = torch.cat([tokens, logits[-1].argmax()[None]])
    return dict(prompt=prompt.int(), logits=logits.float(), greedy=tokens[n_prompt:].int()), margin


def some_columns(logits):
    """Of each row every fourth logit, beginning with its first, second, third or fourth one in turn.

    They are at least as many as a row's hidden state has numbers, so an error in that shows in them.
    """
    return torch.stack([row[i % STRIDE :: STRIDE] for i, row in enumerate(logits)])


def write_model(folder, config, state, draws=None):
    """A fixture's folder, made anew, with its model; weights that `draws` gave are not stored."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    bytes = safetensors.torch.save(state, metadata={"format": "pt"})
    if draws:
        store(folder, bytes, draws.runs.parts(bytes), draws.seed)
    else:
        (folder / "model.safetensors").write_bytes(bytes)


def write(folder, config, state, tensors, case=None, draws=None):
    """A fixture's folder, made anew, with its model and its reference."""
    write_model(folder, config, state, draws)
    contiguous = {name: x.contiguous() for name, x in tensors.items()}
    safetensors.torch.save_file(contiguous, folder / "reference.safetensors")
    if case:
        (folder / "case.json").write_text(json.dumps(case) + "\n")


def wanted(cases):
    """The names on the command line, or all."""
    return sys.argv[1:] or list(cases)
