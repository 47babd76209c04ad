"""Stores the weights of the quantized fixtures without repetition.

    python crates/model/tests/share.py --whole    before `checkpoints/make.py` runs: every file is whole
    python crates/model/tests/share.py            after it

Seeds repeat, so many of these fixtures hold the same runs of weights; `stored.py` has the format. The
weights of other fixtures are drawn from a seed, and have nothing to share.
"""

import sys

from stored import HERE, Runs, store, weights

# Shorter runs are not worth a line.
RUN = 512


def folders():
    return sorted(path.parent for path in (HERE / "checkpoints").glob("*/config.json"))


def share():
    whole = {folder: weights(folder) for folder in folders()}
    runs = Runs(RUN)
    for folder, bytes in whole.items():
        for name in ("model.safetensors", "weights.bin", "weights.json"):
            (folder / name).unlink(missing_ok=True)
        name = folder.relative_to(HERE)
        parts = runs.parts(bytes)
        if len(parts) == 1 and parts[0][0] is None:
            (folder / "model.safetensors").write_bytes(bytes)
            runs.add(f"{name}/model.safetensors", bytes)
            continue
        own = store(folder, bytes, parts)
        if own:
            runs.add(f"{name}/weights.bin", own)
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
