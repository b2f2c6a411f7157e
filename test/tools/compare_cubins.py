#!/usr/bin/env python3
"""Compares kernels of two cubins: whether their machine code is bitwise equal.

    compare_cubins.py BEFORE AFTER

The files are what `nvcc -arch=sm_90a -cubin` writes. Kernels are matched by their demangled names, without the path
hashes in names of anonymous namespaces. Prints the names of those that differ, and counts those that only one file has.
Exits with 1 if any differ.
"""

import re
import struct
import subprocess
import sys


def code_sections(path):
    """The bytes of each ELF section .text.KERNEL."""
    with open(path, "rb") as file:
        data = file.read()
    table, = struct.unpack_from("<Q", data, 40)
    size, count, names_at = struct.unpack_from("<HHH", data, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    names = heads[names_at][4]
    for name_at, _, _, _, begin, length, *_ in heads:
        name = data[names + name_at:data.index(b"\0", names + name_at)].decode()
        if name.startswith(".text."):
            yield name.removeprefix(".text."), data[begin:begin + length]


def kernels(path):
    sections = list(code_sections(path))
    plain = subprocess.run(["c++filt"], input="\n".join(name for name, _ in sections), capture_output=True, text=True,
                           check=True).stdout.split("\n")
    found = {}
    for name, (_, code) in zip(plain, sections):
        name = re.sub(r"\(anonymous namespace\)|_(GLOBAL__N_|INTERNAL)_[0-9a-f]+_\d+_\w+?_[0-9a-f]+(_\d+)?", "", name)
        found.setdefault(name, []).append(code)
    return {name: sorted(codes) for name, codes in found.items()}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    before, after = kernels(sys.argv[1]), kernels(sys.argv[2])
    both = before.keys() & after.keys()
    different = sorted(name for name in both if before[name] != after[name])
    print(f"{len(before)} kernels before, {len(after)} after: {len(both) - len(different)} the same, {len(different)} differ, "
          f"{len(before.keys() - both)} gone, {len(after.keys() - both)} new")
    for name in different:
        print(f"differs: {name}")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
