"""Compares Pelton's solvers with those of ggml (llama.cpp) and gptqmodel on the same weights and texts.

    target/interop/bin/python benches/quantize/reference.py target/release/pelton target/story \
        great-expectations.txt sherlock-holmes.txt

GGUF: each matrix of a file that Pelton writes, beside what `ggml_quantize_chunk` of the library in
llama-cpp-python makes of the same f32 rows, with the same importance matrix for the types that have one:
bytes that are equal, and the squared error weighed by the importance (Pelton's over ggml's).

Folders: GPTQ and AWQ with 4 bits in groups of 32 by both, from the same 64 windows of 512 tokens of the
first text. The error of matrices, which AWQ scales each in its own way, is |(W - Q) X|^2 / |W X|^2 with
the original model's inputs X on the second text, mean over all of them; the error of decoder layers is the
same of what a layer adds to its input; the divergence is that of `pelton eval` on the first 6,000 tokens.
"""

import argparse
import ctypes
import importlib.metadata
import json
import os
import pathlib
import subprocess
import tempfile

import gguf
import numpy as np
from gguf.quants import dequantize

PLAIN = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"]
WEIGHED = ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs"]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def ggml():
    import llama_cpp

    found = sorted(pathlib.Path(llama_cpp.__file__).parent.glob("lib/libggml-base.so*"))
    library = ctypes.CDLL(str(found[0]))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
        ctypes.c_void_p,
    ]
    return library


def by_ggml(library, kind, values, importance, n_bytes):
    values, out = np.ascontiguousarray(values, np.float32), np.zeros(n_bytes, np.uint8)
    weights = None if importance is None else np.ascontiguousarray(importance, np.float32).ctypes.data
    n = library.ggml_quantize_chunk(
        int(kind), values.ctypes.data, out.ctypes.data, 0, values.shape[0], values.shape[1], weights
    )
    assert n == n_bytes, f"{n} bytes for {n_bytes}"
    return out


def importance_of(file):
    sums, counts = {}, {}
    for tensor in gguf.GGUFReader(file).tensors:
        name, _, part = tensor.name.rpartition(".")
        {"in_sum2": sums, "counts": counts}[part][name] = np.array(tensor.data).reshape(-1).astype(np.float32)
    return {name: sums[name] / counts[name][0] for name in sums}


def compare_gguf(args, work):
    library = ggml()
    plain = work / "plain.gguf"
    run(args.pelton, "convert", args.source, plain, "--format", "f32")
    source = {t.name: np.array(t.data).view(np.float32) for t in gguf.GGUFReader(plain).tensors}
    imatrix, importance = work / "imatrix.gguf", {}
    print(f"ggml of llama-cpp-python {importlib.metadata.version('llama-cpp-python')}")
    print(f"{'type':<10}{'matrices':<10}{'equal bytes':<13}weighted error, Pelton / ggml: all, worst matrix")
    for kind in PLAIN + WEIGHED:
        file, flags = work / f"{kind}.gguf", []
        if kind in WEIGHED:
            flags = ["--imatrix", imatrix]
            if not importance:
                flags = ["--calibration", args.seen, "--samples", "64", "--save-imatrix", imatrix]
        run(args.pelton, "quantize", args.source, file, "--method", "gguf", "--type", kind, *flags)
        importance = importance or (importance_of(imatrix) if kind in WEIGHED else {})
        wanted = gguf.GGMLQuantizationType[kind.upper()]
        n, n_equal, ours, theirs, worst = 0, 0, 0.0, 0.0, 0.0
        for tensor in gguf.GGUFReader(file).tensors:
            if tensor.tensor_type != wanted:
                continue
            values = source[tensor.name].reshape(tuple(int(x) for x in reversed(tensor.shape)))
            weights = importance.get(tensor.name)
            if kind in WEIGHED and weights is None:
                continue
            own = np.array(tensor.data).view(np.uint8).reshape(-1)
            other = by_ggml(library, wanted, values, weights, own.size)
            n, n_equal = n + 1, n_equal + np.array_equal(own, other)

            def error(data):
                delta = dequantize(data.reshape(values.shape[0], -1), wanted).reshape(values.shape) - values
                return float((delta.astype(np.float64) ** 2 * (1.0 if weights is None else weights)).sum())

            a, b = error(own), error(other)
            ours, theirs, worst = ours + a, theirs + b, max(worst, a / b if b else 1.0)
        print(f"{kind:<10}{n:<10}{n_equal:<13}{ours / theirs if theirs else 1.0:.4f}, {worst:.4f}", flush=True)


def windows(source, text, n, length):
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(f"{source}/tokenizer.json").encode(pathlib.Path(text).read_text()).ids
    return [ids[start:start + length] for start in range(0, len(ids) - length, length)][:n]


