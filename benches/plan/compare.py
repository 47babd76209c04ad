#!/usr/bin/env python3
"""Compares what `pelton plan` predicts with what `pelton bench model` measures on this machine.

    benches/plan/compare.py FILE.gguf ... [--pelton target/release/pelton] [--rounds 3] [--json OUT]

`pelton doctor` measures the machine before each file, since a machine with other work is another one from
minute to minute; `--no-doctor` takes the record that there is. Where memory had another speed during the
benchmark than during `pelton doctor` (the host of a virtual machine moves its processors), both are repeated,
up to `--tries` times, and the pair whose speeds are closest counts. The plan has the prompt, batches and
lengths of the measurement. An error is predicted over measured time, less one: above zero where the machine
was faster than the plan.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

MOST_APART = 0.1  # Largest difference of two speeds of memory that are the same.
SHORT_TOKENS = 8  # Prompt of the decoding figures of `pelton bench model`.


def run(*words):
    """The object that a command with --json prints."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, words))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def planned(args, file, prompt, output, batch):
    """Times of a plan for this machine."""
    told = run(args.planner or args.pelton, "plan", file, "--json", "--input", prompt, "--output", output,
               "--batch", batch, "--context", prompt + output)
    if not told["times"]:
        sys.exit("error: this machine is not measured (hint: run `pelton doctor` first)")
    return told


def attempt(args, file):
    """How far memory's speed was from the doctor's; figure, measured and predicted tokens per second."""
    if args.doctor:
        run(args.planner or args.pelton, "doctor", "--json")
    batches = ",".join(map(str, args.batch))
    found = run(args.pelton, "bench", "model", "-m", file, "--json", "--rounds", args.rounds,
                "--prompt", args.prompt, "--generate", args.generate, "--batch", batches,
                "--context", "128")
    reads = found["report"]["reads"]
    apart = reads["bytes_per_s"] / reads["baseline_bytes_per_s"] - 1 if reads else 0.0
    measured = {figure["name"]: figure["tokens_per_s"]["median"] for figure in found["figures"]}
    told = planned(args, file, args.prompt, args.generate, 1)
    name = f"prefill {args.prompt}"
    rows = [(name, measured[name], told["times"]["prompt_tokens_per_s"])]
    for batch in args.batch:
        told = planned(args, file, SHORT_TOKENS, args.generate, batch)
        name = f"decode batch {batch}"
        rows.append((name, measured[name], told["times"]["decode_tokens_per_s"]))
    return apart, rows


def closest(args, file):
    """The attempt with the speed of memory that is closest to the doctor's."""
    best = None
    for _ in range(args.tries if args.doctor else 1):
        found = attempt(args, file)
        if best is None or abs(found[0]) < abs(best[0]):
            best = found
        if abs(best[0]) <= MOST_APART:
            break
        print(f"{file.name}: memory was {100 * found[0]:+.0f} % from what the doctor found", file=sys.stderr)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--pelton", type=Path, default=Path("target/release/pelton"))
    parser.add_argument("--planner", type=Path, help="another binary for doctor and plan")
    parser.add_argument("--no-doctor", dest="doctor", action="store_false")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tries", type=int, default=3, help="pairs of doctor and benchmark for each file")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=24)
    parser.add_argument("--batch", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32])
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    args = parser.parse_args()
    everything, errors = [], []
    print("| file | figure | measured, tokens/s | predicted, tokens/s | error |")
    print("|---|---|---|---|---|")
    for file in args.files:
        apart, rows = closest(args, file)
        for figure, measured, predicted in rows:
            error = measured / predicted - 1
            errors.append(abs(error))
            everything.append({"file": file.name, "figure": figure, "measured": measured,
                               "predicted": predicted, "error": error, "reads_apart": apart})
            print(f"| {file.name} | {figure} | {measured:.1f} | {predicted:.1f} | {100 * error:+.0f} % |",
                  flush=True)
    print(f"\nmedian error {100 * statistics.median(errors):.0f} %, largest {100 * max(errors):.0f} %")
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
