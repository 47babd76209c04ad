#!/usr/bin/env python3
"""Serves every server that `pelton plan advise` chooses from, and says how far its choice is from the best.

    for f in bf16 q8_0; do cargo xtask bench-model --shape llama-100m --format $f llama-100m-$f.gguf; done
    pelton doctor
    benches/plan/advice.py bf16=llama-100m-bf16.gguf q8_0=llama-100m-q8_0.gguf --loss 0.05 --scale 0.125

The first file is the model as it is; the others are what converting makes of it, one for each format that
`--loss` allows. Each of the six scenarios is served with every combination of format, type of keys and
values, most requests at once and prefix cache: once, and then the best few and the advised one again, in
turns. Prompts are random tokens, of which drafts guess nothing, so speculation is no choice here
(`--acceptance 0`). The goal `memory` is counted by the plan, whose bytes are those that are allocated.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SCENARIOS = ["chat", "rag", "agents", "batch", "code", "edge"]
FINALISTS = 4  # Servers beside the advised one that are measured again.


def run(*words):
    """The object that a command with --json prints."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, words))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


class Bench:
    """One scenario on one machine."""

    def __init__(self, args, name, folder):
        self.args, self.files = args, dict(pair.split("=", 1) for pair in args.files)
        base = next(iter(self.files))
        common = ["plan", "advise", self.files[base], "--scenario", name, "--loss", args.loss, "--acceptance", 0]
        plain = run(args.pelton, *common, "--json")["scenario"]
        scaled = [max(1, round(plain[f"{part}_tokens"] * args.scale)) for part in ("input", "output")]
        told = run(args.pelton, *common, "--input", scaled[0], "--output", scaled[1], "--json")
        self.scenario, self.goal = told["scenario"], told["goal"]
        settings = told["settings"]
        self.advised = (settings["weights"] or base, settings["kv_dtype"], settings["max_running"],
                        settings["prefix_cache"])
        self.trace = Path(folder) / name
        shared = int(scaled[0] * self.scenario["shared_prefix"])
        prefix = f" prefix=1:{shared}" if shared else ""
        n_requests = 3 * self.scenario["batch"]
        self.trace.write_text("".join(f"{at} {scaled[0]} {scaled[1]}{prefix}\n" for at in range(n_requests)))
        self.context = sum(scaled)

    def space(self):
        """Every server: format, keys and values, most at once, prefix cache."""
        most = self.scenario["batch"]
        sizes = sorted({most} | {1 << n for n in range(most.bit_length()) if 1 << n < most})
        dtypes = ["bf16", "int8"] if self.args.loss > 0 else ["bf16"]
        caches = [False, True] if self.scenario["shared_prefix"] else [False]
        return list(itertools.product(self.files, dtypes, sizes, caches))

    def score(self, server):
        """The figure of the goal; less is better."""
        weights, dtype, most, cache = server
        if self.goal == "memory":
            told = run(self.args.pelton, "plan", self.files[weights], "--kv-dtype", dtype, "--batch", most,
                       "--context", self.context, "--input", 1, "--output", 1, "--json")
            return told["fit"]["total_bytes"]
        words = ["bench", "load", "-m", self.files[weights], "--trace", self.trace, "--kv-dtype", dtype,
                 "--max-running", most, "--concurrency", self.scenario["batch"], "--max-context", self.context,
                 "--json"]
        words += [] if cache else ["--no-prefix-cache"]
        told = run(self.args.pelton, *words)["variants"][0]["report"]["all"]
        return 1 / told["output_tokens_per_s"] if self.goal == "throughput" else told["end_to_end_ms"]["mean"]

    def distance(self):
        """How much worse than the best server the advised one is, and both."""
        servers = self.space()
        if self.advised not in servers:
            sys.exit(f"error: advised is {self.advised}, for which there is no file")
        found = {server: [self.score(server)] for server in servers}
        best = sorted(servers, key=lambda server: found[server])[:FINALISTS]
        finalists = dict.fromkeys([self.advised, *best])
        for _ in range(0 if self.goal == "memory" else self.args.rounds):
            for server in finalists:
                found[server].append(self.score(server))
        # The first look chose the finalists, so it does not count.
        middle = {server: statistics.median(found[server][1:] or found[server]) for server in finalists}
        best = min(middle, key=middle.get)
        return middle[self.advised] / middle[best] - 1, best, len(servers)


def words_of(server):
    weights, dtype, most, cache = server
    return f"{weights}, {dtype} keys and values, {most} at once" + (", prefix cache" if cache else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="FORMAT=FILE")
    parser.add_argument("--pelton", type=Path, default=Path("target/release/pelton"))
    parser.add_argument("--scenario", action="append", choices=SCENARIOS)
    parser.add_argument("--loss", type=float, default=1.0)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the lengths of the scenarios")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print("| scenario | goal | servers | advised | best | from the best |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.scenario or SCENARIOS:
            bench = Bench(args, name, folder)
            distance, best, n_servers = bench.distance()
            print(f"| {name} | {bench.goal} | {n_servers} | {words_of(bench.advised)} | "
                  f"{'the same' if best == bench.advised else words_of(best)} | {100 * distance:.0f} % |",
                  flush=True)


if __name__ == "__main__":
    main()
