"""What the generators of fixtures have in common."""

import json
import shutil
import sys

import safetensors.torch
import torch


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


def write(folder, config, state, tensors, case=None):
    """A fixture's folder, made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    safetensors.torch.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    contiguous = {name: x.contiguous() for name, x in tensors.items()}
    safetensors.torch.save_file(contiguous, folder / "reference.safetensors")
    if case:
        (folder / "case.json").write_text(json.dumps(case) + "\n")


def wanted(cases):
    """The names on the command line, or all."""
    return sys.argv[1:] or list(cases)
