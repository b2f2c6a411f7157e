#!/usr/bin/env python3
"""Stops and resumes small runs and compares them with runs that never stopped. Only Python is needed.

    resume_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    halves    6 steps, a save, 6 more: what 12 steps give, to the bit, under each strategy; every second one unless
              SHARDC_LONG=1 or FULL=1
    layouts   saved under one strategy and size, resumed under the same and the next one, with SHARDC_LONG=1 under any:
              1e-6 relative; to the bit where the layout is the same
    signals   SIGTERM saves and ends well; kill -9 at any moment leaves a checkpoint that resumes
    refusals  what does not fit is said before anything is touched; a save that fails is one error
"""

import argparse
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

from compare_runs import LONG, Runner, close, equal, strategy_settings

SHARDING = ["optim_grads_params", "optim_grads", "optim", "no_shard"]
REPLICATED = ["ddp", "distributed"]
TORCH = ["torch_fsdp2", "torch_fsdp2_kept"]  # the second keeps gathered parameters until the backward pass
LAYOUTS = [("optim_grads_params", 4), ("optim_grads", 3), ("optim", 2), ("no_shard", 1)]
REPLICATED_LAYOUTS = [("distributed", 4), ("ddp", 3), ("distributed", 2), ("ddp", 1)]
TORCH_LAYOUTS = [("torch_fsdp2", 3), ("torch_fsdp2_kept", 2)]
TRACKER = "latest_checkpointed_iteration.txt"


def under(strategy, size=2):
    """A strategy under Megatron FSDP, PyTorch's FSDP2, or DDP with or without the distributed optimizer."""
    if strategy in TORCH:
        frees = "true" if strategy == "torch_fsdp2" else "false"
        return [
            "dist.use_torch_fsdp2=true",
            f"dist.torch_fsdp2_reshard_after_forward={frees}",
            "model.share_embeddings_and_output_weights=false",
            f"cluster.gpus_per_node={size}",
        ]
    if strategy in REPLICATED:
        distributed = "true" if strategy == "distributed" else "false"
        return [f"ddp.use_distributed_optimizer={distributed}", f"cluster.gpus_per_node={size}"]
    return [
        "dist.use_megatron_fsdp=true",
        "ddp.use_megatron_fsdp=true",
        f"ddp.data_parallel_sharding_strategy={strategy}",
        f"cluster.gpus_per_node={size}",
    ]


def saves(folder, interval=1000):
    return [f'checkpoint.save="{folder}"', f"checkpoint.save_interval={interval}"]


def loads(folder):
    return [f'checkpoint.load="{folder}"']


def newest(folder):
    tracker = folder / TRACKER
    return int(tracker.read_text()) if tracker.exists() else 0


