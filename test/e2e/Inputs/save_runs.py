#!/usr/bin/env python3
"""Saves small runs in every configuration and compares the restored state. Needs only Python.

    save_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    background  saves in the background, whole and in pieces: the bytes of saves that steps wait for
    equality    saved under one strategy and size, loaded under another: every weight and moment to
                the bit, losses within 1e-6; all pairs where SHARDC_LONG=1, else some
    converting  checkpoints of one format loaded by runs of another, converting while loading
    momentum    the momentum of SGD is saved and loaded
    moments     moments that a checkpoint lacks count their updates from their own beginning
    vocabulary  vocabularies padded to other sizes
    processes   the same with a process a rank
    smoke       a first run saves, a second continues, without an error about formats
    torch       PyTorch's FSDP2: the losses of full sharding, checkpoints in torch_dcp, others refused
                or converted
    rows        PyTorch's FSDP2 with uneven rows, in torch_dcp and torch_dist, FSDP and one rank: each loads each
                other's state to the bit; all pairs where SHARDC_LONG=1, else the next one's
    stopping    SIGTERM, or the recipe's own signal, while a save is under way; a save that fails ends the run where it should
"""

import filecmp
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from compare_runs import LONG, Runner, close, equal
from resume_runs import (
    REPLICATED, SHARDING, TORCH, expect, limit_files, loads, main, newest, refused, saves, signal_when_saved, under,
)

ASYNC = ["checkpoint.async_save=true"]
STAGED = ["checkpoint.snapshot_staging=48KiB"]  # some of the state, or all of it
PIECES = [*ASYNC, "checkpoint.snapshot_limit=4096"]
TWO_STAGES = "model.pipeline_model_parallel_size=2"
STAGES = {
    "2 stages of 2 ranks": [*under("optim_grads_params", 4), TWO_STAGES],
    "2 stages with 2 chunks": [*under("ddp"), TWO_STAGES, "model.virtual_pipeline_model_parallel_size=2", "model.num_layers=4"],
}
STEPS = 4
CELLS = {"master": "weight", "m": "exp_avg", "v": "exp_avg_sq"}


