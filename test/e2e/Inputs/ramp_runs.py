#!/usr/bin/env python3
"""Runs small recipes whose global batch size grows (train.rampup_batch_size). Only Python is needed.

    ramp_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the feature to test:
    chain     a run whose batch grows, and runs of one size each that go on from each other's checkpoints: to the bit, with
              and without checkpoints of its own; it saves where its batch changes
    sizes     each step has the size that Megatron-Core's formula gives for the samples before it
    schedule  learning rate and weight decay are Megatron's, of the samples that were trained on
    resume    stopped in the middle of a size, where one ends, and behind the ramp: what a run that never stopped gives, to the
              bit, with the same counters in its checkpoints
    others    it goes on from a run of another batch size with the size that the consumed samples give, up to as many samples;
              samples that are no whole number of its steps are refused
    options   evaluations, skipped steps, and data in a random order, likewise
    steps     the sizes of a step schedule (train.step_batch_size_schedule) are Megatron-Core's, also after a resume
    file      the plans in a file run as the recipe does; a plan that is missing is an error; the arguments in a checkpoint
              are imported as a recipe with the same ramp
"""

import json
import math

from option_runs import Trial, expect, run_check

SEQUENCE = 32
SAMPLES = 120
RAMP = [4, 4, 48]
BATCH = 12
STEPS = [(4, 6), (8, 9), (12, 15)]  # sizes, and the last step of each
RISES = ["train.train_iters=none", f"train.train_samples={SAMPLES}", f"train.global_batch_size={BATCH}",
         f"train.rampup_batch_size={RAMP}", "train.micro_batch_size=1", "scheduler.lr_warmup_iters=0"]