def layer_errors(source, folders, texts):
    """Mean relative error of outputs, with the inputs that the original model has."""
    import torch
    from transformers import AutoModelForCausalLM

    import interop

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    sums = {name: 0.0 for name in interop.matrices(model)}

    def gather(name):
        def hook(_, inputs):
            x = inputs[0].reshape(-1, inputs[0].shape[-1]).double()
            sums[name] = sums[name] + x.T @ x
        return hook

    for name, module in interop.matrices(model).items():
        module.register_forward_pre_hook(gather(name))
    with torch.no_grad():
        for ids in texts:
            model(torch.tensor([ids]))
    original = {name: module.weight.detach().double() for name, module in interop.matrices(model).items()}

    def energy(rows, hessian):
        return float(((rows @ hessian) * rows).sum())

    found = []
    for folder in folders:
        weights = interop.with_gptqmodel(folder)
        shares = [
            energy(weights[name].double() - w, sums[name]) / energy(w, sums[name]) for name, w in original.items()
        ]
        found.append(sum(shares) / len(shares))
    return found


def block_errors(source, folders, texts):
    """Mean relative error of what whole decoder layers add to their input, with the inputs that the
    original model has."""
    import torch
    from transformers import AutoModelForCausalLM

    import interop

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    others = [interop.plain_model(folder, interop.with_gptqmodel(folder)).eval() for folder in folders]
    n_layers = len(model.model.layers)
    errors, sizes = np.zeros((len(folders), n_layers)), np.zeros(n_layers)

    def compare(i):
        def hook(_, args, kwargs, output):
            rows = args[0] if args else kwargs["hidden_states"]
            first = lambda found: (found[0] if isinstance(found, tuple) else found).double()
            sizes[i] += float(((first(output) - rows) ** 2).sum())
            for j, other in enumerate(others):
                found = other.model.layers[i](*args, **kwargs)
                errors[j, i] += float(((first(found) - first(output)) ** 2).sum())
        return hook

    for i, layer in enumerate(model.model.layers):
        layer.register_forward_hook(compare(i), with_kwargs=True)
    with torch.no_grad():
        for ids in texts:
            model(torch.tensor([ids]), use_cache=False)
    return [float(shares.mean()) for shares in errors / sizes]


def divergence(args, folder):
    command = ["eval", folder, "--reference", args.source, "--text", args.held_out, "--limit", "6000"]
    report = json.loads(run(args.pelton, *command, "--compute", "f32", "--json"))
    return report["against"]["kl_divergence"]["value"]


def compare_folders(args, work):
    # On two processors gptqmodel takes one, and then asks for a second.
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", str(max(2, os.cpu_count() or 1)))
    import torch
    from gptqmodel import GPTQModel, QuantizeConfig

    torch.set_num_threads(2)
    seen = windows(args.source, args.seen, 64, 512)
    for method in args.methods:
        own, theirs = work / f"{method}-own", work / f"{method}-theirs"
        run(args.pelton, "quantize", args.source, own, "--method", method, "--group", "32",
            "--calibration", args.seen, "--samples", "64")
        config = QuantizeConfig(bits=4, group_size=32, sym=method == "gptq", desc_act=False,
                                **({"quant_method": "awq", "format": "gemm"} if method == "awq" else {}))
        # Its AWQ writes no other floats than those of 16 bits.
        dtype = torch.float32 if method == "gptq" else torch.float16
        model = GPTQModel.load(args.source, config, device="cpu", dtype=dtype)
        model.quantize([{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in seen], batch_size=4)
        model.save(str(theirs))
        version = f"gptqmodel {importlib.metadata.version('gptqmodel')}"

        def show(words, a, b):
            print(f"{method}: {words} {a:.5f}, {version} {b:.5f}: {100 * (a / b - 1):+.1f} %", flush=True)

        texts = windows(args.source, args.held_out, 12, 512)
        if method == "gptq":
            show("error of matrices", *layer_errors(args.source, [own, theirs], texts))
        show("error of decoder layers", *block_errors(args.source, [own, theirs], texts))
        show("KL divergence", divergence(args, own), divergence(args, theirs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pelton")
    parser.add_argument("source", help="folder in f32 of a Llama-shaped model with tokenizer.json")
    parser.add_argument("seen", help="text for the calibration")
    parser.add_argument("held_out", help="text for the errors")
    parser.add_argument("--only", choices=["gguf", "folders"])
    parser.add_argument("--methods", nargs="+", choices=["gptq", "awq"], default=["gptq", "awq"],
                        help="of folders")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        if args.only != "folders":
            compare_gguf(args, work)
        if args.only != "gguf":
            compare_folders(args, work)


if __name__ == "__main__":
    main()
