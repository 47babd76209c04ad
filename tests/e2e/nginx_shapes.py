#!/usr/bin/env python3
"""Compares how Pelton and nginx read requests of odd shapes.

    tests/e2e/nginx_shapes.py [PELTON [NGINX]]

PELTON is the binary (default: target/release/pelton), NGINX that of Debian's package `nginx`
(default: nginx). Each shape is a first request of odd form with a plain one behind it, and goes to
Pelton alone, to nginx alone, and to nginx in front of Pelton. The script prints the statuses of all
answers. It fails

- if Pelton alone finds more requests in the bytes than nginx does (see LENIENT for the exceptions),
- if Pelton answers more requests than the nginx in front of it has sent: request smuggling.

`cargo test --workspace --test all shapes` checks Pelton's own answers; this script needs nginx and is no part of it.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SECONDS = 10
HOST = "Host: localhost\r\n"
NEXT = f"GET /version HTTP/1.1\r\n{HOST}\r\n"
BODY = "2\r\n{}\r\n0\r\n\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"

# Shapes in which Pelton may find more requests than nginx.
LENIENT = {
    # RFC 9110, section 8.6: the same length twice may be read as one.
    "the same length twice",
    # nginx answers without a status, as HTTP/0.9 has none; Pelton refuses.
    "HTTP/0.9",
}


def post(headers, body, version="1.1"):
    start = f"POST /v1/completions HTTP/{version}\r\n{HOST}Content-Type: application/json\r\n"
    return f"{start}{headers}\r\n{body}{NEXT}"


def get(headers, host=HOST):
    return f"GET /version HTTP/1.1\r\n{host}{headers}\r\n{NEXT}"


SHAPES = {
    "plain": get(""),
    "a length": post("Content-Length: 2\r\n", "{}"),
    "the same length twice": post("Content-Length: 2\r\nContent-Length: 2\r\n", "{}"),
    "two lengths": post("Content-Length: 2\r\nContent-Length: 3\r\n", "{}"),
    "a list of lengths": post("Content-Length: 2, 2\r\n", "{}"),
    "a length with a sign": post("Content-Length: +2\r\n", "{}"),
    "a space before the colon": post("Content-Length : 2\r\n", "{}"),
    "length and chunks": post(f"Content-Length: 9\r\n{CHUNKED}", BODY),
    "chunks and length": post(f"{CHUNKED}Content-Length: 9\r\n", BODY),
    "chunks": post(CHUNKED, BODY),
    "chunks twice": post(CHUNKED * 2, BODY),
    "chunks in chunks": post("Transfer-Encoding: chunked, chunked\r\n", BODY),
    "compressed chunks": post("Transfer-Encoding: gzip, chunked\r\n", BODY),
    "almost chunks": post("Transfer-Encoding: xchunked\r\n", BODY),
    "a tab before chunks": post("Transfer-Encoding: \x0bchunked\r\n", BODY),
    "chunks, then not": post(f"{CHUNKED}Transfer-Encoding: identity\r\n", BODY),
    "chunks in HTTP/1.0": post(CHUNKED, BODY, "1.0"),
    "a chunk extension": post(CHUNKED, '2;a="b"\r\n{}\r\n0;c\r\n\r\n'),
    "a line feed in an extension": post(CHUNKED, "2;a\nGET\r\n{}\r\n0\r\n\r\n"),
    "leading zeros": post(CHUNKED, "0002\r\n{}\r\n000\r\n\r\n"),
    "a chunk size in another base": post(CHUNKED, "0x2\r\n{}\r\n0\r\n\r\n"),
    "a chunk size beyond 64 bits": post(CHUNKED, "10000000000000002\r\n{}\r\n0\r\n\r\n"),
    "too long a chunk": post(CHUNKED, "2\r\n{}}\r\n0\r\n\r\n"),
    "a line feed after a size": post(CHUNKED, "2\n{}\r\n0\r\n\r\n"),
    "a line feed after a chunk": post(CHUNKED, "2\r\n{}\n0\r\n\r\n"),
    "trailers": post(CHUNKED, "2\r\n{}\r\n0\r\nX-A: b\r\n\r\n"),
    "a body of GET": f"GET /version HTTP/1.1\r\n{HOST}Content-Length: {len(NEXT)}\r\n\r\n{NEXT}{NEXT}",
    "a folded header": get("X: y\r\n z\r\n"),
    "a carriage return in a header": get("X: y\rZ: a\r\n"),
    "a null byte": get("X: \0\r\n"),
    "line feeds alone": get("X: y\r\n").replace("\r\n", "\n"),
    "a header without a colon": get("X\r\n"),
    "no host": get("", host=""),
    "two hosts": get("Host: evil.example\r\n"),
    "an empty host": get("", host="Host: \r\n"),
    "a host with a path": get("", host="Host: localhost/x\r\n"),
    "a list of hosts": get("", host="Host: localhost, evil.example\r\n"),
    "an address for a path": get("").replace("/v", "http://localhost/v", 1),
    "two spaces": get("").replace(" ", "  ", 1),
    "HTTP/0.9": "GET /version\r\n\r\n",
    "HTTP/2.0": get("").replace("/1.1", "/2.0", 1),
}

CONFIG = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    log_format sent "$upstream_status";
    upstream pelton {{ server 127.0.0.1:{pelton}; keepalive 4; }}
    server {{ listen 127.0.0.1:{alone}; location / {{ return 200 "alone"; }} }}
    server {{
        listen 127.0.0.1:{front};
        access_log {folder}/sent.log sent;
        location / {{
            proxy_pass http://pelton; proxy_http_version 1.1;
            proxy_set_header Connection ""; proxy_set_header Host localhost;
            proxy_request_buffering off;
        }}
    }}
}}
"""


