"""The same for asyncio."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pelton import _prompts
from pelton._llm import LLM, Growing, Tokenizer
from pelton.outputs import EmbeddingRequestOutput, RequestOutput
from pelton.sampling_params import SamplingParams

if TYPE_CHECKING:
    import asyncio

    from pelton._prompts import Message, PromptType


class AsyncLLM:
    """A model on this machine for asyncio, with the names of vLLM's asynchronous class.

    Takes what ``LLM`` takes. Any number of requests run together; the event loop never waits for
    the model. Ending an iteration early, or cancelling its task, ends the request.
    """

    def __init__(
        self, model: str | os.PathLike[str] | None = None, **settings: Any
    ) -> None:
        self._llm = LLM(model, **settings)

    @property
    def info(self) -> dict[str, Any]:
        """Name, architecture, sizes and threads of the model."""
        return self._llm.info

    def get_tokenizer(self) -> Tokenizer:
        """Text to tokens and back."""
        return self._llm.get_tokenizer()

    def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Continue a prompt, and yield the answer as it grows; ``outputs[0].delta`` is new."""
        return self._pieces(_prompts.parse(prompt), sampling_params, request_id, priority)

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Answer a conversation, and yield the answer as it grows."""
        found, is_one = _prompts.conversations(messages)
        if not is_one:
            raise TypeError("`messages` must be one conversation: a stream answers one")
        parsed = self._llm._render(found[0], True, chat_template_kwargs)
        return self._pieces(parsed, sampling_params, request_id, priority)

    async def embed(
        self, prompts: PromptType | Sequence[PromptType], **options: Any
    ) -> list[EmbeddingRequestOutput]:
        """Vectors of texts, as ``LLM.embed``."""
        import asyncio

        return await asyncio.to_thread(self._llm.embed, prompts, **options)

    def shutdown(self) -> None:
        """End the engine; running requests are aborted."""
        self._llm.shutdown()

    async def _pieces(
        self,
        prompt: tuple[str | None, str | list[int]],
        sampling_params: SamplingParams | None,
        request_id: str | None,
        priority: int,
    ) -> AsyncIterator[RequestOutput]:
        import asyncio

        loop = asyncio.get_running_loop()
        params = self._llm._params(sampling_params)
        name = self._llm._name() if request_id is None else request_id
        stream = self._llm._engine().stream((prompt[1], params, priority))
        growing = Growing(name, prompt[0], stream.prompt_token_ids, params)
        try:
            while True:
                news: asyncio.Future[None] = loop.create_future()
                ring = functools.partial(loop.call_soon_threadsafe, _wake, news)
                has_come, piece = stream.poll(ring)
                if not has_come:
                    await news
                elif piece is None:
                    return
                else:
                    output = growing.add(piece)
                    if output is not None:
                        yield output
        finally:
            stream.abort()


def _wake(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)
