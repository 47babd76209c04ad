"""What Python costs: python benches/python/overhead.py [MODEL] [--tokens N].

Compares the processor time of the thread that calls `LLM.generate` with the time that the engine
takes for the same tokens. The engine computes on other threads, so the share is what Python, the
text of the tokens and the waiting add where every core computes.
"""

import argparse
import time

from pelton import LLM, SamplingParams


def measure(llm: LLM, batch: int, n_tokens: int) -> tuple[float, float, int]:
    """Wall seconds, seconds of this thread, and tokens of one batch."""
    prompts = [f"Story number {i}:" for i in range(batch)]
    params = SamplingParams(temperature=0, max_tokens=n_tokens, ignore_eos=True)
    wall, thread = time.perf_counter(), time.thread_time()
    outputs = llm.generate(prompts, params)
    wall, thread = time.perf_counter() - wall, time.thread_time() - thread
    return wall, thread, sum(len(output.outputs[0].token_ids) for output in outputs)


def main() -> None:
    """Prints a line per batch size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    llm = LLM(args.model, max_model_len=args.tokens + 32, max_num_seqs=32)
    n_threads = llm.info["n_threads"]
    measure(llm, 2, 8)
    for batch in (1, 32):
        rounds = [measure(llm, batch, args.tokens) for _ in range(args.rounds)]
        wall, thread, n_tokens = min(rounds)
        share = thread / (wall * n_threads)
        print(
            f"batch {batch:2}: {n_tokens / wall:8.1f} tokens/s, "
            f"{thread / n_tokens * 1e6:6.2f} us of this thread per token, "
            f"{100 * share:.2f} % of {n_threads} threads"
        )


if __name__ == "__main__":
    main()
