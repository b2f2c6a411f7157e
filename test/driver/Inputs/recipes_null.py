"""Runs recipes that compile on the null backend. Reports plans that cannot be bound, and calls that violate the
interface. Runs every twelfth recipe, or all with SHARDC_LONG=1.

    recipes_null.py FOLDER_OF_RECIPES
"""

import json
import os
import subprocess
import sys


def main():
    folder = sys.argv[1]
    listed = subprocess.run(["shardc", "recipes", "--json", folder], check=True, capture_output=True, text=True).stdout
    runs = [recipe["file"] for recipe in json.loads(listed) if recipe["runs"]]
    if os.environ.get("SHARDC_LONG") != "1":
        runs = runs[::12]
    wrong = 0
    for name in runs:
        command = ["shardc", "run", f"{folder}/{name}", "--backend=null", "--set", "train.train_iters=2"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0 or "done after 2 of 2 steps" not in done.stdout:
            wrong += 1
            print(f"{name}: status {done.returncode}\n{done.stdout}{done.stderr}")
    print(f"{len(runs)} recipes, {wrong} cannot be bound and launched")
    sys.exit(1 if wrong or not runs else 0)


if __name__ == "__main__":
    main()
