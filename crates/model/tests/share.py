"""Stores the weights of the fixtures without repetition.

    python crates/model/tests/share.py --whole    before a generator runs: every file is whole again
    python crates/model/tests/share.py            after it

Seeds repeat, so many fixtures hold the same runs of weights. A folder that does has no
`model.safetensors` but `weights.json`: the length and CRC-32 of that file, and the parts that it is
made of, `[file, first byte, bytes]`, where `file` is relative to this folder and holds the bytes as
they are. `weights.bin` has the bytes that no other fixture has. `pelton_testkit::golden` puts the
parts together.
"""

import json
import pathlib
import sys
import zlib

HERE = pathlib.Path(__file__).parent
# Shorter runs are not worth a line.
RUN = 512


def folders():
    for kind in ("golden", "encoders", "checkpoints"):
        yield from sorted(path.parent for path in (HERE / kind).glob("*/config.json"))


def weights(folder):
    """The bytes of `model.safetensors`, whether stored whole or in parts."""
    if (folder / "model.safetensors").exists():
        return (folder / "model.safetensors").read_bytes()
    stored = json.loads((folder / "weights.json").read_text())
    parts = [(HERE / file).read_bytes()[first:][:n] for file, first, n in stored["parts"]]
    whole = b"".join(parts)
    assert (len(whole), zlib.crc32(whole)) == (stored["bytes"], stored["crc32"]), folder
    return whole


class Runs:
    """Every run of `RUN` bytes that is stored, by its bytes."""

    def __init__(self):
        self.files, self.known = {}, {}

    def add(self, file, bytes):
        self.files[file] = bytes
        for first in range(0, len(bytes) - RUN + 1, RUN):
            self.known.setdefault(bytes[first : first + RUN], (file, first))

    def parts(self, bytes):
        """`bytes` as parts of stored files, and as what is between them, which has no file."""
        parts, own, at = [], 0, 0
        while at + RUN <= len(bytes):
            file, first = self.known.get(bytes[at : at + RUN], (None, 0))
            if file is None:
                at += 1
                continue
            stored, before = self.files[file], 0
            while before < min(first, at - own) and stored[first - before - 1] == bytes[at - before - 1]:
                before += 1
            n = RUN
            while first + n < len(stored) and at + n < len(bytes) and stored[first + n] == bytes[at + n]:
                n += 1
            parts += [(None, own, at - before - own)] if at - before > own else []
            parts.append((file, first - before, n + before))
            at = own = at + n
        return parts + ([(None, own, len(bytes) - own)] if own < len(bytes) else [])


def share():
    whole = {folder: weights(folder) for folder in folders()}
    runs = Runs()
    for folder, bytes in whole.items():
        for name in ("model.safetensors", "weights.bin", "weights.json"):
            (folder / name).unlink(missing_ok=True)
        name = folder.relative_to(HERE)
        parts = runs.parts(bytes)
        if len(parts) == 1 and parts[0][0] is None:
            (folder / "model.safetensors").write_bytes(bytes)
            runs.add(f"{name}/model.safetensors", bytes)
            continue
        own, stored = b"", []
        for file, first, n in parts:
            if file is None:
                file, first, own = f"{name}/weights.bin", len(own), own + bytes[first : first + n]
            stored.append([file, first, n])
        if own:
            (folder / "weights.bin").write_bytes(own)
            runs.add(f"{name}/weights.bin", own)
        lines = ",\n".join(json.dumps(part) for part in stored)
        facts = f'"bytes": {len(bytes)},\n"crc32": {zlib.crc32(bytes)},\n"parts": [\n{lines}\n]'
        (folder / "weights.json").write_text(f"{{\n{facts}\n}}\n")
        print(f"{name}: {len(own)} of {len(bytes)} bytes of its own")
    for folder, bytes in whole.items():
        assert weights(folder) == bytes, folder


def write_whole():
    # All are read before any is replaced: they refer to each other.
    for folder, bytes in {folder: weights(folder) for folder in folders()}.items():
        for name in ("weights.bin", "weights.json"):
            (folder / name).unlink(missing_ok=True)
        (folder / "model.safetensors").write_bytes(bytes)


if __name__ == "__main__":
    write_whole() if "--whole" in sys.argv else share()
