"""Draws a terminal with a real run of pelton: python3 docs/picture.py PELTON > docs/terminal.svg"""

import html
import subprocess
import sys
import textwrap

COLUMNS = 92
WORDS = ["run", "Once upon a time", "--seed", "26", "--max-tokens", "80"]
LINE, WIDTH = 19, 7.85


def lines(pelton: str) -> list[tuple[str, str]]:
    """The lines of the screen, each with its class."""
    done = subprocess.run([pelton, *WORDS], capture_output=True, text=True, check=True)
    command = " ".join(f'"{word}"' if " " in word else word for word in WORDS)
    shown = [("prompt", f"$ pelton {command}")]
    for line in done.stdout.rstrip().splitlines():
        shown += [("text", part) for part in textwrap.wrap(line, COLUMNS) or [""]]
    for line in done.stderr.strip().splitlines():
        shown += [("note", part) for part in textwrap.wrap(line, COLUMNS, drop_whitespace=False)]
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
