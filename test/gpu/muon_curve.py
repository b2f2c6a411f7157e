#!/usr/bin/env python3
"""Trains a model on this repository's documentation with AdamW and with Muon, at several learning rates. Needs only Python.

    muon_curve.py RECIPE [--text FOLDER] [--steps N] [--rates R...] [--set path=value ...] [-- OPTION...]

Prints for each optimizer and rate the mean loss of the last fifth of the steps, and at the end the least of each optimizer. Both see
the same tokens. OPTIONs go to shardc-run. shardc and shardc-run are found on PATH.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
WAYS = {"adam": [], "muon": ["optimizer.optimizer=muon", "optimizer.muon_extra_scale_factor=0.2"]}


def losses(recipe, folder_of_text, settings, options):
    with tempfile.TemporaryDirectory() as folder:
        plan, metrics = f"{folder}/p.plan", f"{folder}/metrics.jsonl"
        text = ["dataset.kind=text", f'dataset.data_path=["{folder_of_text}"]', "logger.log_interval=1"]
        subprocess.run(["shardc", "dump-plan", recipe, "-o", plan, *(f"--set={each}" for each in (*text, *settings))],
                       check=True, stderr=subprocess.DEVNULL)
        subprocess.run(["shardc-run", plan, f"--metrics={metrics}", *options], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in pathlib.Path(metrics).read_text(encoding="utf-8").splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("--text", default=DOCS, help="of the training data, by default this repository's documentation")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3, 1e-2])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    least = {}
    for way, own in WAYS.items():
        for rate in args.rates:
            settings = [*args.set, *own, f"optimizer.lr={rate}", f"train.train_iters={args.steps}"]
            found = losses(args.recipe, args.text, settings, args.options)
            last = found[-max(len(found) // 5, 1):]
            mean = sum(last) / len(last)
            least[way] = min(least.get(way, mean), mean)
            print(f"{way}, lr {rate:g}: {len(found)} steps, first loss {found[0]:.4f}, mean of the last {len(last)} {mean:.4f}", flush=True)
    print(", ".join(f"{way} {loss:.4f}" for way, loss in least.items()))


if __name__ == "__main__":
    main()
