#!/usr/bin/env python3
"""Measures the load generator itself: `pelton bench serve` against a server with known delays.

    benches/serve/generator.py [--pelton target/release/pelton] [--streams 64] [--seconds 20]

The server sends a first token after a fixed time and the others at fixed distances. Printed are the processor
time of the generator per second of one core, how late requests were sent, and by how much the times that it
reports exceed those that the server itself saw (server and network included, so an upper bound of its error).
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data):
    data = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


async def answer(writer, n_tokens, first_s, gap_s, seen):
    clock = asyncio.get_running_loop().time
    arrived = clock()
    await asyncio.sleep(first_s)
    writer.write(HEAD + chunk(b'{"choices":[{"text":" a"}]}'))
    first = clock()
    for at in range(1, n_tokens):
        await asyncio.sleep(max(0.0, first + at * gap_s - clock()))
        writer.write(chunk(b'{"choices":[{"text":" a"}]}'))
    last = clock()
    seen.append((first - arrived, last - arrived))
    usage = b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d}}' % n_tokens
    writer.write(chunk(usage) + chunk(b"[DONE]") + b"0\r\n\r\n")
    await writer.drain()


async def converse(reader, writer, first_s, gap_s, seen):
    try:
        while request := await reader.readline():
            length = 0
            while (line := await reader.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            body = await reader.readexactly(length)
            path = request.split()[1]
            if path == b"/v1/models":
                text = b'{"data":[{"id":"mock"}]}'
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
            elif path == b"/seen":
                text = json.dumps(seen).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
            elif request.startswith(b"GET"):
                writer.write(b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n")
            else:
                await answer(writer, json.loads(body)["max_tokens"], first_s, gap_s, seen)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


def serve(port, first_s, gap_s):
    async def run():
        seen = []
        handler = lambda reader, writer: converse(reader, writer, first_s, gap_s, seen)
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        port.value = server.sockets[0].getsockname()[1]
        await server.serve_forever()

    asyncio.run(run())


def get(port, path):
    import urllib.request
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as reply:
        return json.load(reply)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pelton", type=Path, default=Path("target/release/pelton"))
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--first-ms", type=float, default=200)
    parser.add_argument("--gap-ms", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    port = multiprocessing.Value("i", 0)
    process = multiprocessing.Process(
        target=serve, args=(port, args.first_ms / 1e3, args.gap_ms / 1e3), daemon=True)
    process.start()
    while not port.value:
        time.sleep(0.05)
    # So many requests per second keep the streams open.
    answer_s = (args.first_ms + args.gap_ms * (args.tokens - 1)) / 1e3
    rate = args.streams / answer_s
    n = max(1, round(rate * args.seconds))
    words = [args.pelton, "bench", "serve", "--url", f"127.0.0.1:{port.value}", "--json", "-n", n,
             "--rate", f"{rate:.3f}", "--arrivals", "constant", "--lengths", f"5:{args.tokens}"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {done.stderr.strip()}")
    told = json.loads(done.stdout)
    report = told["variants"][0]["report"]
    seen = get(port.value, "/seen")
    late = report["sent_late_ms"]
    print(f"{n} requests, about {args.streams} streams, {args.streams * 1e3 / args.gap_ms:.0f} tokens/s")
    print(f"processor time  {100 * told['processor']['client_s'] / report['duration_s']:.1f} % of a core")
    print(f"sent late       P50 {late['p50']:.3f} ms, P99 {late['p99']:.3f} ms, most {late['max']:.3f} ms")
    for name, key, at in [("TTFT", "ttft_ms", 0), ("end to end", "end_to_end_ms", 1)]:
        server = sorted(1e3 * times[at] for times in seen)
        client = sorted(told["requests"][key])
        error = statistics.median(client) - statistics.median(server)
        print(f"{name:<15} {statistics.median(client):.3f} ms, {error:+.3f} ms to the server's own clock")
    process.terminate()


if __name__ == "__main__":
    main()
