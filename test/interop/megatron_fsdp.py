"""Exchanges fsdp_dtensor checkpoints between our runs and the real Megatron-FSDP in both directions, on the processor.

usage: megatron_fsdp.py BIN

Our run under Megatron FSDP saves on two ranks. Megatron-FSDP loads that in one and in two processes (gloo) with nothing
missing, trains, and saves it again. Our run continues from there, bitwise equal to a run that never stopped.
Megatron-FSDP also trains a new model, from which our run continues. BIN is the folder of shardc and shardc-run.
MEGATRON_LM as for megatron_core.py. Exits with 0 if all agrees, and 77 without Megatron-Core.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from megatron_core import PRECISION, STEPS, TOKENS, ours, worst, write_data, write_recipe

try:
    import einops  # noqa: F401  Megatron-FSDP makes its meshes with it
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

# Model, precision, strategy, and Megatron-FSDP's number of ranks and its Adam. No gated layers in fp32: Megatron-FSDP
# cannot save them, since it looks for parameters under names that exist only within Float16Module. Torch's own Adam
# only on one rank: on several, Megatron-FSDP creates no state for shards without elements, so ranks gather different
# things and hang.
CASES = [
    ("llama", "bf16_mixed", "optim_grads_params", 2, "fused"),
    ("llama", "bf16_mixed", "optim", 1, "torch"),
    ("gpt2", "fp32", "optim_grads", 1, "torch"),
    ("gpt2", "fp32", "optim_grads_params", 2, "fused"),
]


def theirs(where, ranks, adam, *words):
    """The results of Megatron-FSDP in this many processes, with Transformer Engine's form of Adam or torch's own."""
    worker = pathlib.Path(__file__).with_name("megatron_fsdp_worker.py")
    command = [sys.executable, "-B", "-W", "ignore", worker, *words, STEPS, json.dumps(TOKENS)]
    with tempfile.TemporaryDirectory() as store:
        started = []
        for rank in range(ranks):
            place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "STORE": f"{store}/store",
                     "ADAM": adam}
            more = {"PYTHONPATH": where} if where else {}
            log = open(f"{store}/log{rank}", "w+")
            started.append((log, subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT,
                                                  env={**os.environ, **place, **more})))
        failed = wait_for(started)
        texts = [pathlib.Path(log.name).read_text() for log, _ in started]
    if failed is not None:
        sys.exit(f"rank {failed} of Megatron-FSDP failed:\n{texts[failed]}")
    return next(json.loads(line) for line in texts[0].splitlines() if line.startswith("{"))


def wait_for(started):
    """Waits for all ranks. If one fails, it ends the others, which would wait for it, and reports that one."""
    while running := [rank for rank, (_, one) in enumerate(started) if one.poll() is None]:
        failed = next((rank for rank, (_, one) in enumerate(started) if one.poll() not in (None, 0)), None)
        if failed is not None:
            for rank in running:
                started[rank][1].kill()
            for _, one in started:
                one.wait()
            return failed
        time.sleep(0.1)
    return next((rank for rank, (_, one) in enumerate(started) if one.returncode != 0), None)


def check(binaries, where, model, precision, strategy, ranks, adam):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_data(folder / "data")
        write_recipe(folder, model, precision, "dist { use_megatron_fsdp = true }  ddp { use_megatron_fsdp = true  "
                                               f"data_parallel_sharding_strategy = {strategy} }}")
        whole = ours(binaries, folder)
        after = [whole[step] for step in range(STEPS + 1, 2 * STEPS + 1)]
        ours(binaries, folder, f'checkpoint.save="{folder}/ours"', f"train.exit_interval={STEPS}")
        saved = folder / f"ours/iter_{STEPS:07}"

        told = theirs(where, ranks, adam, "resume", saved, folder / "again")
        there = worst(told["losses"], after)
        assert there < PRECISION[precision], f"Megatron-FSDP went on with {told['losses']}, we with {after}"
        again = list(ours(binaries, folder, f'checkpoint.load="{folder}/again"',
                          "checkpoint.strict_fsdp_dtensor_load=true").values())
        assert again == after, f"from what Megatron-FSDP saved again: {again}, before {after}"

        trained = theirs(where, ranks, adam, "train", saved, folder / "theirs")["losses"][STEPS:]
        mine = list(ours(binaries, folder, f'checkpoint.load="{folder}/theirs"',
                         "checkpoint.strict_fsdp_dtensor_load=true").values())
        here = worst(mine, trained)
        assert here < PRECISION[precision], f"we went on with {mine}, Megatron-FSDP with {trained}"
        print(f"Megatron-FSDP {told['fsdp']} of Megatron-Core {told['version']} with torch {told['torch']}, {model}, "
              f"{precision}, {strategy}, {ranks} ranks, {adam} Adam: losses after its load of ours within {there:.1e}, after our load "
              f"of its within {here:.1e}, there and back to the bit", flush=True)


def main():
    binaries = pathlib.Path(sys.argv[1])
    for where in ("", *filter(None, [os.environ.get("MEGATRON_LM")])):
        for case in CASES:
            check(binaries, where, *case)


if __name__ == "__main__":
    main()
