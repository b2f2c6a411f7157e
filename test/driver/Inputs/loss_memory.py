#!/usr/bin/env python3
"""Prints how much more memory plans need if they compute logits for other numbers of rows at a time than the first one.

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
