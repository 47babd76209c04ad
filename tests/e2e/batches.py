"""End to end: files and batches by the real `openai` client, rerank and score by plain requests, and
`pelton batch` killed in the middle.

usage: batches.py PELTON [RERANKER]

RERANKER is a folder with a cross-encoder; without one, ranks are asked of the embedded model served
for vectors.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import openai

from openai_client import STEP_SECONDS, Server

CHAT = "/v1/chat/completions"


def line(i, url=CHAT, **body):
    messages = [{"role": "user", "content": f"Once upon a time {i}"}]
    if url == CHAT and not body:
        body = dict(messages=messages, max_tokens=4, temperature=0)
    return json.dumps(dict(custom_id=f"line-{i}", method="POST", url=url, body=body))


def ended(client, batch):
    end = time.monotonic() + STEP_SECONDS
    while batch.status not in ("completed", "failed", "cancelled", "expired"):
        assert time.monotonic() < end, batch
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    return batch


def lines_of(client, file_id):
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


def check_a_batch_has_the_answers_of_single_requests(server):
    client = server.client()
    lines = [line(i) for i in range(5)] + ["{", line(2), line(9, messages=[], max_tokens=1)]
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    assert (file.purpose, file.filename, file.status) == ("batch", "in.jsonl", "processed"), file
    assert client.files.retrieve(file.id).bytes == len("\n".join(lines))
    assert file.id in [listed.id for listed in client.files.list(purpose="batch")]
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"a": "b"}
    )
    assert batch.status == "validating" and batch.metadata == {"a": "b"}, batch
    batch = ended(client, batch)
    counts = batch.request_counts
    assert batch.status == "completed", batch
    assert (counts.total, counts.completed, counts.failed) == (8, 5, 3), counts
    results = {result["custom_id"]: result for result in lines_of(client, batch.output_file_id)}
    assert sorted(results) == [f"line-{i}" for i in range(5)], sorted(results)
    for i in range(5):
        alone = client.chat.completions.create(
            model="story", max_tokens=4, temperature=0,
            messages=[{"role": "user", "content": f"Once upon a time {i}"}],
        )
        body = results[f"line-{i}"]["response"]["body"]
        assert body["choices"][0]["message"]["content"] == alone.choices[0].message.content
        assert body["usage"]["prompt_tokens"] == alone.usage.prompt_tokens
    errors = {result["line"]: result for result in lines_of(client, batch.error_file_id)}
    assert sorted(errors) == [6, 7, 8], errors
    assert errors[6]["error"]["code"] == "invalid_line" and "line 6" in errors[6]["error"]["message"]
    assert "line 3" in errors[7]["error"]["message"], errors[7]
    assert errors[8]["response"]["status_code"] == 400, errors[8]
    assert batch.id in [listed.id for listed in client.batches.list(limit=3)]
    assert client.files.delete(file.id).deleted
    try:
        client.files.retrieve(file.id)
        raise AssertionError("a deleted file is there")
    except openai.NotFoundError:
        pass


def check_a_batch_can_be_cancelled(server):
    client = server.client()
    lines = [
        line(i, prompt="Once", max_tokens=400, ignore_eos=True, url="/v1/completions")
        for i in range(200)
    ]
    file = client.files.create(file=("long.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="1h"
    )
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = ended(client, batch)
    assert batch.status == "cancelled" and batch.request_counts.completed < 200, batch
    assert server.is_idle() is not None


def check_what_is_wrong_is_refused_by_name(server):
    client = server.client()
    for wrong in (
        lambda: client.files.create(file=("a", b"x"), purpose="fine-tune"),
        lambda: client.files.create(file=("a", b""), purpose="batch"),
        lambda: client.batches.create(
            input_file_id="file-none", endpoint=CHAT, completion_window="24h"
        ),
        lambda: client.batches.create(
            input_file_id="file-none", endpoint="/metrics", completion_window="24h"
        ),
        lambda: client.batches.create(
            input_file_id="file-none", endpoint=CHAT, completion_window="soon"
        ),
    ):
        try:
            wrong()
            raise AssertionError("accepted")
        except openai.BadRequestError as error:
            assert error.param in ("purpose", "file", "input_file_id", "endpoint", "completion_window")


def post(server, path, **body):
    request = urllib.request.Request(
        server.address + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=STEP_SECONDS) as answer:
        return json.load(answer)


def check_the_shapes_of_jina_cohere_and_vllm(server):
    documents = ["a story about a dog", {"text": "a cat", "id": 3}, "rain"]
    jina = post(server, "/v1/rerank", query="a dog", documents=documents, top_n=2)
    assert len(jina["results"]) == 2 and jina["usage"]["total_tokens"] > 0, jina
    first, second = jina["results"]
    assert first["relevance_score"] >= second["relevance_score"]
    assert all("text" in result["document"] for result in jina["results"])
    cohere = post(server, "/v2/rerank", query="a dog", documents=documents)
    assert "document" not in cohere["results"][0] and cohere["meta"]["billed_units"], cohere
    assert cohere["results"][0]["index"] == first["index"]
    score = post(server, "/score", text_1="a dog", text_2=["a cat", "a dog"])
    assert [item["index"] for item in score["data"]] == [0, 1], score


def check_a_killed_batch_goes_on(pelton):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        requests, results = folder / "in.jsonl", folder / "out.jsonl"
        n = 60
        lines = [
            line(i, url="/v1/completions", prompt=f"Tale {i}", max_tokens=24, temperature=0)
            for i in range(n)
        ]
        requests.write_text("\n".join(lines) + "\n")
        command = [pelton, "batch", requests, results, "--parallel", "2", "--json", "-q"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        end = time.monotonic() + STEP_SECONDS
        while not results.exists() or results.read_bytes().count(b"\n") < 5:
            assert process.poll() is None and time.monotonic() < end, process.stderr.read()
            time.sleep(0.01)
        process.kill()
        process.wait()
        kept = results.read_bytes()
        kept = kept[: kept.rfind(b"\n") + 1]
        assert 5 <= kept.count(b"\n") < n, "it was killed in the middle"
        # As a kill in the middle of a write leaves it.
        results.write_bytes(kept + b'{"id":"batch_req_')
        done = subprocess.run(command, capture_output=True, check=True)
        summary = json.loads(done.stdout)
        assert summary["lines"]["kept"] == kept.count(b"\n"), summary
        assert summary["lines"]["completed"] == n - kept.count(b"\n"), summary
        assert results.read_bytes().startswith(kept), "finished lines are kept"
        found = [json.loads(text)["custom_id"] for text in results.read_text().splitlines()]
        assert sorted(found) == sorted(f"line-{i}" for i in range(n)), "each line once"
        again = subprocess.run(command, capture_output=True, check=True)
        assert json.loads(again.stdout)["lines"]["kept"] == n


def main():
    pelton, ranker = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    checks = [
        ([], None, [
            check_a_batch_has_the_answers_of_single_requests,
            check_a_batch_can_be_cancelled,
            check_what_is_wrong_is_refused_by_name,
        ]),
        ([] if ranker else ["--embeddings"], ranker, [check_the_shapes_of_jina_cohere_and_vllm]),
    ]
    with tempfile.TemporaryDirectory() as folder:
        checks.append((["--files", os.path.join(folder, "files")], None, checks[0][2]))
        for flags, model, functions in checks:
            server = Server(pelton, model, flags)
            try:
                for function in functions:
                    function(server)
                    print(f"{function.__name__} ok {' '.join(flags[:1])}", flush=True)
            finally:
                server.process.terminate()
                server.process.wait()
    check_a_killed_batch_goes_on(pelton)
    print("check_a_killed_batch_goes_on ok")


if __name__ == "__main__":
    main()