class Place:
    """A temporary folder; each new() returns another unused path in it, for checkpoints."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.count = 0

    def new(self):
        self.count += 1
        return pathlib.Path(self.folder.name) / f"checkpoints{self.count}"


def expect(condition, text):
    if not condition:
        sys.exit(text)


def check_halves(runner, place):
    strategies = [*SHARDING, *REPLICATED, *TORCH]
    for strategy in runner.in_turn(strategies if LONG or os.environ.get("FULL") == "1" else strategies[::2]):
        settings = [*under(strategy), "train.train_iters=12"]
        folder = place.new()
        whole = runner.run(*settings)
        expect(len(whole) == 12, f"{strategy}: {len(whole)} steps")
        first = runner.run(*settings, *saves(folder, 4), "train.exit_interval=6")
        expect(newest(folder) == 6, f"{strategy}: the tracker says {newest(folder)}, not 6")
        rest = runner.run(*settings, *loads(folder))
        equal(f"{strategy}: 12 steps and 6 + 6", whole, first + rest)
        again = runner.run(*settings, *loads(folder), "checkpoint.ckpt_step=4")
        equal(f"{strategy}: 12 steps and those after the 4th", whole[4:], again)


def check_layouts(runner, place):
    for layouts in runner.in_turn((LAYOUTS, REPLICATED_LAYOUTS, TORCH_LAYOUTS)):
        check_each_other(runner, place, layouts)


def check_each_other(runner, place, layouts):
    batch = ["train.global_batch_size=24", "train.train_iters=4"]
    whole = {layout: runner.run(*under(*layout), *batch) for layout in layouts}
    for i, layout in enumerate(layouts):
        folder = place.new()
        runner.run(*under(*layout), *batch, *saves(folder), "train.exit_interval=2")
        for other in layouts if LONG else (layout, layouts[(i + 1) % len(layouts)]):
            rest = runner.run(*under(*other), *batch, *loads(folder))
            expect(len(rest) == 2, f"{layout} to {other}: {len(rest)} steps")
            name = f"{layout[0]} on {layout[1]} to {other[0]} on {other[1]}"
            if layout == other:
                equal(name, whole[other][2:], rest)
            else:
                close(name, whole[other][2:], rest)


def start(runner, *settings):
    command = ["shardc", "run", runner.recipe, *runner.arguments(settings)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def signal_when_saved(runner, number, folder, settings, step):
    """Runs until a step is saved, then sends the signal to all of its processes."""
    process = start(runner, *settings)
    seen = ""
    for line in process.stdout:
        seen += line
        if line.startswith("saved step") and int(line.split()[2]) >= step:
            os.killpg(process.pid, number)
            break
    seen += process.stdout.read()
    process.wait()
    expect(newest(folder) >= step, f"nothing was saved at step {step}\n{seen}")
    return process.returncode, seen


def check_signals(runner, place):
    settings = [*under("optim_grads_params"), "train.train_iters=60", "logger.log_interval=1"]
    whole = runner.run(*settings)
    folder = place.new()
    status, seen = signal_when_saved(
        runner, signal.SIGTERM, folder, [*settings, *saves(folder, 5)], 5
    )
    step = newest(folder)
    expect(status == 0 and "stopped after" in seen, f"SIGTERM: status {status}\n{seen}")
    expect(f"saved step {step} " in seen, f"SIGTERM: step {step} is not said to be saved\n{seen}")
    if step < 60:
        equal(f"60 steps and those after SIGTERM at {step}", whole[step:], runner.run(*settings, *loads(folder)))
    folder = place.new()
    for wanted in (3, 9, 17):
        both = [*settings, *saves(folder, 1), *loads(folder)]
        signal_when_saved(runner, signal.SIGKILL, folder, both, wanted)
        step = newest(folder)
        equal(f"60 steps and those after kill -9 at {step}", whole[step:], runner.run(*settings, *loads(folder)))
    runner.run(*settings, *saves(folder), *loads(folder))
    left = [name for name in os.listdir(folder) if name.startswith(".")]
    expect(not left, f"interrupted saves left {left}")


def refused(runner, words, *settings):
    command = ["shardc", "run", runner.recipe, *runner.arguments(settings)]
    done = subprocess.run(command, capture_output=True, text=True)
    expect(done.returncode != 0, f"{settings}: not refused")
    for word in words:
        expect(word in done.stderr, f"{settings}: '{word}' is not in\n{done.stderr}")
    print(f"refused: {words[0]}")
    return done.stderr

def check_refusals(runner, place):
    fsdp = under("optim_grads_params")
    folder, empty = place.new(), place.new()
    short = ["train.train_iters=4"]
    replicated = place.new()
    runner.run(*under("ddp"), *short, *saves(replicated))
    refused(
        runner,
        ["Megatron FSDP only supports fsdp_dtensor checkpoint format", "convert torch-dist-to-fsdp"],
        *fsdp,
        *loads(replicated),
    )
    runner.run(*fsdp, *short, *saves(folder, 2), "checkpoint.most_recent_k=1")
    kept = sorted(name for name in os.listdir(folder) if name.startswith("iter_"))
    expect(kept == ["iter_0000004"], f"most_recent_k = 1 keeps {kept}")
    said = refused(
        runner,
        ["tensors have another shape", "linear_fc2.weight", "and "],
        *fsdp,
        *loads(folder),
        "model.ffn_hidden_size=96",
    )
    expect(said.count("does not fit") == 1, f"said twice\n{said}")
    biased = "model.add_qkv_bias=true"
    refused(runner, ["fit this run: Megatron-FSDP checkpoint load is incomplete"], *fsdp, *loads(folder), biased)
    refused(runner, ["fit this run: torch_dist checkpoint load is incomplete"], *under("ddp"), *loads(replicated), biased)
    refused(
        runner,
        ["fsdp_dtensor checkpoint format only supports Megatron FSDP", "convert fsdp-dtensor-to"],
        *under("distributed"),
        *loads(folder),
    )
    refused(runner, ["num_layers value from checkpoint (2)"], *fsdp, *loads(folder), "model.num_layers=3")
    refused(
        runner,
        ["there is no checkpoint in"],
        *fsdp,
        *loads(empty),
        "checkpoint.exit_on_missing_checkpoint=true",
    )
    refused(runner, ["checkpoint of step 3"], *fsdp, *loads(folder), "checkpoint.ckpt_step=3")
    blocked = place.new()
    blocked.write_text("a file where a folder should be")
    refused(runner, ["checkpoint.save: cannot create the folder"], *fsdp, *short, *saves(blocked / "in"))
    check_failing_saves(runner, place.new(), [*fsdp, *short])
    check_damaged(runner, place.new(), [*fsdp, *short])


def check_damaged(runner, folder, settings):
    """If the newest checkpoint is damaged, the error names the newest intact one before it, and that one loads."""
    whole = runner.run(*settings, *saves(folder, 1))
    shards = {step: min((folder / f"iter_{step:07}").glob("*.distcp")) for step in (3, 4)}
    content = bytearray(shards[4].read_bytes())
    content[len(content) // 2] ^= 1
    shards[4].write_bytes(content)
    refused(runner, ["is damaged between bytes", "before it is", "checkpoint.ckpt_step=3 loads"], *settings, *loads(folder))
    shards[3].unlink()
    refused(runner, ["is damaged between bytes", "before it is", "checkpoint.ckpt_step=2 loads"], *settings, *loads(folder))
    third = [*settings, *loads(folder), "checkpoint.ckpt_step=3"]
    refused(runner, [shards[3].name, "checkpoint.ckpt_step=2 loads"], *third)
    shutil.rmtree(folder / "iter_0000004")
    said = refused(runner, ["does not exist", "the newest intact one is", "checkpoint.ckpt_step=2 loads"], *settings, *loads(folder))
    expect(said.count("ckpt_step") == 1, f"said twice\n{said}")
    rest = runner.run(*settings, *loads(folder), "checkpoint.ckpt_step=2")
    equal("4 steps and those after the 2nd", whole[2:], rest)
    for step in (1, 2):
        shutil.rmtree(folder / f"iter_{step:07}")
    said = refused(runner, ["does not exist"], *settings, *loads(folder))
    expect("ckpt_step" not in said, f"names what is not intact\n{said}")


def limit_files():
    """Writing beyond this many bytes of a file fails, as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))


def check_failing_saves(runner, folder, settings):
    done = subprocess.run(
        ["shardc", "run", runner.recipe, *runner.arguments([*settings, *saves(folder, 3)])],
        capture_output=True,
        text=True,
        preexec_fn=limit_files,
        restore_signals=False,
    )
    for step in (3, 4):
        expect(done.stderr.count(f"step {step} is not saved") == 1, f"step {step}: not one error\n{done.stderr}")
    expect("\nended with errors after 4 of 4 steps" in done.stdout, f"training did not continue\n{done.stdout}")
    expect(done.returncode == 3, f"status {done.returncode} although the last state is not saved")
    expect(not os.listdir(folder), f"failed saves left {os.listdir(folder)}")
    print("failed saves are reported, and training continues")


CHECKS = {
    "halves": check_halves,
    "layouts": check_layouts,
    "signals": check_signals,
    "refusals": check_refusals,
}


def main(checks):
    parser = argparse.ArgumentParser()
    parser.add_argument("check", choices=checks)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    runner = Runner(options.recipe, options.set)
    for check in runner.in_turn([checks[options.check]]):
        check(runner, Place())


if __name__ == "__main__":
    main(CHECKS)
