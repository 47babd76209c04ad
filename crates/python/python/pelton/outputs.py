"""Outputs, under the names of vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pelton._pelton import Piece
    from pelton.sampling_params import SamplingParams


@dataclass
class Logprob:
    """The log probability of a token."""

    logprob: float
    """Natural logarithm of the probability under the model's own distribution."""
    rank: int | None = None
    """Place among the likeliest tokens, from 1; ``None`` where it is beyond those reported."""
    decoded_token: str | None = None
    """The token's text."""


@dataclass
class CompletionOutput:
    """One answer."""

    index: int
    """Number of the answer, from 0."""
    text: str
    """The text, without the prompt."""
    token_ids: list[int]
    """The tokens, with the token that ended the answer."""
    cumulative_logprob: float | None = None
    """Sum of the log probabilities of the tokens, where ``logprobs`` asks for them."""
    logprobs: list[dict[int, Logprob]] | None = None
    """Of each token: its own log probability and those of the likeliest tokens."""
    finish_reason: str | None = None
    """``stop``, ``length`` or ``abort``; ``None`` while the answer grows."""
    stop_reason: int | str | None = None
    """The stop string or the token of ``stop_token_ids`` that ended the answer."""
    delta: str = field(default="", repr=False)
    """Pelton only: the text that is new since the last output of a stream."""

    def finished(self) -> bool:
        """Whether the answer has ended."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """The answers to one prompt."""

    request_id: str
    """Name of the request."""
    prompt: str | None
    """The prompt as text; ``None`` where it came as tokens."""
    prompt_token_ids: list[int]
    """The prompt as tokens."""
    outputs: list[CompletionOutput]
    """The answers."""
    finished: bool
    """Whether all answers have ended."""
    prompt_logprobs: None = field(default=None, repr=False)
    """Always ``None``: Pelton does not report them."""


@dataclass
class EmbeddingOutput:
    """The vector of one text."""

    embedding: npt.NDArray[np.float32]
    """A float32 array of one dimension."""

    @property
    def hidden_size(self) -> int:
        """Elements of the vector."""
        return len(self.embedding)


@dataclass
class EmbeddingRequestOutput:
    """The vector of one text, with the name of its request."""

    request_id: str
    """Name of the request."""
    outputs: EmbeddingOutput
    """The vector."""
    prompt_token_ids: list[int]
    """The text as tokens, where it came as tokens; else empty."""
    n_tokens: int
    """Pelton only: tokens of the text, special tokens included."""
    finished: bool = True
    """Always true."""


def empty(index: int, params: SamplingParams | None) -> CompletionOutput:
    """An answer that has not begun."""
    has_logprobs = params is not None and params.logprobs is not None
    return CompletionOutput(
        index,
        "",
        [],
        cumulative_logprob=0.0 if has_logprobs else None,
        logprobs=[] if has_logprobs else None,
    )


def extend(output: CompletionOutput, piece: Piece, params: SamplingParams | None) -> None:
    """Adds a piece to an answer."""
    _, text, tokens, logprobs, texts, reason, stop = piece
    output.text += text
    output.delta = text
    output.token_ids.extend(tokens)
    if output.logprobs is not None and logprobs is not None:
        for token, own_text, (own, top) in zip(tokens, texts, logprobs):
            found = {id: Logprob(value, rank, text) for rank, (id, value, text) in enumerate(top, 1)}
            found.setdefault(token, Logprob(own, None, own_text))
            output.logprobs.append(found)
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + own
    if reason is not None:
        output.finish_reason = reason
        output.stop_reason = stop
        stop_ids = params.stop_token_ids if params is not None else None
        if reason == "stop" and stop is None and stop_ids and output.token_ids[-1] in stop_ids:
            output.stop_reason = output.token_ids[-1]
