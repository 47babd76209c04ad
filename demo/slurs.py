"""The word list of `slurs.txt` as one pattern, and as texts; every step of the recipe shares it."""

import itertools
import pathlib
import re

LIST = pathlib.Path(__file__).with_name("slurs.txt")


def pattern(path: pathlib.Path = LIST) -> re.Pattern[str]:
    """Matches each listed word or phrase as whole words, in any case, also in the plural."""
    return re.compile(rf"(?<![\w])(?:{'|'.join(map(forms, listed(path)))})(?![\w])", re.IGNORECASE)


def listed(path: pathlib.Path = LIST) -> list[str]:
    """The words and phrases of the list."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def texts() -> set[str]:
    """Every text in small letters that the pattern matches, with one space where it allows several."""
    found, rude = set(), pattern()
    for word in listed():
        parts = re.split(r"(-)", word)
        joints = [("-", " ", "") if part == "-" else (part,) for part in parts]
        for stem in map("".join, itertools.product(*joints)):
            ends = (stem, stem + "s", stem + "es", stem[:-1] + "ies")
            found |= {text for text in ends if rude.fullmatch(text)}
    return found


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
