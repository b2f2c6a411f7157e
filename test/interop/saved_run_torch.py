"""Compares a run's checkpoint, as PyTorch loads it, with the run's memory when it saved.

usage: saved_run_torch.py BIN RECIPE

BIN is the folder of shardc and shardc-run. Exits with 0 if all is bitwise equal, and 77 without torch.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemReader
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

STEPS = 4
CELLS = {"master": "model.module.{}", "m": "optimizer.state.module.module.module.{}.exp_avg",
         "v": "optimizer.state.module.module.module.{}.exp_avg_sq"}
TORCH_CELLS = {"master": "model.{}", "m": "optimizer.state.{}.exp_avg", "v": "optimizer.state.{}.exp_avg_sq"}
TORCH = "torch_fsdp2"


def call(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}\n{done.stdout}{done.stderr}")


def under(strategy):
    if strategy == TORCH:
        return ["--set=dist.use_megatron_fsdp=false", "--set=ddp.use_megatron_fsdp=false",
                "--set=dist.use_torch_fsdp2=true", "--set=checkpoint.ckpt_format=torch_dcp"]
    return ["--set=dist.use_megatron_fsdp=true", "--set=ddp.use_megatron_fsdp=true",
            f"--set=ddp.data_parallel_sharding_strategy={strategy}"]


def run(binaries, recipe, folder, strategy, ranks):
    call(binaries / "shardc", "dump-plan", recipe, "-o", folder / "job.plan", *under(strategy),
         f"--set=cluster.gpus_per_node={ranks}",
         "--set=train.global_batch_size=24", f"--set=train.exit_interval={STEPS}",
         f'--set=checkpoint.save="{folder}/saved"')
    call(binaries / "shardc-run", folder / "job.plan", "--dump-dir", folder / "dump", "--dump-step", STEPS,
         *(f"--dump=update:@{cell}.*" for cell in CELLS))


def load(folder):
    """Loads every tensor and object through dcp.load in one process."""
    metadata = FileSystemReader(folder).read_metadata()
    state = {name: torch.empty(item.size, dtype=item.properties.dtype) if hasattr(item, "size") else None
             for name, item in metadata.state_dict_metadata.items()}
    dcp.load(state, checkpoint_id=folder)
    return state


def memory(folder, cells):
    """The tensors in the ranks' memory, by the checkpoint's names, with gated layers in one piece."""
    index = json.loads((folder / "index.json").read_text())
    shapes = {param["name"]: param["shape"] for param in index["params"]}
    params = [param["name"] for param in index["params"]]
    tensors = {}
    for tensor in index["tensors"]:
        data = torch.frombuffer(bytearray((folder / tensor["file"]).read_bytes()), dtype=torch.float32)
        key = cells[tensor["name"].lstrip("@").split(".")[0]]
        for part in tensor["parts"]:
            name = part["param"] if isinstance(part["param"], str) else params[part["param"]]
            whole = tensors.setdefault(key.format(name), torch.full(shapes[name], float("nan")))
            values = data[part["begin"]:part["end"]]
            whole.view(-1)[part["global_begin"]:part["global_begin"] + len(values)] = values
    return tensors


def saved_tensor(state, key):
    if key in state:
        return state[key]
    stem, moment = (key, "") if "exp_avg" not in key else key.rsplit(".", 1)
    moment = moment and "." + moment
    return torch.cat([state[f"{stem}_w{moment}"], state[f"{stem}_v{moment}"]])


def check(binaries, recipe, strategy, ranks):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run(binaries, recipe, folder, strategy, ranks)
        state = load(folder / f"saved/iter_{STEPS:07}")
        held = memory(folder / "dump", TORCH_CELLS if strategy == TORCH else CELLS)
        assert len(held) >= 3 * 10, f"only {len(held)} tensors were dumped"
        for key, values in held.items():
            assert torch.equal(saved_tensor(state, key), values), f"{strategy} on {ranks}: {key} differs"
        assert state["iteration"] == STEPS and state["checkpoint_version"] == 3.0
        assert state["args"].consumed_train_samples == 24 * STEPS, state["args"]
        assert state["opt_param_scheduler.num_steps"] == 24 * STEPS
        norm = "decoder.final_layernorm.weight"
        step = f"optimizer.param_to_group_meta.module.module.module.{norm}.step"
        assert state[f"optimizer.state.{norm}.step" if strategy == TORCH else step] == STEPS
        train = torch.load(folder / f"saved/iter_{STEPS:07}/train_state.pt", weights_only=True)
        assert int(train["step"]) == STEPS and int(train["consumed_train_samples"]) == 24 * STEPS
        print(f"{strategy} on {ranks}: {len(held)} tensors equal to the bit in torch {torch.__version__}")


def main():
    binaries, recipe = pathlib.Path(sys.argv[1]), sys.argv[2]
    for strategy, ranks in [("optim_grads_params", 4), ("optim_grads", 3), ("optim", 2), ("no_shard", 2), (TORCH, 3)]:
        check(binaries, recipe, strategy, ranks)


if __name__ == "__main__":
    main()
