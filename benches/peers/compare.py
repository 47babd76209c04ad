#!/usr/bin/env python3
"""Measures Pelton, llama.cpp and OpenVINO GenAI on one GGUF file, in turn.

    for each round
        for each engine       one process, which loads the file, warms up and measures:
            prefill           a prompt of random ids, to its first token
            decode batch n    n sequences from a prompt of 8 ids, greedy, the end token ignored;
                              timed from the moment when all have their first token
    medians, and ratios formed within a round

The engines take turns, so that other programs on the machine disturb all of them alike, and only
one runs at a time. Each runs as it comes: with its own defaults, but for the number of threads.
With `--openvino-ir FOLDER` OpenVINO runs a second time, on the same weights in its own format and
with the settings that suit it best. With `--isa NAME` all are held to the instructions of one of
Pelton's kernel tables. What an engine cannot do is told with its own words in the place of a figure.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

SHORT_TOKENS = 8
# Every vocabulary has that many; which ids they are does not change the speed.
MOST_ID = 1000
PELTON = Path(__file__).resolve().parents[2] / "target" / "release" / "pelton"
# An engine is measured by these processes, one after the other.
PARTS = {
    "pelton": ["all"],
    "llama.cpp": ["all"],
    "openvino": ["pipeline", "continuous batching"],
    "openvino-ir": ["pipeline", "continuous batching"],
}
# OpenVINO without bf16, and without VNNI: its products of quantized activations take VNNI wherever
# the processor has it.
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
NO_VNNI = F32 | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
# The kernel tables of Pelton: the name of the same instructions in oneDNN, properties of OpenVINO,
# and features that a build of llama.cpp must have and lack.
ISAS = {
    "avx2": ("AVX2", NO_VNNI, ["AVX2"], ["AVX_VNNI", "AVX512", "AMX_INT8"]),
    "avxvnni": ("AVX2_VNNI", F32, ["AVX_VNNI"], ["AVX512", "AMX_INT8"]),
    "avx512": (
        "AVX512_CORE",
        NO_VNNI,
        ["AVX512"],
        ["AVX_VNNI", "AVX512_VNNI", "AVX512_BF16", "AMX_INT8"],
    ),
    "avx512vnni": ("AVX512_CORE_BF16", {}, ["AVX512_VNNI"], ["AMX_INT8"]),
    "amx": ("AVX512_CORE_AMX", {}, ["AMX_INT8"], []),
}
# What OpenVINO is given beside its own format: activations are quantized in groups of 128, not 32.
OPENVINO_BEST = {"PERFORMANCE_HINT": "LATENCY", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 128}


def main():
    args = parse_args()
    if args.worker:
        run_worker(args)
        return
    engines = chosen_engines(args)
    if not Path(args.model).is_file():
        sys.exit(f"error: {args.model}: no such file; `cargo xtask bench-model` writes one")
    rounds = []
    for number in range(1, args.rounds + 1):
        rounds.append({})
        for engine in engines:
            rounds[-1][engine] = measure(engine, args)
            told = ", ".join(f"{n} {show(f)}" for n, f in rounds[-1][engine]["figures"].items())
            print(f"round {number} of {args.rounds}  {engine}: {told}", file=sys.stderr)
    result = summarise(args, engines, rounds)
    print(markdown(result))
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n")


def parse_args():
    parser = argparse.ArgumentParser(description="Pelton and its peers on one GGUF file, in turn.")
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--prompt", type=positive, default=512, help="tokens [default: 512]")
    parser.add_argument("--generate", type=positive, default=128, help="steps [default: 128]")
    parser.add_argument("--batch", type=batches, default="1,8,32", help="sequences [default: 1,8,32]")
    parser.add_argument("--rounds", type=positive, default=5, help="turns [default: 5]")
    parser.add_argument(
        "--threads", type=positive, default=len(os.sched_getaffinity(0)), help="[default: all]"
    )
    parser.add_argument("--engines", help="[default: all that have a model]")
    parser.add_argument(
        "--openvino-ir", metavar="FOLDER", help="converted model, for the engine openvino-ir"
    )
    parser.add_argument(
        "--isa", choices=ISAS, help="hold all engines to these instructions [default: the best]"
    )
    parser.add_argument(
        "--llama-python",
        default=sys.executable,
        help="Python whose llama-cpp-python to measure, such as one built for --isa [default: this one]",
    )
    parser.add_argument("--pelton", default=str(PELTON), help="binary [default: target/release]")
    parser.add_argument("--timeout", type=positive, default=1800, help="seconds per process")
    parser.add_argument("--json", metavar="FILE", help="write everything there as JSON")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if isinstance(args.batch, str):
        args.batch = batches(args.batch)
    return args


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("expected at least 1")
    return number


def batches(text):
    """The batch sizes, 1 always among them."""
    return sorted({1, *(positive(item) for item in text.split(","))})


def chosen_engines(args):
    """Those that are to run, in their order; ends the program where one of them cannot."""
    if args.openvino_ir and not (Path(args.openvino_ir) / "openvino_model.xml").is_file():
        sys.exit(f"error: --openvino-ir: {args.openvino_ir}: no openvino_model.xml in there")
    able = [engine for engine in PARTS if engine != "openvino-ir" or args.openvino_ir]
    engines = args.engines.split(",") if args.engines else able
    for engine in engines:
        if engine not in PARTS:
            sys.exit(f"error: --engines: `{engine}` is none of {', '.join(PARTS)}")
        if engine not in able:
            sys.exit(f"error: --engines: `{engine}` needs --openvino-ir FOLDER")
    if args.openvino_ir and "openvino-ir" not in engines:
        sys.exit("error: --openvino-ir: --engines leaves `openvino-ir` out")
    return engines


def figure_names(args):
    return [f"prefill {args.prompt}", *(f"decode batch {n}" for n in args.batch)]


# One engine's turn: processes of its own, whose memory is given back when they end.


def measure(engine, args):
    """`{"version", "figures"}`; a figure is tokens per second, or a sentence that says why not."""
    turn = {"version": None, "figures": {}}
    for part in PARTS[engine]:
        wanted = part_figures(engine, part, args)
        if not wanted:
            continue
        answer = run_pelton(args) if engine == "pelton" else run_process(engine, part, args)
        turn["version"] = answer.get("version") or turn["version"]
        why = answer.get("error", "it did not measure this")
        for name in wanted:
            turn["figures"][name] = answer.get("figures", {}).get(name, why)
    return turn


def part_figures(engine, part, args):
    prefill, alone, *together = figure_names(args)
    return {
        "all": [prefill, alone, *together],
        "pipeline": [prefill, alone],
        "continuous batching": together,
    }[part]


def run_process(engine, part, args):
    python = args.llama_python if engine == "llama.cpp" else sys.executable
    command = [python, __file__, args.model, "--worker", engine, part]
    command += ["--prompt", str(args.prompt), "--generate", str(args.generate)]
    command += ["--batch", ",".join(map(str, args.batch)), "--threads", str(args.threads)]
    if args.openvino_ir:
        command += ["--openvino-ir", args.openvino_ir]
    if args.isa:
        command += ["--isa", args.isa]
    return last_json(command, args)


def run_pelton(args):
    command = [args.pelton, "bench", "model", "-m", args.model, "--json", "--rounds", "1"]
    command += ["--prompt", str(args.prompt), "--generate", str(args.generate)]
    command += ["--batch", ",".join(map(str, args.batch)), "--threads", str(args.threads)]
    command += ["--context", "16", "--verify", "1"]
    report = last_json(command, args)
    if "error" in report:
        return report
    version = subprocess.run([args.pelton, "--version"], capture_output=True, text=True)
    rates = {f["name"]: f["tokens_per_s"]["median"] for f in report["figures"]}
    return {
        "version": version.stdout.strip(),
        "figures": {name: rates[name] for name in figure_names(args) if name in rates},
    }


def last_json(command, args):
    """Runs a program to its end; the last line it wrote, or `{"error": why}`."""
    env = dict(os.environ)
    if args.isa:
        env |= {"PELTON_KERNELS": args.isa, "ONEDNN_MAX_CPU_ISA": ISAS[args.isa][0]}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=args.timeout, errors="replace", env=env
        )
    except OSError as error:
        return {"error": f"{command[0]}: {error.strerror}"}
    except subprocess.TimeoutExpired:
        return {"error": f"it took more than {args.timeout} s"}
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        assert isinstance(answer, dict)
        return answer
    except (IndexError, ValueError, AssertionError):
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return {"error": f"exit code {done.returncode}: {' / '.join(said[-3:]) or 'not a word'}"}


# Inside such a process.


def run_worker(args):
    engine, part = args.worker
    try:
        workers = {
            ("llama.cpp", "all"): llama_cpp_worker,
            ("openvino", "pipeline"): openvino_pipeline_worker,
            ("openvino", "continuous batching"): openvino_batching_worker,
            ("openvino-ir", "pipeline"): openvino_pipeline_worker,
            ("openvino-ir", "continuous batching"): openvino_batching_worker,
        }
        answer = workers[engine, part](args)
    except Exception as error:  # Whatever it is, it is the peer's answer.
        answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    # The engines write to stdout as well: the last line is ours.
    print("\n" + json.dumps(answer), flush=True)


def random_prompts():
    """A source of prompts: the same ids in every process, never the same prompt twice."""
    source = random.Random(1)
    return lambda n: [source.randrange(MOST_ID) for _ in range(n)]


def rate(n_sequences, moments):
    """Tokens per second of steps that ended at `moments`, after the first of them."""
    return n_sequences * (len(moments) - 1) / (moments[-1] - moments[0])


def llama_cpp_worker(args):
    import llama_cpp as lib
    import numpy

    # What it says while loading is no answer.
    silent = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(silent, None)
    lib.llama_backend_init()
    if args.isa:
        refuse_another_build(args.isa, lib.llama_print_system_info().decode())
    model = lib.llama_model_load_from_file(args.model.encode(), lib.llama_model_default_params())
    if not model:
        raise RuntimeError("llama_model_load_from_file refuses the file")
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    prompts = random_prompts()

    def session(n_sequences, n_tokens):
        """A context for sequences of `n_tokens` each: its step, its end, and forgetting."""
        params = lib.llama_context_default_params()
        per_sequence = -(-n_tokens // 256) * 256
        params.n_ctx = n_sequences * per_sequence
        params.n_seq_max = n_sequences
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = args.threads
        context = lib.llama_init_from_model(model, params)
        if not context:
            raise RuntimeError(f"llama_init_from_model refuses {n_sequences} sequences")
        batch = lib.llama_batch_init(512, 0, 1)

        def step(rows):
            """Computes `(sequence, position, token, wanted)` rows; the ids chosen greedily."""
            chosen = []
            for first in range(0, len(rows), 512):
                part = rows[first : first + 512]
                batch.n_tokens = len(part)
                for i, (sequence, position, token, wanted) in enumerate(part):
                    batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
                    batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
                code = lib.llama_decode(context, batch)
                if code:
                    raise RuntimeError(f"llama_decode answers {code}")
                for i, row in enumerate(part):
                    if row[3]:
                        logits = lib.llama_get_logits_ith(context, i)
                        logits = numpy.ctypeslib.as_array(logits, shape=(n_vocab,))
                        chosen.append(int(logits.argmax()))
            return chosen

        def close():
            lib.llama_batch_free(batch)
            lib.llama_free(context)

        def clear():
            lib.llama_memory_clear(lib.llama_get_memory(context), True)

        return step, close, clear

    def prompt_rows(sequence, n):
        return [(sequence, i, token, i + 1 == n) for i, token in enumerate(prompts(n))]

    def prefill():
        step, close, clear = session(1, args.prompt + 1)
        step(prompt_rows(0, args.prompt))
        clear()
        rows = prompt_rows(0, args.prompt)
        started = time.perf_counter()
        step(rows)
        seconds = time.perf_counter() - started
        close()
        return args.prompt / seconds

    def decode(n):
        step, close, _ = session(n, SHORT_TOKENS + args.generate + 1)
        tokens = step([row for i in range(n) for row in prompt_rows(i, SHORT_TOKENS)])
        moments = [time.perf_counter()]
        for i in range(args.generate):
            rows = [(s, SHORT_TOKENS + i, token, True) for s, token in enumerate(tokens)]
            tokens = step(rows)
            moments.append(time.perf_counter())
        close()
        return rate(n, moments)

    figures = {f"prefill {args.prompt}": attempt(prefill)}
    for n in args.batch:
        figures[f"decode batch {n}"] = attempt(lambda: decode(n))
    return {"version": f"llama-cpp-python {lib.__version__}", "figures": figures}


def refuse_another_build(isa, info):
    """The instructions of llama.cpp are chosen when it is built: `info` names them, as in `AVX2 = 1`."""
    built = {item.split("=")[0].split(":")[-1].strip() for item in info.split("|") if "= 1" in item}
    _, _, needed, refused = ISAS[isa]
    wrong = [f"without {name}" for name in needed if name not in built]
    wrong += [f"with {name}" for name in refused if name in built]
    if wrong:
        raise RuntimeError(f"llama.cpp was built {', '.join(wrong)}; --llama-python names another")


def openvino_model(args):
    """What the engine of this process loads: a path, and the properties of the CPU device."""
    properties = {"INFERENCE_NUM_THREADS": args.threads}
    of_isa = ISAS[args.isa][1] if args.isa else {}
    if args.worker[0] == "openvino-ir":
        return args.openvino_ir, properties | OPENVINO_BEST | of_isa
    return args.model, properties | of_isa


def openvino_version(lib, args):
    version = f"openvino-genai {lib.__version__}"
    if args.worker[0] == "openvino-ir":
        settings = ", ".join(f"{name} {value}" for name, value in OPENVINO_BEST.items())
        version += f" on `{Path(args.openvino_ir).resolve().name}` ({settings})"
    return version


def openvino_config(lib, n_tokens):
    config = lib.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = n_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


def openvino_prompts():
    import numpy
    import openvino

    prompts = random_prompts()
    return lambda n: openvino.Tensor(numpy.array([prompts(n)], dtype=numpy.int64))


def openvino_pipeline_worker(args):
    import openvino_genai as lib

    prompts = openvino_prompts()
    path, properties = openvino_model(args)
    pipeline = lib.LLMPipeline(path, "CPU", **properties)

    def generate(n_prompt, n_tokens):
        answer = pipeline.generate(prompts(n_prompt), openvino_config(lib, n_tokens))
        n_got = len(answer.tokens[0])
        if n_got != n_tokens:
            raise RuntimeError(f"it generated {n_got} tokens instead of {n_tokens}")
        return answer.perf_metrics

    def prefill():
        generate(args.prompt, 1)
        return args.prompt / (generate(args.prompt, 1).get_ttft().mean / 1e3)

    def decode():
        generate(SHORT_TOKENS, 4)
        metrics = generate(SHORT_TOKENS, args.generate + 1)
        return 1e3 / metrics.get_tpot().mean

    figures = {f"prefill {args.prompt}": attempt(prefill), "decode batch 1": attempt(decode)}
    return {"version": openvino_version(lib, args), "figures": figures}


def openvino_batching_worker(args):
    import openvino_genai as lib

    prompts = openvino_prompts()
    scheduler = lib.SchedulerConfig()
    scheduler.max_num_batched_tokens = max(512, *args.batch)
    scheduler.max_num_seqs = max(args.batch)
    scheduler.enable_prefix_caching = False
    path, properties = openvino_model(args)
    pipeline = lib.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)
    ids = iter(range(1 << 30))

    def decode(n, n_steps):
        # Some more than are timed, since prompts may take several steps.
        n_tokens = n_steps + n * SHORT_TOKENS // 512 + 4
        config = openvino_config(lib, n_tokens)
        waiting = [
            pipeline.add_request(next(ids), prompts(SHORT_TOKENS), config) for _ in range(n)
        ]
        handles = list(waiting)
        while waiting:
            pipeline.step()
            waiting = [handle for handle in waiting if not handle.can_read()]
        moments = [time.perf_counter()]
        for _ in range(n_steps):
            pipeline.step()
            moments.append(time.perf_counter())
        while pipeline.has_non_finished_requests():
            pipeline.step()
        for handle in handles:
            (output,) = handle.read_all()
            if len(output.generated_ids) != n_tokens:
                n_got = len(output.generated_ids)
                raise RuntimeError(f"it generated {n_got} tokens instead of {n_tokens}")
        return rate(n, moments)

    figures = {}
    for n in args.batch:
        if n > 1:
            attempt(lambda: decode(n, 2))
            figures[f"decode batch {n}"] = attempt(lambda: decode(n, args.generate))
    return {"version": openvino_version(lib, args), "figures": figures}


def attempt(measure_it):
    """Its figure, or why there is none: one that fails leaves the others standing."""
    try:
        return measure_it()
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())


# What it all says.


def summarise(args, engines, rounds):
    figures = {}
    for name in figure_names(args):
        figures[name] = {}
        for engine in engines:
            values = [turn[engine]["figures"][name] for turn in rounds]
            numbers = [value for value in values if not isinstance(value, str)]
            entry = {"rounds": values}
            if numbers:
                entry["median"] = statistics.median(numbers)
                entry["lowest"], entry["highest"] = min(numbers), max(numbers)
            else:
                entry["error"] = values[-1]
            if engine != "pelton" and "pelton" in engines:
                own = [turn["pelton"]["figures"][name] for turn in rounds]
                pairs = [(a, b) for a, b in zip(own, values) if not isinstance(a, str)]
                ratios = [a / b for a, b in pairs if not isinstance(b, str)]
                if ratios:
                    entry["pelton_ratio"] = statistics.median(ratios)
            figures[name][engine] = entry
    return {
        "model": os.path.basename(args.model),
        "isa": args.isa,
        "threads": args.threads,
        "rounds": args.rounds,
        "versions": {engine: rounds[-1][engine]["version"] for engine in engines},
        "figures": figures,
    }


def markdown(result):
    engines = list(result["versions"])
    versions = ", ".join(
        version or f"{engine} (did not start)" for engine, version in result["versions"].items()
    )
    lines = [
        f"`{result['model']}`, {result['threads']} threads"
        + (f", instructions `{result['isa']}`" if result["isa"] else "")
        + f", medians of {result['rounds']} rounds (lowest to highest) in tokens/s; in brackets how "
        "many times as fast Pelton is.",
        f"{versions}.",
        "",
        "| | " + " | ".join(engines) + " |",
        "|---|" + "---|" * len(engines),
    ]
    notes = []

    def note(text):
        if text not in notes:
            notes.append(text)
        return f"note {notes.index(text) + 1}"

    for name, figure in result["figures"].items():
        cells = []
        for engine in engines:
            entry = figure[engine]
            if "median" not in entry:
                cells.append("none, " + note(f"{engine}: {entry['error']}"))
                continue
            cell = f"{entry['median']:.1f} ({entry['lowest']:.1f} to {entry['highest']:.1f})"
            if "pelton_ratio" in entry:
                cell += f" [{entry['pelton_ratio']:.2f}]"
            missing = [value for value in entry["rounds"] if isinstance(value, str)]
            if missing:
                cell += ", " + note(f"{engine}: failed in {len(missing)} rounds: {missing[-1]}")
            cells.append(cell)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", *(f"{i}. {text}" for i, text in enumerate(notes, 1))]
    return "\n".join(lines).rstrip()


def show(figure):
    return figure if isinstance(figure, str) else f"{figure:.1f}"


if __name__ == "__main__":
    main()
