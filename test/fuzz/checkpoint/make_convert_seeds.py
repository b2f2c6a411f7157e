#!/usr/bin/env python3
"""Makes the seeds of fuzz_convert out of checkpoints.

    make_convert_seeds.py OUT FOLDER ...

Each FOLDER is a checkpoint with one data file; its seed is OUT/NAME, and OUT/NAME-unchecked is one whose records
lose their checksums. More have a common state of nothing.
"""

import io
import pathlib
import pickle
import struct
import sys
import zipfile

DIST, COMMON_FILE, SWIGLU, WEIGHTS_ONLY, TWO_RANKS, UNCHECKED = 1, 2, 4, 8, 16, 32


def seed(choices, metadata, common, data):
    return struct.pack("<BHH", choices, len(metadata), len(common)) + metadata + common + data


def archive(value):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, text in (("data.pkl", pickle.dumps(value, 2)), ("byteorder", b"little"), ("version", b"3\n")):
            file.writestr(zipfile.ZipInfo(f"common/{name}"), text)
    return out.getvalue()


def main(out, *folders):
    for folder in map(pathlib.Path, folders):
        metadata, data = (folder / ".metadata").read_bytes(), (folder / "__0_0.distcp").read_bytes()
        is_dist = (folder / "metadata.json").exists()
        common = (folder / "common.pt").read_bytes() if (folder / "common.pt").exists() else b""
        choices = (DIST if is_dist else 0) | (COMMON_FILE if common else 0) | TWO_RANKS
        (pathlib.Path(out) / folder.name).write_bytes(seed(choices, metadata, common, data))
        unchecked = seed(choices | UNCHECKED, metadata, common, data)
        (pathlib.Path(out) / f"{folder.name}-unchecked").write_bytes(unchecked)
        if is_dist and not common:
            nothing = seed(choices | COMMON_FILE | SWIGLU, metadata, archive({}), data)
            (pathlib.Path(out) / f"{folder.name}-common-of-nothing").write_bytes(nothing)


main(*sys.argv[1:])
