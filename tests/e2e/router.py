"""SGLang's router from PyPI in front of two Pelton servers: 200 requests, none of which may fail.

    python tests/e2e/router.py [PELTON [MODEL]]

Needs the package `sglang-router` in this Python. Without it the script prints a NOTE and ends with
0, or with an error where E2E_ROUTER=required. PELTON is the binary (default:
target/release/pelton), MODEL a model (default: the embedded one).
"""

import concurrent.futures
import http.client
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

N_REQUESTS = 200
N_CLIENTS = 8
ROOT = pathlib.Path(__file__).resolve().parents[2]


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def call(port: int, method: str, path: str, body=None, timeout=60):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def wait_for(what: str, is_ready, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if is_ready():
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{what} was not ready after {seconds} s")


def request(i: int, model: str):
    """The path and body of the i-th request: chats and completions, whole and streamed."""
    kind = i % 5
    common = {"model": model, "max_tokens": 8, "temperature": 0, "seed": i}
    messages = [{"role": "user", "content": f"Tell me story number {i % 7}."}]
    if kind == 0:
        return "/v1/chat/completions", {**common, "messages": messages}
    if kind == 1:
        return "/v1/chat/completions", {**common, "messages": messages, "stream": True}
    if kind == 2:
        return "/v1/completions", {**common, "prompt": f"Once upon a time {i % 7}"}
    if kind == 3:
        return "/v1/completions", {**common, "prompt": "There was a", "stream": True}
    more = {"logprobs": True, "top_logprobs": 2, "n": 2, "stop": ["\n\n"]}
    return "/v1/chat/completions", {**common, "messages": messages, **more}


def check(path: str, body: dict, status: int, text: str):
    assert status == 200, f"{path} {body}: {status} {text[:500]}"
    if not body.get("stream"):
        choices = json.loads(text)["choices"]
        assert len(choices) == body.get("n", 1) and choices[0]["finish_reason"], text
        return
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-1:]
    chunks = [json.loads(line) for line in lines[:-1]]
    assert not any("error" in chunk for chunk in chunks), text
    assert any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]), text


def served(port: int) -> int:
    """Requests for text that a server has answered with success."""
    _, text = call(port, "GET", "/metrics")
    labels = r'handler="/v1/[a-z/]*completions",method="POST",status="2xx"'
    answered = re.findall(rf"^http_requests_total\{{{labels}\}} (\d+)", text, re.M)
    return sum(map(int, answered))


def main():
    if importlib.util.find_spec("sglang_router") is None:
        missing = "no package `sglang-router` in this Python: SGLang's router is not tried"
        if os.environ.get("E2E_ROUTER") == "required":
            sys.exit(missing)
        print(f"--- NOTE: {missing}")
        return
    pelton = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "target/release/pelton")
    model = sys.argv[2:3]
    ports = [free_port(), free_port()]
    router_port, metrics_port = free_port(), free_port()
    logs = pathlib.Path(tempfile.mkdtemp())
    running = []

    def start(name: str, command: list):
        log = open(logs / name, "w")
        running.append(subprocess.Popen(command, stdout=log, stderr=log))

    try:
        for port in ports:
            start(f"pelton-{port}", [pelton, "serve", *model, "--port", str(port)])
        for port in ports:
            wait_for("a server", lambda: call(port, "GET", "/ready")[0] == 200)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        start("router", [
            sys.executable, "-m", "sglang_router.launch_router", "--worker-urls", *urls,
            "--host", "127.0.0.1", "--port", str(router_port), "--policy", "round_robin",
            "--prometheus-port", str(metrics_port), "--disable-retries",
        ])
        wait_for("the router", lambda: call(router_port, "GET", "/health")[0] == 200)
        name = json.loads(call(ports[0], "GET", "/v1/models")[1])["data"][0]["id"]
        wait_for("a worker", lambda: call(router_port, *post(0, name))[0] == 200)
        wait_for("the first count of the servers", lambda: sum(map(served, ports)) == 1)
        before = [served(port) for port in ports]
        with concurrent.futures.ThreadPoolExecutor(N_CLIENTS) as pool:
            def one(i):
                path, body = request(i, name)
                check(path, body, *call(router_port, "POST", path, body))
            list(pool.map(one, range(N_REQUESTS)))
        # A request is counted a moment after the last byte of its answer.
        counts = []

        def all_are_counted():
            counts[:] = [served(port) - n for port, n in zip(ports, before)]
            return sum(counts) >= N_REQUESTS

        wait_for("the last count of the servers", all_are_counted)
        assert sum(counts) == N_REQUESTS, f"{counts} answers to {N_REQUESTS} requests"
        assert all(counts), f"a server had no work: {counts}"
        print(f"ok  {N_REQUESTS} requests through SGLang's router, {counts} answered by each server")
    except BaseException:
        for log in sorted(logs.iterdir()):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
        raise
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def post(i: int, model: str):
    path, body = request(i, model)
    return "POST", path, body


if __name__ == "__main__":
    main()
