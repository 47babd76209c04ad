"""Routes that no client of OpenAI or Anthropic knows, and whether a check has asked every route.

A part of openai_client.py, which runs these checks beside its own.
"""

import json
import re
import time
import urllib.request

TEXT = "Once upon a time there was a fox."
CHAT = [{"role": "user", "content": "Tell me a story about the sea."}]
# Routes that other tests of CI ask, because this server has one model, and it makes text.
ELSEWHERE = {
    "batches.py": ["/v1/files", "/v1/batches"],
    "openapi.py": ["/models/load", "/models/unload", "/models/reload", "/v1/embeddings"]
    + ["/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score"],
    "golden_rankers.rs": ["/v1/classify", "/classify"],
}


def ask(server, path, body=None, **headers):
    """The text of an answer, which must be a success."""
    data = None if body is None else json.dumps(body).encode()
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(
        server.address + path, data, {"content-type": "application/json"} | headers
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        return answer.read().decode()


def texts_become_tokens_and_come_back(server, client, model):
    asked = json.loads(ask(server, "/tokenize", {"prompt": TEXT, "return_token_strs": True}))
    tokens = asked["tokens"]
    assert asked["count"] == len(tokens) == len(asked["token_strs"]) > 3, asked
    back = json.loads(ask(server, "/detokenize", {"tokens": tokens}))
    assert TEXT in back["prompt"], back
    usage = client.completions.create(model=model, prompt=TEXT, max_tokens=1).usage
    assert usage.prompt_tokens == len(tokens), "a completion counts the same tokens"
    info = json.loads(ask(server, "/tokenizer_info"))
    assert info["model"] == model and max(tokens) < info["vocab_size"], info


def a_chat_is_rendered_as_it_is_answered(server, client, model):
    chat = {"messages": CHAT}
    text = json.loads(ask(server, "/apply-template", chat))["prompt"]
    rendered = json.loads(ask(server, "/v1/chat/completions/render", chat))
    assert CHAT[0]["content"] in text and rendered["prompt"] == text, rendered
    tokens = rendered["prompt_token_ids"]
    usage = client.chat.completions.create(model=model, messages=CHAT, max_tokens=1).usage
    assert usage.prompt_tokens == rendered["count"] == len(tokens), (usage, rendered)
    assert json.loads(ask(server, "/tokenize", chat))["tokens"] == tokens


def usage_grows_by_what_an_answer_took(server, client, model):
    def total():
        return json.loads(ask(server, "/v1/usage"))["total"]

    def fields(usage):
        return [usage["requests"], usage["prompt_tokens"], usage["completion_tokens"]]

    # Earlier answers are counted a moment after their last byte.
    before = fields(total())
    while (again := fields(total())) != before:
        before = again
        time.sleep(0.1)
    took = client.completions.create(
        model=model, prompt=TEXT, max_tokens=5, extra_body={"ignore_eos": True}
    ).usage
    expected = [before[0] + 1, before[1] + took.prompt_tokens, before[2] + 5]
    end = time.monotonic() + 60
    while fields(total()) != expected:
        assert time.monotonic() < end, (before, took, total())
        time.sleep(0.02)
    header, row = ask(server, "/v1/usage?format=csv&model=" + model).splitlines()[:2]
    assert "completion_tokens" in header.split(",") and model in row.split(","), row


def a_timeline_has_the_steps_of_a_request(server, client, model):
    body = {"model": model, "prompt": TEXT, "max_tokens": 6, "ignore_eos": True}
    ask(server, "/v1/completions", body, x_request_id="e2e-timeline")
    trace = json.loads(ask(server, "/v1/requests/e2e-timeline/timeline"))
    other = trace["otherData"]
    assert (other["request_id"], other["model"]) == ("e2e-timeline", model), other
    assert other["completion_tokens"] == 6 and other["finish_reasons"] == ["length"], other
    steps = [event for event in trace["traceEvents"] if event.get("cat") == "step"]
    assert sum(step["args"]["tokens"] for step in steps) == 6, steps
    assert any(event["name"] == "first token" for event in trace["traceEvents"])


def the_state_and_the_page_are_shown(server, client, model):
    live = json.loads(ask(server, "/v1/live"))
    assert live["status"] == "ok" and live["total"]["generated_tokens"] > 0, live
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(server.address + "/v1/live?stream=true", timeout=60) as stream:
        event = json.loads(stream.readline().decode().removeprefix("data: "))
    assert event["object"] == "live", event
    files = re.findall(r'(?:src|href)="(/?page/[a-z.-]+)"', ask(server, "/"))
    assert len(files) > 1, "the page has scripts and styles"
    assert all(ask(server, "/" + file.lstrip("/")) for file in files)
    assert json.loads(ask(server, "/version"))["version"] == live["version"]


def every_route_has_been_asked_with_success(server, client, model):
    """The server counts requests by route; a route without a success needs a check."""
    document = json.loads(ask(server, "/openapi.json"))
    routes = {
        (method.upper(), path)
        for path, item in document["paths"].items()
        for method in {"get", "post", "delete"} & item.keys()
    }
    counted = re.findall(
        r'^http_requests_total\{handler="([^"]+)",method="([A-Z]+)",status="2xx"\} [1-9]',
        ask(server, "/metrics"),
        re.M,
    )
    asked = {(method, handler.replace("{*", "{")) for handler, method in counted}
    elsewhere = [path for paths in ELSEWHERE.values() for path in paths]
    assert set(elsewhere) <= {path for _, path in routes}, "a route that there is not"
    is_elsewhere = lambda path: any((path + "/").startswith(one + "/") for one in elsewhere)
    missing = sorted(route for route in routes - asked if not is_elsewhere(route[1]))
    assert len(asked & routes) > 20 and not missing, f"no check asks {missing} with success"


CHECKS = [
    texts_become_tokens_and_come_back,
    a_chat_is_rendered_as_it_is_answered,
    usage_grows_by_what_an_answer_took,
    a_timeline_has_the_steps_of_a_request,
    the_state_and_the_page_are_shown,
    # The last, because it looks at what all other checks asked.
    every_route_has_been_asked_with_success,
]
