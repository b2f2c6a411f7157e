#!/usr/bin/env python3
"""Tests which GPUs CUDA_VISIBLE_DEVICES names, by number or UUID. Needs no GPU."""

import gpus

TABLE = ["GPU-1a2b-3c", "GPU-1a9f-00", "GPU-77aa-12"]


def refused(names):
    try:
        gpus.indices(names, TABLE)
    except SystemExit as end:
        return str(end)
    return ""


assert gpus.indices(["0", "2"], TABLE) == [0, 2]
assert gpus.indices(["GPU-77aa-12", "GPU-1a9"], TABLE) == [2, 1]
assert gpus.indices(["1", "GPU-77"], TABLE) == [1, 2]
assert "which 2 of the GPUs" in refused(["GPU-1a"])
assert "which 0 of the GPUs" in refused(["GPU-4"])
