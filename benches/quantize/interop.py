"""Loads what `pelton quantize` writes in the libraries that own the layouts, and compares.

    python3 -m venv target/interop && target/interop/bin/pip install -r benches/quantize/requirements.txt
    target/interop/bin/python demo/folder.py crates/cli/model/story-q8_0.gguf target/story
    target/interop/bin/python benches/quantize/interop.py target/release/pelton target/story book.txt

For each format: Pelton writes it, Pelton and the library generate 64 tokens of six prompts greedily
with f32 arithmetic, activations not rounded on either side. The weights that the library computes from
the files are also written as a folder in f32: the logits that Pelton computes from both folders are
the same to the bit where all weights are (with act-order Pelton sums inputs in another order, which
rounds otherwise). Exit code 1 where tokens differ, or logits by more than rounding.
"""

import argparse
import gc
import importlib.metadata
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch

PROMPTS = [
    "Once upon a time", "The old man looked at the sea and", "\"Where are you going?\" said the",
    "In the morning the children", "There was a knock at the door, and", "It was a dark and stormy",
]
N_TOKENS = 64

# Name, flags of `pelton quantize`, and the package that reads it.
FORMATS = [
    ("rtn-4", ["--method", "rtn", "--group", "32"], "gptqmodel"),
    ("rtn-4-zeros", ["--method", "rtn", "--group", "32", "--asymmetric"], "gptqmodel"),
    ("gptq-4", ["--method", "gptq", "--group", "32"], "gptqmodel"),
    ("gptq-3", ["--method", "gptq", "--group", "32", "--bits", "3"], "gptqmodel"),
    ("gptq-8", ["--method", "gptq", "--group", "128", "--bits", "8"], "gptqmodel"),
    ("gptq-4-act", ["--method", "gptq", "--group", "32", "--act-order"], "gptqmodel"),
    ("gptq-4-kept", ["--method", "gptq", "--group", "32", "--keep", "down_proj"], "gptqmodel"),
    ("awq", ["--method", "awq", "--group", "32"], "gptqmodel"),
    ("mixed-4.5", ["--method", "gptq", "--group", "32", "--target-bpw", "4.5"], "compressed-tensors"),
    ("smoothquant", ["--method", "smoothquant"], "compressed-tensors"),
    ("int8", ["--method", "int8"], "compressed-tensors"),
    ("fp8", ["--method", "fp8"], "compressed-tensors"),
    ("fp8-tensor", ["--method", "fp8", "--group", "tensor"], "compressed-tensors"),
    ("int8-tensor", ["--method", "int8", "--group", "tensor"], "compressed-tensors"),
    ("rtn-4-tensor", ["--method", "rtn", "--group", "tensor"], "gptqmodel"),
    ("fp8-block", ["--method", "fp8", "--group", "128"], "transformers"),
    ("mxfp4", ["--method", "mxfp4"], "compressed-tensors"),
    ("nvfp4", ["--method", "nvfp4"], "compressed-tensors"),
    ("llm-int8", ["--method", "llm-int8"], "bitsandbytes"),
    ("nf4", ["--method", "nf4"], "bitsandbytes"),
    ("hqq-4", ["--method", "hqq"], "hqq"),
    ("hqq-3", ["--method", "hqq", "--bits", "3"], "hqq"),
    ("aqlm-2", ["--method", "aqlm"], "aqlm"),
    ("aqlm-3", ["--method", "aqlm", "--bits", "3"], "aqlm"),
    ("bitnet", ["--method", "bitnet"], "transformers"),
]
# Read by the authors' code, which no package has: --quip-sharp PATH.
QUIP = [
    ("quip-2", ["--method", "quip"], "quip-sharp"),
    ("quip-4", ["--method", "quip", "--bits", "4"], "quip-sharp"),
]
GGUF_TYPES = ["q8_0", "q5_0", "q4_0", "q4_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs"]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def pelton_tokens(pelton, model):
    flags = ["--raw", "--json", "--compute", "f32", "--temperature", "0", "--ignore-eos", "-n", N_TOKENS]
    return [json.loads(run(pelton, "run", "-m", model, *flags, prompt))["tokens"] for prompt in PROMPTS]


def pelton_logits(pelton, model, tokenizer):
    ids = ",".join(str(n) for prompt in PROMPTS for n in tokenizer.encode(prompt).ids)
    flags = ["--all", "--top", "64", "--compute", "f32"]
    return [json.loads(line) for line in run(pelton, "logits", "-m", model, "--tokens", ids, *flags).splitlines()]


