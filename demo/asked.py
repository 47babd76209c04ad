"""Step 7 of the recipe: does the chat answer what was asked, in form if not in sense?

    python asked.py ../target/release/pelton

Starts `pelton serve` and asks for stories about things, and questions about the world, with the sampling
that the models recommend. Prints the share of the stories that name the thing, and the share of the
questions that are answered by saying that the model does not know; both also for words that no chat of
the training holds.
"""

import argparse
import functools
import random
import re
from concurrent.futures import ThreadPoolExecutor

import characters
import chats
import check

UNKNOWING = tuple(re.split("[.;]", text)[0] for text in chats.UNKNOWING)  # the beginning of each
# Asked for in words of which the chats that the model learned from hold none.
TELL = ("Could you make up a story with {a} {s}?", "I'd love a tale about {a} {s}!", "Something with {a} {s}, if you can.",
        "Make it about {a} {s}.", "Can we have the one about the {s}?")
ASK = ("What is the largest city in {x}?", "Which rivers flow through {x}?", "Who discovered {t}?", "What is {t} used for?",
       "Compute {n} divided by {m}.", "Write an essay on {t}.", "Fix the bug in my program.", "Which is heavier, {t} or lead?",
       "How many days are in a year?", "What's the fastest animal?", "Recommend a good film.", "What does {t} mean?",
       "Who won the World Cup in 2014?", "Show me how to use {t}.", "What is the boiling point of water?")
THINGS = ("penguin", "iceberg", "submarine", "accordion", "pineapple", "scorpion", "cactus", "giraffe", "locomotive")
PLACES = ("Portugal", "Chicago", "Poland", "Australia", "Denmark", "Peru")
TOPICS = ("a transistor", "a tractor", "glass", "inflation", "a compiler", "yeast", "a saxophone", "rhetoric")


def answer(address: str, model: str, question: str, seed: int) -> str:
    """The answer to one message of a user."""
    body = {"messages": [{"role": "user", "content": question}], "seed": seed, "max_tokens": 200, **characters.SAMPLING}
    return check.request(address, model, "chat/completions", body)


def names_its_thing(address: str, model: str, seed: int, forms=chats.TELL, things=chats.SUBJECTS) -> bool:
    """Whether a story about a thing names it, in a sentence that is not one of `chats.LEAD`."""
    rng = random.Random(seed)
    thing = rng.choice(things).replace("-", " ")
    slots = dict(a="an" if thing[0] in "aeiou" else "a", s=thing, S=thing.capitalize())
    story = answer(address, model, rng.choice(forms).format(**slots), seed)
    for lead in chats.LEAD:
        story = story.removeprefix(lead.format(**slots))
    return thing in story.lower()


def owns_up(address: str, model: str, seed: int, forms=chats.ASK, places=chats.PLACES, things=chats.THINGS) -> bool:
    """Whether a question about the world is answered by not knowing."""
    rng = random.Random(seed)
    (t, u), n, m = rng.sample(things, 2), rng.randint(1, 99), rng.randint(1, 99)
    question = rng.choice(forms).format(x=rng.choice(places), t=t, u=u, n=n, m=m)
    return any(words in answer(address, model, question, seed) for words in UNKNOWING)


KINDS = (
    ("stories that name what was asked for", names_its_thing),
    ("the same, of things and in words of which no chat of the training holds any",
     functools.partial(names_its_thing, forms=TELL, things=THINGS)),
    ("questions about the world that are answered by not knowing", owns_up),
    ("the same, in words of which no chat of the training holds any",
     functools.partial(owns_up, forms=ASK, places=PLACES, things=TOPICS)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pelton", help="the binary with the models inside")
    parser.add_argument("--questions", type=int, default=300, help="of each kind")
    parser.add_argument("--models", nargs="+", default=["embedded"])
    args = parser.parse_args()
    for model in args.models:
        with check.serve(args.pelton, model) as (address, name), ThreadPoolExecutor(16) as pool:
            for words, fits in KINDS:
                n = sum(pool.map(functools.partial(fits, address, name), range(args.questions)))
                print(f"{model}: {n / args.questions:4.0%} of {args.questions} {words}", flush=True)


if __name__ == "__main__":
    main()
