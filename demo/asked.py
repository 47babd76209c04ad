"""Step 7 of the recipe: does the chat answer what was asked, in form if not in sense?

    python asked.py ../target/release/pelton

Starts `pelton serve` and asks for stories about things, and questions about the world, with the sampling
that the models recommend. Prints the share of the stories that name the thing, and the share of the
questions that are answered by saying that the model does not know.
"""

import argparse
import random
import re
from concurrent.futures import ThreadPoolExecutor

import characters
import chats
import check

UNKNOWING = tuple(re.split("[.;]", text)[0] for text in chats.UNKNOWING)  # the beginning of each


def answer(address: str, model: str, question: str, seed: int) -> str:
    """The answer to one message of a user."""
    body = {"messages": [{"role": "user", "content": question}], "seed": seed, "max_tokens": 200, **characters.SAMPLING}
    return check.request(address, model, "chat/completions", body)


def names_its_thing(address: str, model: str, seed: int) -> bool:
    """Whether a story about a thing names it."""
    rng = random.Random(seed)
    thing = rng.choice(chats.SUBJECTS).replace("-", " ")
    question = rng.choice(chats.TELL).format(a="a", s=thing, S=thing.capitalize())
    return thing in answer(address, model, question, seed).lower()


def owns_up(address: str, model: str, seed: int) -> bool:
    """Whether a question about the world is answered by not knowing."""
    rng = random.Random(seed)
    numbers = {"n": rng.randint(1, 99), "m": rng.randint(1, 99)}
    question = rng.choice(chats.ASK).format(x=rng.choice(chats.PLACES), t=rng.choice(chats.THINGS), **numbers)
    return any(words in answer(address, model, question, seed) for words in UNKNOWING)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pelton", help="the binary with the models inside")
    parser.add_argument("--questions", type=int, default=300, help="of each kind")
    parser.add_argument("--models", nargs="+", default=["embedded"])
    args = parser.parse_args()
    for model in args.models:
        with check.serve(args.pelton, model) as (address, name), ThreadPoolExecutor(16) as pool:
            named, owned = (sum(pool.map(lambda seed: ask(address, name, seed), range(args.questions))) / args.questions  # noqa: B023
                            for ask in (names_its_thing, owns_up))
        print(f"{model}: {named:.0%} of {args.questions} stories name what was asked for; "
              f"{owned:.0%} of as many questions about the world are answered by not knowing")


if __name__ == "__main__":
    main()