def write_plain(folder, model, weights, into):
    """The model as the library computes it, as a folder in f32."""
    from safetensors.torch import save_file

    into.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, into / name)
    config = json.loads((into / "config.json").read_text())
    config.pop("quantization_config")
    (into / "config.json").write_text(json.dumps(config))
    plain = ("embed_tokens.weight", "norm.weight", "layernorm.weight")
    state = {name: value for name, value in model.state_dict().items() if name.endswith(plain)}
    state |= {f"{name}.weight": weight for name, weight in weights.items()}
    state = {name: value.detach().float().contiguous().clone() for name, value in state.items()}
    save_file(state, into / "model.safetensors")


def matrices(model):
    ends = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return {name: module for name, module in model.named_modules() if name.endswith(ends)}


def stored(folder):
    from safetensors.torch import load_file

    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def plain_model(folder, weights):
    """The architecture in f32 with these matrices, and all else as it is stored: for libraries whose own
    products round activations."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = stored(folder)
    state = {name: tensors[name] for name in model.state_dict() if name in tensors}
    state |= {f"{name}.weight": weight for name, weight in weights.items()}
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model


def load(folder, package):
    """The model in transformers, and its matrices as the library computes them, `[n, k]` in f32."""
    from transformers import AutoModelForCausalLM

    if package == "gptqmodel":
        weights = with_gptqmodel(folder)
        return plain_model(folder, weights), weights
    own_code = OWN_CODE.get(folder.name if folder.name == "bitnet" else package)
    if own_code:
        weights = own_code(folder)
        return plain_model(folder, weights), weights
    options = {"dtype": torch.float32, "device_map": "cpu"}
    if package == "transformers":
        from transformers import FineGrainedFP8Config

        options["quantization_config"] = FineGrainedFP8Config(dequantize=True)
    if package == "compressed-tensors" and folder.name in ("mxfp4", "nvfp4"):
        # Otherwise it decompresses to bf16 in the first pass, which f32 inputs do not fit.
        from transformers.utils.quantization_config import CompressedTensorsConfig

        options["quantization_config"] = CompressedTensorsConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(folder, **options)
    if package == "bitsandbytes":
        import bitsandbytes.functional as bnb

        def values(module):
            weight = module.weight
            if getattr(weight, "SCB", None) is not None:
                return bnb.int8_vectorwise_dequant(weight.data, weight.SCB).float()
            return bnb.dequantize_4bit(weight.data, weight.quant_state).float()

        weights = {name: values(module) for name, module in matrices(model).items()}
        return plain_model(folder, weights), weights
    if package == "compressed-tensors":
        # Weights are decompressed in the first pass; afterwards activations stay as they are.
        with torch.no_grad():
            model(torch.tensor([[0]]))
        for module in model.modules():
            module.quantization_enabled = False
    return model, {name: module.weight.detach().float() for name, module in matrices(model).items()}


def with_gptqmodel(folder):
    """By the kernel in torch of the library that transformers calls for GPTQ and AWQ. It computes in f16;
    with scales in f32 the same code computes exact products."""
    from gptqmodel import BACKEND, GPTQModel

    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    backend = BACKEND.AWQ_TORCH if config["quant_method"] == "awq" else BACKEND.GPTQ_TORCH
    model = GPTQModel.load(str(folder), backend=backend, device="cpu", dtype=torch.float16).model
    tensors, weights = stored(folder), {}
    for name, module in matrices(model).items():
        if f"{name}.weight" in tensors:
            weights[name] = tensors[f"{name}.weight"].float()
            continue
        if config["quant_method"] == "awq":
            from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

            args = module.qweight, module.qzeros, module.scales.float(), module.bits, module.group_size
            weights[name] = dequantize_gemm(*args).T.float()
            continue
        module.scales = module.scales.float()
        weights[name] = module.dequantize_weight().T.float()
    return weights


def with_hqq(folder):
    """By the library's own layer from the tensors of the files."""
    from hqq.core.quantize import HQQLinear

    tensors, weights = stored(folder), {}
    for name in sorted({key.rpartition(".")[0] for key in tensors if key.endswith(".W_q")}):
        layer = HQQLinear(None, None, compute_dtype=torch.float32, device="cpu", initialize=False)
        own = {key[len(name) + 1:]: value for key, value in tensors.items() if key.startswith(name + ".")}
        layer.load_state_dict(own)  # which finds `encoded_state_dict` among them
        layer.meta["compute_dtype"] = torch.float32
        layer.meta["scale"], layer.meta["zero"] = layer.meta["scale"].float(), layer.meta["zero"].float()
        weights[name] = layer.dequantize().detach().float()
    return weights


