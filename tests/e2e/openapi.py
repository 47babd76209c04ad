"""schemathesis over the OpenAPI document of the real binary.

usage: openapi.py PELTON [--examples N]

Requests are made from the document, valid ones and broken ones. No answer may be a 5xx, and each must
have a status, a media type and a shape that the document states. Then each sample of the document
is sent as it stands and must be answered with 200. Takes about a minute.
"""

import argparse
import json
import subprocess
import sys
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
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"

def fuzz(server, examples, paths=()):
    """Runs schemathesis over these paths, or over all; whether all answers conform."""
    command = [Path(sys.executable).parent / "schemathesis", "run", server.address + "/openapi.json"]
    command += ["--checks", CHECKS, "--max-examples", str(examples), "--phases", "examples,fuzzing"]
    command += ["--seed", "16", "--request-timeout", "60", "--no-color", "--continue-on-failure"]
    for path in paths or LEFT_OUT:
        command += ["--include-path" if paths else "--exclude-path", path]
    return subprocess.run(command, timeout=540).returncode == 0


def ask(server, path, body):
    request = urllib.request.Request(
        server.address + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


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
        print("ok  schemathesis found no 5xx and no answer that the document does not allow")
    finally:
        server.kill()
        vectors.kill()


if __name__ == "__main__":
    main()
