"""The GPUs of this machine, as tests on them ask for them. Only Python and the driver's nvidia-smi are needed."""

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
    """Names of the GPUs that a run sees, as CUDA_VISIBLE_DEVICES has them."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(gpu) for gpu in range(len(memory_used()))] if names is None else names.split(",")


def need(count):
    if len(visible()) < count:
        print(f"{count} GPUs are needed")
        sys.exit(SKIPPED)
