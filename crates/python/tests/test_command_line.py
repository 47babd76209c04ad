"""The command line inside the package."""

import json
import re
import signal
import subprocess
import sys
import urllib.request

from pelton import SamplingParams

PROMPT = "Once upon a time"


def start(*words):
    command = [sys.executable, "-m", "pelton", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_it_gives_the_text_of_the_library(llm):
    sampling = ["--temperature", "0.7", "--top-p", "1", "--seed", "5", "-n", "20"]
    run = start("run", PROMPT, "--raw", "--json", *sampling)
    printed = json.loads(run.communicate()[0])
    (output,) = llm.generate(PROMPT, SamplingParams(temperature=0.7, seed=5, max_tokens=20))
    assert printed["text"] == output.outputs[0].text
    assert printed["tokens"] == output.outputs[0].token_ids


def test_it_ends_with_its_exit_code():
    run = start("walk")
    assert run.communicate()[1].startswith("error: ")
    assert run.returncode == 2


def test_ctrl_c_ends_a_text():
    run = start("run", PROMPT, "--ignore-eos", "-n", "400")
    assert run.stdout.read(1)
    run.send_signal(signal.SIGINT)
    run.communicate()
    # Ctrl-C may come after the last token.
    assert run.returncode in (130, 0)


def test_the_server_serves_in_its_sandbox_and_ends():
    server = start("serve", "--port", "0")
    for line in server.stderr:
        if address := re.search(r"http://127\.0\.0\.1:\d+", line):
            break
    request = urllib.request.Request(
        f"{address[0]}/v1/completions",
        json.dumps({"model": "story", "prompt": PROMPT, "max_tokens": 4}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 4
    server.send_signal(signal.SIGTERM)
    server.communicate()
    assert server.returncode == 0
