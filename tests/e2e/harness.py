"""End to end: lm-evaluation-harness (`lm_eval`) asks a Pelton server, and finds what `pelton eval` finds.

    python tests/e2e/harness.py [PELTON]

Needs the package `lm_eval` with its extra `api` in this Python. The questions are made here, so that no
data set is fetched. `local-completions` scores choices and texts (`echo`, `logprobs`) and generates
answers, with the server's own tokenizer (`/tokenizer_info`, `/tokenize`); `local-chat-completions`
generates answers of chats.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import urllib.request

from openai_client import Server

N_CHOICES = 60
# As many as `pelton eval tasks` takes at most.
N_ANSWER_TOKENS = 64
WORDS = """
    king queen ship sea horse door night fire forest river mountain garden window bread sword letter house
    child mother father brother friend captain bird dog cat tree road stone hand eye voice word name heart
""".split()
BEGINNINGS = [
    "The old man looked at the", "In the morning they saw a", "She took the", "There was once a",
    "He had never seen such a", "The captain said that the", "They walked down to the", "Upon the table lay a",
]


def choices():
    """Questions with four choices."""
    random.seed(7)
    for i in range(N_CHOICES):
        words = random.sample(WORDS, 8)
        # Of different lengths, so that the likeliest text is not always the one that is likeliest per byte.
        texts = [word if (i + j) % 2 else f"{word} and the {words[j + 4]}" for j, word in enumerate(words[:4])]
        yield {"query": random.choice(BEGINNINGS), "choices": texts, "gold": random.randrange(4)}


def post(server, path, body):
    request = urllib.request.Request(
        server.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=300) as answer:
        return json.load(answer)


def answers(server, until):
    """Questions whose right answer is what greedy decoding says; one that has a wrong answer last."""
    for beginning in BEGINNINGS:
        body = {"prompt": beginning, "max_tokens": N_ANSWER_TOKENS, "temperature": 0, "stop": until}
        text = post(server, "/v1/completions", body)["choices"][0]["text"]
        yield {"query": beginning, "target": text.strip() or "nothing", "until": until}
    yield {"query": "Once upon a time", "target": "no such answer", "until": until}


def chats(server, until):
    for word in WORDS[:6]:
        question = f"Tell me of a {word}."
        messages = [{"role": "user", "content": question}]
        body = {"messages": messages, "max_tokens": N_ANSWER_TOKENS, "temperature": 0, "stop": until}
        text = post(server, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
        yield {"query": question, "target": text}


def write_task(folder, name, lines, **settings):
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = {
        "task": name, "dataset_path": "json", "test_split": "test",
        "dataset_kwargs": {"data_files": {"test": str(data)}}, **settings,
    }
    # JSON is YAML.
    (folder / f"{name}.yaml").write_text(json.dumps(task))
    return data


def metrics(*names):
    return [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in names]


def write_tasks(folder, server):
    until = ["."]
    generation = {"until": until, "max_gen_toks": N_ANSWER_TOKENS, "do_sample": False, "temperature": 0}
    exact = dict(
        output_type="generate_until", doc_to_text="{{query}}", doc_to_target="{{target}}",
        generation_kwargs=generation, metric_list=metrics("exact_match"),
        filter_list=[{"name": "strip", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}],
    )
    text = " ".join(f"{beginning} {word}." for beginning, word in zip(BEGINNINGS, WORDS))
    (folder / "text.txt").write_text(text)
    # `pelton eval` scores a text from its second token on; here the first one goes before the text.
    first, text = text[: len("The")], text[len("The") :]
    ids, others = (post(server, "/tokenize", {"prompt": it})["tokens"] for it in (first, text))
    assert post(server, "/tokenize", {"prompt": first + text})["tokens"] == ids + others and len(ids) == 1
    files = {
        "choices": write_task(
            folder, "choices", choices(), output_type="multiple_choice", doc_to_text="{{query}}",
            doc_to_choice="choices", doc_to_target="gold", metric_list=metrics("acc", "acc_norm"),
        ),
        "answers": write_task(folder, "answers", answers(server, until), **exact),
        "chats": write_task(folder, "chats", chats(server, until), **exact),
        "text": write_task(
            folder, "text", [{"text": text}], output_type="loglikelihood_rolling", doc_to_text="",
            doc_to_target="text", metric_list=[{"metric": "byte_perplexity"}],
        ),
    }
    return files, ids[0]


def ask(folder, kind, url, prefix, tasks, *flags):
    """The results of `lm_eval`, by task; texts are scored behind the token `prefix`."""
    out = folder / kind
    settings = {"model": "story", "base_url": url, "num_concurrent": 4, "max_retries": 1, "eos_string": "\n\n\n"}
    settings["custom_prefix_token_id"] = prefix
    command = [
        sys.executable, "-m", "lm_eval", "--model", kind, "--tasks", ",".join(tasks),
        "--model_args", ",".join(f"{name}={value}" for name, value in settings.items()),
        "--include_path", str(folder), "--output_path", str(out), *flags,
    ]
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    env |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "cache"), "OPENAI_API_KEY": "none"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-4000:]}"
    (found,) = out.rglob("results_*.json")
    return json.loads(found.read_text())["results"]


def eval_(pelton, *args):
    done = subprocess.run([pelton, "eval", *args, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main():
    pelton = sys.argv[1] if len(sys.argv) > 1 else "target/release/pelton"
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pelton-harness-"))
    server = Server(pelton)
    try:
        files, prefix = write_tasks(folder, server)
        completions = ask(
            folder, "local-completions", f"{server.address}/v1/completions", prefix,
            ["choices", "answers", "text"],
        )
        chat = ask(
            folder, "local-chat-completions", f"{server.address}/v1/chat/completions", prefix, ["chats"],
            "--apply_chat_template",
        )
    finally:
        server.kill()
    own = eval_(pelton, "tasks", "story", str(files["choices"]), str(files["answers"]))["tasks"]
    text = eval_(pelton, "story", "--text", str(folder / "text.txt"))
    shutil.rmtree(folder)
    pairs = {
        "choices": (completions["choices"]["acc,none"], own[0]["accuracy"]),
        "choices per byte": (completions["choices"]["acc_norm,none"], own[0]["accuracy_per_byte"]),
        "answers": (completions["answers"]["exact_match,strip"], own[1]["exact_match"]),
        # All but the last question have the model's own answer for the right one.
        "answers of the server": (completions["answers"]["exact_match,strip"], 1 - 1 / (len(BEGINNINGS) + 1)),
        "chats": (chat["chats"]["exact_match,strip"], 1.0),
        "perplexity per byte": (completions["text"]["byte_perplexity,none"], text["perplexity_per_byte"]["value"]),
    }
    for name, (found, expected) in pairs.items():
        print(f"lm_eval, {name}: {found:.4f}, expected {expected:.4f}")
        assert abs(found - expected) <= 1e-4 * expected, (name, found, expected)
    assert pairs["choices"] != pairs["choices per byte"], "the two ways to count must differ"


if __name__ == "__main__":
    main()
