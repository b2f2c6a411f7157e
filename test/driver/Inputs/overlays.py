#!/usr/bin/env python3
"""Checks one recipe of each family with a fine-tuning overlay. Prints the refusals, and the number of families.

    overlays.py RECIPES --overlay FILE... [--set NAME=VALUE...]
"""

import json
import pathlib
import subprocess
import sys

folder, words = pathlib.Path(sys.argv[1]), sys.argv[2:]
OTHERS = ("bridge", "debug", "finetune", "kubernetes", "overlays", "slurm")
families = [sorted(family.glob("*.recipe"), key=lambda file: (len(file.name), file.name))[0]
            for family in sorted(folder.iterdir()) if family.is_dir() and family.name not in OTHERS]
done = subprocess.run(["shardc", "check", "--diag-format=json", *families, *words], capture_output=True, text=True)
messages = [json.loads(line) for line in (done.stdout + done.stderr).splitlines() if line.startswith("{")]
for message in messages:
    if message["severity"] == "error":
        print(f"{message['file']}: {message['text']} [{message['id']}]")
print(f"{len(families)} families, status {done.returncode}")
