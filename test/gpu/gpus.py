"""Finds the GPUs of this machine for tests. Needs only Python and the driver's nvidia-smi."""

import os
import subprocess
import sys

SKIPPED = 77


def need_permission():
    if os.environ.get("SHARDC_GPU") != "1":
        print("SHARDC_GPU is not 1")
        sys.exit(SKIPPED)


def memory_used():
    """MiB in use on every GPU of the machine, whatever CUDA_VISIBLE_DEVICES says."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()]


def visible():
    """The GPUs that a run sees, by their names in CUDA_VISIBLE_DEVICES."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(gpu) for gpu in range(len(memory_used()))] if names is None else names.split(",")


def indices(names, table=None):
    """The indices of GPUs in nvidia-smi's order. A name is an index, or the beginning of a UUID. `table` has the UUIDs
    of all GPUs."""
    if table is None:
        query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        table = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    found = []
    for name in names:
        same = [int(name)] if name.isdigit() else [gpu for gpu, uuid in enumerate(table) if uuid.startswith(name)]
        if len(same) != 1:
            sys.exit(f"CUDA_VISIBLE_DEVICES has '{name}', which {len(same)} of the GPUs {table} are")
        found += same
    return found


def need(count):
    if len(visible()) < count:
        print(f"{count} GPUs are needed")
        sys.exit(SKIPPED)
