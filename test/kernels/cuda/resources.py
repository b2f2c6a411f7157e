#!/usr/bin/env python3
"""Compiles kernels for several GPUs and checks that each spills few registers and needs no more
shared memory than a block has.

    resources.py NVCC ROOT SOURCE... [-- OPTION of nvcc...]

Prints registers, stack and static shared memory of each kernel from `cuobjdump --dump-resource-usage`. The kernels' dynamic
shared memory is checked where they are compiled (kMmaBytesMax). Exits with 77 unless SHARDC_LONG is 1, since each source
takes a minute for each GPU.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ARCHITECTURES = ("80", "90a", "100", "120")
# Bytes of a thread: forward attention of 128 channels with dropout has 312 on 9.0a, other kernels at most 184.
SPILLED_MAX = 320
SHARED_MAX = 48 << 10  # static shared memory of a block, on every GPU
KERNEL = re.compile(r"Function (\S+):\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


def resources(nvcc, root, source, architecture, options):
    """[(kernel, registers, stack, shared, local)] of a source."""
    with tempfile.TemporaryDirectory() as name:
        cubin = pathlib.Path(name) / "kernels.cubin"
        subprocess.run([nvcc, "-std=c++20", "-O3", "-cubin", f"-arch=sm_{architecture}", f"-I{root}", "-o", cubin, source, *options],
                       check=True)
        dump = subprocess.run([pathlib.Path(nvcc).resolve().with_name("cuobjdump"), "--dump-resource-usage", cubin], check=True,
                              capture_output=True, text=True).stdout
    return [(found[1], *map(int, found.groups()[1:])) for found in KERNEL.finditer(dump)]


def main():
    nvcc, root, *words = sys.argv[1:]
    if os.environ.get("SHARDC_LONG") != "1":
        sys.exit(77)
    sources, options = words, []
    if "--" in words:
        at = words.index("--")
        sources, options = words[:at], words[at + 1:]
    wrong = 0
    jobs = [(source, architecture) for source in sources for architecture in ARCHITECTURES]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda job: resources(nvcc, root, *job, options), jobs))
    for (source, architecture), kernels in zip(jobs, found):
        if not kernels:
            sys.exit(f"{source}: no kernel for sm_{architecture}")
        for kernel, registers, stack, shared, local in kernels:
            print(f"sm_{architecture} {kernel}: {registers} registers, stack {stack}, shared {shared}")
            if stack + local > SPILLED_MAX or shared > SHARED_MAX:
                wrong += 1
                print(f"  error: {stack + local} bytes are spilled, {SPILLED_MAX} allowed; {shared} bytes of shared memory, {SHARED_MAX} allowed")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
