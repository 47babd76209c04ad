"""Step 1 of the recipe: tokenizer, token streams and chat examples from a folder of books.

    python prepare.py --corpus BOOKS --out build

BOOKS holds plain texts (`*.txt` or `*.txt.gz`) whose names contain their Project Gutenberg id, as
`158.txt`, `158-0.txt` or `Emma_158.txt.gz`; `books.txt` lists the ids. The held-out book trains
neither the tokenizer nor the model. Paragraphs with a word of `slurs.txt` are dropped.

With `--from FILE.gguf` the tokenizer is that of a model that exists, and books may be missing: so
much is enough for further steps of that model (`unlearn.py --from`).
"""

import argparse
import gzip
import json
import pathlib
import re

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

import chats
import gguf_file
import slurs

VOCAB_SIZE = 4096
CONTEXT = 2048
END = "<|endoftext|>"
HELD_OUT = "1661"
BOOKS = pathlib.Path(__file__).with_name("books.txt")
QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--", "\u2026": "..."})
# Headings, lists of contents and notes of the transcriber: all that a tale would not say.
NO_PROSE = re.compile(
    r"^(?:contents|illustrations?|chapter|(?:book|volume|part) [\dIVXL]+|produced by|transcribed|footnote)\b"
    r"|^\W*$|^\[|^(?-i:by [A-Z]|by the author)|gutenberg|e-?text|e-?book|chapter [\dIVXL]+\b.*chapter"
    r"|https?:|www\.|@", re.I)
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def read_books(corpus: pathlib.Path, some: bool) -> dict[str, str]:
    """The text of each book of `books.txt` by id, paragraphs of one line, separated by a blank one.

    Without `some` a missing book is an error; with it only the missing held-out book is.
    """
    files = {}
    for path in sorted([*corpus.glob("*.txt"), *corpus.glob("*.txt.gz")]):
        if found := re.search(r"(\d+)(?:-0)?\.txt", path.name):
            files.setdefault(found[1], path)
    listed = [line.split("\t")[0] for line in BOOKS.read_text().splitlines() if not line.startswith("#")]
    missing = [book for book in [HELD_OUT, *listed] if book not in files]
    if missing and (not some or HELD_OUT in missing):
        raise SystemExit(f"{corpus}: no text of the books {', '.join(missing)}; see {BOOKS.name}")
    return {book: plain(files[book]) for book in [HELD_OUT, *listed] if book in files}


def plain(path: pathlib.Path) -> str:
    """A Project Gutenberg text without the licence, each paragraph in one line, in plain quotes."""
    raw = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("cp1252")
    text = text.replace("\r\n", "\n").replace("_", "").translate(QUOTES)
    if start := re.search(r"^\*+ ?START OF.*$|^\*END\*THE SMALL PRINT.*$", text, re.M):
        text = text[start.end():]
    if end := re.search(r"^\*+ ?END OF|^End of (?:the |this )?Project Gutenberg", text, re.M):
        text = text[:end.start()]
    parts = (part for part in re.split(r"\n\s*\n", text) if part.strip())
    return "\n\n".join(" ".join(part.split()) for part in parts)


def mannered(text: str) -> tuple[str, int, int]:
    """The prose of a book without slurs; also the paragraphs dropped for slurs, and as no prose."""
    rude, parts = slurs.pattern(), text.split("\n\n")
    prose = [part for part in parts if not NO_PROSE.search(part) and part.upper() != part]
    kept = [part for part in prose if not rude.search(part)]
    return "\n\n".join(kept), len(prose) - len(kept), len(parts) - len(prose)


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE: every byte string has an encoding, nothing is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(t, special=True) for t in (END, chats.IM_START, chats.IM_END)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((p for t in texts for p in t.split("\n\n")), trainer)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="start", type=pathlib.Path, metavar="FILE.gguf", help="take the tokenizer of this model")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    books = read_books(args.corpus, bool(args.start))
    held_out = books.pop(HELD_OUT)
    train, n_rude, n_other = {}, 0, 0
    for book, text in books.items():
        train[book], rude, other = mannered(text)
        n_rude, n_other = n_rude + rude, n_other + other
    tokenizer = gguf_file.tokenizer(args.start) if args.start else train_tokenizer(list(train.values()))
    tokenizer.save(str(args.out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (args.out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")

    encode = lambda text: tokenizer.encode(text).ids  # noqa: E731
    end = tokenizer.token_to_id(END)
    books_ids = [i for text in train.values() for i in [*encode(text), end]]
    examples = chats.chat_examples(train, args.seed)
    chat_ids = [i for chat in examples for i in [*encode(chat), end]]
    held_ids = encode(held_out)
    for name, ids in (("books", books_ids), ("chats", chat_ids), ("held_out", held_ids)):
        np.save(args.out / f"{name}.npy", np.array(ids, dtype=np.uint16))
    sizes = {"held_out_bytes": len(held_out.encode()), "n_chats": len(examples), "n_books": len(train), "books_tokens": len(books_ids),
             "n_slurs_dropped": n_rude, "n_no_prose_dropped": n_other, "chats_tokens": len(chat_ids), "held_out_tokens": len(held_ids)}
    (args.out / "sizes.json").write_text(json.dumps(sizes, indent=2) + "\n")
    print(json.dumps(sizes))


if __name__ == "__main__":
    main()
