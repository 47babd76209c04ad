"""Draws a terminal with a real run of pelton: python3 docs/picture.py PELTON > docs/terminal.svg"""

import fcntl
import html
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap

COLUMNS = 92
WORDS = ["run", "Once upon a time", "--seed", "14", "--max-tokens", "80"]
LINE, WIDTH = 19, 7.85


def run(pelton: str) -> str:
    """What a terminal of this width gets."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    child = subprocess.Popen(
        [pelton, *WORDS], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        env={**os.environ, "NO_COLOR": "1"},
    )
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 4096):
            parts.append(part)
    except OSError:
        pass  # The terminal ends with the program.
    assert child.wait() == 0
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", without_erased(b"".join(parts).decode()))


def without_erased(text: str) -> str:
    """Without the beginnings of words that were taken back to stand on the next line."""
    while back := re.search(r"\x1b\[(\d+)D\x1b\[K", text):
        text = text[: back.start() - int(back[1])] + text[back.end() :]
    return text


def lines(pelton: str) -> list[tuple[str, str]]:
    """The lines of the screen, each with its class."""
    command = " ".join(f'"{word}"' if " " in word else word for word in WORDS)
    shown, kind = [("prompt", f"$ pelton {command}")], "text"
    for line in run(pelton).strip().splitlines():
        kind = "note" if line.startswith("[") else kind
        wrapped = textwrap.wrap(line, COLUMNS, drop_whitespace=False) or [""]
        shown += [(kind, part.rstrip()) for part in wrapped]
    return shown + [("prompt", "$ ")]


def draw(shown: list[tuple[str, str]]) -> str:
    """The picture."""
    width, height = int(COLUMNS * WIDTH) + 32, len(shown) * LINE + 56
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" '
        f'aria-label="A terminal in which pelton continues a story">\n'
        "<style>text{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre}"
        ".prompt{fill:#7ee787}.text{fill:#e6edf3}.note{fill:#8b949e}</style>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>\n'
    )
    dots = "".join(
        f'<circle cx="{20 + 18 * i}" cy="18" r="5" fill="{color}"/>'
        for i, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    rows = [
        f'<text class="{kind}" x="16" y="{46 + i * LINE}">{html.escape(line)}</text>'
        for i, (kind, line) in enumerate(shown)
    ]
    return head + dots + "\n" + "\n".join(rows) + "\n</svg>"


if __name__ == "__main__":
    print(draw(lines(sys.argv[1])))
