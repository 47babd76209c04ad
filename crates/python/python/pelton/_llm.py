"""The offline class."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pelton import _pelton, _prompts, _settings
from pelton.beam_search import (
    BeamSearchOutput,
    BeamSearchParams,
    BeamSearchSequence,
    Wanted,
    reported,
)
from pelton.outputs import (
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    RequestOutput,
    empty,
    extend,
)
from pelton.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pelton._pelton import Asked, Piece
    from pelton._prompts import Message, PromptType


class Tokenizer:
    """Text to tokens and back, as the model's files say."""

    def __init__(self, engine: _pelton.Engine) -> None:
        self._engine = engine

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a text."""
        return self._engine.encode(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of tokens."""
        return self._engine.decode(list(token_ids), skip_special_tokens)


class LLM:
    """A model on this machine, with the names of vLLM's offline class.

    ``model`` is a folder, a ``.gguf`` file, or ``owner/name`` on the hub; without it, the small
    story model inside the package. Further keywords are the settings of ``pelton serve --config``,
    such as ``threads``, ``max_context``, ``kv_memory`` or ``spec``, and vLLM's ``max_model_len``,
    ``max_num_seqs``, ``max_num_batched_tokens``, ``swap_space``, ``revision`` and so on.
    ``runner="pooling"`` (or ``task="embed"``) loads the model for vectors of texts.

    The interpreter's lock is free while the model computes, and any number of threads may use one
    object.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        task: str | None = None,
        runner: str | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        vectors = _settings.vectors(task, runner)
        self._opened = _pelton.open(_settings.read(model, settings), vectors)
        self._seed = seed
        self._numbers = itertools.count()

    @property
    def info(self) -> dict[str, Any]:
        """Name, architecture, sizes and threads of the model."""
        return self._opened.info()

    def get_tokenizer(self) -> Tokenizer:
        """Text to tokens and back."""
        return Tokenizer(self._engine())

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling that the model's authors recommend, else plain sampling."""
        return SamplingParams(seed=self._seed, **self._engine().recommended())  # type: ignore[arg-type]

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continue prompts, all of them together: texts, token ids, or vLLM's ``TokensPrompt``."""
        _refuse("use_tqdm", use_tqdm, "there is no progress bar; leave it out")
        parsed = [_prompts.parse(prompt) for prompt in _prompts.split(prompts)[0]]
        return self._answer(parsed, sampling_params, priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, laid out by the model's chat template."""
        _refuse("use_tqdm", use_tqdm, "there is no progress bar; leave it out")
        _refuse("chat_template", chat_template, "give it to `LLM(chat_template=...)`")
        _refuse("continue_final_message", continue_final_message, "use `generate`")
        _refuse("tools", tools, "put them into the text of a message")
        found, _ = _prompts.conversations(messages)
        parsed = [self._render(each, add_generation_prompt, chat_template_kwargs) for each in found]
        return self._answer(parsed, sampling_params, None)

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
    ) -> list[BeamSearchOutput]:
        """Search the best answers to prompts, all of them together.

        The order of the answers and their sums are those of vLLM: the score is the sum of the log
        probabilities divided by the number of tokens of prompt and answer, without the end token, to
        the power of ``length_penalty``.
        """
        _refuse("use_tqdm", use_tqdm, "there is no progress bar; leave it out")
        if not isinstance(params, BeamSearchParams):
            raise TypeError(f"`params` must be BeamSearchParams, got {type(params).__name__}")
        parsed = [_prompts.parse(prompt)[1] for prompt in _prompts.split(prompts)[0]]
        engine = self._engine()
        outputs = []
        for prompt, answers in engine.beam_search(parsed, Wanted(params)):
            sequences = []
            for found in answers:
                tokens, _, _, reason, sum_logprob, score = found
                whole = prompt + tokens
                text = engine.decode(whole, False)
                sequences.append(
                    BeamSearchSequence(
                        whole,
                        reported(found),
                        sum_logprob,
                        text,
                        reason,
                        score=score,
                        n_prompt_tokens=len(prompt),
                    )
                )
            outputs.append(BeamSearchOutput(sequences))
        return outputs

    def stream(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None = None,
    ) -> Iterator[RequestOutput]:
        """Continue one prompt, and yield the answer as it grows; ``outputs[0].delta`` is new.

        Leaving the loop early ends the request.
        """
        parsed = _prompts.parse(prompt)
        return self._pieces(parsed, self._params(sampling_params))

    def chat_stream(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[RequestOutput]:
        """Answer one conversation, and yield the answer as it grows."""
        found, is_one = _prompts.conversations(messages)
        if not is_one:
            raise TypeError("`messages` must be one conversation: a stream answers one")
        parsed = self._render(found[0], True, chat_template_kwargs)
        return self._pieces(parsed, self._params(sampling_params))

    def logits(
        self, prompts: PromptType | Sequence[PromptType]
    ) -> npt.NDArray[np.float32] | list[npt.NDArray[np.float32]]:
        """The logits of the token after a prompt: a float32 array, or a list for a list of prompts.

        The array owns the memory that the engine filled; nothing is copied.
        """
        single, is_one = _prompts.split(prompts)
        rows = self._engine().logits([_prompts.parse(prompt)[1] for prompt in single])
        return rows[0] if is_one else rows

    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        use_tqdm: bool = False,
        truncate: bool = False,
        dimensions: int | None = None,
        prompt_name: str | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Vectors of texts, as float32 arrays that own their memory."""
        _refuse("use_tqdm", use_tqdm, "there is no progress bar; leave it out")
        if not isinstance(self._opened, _pelton.Vectors):
            raise ValueError("the model was loaded for text: load it with `runner='pooling'`")
        parsed = [_prompts.parse(prompt)[1] for prompt in _prompts.split(prompts)[0]]
        found = self._opened.embed(parsed, dimensions, prompt_name, truncate)
        return [
            EmbeddingRequestOutput(
                self._name(),
                EmbeddingOutput(vector),
                [] if isinstance(text, str) else list(text),
                n_tokens,
            )
            for text, (vector, n_tokens) in zip(parsed, found)
        ]

    def shutdown(self) -> None:
        """End the engine; running requests are aborted. Not needed at the end of a program."""
        self._opened.shutdown()

    def _engine(self) -> _pelton.Engine:
        if isinstance(self._opened, _pelton.Engine):
            return self._opened
        raise ValueError("the model was loaded for vectors: it has `embed` and generates no text")

    def _name(self) -> str:
        return str(next(self._numbers))

    def _params(self, params: SamplingParams | None) -> SamplingParams:
        if params is None:
            return self.get_default_sampling_params()
        if not isinstance(params, SamplingParams):
            kind = type(params).__name__
            raise TypeError(f"`sampling_params` must be SamplingParams, got {kind}")
        if params.seed is None and self._seed is not None:
            params = params.clone()
            params.seed = self._seed
        return params

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        arguments: Mapping[str, Any] | None,
    ) -> tuple[str, list[int]]:
        engine = self._engine()
        extra = json.dumps(dict(arguments or {}))
        text = engine.render(_prompts.as_json(messages), add_generation_prompt, extra)
        # The template writes the special tokens itself.
        return text, engine.encode(text, False)

    def _answer(
        self,
        prompts: Sequence[tuple[str | None, str | list[int]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            params = [self._params(sampling_params)] * len(prompts)
        else:
            params = [self._params(each) for each in sampling_params]
        for name, values in (("sampling_params", params), ("priority", priority)):
            if values is not None and len(values) != len(prompts):
                raise ValueError(
                    f"`{name}` has {len(values)} entries, expected one for each of the "
                    f"{len(prompts)} prompts"
                )
        asked: list[Asked] = [
            (engine_prompt, each, priority[idx] if priority else 0)
            for idx, ((_, engine_prompt), each) in enumerate(zip(prompts, params))
        ]
        outputs = []
        answered = self._engine().generate(asked)
        for (text, _), each, (tokens, pieces) in zip(prompts, params, answered):
            answers = [_whole(piece, each) for piece in pieces]
            outputs.append(RequestOutput(self._name(), text, tokens, answers, True))
        return outputs

    def _pieces(
        self, prompt: tuple[str | None, str | list[int]], params: SamplingParams
    ) -> Iterator[RequestOutput]:
        stream = self._engine().stream((prompt[1], params, 0))
        growing = Growing(self._name(), prompt[0], stream.prompt_token_ids, params)
        return _read(stream, growing)


class Growing:
    """The answers of a stream, and what the outputs of it hold."""

    def __init__(
        self, name: str, prompt: str | None, prompt_token_ids: list[int], params: SamplingParams
    ) -> None:
        self._head = (name, prompt, prompt_token_ids)
        self._params = params
        self._answers = [empty(idx, params) for idx in range(params.n)]

    def add(self, piece: Piece) -> RequestOutput | None:
        """The output after a piece; ``None`` where none is due."""
        kind = self._params.output_kind
        answer = self._answers[piece[0]]
        if kind is RequestOutputKind.DELTA:
            fresh = empty(answer.index, self._params)
            extend(fresh, piece, self._params)
            answer.finish_reason = fresh.finish_reason
            shown = [fresh]
        else:
            extend(answer, piece, self._params)
            shown = [_copy(each) for each in self._answers]
            # Only the answer of this piece has new text.
            for each in shown:
                each.delta = piece[1] if each.index == answer.index else ""
        finished = all(each.finish_reason is not None for each in self._answers)
        if kind is RequestOutputKind.FINAL_ONLY and not finished:
            return None
        return RequestOutput(*self._head, shown, finished)


def _read(stream: _pelton.Stream, growing: Growing) -> Iterator[RequestOutput]:
    try:
        for piece in stream:
            output = growing.add(piece)
            if output is not None:
                yield output
    finally:
        stream.abort()


def _copy(answer: CompletionOutput) -> CompletionOutput:
    logprobs = None if answer.logprobs is None else list(answer.logprobs)
    return CompletionOutput(
        answer.index,
        answer.text,
        list(answer.token_ids),
        answer.cumulative_logprob,
        logprobs,
        answer.finish_reason,
        answer.stop_reason,
    )


def _whole(piece: Piece, params: SamplingParams) -> CompletionOutput:
    answer = empty(piece[0], params)
    extend(answer, piece, params)
    return answer


def _refuse(name: str, value: Any, fix: str) -> None:
    if value:
        raise ValueError(f"`{name}` is not supported by Pelton: {fix}")
