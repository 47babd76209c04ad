"""Writes stored blocks and digests of what the reference dequantizers make of them.

python3 -m venv venv && venv/bin/pip install gguf==0.19.0 numpy==2.4.6
venv/bin/python make.py

<FORMAT>.bin          256 blocks with finite parameters, 8 bytes of digest after each
<FORMAT>.hostile.bin  64 blocks whose half-precision parameters may be infinite or not a number

A digest is 64-bit FNV-1a, little endian, over the block's weights as little-endian singles; every
NaN counts as 0x7fc00000. Block bytes are random, so that every bit of every field is used; the
parameters of half precision go through the extremes one after the other.
"""

import pathlib

import gguf
import numpy as np

HALVES = [
    0x0000, 0x8000,  # zeros
    0x0001, 0x8001, 0x03FF, 0x83FF,  # subnormal, smallest and largest
    0x0400, 0x8400,  # smallest normal
    0x7BFF, 0xFBFF,  # largest
    0x3C00, 0xBC00, 0x3555, 0x1400,
]  # fmt: skip
HOSTILE = [0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFE00, 0xFFFF, 0x0000, 0x3C00]

# In the upper nibbles of the last four words.
SCATTERED = None

# Where the half-precision parameters of a block lie.
PARAMETERS = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "TQ2_0": [64], "TQ1_0": [52],
    "IQ3_S": [0], "IQ3_XXS": [0], "IQ2_S": [0], "IQ2_XS": [0], "IQ2_XXS": [0], "IQ1_S": [0],
    "IQ1_M": [SCATTERED], "Q8_K": [],
}  # fmt: skip


def digest(weights):
    bits = weights.astype(np.float32).view(np.uint32).copy()
    bits[np.isnan(weights)] = 0x7FC00000
    state = 0xCBF29CE484222325
    for byte in bits.astype("<u4").tobytes():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state.to_bytes(8, "little")


def halves(values, rng, n):
    """The first parameter runs through `values`, the second through pairs with it; then random ones."""
    pairs = [(a, b) for b in values for a in values][:n]
    while len(pairs) < n:
        random = rng.integers(0, 2**16, 2)
        if np.isfinite(random.astype(np.uint16).view(np.float16)).all():
            pairs.append(tuple(random))
    return pairs


def dequantize(blocks, kind):
    if kind == gguf.GGMLQuantizationType.Q8_K:  # which the package knows by size alone
        return blocks[:, :4].copy().view("<f4") * blocks[:, 4:260].view(np.int8).astype(np.float32)
    return gguf.quants.dequantize(blocks, kind)


def write(name, suffix, values, n):
    rng = np.random.default_rng(list(name.encode()))
    kind = gguf.GGMLQuantizationType[name]
    n_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (n, n_bytes), dtype=np.uint8)
    for block, pair in zip(blocks, halves(values, rng, n)):
        for offset, half in zip(PARAMETERS[name], pair):
            if offset is SCATTERED:
                for nibble in range(4):
                    byte = block[-7 + 2 * nibble :][:1]
                    byte[:] = byte & 15 | (int(half) >> 4 * nibble & 15) << 4
            else:
                block[offset : offset + 2] = [half & 255, half >> 8]
    if name == "Q8_K":  # the parameter is of single precision: normal, but for a zero
        blocks[:, 3] = blocks[:, 3] & 0xBF
        blocks[0, :4] = 0
    if name == "MXFP4":  # every factor once
        blocks[:, 0] = np.arange(n)
    with np.errstate(all="ignore"):
        weights = dequantize(blocks, kind)
    records = [block.tobytes() + digest(row) for block, row in zip(blocks, weights)]
    path = pathlib.Path(__file__).parent / f"{name}{suffix}"
    path.write_bytes(b"".join(records))


for name in PARAMETERS:
    write(name, ".bin", HALVES, 256)
    if PARAMETERS[name]:
        write(name, ".hostile.bin", HOSTILE, 64)
