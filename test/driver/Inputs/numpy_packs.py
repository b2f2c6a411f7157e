"""Writes .npy files of packs to the folder of the first argument: packs.npy and arrays.npy as numpy saves them, and
forged ones. The golden files beside this script were made by `numpy_packs.py FOLDER golden` with numpy 2.4.6."""

import pathlib
import sys

PACKS = [{"input_ids": [5, 6, 7, 8, 9], "seq_start_id": [0, 3], "loss_mask": [0, 1, 0, 1, 0]},
         {"input_ids": [1, 2, 3, 4], "seq_start_id": [0], "loss_mask": [False, False, True, False]}]


def golden(folder):
    import numpy
    numpy.save(folder / "packs.npy", numpy.array(PACKS, dtype=object))
    arrays = [{name: numpy.array(value, dtype=kind) for (name, value), kind in zip(pack.items(), ("i4", "i8", "b1"))}
              for pack in PACKS]
    numpy.save(folder / "arrays.npy", numpy.array(arrays, dtype=object))
    numpy.save(folder / "object.npy", numpy.array([pathlib.PurePosixPath("x")], dtype=object))


def forged(folder):
    """Arrays whose type of elements or number of elements is not that of their bytes."""
    good = (pathlib.Path(__file__).parent / "numpy" / "arrays.npy").read_bytes()
    for name, old, new in (("dtype", b"\x8c\x02i4", b"\x8c\x02O8"), ("wide", b"\x8c\x02i4", b"\x8c\x02i8"),
                           ("order", b"\x8c\x01<", b"\x8c\x01>")):
        assert old in good, name
        (folder / f"{name}.npy").write_bytes(good.replace(old, new))
    (folder / "cut.npy").write_bytes(good[:-20])
    (folder / "text.npy").write_bytes(b"not numpy")


(golden if len(sys.argv) > 2 else forged)(pathlib.Path(sys.argv[1]))
