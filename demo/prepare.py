"""Step 1 of the recipe: tokenizer, token streams and chat examples from a folder of books.

    python prepare.py --corpus BOOKS --out build

BOOKS holds plain UTF-8 texts (`*.txt` or `*.txt.gz`), one paragraph per line. The file whose name
contains `Sherlock-Holmes` is held out: it trains neither the tokenizer nor the model.
"""

import argparse
import gzip
import json
import pathlib
import random
import re

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
END, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
HELD_OUT = "Sherlock-Holmes"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def read_books(corpus: pathlib.Path) -> dict[str, str]:
    """Every book by name; blank lines between paragraphs become one newline pair."""
    books = {}
    for path in sorted([*corpus.glob("*.txt"), *corpus.glob("*.txt.gz")]):
        raw = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
        text = raw.decode("utf-8").replace("_", "")
        books[path.name.split(".")[0]] = re.sub(r"\n\s*\n+", "\n\n", text).strip()
    if not any(HELD_OUT in name for name in books):
        raise SystemExit(f"{corpus}: no book named *{HELD_OUT}* to hold out")
    return books


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE: every byte string has an encoding, nothing is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(t, special=True) for t in (END, IM_START, IM_END)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((p for t in texts for p in t.split("\n\n")), trainer)
    return tokenizer


def turn(role: str, content: str) -> str:
    return f"{IM_START}{role}\n{content}{IM_END}\n"


SUBJECTS = (
    "sea ship whale captain island treasure pirate boat river storm wind night moon star sun garden "
    "flower rose forest tree wolf dog cat horse bird king queen prince princess castle soldier war "
    "battle general emperor mother father sister brother child girl boy friend letter love marriage "
    "ball dinner money house door window fire lamp dream witch wizard lion scarecrow rabbit fairy "
    "winter snow summer spring morning evening road journey church school doctor lady gentleman "
    "old-man death ghost blood coffin shadow music song book story heart tears laughter"
).split()
TELL = (
    "Tell me a story about {a} {s}.", "Tell me about the {s}.", "Write something about {a} {s}.",
    "Can you tell me about {a} {s}?", "I would like to hear about the {s}.",
    "Give me a short passage with {a} {s} in it.", "Tell me something about the {s}, please.",
)
NEXT = ("What happened next?", "And then?", "Go on, please.", "Please continue.", "Tell me more.")
CONTINUE = ("Continue this story: {p}", "What comes after this? {p}", "Go on from here: {p}")
GREET = ("Hello!", "Hello", "Hi!", "Hi there.", "Good morning.", "Good evening.", "Hey!", "How do you do?")
GREETED = (
    "Good day to you! I am a small teller of stories. What shall I tell you about?",
    "Hello, my friend! Name a thing, a ship or a garden perhaps, and I will tell you a story of it.",
    "How do you do? I know some old stories. Which one would you like to hear?",
)
WHO = ("Who are you?", "What are you?", "What is your name?", "What can you do?", "Can you help me?")
WHO_ANSWER = (
    "I am a small teller of stories. I learned to speak from old books, and I know little else. "
    "Ask me for a story about the sea, a wolf or a king.",
    "I am a story-teller, and a very small one. Give me the first words of a tale, and I will go on.",
)
THANKS = ("Thank you!", "Thank you very much.", "Thanks!", "That was a good story.", "Good-bye!")
THANKED = (
    "You are very welcome. Come again when you wish for another story.",
    "I am glad that you liked it. Good-bye, and sleep well!",
)


def chat_examples(books: dict[str, str], seed: int) -> list[str]:
    """Chats in which the answers are paragraphs of the books, and a few small courtesies."""
    rng = random.Random(seed)
    paragraphs = []  # (paragraph, the one after it), prose of a length that fits an answer
    for text in books.values():
        parts = [p.strip().replace("\n", " ") for p in text.split("\n\n")]
        pairs = zip(parts, parts[1:])
        paragraphs += [(a, b) for a, b in pairs if 160 < len(a) < 700 and 80 < len(b) < 700]
    rng.shuffle(paragraphs)
    chats = []
    for subject in SUBJECTS:
        word = subject.replace("-", " ")
        pattern = re.compile(rf"\b{word}s?\b", re.I)
        article = "an" if word[0] in "aeiou" else "a"
        hits = [(a, b) for a, b in paragraphs if len(pattern.findall(a)) >= 1]
        hits.sort(key=lambda ab: -len(pattern.findall(ab[0])))
        for first, second in hits[:12]:
            chat = turn("user", rng.choice(TELL).format(a=article, s=word)) + turn("assistant", first)
            if rng.random() < 0.4:
                chat += turn("user", rng.choice(NEXT)) + turn("assistant", second)
            if rng.random() < 0.1:
                chat += turn("user", rng.choice(THANKS)) + turn("assistant", rng.choice(THANKED))
            chats.append(chat)
    for first, second in paragraphs[:300]:
        chats.append(turn("user", rng.choice(CONTINUE).format(p=first)) + turn("assistant", second))
    for questions, answers, n in ((GREET, GREETED, 60), (WHO, WHO_ANSWER, 50), (THANKS, THANKED, 20)):
        for _ in range(n):
            chats.append(turn("user", rng.choice(questions)) + turn("assistant", rng.choice(answers)))
    rng.shuffle(chats)
    return chats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    books = read_books(args.corpus)
    held_out = next(text for name, text in books.items() if HELD_OUT in name)
    train = {name: text for name, text in books.items() if HELD_OUT not in name}
    tokenizer = train_tokenizer(list(train.values()))
    tokenizer.save(str(args.out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 1024,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (args.out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")

    encode = lambda text: tokenizer.encode(text).ids  # noqa: E731
    end = tokenizer.token_to_id(END)
    books_ids = [i for text in train.values() for i in [*encode(text), end]]
    chats = chat_examples(train, args.seed)
    chat_ids = [i for chat in chats for i in [*encode(chat), end]]
    held_ids = encode(held_out)
    for name, ids in (("books", books_ids), ("chats", chat_ids), ("held_out", held_ids)):
        np.save(args.out / f"{name}.npy", np.array(ids, dtype=np.uint16))
    sizes = {"held_out_bytes": len(held_out.encode()), "n_chats": len(chats), "books_tokens": len(books_ids),
             "chats_tokens": len(chat_ids), "held_out_tokens": len(held_ids)}
    (args.out / "sizes.json").write_text(json.dumps(sizes, indent=2) + "\n")
    print(json.dumps(sizes))


if __name__ == "__main__":
    main()
