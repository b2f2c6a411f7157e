#!/usr/bin/env python3
"""Runs small recipes with options that say what a step's update does, or that it is left out. Only Python is needed.

    step_options.py CHECK RECIPE [--set path=value ...]

CHECK is the feature to test:
    decay      weight decay follows Megatron's get_wd: each step is, to the bit, one of a run whose constant decay is
               what the formula gives; resumed runs and lengths in samples too
    decoupled  embedding and output layer follow Megatron's get_lr with bounds of their own, and with rates of zero stay
               what they are, while all else is trained
    skipped    steps of iterations_to_skip take their samples and nothing else, whole and resumed; none saves, evaluates
               or ends the run
    threshold  steps whose norm is above grad_norm_skip_threshold leave weights and schedule as they are
    residual   a residual stream in fp32 is nearer to a model of fp32 than one of bf16, in any stages of a pipeline
"""

import json
import math
import subprocess

from option_runs import expect, losses, run_check

STEPS = 6


def decay_at(style, first, last, done, whole):
    """Megatron's get_wd."""
    if done > whole:
        return last
    ratio = done / whole
    return first + (ratio if style == "linear" else 0.5 * (math.cos(math.pi * (1 - ratio)) + 1)) * (last - first)


def rate_at(most, least, done, warmup, whole):
    """Megatron's get_lr with a linear decay."""
    if warmup > 0 and done <= warmup:
        return most * done / warmup
    return least if done > whole else least + (most - least) * (1 - (done - warmup) / (whole - warmup))


def near(found, wanted, what):
    expect(abs(found - wanted) <= 1e-6 * abs(wanted) + 1e-12, f"{what}: {found}, not {wanted}")


def check_decay(trial):
    rate = ["optimizer.lr=1e-2", "scheduler.lr_warmup_iters=0"]
    constant, _, _ = trial.run([*rate, "optimizer.weight_decay=0.7", f"train.train_iters={STEPS}"])
    for style in ("linear", "cosine"):
        grows = [*rate, f"scheduler.weight_decay_incr_style={style}", "scheduler.start_weight_decay=0.0",
                 "scheduler.end_weight_decay=2.0"]
        steps, _, _ = trial.run([*grows, f"train.train_iters={STEPS}"])
        expect(losses(steps) != losses(constant), f"{style}: nothing has changed")
        wanted = [decay_at(style, 0.0, 2.0, i, STEPS) for i in range(STEPS)]
        for line, decay in zip(steps, wanted):
            near(line["weight_decay"], decay, f"{style}, weight decay of step {line['step']}")
        # Another run for each step, with the constant that the formula gives.
        parts = []
        for i, decay in enumerate(wanted):
            lines, _, _ = trial.run([*rate, f"optimizer.weight_decay={decay!r}", f"train.train_iters={i + 1}",
                                     *trial.saves(style), f"checkpoint.load={trial.folder / style}"])
            parts += lines
        expect(losses(parts) == losses(steps), f"{style}\n{losses(parts)}\n{losses(steps)}")
        parts = []
        for last in (2, 4, STEPS):
            lines, _, _ = trial.run([*grows, f"train.train_iters={STEPS}", "train.exit_interval=2", *trial.saves(style + "2"),
                                     f"checkpoint.load={trial.folder / (style + '2')}"])
            expect(lines[-1]["step"] == last, f"ends after step {lines[-1]['step']}")
            parts += lines
        expect(losses(parts) == losses(steps), f"{style}: a resumed run differs")
        samples, _, _ = trial.run([*grows, "train.global_batch_size=4", "train.train_iters=none", "train.train_samples=22"])
        for line in samples:
            decay = decay_at(style, 0.0, 2.0, 4 * (line["step"] - 1), 22)
            near(line["weight_decay"], decay, f"{style}, weight decay at sample {4 * (line['step'] - 1)}")


