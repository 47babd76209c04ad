"""What beams cost: python3 benches/beams/compare.py [--url URL] [--n N] [--tokens N] [--rounds N].

Asks a running `pelton serve` for N answers by beam search and for N sampled ones, in turn, and prints
the tokens per second of both. The prompt is cached after the first request of each kind.
"""

import argparse
import json
import statistics
import time
import urllib.request

KINDS = {
    "beams": {"use_beam_search": True},
    "sampled": {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1},
}


def rate(url: str, body: dict) -> float:
    """Tokens per second of one request."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(
        f"{url}/v1/completions", data, {"Content-Type": "application/json"}
    )
    started = time.perf_counter()
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)
    seconds = time.perf_counter() - started
    n_tokens = answer["usage"]["completion_tokens"]
    expected = body["n"] * body["max_tokens"]
    assert n_tokens == expected, f"{n_tokens} tokens, expected {expected}"
    return n_tokens / seconds


def main() -> None:
    """Prints a line for each kind, and the ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    prompt = [(i * 37) % 200 + 20 for i in range(64)]
    base = {"prompt": prompt, "max_tokens": args.tokens, "ignore_eos": True, "n": args.n}
    rates: dict[str, list[float]] = {name: [] for name in KINDS}
    for kind in KINDS.values():
        rate(args.url, {**base, **kind})
    for _ in range(args.rounds):
        for name, kind in KINDS.items():
            rates[name].append(rate(args.url, {**base, **kind}))
    for name, found in rates.items():
        print(f"{name}: median {statistics.median(found):.1f}, fastest {max(found):.1f} tokens/s")
    ratio = max(rates["beams"]) / max(rates["sampled"])
    print(f"beams / sampled, fastest rounds: {ratio:.2f}")


if __name__ == "__main__":
    main()
