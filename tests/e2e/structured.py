"""Answers of a form, calls of tools and thoughts, as the `openai` client asks for them.

A part of openai_client.py, which runs these checks beside its own.
"""

import enum
import json
from typing import Annotated

import openai
import pydantic


class Mood(enum.Enum):
    glad = "glad"
    sad = "sad"


class Person(pydantic.BaseModel):
    """The client makes a strict schema of it, and reads the answer back."""

    name: str = pydantic.Field(max_length=12)
    age: int
    mood: Mood
    friends: list[Annotated[str, pydantic.Field(max_length=12)]] = pydantic.Field(max_length=2)


class Roll(pydantic.BaseModel):
    """Rolls dice."""

    sides: int
    reason: str = pydantic.Field(max_length=16)


MESSAGES = [{"role": "user", "content": "Tell me about Anna."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"enum": ["c", "f"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


def a_pydantic_model_is_parsed(server, client, model):
    for seed in range(5):
        answer = client.chat.completions.parse(
            model=model, messages=MESSAGES, response_format=Person, seed=seed, max_tokens=600
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "stop", choice
        assert isinstance(choice.message.parsed, Person), choice.message
        assert len(choice.message.parsed.name) <= 12


def a_tool_of_a_pydantic_model_is_parsed(server, client, model):
    tool = openai.pydantic_function_tool(Roll)
    for seed in range(5):
        answer = client.chat.completions.parse(
            model=model,
            messages=MESSAGES,
            tools=[tool],
            tool_choice="required",
            parallel_tool_calls=False,
            seed=seed,
            max_tokens=600,
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls", choice
        (call,) = choice.message.tool_calls
        assert isinstance(call.function.parsed_arguments, Roll), call
        assert choice.message.content is None


def the_streaming_helper_gathers_calls_and_forms(server, client, model):
    with client.chat.completions.stream(
        model=model, messages=MESSAGES, response_format=Person, seed=1, max_tokens=600
    ) as stream:
        kinds = {event.type for event in stream}
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)
    assert "content.delta" in kinds, kinds
    with client.chat.completions.stream(
        model=model,
        messages=MESSAGES,
        tools=[openai.pydantic_function_tool(Roll)],
        tool_choice={"type": "function", "function": {"name": "Roll"}},
        parallel_tool_calls=False,
        seed=1,
        max_tokens=600,
    ) as stream:
        kinds = {event.type for event in stream}
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
        assert isinstance(call.function.parsed_arguments, Roll), call
    assert "tool_calls.function.arguments.done" in kinds, kinds


def a_call_is_answered_and_the_conversation_goes_on(server, client, model):
    messages = list(MESSAGES)
    ask = dict(model=model, tools=[WEATHER], max_tokens=300, seed=3)
    choice = {"type": "function", "function": {"name": "get_weather"}}
    answer = client.chat.completions.create(
        messages=messages, tool_choice=choice, parallel_tool_calls=False, **ask
    )
    message = answer.choices[0].message
    (call,) = message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("c", "f"), arguments
    messages.append(message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "sun"})
    ask["max_tokens"] = 20
    answer = client.chat.completions.create(messages=messages, **ask)
    assert answer.usage.prompt_tokens_details.cached_tokens > 0
    # With `tool_choice` none the same tools are never called.
    answer = client.chat.completions.create(messages=messages, tool_choice="none", **ask)
    assert answer.choices[0].message.tool_calls is None, answer


def forms_of_other_servers_are_known(server, client, model):
    def text(**extra):
        answer = client.completions.create(
            model=model, prompt="The answer is", max_tokens=50, extra_body=extra
        )
        assert answer.choices[0].finish_reason == "stop", answer
        return answer.choices[0].text

    assert text(guided_choice=["yes", "no"]) in ("yes", "no")
    assert text(structured_outputs={"regex": "[a-c]{3}"}) in [
        a + b + c for a in "abc" for b in "abc" for c in "abc"
    ]
    assert text(grammar='root ::= "x" [0-9]') in [f"x{i}" for i in range(10)]
    assert json.loads(text(guided_json={"enum": [1, "two", None]})) in (1, "two", None)


def forms_that_cannot_be_kept_are_refused_by_their_place(server, client, model):
    def fails(param, **fields):
        try:
            client.chat.completions.create(model=model, messages=MESSAGES, **fields)
        except openai.BadRequestError as error:
            assert error.param is not None and error.param.startswith(param), error
            return
        raise AssertionError(f"nothing was refused, expected {param}")

    def strict(schema):
        return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}

    at = "response_format.json_schema.schema"
    fails(at, response_format=strict({"$ref": "#"}))
    fails(at, response_format=strict({"$ref": "https://example.com/schema.json"}))
    fails(at + ".enum", response_format=strict({"enum": []}))
    fails(at, response_format=strict({"type": "integer", "minimum": 3, "maximum": 2}))
    fails("tool_choice", tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "x"}})
    fails("tools[1].function.name", tools=[WEATHER, WEATHER])


CHECKS = [
    a_pydantic_model_is_parsed,
    a_tool_of_a_pydantic_model_is_parsed,
    the_streaming_helper_gathers_calls_and_forms,
    a_call_is_answered_and_the_conversation_goes_on,
    forms_of_other_servers_are_known,
    forms_that_cannot_be_kept_are_refused_by_their_place,
]
