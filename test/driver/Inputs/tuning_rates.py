#!/usr/bin/env python3
"""Compares the settings of the fine-tuning examples with those of the Megatron-Bridge functions that their comments
name.

    tuning_rates.py RECIPES FOLDER_OF_THE_TABLE
"""

import json
import pathlib
import re
import subprocess
import sys

recipes, tables = map(pathlib.Path, sys.argv[1:])
sys.path.insert(0, str(tables))
sys.dont_write_bytecode = True
import bridge_standin  # noqa: E402

TABLE = json.loads((recipes / "bridge/recipes.json").read_text())
PATHS = {"optimizer.lr": "optimizer.lr", "optimizer.min_lr": "optimizer.min_lr", "optimizer.weight_decay": "optimizer.weight_decay",
         "train.global_batch_size": "train.global_batch_size", "dataset.seq_length": "model.seq_length", "peft.dim": "peft.rank",
         "peft.alpha": "peft.alpha"}
CLASS = {"peft.dim": 32, "peft.alpha": 32}  # of LoRA
checked = 0
for file in sorted((recipes / "finetune").glob("*.recipe")):
    named = re.search(r"Megatron-Bridge's\s+(?://\s+)?(\w+_config)", file.read_text())
    if named is None:
        continue
    row = bridge_standin.rows_of_recipe(TABLE, named[1])
    for theirs, mine in PATHS.items():
        section, field = theirs.split(".")
        if row[section] is None:
            continue
        done = subprocess.run(["shardc", "explain", file, mine], capture_output=True, text=True)
        held = re.search(rf"{mine} = (\S+)", done.stdout)
        wanted = row[section].get(field, CLASS.get(theirs))
        if held is None or float(held[1].replace("_", "")) != wanted:
            sys.exit(f"{file.name}: {mine} is {held and held[1]}, and {wanted} in {named[1]}\n{done.stderr}")
        checked += 1
print(checked, "values are Megatron-Bridge's")
