"""The Python code of the documentation runs, page by page.

A block that cannot be run has its reason in the line before it, as in the pages' shell commands.
"""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"^(<!-- not run: [^\n]+ -->\n)?```python\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize("page", ["README.md", "crates/python/README.md", "docs/tutorial.md"])
def test_every_block_of_python_runs(page):
    blocks = [code for skipped, code in BLOCK.findall((ROOT / page).read_text()) if not skipped]
    assert blocks
    names = {"__name__": "page"}
    for code in blocks:
        exec(compile(code, page, "exec"), names)