def check_decoupled(trial):
    schedule = ["train.train_iters=8", "scheduler.lr_decay_style=linear", "scheduler.lr_warmup_iters=2",
                "scheduler.lr_decay_iters=6", "optimizer.lr=1e-2", "optimizer.min_lr=1e-3"]
    plain, _, _ = trial.run(schedule)
    same, _, _ = trial.run([*schedule, "optimizer.decoupled_lr=1e-2"])
    expect(losses(same) == losses(plain), "a rate of its own that equals the other one changes losses")
    own, _, _ = trial.run([*schedule, "optimizer.decoupled_lr=5e-2", "optimizer.decoupled_min_lr=2e-2"])
    expect([line["loss"] for line in own] != [line["loss"] for line in plain], "a rate of its own changes nothing")
    for line in own:
        near(line["decoupled_lr"], rate_at(5e-2, 2e-2, line["step"] - 1, 2, 6), f"rate of its own at step {line['step']}")
        near(line["lr"], rate_at(1e-2, 1e-3, line["step"] - 1, 2, 6), f"rate at step {line['step']}")
    still = [*schedule, "optimizer.min_lr=0.0", "optimizer.decoupled_lr=0.0", "checkpoint.save_interval=2",
             "checkpoint.async_save=false", "train.train_iters=4"]
    trial.run([*still, *trial.saves("still")])
    said = subprocess.run(["shardc", "ckpt", "diff", trial.folder / "still/iter_0000002", trial.folder / "still/iter_0000004",
                           "--json"], capture_output=True, text=True, check=False)
    expect(said.returncode == 1, said.stdout + said.stderr)
    weights = {entry["name"] for entry in json.loads(said.stdout)["tensors"] if "optimizer" not in entry["name"]}
    expect(any("decoder." in name for name in weights), f"changed: {weights}")
    expect(not any("word_embeddings" in name or "output_layer" in name for name in weights), f"changed: {weights}")


def check_skipped(trial):
    skips = ["train.train_iters=7", "train.iterations_to_skip=[2, 5, 5]", "scheduler.lr_decay_style=linear",
             "scheduler.lr_decay_iters=7", "scheduler.lr_warmup_iters=0", "optimizer.lr=1e-2", "optimizer.min_lr=0.0"]
    steps, evaluations, said = trial.run([*skips, "validation.eval_iters=1", "validation.eval_interval=1"])
    expect([line["step"] for line in steps] == [1, 3, 4, 6, 7], f"{steps}")
    expect([line["step"] for line in evaluations] == [1, 3, 4, 6, 7], f"{evaluations}")
    expect("step 2/7  skipped" in said and "after 7 of 7 steps" in said, said)
    for applied, line in enumerate(steps):  # the schedule counts updates
        near(line["lr"], rate_at(1e-2, 0.0, applied, 0, 7), f"rate of step {line['step']}")
    # Without learning, losses are those of the batches.
    still = ["optimizer.lr=0.0", "optimizer.min_lr=0.0", "train.train_iters=7"]
    batches, _, _ = trial.run(still)
    some, _, _ = trial.run([*still, "train.iterations_to_skip=[2, 5]"])
    left = [line["loss"] for line in batches if line["step"] not in (2, 5)]
    expect([line["loss"] for line in some] == left, "samples of other steps")
    parts = []
    for last in (3, 7):  # not at 5, a multiple that is skipped
        lines, _, _ = trial.run([*skips, f"train.exit_interval={3 if last == 3 else 5}", "checkpoint.save_interval=1",
                                 "checkpoint.async_save=true", *trial.saves("a"), f"checkpoint.load={trial.folder / 'a'}"])
        expect(lines[-1]["step"] == last, f"ends after step {lines[-1]['step']}, not {last}")
        parts += lines
    plain, _, _ = trial.run(skips)
    expect(losses(parts) == losses(plain), f"a resumed run differs\n{losses(parts)}\n{losses(plain)}")
    expect(trial.saved("a") == [1, 3, 4, 6, 7], f"saved {trial.saved('a')}")
    # A run that ends with skipped steps is saved at its end, and goes on from there.
    ends = ["train.iterations_to_skip=[1, 2, 5, 6]", "optimizer.lr=1e-2"]
    whole, _, _ = trial.run([*ends, "train.train_iters=8"])
    parts = []
    for last in (2, 6, 8):
        lines, _, _ = trial.run([*ends, f"train.train_iters={last}", *trial.saves("b"), f"checkpoint.load={trial.folder / 'b'}"])
        parts += lines
    expect(trial.saved("b") == [2, 6, 8], f"saved {trial.saved('b')}")
    expect(losses(parts) == losses(whole), f"{losses(parts)}\n{losses(whole)}")


