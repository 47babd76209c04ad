"""End to end: the real binary, the real `openai` client, a real connection.

usage: openai_client.py PELTON [MODEL]

Every check is a function whose name says what must hold. The first that fails ends the run with
its traceback, the server's last words, and exit code 1.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import openai
import prometheus_client.openmetrics.parser
import prometheus_client.parser

import dialects
import routes
import structured

# Far beyond what anything takes, also on a machine that is busy with other things: they end a run
# that hangs, and no check depends on them.
START_SECONDS = 300
STEP_SECONDS = 300


class Server:
    """A `pelton serve` on a port of the system's choice."""

    def __init__(self, pelton, model=None, flags=()):
        self.log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log")
        command = [pelton, "serve", "--port", "0", "--drain-timeout", str(STEP_SECONDS)]
        command += ["-m", model] if model else []
        command += flags
        # A proxy of the environment has no business on the loopback interface.
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log, env=env
        )
        self.address = wait_for(self._address, START_SECONDS, "the server to listen")

    def _address(self):
        found = re.search(r"listening on (http://127\.0\.0\.1:\d+)", self.words())
        if found:
            return found.group(1)
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
        return None

    def words(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as log:
            return log.read()

    def get(self, path):
        """Status and JSON of a plain GET."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(self.address + path, timeout=STEP_SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def is_idle(self):
        _, health = self.get("/health")
        return health["running"] == 0 and health["waiting"] == 0 and health

    def client(self):
        return openai.OpenAI(
            base_url=self.address + "/v1",
            api_key="none",
            max_retries=0,
            timeout=STEP_SECONDS,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )

    def async_client(self):
        return openai.AsyncOpenAI(
            base_url=self.address + "/v1",
            api_key="none",
            max_retries=0,
            timeout=STEP_SECONDS,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        )

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def wait_for(condition, seconds, what):
    """Polls until `condition` gives something true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s for {what}")


def refused(call, param, status=400, code=None):
    """The call must fail with this parameter named."""
    kind = {400: openai.BadRequestError, 404: openai.NotFoundError}[status]
    try:
        call()
    except kind as error:
        assert error.param == param, f"expected param {param}, got {error.param}: {error}"
        assert error.body["message"] and error.body["type"], error.body
        assert code is None or error.code == code, error.code
        return
    raise AssertionError(f"nothing was refused, expected {param}")


PROMPT = "Once upon a time there was"
MESSAGES = [{"role": "user", "content": "Tell me a story about the sea."}]


def models_are_listed(server, client, model):
    ids = [entry.id for entry in client.models.list()]
    assert ids == [model], ids
    assert client.models.retrieve(model).id == model
    refused(lambda: client.models.retrieve("nope"), "model", 404, "model_not_found")


def a_completion_continues_text_and_tokens(server, client, model):
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=12, temperature=0)
    choice = answer.choices[0]
    assert choice.text.strip(), "an empty answer"
    assert choice.finish_reason in ("length", "stop")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens <= 12
    several = client.completions.create(
        model=model, prompt=[PROMPT, "The captain"], max_tokens=12, temperature=0
    )
    assert several.choices[0].text == choice.text, "a prompt among others is answered differently"
    ids = client.completions.create(
        model=model, prompt=[1, 2, 3], max_tokens=2, extra_body={"ignore_eos": True}
    )
    assert ids.usage.prompt_tokens == 3 and ids.usage.completion_tokens == 2
    exact = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=20, stop=" ", extra_body={"min_tokens": 20}
    )
    assert exact.usage.completion_tokens == 20 and exact.choices[0].finish_reason == "length"


def a_chat_is_answered(server, client, model):
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=16, temperature=0
    )
    message = answer.choices[0].message
    assert message.role == "assistant" and message.content.strip()
    parts = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}]
    same = client.chat.completions.create(model=model, messages=parts, max_tokens=16, temperature=0)
    assert same.choices[0].message.content == message.content


def a_stream_has_role_text_finish_and_usage(server, client, model):
    whole = client.chat.completions.create(
        model=model, messages=MESSAGES, max_completion_tokens=16, temperature=0
    )
    stream = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_completion_tokens=16,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    # What was found in the cache is another matter the second time.
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    assert text == whole.choices[0].message.content


