"""Step 6 of the recipe: does a story of 200 tokens stay with its characters?

    python characters.py ../target/release/pelton --book BOOKS/1661.txt

Starts `pelton serve` and lets the model continue openings that name a hero, with the sampling that it
recommends. Of the names in the second half of each story, it prints the share that the opening or the
first half knew, and the share of the stories in which the hero is named again there. `--book` prints the
first figure for passages of the held-out book of the same length: a good story also meets new people.
"""

import argparse
import pathlib
import random
import re
from concurrent.futures import ThreadPoolExecutor

import check
import prepare

# A capital letter after a small one is no beginning of a sentence.
NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}")
NO_NAMES = {"God", "Heaven", "Lord", "Sir", "Miss", "Mrs", "Mr", "Lady", "King", "Queen", "Prince", "Princess", "Captain", "Doctor",
            "Uncle", "Aunt", "English", "French", "Sunday", "Monday", "Saturday", "Christmas"}
HEROES = ("Anne", "Martin", "Elsie", "Oliver", "Rosamond", "Peter", "Margaret", "Edmund", "Dora", "Philip")
OPENINGS = (
    "Once upon a time there was a {child} named {name}, who lived by the sea.",
    "{name} was a poor {child}, and had never seen the king.",
    "There was once a {child} called {name}. One morning",
    "\"Come here, {name},\" said the old man to the {child}.",
)
SAMPLING = {"temperature": 0.8, "top_p": 0.95}  # as in `generation_config.json`
GIRLS = {"Anne", "Elsie", "Rosamond", "Margaret", "Dora"}


def names(text: str) -> list[str]:
    """The names of people and places of a text, each as often as it is there."""
    return [name for name in NAME.findall(text) if name not in NO_NAMES]


def known(before: str, after: str) -> tuple[int, int]:
    """Of the names in `after`: how many `before` knew, and how many there are."""
    of_before, of_after = set(re.findall(r"[A-Z][a-z]{2,}", before)), names(after)
    return sum(name in of_before for name in of_after), len(of_after)


def halves(text: str) -> tuple[str, str]:
    """The text, cut at the word in its middle."""
    words = re.findall(r"\S+\s*", text)
    return "".join(words[: len(words) // 2]), "".join(words[len(words) // 2 :])


def story(address: str, model: str, seed: int) -> tuple[str, str, str]:
    """The hero of a seed, the opening with the first half of the story, and the second half."""
    rng = random.Random(seed)
    hero = rng.choice(HEROES)
    opening = rng.choice(OPENINGS).format(name=hero, child="girl" if hero in GIRLS else "boy")
    body = {"prompt": opening, "seed": seed, "max_tokens": 200, **SAMPLING}
    first, second = halves(check.request(address, model, "completions", body))
    return hero, opening + first, second


def share(counts: list[tuple[int, int]]) -> str:
    n_known, n = map(sum, zip(*counts))
    return f"{n_known / n:.0%} of {n} names in second halves were known from before"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pelton", help="the binary with the models inside")
    parser.add_argument("--stories", type=int, default=500)
    parser.add_argument("--models", nargs="+", default=["embedded", "story-draft"])
    parser.add_argument("--book", type=pathlib.Path, help="a text of the same kind, for comparison")
    parser.add_argument("--show", type=int, default=0, help="stories to print")
    args = parser.parse_args()
    for model in args.models:
        with check.serve(args.pelton, model) as (address, name), ThreadPoolExecutor(16) as pool:
            told = list(pool.map(lambda seed: story(address, name, seed), range(args.stories)))
        again = sum(hero in second for hero, _, second in told) / len(told)
        print(f"{model}: {share([known(first, second) for _, first, second in told])}; "
              f"the hero is named there in {again:.0%} of {len(told)} stories")
        for _, first, second in told[: args.show]:
            print(f"---\n{first}|{second}")
    if args.book:
        text, rng, length = prepare.plain(args.book), random.Random(1), 800
        starts = [text.index(" ", rng.randrange(len(text) - 2 * length)) for _ in range(args.stories)]
        passages = [halves(text[start : start + length]) for start in starts]
        print(f"{args.book.name}: {share([known(*passage) for passage in passages])}")


if __name__ == "__main__":
    main()
