#!/usr/bin/env python3
"""Runs small recipes with options that say when a run trains, evaluates, saves and ends. Only Python is needed.

    option_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the feature to test:
    evaluation  skip_train evaluates once, with the loss of a run that trained; start_eval_at_iter leaves evaluations out
    ends        exit_interval and exit_duration_in_mins end a run early, and the rest of it gives the same losses
    kept        save_retain_interval keeps multiples of it and the newest
    samples     lengths in samples are those in steps; the rate is Megatron's formula
    folders     checkpoints of another run are not replaced, and a missing one is an error, unless asked for
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from compare_runs import Runner

TRACKER = "latest_checkpointed_iteration.txt"


def expect(condition, text):
    if not condition:
        sys.exit(text)


class Trial:
    def __init__(self, runner):
        self.runner = runner
        self.place = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.place.name)

    def fails(self, command, status=1):
        """What a command says that ends with a status of failure."""
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        expect(done.returncode == status, f"status {done.returncode}, not {status}\n{said}")
        return said

    def refused(self, settings, *words):
        """A run that ends with status 1 and a message with these words."""
        said = self.fails(["shardc", "run", self.runner.recipe, *self.runner.arguments(settings)])
        for word in words:
            expect(word in said, f"no '{word}' in\n{said}")

    def run(self, settings):
        """The metrics of steps, the metrics of evaluations, and the output."""
        metrics = self.folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        said = self.runner.call(["shardc", "run", self.runner.recipe, f"--metrics={metrics}",
                                 *self.runner.arguments(settings)])
        lines = read_lines(metrics)
        return [line for line in lines if "loss" in line], [line for line in lines if "eval_loss" in line], said

    def run_short(self, settings):
        """The same of the plan, with two seconds in place of a minute."""
        plan, metrics = self.folder / "job.plan", self.folder / "metrics.jsonl"
        self.runner.call(["shardc", "dump-plan", self.runner.recipe, "-o", plan, *self.runner.arguments(settings)])
        text = plan.read_text().replace("train.exit_duration_in_mins = 1.0", "train.exit_duration_in_mins = 0.0333")
        text = re.sub(r"^specification \{.*?^\}\n", "", text, flags=re.MULTILINE | re.DOTALL)  # whose job has a minute
        plan.write_text(re.sub(" hash [0-9a-f]+", "", text, count=1))
        metrics.unlink(missing_ok=True)
        said = self.runner.call(["shardc-run", plan, f"--metrics={metrics}"])
        return read_lines(metrics), said

    def saves(self, name):
        return [f"checkpoint.save={self.folder / name}"]

    def saved(self, name):
        return sorted(int(path.name[5:]) for path in (self.folder / name).glob("iter_*"))


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def losses(lines):
    return [(line["step"], line["loss"], line["lr"]) for line in lines]


def check_evaluation(trial):
    evaluates = ["validation.eval_iters=2", "train.train_iters=6"]
    _, whole, _ = trial.run([*evaluates, "validation.eval_interval=4"])
    expect([line["step"] for line in whole] == [4], f"evaluations {whole}")
    late = [*evaluates, "validation.eval_interval=4", "validation.start_eval_at_iter=5"]
    _, none, _ = trial.run([*late, *trial.saves("a"), "train.exit_interval=4"])
    expect(none == [], f"evaluations {none} before step 5")
    files = sorted(trial.folder.glob("a/**/*"))
    steps, once, said = trial.run([*late, *trial.saves("a"), f"checkpoint.load={trial.folder / 'a'}",
                                   "validation.skip_train=true"])
    expect(steps == [] and once == whole, f"steps {steps}; evaluated {once}, not {whole}")
    expect("evaluation after step 4" in said, said)
    expect(sorted(trial.folder.glob("a/**/*")) == files, "a run that does not train has saved")
    _, first, _ = trial.run([*evaluates, "validation.eval_interval=4", "validation.skip_train=true"])
    expect([line["step"] for line in first] == [0], f"evaluations {first}")
    # The interval is beyond the steps, which are none.
    _, beyond, _ = trial.run([*evaluates, "validation.eval_interval=50", "validation.skip_train=true"])
    expect(beyond == first, f"evaluations {beyond}, not {first}")
    _, six, _ = trial.run([*evaluates, "validation.eval_interval=6"])
    _, two, _ = trial.run([*evaluates, "validation.eval_interval=2", "validation.start_eval_at_iter=5"])
    expect(two == six, f"evaluations {two}, not {six}")
    trial.refused(["validation.skip_train=true", "validation.eval_iters=0"], "skip-train-without-evaluation")


def check_ends(trial):
    whole, _, _ = trial.run(["train.train_iters=10"])
    parts = []
    for last in (4, 8, 10):
        lines, _, _ = trial.run(["train.train_iters=10", "train.exit_interval=4", *trial.saves("a"),
                                 f"checkpoint.load={trial.folder / 'a'}"])
        expect(lines[-1]["step"] == last, f"ends after step {lines[-1]['step']}, not {last}")
        parts += lines
    expect(losses(parts) == losses(whole), "a run in parts differs from one that is whole")
    lines, said = trial.run_short(["train.train_iters=10_000_000", "train.exit_duration_in_mins=1", *trial.saves("b")])
    expect("stopped after" in said, said)
    expect(trial.saved("b") == [lines[-1]["step"]], f"saved {trial.saved('b')}, ended after {lines[-1]['step']}")


def check_kept(trial):
    every = ["train.train_iters=7", "checkpoint.save_interval=1", "checkpoint.save_retain_interval=3"]
    for name, settings, kept in (("a", [], [3, 6, 7]), ("b", ["checkpoint.most_recent_k=3"], [3, 5, 6, 7])):
        trial.run([*every, *settings, *trial.saves(name)])
        expect(trial.saved(name) == kept, f"kept {trial.saved(name)}, not {kept}")


def check_samples(trial):
    batch = 4
    both = [f"train.global_batch_size={batch}", "optimizer.lr=1e-2", "optimizer.min_lr=1e-3"]
    steps, _, _ = trial.run([*both, "train.train_iters=10", "scheduler.lr_decay_style=linear", "scheduler.lr_warmup_iters=3",
                             "scheduler.lr_decay_iters=8"])
    counted = ["train.train_iters=none", "scheduler.lr_warmup_iters=0"]
    samples, _, _ = trial.run([*both, *counted, "train.train_samples=42", "scheduler.lr_decay_style=linear",
                               "scheduler.lr_warmup_samples=12", "scheduler.lr_decay_samples=32"])
    expect(losses(samples) == losses(steps), f"{losses(samples)}\n{losses(steps)}")
    for line in samples:
        done = (line["step"] - 1) * batch  # Megatron's num_steps when the step is taken
        rate = 1e-2 * done / 12 if done <= 12 else 1e-3 + (1e-2 - 1e-3) * (1 - min((done - 12) / 20, 1))
        expect(abs(line["lr"] - rate) <= 1e-6 * 1e-2, f"step {line['step']}: rate {line['lr']}, not {rate}")
    wsd = [*both, "scheduler.lr_decay_style=WSD", "scheduler.lr_wsd_decay_style=linear"]
    steps, _, _ = trial.run([*wsd, "train.train_iters=10", "scheduler.lr_warmup_iters=0", "scheduler.lr_wsd_decay_iters=4"])
    samples, _, _ = trial.run([*wsd, *counted, "train.train_samples=40", "scheduler.lr_wsd_decay_samples=16"])
    expect(losses(samples) == losses(steps), f"{losses(samples)}\n{losses(steps)}")


def check_folders(trial):
    folder = trial.folder / "a"
    trial.run(["train.train_iters=6", *trial.saves("a")])
    again = ["train.train_iters=4", *trial.saves("a")]
    trial.refused(again, "has checkpoints of another run up to step 6, and this run begins at step 0",
                  "would-overwrite-checkpoints")
    expect((folder / TRACKER).read_text().strip() == "6", "a refused run moved the tracker")
    finetune = [*again, f"checkpoint.load={folder}", "checkpoint.finetune=true", "dataset.kind=synthetic"]
    trial.refused(finetune, "would-overwrite-checkpoints")
    trial.run(["train.train_iters=8", *trial.saves("a"), f"checkpoint.load={folder}/"])
    expect(trial.saved("a") == [6, 8], f"saved {trial.saved('a')}")
    trial.run(["train.train_iters=8", *trial.saves("a"), f"checkpoint.load={folder}", "checkpoint.ckpt_step=6"])
    trial.run([*again, "checkpoint.overwrite=true"])
    expect((folder / TRACKER).read_text().strip() == "4", "the tracker does not name what was asked for")
    trial.refused(["train.train_iters=9", f"checkpoint.load={trial.folder / 'typo'}"], "checkpoint-not-found")
    trial.run(["train.train_iters=2", f"checkpoint.load={trial.folder / 'typo'}",
               "checkpoint.exit_on_missing_checkpoint=false"])
    trial.run(["train.train_iters=2", *trial.saves("new"), f"checkpoint.load={trial.folder / 'new'}"])


def run_check(script, settings, kind=None):
    """Runs the check that the command line names, one of the script's `check_…` functions."""
    checks = {name[6:]: check for name, check in script.items() if name.startswith("check_")}
    parser = argparse.ArgumentParser(description=script["__doc__"], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=sorted(checks))
    parser.add_argument("recipe")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    options = parser.parse_args()
    checks[options.check]((kind or Trial)(Runner(options.recipe, [*settings, *options.settings])))


if __name__ == "__main__":
    run_check(globals(), ["scheduler.lr_decay_style=constant"])
