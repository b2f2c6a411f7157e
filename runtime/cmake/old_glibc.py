#!/usr/bin/env python3
"""Links the programs of a build for glibc 2.28, which Rocky 8, Ubuntu 20.04 and all newer distributions have.

    old_glibc.py BUILD TREE

TREE is what `cmake --install BUILD` wrote; the programs in its folder `bin` are replaced. They consist of the objects and archives of BUILD.
ziglang of PyPI, which must be installed for this Python, links them, since it knows the symbols of each glibc. All libraries but glibc and
NVIDIA's become parts of the programs, also the C++ runtime.
"""

import fnmatch
import pathlib
import re
import shlex
import subprocess
import sys

from wheel import LEFT_OUT as NVIDIA, PROGRAMS

TARGET = "x86_64-linux-gnu.2.28"
LEFT_OUT = {"fmt", "z3"}  # old_glibc.cpp has {fmt}; LLVM's Support library names Z3 and calls nothing of it


def output(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def linked(word):
    """What to link instead of a word of the build's command: the archive of a shared library."""
    library = re.fullmatch(r"(.*/lib([\w-]+))\.so[.\d]*", word)
    if not library or any(fnmatch.fnmatch(pathlib.Path(word).name, name) for name in NVIDIA):
        return [] if word.startswith("-fuse-ld") else [word]
    return [] if library[2] in LEFT_OUT else [library[1] + ".a"]


def main():
    build, tree = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    ours = str(tree.parent / "old_glibc.o")
    subprocess.run(["g++", "-std=c++20", "-O2", "-Wno-deprecated-declarations", "-c", pathlib.Path(__file__).with_suffix(".cpp"), "-o", ours],
                   check=True)
    for program in PROGRAMS:
        command = output("ninja", "-C", build, "-t", "commands", program).splitlines()[-1].split(" && ")[1]
        words = [to for word in shlex.split(command)[1:] for to in linked(word)]
        words[words.index("-o") + 1] = str(tree / "bin" / program)
        # The unwinder of ziglang, since that of Debian's compiler asks glibc for what 2.35 has.
        runtime = [output("g++", "-print-file-name=libstdc++.a"), "-lunwind", output("g++", "-print-file-name=libgcc.a")]
        subprocess.run([sys.executable, "-m", "ziglang", "cc", "-target", TARGET, *words, ours, *runtime, "-lpthread", "-ldl", "-lm", "-s"],
                       check=True, cwd=build)


if __name__ == "__main__":
    main()
