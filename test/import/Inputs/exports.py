#!/usr/bin/env python3
"""Exports each recipe of the repository for Megatron-LM and imports the script again: the model is the same, or the
export was refused. Prints the refused ones, and how many came back.

    exports.py SOURCE
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from option_rows import option_rows  # noqa: E402

SOURCE = pathlib.Path(sys.argv[1])
REFUSALS = {"export-other-model", "export-refused"}
# Options without a flag that say how a step is computed.
HOW = {"model.pipeline_schedule", "model.pipeline_split", "model.tp_comm_overlap_pieces", "model.recompute_layers",
       "model.loss_chunk_rows"}


def executed():
    """Options of the model that shardc executes."""
    return {path for _, path, status in option_rows(SOURCE) if path.startswith("model") and status == "Executed"}


def call(*words):
    return subprocess.run(words, capture_output=True, text=True)


def values(recipe, options):
    done = call("shardc", "explain", recipe, "model")
    if done.returncode != 0:
        sys.exit(f"explain {recipe}: status {done.returncode}\n{done.stdout}{done.stderr}")
    rows = re.findall(r"^(\S+) = (.*?)  // ", done.stdout, re.M)
    return {path: value for path, value in rows if path in options}


def main():
    options, numbers = executed() - {"model"}, {"same": 0, "refused": 0}
    folder = pathlib.Path(tempfile.mkdtemp())
    # The padded rows of a vocabulary take part in Megatron-LM's softmax, which export warns of.
    warned = "model.mask_padded_vocab"
    for row in json.loads(call("shardc", "recipes", "--json").stdout):
        recipe, script, back = row["file"], str(folder / "a.sh"), str(folder / "b.recipe")
        done = call("shardc", "export", "--diag-format=json", "megatron-args", recipe, "-o", script)
        said = [json.loads(line) for line in (done.stdout + done.stderr).splitlines() if line.startswith("{")]
        errors = {message["id"] for message in said if message["severity"] == "error"}
        if done.returncode != 0:
            if not errors or errors - REFUSALS:
                sys.exit(f"export of {recipe}: status {done.returncode}\n{done.stdout}{done.stderr}")
            print(f"refused: {recipe.removeprefix('shardc:')}")
            numbers["refused"] += 1
            continue
        done = call("shardc", "import", "megatron-args", script, "-o", back)
        if done.returncode != 0:
            sys.exit(f"import of {recipe}: status {done.returncode}\n{done.stdout}{done.stderr}")
        before, after = values(recipe, options), values(back, options)
        for path in sorted(before.keys() | after.keys()):
            if before.get(path) == after.get(path) or path in HOW:
                continue
            # Fused or not, only gelu is another function.
            if path == "model.bias_activation_fusion" and before["model.activation_func"] != "gelu":
                continue
            if path != warned or not any(warned in json.dumps(message) for message in said):
                print(f"{recipe}: '{path}' was {before.get(path)} and came back as {after.get(path)}")
        numbers["same"] += 1
    print(f"{numbers['same']} came back, {numbers['refused']} refused")


main()
