#!/usr/bin/env python3
"""Draws recipes and compares the messages of `shardc check` for each with those of the oracle.

    compare.py SHARDC [--count=N] [--first=SEED] [--jobs=N] [--report=FILE]

No recipe may crash `shardc check`. The messages must be the oracle's errors and warnings, and each error must have a
place and a fix-it, a reason or a note. Messages about the plan (that it does not fit) are left out, since the oracle
knows only rules. A recipe with a value that no option accepts must be refused for it; its other messages are not
compared. Exits with 1 if anything differs, and prints those recipes. Without --count it takes 1,000 recipes, and
100,000 with SHARDC_LONG=1.
"""

import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from batches import parse_options, try_all
from oracle import judge
from recipes import ROOT, draw

BATCH = 250  # recipes of one process
PLAN = {"does-not-fit", "cannot-be-compiled", "slow-kernels"}  # messages about the plan
WITHOUT_PLACE = {"missing-option"} | PLAN  # a missing option has no place in the recipe


def reasons():
    """The rules for which docs/rules.md gives a reason."""
    found = set()
    with open(os.path.join(ROOT, "docs", "rules.md"), encoding="utf-8") as file:
        for line in file:
            cells = re.split(r"(?<!\\)\|", line)
            if line.startswith("| `") and len(cells) > 4 and cells[3].strip():
                found.add(cells[1].strip(" `"))
    return found


REASONS = reasons()
# Errors about the text itself already say what is expected.
SELF_EXPLAINING = {"value-out-of-range", "unknown-enumerator", "misspelt-enumerator", "wrong-type", "unknown-option",
                   "bad-split", "bad-blend"}


def run(shardc, paths):
    return subprocess.run([shardc, "check", "--diag-format=json", *paths], capture_output=True, text=True, check=False)


def differences(recipe, messages):
    """What is wrong with the messages about one recipe."""
    out = []
    said = {kind: {m["id"] for m in messages if m["severity"] == kind} - PLAN for kind in ("error", "warning")}
    if recipe.faults:
        if not recipe.faults <= said["error"]:
            out.append(f"refused for {sorted(said['error'])} and not for {sorted(recipe.faults)}")
    else:
        for kind, wanted in zip(("error", "warning"), judge(recipe)):
            if said[kind] - wanted:
                out.append(f"{kind}s that the oracle does not know of: {sorted(said[kind] - wanted)}")
            if wanted - said[kind]:
                out.append(f"{kind}s that were not given: {sorted(wanted - said[kind])}")
    for message in messages:
        if message["severity"] != "error":
            continue
        if "range" not in message and message["id"] not in WITHOUT_PLACE:
            out.append(f"no place: {message['id']}")
        if not (message["fixits"] or message["notes"] or message["id"] in REASONS | SELF_EXPLAINING):
            out.append(f"neither repair nor reason: {message['id']}")
    return out


def check_batch(shardc, seeds):
    recipes = {seed: draw(seed) for seed in seeds}
    found, counts = [], collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for seed, recipe in recipes.items():
            paths[seed] = os.path.join(folder, f"r{seed}.recipe")
            with open(paths[seed], "w", encoding="utf-8") as file:
                file.write(recipe.text)
        done = run(shardc, list(paths.values()))
        messages = collections.defaultdict(list)
        if done.returncode in (0, 1):
            for line in done.stdout.splitlines():
                message = json.loads(line)
                messages[message["file"]].append(message)
        else:  # a crash: find its recipe
            for seed, path in paths.items():
                alone = run(shardc, [path])
                if alone.returncode not in (0, 1):
                    found.append((seed, recipes[seed].text, [f"status {alone.returncode}: {alone.stderr[-400:]}"]))
                    messages[path] = None
                else:
                    messages[path] = [json.loads(line) for line in alone.stdout.splitlines()]
        for seed, path in paths.items():
            if messages[path] is None:
                continue
            wrong = differences(recipes[seed], messages[path])
            if wrong:
                found.append((seed, recipes[seed].text, wrong))
            errors = {m["id"] for m in messages[path] if m["severity"] == "error"}
            counts["valid" if not errors else "refused"] += 1
            for message in messages[path]:
                counts[message["severity"] + " " + message["id"]] += 1
    return found, counts


def main():
    options = parse_options("compares shardc's rule book with an oracle on random recipes", 1000)
    began = time.monotonic()
    found, counts = try_all(options, check_batch, BATCH)
    for seed, text, wrong in found[:options.shown]:
        print(f"seed {seed}:\n{text}" + "".join(f"  {line}\n" for line in wrong))
    ids = {kind: sum(1 for key in counts if key.startswith(kind + " ")) for kind in ("error", "warning", "remark")}
    print(f"{options.count} recipes from seed {options.first}: {counts['valid']} valid, {counts['refused']} refused, "
          f"{len(found)} differences; {ids['error']} kinds of errors, {ids['warning']} of warnings, {ids['remark']} of "
          f"remarks met; {time.monotonic() - began:.0f} s")
    sys.exit(1 if found or counts["valid"] == 0 or counts["refused"] == 0 else 0)


if __name__ == "__main__":
    main()
