"""Safetensors files, and numbers that follow from a tensor's name, in plain Python.

test/interop/peft_folders.py gives these numbers to PEFT, and peft_folders.py writes the same ones, so that the golden
values need no weights beside them.
"""

import array
import json
import struct
import zlib

DIRECTIONS = 3


def numbers(name, count, size=0.2, about=0.0):
    """`count` numbers of this size around `about`, by a linear congruential generator that the name seeds."""
    state, out = zlib.crc32(name.encode()) | 1, array.array("f")
    for _ in range(count):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append(about + size * (2 * state / 0xFFFFFFFF - 1))
    return out


def number_of(name, count):
    """The numbers of a tensor of a model or of a folder of adapters. Norms are near one."""
    if "norm" in name or "ln_" in name or "magnitude" in name:
        return numbers(name, count, 0.2, 1.0)
    return numbers(name, count)


def projections(values):
    """Sums of a tensor's numbers with weights that depend on their positions."""
    return [sum(v * w for v, w in zip(values, numbers(f"direction {i}", len(values), 1.0))) for i in range(DIRECTIONS)]


def write(path, tensors):
    """Name -> (shape, array of floats) as a safetensors file in fp32."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + 4 * len(values)]}
        at += 4 * len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(values.tobytes() for _, values in tensors.values()))


def read(path):
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: (tuple(each["shape"]), array.array("f", data[8 + size + each["data_offsets"][0] : 8 + size + each["data_offsets"][1]]))
        for name, each in header.items()
    }


def make(path, shapes):
    """A file with these tensors (name -> shape)."""
    tensors = {}
    for name, shape in shapes.items():
        count = 1
        for extent in shape:
            count *= extent
        tensors[name] = shape, number_of(name, count)
    write(path, tensors)
