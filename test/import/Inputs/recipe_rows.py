#!/usr/bin/env python3
"""Reads a line that calls each recipe function of the table, and prints how many were imported.

    recipe_rows.py TABLE
"""

import json
import pathlib
import subprocess
import sys

names = [name for name in json.loads(pathlib.Path(sys.argv[1]).read_text()) if name != "*"]
for name in names:
    done = subprocess.run(["shardc", "import", "bridge-overrides", "-"], input=f"cfg = {name}()\ncfg.train.train_iters = 7\n",
                          capture_output=True, text=True)
    if done.returncode != 0 or "    train_iters = 7\n" not in done.stdout or "    clip_grad = 1.0\n" not in done.stdout:
        sys.exit(f"{name}: status {done.returncode}\n{done.stdout}{done.stderr}")
print(len(names), "recipe functions are read")