def stop_strings_are_honoured(server, client, model):
    full = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=40, temperature=0
    ).choices[0].text
    # Two words with the blank between them lie over a border of tokens.
    words = full.split(" ")
    stop = " ".join(words[4:6])[:-1]
    expected = full.split(stop)[0]
    for given in (stop, [stop, "never in the text"]):
        answer = client.completions.create(
            model=model, prompt=PROMPT, max_tokens=40, temperature=0, stop=given
        ).choices[0]
        assert answer.text == expected, (answer.text, expected)
        assert answer.finish_reason == "stop"
    stream = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=40, temperature=0, stop=stop, stream=True
    )
    assert "".join(c.choices[0].text for c in stream) == expected


def log_probabilities_add_up_to_the_text(server, client, model):
    choice = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=10, temperature=0, logprobs=True, top_logprobs=3
    ).choices[0]
    content = choice.logprobs.content
    said = b"".join(bytes(token.bytes) for token in content).decode("utf-8", errors="replace")
    assert said == choice.message.content, (said, choice.message.content)
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        best = [top.logprob for top in token.top_logprobs]
        assert best == sorted(best, reverse=True)
        assert token.top_logprobs[0].token == token.token, "greedy takes the most likely"
        assert abs(token.top_logprobs[0].logprob - token.logprob) < 1e-6
    old = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=5, temperature=0, logprobs=2
    ).choices[0]
    logprobs = old.logprobs
    assert "".join(logprobs.tokens) == old.text
    assert len(logprobs.token_logprobs) == len(logprobs.text_offset) == len(logprobs.tokens)


def choices_differ_and_seeds_repeat(server, client, model):
    def ask(seed, n):
        answer = client.completions.create(
            model=model, prompt=PROMPT, max_tokens=16, temperature=1.0, seed=seed, n=n
        )
        return [choice.text for choice in sorted(answer.choices, key=lambda c: c.index)]

    two = ask(7, 2)
    assert len(two) == 2 and two[0] != two[1]
    assert ask(7, 2) == two, "the same seed gives another answer"
    assert ask(7, 1) == two[:1], "the first choice depends on the second"
    assert ask(8, 1) != two[:1]


def three_choices_share_a_prompt_and_the_best_can_be_kept(server, client, model):
    def ask(**more):
        return client.completions.create(
            model=model, prompt=PROMPT, max_tokens=8, temperature=1.0, seed=7, **more
        )

    one, three = ask(), ask(n=3)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    texts = [choice.text for choice in three.choices]
    assert len(set(texts)) == 3 and texts[0] == one.choices[0].text
    assert three.usage.prompt_tokens == one.usage.prompt_tokens, "the prompt is counted once"
    ranked = ask(n=3, logprobs=0).choices
    ranked.sort(key=lambda c: -sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs))
    best = ask(n=1, best_of=3)
    assert [choice.text for choice in best.choices] == [ranked[0].text]
    assert best.usage.completion_tokens == three.usage.completion_tokens, "what is made counts"


def priority_targets_and_salt_change_no_token(server, client, model):
    plain = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=12, temperature=0
    )
    asking = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=12,
        temperature=0,
        service_tier="auto",
        extra_body={
            "priority": -1,
            "slo": {"ttft_ms": 3_600_000, "tpot_ms": 60_000},
            "cache_salt": "pepper",
        },
    )
    assert asking.choices[0].message.content == plain.choices[0].message.content


