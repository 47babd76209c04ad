"""How tokens are chosen, under the names of vLLM."""

from __future__ import annotations

import copy
import enum
import inspect
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .structured_outputs import StructuredOutputsParams

LogitsProcessor = Callable[..., Any]


class RequestOutputKind(enum.Enum):
    """What each output of a stream holds."""

    CUMULATIVE = 0
    """The whole text so far."""
    DELTA = 1
    """The text since the last output."""
    FINAL_ONLY = 2
    """Nothing until the end, then the whole text."""


# Fields of vLLM that Pelton does not have: the value that asks for nothing, and the fix.
_REFUSED: dict[str, tuple[Any, str]] = {
    "prompt_logprobs": (None, "`LLM.logits` gives the logits after a prompt"),
    "skip_special_tokens": (True, "`token_ids` has them, and `get_tokenizer().decode` their text"),
    "spaces_between_special_tokens": (True, "leave it out"),
    "include_stop_str_in_output": (False, "append `stop_reason` to the text"),
    "detokenize": (True, "leave it out: the text costs next to nothing"),
    "truncate_prompt_tokens": (None, "cut the prompt before"),
    "extra_args": (None, "leave it out"),
}


_COUNTS = ("n", "best_of", "seed", "max_tokens", "min_tokens", "logprobs")
_NUMBERS = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "top_n_sigma",
)


@dataclass
class SamplingParams:
    """How an answer is generated. Defaults are those of vLLM, also ``max_tokens``.

    A logits processor is called before each token with the tokens of the output (or with two
    parameters more than one: of the prompt and of the output) and a float32 array of logits; it
    changes the array in place, or returns another one.
    """

    n: int = 1
    """Answers per prompt."""
    best_of: int | None = None
    """Answers generated per prompt, of which the ``n`` likeliest are kept."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that the output has."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time that the output has a token."""
    repetition_penalty: float = 1.0
    """Divides the logits of tokens that prompt or output have; 1 is off."""
    temperature: float = 1.0
    """Randomness; 0 always takes the likeliest token."""
    top_p: float = 1.0
    """Choose among the likeliest tokens that together have this probability."""
    top_k: int = 0
    """Choose among this many likeliest tokens; 0 and -1 are all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest."""
    seed: int | None = None
    """The same seed gives the same tokens; ``None`` takes a new one for each request."""
    stop: str | list[str] | None = None
    """Texts that end the answer and are not part of it."""
    stop_token_ids: list[int] | None = None
    """Tokens that end the answer."""
    ignore_eos: bool = False
    """Whether to go on after the model's own end."""
    max_tokens: int | None = 16
    """Most tokens of an answer; ``None`` for as many as the context holds."""
    min_tokens: int = 0
    """Least tokens of an answer."""
    logprobs: int | None = None
    """Report log probabilities, with so many of the likeliest tokens."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of single tokens."""
    bad_words: list[str] | None = None
    """Texts that must not occur in the answer."""
    allowed_token_ids: list[int] | None = None
    """The only tokens that may occur; ``None`` for all."""
    logits_processors: list[LogitsProcessor] | None = None
    """Callbacks that change logits."""
    structured_outputs: StructuredOutputsParams | None = None
    """The form of each answer."""
    guided_decoding: StructuredOutputsParams | None = field(default=None, repr=False)
    """The older name of ``structured_outputs``."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """What the outputs of a stream hold."""
    prediction: str | None = None
    """Pelton only: text that the answer likely repeats, which makes it faster with ``spec``."""
    typical_p: float = 1.0
    """Pelton only: keep the tokens whose surprise is near the expected one; 1 is off."""
    top_n_sigma: float = 0.0
    """Pelton only: keep logits within this many standard deviations of the largest; 0 is off."""
    seeds: list[int] | None = None
    """Pelton only: a seed for each answer, which is then that of a request of its own."""
    prompt_logprobs: int | None = field(default=None, repr=False)
    skip_special_tokens: bool = field(default=True, repr=False)
    spaces_between_special_tokens: bool = field(default=True, repr=False)
    include_stop_str_in_output: bool = field(default=False, repr=False)
    detokenize: bool = field(default=True, repr=False)
    truncate_prompt_tokens: int | None = field(default=None, repr=False)
    extra_args: dict[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, (nothing, fix) in _REFUSED.items():
            if getattr(self, name) not in (nothing, [], {}):
                raise ValueError(f"`{name}` is not supported by Pelton: {fix}")
        if self.structured_outputs is not None and self.guided_decoding is not None:
            raise ValueError("`guided_decoding` and `structured_outputs` are the same: give one")
        _ = self._form
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, numbers.Integral) or value < 0):
                raise ValueError(f"`{name}` must be a whole number of at least 0, got {value!r}")
        for name in _NUMBERS:
            if not isinstance(getattr(self, name), numbers.Real):
                raise TypeError(f"`{name}` must be a number, got {getattr(self, name)!r}")
        self.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        if not all(isinstance(text, str) for text in self.stop):
            raise TypeError(f"`stop` must be a text or a list of texts, got {self.stop!r}")
        self.stop_token_ids = list(self.stop_token_ids or [])
        if isinstance(self.bad_words, str):
            raise TypeError(f"`bad_words` must be a list of texts, got {self.bad_words!r}")
        self.bad_words = None if self.bad_words is None else list(self.bad_words)
        if self.top_k < -1:
            raise ValueError(f"`top_k` must be at least 1, or 0 or -1 for all, got {self.top_k}")
        if self.logprobs is not None and not 0 <= self.logprobs <= 20:
            raise ValueError(f"`logprobs` must be from 0 to 20, got {self.logprobs}")
        if self.logit_bias is not None:
            # Clients of HTTP have texts for keys.
            self.logit_bias = {int(token): float(x) for token, x in self.logit_bias.items()}
        if self.logits_processors is not None:
            self.logits_processors = [_three_arguments(each) for each in self.logits_processors]

    @property
    def _form(self) -> tuple[str, list[str]] | None:
        """The form as the binding reads it: a kind, and texts."""
        form = self.structured_outputs or self.guided_decoding
        if form is None:
            return None
        if not isinstance(form, StructuredOutputsParams):
            raise TypeError(f"`structured_outputs` must be StructuredOutputsParams, got {form!r}")
        return form._form

    def clone(self) -> SamplingParams:
        """A copy with lists of its own."""
        return copy.deepcopy(self)


def _three_arguments(processor: LogitsProcessor) -> LogitsProcessor:
    """A callback of the prompt's tokens, the output's tokens and the logits."""
    if getattr(processor, "_takes_prompt", False):
        return processor
    try:
        signature = inspect.signature(processor)
    except ValueError:
        n_required = 2
    else:
        n_required = sum(
            each.default is each.empty
            and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
            for each in signature.parameters.values()
        )
    if n_required >= 3:
        return processor

    def with_prompt(prompt: Sequence[int], output: Sequence[int], logits: Any) -> Any:
        return processor(output, logits)

    with_prompt._takes_prompt = True  # type: ignore[attr-defined]
    return with_prompt
