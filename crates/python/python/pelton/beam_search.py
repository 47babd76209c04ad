"""Beam search, under the names of vLLM."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pelton._pelton import Found
    from pelton.outputs import Logprob


@dataclass
class BeamSearchParams:
    """How the best answers are searched. Defaults are those of vLLM."""

    beam_width: int
    """Beams, and answers to each prompt; from 1 to 32."""
    max_tokens: int | None
    """Most tokens of an answer; ``None`` for as many as the context holds."""
    ignore_eos: bool = False
    """Whether to go on after the model's own end."""
    temperature: float = 0.0
    """0 or 1, which mean the same: a search draws nothing."""
    length_penalty: float = 1.0
    """Exponent of the length by which scores are divided; above 0 favours long answers."""
    include_stop_str_in_output: bool = field(default=False, repr=False)
    early_stopping: bool | Literal["never"] = "never"
    """Pelton only: when a search ends that has ``beam_width`` answers, as ``transformers`` has it."""
    logprobs: int | None = None
    """Pelton only: report log probabilities, with so many of the likeliest tokens."""

    def __post_init__(self) -> None:
        if self.include_stop_str_in_output:
            raise ValueError(
                "`include_stop_str_in_output` is not supported by Pelton: `tokens` has the end token"
            )
        for name in ("beam_width", "max_tokens", "logprobs"):
            value = getattr(self, name)
            if value is None and name != "beam_width":
                continue
            if not isinstance(value, numbers.Integral) or value < 0:
                raise ValueError(f"`{name}` must be a whole number of at least 0, got {value!r}")
        for name in ("temperature", "length_penalty"):
            if not isinstance(getattr(self, name), numbers.Real):
                raise TypeError(f"`{name}` must be a number, got {getattr(self, name)!r}")
        if self.early_stopping not in (True, False, "never"):
            raise ValueError(
                f'`early_stopping` must be True, False or "never", got {self.early_stopping!r}'
            )

    def _mode(self) -> str:
        if self.early_stopping == "never":
            return "never"
        return "always" if self.early_stopping else "heuristic"


@dataclass
class BeamSearchSequence:
    """One answer."""

    tokens: list[int]
    """The prompt and the answer, with the token that ended it."""
    logprobs: list[dict[int, Logprob]]
    """Of each token of the answer, where ``logprobs`` asks for them; else empty."""
    cum_logprob: float = 0.0
    """Sum of the log probabilities of the answer's tokens."""
    text: str | None = None
    """The text of ``tokens``, special tokens included, as vLLM has it."""
    finish_reason: str | None = None
    """``stop`` or ``length``."""
    stop_reason: int | str | None = None
    """Always ``None``: the model's own end token is no reason of its own."""
    score: float = 0.0
    """Pelton only: the sum divided by the length to the power of the penalty."""
    n_prompt_tokens: int = field(default=0, repr=False)
    """Pelton only: tokens of the prompt at the beginning of ``tokens``."""


@dataclass
class BeamSearchOutput:
    """The best answers to one prompt, the best first."""

    sequences: list[BeamSearchSequence]


class Wanted:
    """Parameters as the engine reads them."""

    def __init__(self, params: BeamSearchParams) -> None:
        self.beam_width = params.beam_width
        self.max_tokens = params.max_tokens
        self.ignore_eos = params.ignore_eos
        self.temperature = params.temperature
        self.length_penalty = params.length_penalty
        self.early_stopping = params._mode()
        self.logprobs = params.logprobs


def reported(found: Found) -> list[dict[int, Logprob]]:
    """The log probabilities of an answer's tokens."""
    from pelton.outputs import Logprob

    tokens, logprobs, texts, *_ = found
    listed = []
    for token, own_text, (own, top) in zip(tokens, texts, logprobs or []):
        each = {id: Logprob(value, rank, text) for rank, (id, value, text) in enumerate(top, 1)}
        each.setdefault(token, Logprob(own, None, own_text))
        listed.append(each)
    return listed
