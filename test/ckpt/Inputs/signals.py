#!/usr/bin/env python3
"""signals.py WORK COMMAND...: runs the command with Signals.c preloaded; passes on its output, and its exit status in
the shell's form."""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e/Inputs"))
sys.dont_write_bytecode = True
from crash_runs import preloading  # noqa: E402

work, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
shim = work / "signals.so"
subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, pathlib.Path(__file__).parent / "Signals.c", "-ldl"], check=True)
done = subprocess.run(command, env={**os.environ, **preloading(shim)})
sys.exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