def with_aqlm(folder):
    from aqlm.utils import _dequantize_weight, unpack_int_data

    tensors, weights = stored(folder), {}
    for name in sorted({key.rpartition(".")[0] for key in tensors if key.endswith(".codes")}):
        codes, codebooks, scales = (tensors[f"{name}.{part}"] for part in ("codes", "codebooks", "scales"))
        weights[name] = _dequantize_weight(unpack_int_data(codes, 8), codebooks.float(), scales.float())
    return weights


def with_bitnet(folder):
    from transformers.integrations.bitnet import unpack_weights

    tensors, weights = stored(folder), {}
    for name in sorted({key.rpartition(".")[0] for key in tensors if key.endswith(".weight_scale")}):
        codes = unpack_weights(tensors[f"{name}.weight"], dtype=torch.float32)
        weights[name] = codes * tensors[f"{name}.weight_scale"]
    return weights


def quip_sharp(path):
    """Codebooks and transforms of a checkout of QuIP#'s repository, whose kernels for graphics cards are left out."""
    import importlib.util
    import types

    stubs = {name: types.ModuleType(name) for name in
             ("quiptools_cuda", "fast_hadamard_transform", "lib", "lib.utils", "lib.utils.matmul_had")}
    stubs["lib"].utils, stubs["lib.utils"].clean = stubs["lib.utils"], lambda: None
    stubs["lib.utils.matmul_had"].matmul_hadU_cuda = stubs["lib.utils.matmul_had"].matmul_hadUt_cuda = None
    sys.modules.update(stubs)

    def module(name):
        spec = importlib.util.spec_from_file_location(name.replace("/", "_"), pathlib.Path(path) / f"{name}.py")
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found

    return module("lib/codebook/latticee8_padded12"), module("lib/codebook/latticee8_padded12_rvq4bit"), module(
        "lib/utils/matmul_had")