def megatron_sizes(ramp, batch, samples):
    """The sizes of the steps, by the formula of RampupBatchsizeNumMicroBatchesCalculator; whole batches only."""
    start, increment, over = ramp
    each = over / ((batch - start) // increment)
    sizes, consumed = [], 0
    while True:
        size = batch if consumed > over else start + int(consumed / each) * increment
        if consumed + size > samples:
            return sizes
        sizes.append(size)
        consumed += size


def scheduled_sizes(schedule, samples):
    """The sizes of the steps, by StepBatchsizeNumMicroBatchesCalculator; whole batches only."""
    sizes, consumed = [], 0
    while True:
        size = schedule[0][1]
        for threshold, batch in schedule:
            if consumed >= threshold // SEQUENCE:
                size = batch
        if consumed + size > samples:
            return sizes
        sizes.append(size)
        consumed += size


def numbers(lines):
    return [[line[key] for key in ("step", "loss", "grad_norm", "tokens")] for line in lines]


def expect_same(what, one, other):
    for a, b in zip(one, other):
        expect(a == b, f"{what}: {a} and {b}")
    expect(len(one) == len(other), f"{what}: {len(one)} and {len(other)}")


def state_of(trial, name, step):
    """Counters and schedule of a checkpoint."""
    said = trial.runner.call(["shardc", "ckpt", "inspect", str(trial.folder / name / f"iter_{step:07}")])
    return [line for line in said.splitlines() if "samples" in line or "num_steps" in line or "step" in line.split(":")[0]]


def check_chain(trial):
    whole, _, said = trial.run(RISES)
    expect([line["tokens"] for line in whole] == [size * SEQUENCE for size in megatron_sizes(RAMP, BATCH, SAMPLES)],
           f"tokens {[line['tokens'] for line in whole]}")
    expect("from step 7 on the global batch has 8 sequences" in said, said)
    chain, before = [], []
    for size, last in STEPS:
        lines, _, _ = trial.run(["train.micro_batch_size=1", f"train.global_batch_size={size}", f"train.train_iters={last}",
                                 "scheduler.lr_warmup_iters=0", *before, *trial.saves("chain")])
        chain += lines
        before = [f"checkpoint.load={trial.folder / 'chain'}"]
    expect_same("a growing batch and runs of one size each", numbers(whole), numbers(chain))
    saving, _, _ = trial.run([*RISES, *trial.saves("own"), "checkpoint.save_interval=4"])
    expect_same("with and without checkpoints", numbers(whole), numbers(saving))
    expect(trial.saved("own") == [4, 6, 8, 9, 12, 15], f"saved {trial.saved('own')}")


def check_sizes(trial):
    for ramp, batch, samples in (([2, 2, 10], 8, 60), ([2, 4, 7], 14, 90), ([6, 2, 100], 10, 60), ([4, 4, 30], 4, 20),
                                 ([2, 2, 33], 12, 41)):
        lines, _, _ = trial.run([*RISES, f"train.rampup_batch_size={ramp}", f"train.global_batch_size={batch}",
                                 f"train.train_samples={samples}"])
        wanted = megatron_sizes(ramp, batch, samples) if ramp[0] < batch else [batch] * (samples // batch)
        expect([line["tokens"] // SEQUENCE for line in lines] == wanted, f"{ramp}: {lines} and not {wanted}")


def check_schedule(trial):
    lr, least, warmup, decay = 1e-2, 1e-3, 20, 100
    settings = [*RISES, "scheduler.lr_decay_style=cosine", f"optimizer.lr={lr}", f"optimizer.min_lr={least}",
                f"scheduler.lr_warmup_samples={warmup}", f"scheduler.lr_decay_samples={decay}",
                "scheduler.weight_decay_incr_style=linear", "scheduler.start_weight_decay=0.01", "scheduler.end_weight_decay=0.1"]
    lines, _, _ = trial.run([*settings, *trial.saves("a")])
    done = 0
    for line, size in zip(lines, megatron_sizes(RAMP, BATCH, SAMPLES)):
        share = min((done - warmup) / (decay - warmup), 1)
        rate = lr * done / warmup if done <= warmup else least + (lr - least) * 0.5 * (math.cos(math.pi * share) + 1)
        expect(abs(line["lr"] - rate) <= 1e-6 * lr, f"step {line['step']}: rate {line['lr']}, not {rate}")
        weight_decay = 0.01 + done / SAMPLES * (0.1 - 0.01)
        expect(abs(line["weight_decay"] - weight_decay) <= 1e-6, f"step {line['step']}: {line['weight_decay']}, not {weight_decay}")
        done += size
    rest, _, _ = trial.run([*settings, f"checkpoint.load={trial.folder / 'a'}", "checkpoint.ckpt_step=6"])
    expect_same("rates of a resumed run", [line["lr"] for line in lines[6:]], [line["lr"] for line in rest])


def check_resume(trial):
    settings = [*RISES, "scheduler.lr_decay_style=linear", "optimizer.min_lr=1e-5"]
    whole, _, _ = trial.run([*settings, *trial.saves("whole"), "checkpoint.save_interval=1"])
    for step in (4, 6, 7, 9, 11):
        name = f"stopped{step}"
        first, _, _ = trial.run([*settings, *trial.saves(name), f"train.exit_interval={step}"])
        expect(trial.saved(name)[-1] == step, f"saved {trial.saved(name)}, not up to {step}")
        rest, _, _ = trial.run([*settings, *trial.saves(name), f"checkpoint.load={trial.folder / name}"])
        expect_same(f"stopped after step {step}", numbers(whole), numbers(first + rest))
        for saved in (step, 15):
            expect(state_of(trial, name, saved) == state_of(trial, "whole", saved), f"{name}: step {saved} has other counters")


def check_others(trial):
    for steps in (7, 8):
        trial.run(["train.micro_batch_size=1", "train.global_batch_size=4", f"train.train_iters={steps}",
                   "scheduler.lr_warmup_iters=0", *trial.saves(f"of{steps}")])
    lines, _, _ = trial.run([*RISES, f"checkpoint.load={trial.folder / 'of8'}"])
    sizes = [8, 8, 12, 12, 12, 12, 12, 12]  # after 32 samples
    expect([(line["step"], line["tokens"] // SEQUENCE) for line in lines] == list(enumerate(sizes, 9)), f"{lines}")
    trial.refused([*RISES, f"checkpoint.load={trial.folder / 'of7'}"], "has consumed 28 samples",
                  "take 8 samples from 24 on, which do not end there", "checkpoint-mismatch")


def check_options(trial):
    evaluates = [*RISES, "validation.eval_interval=4", "validation.eval_iters=2"]
    whole, losses, _ = trial.run(evaluates)
    expect([line["step"] for line in losses] == [4, 8, 12], f"evaluations {losses}")
    first, before, _ = trial.run([*evaluates, *trial.saves("a"), "train.exit_interval=7"])
    rest, after, _ = trial.run([*evaluates, f"checkpoint.load={trial.folder / 'a'}"])
    expect_same("steps with evaluations", numbers(whole), numbers(first + rest))
    expect_same("evaluations", losses, before + after)
    skips = [*RISES, "train.iterations_to_skip=[2, 6, 7, 12]"]
    lines, _, _ = trial.run(skips)
    sizes = megatron_sizes(RAMP, BATCH, SAMPLES)
    expect([(line["step"], line["tokens"] // SEQUENCE) for line in lines] ==
           [(step, size) for step, size in enumerate(sizes, 1) if step not in (2, 6, 7, 12)], f"{lines}")
    alone, _, _ = trial.run([*skips, *trial.saves("b"), "train.exit_interval=8"])
    rest, _, _ = trial.run([*skips, f"checkpoint.load={trial.folder / 'b'}"])
    expect_same("with skipped steps", numbers(lines), numbers(alone + rest))


def check_steps(trial):
    alone = ["train.train_iters=none", f"train.train_samples={SAMPLES}", "train.global_batch_size=none",
             "train.micro_batch_size=1", "scheduler.lr_warmup_iters=0"]
    for text, schedule in (("0:4 768:8 1.5K:12", [(0, 4), (768, 8), (1500, 12)]), ("0:8, 1k:2, 2k:8", [(0, 8), (1000, 2), (2000, 8)]),
                           ("0:12 40:4 100:8", [(0, 12), (40, 4), (100, 8)])):
        settings = [*alone, f'train.step_batch_size_schedule="{text}"']
        whole, _, _ = trial.run(settings)
        sizes = [line["tokens"] // SEQUENCE for line in whole]
        expect(sizes == scheduled_sizes(schedule, SAMPLES), f"{text}: {sizes}")
        name = f"of{schedule[0][1]}"
        first, _, _ = trial.run([*settings, *trial.saves(name), "train.exit_interval=7"])
        rest, _, _ = trial.run([*settings, f"checkpoint.load={trial.folder / name}"])
        expect_same(f"{text}, stopped and resumed", numbers(whole), numbers(first + rest))


def check_file(trial):
    whole, _, _ = trial.run(RISES)
    path = trial.folder / "job.plan"
    trial.runner.call(["shardc", "dump-plan", trial.runner.recipe, "-o", str(path), *trial.runner.arguments(RISES)])
    metrics = trial.folder / "of_file.jsonl"
    trial.runner.call(["shardc", "run", str(path), f"--metrics={metrics}"])
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    expect_same("the plans of a file", numbers(whole), numbers(lines))
    text = path.read_text()
    plans = ["shardc.plan " + part for part in text.split("shardc.plan ")[1:]]
    expect(len(plans) == len(STEPS), f"{len(plans)} plans")
    for rest, word in ((plans[1:], "those of the steps before are missing"), (plans[::2], "ends after 24")):
        path.write_text("".join(rest))
        said = trial.fails(["shardc", "run", str(path)])
        expect(word in said, said)
    trial.run([*RISES, *trial.saves("a")])
    recipe = trial.folder / "imported.recipe"
    trial.runner.call(["shardc", "import", "megatron-args", str(trial.folder / "a"), "-o", str(recipe)])
    for setting in (f"rampup_batch_size = {RAMP}", f"train_samples = {SAMPLES}"):
        expect(setting in recipe.read_text(), recipe.read_text())
    trial.runner.call(["shardc", "check", str(recipe), "--set", "cluster.gpu=host"])


if __name__ == "__main__":
    run_check(globals(), ["scheduler.lr_decay_style=constant"])
