"""The price of a form: tokens per second of a running server with and without one.

usage: compare.py [--url URL] [--streams N] [--tokens N] [--rounds N]

Streams of free text and streams of JSON texts without an end take turns; so do a tool call,
most of which is forced, and free text of as many tokens. Quote the medians of the ratios. Needs a server
without other clients:

    pelton serve -m MODEL --max-running 32
"""

import argparse
import json
import statistics
import threading
import time
import urllib.request

PROMPT = "Once upon a time"
OPEN_END = {"type": "array", "items": {"type": "string"}, "minItems": 500}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "maxLength": 16},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "include_forecast": {"type": "boolean"},
            },
            "required": ["location", "unit", "include_forecast"],
            "additionalProperties": False,
        },
    },
}


def post(url, path, **fields):
    """The tokens of an answer, and the seconds that it took."""
    body = {"temperature": 1.0, "speculation": {"method": "off"}, **fields}
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    started = time.perf_counter()
    with urllib.request.urlopen(request) as answer:
        n_tokens = json.load(answer)["usage"]["completion_tokens"]
    return n_tokens, time.perf_counter() - started


def crowd(url, n_streams, **fields):
    """Tokens per second of answers that are under way together."""
    counts = [0] * n_streams

    def one(i):
        counts[i], _ = post(url, "/v1/completions", prompt=PROMPT, seed=i, **fields)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(n_streams)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    free = {"max_tokens": args.tokens, "ignore_eos": True}
    form = {"max_tokens": args.tokens, "json_schema": OPEN_END}
    # The vocabulary's tree and the grammar are made once.
    crowd(args.url, args.streams, **free)
    crowd(args.url, args.streams, **form)
    shares, speedups, lengths = [], [], []
    for round_idx in range(args.rounds):
        plain = crowd(args.url, args.streams, **free)
        formed = crowd(args.url, args.streams, **form)
        shares.append(formed / plain)
        n_tokens, called = post(
            args.url,
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "How is the weather?"}],
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": TOOL["function"]["name"]}},
            max_tokens=300,
            seed=round_idx,
        )
        _, told = post(
            args.url,
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "How is the weather?"}],
            tools=[TOOL],
            tool_choice="none",
            max_tokens=n_tokens,
            ignore_eos=True,
            seed=round_idx,
        )
        speedups.append(told / called)
        lengths.append(n_tokens)
        print(f"free {plain:.1f} tokens/s, form {formed:.1f}, ratio {formed / plain:.3f}; ", end="")
        print(f"call of {n_tokens} tokens {told / called:.2f} times as fast", flush=True)
    print(f"{args.streams} streams under a form: {statistics.median(shares):.3f} of free text (median)")
    print(f"a call: {statistics.median(speedups):.2f} times as fast as text (median)")


if __name__ == "__main__":
    main()