def output_of(runner, *settings, status=0, words=()):
    command = ["shardc", "run", runner.recipe, *runner.arguments(settings), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    expect(done.returncode == status, f"{settings}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def checkpoints_in(folder):
    """Folders of checkpoints, hidden ones too."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def data_files(folder, step):
    return sorted((folder / f"iter_{step:07}").glob("__*.distcp"))


def same_records(name, a, b, step):
    """Equal up to the file that says with which options it was saved."""
    ours, theirs = data_files(a, step), data_files(b, step)
    expect([f.name for f in ours] == [f.name for f in theirs] and ours, f"{name}: {ours} and {theirs}")
    for x, y in zip(ours, theirs):
        expect(filecmp.cmp(x, y, shallow=False), f"{name}: {x} and {y} differ")
    print(f"{name}: {len(ours)} files equal to the byte")


def check_background(runner, place):
    steps = ["train.train_iters=12"]
    layouts = {**{strategy: under(strategy) for strategy in [*SHARDING, *REPLICATED]}, **STAGES}
    for strategy, layout in runner.in_turn(layouts.items()):
        settings = [*layout, *steps]
        whole = runner.run(*settings)
        waiting, background, pieces = place.new(), place.new(), place.new()
        equal(f"{strategy}: saves that steps wait for", whole, runner.run(*settings, *saves(waiting, 3)))
        staged = STAGED if strategy in STAGES or strategy in SHARDING else []
        equal(f"{strategy}: saves in the background", whole, runner.run(*settings, *saves(background, 3), *ASYNC, *staged))
        for step in (3, 6, 9, 12):
            same_records(f"{strategy}, step {step}", waiting, background, step)
        said = output_of(runner, *settings, *saves(pieces, 3), *PIECES, words=["--remarks"])
        expect("[snapshot-in-pieces]" in said and "pieces, and steps wait" in said, f"no remark\n{said}")
        expect(newest(pieces) == 12, f"the tracker says {newest(pieces)}")
        for folder in (background, pieces):
            rest = runner.run(*settings, *loads(folder), "checkpoint.ckpt_step=6")
            equal(f"{strategy}: 12 steps and those after the 6th", whole[6:], rest)
    kept = place.new()
    runner.run(*under("optim_grads_params"), *steps, *saves(kept, 1), *ASYNC, "checkpoint.most_recent_k=2")
    expect(checkpoints_in(kept) == ["iter_0000011", "iter_0000012"], f"kept {os.listdir(kept)}")
    expect(newest(kept) == 12, "the tracker is behind")
    # A comparison waits for the step before its save begins.
    settings = [*under(REPLICATED[0]), "train.train_iters=4", "train.check_weight_hash_across_dp_replicas_interval=2"]
    waiting, background = place.new(), place.new()
    equal("comparisons", runner.run(*settings, *saves(waiting, 2)), runner.run(*settings, *saves(background, 2), *ASYNC))
    for step in (2, 4):
        same_records(f"comparisons, step {step}", waiting, background, step)


def state_in_memory(folder):
    """Weights and moments as the ranks hold them: (parameter, part) to the bytes of the whole."""
    index = json.loads((folder / "index.json").read_text())
    params = {param["name"]: param["shape"] for param in index["params"]}
    tensors = {}
    for tensor in index["tensors"]:
        data = (folder / tensor["file"]).read_bytes()
        part = CELLS[tensor["name"].lstrip("@").split(".")[0]]
        for piece in tensor["parts"]:
            size = 4
            for extent in params[piece["param"]]:
                size *= extent
            whole = tensors.setdefault((piece["param"], part), bytearray(size))
            begin = 4 * piece["global_begin"]
            values = data[4 * piece["begin"] : 4 * piece["end"]]
            whole[begin : begin + len(values)] = values
    return tensors


def run_and_look(runner, segment, step, *settings):
    """The state after a segment of a step, and the losses of the run."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        runner.call(["shardc", "dump-plan", runner.recipe, "-o", folder / "job.plan", *runner.arguments(settings)])
        looks = [f"--dump={segment}:@{cell}.*" for cell in CELLS]
        records = runner.metrics(
            ["shardc-run", folder / "job.plan", "--dump-dir", folder / "dump", "--dump-step", str(step), *looks]
        )
        return state_in_memory(folder / "dump"), [(record["loss"], record["grad_norm"]) for record in records]


def pairs_of(layouts):
    every = [(a, b) for a in layouts for b in layouts]
    return every if LONG else every[:: 2 * len(layouts) + 3]


def check_equality(runner, place):
    base = ["train.global_batch_size=24", "train.train_iters=6", "mixed_precision=bf16_mixed"]
    for strategies in runner.in_turn((SHARDING, REPLICATED, TORCH)):
        layouts = [(strategy, size) for strategy in strategies for size in (1, 2, 3, 4)]
        saved = {}
        for a, b in pairs_of(layouts):
            if a not in saved:
                folder = place.new()
                more = [] if a[0] in TORCH else ASYNC  # upstream saves torch_dcp with waiting steps only
                settings = [*under(*a), *base, *saves(folder), *more, f"train.exit_interval={STEPS}"]
                saved[a] = (folder, run_and_look(runner, "update", STEPS, *settings)[0], runner.run(*under(*a), *base))
            folder, state, whole = saved[a]
            loaded, rest = run_and_look(runner, "micro", STEPS + 1, *under(*b), *base, *loads(folder))
            name = f"{a[0]} on {a[1]} loaded under {b[0]} on {b[1]}"
            expect(len(state) > 30 and state.keys() == loaded.keys(), f"{name}: {len(state)} and {len(loaded)} tensors")
            unlike = [key for key in state if state[key] != loaded[key]]
            expect(not unlike, f"{name}: {unlike} differ")
            if a == b:
                equal(name, whole[STEPS:], rest)
            else:
                # Weights are bf16 in the products: the sums' order shows in the last bits of the losses.
                close(name, whole[STEPS:], rest, 1e-4)
            print(f"{name}: {len(state)} tensors equal to the bit")


def check_converting(runner, place):
    steps = ["train.train_iters=8"]
    whole = runner.run(*under("ddp"), *steps)
    first = [*steps, "train.exit_interval=4"]
    replicated, sharded = place.new(), place.new()
    runner.run(*under("distributed"), *first, *saves(replicated))
    runner.run(*under("optim_grads_params"), *first, *saves(sharded))
    convert = "checkpoint.convert_on_load=true"
    said = output_of(runner, *under("optim_grads_params"), *first, *loads(replicated), convert)
    expect("is torch_dist, this run's checkpoints are fsdp_dtensor; it is converted" in said, said)
    for strategy in SHARDING:  # those that shard gradients add microbatches in another order
        rest = runner.run(*under(strategy), *steps, *loads(replicated), convert)
        agree = close if "grads" in strategy else equal
        agree(f"torch_dist into {strategy}", whole[4:], rest)
    for strategy in REPLICATED:
        rest = runner.run(*under(strategy), *steps, *loads(sharded), convert)
        close(f"fsdp_dtensor into {strategy}", whole[4:], rest)
    refused(
        runner,
        ["Megatron FSDP only supports fsdp_dtensor checkpoint format", f"torch-dist-to-fsdp-dtensor --swiglu {replicated}",
         "checkpoint.convert_on_load = true"],
        *under("optim"), *loads(replicated),
    )
    refused(
        runner,
        ["fsdp_dtensor checkpoint format only supports Megatron FSDP", f"fsdp-dtensor-to-torch-dist {sharded}"],
        *under("ddp"), *loads(sharded),
    )


def check_torch(runner, place):
    steps = ["train.train_iters=8"]
    first = [*steps, "train.exit_interval=4"]
    own, sharded, replicated = place.new(), place.new(), place.new()
    whole = runner.run(*under("torch_fsdp2"), *steps)
    equal("FSDP2 and optim_grads_params", whole, runner.run(*under("optim_grads_params"), *steps))
    equal("FSDP2 that keeps parameters", whole, runner.run(*under("torch_fsdp2_kept"), *steps))
    runner.run(*under("torch_fsdp2"), *first, *saves(own))
    runner.run(*under("optim_grads_params"), *first, *saves(sharded))
    runner.run(*under("ddp"), *first, *saves(replicated))
    done = subprocess.run(["shardc", "ckpt", "inspect", own, "--json"], capture_output=True, text=True)
    expect(done.returncode == 0 and json.loads(done.stdout)["format"] == "torch_dcp", done.stdout + done.stderr)
    for other, found in ((sharded, "fsdp_dtensor"), (replicated, "torch_dist")):
        said = refused(runner, [f"is {found}, and this run's checkpoints are torch_dcp", "checkpoint.convert_on_load"],
                       *under("torch_fsdp2"), *loads(other))
        expect("shardc ckpt convert" not in said, f"no command makes torch_dcp\n{said}")
    said = refused(runner, ["is torch_dcp, and this run's checkpoints are torch_dist", "checkpoint.convert_on_load"],
                   *under("ddp"), *loads(own))
    expect("shardc ckpt convert" not in said, f"no command makes torch_dist of torch_dcp\n{said}")
    refused(
        runner, ["Megatron FSDP only supports fsdp_dtensor checkpoint format", "is torch_dcp"],
        *under("optim_grads_params"), *loads(own),
    )
    convert = "checkpoint.convert_on_load=true"
    for strategy, folder in (("torch_fsdp2", sharded), ("optim_grads_params", own)):
        equal(f"{folder.name} into {strategy}", whole[4:], runner.run(*under(strategy), *steps, *loads(folder), convert))
    for strategy, folder in (("torch_fsdp2", replicated), ("ddp", own)):
        close(f"{folder.name} into {strategy}", whole[4:], runner.run(*under(strategy), *steps, *loads(folder), convert))
    # The schedule continues from the updates that were made, whatever number of samples they took.
    wider = [*steps, "train.global_batch_size=16"]
    rates = {strategy: rates_of(runner, *under(strategy), *wider, *loads(folder))
             for strategy, folder in (("torch_fsdp2", own), ("optim_grads_params", sharded), ("ddp", replicated))}
    expect(len(set(rates.values())) == 1 and len(rates["ddp"]) == 4, f"learning rates after another batch size: {rates}")


def check_rows(runner, place):
    base = ["train.global_batch_size=120", "train.train_iters=6", "mixed_precision=bf16_mixed"]
    replicated = ["checkpoint.ckpt_format=torch_dist"]
    layouts = {
        "torch_dcp on 3": under("torch_fsdp2", 3),
        "torch_dcp on 5, kept": under("torch_fsdp2_kept", 5),
        "torch_dist on 4": [*under("torch_fsdp2", 4), *replicated],
        "FSDP on 2": under("optim_grads_params", 2),
        "one rank": under("ddp", 1),
    }
    saved = {}
    for name, settings in layouts.items():
        folder = place.new()
        more = [*saves(folder), f"train.exit_interval={STEPS}"]
        saved[name] = (folder, run_and_look(runner, "update", STEPS, *settings, *base, *more)[0])
    for i, (source, (folder, state)) in enumerate(saved.items()):
        for j, (target, settings) in enumerate(layouts.items()):
            if not LONG and (j - i) % len(layouts) != 1:
                continue
            convert = "checkpoint.convert_on_load=true"
            loaded, rest = run_and_look(runner, "micro", STEPS + 1, *settings, *base, *loads(folder), convert)
            name = f"{source} loaded under {target}"
            expect(len(state) > 30 and state.keys() == loaded.keys(), f"{name}: {len(state)} and {len(loaded)} tensors")
            unlike = [key for key in state if state[key] != loaded[key]]
            expect(not unlike and len(rest) == 6 - STEPS, f"{name}: {unlike} differ, {len(rest)} steps")
            print(f"{name}: {len(state)} tensors equal to the bit")


def rates_of(runner, *settings):
    said = output_of(runner, *settings)
    return tuple(re.findall(r"^step .* lr (\S+) ", said, re.MULTILINE))


def check_momentum(runner, place):
    settings = ["optimizer.optimizer=sgd", "optimizer.sgd_momentum=0.9", "train.train_iters=8"]
    for strategy in runner.in_turn(["optim_grads_params", "no_shard", "distributed"]):
        for more in ([], ASYNC):
            folder = place.new()
            whole = runner.run(*under(strategy), *settings)
            runner.run(*under(strategy), *settings, *saves(folder), *more, "train.exit_interval=4")
            rest = runner.run(*under(strategy), *settings, *loads(folder))
            equal(f"{strategy}: 8 steps of SGD with momentum and 4 + 4", whole[4:], rest)


def check_moments(runner, place):
    """Weights alone of a checkpoint, at a constant rate: the updates of a run that leaves the optimizer out."""
    settings = ["scheduler.lr_decay_style=constant", "scheduler.lr_warmup_iters=0", "train.train_iters=12"]
    convert, fresh = "checkpoint.convert_on_load=true", "checkpoint.load_optim=false"
    for strategy, other, conversion in runner.in_turn((
        ("ddp", "optim_grads_params", ["torch-dist-to-fsdp-dtensor", "--swiglu"]),
        ("optim_grads_params", "ddp", ["fsdp-dtensor-to-torch-dist"]),
        ("optim_grads_params", "torch_fsdp2", ["fsdp-dtensor-to-torch-dist"]),
    )):
        whole, weights, again = place.new(), place.new(), place.new()
        runner.run(*under(strategy), *settings, *saves(whole), "train.exit_interval=4")
        runner.call(["shardc", "ckpt", "convert", *conversion, "--weights-only", whole, weights])
        into = [*under(other), *settings, convert]
        expected = runner.run(*into, *loads(whole), fresh)
        equal(f"weights of {strategy} into {other}, and without its optimizer", expected, runner.run(*into, *loads(weights)))
        # What they count is saved with them.
        runner.run(*into, *loads(weights), *saves(again), "train.exit_interval=4")
        expect(newest(again) == 8, f"saved {newest(again)}")
        equal(f"{other}: saved after 4 updates of step 8", expected[4:], runner.run(*into, *loads(again)))
    full = runner.run(*under("ddp"), *settings)
    folder = place.new()
    runner.run(*under("ddp"), *settings, *saves(folder), "train.exit_interval=4")
    rest = runner.run(*under("ddp"), *settings, *loads(folder))
    equal("with all moments", full[4:], rest)
    expect(rest != runner.run(*under("ddp"), *settings, *loads(folder), fresh), "moments change nothing")


def check_vocabulary(runner, place):
    steps = ["train.train_iters=8"]
    for strategy in runner.in_turn(("optim_grads_params", "ddp")):
        folder = place.new()
        settings = [*under(strategy), *steps]
        whole = runner.run(*settings)
        runner.run(*settings, *saves(folder), "train.exit_interval=4")
        for padding in (96, 512):
            rest = runner.run(*settings, *loads(folder), f"model.make_vocab_size_divisible_by={padding}")
            close(f"{strategy}: padded to a multiple of {padding}", whole[4:], rest)
        said = output_of(runner, *settings, *loads(folder), "model.vocab_size=300")
        expect("model.vocab_size is 257 in the checkpoint and 300 in the recipe; tokens from 257 on start with" in said,
               said)


def check_processes(runner, place):
    """With a process a rank, which write their files at the same time."""
    layouts = {"2 ranks": under("optim_grads_params"), **STAGES}
    ways = ("2 ranks", []), ("2 ranks", ASYNC), ("2 ranks", PIECES), *zip(STAGES, (ASYNC, PIECES))
    for name, more in runner.in_turn(ways):
        settings = [*layouts[name], "train.train_iters=12"]
        whole = runner.run(*settings)
        folder = place.new()
        both = [*settings, *saves(folder, 3), *more, "checkpoint.most_recent_k=2"]
        records = runner.metrics(["shardc", "run", runner.recipe, "--processes", *runner.arguments(both)])
        equal(f"{name}: a process a rank {more}", whole, [(record["loss"], record["grad_norm"]) for record in records])
        expect(checkpoints_in(folder) == ["iter_0000009", "iter_0000012"], f"kept {os.listdir(folder)}")
        rest = runner.run(*settings, *loads(folder), "checkpoint.ckpt_step=9")
        equal(f"{name}: 12 steps and those after the 9th", whole[9:], rest)
    blocked = place.new()
    done = subprocess.run(
        ["shardc", "run", runner.recipe, "--processes", *runner.arguments([*settings, *saves(blocked, 3), *ASYNC])],
        capture_output=True, text=True, preexec_fn=limit_files, restore_signals=False,
    )
    expect(done.returncode == 3 and done.stderr.count("step 3 is not saved") == 1, done.stderr)
    expect("ended with errors after 12 of 12 steps" in done.stdout, f"training did not continue\n{done.stdout}")


def check_smoke(runner, place):
    for more in ([], ASYNC):
        folder = place.new()
        both = [*saves(folder, 2), *loads(folder), *more, "train.exit_interval=4", "train.train_iters=8"]
        first = output_of(runner, *both)
        expect("starting at step 0" in first and "saved step 4 to" in first, first)
        second = output_of(runner, *both)
        expect("continuing after step 4" in second and "done after 8 of 8 steps" in second, second)
        expect(newest(folder) == 8, f"the tracker says {newest(folder)}")
        expect((folder / "iter_0000008" / ".metadata").exists(), "no metadata")
        for text in (first, second):
            expect("only supports" not in text and "error" not in text, text)
    print("saved, resumed and ended without an error of formats")


def check_stopping(runner, place):
    settings = [*under("optim_grads_params"), "train.train_iters=60", "logger.log_interval=1"]
    whole = runner.run(*settings)
    own = ["train.exit_signal=SIGUSR2"]
    for number, more in ((signal.SIGTERM, ASYNC), (signal.SIGTERM, PIECES), (signal.SIGUSR2, [*ASYNC, *own])):
        folder = place.new()
        status, seen = signal_when_saved(runner, number, folder, [*settings, *saves(folder, 2), *more], 4)
        step = newest(folder)
        expect(status == 0 and "stopped after" in seen, f"{number.name}: status {status}\n{seen}")
        expect(f"saved step {step} " in seen, f"{number.name}: step {step} is not said to be saved\n{seen}")
        if step < 60:
            equal(f"60 steps and those after {number.name} at {step}", whole[step:], runner.run(*settings, *loads(folder)))
    for more in ([], ASYNC):
        folder = place.new()
        stop = [*settings, *saves(folder, 3), *more, "checkpoint.stop_on_save_error=true"]
        done = subprocess.run(
            ["shardc", "run", runner.recipe, *runner.arguments(stop)],
            capture_output=True, text=True, preexec_fn=limit_files, restore_signals=False,
        )
        expect(done.returncode == 3, f"status {done.returncode}")
        expect(done.stderr.count("step 3 is not saved") == 1, done.stderr)
        expect("after 60 of 60 steps" not in done.stdout, f"training went on\n{done.stdout}")


CHECKS = {
    "background": check_background,
    "equality": check_equality,
    "converting": check_converting,
    "momentum": check_momentum,
    "moments": check_moments,
    "vocabulary": check_vocabulary,
    "processes": check_processes,
    "smoke": check_smoke,
    "torch": check_torch,
    "rows": check_rows,
    "stopping": check_stopping,
}


if __name__ == "__main__":
    main(CHECKS)
