"""The word list of `slurs.txt` as one pattern; `prepare.py` and `check.py` share it."""

import pathlib
import re

LIST = pathlib.Path(__file__).with_name("slurs.txt")


def pattern(path: pathlib.Path = LIST) -> re.Pattern[str]:
    """Matches each listed word or phrase as whole words, in any case, also in the plural."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    words = [line for line in lines if line and not line.startswith("#")]
    return re.compile(rf"(?<![\w])(?:{'|'.join(map(forms, words))})(?![\w])", re.IGNORECASE)


def forms(word: str) -> str:
    """A pattern for the word with its plural and possessive endings."""
    stem = re.escape(word).replace(r"\ ", r"\s+").replace(r"\-", r"[-\s]?")
    if word.endswith("y"):
        plural = rf"{stem[:-1]}(?:y|ys|ies)"
    elif word.endswith(("s", "x", "z", "ch", "sh", "o")):
        plural = rf"{stem}(?:s|es)?"
    else:
        plural = rf"{stem}s?"
    return rf"{plural}(?:'s|')?"
