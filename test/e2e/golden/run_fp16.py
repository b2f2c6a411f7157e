#!/usr/bin/env python3
"""Trains golden cases in fp16 and compares losses and the history of the loss scale with PyTorch's. Needs nothing but Python.

    run_fp16.py history CASE [--ranks N...] [--strategies S...]   PyTorch's scales, skipped steps and losses
    run_fp16.py rules CASE [--ranks N...] [--strategies S...]     hysteresis, smallest scale, gradients that travel in fp16
    run_fp16.py resume CASE FORMAT...                             a run from a checkpoint goes on to the bit
    run_fp16.py convert CASE FORMAT...                            and from what a conversion makes of that checkpoint as from itself
"""

import argparse
import itertools
import json
import pathlib
import sys
import tempfile

from run_golden import HERE, STRATEGIES, call

FP16 = ["mixed_precision=fp16_mixed"]
FP32_SUMS = ["mixed_precision.grad_reduce_in_fp32=true"]
SAVES = {"torch_dist": "optim", "fsdp_dtensor": "optim_grads_params"}


def train(case, settings, folder):
    """The metrics of a run's steps."""
    plan, metrics = folder / "job.plan", folder / "metrics"
    call("shardc", "dump-plan", f"{case}.recipe", "-o", plan, *(f"--set={s}" for s in [*FP16, *settings]))
    metrics.unlink(missing_ok=True)
    call("shardc-run", plan, f"--metrics={metrics}")
    return [row for row in map(json.loads, metrics.read_text().splitlines()) if "grad_norm" in row]


def history(skipped, first, window, hysteresis=1, smallest=0.0):
    """The scale after each step, from its description in docs/plan.md."""
    scale, grown, left = first, 0, hysteresis
    for step in skipped:
        grown = 0 if step else grown + 1
        left -= step
        if step and left <= 0:
            scale = max(scale / 2, smallest)
        if grown == window:
            scale, grown, left = scale * 2, 0, hysteresis
        yield scale


def expect(condition, text):
    if not condition:
        sys.exit(text)


def check_lr(rows, golden):
    """The schedule counts applied updates only."""
    for row, lr in zip(rows, golden["lr"]):
        expect(abs(row["lr"] - lr) < 1e-6 * max(golden["lr"]), f"step {row['step']}: lr {row['lr']} instead of {lr}")


def check_history(case, ranks, strategy):
    golden = json.loads((HERE / "values" / f"{case}_fp16.json").read_text())
    settings = [*STRATEGIES[strategy], *FP32_SUMS, f"cluster.gpus_per_node={ranks}", f"train.train_iters={golden['steps']}",
                f"optimizer.initial_loss_scale={golden['first_scale']}", "optimizer.hysteresis=1",
                f"optimizer.loss_scale_window={golden['window']}", "optimizer.min_loss_scale=1e-9"]
    with tempfile.TemporaryDirectory() as folder:
        rows = train(case, settings, pathlib.Path(folder))
    expect(len(rows) == golden["steps"], f"{len(rows)} steps")
    skipped, scales = [row["skipped"] for row in rows], [row["loss_scale"] for row in rows]
    agree = golden["agree"]
    for i in range(agree):
        expect((skipped[i], scales[i]) == (golden["skipped"][i], golden["scale"][i]),
               f"step {i + 1}: skipped {skipped[i]}, scale {scales[i]}; PyTorch has {golden['skipped'][i]}, {golden['scale'][i]}")
    expect(scales == list(history(skipped, golden["first_scale"], golden["window"])), "scales do not follow from skipped steps")
    check_lr(rows[:agree], golden)
    worst = {}
    for key in ("loss", "grad_norm"):
        pairs = [(row[key], want) for row, want in zip(rows[:golden["settled"]], golden[key]) if want is not None]
        worst[key] = max(abs(got - want) / abs(want) for got, want in pairs)
        expect(worst[key] <= golden["tolerance"][key], f"{key} is off by {worst[key]:.1e}, allowed {golden['tolerance'][key]:.1e}")
    print(f"{case}, ranks {ranks}, {strategy}: {sum(skipped)} of {len(rows)} steps skipped, {agree} as in PyTorch; "
          f"loss off by {worst['loss']:.1e}, norm by {worst['grad_norm']:.1e}", flush=True)