def check_threshold(trial):
    base = [f"train.train_iters={STEPS}", "optimizer.lr=1e-2", "optimizer.clip_grad=0.5", "scheduler.lr_decay_style=linear",
            "scheduler.lr_decay_iters=20"]
    plain, _, _ = trial.run(base)
    most = sorted(line["grad_norm"] for line in plain)[STEPS // 2]
    limit = [*base, f"optimizer.grad_norm_skip_threshold={most!r}"]
    steps, _, said = trial.run(limit)
    left = [line["step"] for line in steps if line["skipped"]]
    expect(left and len(left) < STEPS, f"left out: {left}")
    expect(all((line["grad_norm"] > most) == bool(line["skipped"]) for line in steps), f"{most}: {steps}")
    expect(f"skipped {len(left)}  " in said, said)
    # What is left out changes neither weights nor schedule: as if it were skipped.
    passed, _, _ = trial.run([*base, f"train.iterations_to_skip={left}"])
    expect(losses(passed) == losses([line for line in steps if not line["skipped"]]), f"{passed}\n{steps}")
    parts = []
    for _ in range(2):
        lines, _, _ = trial.run([*limit, f"train.exit_interval={STEPS // 2}", *trial.saves("a"),
                                 f"checkpoint.load={trial.folder / 'a'}"])
        parts += lines
    expect(losses(parts) == losses(steps), "a resumed run differs")
    above, _, _ = trial.run([*base, "optimizer.grad_norm_skip_threshold=1e9"])
    expect(losses(above) == losses(plain) and not any(line["skipped"] for line in above), "a high threshold changes losses")


def check_residual(trial):
    # The losses of one model on many batches: a run that learned would drift.
    still = ["model.num_layers=16", "train.train_iters=12", "optimizer.lr=0.0", "optimizer.min_lr=0.0",
             "model.hidden_dropout=0.0", "model.attention_dropout=0.0", "model.init_method_std=0.1"]
    half, wide = ["mixed_precision=bf16_mixed"], ["mixed_precision=bf16_mixed", "model.fp32_residual_connection=true"]
    whole, narrow, kept = ([line["loss"] for line in trial.run([*still, *kind])[0]] for kind in ([], half, wide))
    far, near_by = (sum(abs(a - b) for a, b in zip(whole, other)) for other in (narrow, kept))
    expect(near_by < 0.8 * far, f"in fp32 {near_by} from the losses of fp32, in bf16 {far}")
    # Dropout and biases belong to the stream; stages of a pipeline move it as it is.
    learns = [*wide, "model.num_layers=4", f"train.train_iters={STEPS}", "optimizer.lr=1e-2", "model.hidden_dropout=0.1"]
    one, _, _ = trial.run([*learns, "cluster.gpus_per_node=1"])
    expect(one[-1]["loss"] < one[0]["loss"], f"nothing is learned: {one}")
    for stages in (2, 4):
        many, _, _ = trial.run([*learns, f"cluster.gpus_per_node={stages}", f"model.pipeline_model_parallel_size={stages}"])
        expect(losses(many) == losses(one), f"{stages} stages: {losses(many)}, not {losses(one)}")


if __name__ == "__main__":
    run_check(globals(), ["scheduler.lr_decay_style=constant"])
