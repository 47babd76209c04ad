"""The form that an answer has, under the names of vLLM."""

from __future__ import annotations

import json as _json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class StructuredOutputsParams:
    """The form of each answer; exactly one of these. Tokens that it forbids have no probability.

    A form that cannot be enforced as a whole is a ``ValueError`` that names the part.
    """

    json: str | dict[str, Any] | type | None = None
    """A JSON schema, its text, or a Pydantic model."""
    regex: str | None = None
    """A regular expression that the whole answer matches."""
    choice: Sequence[str] | None = None
    """The texts of which the answer is one."""
    grammar: str | None = None
    """A grammar: in GBNF where it has ``::=``, else in Lark notation."""
    json_object: bool | None = None
    """Any JSON object."""

    def __post_init__(self) -> None:
        _ = self._form

    @property
    def _form(self) -> tuple[str, list[str]]:
        """The form as the binding reads it: a kind, and texts."""
        given = {name: value for name, value in vars(self).items() if value not in (None, False)}
        if len(given) != 1:
            names = ", ".join(given) or "none"
            raise ValueError(
                "expected exactly one of json, regex, choice, grammar and json_object, "
                f"got {names}"
            )
        ((kind, value),) = given.items()
        if kind == "choice":
            if isinstance(value, str) or not all(isinstance(text, str) for text in value):
                raise TypeError(f"`choice` must be a list of texts, got {value!r}")
            return kind, list(value)
        if kind == "json":
            return kind, [_schema(value)]
        if kind == "json_object":
            return "json", ['{"type": "object"}']
        if not isinstance(value, str):
            raise TypeError(f"`{kind}` must be a text, got {value!r}")
        return kind, [value]


def _schema(value: str | dict[str, Any] | type) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, type):
        make = getattr(value, "model_json_schema", None)
        if make is None:
            raise TypeError(f"`json` must be a schema or a Pydantic model, got {value!r}")
        value = make()
    return _json.dumps(value)


GuidedDecodingParams = StructuredOutputsParams
"""The older name."""
