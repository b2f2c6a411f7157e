#!/usr/bin/env python3
"""Prints how much more memory plans need with other rows of logits at a time than with the first number of them.

    loss_memory.py RECIPE ROWS ROWS...
"""

import json
import subprocess
import sys


def bytes_of(recipe, rows):
    done = subprocess.run(["shardc", "fit", recipe, f"--set=model.loss_chunk_rows={rows}", "--json"],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["bytes"]


recipe_path, first, *others = sys.argv[1:]
least = bytes_of(recipe_path, first)
for number in others:
    print(f"{number}: {round((bytes_of(recipe_path, number) - least) / 2**20):+} MiB")
