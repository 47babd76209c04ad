"""Makes the fixtures of quantized checkpoints: tiny random models, one per method and variant.

    python crates/model/tests/checkpoints/make.py [name ...]
        (torch, transformers, numpy, safetensors, bitsandbytes, compressed-tensors, hqq, aqlm)

Without names all of them. Run `share.py --whole` before, since fixtures share bytes, and `share.py`
afterwards.

Each fixture is a folder as `golden/make.py` describes it, whose `case.json` also has

    crc32      of the f32 bytes of every quantized matrix, dequantized, by module
    layouts    kernel layouts that the matrices are packed in

A matrix is dequantized here in numpy, from the definition of its method: codes, scales and zero
points are made first, the reference weights are computed from them in f32, and only then are they
packed as the method stores them. bitsandbytes makes its own tensors; they are decoded here from the
stored bytes and compared with the library's own result. compressed-tensors packs the words of
`pack-quantized` and the codes of 4-bit floats. hqq makes its own tensors, which are decoded here from
codes, scales and zero points; what aqlm makes of the tensors here is compared. The codebook, the
packing and the transforms of QuIP#, and the order of Marlin, restate what their authors published.
The reference logits are those of the dequantized model in f32.
"""

import itertools
import json
import pathlib
import sys
import zlib

import bitsandbytes.functional as bnb
import compressed_tensors
import numpy as np
import torch
import transformers

try:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
except ImportError:
    from compressed_tensors.compressors.quantized_compressors.pack_quantized import pack_to_int32

from aqlm.utils import _dequantize_weight, pack_int_data, unpack_int_data
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from fixtures import reference, wanted, write

N_PROMPT, N_GREEDY, VOCAB = 24, 12, 64
HIDDEN, FFN = 64, 128

MODEL = dict(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=FFN,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    bos_token_id=0,
    eos_token_id=1,
    tie_word_embeddings=False,
    rope_parameters=dict(rope_theta=10000.0, rope_type="default"),
)
F16, F32 = np.float16, np.float32


def bf16(x):
    """Rounded to bf16, as f32."""
    return torch.from_numpy(np.ascontiguousarray(x, dtype=F32)).bfloat16().float().numpy()


