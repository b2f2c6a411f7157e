#!/usr/bin/env python3
"""Trains a model on this repository's documentation with AdamW and with Muon, at several learning rates. Needs only Python.

    muon_curve.py RECIPE [--text FOLDER] [--steps N] [--rates R...] [--set path=value ...] [--plans FOLDER] [-- OPTION...]

For each optimizer and rate, prints the loss every 50 steps and the mean loss of the last fifth of the steps; at the
end, the smallest loss of each optimizer. Both see the same tokens. With --plans it only writes the plans into FOLDER,
which needs no GPU. With FOLDER in place of RECIPE it runs these plans, which needs no compiler. OPTIONs go to
shardc-run. shardc and shardc-run are found on PATH.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
WAYS = {"adam": [], "muon": ["optimizer.optimizer=muon", "optimizer.muon_extra_scale_factor=0.2"]}


def compile_plans(args, folder):
    """Compiles a plan for each optimizer and rate."""
    for way, own in WAYS.items():
        for rate in args.rates:
            settings = ["dataset.kind=text", f'dataset.data_path=["{args.text}"]', "logger.log_interval=1", *args.set, *own,
                        f"optimizer.lr={rate}", f"train.train_iters={args.steps}"]
            subprocess.run(["shardc", "dump-plan", args.recipe, "-o", folder / f"{way}-{rate:g}.plan",
                            *(f"--set={each}" for each in settings)], check=True, stderr=subprocess.DEVNULL)


def losses(plan, options):
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        subprocess.run(["shardc-run", plan, f"--metrics={metrics}", *options], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def run_plans(folder, options):
    least = {}
    for plan in sorted(folder.glob("*.plan")):
        way, rate = plan.stem.split("-", 1)
        found = losses(plan, options)
        last = found[-max(len(found) // 5, 1):]
        mean = sum(last) / len(last)
        least[way] = min(least.get(way, mean), mean)
        after = ", ".join(f"{step}: {found[step - 1]:.4f}" for step in range(50, len(found) + 1, 50))
        print(f"{way}, lr {rate}: first loss {found[0]:.4f}, {after}, mean of the last {len(last)} {mean:.4f}", flush=True)
    print(", ".join(f"{way} {loss:.4f}" for way, loss in least.items()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("--text", default=DOCS, help="of the training data, by default this repository's documentation")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3, 1e-2])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--plans", type=pathlib.Path, help="write the plans into this folder, and run nothing")
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    if pathlib.Path(args.recipe).is_dir():
        return run_plans(pathlib.Path(args.recipe), args.options)
    with tempfile.TemporaryDirectory() as folder:
        plans = args.plans or pathlib.Path(folder)
        plans.mkdir(exist_ok=True)
        compile_plans(args, plans)
        if not args.plans:
            run_plans(plans, args.options)


if __name__ == "__main__":
    main()
