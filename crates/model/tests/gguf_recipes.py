"""Writes the recipe of a GGUF file: how its bytes follow from those of a checkpoint.

The `gguf` package writes the whole file; then only its recipe is kept, because the weights are in
`model.safetensors` already. `gguf/NAME.json` holds the metadata, and for each tensor its name, type,
shape and origin, besides length and CRC-32 of the file. `pelton_testkit::golden` writes the file
again from both and compares length and CRC-32, so that readers are tested with the bytes of another
writer.

An origin is a list of loops over elements of the checkpoint, `[tensor, first, [[n, stride], ..]]`,
outermost loop first; a tensor that is taken in its own order is its name alone. `then` lists what is
done to the elements: `add` and `multiply` in f32, and `exp`, a multiple of the exponential, in f64. Blocks of MXFP4 are made of the bytes that
`exponents` names and of codes: the two in a byte are neighbours in the checkpoint, and half a block
apart in the file.
"""

import json
import pathlib
import struct
import tempfile
import zlib

import gguf
import numpy as np

from stored import weights

# Elements of one tensor are numbered from a multiple of this.
APART = 1 << 32
SIZES = {"BF16": np.uint16, "F32": np.uint32, "U8": np.uint8}


class Checkpoint:
    """The tensors of `model.safetensors` as arrays of element numbers, so that orders can be told."""

    def __init__(self, folder):
        bytes = weights(folder)
        n = struct.unpack("<Q", bytes[:8])[0]
        header = json.loads(bytes[8 : 8 + n])
        header.pop("__metadata__", None)
        self.names = list(header)
        self.dtypes = [header[name]["dtype"] for name in header]
        self.data, self.state = [], {}
        for i, (name, entry) in enumerate(header.items()):
            first, last = (8 + n + x for x in entry["data_offsets"])
            self.data.append(np.frombuffer(bytes[first:last], SIZES[entry["dtype"]]))
            numbers = np.arange(self.data[-1].size, dtype=np.int64) + i * APART
            self.state[name] = numbers.reshape(entry["shape"])

    def dtype(self, numbers):
        return self.dtypes[int(numbers.flat[0] // APART)]

    def gather(self, numbers):
        """The elements of these numbers, as unsigned integers of their size."""
        out = np.empty(numbers.shape, SIZES[self.dtype(numbers)])
        owners = numbers // APART
        for i in np.unique(owners):
            is_its = owners == i
            out[is_its] = self.data[i][numbers[is_its] % APART]
        return out

    def origin(self, numbers):
        """The loops over elements that give these numbers."""
        pieces, flat = [], numbers.reshape(-1)
        while flat.size:
            loops, n = [], 1
            while True:
                # As often as blocks of `n` numbers follow each other with the same distance.
                blocks = flat[: flat.size // n * n].reshape(-1, n)
                stride = int(blocks[1, 0] - blocks[0, 0]) if len(blocks) > 1 else 0
                expected = blocks[0] + stride * np.arange(len(blocks))[:, None]
                is_same = (blocks == expected).all(axis=1)
                count = len(blocks) if is_same.all() else int(is_same.argmin())
                if count == 1 or abs(stride) >= APART:
                    break
                loops.insert(0, [count, stride])
                n *= count
            tensor, first = divmod(int(flat[0]), APART)
            pieces.append([self.names[tensor], first, loops])
            flat = flat[n:]
        if len(pieces) == 1:
            name, first, loops = pieces[0]
            if first == 0 and loops == [[self.state[name].size, 1]]:
                return name
        return pieces


def widened(bits, dtype):
    """Elements as f32."""
    return (bits.astype(np.uint32) << 16 if dtype == "BF16" else bits).view(np.float32)


def mxfp4_blocks(codes, exponents):
    """Codes `[.., 16]` with neighbours in a byte become blocks with codes half a block apart."""
    codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], 32)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return np.concatenate([exponents[..., None], packed], -1)


class Recipe:
    """A GGUF file to be, and where its tensors come from."""

    def __init__(self, checkpoint, arch):
        self.checkpoint, self.origins = checkpoint, []
        self.writer = gguf.GGUFWriter(None, arch)

    def values(self, name, values):
        """A tensor of these numbers, which no tensor of the checkpoint holds."""
        self.writer.add_tensor(name, np.array(values, np.float32))
        self.origins.append({"values": values})

    def mxfp4(self, name, codes, exponents):
        """Blocks of these codes `[.., 16]` and exponents."""
        gather, origin = self.checkpoint.gather, self.checkpoint.origin
        blocks = mxfp4_blocks(gather(codes), gather(exponents))
        mxfp4 = gguf.GGMLQuantizationType.MXFP4
        self.writer.add_tensor(name, blocks.reshape(*blocks.shape[:-2], -1), raw_dtype=mxfp4)
        self.origins.append({"from": origin(codes), "exponents": origin(exponents)})

    def tensor(self, name, numbers, then=(), wide=False):
        """These elements of the checkpoint, as f32 where they are `wide` or computed."""
        bits = self.checkpoint.gather(numbers)
        if wide or then:
            x = widened(bits, self.checkpoint.dtype(numbers))
            for operation, operand in then:
                if operation == "exp":
                    x = (operand * np.exp(x.astype(np.float64))).astype(np.float32)
                    continue
                operand = np.float32(operand)
                x = x + operand if operation == "add" else x * operand
            self.writer.add_tensor(name, x)
        else:
            bf16 = gguf.GGMLQuantizationType.BF16
            self.writer.add_tensor(name, bits.view(np.uint8), raw_dtype=bf16)
        origin = {"from": self.checkpoint.origin(numbers)}
        self.origins.append(origin | ({"then": list(then)} if then else {}))

    def save(self, path):
        """Lets the package write the file, and keeps its recipe."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "model.gguf"
            self.writer.write_header_to_file(file)
            self.writer.write_kv_data_to_file()
            self.writer.write_tensors_to_file()
            self.writer.close()
            written = file.read_bytes()
        metadata, tensors = parsed(written)
        recipe = [f'"bytes": {len(written)}', f'"crc32": {zlib.crc32(written)}']
        recipe.append(f'"metadata": {lines(metadata)}')
        named = zip(tensors, self.origins, strict=True)
        recipe.append(f'"tensors": {lines([tensor | origin for tensor, origin in named])}')
        path.write_text("{\n" + ",\n".join(recipe) + "\n}\n")
        return written


def lines(items):
    return "[\n" + ",\n".join(json.dumps(item) for item in items) + "\n]"


def parsed(bytes):
    """Metadata `[key, type, value]` and tensors of a GGUF file."""
    at = 8
    types = ["B", "b", "H", "h", "I", "i", "f", "?", "string", "array", "Q", "q", "d"]
    names = "u8 i8 u16 i16 u32 i32 f32 bool string array u64 i64 f64".split()

    def read(kind):
        nonlocal at
        if kind == "string":
            n = read("Q")
            at += n
            return bytes[at - n : at].decode()
        at += struct.calcsize(kind)
        return struct.unpack_from("<" + kind, bytes, at - struct.calcsize(kind))[0]

    def value(kind):
        if names[kind] != "array":
            # The shortest number that is this one in f32.
            x = read(types[kind])
            if names[kind] == "f32":
                # JSON has no infinities.
                x = float(str(np.float32(x))) if np.isfinite(x) else str(x)
            return names[kind], x
        item, n = read("I"), read("Q")
        return f"[{names[item]}]", [value(item)[1] for _ in range(n)]

    n_tensors, n_metadata = read("Q"), read("Q")
    metadata = [[read("string"), *value(read("I"))] for _ in range(n_metadata)]
    tensors = []
    for _ in range(n_tensors):
        name, shape = read("string"), [read("Q") for _ in range(read("I"))]
        kind = gguf.GGMLQuantizationType(read("I"))
        read("Q")
        tensors.append({"name": name, "type": kind.name, "shape": shape[::-1]})
    return metadata, tensors
