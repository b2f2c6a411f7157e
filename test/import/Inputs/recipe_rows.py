#!/usr/bin/env python3
"""Looks up every recipe function of the table, and imports some of them, in a line that calls them. Prints how many there are.

    recipe_rows.py FOLDER_OF_THE_TABLE
"""

import json
import pathlib
import subprocess
import sys

folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder))
sys.dont_write_bytecode = True
import bridge_standin  # noqa: E402

table = json.loads((folder.parents[1] / "recipes/bridge/recipes.json").read_text())
own = [name for name in table if name != "commit" and name[0] not in "*_" and "(" not in name]
names = own + [name.replace("_8gpu_h100_bf16_", "_") for name in own if "_8gpu_h100_bf16_" in name]
numbers = dict.fromkeys(("_pretrain_", "_sft_", "_peft_"), 0)
for name in names:
    row = bridge_standin.rows_of_recipe(table, name)
    if not row["train"]["train_iters"] > 0 or not row["model"] or not row["optimizer"]["lr"] > 0:
        sys.exit(f"{name}: {row}")
    for kind in numbers:
        numbers[kind] += isinstance(table.get(name), dict) and kind in name
for name in names[::16]:
    done = subprocess.run(["shardc", "import", "bridge-overrides", "-"], input=f"cfg = {name}()\ncfg.train.train_iters = 7\n",
                          capture_output=True, text=True)
    if done.returncode != 0 or "    train_iters = 7\n" not in done.stdout or "    clip_grad = 1.0\n" not in done.stdout:
        sys.exit(f"{name}: status {done.returncode}\n{done.stdout}{done.stderr}")
print(", ".join(f"{number} {kind.strip('_')}" for kind, number in numbers.items()), "functions are read")
