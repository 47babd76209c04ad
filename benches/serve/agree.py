#!/usr/bin/env python3
"""Compares what two load generators report of one server: `pelton bench serve` and GuideLLM.

    pip install guidellm==0.8.1
    benches/serve/agree.py MODEL.gguf [--guidellm guidellm] [--pelton target/release/pelton] [--rounds 3]
    benches/serve/agree.py --url http://127.0.0.1:8399

One `pelton serve`, or the server at `--url`, answers both in turn, with the same prompts and lengths of answers:
a fixed number of requests at once, and then requests at equal distances. The server has one thread of two, so
that neither generator takes time from it. Printed are medians over the rounds of what each generator reports.
"""

import argparse
import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

FIGURES = ["TTFT, mean", "TTFT, P50", "TPOT, mean", "end to end, mean", "output tokens/s"]
WORDS = "the old miller walked slowly down to the river and counted every boat that passed him".split()


@contextlib.contextmanager
def serving(args):
    """A running server; its address."""
    if args.url:
        yield args.url
        return
    words = [args.pelton, "serve", "-m", args.model, "--port", "0", "--threads", args.threads, "--no-prefix-cache"]
    server = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True)
    try:
        lines = []
        for line in server.stdout:
            lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        else:
            sys.exit(f"error: the server did not start: {''.join(lines)}")
        # What it says later must not fill the pipe.
        subprocess.Popen(["cat"], stdin=server.stdout, stdout=subprocess.DEVNULL)
        yield found.group()
    finally:
        server.terminate()
        server.wait()


def write_prompts(args, path):
    """Prompts that begin in different ways, so that none is known to the server from another."""
    with open(path, "w") as file:
        for at in range(args.requests):
            text = " ".join([str(at), *(WORDS[(at + n) % len(WORDS)] for n in range(args.words))])
            file.write(json.dumps({"prompt": text, "max_tokens": args.output,
                                   "output_tokens_count": args.output}) + "\n")


def of_pelton(args, url, prompts, load):
    kind, n = load
    words = [args.pelton, "bench", "serve", "--url", url, "--prompts", prompts, "-n", args.requests, "--json",
             *(["--concurrency", n] if kind == "concurrent" else ["--rate", n, "--arrivals", "constant"])]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: pelton bench serve: {done.stderr.strip()}")
    told = json.loads(done.stdout)["variants"][0]["report"]["all"]
    return [told["ttft_ms"]["mean"], told["ttft_ms"]["p50"], told["tpot_ms"]["mean"],
            told["end_to_end_ms"]["mean"], told["output_tokens_per_s"]]


def of_guidellm(args, url, prompts, load, folder):
    kind, n = load
    out = Path(folder) / "guidellm.json"
    profile = f"kind=concurrent,streams={n}" if kind == "concurrent" else f"kind=constant,rate={n}"
    words = [args.guidellm, "run", "--disable-console", "--profile", profile,
             "--backend", f"kind=openai_http,target={url},request_format=/v1/completions",
             "--constraint", f"kind=max_requests,count={args.requests}",
             "--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={out}"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0 or not out.exists():
        sys.exit(f"error: guidellm: {done.stderr.strip() or done.stdout.strip()}")
    metrics = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    of = lambda name: metrics[name]["successful"]
    ttft = of("time_to_first_token_ms")
    return [ttft["mean"], ttft["percentiles"]["p50"], of("inter_token_latency_ms")["mean"],
            1e3 * of("request_latency")["mean"], of("output_tokens_per_second")["mean"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--pelton", type=Path, default=Path("target/release/pelton"))
    parser.add_argument("--guidellm", default="guidellm")
    parser.add_argument("--threads", type=int, default=1, help="computing threads of the server")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--words", type=int, default=64, help="words of a prompt")
    parser.add_argument("--output", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--streams", type=int, default=4, help="requests at once")
    parser.add_argument("--rate", type=float, default=0.5, help="requests per second at equal distances")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if (args.model is None) == (args.url is None):
        parser.error("expected a model or --url")
    print("| load | figure | pelton bench serve | GuideLLM | GuideLLM beside it |")
    print("|---|---|---|---|---|")
    with serving(args) as url, tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        write_prompts(args, prompts)
        for load in [("concurrent", args.streams), ("constant", args.rate)]:
            ours, theirs = [], []
            for _ in range(args.rounds):
                ours.append(of_pelton(args, url, prompts, load))
                theirs.append(of_guidellm(args, url, prompts, load, folder))
            name = f"{load[1]} at once" if load[0] == "concurrent" else f"{load[1]} per second"
            for figure, own, other in zip(FIGURES, zip(*ours), zip(*theirs)):
                own, other = statistics.median(own), statistics.median(other)
                print(f"| {name} | {figure} | {own:.2f} | {other:.2f} | {100 * (other / own - 1):+.1f} % |",
                      flush=True)


if __name__ == "__main__":
    main()
