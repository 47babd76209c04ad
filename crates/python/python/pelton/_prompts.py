"""Prompts and conversations in the forms that vLLM takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, Union

Message: TypeAlias = Mapping[str, Any]
PromptType: TypeAlias = Union[str, Sequence[int], Mapping[str, Any]]


def is_tokens(prompt: Any) -> bool:
    """Whether this is a list of token ids."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, (str, bytes))
        and len(prompt) > 0
        and all(isinstance(token, int) for token in prompt)
    )


def split(prompts: Any) -> tuple[list[PromptType], bool]:
    """The single prompts, and whether there was one alone."""
    if isinstance(prompts, (str, Mapping)) or is_tokens(prompts):
        return [prompts], True
    if isinstance(prompts, bytes) or not isinstance(prompts, Sequence):
        kind = type(prompts).__name__
        raise TypeError(f"`prompts` must be a str, token ids, a dict, or a list of them, got {kind}")
    return list(prompts), False


def parse(prompt: PromptType) -> tuple[str | None, str | list[int]]:
    """The prompt as text, if it has one, and what the engine takes: text or tokens."""
    if isinstance(prompt, str):
        return prompt, prompt
    if isinstance(prompt, Mapping):
        for key in prompt:
            if key not in ("prompt", "prompt_token_ids"):
                raise ValueError(f"`{key}` of a prompt is not supported by Pelton")
        if prompt.get("prompt_token_ids") is not None:
            return prompt.get("prompt"), list(prompt["prompt_token_ids"])
        if isinstance(prompt.get("prompt"), str):
            return prompt["prompt"], prompt["prompt"]
        raise ValueError("a prompt needs `prompt` or `prompt_token_ids`")
    if is_tokens(prompt):
        return None, list(prompt)
    raise TypeError(f"a prompt must be a str, token ids or a dict, got {prompt!r:.60}")


def conversations(messages: Any) -> tuple[list[Sequence[Message]], bool]:
    """The single conversations, and whether there was one alone."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise TypeError("`messages` must be a list of dicts with `role` and `content`, not empty")
    if isinstance(messages[0], Mapping):
        return [messages], True
    return list(messages), False


def as_json(messages: Sequence[Message]) -> str:
    """Messages for the chat template."""
    for message in messages:
        if not isinstance(message, Mapping) or "role" not in message:
            raise TypeError(f"a message must be a dict with `role` and `content`, got {message!r:.60}")
    return json.dumps([dict(message) for message in messages])