def quip_indices(codebook, packed):
    """The inverse of the authors' `maybe_pack_idxs`, checked by packing once more."""
    m, n = packed.shape[0], packed.shape[1] * 4
    words = packed.reshape(m // 16, n // 8, 8, 4).transpose(1, 2).reshape(m // 2, n // 2)
    indices = torch.zeros(m // 2, n // 2, 2, 2, dtype=torch.int64)
    for i in range(4):
        indices[:, :, i % 2, i // 2] = ((words >> (8 * i)) & 255) << 8
        for j in range(8):
            indices[:, :, i % 2, i // 2] += ((words >> (32 + 4 * j + i)) & 1) << j
    indices = indices.transpose(1, 2).reshape(m, n)
    assert torch.equal(codebook.maybe_pack_idxs(indices).reshape(packed.shape), packed)
    return indices


def with_quip(folder, coarse, finer, had):
    """The weights that their code computes: what it makes of each input alone."""
    tensors, weights = stored(folder), {}
    book, finer_scale = coarse.E8P12_codebook(), finer.E8P12RVQ4B_codebook(True).opt_resid_scale
    for name in sorted({key.rpartition(".")[0] for key in tensors if key.endswith(".Qidxs")}):
        packed, su, sv, scale = (tensors[f"{name}.{part}"] for part in ("Qidxs", "SU", "SV", "Wscale"))
        k, n = len(su), len(sv)
        parts = [packed] if packed.shape[1] == k // 32 else packed.chunk(2, dim=1)
        inner = sum(
            book.grid[quip_indices(book, part.contiguous())].reshape(n, k) / finer_scale**i
            for i, part in enumerate(parts)
        )
        x = had.matmul_hadUt(torch.eye(k) * su.float())
        weights[name] = ((had.matmul_hadU(x @ inner.T) * sv.float() * scale.float()).T).contiguous()
    return weights


# By package, and BitNet by the name of its folder, because transformers rounds activations to int8 there.
OWN_CODE = {"hqq": with_hqq, "aqlm": with_aqlm, "bitnet": with_bitnet}


def generated(model, tokenizer):
    model.eval()
    answers = []
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt).ids
        tokens = list(ids)
        with torch.no_grad():
            for _ in range(N_TOKENS):
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        answers.append(tokens[len(ids):])
    return answers


def llama_cpp_tokens(file, tokenizer):
    import llama_cpp

    model = llama_cpp.Llama(str(file), n_ctx=256, n_threads=2, verbose=False, logits_all=True)
    answers = []
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt).ids
        model.reset()
        model.eval(ids)
        own = []
        for _ in range(N_TOKENS):
            own.append(int(np.argmax(model.scores[model.n_tokens - 1])))
            model.eval([own[-1]])
        answers.append(own)
    return answers


def first_difference(own, theirs):
    for prompt, (a, b) in enumerate(zip(own, theirs)):
        for at, (x, y) in enumerate(zip(a, b)):
            if x != y:
                return f"prompt {prompt + 1}, token {at + 1}"
    return None


def compare_folder(args, name, flags, package, work, tokenizer):
    folder = work / name
    run(args.pelton, "quantize", args.source, folder, "--calibration", args.text, "--samples", "4", *flags)
    model, weights = load(folder, package)
    plain = work / f"{name}-plain"
    write_plain(folder, model, weights, plain)
    own, theirs = (pelton_logits(args.pelton, path, tokenizer) for path in (folder, plain))
    difference = first_difference(pelton_tokens(args.pelton, folder), generated(model, tokenizer))
    far = 0.0
    for a, b in zip(own, theirs):
        b = dict(b["top"])
        far = max([far] + [abs(logit - b[token]) / abs(logit) for token, logit in a["top"] if token in b])
    return {"n": len(weights), "same": own == theirs, "far": far, "difference": difference}


def compare_gguf(args, kind, work, tokenizer):
    """llama.cpp rounds activations to int8 for its types, so a file in f32 of the same weights is run
    too: Pelton dequantizes the file, and llama.cpp computes with the result."""
    file, plain = work / f"{kind}.gguf", work / f"{kind}-f32.gguf"
    flags = ["--method", "gguf", "--type", kind]
    run(args.pelton, "quantize", args.source, file, *flags)
    import gguf
    from gguf.quants import dequantize

    run(args.pelton, "convert", file, plain, "--format", "f32")
    theirs = {t.name: t for t in gguf.GGUFReader(file).tensors}
    n, is_same = 0, True
    for tensor in gguf.GGUFReader(plain).tensors:
        own = np.array(tensor.data).view(np.float32).reshape(-1)
        value = dequantize(theirs[tensor.name].data, theirs[tensor.name].tensor_type).reshape(-1)
        n, is_same = n + 1, is_same and np.array_equal(own, value.astype(np.float32))
    own = pelton_tokens(args.pelton, file)
    difference = first_difference(own, llama_cpp_tokens(plain, tokenizer))
    loaded = first_difference(own, llama_cpp_tokens(file, tokenizer))
    return {"n": n, "same": is_same, "far": 0.0, "difference": difference, "int8": loaded}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pelton")
    parser.add_argument("source", help="folder in f32 of a Llama-shaped model with tokenizer.json")
    parser.add_argument("text", help="text for the methods that need one")
    parser.add_argument("--only", nargs="*", help="names of formats")
    parser.add_argument("--quip-sharp", help="checkout of the authors' repository")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pathlib.Path(args.source) / "tokenizer.json"))
    work = pathlib.Path(tempfile.mkdtemp())
    formats = FORMATS
    if args.quip_sharp:
        formats, modules = FORMATS + QUIP, quip_sharp(args.quip_sharp)
        OWN_CODE["quip-sharp"] = lambda folder: with_quip(folder, *modules)
    is_bad = False
    cases = [(name, lambda n=name, f=flags, p=package: compare_folder(args, n, f, p, work, tokenizer), package)
             for name, flags, package in formats]
    cases += [(f"gguf {kind}", lambda k=kind: compare_gguf(args, k, work, tokenizer), "llama-cpp-python")
              for kind in GGUF_TYPES]
    print(f"{'format':<14}{'read by':<28}{'tensors':<9}{'same weights':<14}first different token")
    for name, compare, package in cases:
        if args.only and name not in args.only:
            continue
        try:
            version = package if package == "quip-sharp" else f"{package} {importlib.metadata.version(package)}"
            found = compare()
        except Exception as error:  # noqa: BLE001 a library that refuses a file is a result
            print(f"{name:<14}{package:<28}{type(error).__name__}: {str(error)[:300]}", flush=True)
            is_bad = True
            continue
        words = found["difference"] or "none"
        if "int8" in found:
            words += f"; with its own int8 activations: {found['int8'] or 'none'}"
        same = "yes" if found["same"] else f"to {found['far']:.0e}"
        print(f"{name:<14}{version:<28}{found['n']:<9}{same:<14}{words}", flush=True)
        is_bad |= found["difference"] is not None or not (found["same"] or 0.0 < found["far"] < 1e-4)
        gc.collect()
    shutil.rmtree(work)
    sys.exit(1 if is_bad else 0)


if __name__ == "__main__":
    main()
