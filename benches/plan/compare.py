#!/usr/bin/env python3
"""Compares what `pelton plan` predicts with what `pelton bench model` measures on this machine.

    benches/plan/compare.py FILE.gguf ... [--pelton target/release/pelton] [--rounds 3] [--json OUT]

`pelton doctor` measures the machine before each file, since a machine with other work is another one from
minute to minute; `--no-doctor` takes the record that there is. The plan has the prompt, batches and
lengths of the measurement. An error is predicted over measured time, less one: above zero where the
machine was faster than the plan.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

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


def rows(args, file):
    """Figure, measured and predicted tokens per second."""
    if args.doctor:
        run(args.planner or args.pelton, "doctor", "--json")
    batches = ",".join(map(str, args.batch))
    found = run(args.pelton, "bench", "model", "-m", file, "--json", "--rounds", args.rounds,
                "--prompt", args.prompt, "--generate", args.generate, "--batch", batches,
                "--context", "128")
    measured = {figure["name"]: figure["tokens_per_s"]["median"] for figure in found["figures"]}
    told = planned(args, file, args.prompt, args.generate, 1)
    yield f"prefill {args.prompt}", measured[f"prefill {args.prompt}"], told["times"]["prompt_tokens_per_s"]
    for batch in args.batch:
        told = planned(args, file, SHORT_TOKENS, args.generate, batch)
        name = f"decode batch {batch}"
        yield name, measured[name], told["times"]["decode_tokens_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--pelton", type=Path, default=Path("target/release/pelton"))
    parser.add_argument("--planner", type=Path, help="another binary for doctor and plan")
    parser.add_argument("--no-doctor", dest="doctor", action="store_false")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=24)
    parser.add_argument("--batch", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32])
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    args = parser.parse_args()
    everything, errors = [], []
    print("| file | figure | measured, tokens/s | predicted, tokens/s | error |")
    print("|---|---|---|---|---|")
    for file in args.files:
        for figure, measured, predicted in rows(args, file):
            error = measured / predicted - 1
            errors.append(abs(error))
            everything.append({"file": file.name, "figure": figure, "measured": measured,
                               "predicted": predicted, "error": error})
            print(f"| {file.name} | {figure} | {measured:.1f} | {predicted:.1f} | {100 * error:+.0f} % |",
                  flush=True)
    print(f"\nmedian error {100 * statistics.median(errors):.0f} %, largest {100 * max(errors):.0f} %")
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
