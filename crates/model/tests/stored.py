"""How the bytes of `model.safetensors` are stored: drawn again, or in parts that several fixtures share.

A folder that has no `model.safetensors` has `weights.json`:

    bytes, crc32   of that file
    seed           of the numbers that are drawn, where there are any
    parts          one after the other; either `[file, first byte, bytes]`, where `file` is relative to
                   this folder and holds the bytes as they are, or `[first, n, low, high]`: `n` numbers
                   in bf16 that are drawn from the seed, see `drawn`

`weights.bin` has the bytes of the folder that are neither drawn nor in another folder.
`pelton_testkit::golden` puts the parts together.
"""

import json
import pathlib
import zlib

import numpy as np

HERE = pathlib.Path(__file__).parent


def drawn(seed, first, n, low, high):
    """Numbers `first` to `first + n` of a seed, between two bounds, as the bits of bf16.

    Number `i` is made of the upper 24 of the 64 bits that SplitMix64 gives for it. It is computed in
    f64, then rounded to f32 and to bf16, so that every program draws the same one.
    """
    z = np.uint64(seed) + np.arange(first + 1, first + n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    part = ((z >> np.uint64(40)).astype(np.float64) + 0.5) / 2**24
    bits = (low + (high - low) * part).astype(np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)


def weights(folder):
    """The bytes of `model.safetensors`, however they are stored."""
    if (folder / "model.safetensors").exists():
        return (folder / "model.safetensors").read_bytes()
    stored = json.loads((folder / "weights.json").read_text())
    whole = b""
    for part in stored["parts"]:
        if len(part) == 4:
            whole += drawn(stored["seed"], *part).tobytes()
        else:
            file, first, n = part
            whole += (HERE / file).read_bytes()[first:][:n]
    assert (len(whole), zlib.crc32(whole)) == (stored["bytes"], stored["crc32"]), folder
    return whole


class Runs:
    """Runs of `length` bytes that are known, found at every byte that is a multiple of `unit`."""

    def __init__(self, length, unit=1):
        self.length, self.unit = length, unit
        self.sources, self.known = {}, {}

    def add(self, source, bytes):
        self.sources[source] = bytes
        for first in range(0, len(bytes) - self.length + 1, self.length):
            self.known.setdefault(bytes[first : first + self.length], (source, first))

    def parts(self, bytes):
        """`bytes` as parts of known sources, and as what is between them, whose source is `None`."""
        parts, own, at, unit = [], 0, 0, self.unit
        while at + self.length <= len(bytes):
            source, first = self.known.get(bytes[at : at + self.length], (None, 0))
            if source is None:
                at += unit
                continue
            stored, before, n = self.sources[source], 0, self.length
            while before < min(first, at - own) and (
                stored[first - before - unit : first - before] == bytes[at - before - unit : at - before]
            ):
                before += unit
            while first + n < len(stored) and (
                stored[first + n : first + n + unit] == bytes[at + n : at + n + unit]
            ):
                n += unit
            parts += [(None, own, at - before - own)] if at - before > own else []
            parts.append((source, first - before, n + before))
            at = own = at + n
        return parts + ([(None, own, len(bytes) - own)] if own < len(bytes) else [])


def store(folder, bytes, parts, seed=None):
    """Stores `bytes` as `parts`, as `Runs.parts` gives them; bytes without a source become `weights.bin`.

    A source is a file relative to this folder, or `(first, low, high)` of numbers that are drawn.
    Returns the bytes of `weights.bin`.
    """
    own, stored = b"", []
    for source, first, n in parts:
        if source is None:
            file = f"{folder.relative_to(HERE)}/weights.bin"
            stored.append([file, len(own), n])
            own += bytes[first : first + n]
        elif isinstance(source, str):
            stored.append([source, first, n])
        else:
            first_number, low, high = source
            stored.append([first_number + first // 2, n // 2, low, high])
    if own:
        (folder / "weights.bin").write_bytes(own)
    facts = [f'"bytes": {len(bytes)}', f'"crc32": {zlib.crc32(bytes)}']
    facts += [] if seed is None else [f'"seed": {seed}']
    facts.append('"parts": [\n' + ",\n".join(json.dumps(part) for part in stored) + "\n]")
    (folder / "weights.json").write_text("{\n" + ",\n".join(facts) + "\n}\n")
    assert weights(folder) == bytes, folder
    return own
