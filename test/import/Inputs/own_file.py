#!/usr/bin/env python3
"""Runs recipes of the repository for one step, imports the configuration that the run saved, and compares all settings.

    own_file.py SOURCE RECIPE...
"""

import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from option_rows import option_rows  # noqa: E402

SECTIONS = ("model", "dist", "ddp", "optimizer", "scheduler", "train", "validation", "dataset", "checkpoint", "rng", "logger",
            "rerun_state_machine", "env", "cluster")


def call(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def executed():
    """Options that shardc executes; others a run does not save."""
    return {path for _, path, status in option_rows(sys.argv[1]) if status == "Executed"}


def settings(recipe, known, folder):
    values = {}
    for section in SECTIONS:
        text = call("shardc", "explain", recipe, section, "--set", "cluster.gpu=host", cwd=folder)
        values.update(re.findall(r"^(\S+) = (.*?)  // ", text, re.M))
    return {path: value for path, value in values.items() if path in known or path.startswith(("cluster.", "env."))}


def main():
    known = executed()
    for recipe in sys.argv[2:]:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            sets = 'checkpoint { save = "ck"  save_interval = 1 }  train { train_iters = 1 }'
            (folder / "r.recipe").write_text(f'recipe r extends "{recipe}" {{ {sets} }}\n')
            call("shardc", "run", "r.recipe", cwd=folder)
            saved = folder / "ck" / "iter_0000001" / "run_config.yaml"
            call("shardc", "import", "bridge-yaml", saved, "-o", "back.recipe", cwd=folder)
            call("shardc", "check", "back.recipe", "--set", "cluster.gpu=host", cwd=folder)
            before, after = (settings(path, known, folder) for path in ("r.recipe", "back.recipe"))
            for path in sorted(before.keys() | after.keys()):
                if before.get(path) != after.get(path):
                    sys.exit(f"{recipe}: '{path}' was {before.get(path)} and came back as {after.get(path)}")
            print(f"{recipe}: {len(after)} settings came back")


main()
