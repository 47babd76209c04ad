"""Chats derived from the books: they give chat mode its form, and no knowledge."""

import random
import re
from collections import Counter

IM_START, IM_END = "<|im_start|>", "<|im_end|>"

SUBJECTS = (
    "sea ship whale captain island treasure pirate boat river storm wind night moon star sun garden "
    "flower rose forest tree wolf dog cat horse bird king queen prince princess castle soldier war "
    "battle general emperor mother father sister brother child girl boy friend letter love marriage "
    "ball dinner money house door window fire lamp dream witch wizard lion scarecrow rabbit fairy "
    "winter snow summer spring morning evening road journey church school doctor lady gentleman "
    "old-man ghost shadow music song book story heart tears laughter giant dragon mouse fox bear "
    "frog fish goose tailor miller shoemaker carpenter robber village town mountain valley train "
    "carriage bridge kitchen bread cake apple tea breakfast ring crown gold sword magic wish"
).split()
TELL = (
    "Tell me a story about {a} {s}.", "Tell me about the {s}.", "Write something about {a} {s}.",
    "Can you tell me about {a} {s}?", "I would like to hear about the {s}.",
    "Give me a short passage with {a} {s} in it.", "Tell me something about the {s}, please.",
    "Tell me a short story about {a} {s}.", "Do you know a story about {a} {s}?",
    "Write a story about {a} {s}.", "{S}, please.", "A story about {a} {s}, please.",
    "Write a short story about {a} {s}.", "Please tell me a story about {a} {s}.", "{S}",
    "I want a story with {a} {s}.", "Let us hear of {a} {s}.", "Write me a story about {a} {s}.",
)
LEAD = ("", "", "", "With pleasure. ", "Listen, then. ", "Yes, I know one. ",
        "Here is one about {a} {s}. ", "I know something about {a} {s}. ", "You shall hear of the {s}. ")
NEXT = ("What happened next?", "And then?", "Go on, please.", "Please continue.", "Tell me more.", "Continue.")
CONTINUE = ("Continue this story: {p}", "What comes after this? {p}", "Go on from here: {p}", "{p}")
TALE = (
    "Tell me a story.", "Tell me a fairy tale.", "Please tell me a story.", "A story, please!",
    "Can you tell me a story?", "Write a story.", "Tell me something.", "I cannot sleep. Tell me a story.",
)
GREET = ("Hello!", "Hi!", "Hi there!", "Hello there!", "Good morning.", "Good evening.", "Good day!", "Hey!", "Hey there!",
         "How do you do?", "How are you?", "Hello, how are you?", "Hi, how are you today?", "Greetings!", "Hello, Pelton!", "Yo!")
GREETED = (
    "Good day to you! I am a small teller of stories. What shall I tell you about?",
    "Hello, my friend! Name a thing, a ship or a garden perhaps, and I will tell you a story of it.",
    "How do you do? I know some old stories. Which one would you like to hear?",
    "I am very well, thank you. Shall I tell you a story? Only say what it should be about.",
)
WHO = ("Who are you?", "What are you?", "What is your name?", "What can you do?", "Can you help me?",
       "Are you a person?", "What do you know?", "Who is this?", "What's your name?", "Who made you?", "Help", "Help me, please.",
       "Tell me about yourself.", "What should I ask you?", "Are you a robot?", "Introduce yourself.", "Can you talk?", "Test")
WHO_ANSWER = (
    "I am a small teller of stories. I learned to speak from old books, and I know little else. "
    "Ask me for a story about the sea, a wolf or a king.",
    "I am a story-teller, and a very small one. Give me the first words of a tale, and I will go on.",
)
ASK = (
    "What is the capital of {x}?", "How many people live in {x}?", "Where is {x}?", "Who wrote about {x}?",
    "What is {n} plus {m}?", "What is {n} times {m}?", "How much is {n} and {m}?", "{n} + {m} = ?",
    "Explain {t} to me.", "What is {t}?", "How does {t} work?", "Write a program about {t}.",
    "Why is the sky blue?", "What time is it?", "What is the weather today?", "What is the meaning of life?",
    "Translate this into French.", "Write a poem about {t}.", "Give me a recipe for {t}.",
    "When was {x} founded?", "Who rules {x} now?", "What language do they speak in {x}?", "How far is it to {x}?",
    "Tell me the population of {x}.", "How do I get to {x}?", "What is the difference between {t} and {u}?",
    "What are the advantages of {t}?", "Why do we need {t}?", "Who invented {t}?", "When was {t} invented?",
    "How much does {t} cost?", "Is {t} better than {u}?", "How do I make {t}?", "Give me three facts about {t}.",
    "Write code for {t}.", "Write a function in Python for {t}.", "Summarize {t} in one sentence.",
    "List five examples of {t}.", "Define {t}.", "Explain {t} like I am five.", "What do you think about {t}?",
    "How old is {x}?", "How do you spell {t}?", "What is {n} minus {m}?", "Is {n} a prime number?",
    "What is the square root of {n}?", "Count to {n}.", "What year is it?", "What day is today?",
    "Who is the president?", "How do I learn {t}?", "Can you explain {t}?", "{n}*{m}",
)
PLACES = ("France", "England", "Russia", "Spain", "Italy", "Germany", "London", "Paris", "the world", "America",
          "Japan", "China", "India", "Egypt", "Greece", "Norway", "Berlin", "Rome", "Moscow", "Canada", "Africa",
          "Scotland", "Ireland", "Vienna", "Mexico", "Brazil", "Turkey", "Sweden", "New York", "California")