def statuses(port, text):
    """Statuses of all answers; interim answers are left out."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as client:
        received = b""
        try:
            client.sendall(text.encode("latin-1"))
            # nginx drops what it has not answered when its client closes its sending half.
            client.settimeout(0.3)
            while piece := client.recv(65536):
                received += piece
        except OSError:
            pass
    found = re.findall(rb"(?:^|[\n}]|alone)HTTP/1\.[01] (\d{3})", received)
    return [int(status) for status in found if status != b"100"]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def wait_for(port):
    end = time.monotonic() + SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert time.monotonic() < end, f"nothing listens on {port}"
            time.sleep(0.05)


def count(path, word=""):
    with open(path, encoding="utf-8", errors="replace") as log:
        return sum(word in line for line in log)


def main():
    pelton = sys.argv[1] if len(sys.argv) > 1 else f"{ROOT}/target/release/pelton"
    nginx = sys.argv[2] if len(sys.argv) > 2 else "nginx"
    ports = {name: free_port() for name in ["pelton", "alone", "front"]}
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "nginx.conf")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(folder=folder, **ports))
        log = open(os.path.join(folder, "pelton.log"), "wb")
        env = dict(os.environ, RUST_LOG="pelton_server=debug", NO_COLOR="1")
        command = [pelton, "serve", "--port", str(ports["pelton"])]
        started = [
            subprocess.Popen(command, stderr=log, env=env),
            subprocess.Popen([nginx, "-p", folder, "-c", config]),
        ]
        try:
            for port in ports.values():
                wait_for(port)
            sent_log = os.path.join(folder, "sent.log")
            print(f"{'':32}{'Pelton':>16}{'nginx':>16}{'nginx, Pelton':>18}")
            for name, text in SHAPES.items():
                alone, other = statuses(ports["pelton"], text), statuses(ports["alone"], text)
                before = count(log.name, "answered"), count(sent_log)
                both = statuses(ports["front"], text)
                time.sleep(0.05)
                n_answered = count(log.name, "answered") - before[0]
                with open(sent_log, encoding="utf-8") as file:
                    n_sent = sum(line.strip() != "-" for line in list(file)[before[1] :])
                shown = [" ".join(map(str, found)) for found in (alone, other, both)]
                print(f"{name:32}{shown[0]:>16}{shown[1]:>16}{shown[2]:>18}")
                if n_answered > n_sent:
                    wrong.append(f"{name}: nginx sent {n_sent} requests, Pelton saw {n_answered}")
                if len(alone) > len(other) and name not in LENIENT:
                    wrong.append(f"{name}: Pelton found {alone}, nginx {other}")
        finally:
            for process in started:
                process.terminate()
                process.wait()
    print("\n".join(wrong) or "no shape is read as more requests than nginx finds in it")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
