#!/usr/bin/env python3
"""Makes the seeds of fuzz_folders: `make_seeds.py OUT`. The folders are those of test/ckpt/Inputs/hostile_folders.py."""

import pathlib
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "ckpt" / "Inputs"))
import hostile_folders


def text_of(path):
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        data = data[8:8 + struct.unpack("<Q", data[:8])[0]]
    return b"=== " + path.name.encode() + b"\n" + data + b"\n"


def main(out):
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        hostile_folders.make_hf(place / "hf")
        hostile_folders.make_peft(place / "peft")
        model = b"".join(text_of(path) for path in sorted((place / "hf").iterdir()) if path.is_file())
        adapters = b"".join(text_of(path) for path in sorted((place / "peft").iterdir()))
        (out / "model").write_bytes(model)
        (out / "adapters").write_bytes(model + adapters)
        (out / "shards").write_bytes(model.replace(b"=== model.safetensors\n", b"=== model-1.safetensors\n").replace(b'"model.safetensors"', b'"model-1.safetensors"'))
        (out / "tokenizer").write_bytes(b"".join(text_of(path) for path in sorted((place / "hf").iterdir()) if "token" in path.name))


main(pathlib.Path(sys.argv[1]))