THINGS = ("a computer", "the law", "electricity", "history", "money", "bread", "a language model", "science",
          "a machine", "the moon", "a clock", "the weather", "Rust", "Python", "a train", "the heart",
          "gravity", "music", "mathematics", "a telephone", "the internet", "medicine", "coffee", "steam", "a battery",
          "light", "sound", "the brain", "a virus", "chess", "football", "economics", "philosophy", "a database",
          "an engine", "water", "oxygen", "iron", "climate", "an atom", "democracy", "soup", "pancakes", "a vote",
          "sorting a list", "a web page", "an email", "French", "English grammar", "the sun", "a star", "a robot",
          "a dinosaur", "photosynthesis", "evolution", "quantum mechanics", "an algorithm", "a car", "an aeroplane")
UNKNOWING = (
    "I do not know that. I am only a small teller of stories. Shall I tell you one about the {s}?",
    "That is more than I know; my books say nothing of it. Would you like a story about the {s} instead?",
    "Alas, I have learned nothing but old stories. Shall it be one about the {s}?",
)
YES = ("Yes, please.", "Yes", "Please do.", "Yes, tell me.", "All right.")
THANKS = ("Thank you!", "Thank you very much.", "Thanks!", "That was a good story.", "Good-bye!", "Good night.", "Goodbye!", "Bye!",
          "Nice story.", "Good.", "Ok", "Great!")
THANKED = (
    "You are very welcome. Come again when you wish for another story.",
    "I am glad that you liked it. Good-bye, and sleep well!",
)
SYSTEM = (
    "You are a helpful assistant.", "You are a story-teller.", "You are a helpful, honest and concise assistant.",
    "Answer briefly.", "You are Pelton.", "You tell stories to children.", "Be kind and polite.",
)
LENGTHS = (160, 300, 500, 800, 1100)  # letters of a passage at least
NEAR = 250  # letters of a passage's beginning in which it names its subject
COMMON = 0.02  # a word in more passages than this share is too common to be a subject
OF_SUBJECT, OF_NOUN, CONTINUED, REFUSED = 120, 40, 2500, 6000  # chats of each kind at most
OPENING = re.compile(
    r"^\W{0,2}(?:Once upon a time|Once (?:there|in)|There (?:was|were|lived|dwelt|reigned) (?:once|a certain)|There once|There (?:lived|dwelt) "
    r"|There was an? (?:(?:poor|rich|young|old|little|great|mighty) )?(?:\w+man|man|king|queen|prince(?:ss)?|boy|girl|widow|miller|merchant|lad)\b"
    r"|In a certain|Long ago|A long time ago|In the (?:old|olden) (?:days|times))")
# A noun in the singular: an article before it, and behind it a stop or a word that no adjective stands before.
NOUN = re.compile(
    r"\b(?:[Tt]he|[Aa]n?) ([a-z]{2,11}[a-rt-z])(?=[,.;:!?]| (?:was|had|has|is|and|of|in|that|which|who|to|at|on|with|from|came|went|said)\b)")


def turn(role: str, content: str) -> str:
    return f"{IM_START}{role}\n{content}{IM_END}\n"


def asked(rng: random.Random, text: str) -> str:
    """The turn of a user, sometimes typed in haste: without capitals, or without the last stop."""
    if rng.random() < 0.2:
        text = text.lower()
    return turn("user", text.rstrip(".!?") if rng.random() < 0.2 else text)