def cached_tokens_are_told(server, client, model):
    for answer in (
        client.completions.create(model=model, prompt=PROMPT, max_tokens=2),
        client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=2),
    ):
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert 0 <= cached < answer.usage.prompt_tokens, answer.usage
    stream = client.completions.create(
        model=model,
        prompt=PROMPT,
        max_tokens=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    usage = list(stream)[-1].usage
    assert 0 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def metrics_count_what_was_done(server, client, model):
    """Prometheus' own parsers read both formats."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def families(accept, parse):
        asked = urllib.request.Request(server.address + "/metrics", headers={"accept": accept})
        with opener.open(asked, timeout=STEP_SECONDS) as answer:
            kind, text = answer.headers["content-type"], answer.read().decode()
        assert kind.startswith(accept.split(";")[0]), kind
        samples = [sample for family in parse(text) for sample in family.samples]
        return {(s.name, s.labels.get("tenant"), s.labels.get("model_name")): s.value for s in samples}

    for accept, parse in [
        ("text/plain;version=0.0.4", prometheus_client.parser.text_string_to_metric_families),
        (
            "application/openmetrics-text;version=1.0.0",
            prometheus_client.openmetrics.parser.text_string_to_metric_families,
        ),
    ]:
        values = families(accept, parse)
        assert values["pelton_generation_tokens_total", None, model] > 0
        assert values["vllm:generation_tokens_total", None, model] > 0
        assert values["pelton_time_to_first_token_seconds_count", "default", model] > 0
        assert values["vllm:iteration_tokens_total_count", None, model] > 0
        assert 0 <= values["vllm:kv_cache_usage_perc", None, model] <= 1
        assert values["process_cpu_seconds_total", None, None] > 0
    assert server.get("/ready") == (200, {"status": "ready"})


def errors_name_the_parameter(server, client, model):
    def chat(**more):
        given = {"model": model, "messages": MESSAGES, "max_tokens": 2}
        return lambda: client.chat.completions.create(**{**given, **more})

    def complete(**more):
        given = {"model": model, "prompt": PROMPT, "max_tokens": 2}
        return lambda: client.completions.create(**{**given, **more})

    refused(chat(model="gpt-nope"), "model", 404, "model_not_found")
    refused(chat(temperature=-1), "temperature")
    refused(chat(top_p=0), "top_p")
    refused(chat(n=0), "n")
    refused(chat(max_tokens=0), "max_tokens")
    refused(chat(messages=[]), "messages")
    refused(chat(messages=[{"role": "user"}]), "messages[0].content")
    refused(chat(tools=[{"type": "web_search"}]), "tools[0].type")
    refused(chat(response_format={"type": "xml"}), "response_format.type")
    refused(chat(reasoning_effort="low"), "reasoning_effort")
    refused(chat(store=True), "store")
    refused(chat(top_logprobs=2), "top_logprobs")
    refused(chat(extra_body={"min_tokens": 3}), "min_tokens")  # max_tokens is 2.
    refused(chat(extra_body={"min_tokens": -1}), "min_tokens")
    refused(chat(extra_body={"nonsense": 3}), "nonsense")
    refused(complete(suffix="x"), "suffix")
    refused(complete(prompt=""), "prompt")
    refused(complete(prompt=[4_000_000_000]), "prompt")
    refused(complete(best_of=2, n=3), "best_of")
    refused(complete(best_of=3, stream=True), "best_of")
    refused(chat(extra_body={"priority": "high"}), "priority")
    refused(chat(extra_body={"slo": {"ttft_ms": 0}}), "slo.ttft_ms")
    refused(chat(extra_body={"cache_salt": ""}), "cache_salt")
    refused(complete(prompt="word " * 200_000), "prompt", code="context_length_exceeded")
    chat(tools=[], response_format={"type": "text"}, user="me", metadata={"a": "b"})()


def streams_side_by_side_equal_streams_alone(server, client, model):
    """32 at once, greedy and then sampled, each equal to the same request alone."""

    def request(i, sampling):
        return {
            "model": model,
            "prompt": PROMPT + " a" * (i % 5) + [" king", " ship", " girl", " dog"][i % 4],
            "max_tokens": 8 + i % 7,
            "stream": True,
            **sampling(i),
        }

    async def read(client, request):
        stream = await client.completions.create(**request)
        return "".join([chunk.choices[0].text async for chunk in stream])

    def greedy(i):
        return {"temperature": 0}

    def sampled(i):
        return {"temperature": 0.9, "top_p": 0.95, "seed": 1000 + i}

    async def run(sampling):
        requests = [request(i, sampling) for i in range(32)]
        async with server.async_client() as client:
            alone = [await read(client, request) for request in requests]
            together = await asyncio.gather(*(read(client, request) for request in requests))
        for i, (one, other) in enumerate(zip(alone, together)):
            assert one == other, f"request {i} alone: {one!r}, among 32: {other!r}"
        assert len(set(alone)) > 8, "the requests are too much alike to prove anything"

    asyncio.run(run(greedy))
    asyncio.run(run(sampled))


def a_client_that_goes_away_frees_its_request(server, client, model):
    """What is asked for takes far longer than closing three streams, on any machine."""
    _, before = server.get("/health")
    n, max_tokens = 16, 900
    streams = [
        client.completions.create(
            model=model,
            prompt=PROMPT,
            stream=True,
            n=n,
            max_tokens=max_tokens,
            extra_body={"ignore_eos": True},
        )
        for _ in range(3)
    ]
    for stream in streams:
        next(iter(stream))
        stream.close()
    health = wait_for(server.is_idle, STEP_SECONDS, "the requests to be freed")
    assert health["free_blocks"] == health["total_blocks"], health
    generated = health["generated_tokens"] - before["generated_tokens"]
    assert generated < len(streams) * n * max_tokens, "the answers were computed to their end"


def vectors_of_texts_are_the_same_in_both_formats(server, client, model):
    refused(lambda: client.embeddings.create(model=model, input="a cat"), "model")
    vectors = Server(*sys.argv[1:2], model=(sys.argv[2:] or [None])[0], flags=["--embeddings"])
    try:
        with vectors.client() as client:
            texts = ["a cat", "the cat"]
            ask = lambda **fields: client.embeddings.create(model=model, input=texts, **fields)
            # The client asks for base64 by itself and reads it.
            answer, floats = ask(), ask(encoding_format="float")
            assert [item.index for item in answer.data] == [0, 1], answer.data
            for packed, plain in zip(answer.data, floats.data):
                far = max(abs(a - b) for a, b in zip(packed.embedding, plain.embedding))
                assert far < 1e-6, far
                assert abs(sum(x * x for x in plain.embedding) - 1.0) < 1e-4
            assert answer.usage.total_tokens == answer.usage.prompt_tokens > 2, answer.usage
            assert len(ask(dimensions=8).data[0].embedding) == 8
            refused(lambda: ask(dimensions=0), "dimensions")
            refused(lambda: client.completions.create(model=model, prompt="a"), "model")
    finally:
        vectors.kill()


def sigterm_drains(server, client, model):
    """Nothing here waits for speed: a request that is half sent keeps the drain going."""
    body = json.dumps({"model": model, "prompt": PROMPT, "max_tokens": 2}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        "content-type: application/json\r\nexpect: 100-continue\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    stream = client.completions.create(
        model=model,
        prompt=PROMPT,
        stream=True,
        max_tokens=24,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    chunks = [next(stream)]
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=STEP_SECONDS) as held:
        held.sendall(head.encode())
        # The server asks for the body once it has counted the request in.
        assert held.recv(4096).startswith(b"HTTP/1.1 100"), "no interim answer"
        server.process.send_signal(signal.SIGTERM)

        def is_draining():
            status, health = server.get("/health")
            return status == 200 and health["status"] == "draining"

        wait_for(is_draining, STEP_SECONDS, "the server to drain")
        try:
            client.completions.create(model=model, prompt=PROMPT, max_tokens=1)
            raise AssertionError("a new request was let in")
        except openai.InternalServerError as error:
            assert error.status_code == 503, error
        held.sendall(body)
        with held.makefile("rb") as answer:
            whole = answer.read()
        assert whole.startswith(b"HTTP/1.1 200") and b'"completion_tokens":2' in whole, whole
    chunks += list(stream)
    assert chunks[-1].choices[0].finish_reason == "length", "the running request was cut off"
    assert server.process.wait(timeout=STEP_SECONDS) == 0, server.process.returncode


CHECKS = [
    models_are_listed,
    a_completion_continues_text_and_tokens,
    a_chat_is_answered,
    a_stream_has_role_text_finish_and_usage,
    stop_strings_are_honoured,
    log_probabilities_add_up_to_the_text,
    choices_differ_and_seeds_repeat,
    three_choices_share_a_prompt_and_the_best_can_be_kept,
    priority_targets_and_salt_change_no_token,
    cached_tokens_are_told,
    metrics_count_what_was_done,
    errors_name_the_parameter,
    streams_side_by_side_equal_streams_alone,
    a_client_that_goes_away_frees_its_request,
    vectors_of_texts_are_the_same_in_both_formats,
    *structured.CHECKS,
    *dialects.CHECKS,
    *routes.CHECKS,
    # The last, because it ends the server.
    sigterm_drains,
]


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    server = Server(*sys.argv[1:])
    try:
        with server.client() as client:
            model = client.models.list().data[0].id
            for check in CHECKS:
                started = time.monotonic()
                check(server, client, model)
                took = time.monotonic() - started
                print(f"ok  {check.__name__.replace('_', ' ')} ({took:.1f} s)", flush=True)
    except BaseException:
        print(f"--- the server's last words ---\n{server.words()[-4000:]}", file=sys.stderr)
        raise
    finally:
        server.kill()


if __name__ == "__main__":
    main()
