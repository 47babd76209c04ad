"""schemathesis over the OpenAPI document of the real binary.

usage: openapi.py PELTON [--examples N]

Requests are made from the document, valid ones and broken ones. No answer may be a 5xx, and each must
have a status, a media type and a shape that the document states. Each sample of the document is
sent as it stands and must be answered with 200. A server of two models with API keys is asked on all
routes but one, with the key of an administrator and without any. Takes about a minute.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema_rs

from openai_client import Server

# Routes that change the server or that answer without end are tried by their own tests.
LEFT_OUT = ["/models/load", "/models/unload", "/models/reload", "/v1/live", "/page/{file}"]
# Paths of a server whose model makes vectors; those of labels need a classifier.
OF_LABELS = ["/v1/classify", "/classify"]
OF_VECTORS = ["/v1/embeddings", "/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score"]
# With keys all routes are asked but this one, whose answer may have no end.
ENDLESS = ["/v1/live"]
ADMIN, USER = "sk-admin", "sk-user"
MODELS = Path(__file__).resolve().parents[2] / "crates/cli/model"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def fuzz(server, examples, paths=(), but=LEFT_OUT, key=None):
    """Runs schemathesis over these paths, or over all but some; whether all answers conform."""
    command = [Path(sys.executable).parent / "schemathesis", "run", server.address + "/openapi.json"]
    command += ["--checks", CHECKS, "--max-examples", str(examples), "--phases", "examples,fuzzing"]
    command += ["--seed", "16", "--request-timeout", "60", "--no-color", "--continue-on-failure"]
    command += ["--header", f"Authorization: Bearer {key}"] if key else []
    for path in paths or but:
        command += ["--include-path" if paths else "--exclude-path", path]
    return subprocess.run(command, timeout=540).returncode == 0


def ask(server, path, body=None, method=None, key=None):
    """Status and JSON of an answer, or its bytes where it is no JSON."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} | ({"x-api-key": key} if key else {})
    request = urllib.request.Request(server.address + path, data, headers, method=method)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            status, kind, text = answer.status, answer.headers["content-type"], answer.read()
    except urllib.error.HTTPError as error:
        status, kind, text = error.code, error.headers["content-type"], error.read()
    return status, json.loads(text) if kind.startswith("application/json") else text


def samples_are_answered(server, document, kinds):
    """Sends each sample; answers fit their schemas, and have no field that these lack."""
    n_sent = 0
    for path, item in document["paths"].items():
        operation = item.get("post")
        content = (operation or {}).get("requestBody", {}).get("content", {}).get("application/json")
        if "example" not in (content or {}) or path in LEFT_OUT or operation["tags"][0] not in kinds:
            continue
        if (path in OF_VECTORS) != ("--embeddings" in server.process.args) or path in OF_LABELS:
            continue
        status, answer = ask(server, path, content["example"])
        assert status == 200, (path, status, answer)
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        whole = {**schema, "components": document["components"]}
        jsonschema_rs.validator_for(whole).validate(answer)
        n_sent += 1
    return n_sent


def only_open_routes_answer_without_a_key(server, document):
    """Asks each route without a key, with a wrong one, and where it takes an admin's with a user's."""
    n_open = n_closed = 0
    for path, item in document["paths"].items():
        for method in {"get", "post", "delete"} & item.keys():
            place = path.replace("{id}", "x").replace("{file}", "app.js")
            body = {} if method == "post" else None
            needs = item[method].get("security", [])
            for key in (None, "sk-wrong"):
                status, answer = ask(server, place, body, method.upper(), key)
                if needs:
                    assert status == 401 and answer["error"], (method, path, key, status, answer)
                else:
                    assert status == 200, (method, path, key, status, answer)
            if {"key": ["admin"]} in needs:
                status, answer = ask(server, place, body, method.upper(), USER)
                assert status == 403, (method, path, status, answer)
            n_open, n_closed = n_open + (not needs), n_closed + bool(needs)
    assert n_open >= 5 and n_closed > 35, (n_open, n_closed)
    print(f"ok  {n_closed} routes need a key and {n_open} need none", flush=True)


def models_are_loaded_and_unloaded(server):
    def state(name, key=USER):
        _, models = ask(server, "/v1/models", key=key)
        return {model["id"]: model["state"] for model in models["data"]}[name]

    assert state("draft") == "unloaded"
    for verb, after in [("load", "loaded"), ("reload", "loaded"), ("unload", "unloaded")]:
        status, model = ask(server, f"/models/{verb}", {"model": "draft"}, key=ADMIN)
        assert status == 200 and model["id"] == "draft", (verb, status, model)
        assert state("draft") == after, verb
    status, answer = ask(server, "/models/load", {"model": "nope"}, key=ADMIN)
    assert (status, answer["error"]["code"]) == (404, "model_not_found"), answer
    body = {"model": "draft", "prompt": "a", "max_tokens": 1}
    status, answer = ask(server, "/v1/completions", body, key=USER)
    assert (status, answer["model"]) == (200, "draft"), "the request loads the model"
    print("ok  a model among two is loaded, exchanged and unloaded", flush=True)


def keys_and_several_models(pelton, document, examples):
    settings = {
        "max_context": 256,
        "api_keys": [USER, f"{ADMIN} admin"],
        "models": [
            {"name": "story", "model": str(MODELS / "story-q8_0.gguf")},
            {"name": "draft", "model": str(MODELS / "story-draft-q8_0.gguf"), "preload": False},
        ],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        # JSON is YAML.
        json.dump(settings, file)
        file.flush()
        server = Server(pelton, flags=["--config", file.name])
        try:
            only_open_routes_answer_without_a_key(server, document)
            models_are_loaded_and_unloaded(server)
            for key, n in ((None, 3), (ADMIN, examples)):
                if not fuzz(server, n, but=ENDLESS, key=key):
                    print(f"--- the server's last words ---\n{server.words()[-2000:]}", file=sys.stderr)
                    sys.exit(f"schemathesis: answers of a server with keys, asked with the key {key}")
        finally:
            server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pelton")
    parser.add_argument("--examples", type=int, default=12, help="requests per route and phase")
    arguments = parser.parse_args()
    # Answers of hostile requests are short in a small context.
    server = Server(arguments.pelton, flags=["--max-context", "256"])
    vectors = Server(arguments.pelton, flags=["--embeddings"])
    try:
        status, document = server.get("/openapi.json")
        assert status == 200 and document["openapi"] == "3.1.0"
        printed = subprocess.run([arguments.pelton, "openapi"], capture_output=True, check=True)
        assert json.loads(printed.stdout) == document, "`pelton openapi` prints another document"
        kinds = ("OpenAI", "Anthropic", "tokens", "ranking")
        n_sent = samples_are_answered(server, document, kinds)
        n_sent += samples_are_answered(vectors, document, kinds)
        print(f"ok  {n_sent} samples of the document are answered as it says", flush=True)
        assert n_sent >= 16, n_sent
        for one, paths in ((server, ()), (vectors, OF_VECTORS + OF_LABELS)):
            if not fuzz(one, arguments.examples, paths):
                print(f"--- the server's last words ---\n{one.words()[-2000:]}", file=sys.stderr)
                sys.exit("schemathesis found answers that the document does not allow")
        keys_and_several_models(arguments.pelton, document, arguments.examples)
        print("ok  schemathesis found no 5xx and no answer that the document does not allow")
    finally:
        server.kill()
        vectors.kill()


if __name__ == "__main__":
    main()
