#!/usr/bin/env python3
"""Runs whose options come from a checkpoint. Only Python is needed.

    checkpoint_options_runs.py CHECK RECIPE [--set path=value ...]

CHECK is one of:
    args      use_checkpoint_args: a recipe without a model continues the run bitwise equal. Sizes that the recipe sets
              take precedence. Without a checkpoint, the recipe's values are used, with a warning.
    schedule  use_checkpoint_opt_param_scheduler: a recipe with other learning rates continues with the saved ones
"""

import json
import pathlib
import subprocess

from option_runs import Trial, expect, run_check

STEPS = ["train.train_iters=8", "scheduler.lr_warmup_iters=2", "scheduler.lr_decay_style=cosine", "optimizer.lr=0.01",
         "optimizer.min_lr=0.001", "optimizer.weight_decay=0.1"]


def lines_of(lines):
    return [(line["step"], line["loss"], line["lr"], line["grad_norm"]) for line in lines]


def without_model(trial, *more):
    """The recipe's text without its model, which is only named."""
    path = trial.folder / "bare.recipe"
    overlays = pathlib.Path(trial.runner.recipe).resolve().parent.parent / "overlays"
    bases = f'"{overlays / "tiny_host.recipe"}"'
    if "fsdp" in pathlib.Path(trial.runner.recipe).name:
        bases += f', "{overlays / "fsdp.recipe"}"'
    path.write_text(f"recipe bare extends {bases} {{\n  model llama {{}}\n" + "".join(f"  {line}\n" for line in more) + "}\n")
    return path


def run_file(trial, path, settings):
    metrics = trial.folder / "bare.jsonl"
    metrics.unlink(missing_ok=True)
    trial.runner.call(["shardc", "run", str(path), f"--metrics={metrics}", *trial.runner.arguments(settings)])
    said = subprocess.run(["shardc", "check", "--remarks", str(path), *trial.runner.arguments(settings)], capture_output=True,
                          text=True, check=True)
    return [json.loads(line) for line in metrics.read_text().splitlines()], said.stdout + said.stderr


def check_args(trial):
    shape = ["model.rotary_base=500", "model.add_qkv_bias=true"]
    whole, _, _ = trial.run([*STEPS, *shape, *trial.saves("a"), "checkpoint.save_interval=4"])
    loads = [f"checkpoint.load={trial.folder / 'a'}", "checkpoint.ckpt_step=4", "checkpoint.use_checkpoint_args=true"]
    rest, said = run_file(trial, without_model(trial, "model.rotary_base = 900"), [*STEPS, *loads])
    expect(lines_of(rest) == lines_of(whole[4:]), f"{lines_of(rest)}, not {lines_of(whole[4:])}")
    expect("'model.num_layers' is 2 by checkpoint" in said and "[taken-from-checkpoint]" in said, said)
    expect("'model.rotary_base' is 500.0 by checkpoint" in said and "the recipe has 900.0" in said, said)
    path = without_model(trial, "model.num_layers = 3")
    said = trial.fails(["shardc", "run", str(path), *trial.runner.arguments([*STEPS, *loads])])
    expect("num_layers value from checkpoint (2) is not equal to the input argument value (3)" in said, said)
    first, said = run_file(trial, without_model(trial, "model.num_layers = 2", "model.hidden_size = 32",
                                                "model.num_attention_heads = 2", "model.seq_length = 32"),
                           [*STEPS, f"checkpoint.load={trial.folder / 'none'}", "checkpoint.use_checkpoint_args=true",
                            "checkpoint.exit_on_missing_checkpoint=false"])
    expect("'checkpoint.use_checkpoint_args' is on, but" in said and "[checkpoint-settings-missing]" in said, said)
    expect(len(first) == 8, f"{len(first)} steps")


def check_schedule(trial):
    whole, _, _ = trial.run([*STEPS, *trial.saves("a"), "checkpoint.save_interval=4"])
    other = ["train.train_iters=8", "scheduler.lr_warmup_iters=0", "scheduler.lr_decay_style=linear", "optimizer.lr=0.5",
             "optimizer.min_lr=0.0", "optimizer.weight_decay=0.0", f"checkpoint.load={trial.folder / 'a'}",
             "checkpoint.ckpt_step=4"]
    rest, _, said = trial.run([*other, "scheduler.use_checkpoint_opt_param_scheduler=true"])
    expect(lines_of(rest) == lines_of(whole[4:]), f"{lines_of(rest)}, not {lines_of(whole[4:])}")
    expect("schedule-changed" not in said, said)
    own, _, said = trial.run(other)
    expect(lines_of(own) != lines_of(whole[4:]) and "schedule-changed" in said, said)


if __name__ == "__main__":
    run_check(globals(), [], Trial)
