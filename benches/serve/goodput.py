#!/usr/bin/env python3
"""Goodput of Pelton beside llama.cpp's server: the same file, machine, clients and instrument, in turn.

    benches/serve/goodput.py MODEL.gguf --llama-server PATH [--pelton target/release/pelton]
        [--clients 16,32,64] [--lengths 16:32] [--per-client 3] [--rounds 3] [--json]

In each round and for each number of clients both servers are started one after the other, warmed up, and asked
by `pelton bench serve --concurrency N`, where a client sends its next request when its answer has ended. An
answer is good if its first token came within 2 s and the others at most 200 ms apart on average. Printed are
good answers per second (median, lowest and highest of the rounds) and the ratio within a round.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

TTFT_MS, TPOT_MS = 2000, 200


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def command(name, args, clients, port):
    # Room for every client's prompt and answer; a word of the workload may be several tokens.
    context = 4 * sum(int(n) for n in args.lengths.split(":"))
    if name == "pelton":
        limits = ["--max-running", str(clients), "--max-context", str(context)]
        return [args.pelton, "serve", "-m", args.model, "--port", str(port), *limits]
    slots = ["--parallel", str(clients), "--ctx-size", str(clients * context)]
    return [args.llama_server, "-m", args.model, "--port", str(port), "--threads", str(args.threads), *slots]


def wait(port, server):
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
        if server.poll() is not None:
            sys.exit(f"{server.args[0]} did not start")
    sys.exit(f"{server.args[0]} is not ready after two minutes")


def load(args, port, clients, n):
    ask = [args.pelton, "bench", "serve", "--url", f"http://127.0.0.1:{port}", "--json"]
    ask += ["--concurrency", str(clients), "--lengths", args.lengths, "-n", str(n)]
    ask += ["--ttft-target", str(TTFT_MS), "--tpot-target", str(TPOT_MS)]
    return json.loads(subprocess.run(ask, check=True, capture_output=True, text=True).stdout)


def measure(name, args, clients):
    port = free_port()
    server = subprocess.Popen(
        command(name, args, clients, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait(port, server)
        load(args, port, 2, 4)
        return load(args, port, clients, args.per_client * clients)
    finally:
        server.terminate()
        server.wait()


def figures(report):
    return report["variants"][0]["report"]["all"]


def good(report):
    return figures(report)["goodput_per_s"]


def print_row(clients, name, reports):
    rates = [good(report) for report in reports]
    median = lambda of: statistics.median(of(figures(report)) for report in reports)
    print(
        f"{clients:7}  {name:12}  {statistics.median(rates):6.2f} ({min(rates):.2f} to {max(rates):.2f})  "
        f"{median(lambda all: all['goodput_share']):6.1%}  {median(lambda all: all['output_tokens_per_s']):8.0f}  "
        f"{median(lambda all: all['ttft_ms']['p50']):7.0f}, {median(lambda all: all['ttft_ms']['p99']):.0f}  "
        f"{median(lambda all: all['tpot_ms']['p50']):12.1f}"
    )


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("model")
    parse.add_argument("--llama-server", required=True)
    parse.add_argument("--pelton", default="target/release/pelton")
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--clients", default="16,32,64")
    parse.add_argument("--lengths", default="16:32")
    parse.add_argument("--per-client", type=int, default=3)
    parse.add_argument("--rounds", type=int, default=3)
    parse.add_argument("--json", action="store_true")
    args = parse.parse_args()

    names = ("pelton", "llama-server")
    counts = [int(n) for n in args.clients.split(",")]
    reports = {n: {name: [] for name in names} for n in counts}
    for round in range(args.rounds):
        for n in counts:
            for name in names if round % 2 == 0 else reversed(names):
                report = measure(name, args, n)
                reports[n][name].append(report)
                print(f"round {round + 1}: {n} clients, {name}, {good(report):.2f} good/s", file=sys.stderr)
    if args.json:
        print(json.dumps(reports))
        return
    print("clients  server        good/s (lowest to highest)  share  tokens/s  TTFT P50, P99 ms  TPOT P50 ms")
    for n in counts:
        for name in names:
            print_row(n, name, reports[n][name])
        pairs = list(zip(*(map(good, reports[n][name]) for name in names)))
        if all(theirs > 0 for _, theirs in pairs):
            ratios = [ours / theirs for ours, theirs in pairs]
            print(f"{n:7}  ratio         {statistics.median(ratios):6.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