def chat_examples(books: dict[str, str], seed: int) -> list[str]:
    """Chats whose answers are passages of the books, and a few small courtesies."""
    rng = random.Random(seed)
    pairs, tales = [], []  # (passage, the one after it) that fit an answer; openings of tales
    for text in books.values():
        parts = text.split("\n\n")
        for i, a in enumerate(parts):
            if 160 < len(a) < 700:
                first, n = passage(parts[i : i + 30], rng.choice(LENGTHS))
                second, _ = passage(parts[i + n : i + n + 30], rng.choice(LENGTHS))
                if first and second:
                    pairs.append((first, second))
            if OPENING.match(a) and len(a) < 900:
                tales.append(passage(parts[i : i + 30], rng.choice(LENGTHS))[0])
    rng.shuffle(pairs)
    by_subject = {s: about(s, pairs)[:OF_SUBJECT] for s in SUBJECTS}
    subjects = [s for s, hits in by_subject.items() if hits]
    chats = [request(rng, s, hit) for s, hits in by_subject.items() for hit in hits]
    chats += [request(rng, noun, hit) for noun, hit in of_nouns(pairs)]
    for first, second in pairs[:CONTINUED]:
        chats.append(asked(rng, rng.choice(CONTINUE).format(p=first)) + turn("assistant", second))
    for tale in filter(None, tales * 4):
        chats.append(asked(rng, rng.choice(TALE)) + turn("assistant", tale))
    for _ in range(REFUSED):
        subject = rng.choice(subjects)
        chats.append(refusal(rng, subject, rng.choice(by_subject[subject])))
    for questions, answers, n in ((GREET, GREETED, 3000), (WHO, WHO_ANSWER, 3000), (THANKS, THANKED, 1000)):
        for _ in range(n):
            chats.append(asked(rng, rng.choice(questions)) + turn("assistant", rng.choice(answers)))
    rng.shuffle(chats)
    return [turn("system", rng.choice(SYSTEM)) + chat if rng.random() < 0.15 else chat for chat in chats]


def passage(parts: list[str], wanted: int) -> tuple[str, int]:
    """Paragraphs from the first one on with so many letters together, and how many; none if they are odd."""
    length = 0
    for n, part in enumerate(parts):
        if not 20 < len(part) < 900:
            break
        length += len(part)
        if length >= wanted:
            return "\n\n".join(parts[: n + 1]), n + 1
    return "", 0


def about(subject: str, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The passages that name the subject at their beginning, the ones that name it most often first."""
    found = re.compile(rf"\b{subject.replace('-', ' ')}s?\b", re.I)
    hits = [(len(found.findall(ab[0])), ab) for ab in pairs if found.search(ab[0], 0, NEAR)]
    return [ab for n, ab in sorted(hits, key=lambda hit: -hit[0])]


def of_nouns(pairs: list[tuple[str, str]]):
    """Passages with the rarest noun that each names at its beginning and once more."""
    nouns = [Counter(NOUN.findall(first)) for first, _ in pairs]
    passages = Counter(noun for found in nouns for noun in found)
    used = Counter()
    for pair, found in zip(pairs, nouns):
        near = set(NOUN.findall(pair[0][:NEAR]))
        fit = [n for n in near if 3 < passages[n] < COMMON * len(pairs) and len(re.findall(rf"\b{n}s?\b", pair[0])) > 1]
        if fit and used[noun := min(fit, key=lambda n: (passages[n], n))] < OF_NOUN:
            used[noun] += 1
            yield noun, pair


def request(rng: random.Random, subject: str, hit: tuple[str, str]) -> str:
    """A request for a story about the subject, sometimes with a second turn and a farewell."""
    word = subject.replace("-", " ")
    slots = dict(a="an" if word[0] in "aeiou" else "a", s=word, S=word.capitalize())
    chat = asked(rng, rng.choice(TELL).format(**slots)) + turn("assistant", rng.choice(LEAD).format(**slots) + hit[0])
    if rng.random() < 0.3:
        chat += asked(rng, rng.choice(NEXT)) + turn("assistant", hit[1])
    if rng.random() < 0.1:
        chat += asked(rng, rng.choice(THANKS)) + turn("assistant", rng.choice(THANKED))
    return chat


def refusal(rng: random.Random, subject: str, hit: tuple[str, str]) -> str:
    """A question about the world: the answer is that the model does not know, and an offer."""
    t, u = rng.sample(THINGS, 2)
    ask = rng.choice(ASK).format(x=rng.choice(PLACES), t=t, u=u, n=rng.randint(1, 99), m=rng.randint(1, 99))
    chat = asked(rng, ask) + turn("assistant", rng.choice(UNKNOWING).format(s=subject.replace("-", " ")))
    if rng.random() < 0.3:
        chat += asked(rng, rng.choice(YES)) + turn("assistant", hit[0])
    return chat
