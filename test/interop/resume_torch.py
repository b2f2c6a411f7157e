"""Resumes one of our runs from a checkpoint that PyTorch wrote, and compares losses with a run that never stopped.

usage: resume_torch.py BIN RECIPE

A run saves, torch.distributed.checkpoint loads all of it and saves it again, whole in one process and divided over
several, and other runs continue from what PyTorch wrote. BIN is the folder of shardc and shardc-run. Exits with 0 if
losses are bitwise equal where the layout is the same, and 77 without torch.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as processes
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from saved_run_torch import load

STEPS, MORE = 4, 4
TRACKER = "latest_checkpointed_iteration.txt"


def run(binaries, recipe, folder, *settings):
    """The losses of a run."""
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    command = [binaries / "shardc", "run", recipe, f"--metrics={metrics}", f"--set=train.train_iters={STEPS + MORE}"]
    done = subprocess.run([str(w) for w in [*command, *(f"--set={s}" for s in settings)]], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{settings}\n{done.stdout}{done.stderr}")
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def fsdp(strategy, ranks):
    return ["dist.use_megatron_fsdp=true", "ddp.use_megatron_fsdp=true",
            f"ddp.data_parallel_sharding_strategy={strategy}", f"cluster.gpus_per_node={ranks}"]


def save_cut(rank, world, source, target, port):
    """Each process saves its rows of every tensor that has enough rows for all."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    state = load(source)
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] >= world:
            state[name] = distribute_tensor(value, mesh, [Shard(0)])
    dcp.save(state, checkpoint_id=target)
    dist.destroy_process_group()


def written_by_torch(saved, folder, world):
    """The same state as PyTorch writes it, with the tracker file that makes it the newest."""
    target = folder / f"torch{world}"
    place = target / f"iter_{STEPS:07}"
    target.mkdir()
    if world == 1:
        dcp.save(load(saved), checkpoint_id=place)
    else:
        processes.spawn(save_cut, args=(world, saved, place, 29400 + world), nprocs=world)
    (target / TRACKER).write_text(str(STEPS))
    return target


def check(binaries, recipe, strategy, ranks):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        whole = run(binaries, recipe, folder, *fsdp(strategy, ranks))
        run(binaries, recipe, folder, *fsdp(strategy, ranks), f'checkpoint.save="{folder}/ours"',
            f"train.exit_interval={STEPS}")
        for world in (1, 3):
            target = written_by_torch(folder / "ours" / f"iter_{STEPS:07}", folder, world)
            assert not list(target.rglob(".shardc_integrity")), "that is ours, not PyTorch's"
            rest = run(binaries, recipe, folder, *fsdp(strategy, ranks), f'checkpoint.load="{target}"')
            assert rest == whole[STEPS:], f"{strategy} on {ranks} from {world}: {rest} and {whole[STEPS:]}"
            other = run(binaries, recipe, folder, *fsdp("optim_grads_params", 1), f'checkpoint.load="{target}"')
            worst = max(abs(a - b) / abs(b) for a, b in zip(other, whole[STEPS:]))
            assert len(other) == MORE and worst < 1e-5, f"on one rank: off by {worst}"
            shutil.rmtree(target)
        print(f"{strategy} on {ranks}: resumed from what torch {torch.__version__} wrote on 1 and 3 processes")


def main():
    binaries, recipe = pathlib.Path(sys.argv[1]), sys.argv[2]
    for strategy, ranks in [("optim_grads_params", 2), ("no_shard", 2)]:
        check(binaries, recipe, strategy, ranks)


if __name__ == "__main__":
    main()