def check_rules(case, ranks, strategy):
    settings = [*STRATEGIES[strategy], f"cluster.gpus_per_node={ranks}", "train.train_iters=60", "optimizer.hysteresis=2",
                "optimizer.initial_loss_scale=16777216", "optimizer.loss_scale_window=4", "optimizer.min_loss_scale=262144"]
    with tempfile.TemporaryDirectory() as folder:
        rows = train(case, settings, pathlib.Path(folder))
    skipped, scales = [row["skipped"] for row in rows], [row["loss_scale"] for row in rows]
    expect(scales == list(history(skipped, 2.0**24, 4, 2, 2.0**18)), f"scales {scales} do not follow from skipped steps {skipped}")
    expect(0 < sum(skipped) < len(rows), f"{sum(skipped)} of {len(rows)} steps are skipped")
    print(f"{case}, ranks {ranks}, {strategy}, gradients in fp16: {sum(skipped)} of {len(rows)} steps skipped", flush=True)


def settings_of(format_):
    return [*STRATEGIES[SAVES[format_]], f"checkpoint.ckpt_format={format_}", "cluster.gpus_per_node=2", "train.train_iters=40",
            "optimizer.loss_scale_window=4", "optimizer.initial_loss_scale=16777216"]


def run_and_save(case, format_, folder):
    return train(case, [*settings_of(format_), f'checkpoint.save="{folder}/saved"', "checkpoint.save_interval=17"], folder)


def check_resume(case, format_):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rows = run_and_save(case, format_, folder)
        again = train(case, [*settings_of(format_), f'checkpoint.load="{folder}/saved"', "checkpoint.ckpt_step=17"], folder)
    expect(any(row["skipped"] for row in rows[:17]) and any(row["skipped"] for row in rows[17:]), "no step is skipped on both sides")
    check_rest(case, format_, rows[17:], again)


CONVERSIONS = {"torch_dist": ("fsdp_dtensor", "torch-dist-to-fsdp-dtensor", ["--swiglu"]),
               "fsdp_dtensor": ("torch_dist", "fsdp-dtensor-to-torch-dist", [])}


def check_convert(case, format_):
    """The converted checkpoint, and that one on other ranks, which differs in no value. The strategies do not overflow alike, so
    both runs are of the other format's."""
    target, conversion, options = CONVERSIONS[format_]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run_and_save(case, format_, folder)
        call("shardc", "ckpt", "convert", conversion, folder / "saved/iter_0000017", folder / "converted", *options)
        call("shardc", "ckpt", "reshard", folder / "converted", folder / "cut", "--ranks=3")
        call("shardc", "ckpt", "diff", folder / "converted", folder / "cut")
        settings = settings_of(target)
        rows = train(case, [*settings, f'checkpoint.load="{folder}/saved/iter_0000017"', "checkpoint.convert_on_load=true"], folder)
        again = train(case, [*settings, f'checkpoint.load="{folder}/cut"'], folder)
    check_rest(case, f"{format_} to {target}", rows, again)


def check_rest(case, what, rows, again):
    keys = ("step", "loss", "grad_norm", "lr", "loss_scale", "skipped")
    want, got = ([[row[key] for key in keys] for row in part] for part in (rows, again))
    expect(len(got) == 23, f"{what}: {len(got)} steps")
    for a, b in itertools.zip_longest(want, got):
        expect(a == b, f"{what}: {b} instead of {a}")
    print(f"{case}, {what}: {len(got)} steps after the checkpoint are the same", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("history", "rules", "resume", "convert"))
    parser.add_argument("case")
    parser.add_argument("formats", nargs="*", choices=[*SAVES, []])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=["no_shard"])
    args = parser.parse_args()
    if args.what in ("resume", "convert"):
        for format_ in args.formats:
            (check_resume if args.what == "resume" else check_convert)(args.case, format_)
        return
    check = check_history if args.what == "history" else check_rules
    for ranks, strategy in itertools.product(args.ranks, args.strategies):
        check(args.case, ranks, strategy)


if __name__ == "__main__":
    sys.exit(main())
