#!/usr/bin/env python3
"""Runs the commands with which docs/fine-tuning.md begins, on the tiny model of recipes/finetune/first_tuning.py. The loss must fall.

    first_tuning.py --check BIN

Needs torch, transformers and jinja2; without them it ends with 77, skipped.
"""

import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from hf_models import call, expect, loaded

ROOT = pathlib.Path(__file__).resolve().parents[2]


def make(folder):
    spec = importlib.util.spec_from_file_location("first_tuning_files", ROOT / "recipes/finetune/first_tuning.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(folder)
    loaded(folder / "model")  # transformers reads what was written without it


def check_short(binaries, page, folder):
    """The commands of "In short" on the tiny model. The run is killed, and the same command continues it."""
    text = page.split("## In short")[1].split("\n## ")[0].replace("\\\n", " ")
    for path in ("models/Llama-3.1-8B-Instruct", "models/Llama-3.1-8B"):
        text = text.replace(path, "model")
    commands = re.findall(r"^    (shardc .*)$", text.replace("4096", "64").replace("save_interval=100", "save_interval=2"), re.MULTILINE)
    expect(len(commands) == 4 and " run " in commands[-1], f"the page has other commands: {commands}")
    for command in commands[:-1]:
        words = shlex.split(command) + ([f"--python={sys.executable}"] if " data " in command else [])
        call(binaries / words[0], *words[1:], cwd=folder)
    words = [binaries / "shardc", *shlex.split(commands[-1])[1:], "--set=train.global_batch_size=8", "--set=train.train_iters=6"]
    killed = subprocess.run(words, cwd=folder, env={**os.environ, "SHARDC_FAULT": "kill@0:5"}, capture_output=True, text=True, check=False)
    expect(killed.returncode != 0, f"the run was not killed: {killed.stdout}{killed.stderr}")
    said = call(*words, cwd=folder)
    expect("continuing after step 4" in said and "done after" in said, said)


def check(binaries):
    with tempfile.TemporaryDirectory() as folder:
        make(pathlib.Path(folder))
        page = (ROOT / "docs/fine-tuning.md").read_text()
        check_short(binaries, page, folder)
        commands = re.findall(r"^    (shardc .*)$", page.split("## A run of seconds")[1].split("\n## ")[0], re.MULTILINE)
        expect(len(commands) == 12, f"the page has other commands: {commands}")
        for command in commands:
            words = shlex.split(command) + [f"--metrics={overlay}.jsonl" for overlay in re.findall(r"overlays/(\w+).recipe --overlay host", command)]
            words += [f"--python={sys.executable}"] if " data " in command or " generate " in command else []
            said = call(binaries / words[0], *words[1:], cwd=folder)
            expect(" generate " not in command or said.strip(), f"{command} says nothing")
        for overlay, least in ("sft", 2), ("lora", 5), ("dora", 5), ("qlora", 5):
            lines = pathlib.Path(folder, f"{overlay}.jsonl").read_text().splitlines()
            losses = [json.loads(line)["loss"] for line in lines if '"loss"' in line]
            expect(losses[0] > 5 and losses[-1] < min(least, losses[0] - 0.3), f"{overlay}: losses {losses}")
            print(f"{overlay}: loss {losses[0]:.2f} to {losses[-1]:.2f}")
        expect(pathlib.Path(folder, "tuned/model.safetensors").exists(), "no model comes of the adapters")


if sys.argv[1:2] != ["--check"]:
    sys.exit(__doc__)
check(pathlib.Path(sys.argv[2]).resolve())