class Maker:
    """Random numbers of one fixture."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def codes(self, shape, most):
        """Integers from 0 to `most`, the middle ones more likely."""
        x = self.rng.normal((most + 1) / 2, (most + 1) / 4.5, shape)
        return np.clip(np.rint(x), 0, most).astype(np.int64)

    def scales(self, shape, k, spread, dtype=F16):
        """Positive, so that weights have a variance of about 1 / k."""
        x = self.rng.uniform(0.7, 1.4, shape) / spread / k**0.5
        return bf16(x) if dtype == "bf16" else x.astype(dtype)


def affine(codes, scales, zeros, groups):
    """The definition: `scale * (code - zero)`, a group per input; rows are outputs."""
    scale = scales.astype(F32)[:, groups]
    return scale * (codes.astype(F32) - zeros.astype(F32)[:, groups])


def words(bits, codes):
    """Codes of the last axis as a stream of bits in words of 32, low ones first."""
    stream = ((codes[..., None] >> np.arange(bits)) & 1).astype(np.uint8)
    stream = stream.reshape(*codes.shape[:-1], -1)
    return np.packbits(stream, axis=-1, bitorder="little").view(np.uint32).view(np.int32)


def tensor(x):
    return torch.from_numpy(np.ascontiguousarray(x))


def gptq(maker, name, n, k, bits=4, group=32, act=False, sym=False, v2=False):
    size = k if group == -1 else group
    n_groups = -(-k // size)
    groups = np.arange(k) // size
    if act:
        # The projections that read one input share its order; v is made to differ.
        groups = np.random.default_rng(5 if "v_proj" in name else 4).permutation(groups)
    most = 2**bits - 1
    codes = maker.codes((n, k), most)
    middle = (most + 1) // 2
    zeros = maker.rng.integers(1, most + 2, (n, n_groups)) if bits > 2 else maker.codes((n, n_groups), 2) + 1
    zeros = np.full((n, n_groups), middle) if sym else zeros
    if v2:
        zeros = np.minimum(zeros, most)
    scales = maker.scales((n, n_groups), k, (most + 1) / 4)
    stored = {
        "qweight": tensor(words(bits, codes).T),
        "qzeros": tensor(words(bits, (zeros if v2 else zeros - 1).T)),
        "scales": tensor(scales.T),
        "g_idx": tensor(groups.astype(np.int32)),
    }
    return affine(codes, scales, zeros, groups), stored


def awq(maker, name, n, k, group=32):
    groups = np.arange(k) // group
    n_groups = -(-k // group)
    codes, zeros = maker.codes((n, k), 15), maker.rng.integers(0, 16, (n, n_groups))
    scales = maker.scales((n, n_groups), k, 4)

    def pack(x):  # [rows, n] to [rows, n / 8]
        x = x.reshape(x.shape[0], -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
        return words(4, x.reshape(x.shape[0], -1))

    stored = {"qweight": tensor(pack(codes.T)), "qzeros": tensor(pack(zeros.T)), "scales": tensor(scales.T)}
    return affine(codes, scales, zeros, groups), stored


def float8(codes, exponent_bits):
    """What 8-bit floats stand for."""
    mantissa_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    exponent = (codes >> mantissa_bits) & (2**exponent_bits - 1)
    mantissa = (codes & (2**mantissa_bits - 1)) / 2**mantissa_bits
    magnitude = np.where(
        exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias)
    )
    return np.where(codes & 128, -magnitude, magnitude).astype(F32)


def fp8(maker, name, n, k, sharing="tensor", exponent_bits=4, power=False, dtype=F32, suffix="weight_scale"):
    kind = torch.float8_e4m3fn if exponent_bits == 4 else torch.float8_e5m2
    weight = tensor(maker.rng.normal(0, 60, (n, k)).astype(F32)).clamp(-440, 440).to(kind)
    rows, columns = {"tensor": (n, k), "row": (1, k)}.get(sharing, sharing)
    shape = (-(-n // rows), -(-k // columns))
    scales = maker.scales(shape, k, 60, dtype)
    if power:
        scales = (2.0 ** np.rint(np.log2(scales))).astype(F32)
    each = np.repeat(np.repeat(scales, rows, 0)[:n], columns, 1)[:, :k].astype(F32)
    reference = each * float8(weight.view(torch.uint8).numpy().astype(np.int64), exponent_bits)
    stored_scales = tensor(scales).bfloat16() if dtype == "bf16" else tensor(scales)
    if sharing == "tensor":
        stored_scales = stored_scales.reshape(())
    return reference, {"weight": weight, suffix: stored_scales}


def bitsandbytes_4(maker, name, n, k, kind="nf4", nested=False, block=64):
    weight = tensor(maker.rng.normal(0, 0.9 / k**0.5, (n, k)).astype(F32))
    packed, state = bnb.quantize_4bit(
        weight, blocksize=block, compress_statistics=nested, quant_type=kind
    )
    stored = {f"weight.{key}": value.contiguous() for key, value in state.as_dict(packed=True).items()}
    about = json.loads(bytes(stored[f"weight.quant_state.bitsandbytes__{kind}"].tolist()))
    absmax = stored["weight.absmax"].numpy()
    if nested:
        outer = np.repeat(stored["weight.nested_absmax"].numpy(), about["nested_blocksize"])
        table = stored["weight.nested_quant_map"].numpy()
        absmax = table[absmax] * outer[: len(absmax)] + F32(about["nested_offset"])
    flat = packed.numpy().reshape(-1)
    codes = np.stack([flat >> 4, flat & 15], -1).reshape(-1)
    values = stored["weight.quant_map"].numpy()[codes]
    reference = (np.repeat(absmax, about["blocksize"])[: n * k] * values).reshape(n, k)
    if k % block == 0:  # On the CPU the library takes a wrong scale where blocks cross rows.
        library = bnb.dequantize_4bit(packed, state).numpy()
        worst = np.abs(library - reference).max() / np.abs(library).max()
        assert worst < 2e-7, (kind, nested, worst)
    return reference.astype(F32), {"weight": packed, **stored}


def bitsandbytes_8(maker, name, n, k):
    codes = maker.codes((n, k), 254).astype(np.int64) - 127
    largest = maker.scales((n,), k, 0.5, F32)
    reference = (largest / F32(127))[:, None] * codes.astype(F32)
    stored = {
        "weight": tensor(codes.astype(np.int8)),
        "SCB": tensor(largest),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return reference, stored


def pack_padded(x, bits, packed_dim=1):
    """Whole codes in each word, as earlier versions of the library packed them."""
    x, per_word = x.numpy().astype(np.int64) + 2 ** (bits - 1), 32 // bits
    x = x if packed_dim == 1 else x.T
    x = np.pad(x, [(0, 0), (0, -x.shape[1] % per_word)]).reshape(x.shape[0], -1, per_word)
    x = (x << (bits * np.arange(per_word))).sum(-1).astype(np.uint32).view(np.int32)
    return tensor(x if packed_dim == 1 else x.T)


def packed(maker, name, n, k, bits=4, group=32, sym=True, act=False, dtype="bf16", pack=pack_to_int32):
    size = k if group == -1 else group
    n_groups = -(-k // size)
    groups = np.arange(k) // size
    if act:
        groups = np.random.default_rng(4).permutation(groups)
    middle = 2 ** (bits - 1)
    codes = maker.codes((n, k), 2 * middle - 1) - middle
    zeros = np.zeros((n, n_groups), np.int64)
    if not sym:
        zeros = maker.codes((n, n_groups), 2 * middle - 1) - middle
    scales = maker.scales((n, n_groups), k, middle / 2, dtype)
    int8 = lambda x: tensor(x.astype(np.int8))
    stored = {
        "weight_packed": pack(int8(codes), bits),
        "weight_shape": torch.tensor([n, k]),
        "weight_scale": tensor(scales).bfloat16() if dtype == "bf16" else tensor(scales),
    }
    if not sym:
        stored["weight_zero_point"] = pack(int8(zeros), bits, packed_dim=0).contiguous()
    if act:
        stored["weight_g_idx"] = tensor(groups.astype(np.int32))
    return affine(codes, scales, zeros, groups), stored


def int8(maker, name, n, k, sharing="row", sym=True):
    rows = {"row": n, "tensor": 1}[sharing]
    codes = maker.codes((n, k), 254) - 127
    zeros = np.zeros((rows, 1), np.int64) if sym else maker.codes((rows, 1), 100) - 50
    scales = maker.scales((rows, 1), k, 64, F32)
    reference = scales * (codes.astype(F32) - zeros.astype(F32))
    shape = (rows, 1) if sharing == "row" else (1,)
    stored = {"weight": tensor(codes.astype(np.int8)), "weight_scale": tensor(scales.reshape(shape))}
    if not sym:
        stored["weight_zero_point"] = tensor(zeros.astype(np.int8).reshape(shape))
    return reference, stored


def bitnet(maker, name, n, k, divides=True):
    codes = maker.rng.integers(0, 3, (n, k))
    scale = F32(bf16(np.array([maker.rng.uniform(1.0, 1.3) * k**0.5]))[0])
    scale = scale if divides else bf16(np.array([1 / scale]))[0]
    factor = F32(1) / scale if divides else scale
    bytes_ = sum((codes.reshape(4, n // 4, k)[i] << (2 * i)) for i in range(4)).astype(np.uint8)
    stored = {"weight": tensor(bytes_), "weight_scale": tensor(np.array([scale])).bfloat16()}
    return factor * (codes - 1).astype(F32), stored


def hqq(maker, name, n, k, bits=4, group=64, axis=1, dtype=torch.float16, **options):
    linear = torch.nn.Linear(k, n, bias=False)
    linear.weight.data = tensor(maker.rng.normal(0, 0.9 / k**0.5, (n, k)).astype(F32))
    config = BaseQuantizeConfig(nbits=bits, group_size=group, axis=axis, view_as_float=options.get("as_float", False))
    config["weight_quant_params"]["round_zero"] = options.get("round_zero", False)
    config["weight_quant_params"]["optimize"] = not options.get("round_zero", False)
    layer = HQQLinear(linear, config, compute_dtype=dtype, device="cpu")
    stored = {key: value for key, value in layer.state_dict().items() if value is not None}
    meta, codes = layer.meta, layer.W_q.data
    if meta["view_as_float"]:
        codes = codes.view(meta["unpack_view_dtype"])
    codes = Quantizer.unpack[meta["packing"]](codes, dtype=torch.uint8)
    rows = n if group is None else (n * k // group if axis == 1 else group)
    codes = codes[:rows].numpy().astype(F32)
    scale, zero = (meta[part].float().numpy() for part in ("scale", "zero"))
    reference = (scale * (codes - zero)).reshape(n, k)
    # The library rounds the difference and then the product to its type, which is all that differs.
    error = np.abs(layer.dequantize().float().numpy() - reference)
    assert (error <= torch.finfo(dtype).eps * np.abs(reference) + 1e-7).all(), error.max()
    return reference, {key: value.data.contiguous() for key, value in stored.items()}


def aqlm(maker, name, n, k, books=2, bits=8, vector=(1, 8)):
    a, b = vector
    codes = maker.rng.integers(0, 2**bits, (n // a, k // b, books))
    codebooks = maker.rng.normal(0, 1 / books**0.5, (books, 2**bits, a, b)).astype(F16)
    scales = maker.scales((n // a, 1, 1, 1), k, 1)
    total = codebooks[0][codes[..., 0]].astype(F32)
    for book in range(1, books):
        total = total + codebooks[book][codes[..., book]].astype(F32)
    reference = (total * scales.astype(F32)).swapaxes(1, 2).reshape(n, k)
    stored = {
        "codes": pack_int_data(tensor(codes), bits),
        "codebooks": tensor(codebooks),
        "scales": tensor(scales),
    }
    library = _dequantize_weight(
        unpack_int_data(stored["codes"], bits), stored["codebooks"].float(), stored["scales"].float()
    ).numpy()
    assert np.abs(library - reference).max() < 1e-6
    return reference, stored


def e8p():
    """The 65536 vectors of the codebook E8P12."""
    entries = [x for x in itertools.product((1, 3, 5), repeat=8) if sum(np.square(x)) <= 40]
    # Of norm 12: where the three 1s are.
    ones = "123 023 013 012 367 357 347 356 346 345 267 257 247 256 246 245 167 157 147 156 146 045 067 057 047 056 046 014 237"
    ones_of = lambda text: [1 if str(i) in text else 3 for i in range(8)]
    entries = np.array(entries + [ones_of(text) for text in ones.split()]) / 2
    assert len(entries) == 256
    packed = entries[:, [0, 2, 4, 6, 1, 3, 5, 7]]
    packed[:, 7] *= 1 - 2 * (packed.sum(1) % 2)
    codes = np.arange(1 << 16)
    signs = ((codes[:, None] >> np.arange(8)) & 1).astype(np.int64)
    parity = signs.sum(1) % 2
    signs[:, 0] ^= parity
    slots = [0, 4, 1, 5, 2, 6, 3, 7]
    values = packed[codes >> 8][:, slots] * (1 - 2 * signs[:, slots])
    return values + np.where(parity, -0.25, 0.25)[:, None]


def e8p_words(codes):
    """Codes `[m, k / 8]` as words `[m, k / 32]`."""
    m, n = codes.shape
    pairs = codes.reshape(m // 2, 2, n // 2, 2).swapaxes(1, 2).astype(np.uint64)
    words = np.zeros((m // 2, n // 2), np.uint64)
    for i in range(4):
        code = pairs[:, :, i % 2, i // 2]
        words |= (code >> np.uint64(8)) << np.uint64(8 * i)
        for j in range(8):
            words |= ((code >> np.uint64(j)) & np.uint64(1)) << np.uint64(32 + 4 * j + i)
    words = words.reshape(m // 16, 8, n // 8, 4).swapaxes(1, 2)
    return words.reshape(m, n // 4).view(np.int64)


def hadamard(n):
    """Sylvester's times, where 12 or 20 divides the width, Paley's."""
    order = next((order for order in (20, 12) if n % order == 0), 1)
    factor = np.ones((order, order))
    if order > 1:
        squares = {x * x % (order - 1) for x in range(1, order - 1)}
        factor[0, 1:] = -1
        for i in range(1, order):
            for j in range(1, order):
                factor[i, j] = 1 if i == j else -1 if (j - i) % (order - 1) in squares else 1
    rest = np.ones((1, 1))
    while len(rest) * order < n:
        rest = np.block([[rest, rest], [rest, -rest]])
    assert len(rest) * order == n
    return np.kron(factor, rest), np.kron(factor.T, rest)


def e81b():
    """The 256 vectors of the codebook E81B: 0, the shortest vectors of E8, 15 of norm 4."""
    integers = itertools.product((-1, 0, 1), repeat=8)
    short = [x for x in integers if sum(np.square(x)) <= 2 and sum(x) % 2 == 0]
    halves = itertools.product((-0.5, 0.5), repeat=8)
    short += [x for x in halves if sum(x) % 2 == 0]
    long = [[2 * sign * (i == j) for j in range(8)] for sign in (1, -1) for i in range(8)]
    grid = np.array(short + long[:15])
    assert grid.shape == (256, 8)
    return grid


def e81b_words(codes):
    """Codes `[m, k / 8]` as words `[m, k / 64]`."""
    return codes.astype(np.uint8).view(np.int64)


def quip_module(maker, n, k, books, sizes, rescale):
    """Several projections of `sizes` outputs as one module."""
    is_3 = books == 1.5
    codes = maker.rng.integers(0, 1 << 16, (int(books), n, k // 8))
    words = [e8p_words(book) for book in codes]
    grid = e8p()[codes].reshape(int(books), n, k)
    if is_3:
        finer = maker.rng.integers(0, 256, (n, k // 8))
        words.append(e81b_words(finer))
        grid = grid[0] + e81b()[finer].reshape(n, k) / 2.04
    else:
        grid = grid[0] if books == 1 else grid[0] + grid[1] / 3.45
    sign = lambda length: np.where(maker.rng.integers(0, 2, length), 1.0, -1.0)
    su = (sign(k) * maker.rng.uniform(0.8, 1.2, k)).astype(F16)
    sv = (sign(n) * maker.rng.uniform(0.5, 1.0, n) / k**0.5).astype(F16)
    scale = F32(maker.rng.uniform(0.6, 0.9))
    divisors = maker.rng.uniform(0.8, 1.2, k).astype(F16) if rescale else np.ones(k, F16)
    factors = maker.rng.uniform(0.7, 1.4, len(sizes)).astype(F32) if len(sizes) > 1 else np.ones(1, F32)
    left, right = hadamard(n)[0], hadamard(k)[1]
    # As the library multiplies: activations by `right`, then by the codes, then by `left`.
    transformed = left @ (grid @ right).astype(F32).astype(np.float64)
    weights = transformed / np.sqrt(float(n) * float(k)) * su.astype(np.float64) * sv.astype(np.float64)[:, None]
    weights = weights * np.float64(scale) * np.repeat(factors.astype(np.float64), sizes)[:, None]
    weights = (weights / divisors.astype(np.float64)).astype(F32)
    stored = {
        "Qidxs": tensor(np.concatenate(words, -1)),
        "SU": tensor(su),
        "SV": tensor(sv),
        "Wscale": torch.tensor(scale),
        "codebook_id": torch.tensor({1: 7, 1.5: 18, 2: 17}[books]),
    }
    if rescale:
        stored["scaleWH"] = tensor(divisors)
    if len(sizes) > 1:
        stored["fuse_scales"] = tensor(factors)
    return np.split(weights, np.cumsum(sizes)[:-1]), stored


FUSED = dict(q_proj="qkv_proj", k_proj="qkv_proj", v_proj="qkv_proj", up_proj="upgate_proj", gate_proj="upgate_proj")


def quip(maker, name, n, k, books=1, fused=False, rescale=False):
    own = name.split(".")[-2]
    if not fused or own not in FUSED:
        (weights,), stored = quip_module(maker, n, k, books, [n], rescale)
        return weights, stored
    # What is named first makes the module, and the others take theirs of it.
    module, made = FUSED[own], maker.__dict__.setdefault("made", {})
    order = dict(qkv_proj=["q_proj", "k_proj", "v_proj"], upgate_proj=["up_proj", "gate_proj"])[module]
    if module in made:
        return made[module][own], {}
    sizes = [n] * len(order) if module == "upgate_proj" else [n, n // 2, n // 2]
    weights, stored = quip_module(maker, sum(sizes), k, books, sizes, rescale)
    made[module] = dict(zip(order, weights))
    return made[module][own], {f"../{module}.{suffix}": value for suffix, value in stored.items()}


def marlin(maker, name, n, k, group=32):
    """The order of the Marlin kernel."""
    size = k if group == -1 else group
    groups, codes = np.arange(k) // size, maker.codes((n, k), 15)
    scales = maker.scales((n, -(-k // size)), k, 4)
    order = []
    for thread in range(32):
        rows = [2 * (thread % 4) + row for row in (0, 1, 8, 9)]
        eight = [16 * row + thread // 4 + 8 * block for block in (0, 1) for row in rows]
        order += [place + 256 * tile for tile in range(4) for place in eight]
    order = np.array(order).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].ravel()
    tiles = codes.T.reshape(k // 16, 16, n // 16, 16).swapaxes(1, 2).reshape(-1, 1024)
    each = [i + 8 * j for i in range(8) for j in range(8)]
    if size == k:
        each = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    stored = {
        "B": tensor(words(4, tiles[:, order].reshape(k // 16, n * 16))),
        "s": tensor(scales.T.reshape(-1, len(each))[:, each].reshape(-1, n)),
        "workspace": torch.zeros(n // 128 * 16, dtype=torch.int32),
    }
    return affine(codes, scales, np.full(scales.shape, 8), groups), stored


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F32)


def fp4(maker, name, n, k, group=16, divisor=None):
    codes = maker.rng.integers(0, 16, (n, k))
    stored = {"weight_packed": pack_fp4_to_uint8(tensor(E2M1[codes]))}
    if group == 16:
        divisor = F32(divisor or maker.rng.uniform(300, 900))
        scale = tensor(maker.scales((n, k // 16), k, 2.5, F32) * divisor).to(torch.float8_e4m3fn)
        factors = float8(scale.view(torch.uint8).numpy().astype(np.int64), 4) / divisor
        stored |= {"weight_scale": scale, "weight_global_scale": torch.tensor([divisor])}
    else:
        powers = maker.rng.integers(121, 125, (n, k // 32))
        factors = (2.0 ** (powers - 127)).astype(F32)
        stored["weight_scale"] = tensor(powers.astype(np.uint8))
    return np.repeat(factors, group, 1) * E2M1[codes], stored


def sparse(maker, name, n, k, is_fp8=False):
    """Two of each four weights, and bits that say which."""
    kept = np.argsort(maker.rng.random((n, k // 4, 4)), -1)[..., :2]
    mask = np.zeros((n, k // 4, 4), bool)
    np.put_along_axis(mask, kept, True, -1)
    mask = mask.reshape(n, k)
    if is_fp8:
        weights, stored = fp8(maker, name, n, k, sharing="row", dtype="bf16")
        dense = stored.pop("weight").view(torch.uint8)
        compressed = dense[tensor(mask)].reshape(n, k // 2).view(torch.float8_e4m3fn)
    else:
        weights, stored = bf16(maker.rng.normal(0, 1.2 / k**0.5, (n, k))), {}
        compressed = tensor(weights[mask].reshape(n, k // 2)).bfloat16()
    stored["compressed"] = compressed
    stored["bitmask"] = tensor(np.packbits(mask, -1, bitorder="little"))
    stored["shape"] = torch.tensor([[n], [k]])
    return np.where(mask, weights, F32(0)), stored


def mixed(maker, name, n, k):
    """Attention in 4 bits, the rest in 8."""
    return packed(maker, name, n, k) if "self_attn" in name else int8(maker, name, n, k)


def compressed(format, weights, inputs=None):
    group = dict(targets=["Linear"], weights=weights, input_activations=inputs, output_activations=None)
    return dict(
        quant_method="compressed-tensors",
        format=format,
        config_groups=dict(group_0=group),
        ignore=["lm_head"],
        quantization_status="compressed",
    )


def ct_int(bits, strategy, group=None, sym=True, actorder=None):
    return dict(num_bits=bits, type="int", strategy=strategy, group_size=group, symmetric=sym, actorder=actorder)


# name: (function, its arguments, quantization_config, layouts)
G = dict(quant_method="gptq", checkpoint_format="gptq")
BNB = dict(quant_method="bitsandbytes")
NF4 = BNB | dict(load_in_4bit=True, load_in_8bit=False)
CT_FP8 = dict(num_bits=8, type="float", symmetric=True)
TOKEN = dict(num_bits=8, type="float", strategy="token", dynamic=True, symmetric=True)
CASES = {
    "gptq-4": (gptq, {}, G | dict(bits=4, group_size=32, desc_act=False, sym=False), ["int4-g32"]),
    "gptq-4-act": (
        gptq, dict(act=True), G | dict(bits=4, group_size=32, desc_act=True, sym=False), ["int4-g32"],
    ),
    "gptq-4-row": (
        gptq, dict(group=-1, sym=True), G | dict(bits=4, group_size=-1, desc_act=False, sym=True),
        ["int4-g128", "int4-g64"],
    ),
    "gptq-2": (
        gptq, dict(bits=2, group=64), G | dict(bits=2, group_size=64, desc_act=False, sym=False), ["affine2-g64"],
    ),
    "gptq-3-v2": (
        gptq, dict(bits=3, v2=True),
        G | dict(bits=3, group_size=32, desc_act=False, sym=False, checkpoint_format="gptq_v2"), ["int4-g32"],
    ),
    "gptq-8-sym": (
        gptq, dict(bits=8, sym=True), G | dict(bits=8, group_size=32, desc_act=False, sym=True), ["q8"],
    ),
    "gptq-8-act": (
        gptq, dict(bits=8, act=True, v2=True),
        G | dict(bits=8, group_size=32, desc_act=True, sym=False, checkpoint_format="gptq_v2"), ["affine8-g32"],
    ),
    "awq-g32": (
        awq, {}, dict(quant_method="awq", bits=4, group_size=32, version="gemm", zero_point=True), ["int4-g32"],
    ),
    "awq-g64": (
        awq, dict(group=64), dict(quant_method="awq", w_bit=4, q_group_size=64, version="GEMM", zero_point=True),
        ["int4-g64"],
    ),
    "fp8-tensor": (fp8, {}, dict(quant_method="fp8", activation_scheme="static"), ["fp8-e4m3"]),
    "fp8-row": (
        fp8, dict(sharing="row", dtype="bf16"), dict(quant_method="fbgemm_fp8", activation_scale_ub=1200.0),
        ["fp8-e4m3"],
    ),
    "fp8-e5m2": (
        fp8, dict(exponent_bits=5), dict(quant_method="fp8", activation_scheme="dynamic", fmt="e5m2"), ["fp8-e5m2"],
    ),
    "fp8-block": (
        fp8, dict(sharing=(24, 48), suffix="weight_scale_inv"),
        dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[24, 48]), ["fp8-e4m3"],
    ),
    "fp8-block-power": (
        fp8, dict(sharing=(32, 32), suffix="weight_scale_inv", power=True),
        dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[32, 32], scale_fmt="ue8m0"),
        ["fp8-e4m3"],
    ),
    "bnb-nf4": (bitsandbytes_4, {}, NF4, ["nf4"]),
    "bnb-nf4-nested": (bitsandbytes_4, dict(nested=True), NF4 | dict(bnb_4bit_use_double_quant=True), ["nf4"]),
    "bnb-fp4": (bitsandbytes_4, dict(kind="fp4", block=128), NF4, ["fp4"]),
    "bnb-int8": (bitsandbytes_8, {}, BNB | dict(load_in_8bit=True), ["int8-row"]),
    "ct-w4a16": (packed, {}, compressed("pack-quantized", ct_int(4, "group", 32)), ["int4-g32"]),
    "ct-w4a16-asym": (
        packed, dict(sym=False, group=-1), compressed("pack-quantized", ct_int(4, "channel", sym=False)),
        ["int4-g128", "int4-g64"],
    ),
    "ct-w4a16-act": (
        packed, dict(act=True, dtype=F16),
        compressed("pack-quantized", ct_int(4, "group", 32, actorder="group")), ["int4-g32"],
    ),
    "ct-w3a16": (
        packed, dict(bits=3, sym=False), compressed("pack-quantized", ct_int(3, "group", 32, sym=False)), ["int4-g32"],
    ),
    "ct-w3a16-padded": (
        packed, dict(bits=3, sym=False, pack=pack_padded),
        compressed("pack-quantized", ct_int(3, "group", 32, sym=False)), ["int4-g32"],
    ),
    "ct-w6a16": (packed, dict(bits=6), compressed("pack-quantized", ct_int(6, "group", 32)), ["q8"]),
    "ct-w8a16": (packed, dict(bits=8), compressed("pack-quantized", ct_int(8, "group", 32)), ["q8"]),
    "ct-w8a8": (
        int8, {},
        compressed("int-quantized", ct_int(8, "channel"), dict(num_bits=8, type="int", strategy="token", dynamic=True)),
        ["int8-row"],
    ),
    "ct-w8a8-asym": (
        int8, dict(sharing="tensor", sym=False), compressed("int-quantized", ct_int(8, "tensor", sym=False)),
        ["affine8-g32-f32"],
    ),
    "ct-fp8": (
        fp8, dict(sharing="row"), compressed("float-quantized", CT_FP8 | dict(strategy="channel"), TOKEN), ["fp8-e4m3"],
    ),
    "ct-fp8-block": (
        fp8, dict(sharing=(32, 64)),
        compressed("naive-quantized", CT_FP8 | dict(strategy="block", block_structure=[32, 64]), TOKEN),
        ["fp8-e4m3"],
    ),
    "bitnet": (bitnet, {}, dict(quant_method="bitnet", modules_to_not_convert=["lm_head"]), ["affine4-g32-f32"]),
    "bitnet-auto": (
        bitnet, dict(divides=False),
        dict(quant_method="bitnet", linear_class="autobitlinear", quantization_mode="offline"),
        ["affine2-g64"],
    ),
}

HQQ = lambda **weights: dict(quant_method="hqq", quant_config=dict(weight_quant_params=weights), skip_modules=["lm_head"])
QUIP = dict(codebook="E8P12", codebook_version=1, codesz=8, idx_dtype="torch.int64", packsz=4, lora_rank=0)
SPARSE = dict(format="sparse-24-bitmask", targets=["Linear"], ignore=["lm_head"], sparsity_structure="2:4")
FP4 = dict(num_bits=4, type="float", symmetric=True)
CASES |= {
    "hqq-4": (hqq, {}, HQQ(nbits=4, group_size=64, axis=1), ["affine4-g64"]),
    "hqq-4-round": (hqq, dict(round_zero=True), HQQ(nbits=4, group_size=64, axis=1), ["int4-g64"]),
    "hqq-4-bf16": (hqq, dict(dtype=torch.bfloat16), HQQ(nbits=4, group_size=64, axis=1), ["affine4-g64"]),
    "hqq-4-f32": (hqq, dict(dtype=torch.float32, group=32), HQQ(nbits=4, group_size=32, axis=1), ["affine4-g32-f32"]),
    "hqq-3-row": (hqq, dict(bits=3, group=32), HQQ(nbits=3, group_size=32, axis=1), ["affine4-g32"]),
    "hqq-2-row": (hqq, dict(bits=2, group=16), HQQ(nbits=2, group_size=16, axis=1), ["affine2-g16"]),
    "hqq-3": (hqq, dict(bits=3, axis=0), HQQ(nbits=3, group_size=64, axis=0), ["f32"]),
    "hqq-2": (hqq, dict(bits=2, group=16, axis=0, as_float=True), HQQ(nbits=2, group_size=16, axis=0), ["f32"]),
    "hqq-8": (hqq, dict(bits=8, group=None), HQQ(nbits=8, group_size=None, axis=1), ["affine8-g32"]),
    "hqq-1": (hqq, dict(bits=1, group=32), HQQ(nbits=1, group_size=32, axis=1), ["affine2-g16"]),
    "aqlm-2x8": (
        aqlm, {}, dict(quant_method="aqlm", in_group_size=8, out_group_size=1, num_codebooks=2,
                       nbits_per_codebook=8, linear_weights_not_to_quantize=["lm_head.weight"]), ["f32"],
    ),
    "aqlm-1x9": (
        aqlm, dict(books=1, bits=9, vector=(2, 4)),
        dict(quant_method="aqlm", in_group_size=4, out_group_size=2, num_codebooks=1, nbits_per_codebook=9), ["f32"],
    ),
    "quip": (quip, {}, dict(quant_method="quip", codebook="E8P12"), ["f32"]),
    "quip-fused": (
        quip, dict(fused=True, rescale=True), dict(quip_params=QUIP | dict(rescale_WH=True, resid_scale_override=-1)),
        ["f32"], dict(hidden_size=192, intermediate_size=320, num_attention_heads=6, num_key_value_heads=3),
    ),
    "quip-4": (
        quip, dict(books=2), dict(quant_method="quip", codebook="E8P12RVQ4B", resid_scale_override=-1.0), ["f32"],
    ),
    "quip-3": (
        quip, dict(books=1.5, fused=True), dict(quip_params=QUIP | dict(codebook="E8P12RVQ3B", codebook_version=0)), ["f32"],
    ),
    "marlin": (
        marlin, {}, dict(quant_method="marlin", bits=4, group_size=32), ["int4-g32"], dict(num_key_value_heads=2),
    ),
    "gptq-4-marlin": (
        marlin, dict(group=-1), G | dict(bits=4, group_size=-1, desc_act=False, sym=True, is_marlin_format=True),
        ["int4-g128", "int4-g64"], dict(num_key_value_heads=2),
    ),
    "ct-nvfp4": (
        fp4, {}, compressed("nvfp4-pack-quantized", FP4 | dict(strategy="tensor_group", group_size=16)), ["nvfp4"],
    ),
    "ct-mxfp4": (
        fp4, dict(group=32), compressed("mxfp4-pack-quantized", FP4 | dict(strategy="group", group_size=32)), ["mxfp4"],
    ),
    "ct-sparse": (
        sparse, {}, dict(quant_method="compressed-tensors", format="dense", sparsity_config=SPARSE, ignore=["lm_head"]),
        ["bf16"],
    ),
    "ct-sparse-fp8": (
        sparse, dict(is_fp8=True),
        compressed("float-quantized", CT_FP8 | dict(strategy="channel"), TOKEN) | dict(sparsity_config=SPARSE),
        ["fp8-e4m3"],
    ),
    "ct-mixed": (
        mixed, {},
        compressed("mixed-precision", {}) | dict(
            config_groups=dict(
                group_0=dict(targets=["Linear"], weights=ct_int(8, "channel"), format="int-quantized"),
                group_1=dict(
                    targets=["re:.*self_attn.[qkvo]_proj$"], weights=ct_int(4, "group", 32), format="pack-quantized"
                ),
            ),
            ignore=["re:.*lm_head"],
        ),
        ["int4-g32", "int8-row"],
    ),
}


@torch.no_grad()
def make(make_matrix, arguments, seed, model):
    """A model with its stored tensors, checksums and what it computes."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(**model, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config).eval()
    maker, stored, checksums = Maker(seed), {}, {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("proj.weight"):
                module = name.removesuffix(".weight")
                weight, tensors = make_matrix(maker, name, *parameter.shape, **arguments)
                assert weight.dtype == F32 and weight.shape == tuple(parameter.shape), name
                parameter.copy_(tensor(weight))
                for suffix, value in tensors.items():
                    stem = module
                    if suffix.startswith("../"):  # Of a module beside this one.
                        stem, suffix = module.rpartition(".")[0], suffix.removeprefix("../")
                    stored[f"{stem}.{suffix}"] = value.contiguous()
                checksums[module] = zlib.crc32(np.ascontiguousarray(weight).tobytes())
                continue
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, 1.0 if "embed" in name else 0.9 / config.hidden_size**0.5)
            parameter.copy_(parameter.bfloat16().float())
            stored[name] = parameter.bfloat16()
    return stored, checksums, *reference(model, VOCAB, N_PROMPT, N_GREEDY, seed)


def main():
    torch.set_num_threads(1)
    for name in wanted(CASES):
        make_matrix, arguments, quantization, layouts, *other = CASES[name]
        model = MODEL | (other[0] if other else {})
        for seed in range(100, 400):
            stored, checksums, rows, margin = make(make_matrix, arguments, seed, model)
            if margin > 0.01:
                break
        else:
            raise SystemExit(f"{name}: no seed without a near tie")
        config = transformers.LlamaConfig(**model)
        config.architectures = ["LlamaForCausalLM"]
        is_own = "quip_params" in quantization
        quantization = quantization if is_own else dict(quantization_config=quantization)
        text = json.loads(config.to_json_string()) | quantization
        case = dict(seed=seed, max_context=None, layouts=layouts, crc32=checksums)
        write(HERE / name, text, stored, rows, case)
        largest = rows["logits"].abs().max()
        print(f"{name}: seed {seed}, margin {margin:.4f}, largest logit {largest:.2f}")
    versions = dict(
        torch=torch.__version__,
        transformers=transformers.__version__,
        compressed_tensors=compressed_tensors.__version__,
        bitsandbytes=__import__("bitsandbytes").__version__,
        hqq=__import__("hqq").__version__,
        aqlm="1.1.7",
    )
    (HERE / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
