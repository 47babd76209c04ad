"""The dialects of Anthropic and of OpenAI's Responses, as the official clients speak them.

A part of openai_client.py, which runs these checks beside its own.
"""

import json
import time

import anthropic
import openai
import pydantic

MESSAGES = [{"role": "user", "content": "Tell me about Anna."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["c", "f"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
# The newest client has no argument for it.
GREEDY = {"temperature": 0}
TOOL = {"name": "get_weather", "description": "The weather of a city", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int


def claude(server, **options):
    """Anthropic's client for our server."""
    return anthropic.Anthropic(
        base_url=server.address,
        api_key="none",
        max_retries=0,
        timeout=300,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
        **options,
    )


def a_message_is_created_and_streamed(server, client, model):
    claude_client = claude(server)
    ask = dict(model=model, max_tokens=20, messages=MESSAGES, system="Be brief.", extra_body=GREEDY)
    whole = claude_client.messages.create(**ask)
    assert whole.type == "message" and whole.role == "assistant" and whole.model == model, whole
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 20, whole
    assert whole._request_id, "the client finds the name of the request"
    with claude_client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == 20, final.usage
    sent = final.usage.input_tokens + final.usage.cache_read_input_tokens
    assert sent == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    kinds = [event.type for event in claude_client.messages.create(stream=True, **ask)]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds


def tokens_of_a_message_are_counted(server, client, model):
    claude_client = claude(server)
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    ask = dict(model=model, messages=MESSAGES, system=system, tools=[TOOL])
    count = claude_client.messages.count_tokens(**ask).input_tokens
    usage = claude_client.messages.create(max_tokens=1, **ask).usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens, (count, usage)


def models_are_listed_for_claude(server, client, model):
    claude_client = claude(server)
    ids = [entry.id for entry in claude_client.models.list()]
    assert model in ids, ids
    one = claude_client.models.retrieve(model)
    assert (one.type, one.id, one.display_name) == ("model", model, model), one
    assert one.created_at.year >= 2025, one


def a_message_stops_at_a_sequence(server, client, model):
    ask = dict(model=model, max_tokens=100, messages=MESSAGES, extra_body=GREEDY)
    text = claude(server).messages.create(**ask).content[0].text
    stop = text.split()[2]
    cut = claude(server).messages.create(stop_sequences=[stop], **ask)
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop), cut
    assert stop not in cut.content[0].text


def a_tool_of_a_message_is_called_and_answered(server, client, model):
    claude_client = claude(server)
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    ask = dict(model=model, max_tokens=300, tools=[TOOL], extra_body={"seed": 3})
    answer = claude_client.messages.create(messages=MESSAGES, tool_choice=choice, **ask)
    (call,) = answer.content
    assert answer.stop_reason == "tool_use" and call.type == "tool_use", answer
    assert set(call.input) == {"city", "unit"} and call.input["unit"] in ("c", "f"), call
    with claude_client.messages.stream(messages=MESSAGES, tool_choice=choice, **ask) as stream:
        (streamed,) = stream.get_final_message().content
    assert (streamed.name, streamed.input) == (call.name, call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sun", "is_error": False}
    messages = MESSAGES + [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    ask["max_tokens"] = 10
    assert claude_client.messages.create(messages=messages, **ask).usage.output_tokens <= 10


def the_tool_runner_runs_a_tool(server, client, model):
    seen = []

    @anthropic.beta_tool
    def roll(sides: int) -> str:
        """Rolls a die.

        Args:
            sides: How many sides it has.
        """
        seen.append(sides)
        return "4"

    runner = claude(server).beta.messages.tool_runner(
        model=model,
        max_tokens=200,
        messages=MESSAGES,
        tools=[roll],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_iterations=2,
        thread=False,
        extra_body={"seed": 1},
    )
    kinds = [[block.type for block in message.content] for message in runner]
    assert kinds == [["tool_use"], ["tool_use"]], kinds
    assert seen and all(isinstance(sides, int) for sides in seen), seen


def errors_of_messages_have_their_own_classes(server, client, model):
    claude_client = claude(server)

    def fails(kind, name, **fields):
        ask = {"model": model, "max_tokens": 5, "messages": MESSAGES} | fields
        try:
            claude_client.messages.create(**ask)
        except kind as error:
            assert error.body["type"] == "error" and error.body["request_id"], error.body
            assert error.body["error"]["type"] == name, error.body
            return error.body["error"]["message"]
        raise AssertionError(f"nothing was refused, expected {name}")

    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    said = fails(
        anthropic.BadRequestError,
        "invalid_request_error",
        messages=[{"role": "user", "content": [image]}],
    )
    assert "`messages[0].content[0].type`" in said and "image" in said, said
    fails(anthropic.NotFoundError, "not_found_error", model="claude-none")
    said = fails(anthropic.BadRequestError, "invalid_request_error", max_tokens=0)
    assert "`max_tokens`" in said, said


def a_response_is_created_streamed_and_parsed(server, client, model):
    ask = dict(model=model, input="Tell me about Anna.", temperature=0, max_output_tokens=20)
    whole = client.responses.create(**ask)
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"
    with client.responses.stream(**ask) as stream:
        events = list(stream)
    kinds, final = [event.type for event in events], events[-1].response
    assert kinds[0] == "response.created" and kinds[-1] == "response.incomplete", kinds
    assert final.output_text == whole.output_text
    for seed in range(3):
        ask = dict(input="Tell me about Anna.", text_format=Person, max_output_tokens=600)
        parsed = client.responses.parse(model=model, extra_body={"seed": seed}, **ask)
        assert parsed.status == "completed" and isinstance(parsed.output_parsed, Person), parsed


def a_response_is_stored_listed_continued_and_deleted(server, client, model):
    ask = dict(model=model, max_output_tokens=5, temperature=0)
    first = client.responses.create(input="My name is Anna.", metadata={"a": "b"}, **ask)
    again = client.responses.retrieve(first.id)
    assert again.output_text == first.output_text and again.metadata == {"a": "b"}
    (item,) = client.responses.input_items.list(first.id).data
    assert item.role == "user" and item.content[0].text == "My name is Anna.", item
    second = client.responses.create(input="Who?", previous_response_id=first.id, **ask)
    counted = client.responses.input_tokens.count(
        model=model, input="Who?", previous_response_id=first.id
    )
    assert second.usage.input_tokens == counted.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0, second.usage
    client.responses.delete(first.id)
    try:
        client.responses.retrieve(first.id)
    except openai.NotFoundError as error:
        assert error.code == "response_not_found", error
    else:
        raise AssertionError("a deleted response is still there")


def a_response_in_the_background_is_polled_and_cancelled(server, client, model):
    ask = dict(model=model, input="Tell me a story.", background=True)
    job = client.responses.create(max_output_tokens=5, **ask)
    while job.status in ("queued", "in_progress"):
        time.sleep(0.02)
        job = client.responses.retrieve(job.id)
    assert job.status in ("completed", "incomplete") and job.output_text, job
    job = client.responses.create(extra_body={"ignore_eos": True}, **ask)
    assert client.responses.cancel(job.id).status == "cancelled"
    events = list(client.responses.create(stream=True, max_output_tokens=5, **ask))
    id = events[0].response.id
    tail = list(client.responses.retrieve(id, stream=True, starting_after=events[1].sequence_number))
    assert [event.type for event in tail] == [event.type for event in events[2:]]


def a_function_of_a_response_is_called_and_answered(server, client, model):
    ask = dict(model=model, tools=[FUNCTION, {"type": "web_search"}], max_output_tokens=300)
    extra = {"seed": 3}
    choice = {"type": "function", "name": "get_weather"}
    raw = client.responses.with_raw_response.create(
        input="Weather in Rome?", tool_choice=choice, extra_body=extra, **ask
    )
    assert raw.headers["x-pelton-ignored"] == "tools[1]", raw.headers
    answer = raw.parse()
    (call,) = answer.output
    assert call.type == "function_call", answer
    assert set(json.loads(call.arguments)) == {"city", "unit"}, call
    with client.responses.stream(
        input="Weather in Rome?", tool_choice=choice, extra_body=extra, **ask
    ) as stream:
        kinds = {event.type for event in stream}
        (streamed,) = stream.get_final_response().output
    assert streamed.arguments == call.arguments
    assert "response.function_call_arguments.done" in kinds, kinds
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    ask["max_output_tokens"] = 5
    stateless = [{"role": "user", "content": "Weather in Rome?"}, call.model_dump(exclude_none=True), output]
    whole = client.responses.create(input=stateless, store=False, **ask)
    stored = client.responses.create(input=[output], previous_response_id=answer.id, **ask)
    assert whole.usage.input_tokens == stored.usage.input_tokens


CHECKS = [
    a_message_is_created_and_streamed,
    tokens_of_a_message_are_counted,
    models_are_listed_for_claude,
    a_message_stops_at_a_sequence,
    a_tool_of_a_message_is_called_and_answered,
    the_tool_runner_runs_a_tool,
    errors_of_messages_have_their_own_classes,
    a_response_is_created_streamed_and_parsed,
    a_response_is_stored_listed_continued_and_deleted,
    a_response_in_the_background_is_polled_and_cancelled,
    a_function_of_a_response_is_called_and_answered,
]
