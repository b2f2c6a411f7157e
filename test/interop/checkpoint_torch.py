"""Exchanges checkpoints between shardc and real PyTorch in both directions.

usage: checkpoint_torch.py PROBE [--large] [--keep DIR]

PROBE is the program checkpoint_probe. Exits with 0 if all agrees, and 77 without torch. --large also compares a record
of more than 4 GiB byte by byte (needs 10 GB of disk).
"""
import argparse
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

try:
    import numpy as np
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as mp
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from torch_dist_forms import FORMS, make_form, make_refused, pattern, save_groups

PROBE = ""


def probe(*args, ok=True):
    done = subprocess.run([PROBE, *map(str, args)], capture_output=True, text=True)
    if ok and done.returncode != 0:
        raise AssertionError(f"probe {args}: {done.stderr}")
    return done.stdout if ok else done.stderr


def raw(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def records(folder):
    """Yields each record of a checkpoint: (metadata, index, bytes)."""
    metadata = FileSystemReader(folder).read_metadata()
    for index, info in metadata.storage_data.items():
        with open(os.path.join(folder, info.relative_path), "rb") as file:
            file.seek(info.offset)
            yield metadata, index, file.read(info.length)


def load_all(folder):
    """Loads a whole checkpoint through dcp.load in one process: {fqn: value}."""
    metadata = FileSystemReader(folder).read_metadata()
    state = {}
    for name, item in metadata.state_dict_metadata.items():
        state[name] = torch.empty(item.size, dtype=item.properties.dtype) if hasattr(item, "size") else None
    dcp.load(state, checkpoint_id=folder)
    return state


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8,
          torch.float8_e4m3fn, torch.float8_e5m2]


def sharded_state(mesh):
    """A rank's state dict: DTensors in several placements, plain tensors, and objects."""
    state = {"model": {}, "optimizer": {"state": {}}, "iteration": 7, "lr": [0.1, 0.2], "nested": {"a": {"b": "text"}}}
    for i, dtype in enumerate(DTYPES):
        whole = pattern((7, 6), dtype, i)
        for name, placements in [("row", [Shard(0), Replicate()]), ("both", [Shard(0), Shard(1)]),
                                 ("twice", [Shard(0), Shard(0)]), ("none", [Replicate(), Replicate()])]:
            key = f"module.{name}.{str(dtype).split('.')[1]}"
            # distribute_tensor lacks kernels for some types, so bytes are cut instead.
            state["model"][key] = cut(whole, mesh, placements)
    state["model"]["module.scalar"] = torch.tensor(2.5)
    state["model"]["module.empty"] = torch.zeros(0, 3)
    state["model"]["module.few"] = cut(pattern((2, 3), torch.float32, 99), mesh, [Shard(0), Shard(0)])
    return state


def cut(whole, mesh, placements):
    local, sizes = whole, mesh.mesh.shape
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            parts = list(torch.chunk(local, sizes[axis], dim=placement.dim))
            empty_shape = list(local.shape)
            empty_shape[placement.dim] = 0
            while len(parts) < sizes[axis]:
                parts.append(local.new_empty(empty_shape))
            local = parts[mesh.get_local_rank(axis)]
    return DTensor.from_local(local.contiguous(), mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def expected():
    """The items of sharded_state as whole tensors."""
    whole = {}
    for i, dtype in enumerate(DTYPES):
        for name in ("row", "both", "twice", "none"):
            whole[f"model.module.{name}.{str(dtype).split('.')[1]}"] = pattern((7, 6), dtype, i)
    whole["model.module.few"] = pattern((2, 3), torch.float32, 99)
    whole["model.module.scalar"] = torch.tensor(2.5)
    whole["model.module.empty"] = torch.zeros(0, 3)
    return whole


def worker(rank, world, port, job, folder, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    if job == "save":
        dcp.save(sharded_state(mesh), storage_writer=dcp.FileSystemWriter(folder))
    elif job == "load":  # loads with placements that no save used
        metadata = FileSystemReader(folder).read_metadata()
        state = {}
        for name, item in metadata.state_dict_metadata.items():
            if not hasattr(item, "size"):
                state[name] = None
                continue
            whole = torch.zeros(item.size, dtype=item.properties.dtype)
            dims = len(item.size)
            placements = [Shard(dims - 1), Shard(0)] if dims >= 2 else [Replicate(), Shard(0)] if dims else None
            state[name] = cut(whole, mesh, placements) if placements else whole
        dcp.load(state, checkpoint_id=folder)
        local = {name: (value.to_local(), tuple(value.shape), offset_of(value)) if isinstance(value, DTensor) else value
                 for name, value in state.items()}
        torch.save(local, f"{out}.{rank}")
    dist.barrier()
    dist.destroy_process_group()


def offset_of(tensor):
    """The offset of a DTensor's local box, by torch.chunk's rule."""
    offset = [0] * tensor.dim()
    shape = list(tensor.shape)
    for axis, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard):
            size, ranks = shape[placement.dim], tensor.device_mesh.mesh.shape[axis]
            step = -(-size // ranks)
            begin = min(step * tensor.device_mesh.get_local_rank(axis), size)
            offset[placement.dim] += begin
            shape[placement.dim] = max(min(step, size - begin), 0)
    return offset


def spawn(job, folder, out=""):
    port = 20000 + random.randrange(20000)
    mp.spawn(worker, args=(4, port, job, folder, out), nprocs=4)


def check_load_here(folder, whole):
    """The probe must read what PyTorch saved: whole tensors, and boxes."""
    lines = [line.split("\t") for line in probe("dump", folder).splitlines()]
    tensors = {line[1]: line[2:] for line in lines if line[0] == "tensor"}
    for name, value in whole.items():
        dtype, shape, crc = tensors[name]
        assert dtype == str(value.dtype).split(".")[1], name
        assert shape == str(list(value.shape)), name
        assert int(crc, 16) == zlib.crc32(raw(value)), name
    rng = random.Random(3)
    boxes = 0
    for name, value in whole.items():
        if value.dim() != 2 or value.numel() == 0:
            continue
        for _ in range(2):
            offset = [rng.randrange(n) for n in value.shape]
            shape = [rng.randrange(1, n - o + 1) for n, o in zip(value.shape, offset)]
            text = probe("box", folder, name, str(value.dtype).split(".")[1], *offset, *shape).strip()
            part = value[offset[0]:offset[0] + shape[0], offset[1]:offset[1] + shape[1]]
            assert bytes.fromhex(text) == raw(part), (name, offset, shape)
            boxes += 1
    return {line[1]: line[2] for line in lines if line[0] == "object"}, boxes


def check_load_there(folder, whole, temp):
    """PyTorch must read what the probe saved: whole, resharded on 4 processes, and record by record."""
    state = load_all(folder)
    for name, value in whole.items():
        assert state[name].dtype == value.dtype and raw(state[name]) == raw(value), name
    out = os.path.join(temp, "local")
    spawn("load", folder, out)
    seen = 0
    for rank in range(4):
        for name, value in torch.load(f"{out}.{rank}", weights_only=False).items():
            if name not in whole or not isinstance(value, tuple):
                continue
            local, shape, offset = value
            part = whole[name]
            for dim, begin in enumerate(offset):
                part = part.narrow(dim, begin, local.shape[dim])
            assert raw(local) == raw(part), (name, rank)
            seen += 1
    count = 0
    for metadata, index, record in records(folder):
        item = metadata.state_dict_metadata[index.fqn]
        is_tensor = hasattr(item, "size")
        value = torch.load(io.BytesIO(record), weights_only=is_tensor)
        if is_tensor:
            chunk = item.chunks[index.index]
            assert tuple(chunk.offsets) == tuple(index.offset) and tuple(value.shape) == tuple(chunk.sizes), index
        count += 1
    return seen, count


def check_identical(folder):
    """torch.save of a record's content must give the record's bytes."""
    count = 0
    for metadata, index, record in records(folder):
        if not hasattr(metadata.state_dict_metadata[index.fqn], "size"):
            continue
        again = io.BytesIO()
        torch.save(torch.load(io.BytesIO(record), weights_only=True), again)
        assert again.getvalue() == record, index
        count += 1
    return count


def check_fsdp(temp):
    """A whole fsdp_dtensor checkpoint: keys, values, generator states and train_state.pt."""
    root = os.path.join(temp, "fsdp")
    probe("fsdp", root, 3)
    folder = os.path.join(root, "iter_0000100")
    assert open(os.path.join(root, "latest_checkpointed_iteration.txt")).read() == "100"
    rank0 = {"args": None, "iteration": None, "checkpoint_version": None}
    dcp.load(rank0, checkpoint_id=folder)
    assert rank0["iteration"] == 100 and rank0["checkpoint_version"] == 3.0
    assert rank0["args"].num_layers == 2 and rank0["args"].params_dtype == torch.bfloat16
    assert rank0["args"].consumed_train_samples == 3200
    fc1 = "decoder.layers.0.mlp.linear_fc1.weight"
    wrapped = "module.module.module." + fc1
    nested = {"model": {"module." + fc1 + "_w": torch.zeros(6, 8), "module." + fc1 + "_v": torch.zeros(6, 8),
                        "module.decoder.layers.1.mlp.experts.linear_fc1.weight3_v": torch.zeros(2, 2)},
              "optimizer": {"state": {wrapped + "_v": {"exp_avg": torch.zeros(6, 8), "exp_avg_sq": torch.zeros(6, 8)}},
                            "param_to_group_meta": {wrapped: {"lr": 0, "betas": 0, "step": 0, "wd_mult": 0}}},
              "opt_param_scheduler": {"max_lr": 0, "lr_decay_style": ""},
              "num_floating_point_operations_so_far": 0,
              "rng_state": {"(0, 0)": [{"random_rng_state": 0, "np_rng_state": 0,
                                        "torch_rng_state": torch.zeros(5056, dtype=torch.uint8),
                                        "cuda_rng_state": torch.zeros(16, dtype=torch.uint8),
                                        "rng_tracker_states": {"model-parallel-rng": torch.zeros(16, dtype=torch.uint8)}}]}}
    dcp.load(nested, checkpoint_id=folder)
    count = torch.arange(96.0).reshape(12, 8)
    assert torch.equal(nested["model"]["module." + fc1 + "_w"], count[:6])
    assert torch.equal(nested["model"]["module." + fc1 + "_v"], count[6:])
    assert torch.equal(nested["optimizer"]["state"][wrapped + "_v"]["exp_avg_sq"], count[6:] + 2000)
    group = nested["optimizer"]["param_to_group_meta"][wrapped]
    assert group == {"lr": 1e-3, "betas": (0.9, 0.999), "step": 100, "wd_mult": 1.0}, group
    assert nested["num_floating_point_operations_so_far"] == 10**21
    rng = nested["rng_state"]["(0, 0)"][0]
    torch.manual_seed(1234)
    assert torch.equal(torch.get_rng_state(), rng["torch_rng_state"])
    random.seed(1234)
    assert random.getstate() == rng["random_rng_state"]
    np.random.seed(1234)
    ours, theirs = rng["np_rng_state"], np.random.get_state()
    assert ours[0] == theirs[0] and (ours[1] == theirs[1]).all() and ours[2:] == theirs[2:]
    np.random.set_state(ours)
    random.seed()
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    dcp_to_torch_save(folder, os.path.join(temp, "whole.pt"))  # rebuilds the nested dict from the paths
    rebuilt = torch.load(os.path.join(temp, "whole.pt"), weights_only=False)
    assert rebuilt["rng_state"]["(0, 0)"][0]["random_rng_state"] == rng["random_rng_state"]
    assert torch.equal(rebuilt["model"]["module." + fc1 + "_w"], count[:6])
    mine = open(os.path.join(folder, "train_state.pt"), "rb").read()
    loaded = torch.load(os.path.join(folder, "train_state.pt"), weights_only=True)
    assert loaded["step"].item() == 100 and loaded["do_train"].item() is True
    torch.save(loaded, os.path.join(temp, "train_state.pt"))
    # Loading and saving again would intern strings differently, so the reference is a new dictionary.
    fresh = {"step": torch.tensor(100), "consumed_train_samples": torch.tensor(3200),
             "skipped_train_samples": torch.tensor(0), "consumed_valid_samples": torch.tensor(0),
             "floating_point_operations_so_far": torch.tensor(1e21, dtype=torch.float32),
             "do_train": torch.tensor(True), "do_valid": torch.tensor(True), "do_test": torch.tensor(True)}
    torch.save(fresh, os.path.join(temp, "train_state.pt"))
    assert open(os.path.join(temp, "train_state.pt"), "rb").read() == mine, "train_state.pt differs"


def check_rng(temp):
    """The generator states of torch_dist must be those right after seeding."""
    path = os.path.join(temp, "rng")
    probe("rng", path, 1234)
    (states,) = torch.load(path, weights_only=False)
    random.seed(1234)
    assert states["random_rng_state"] == random.getstate()
    torch.manual_seed(1234)
    assert torch.equal(states["torch_rng_state"], torch.get_rng_state())
    np.random.seed(1234)
    ours, theirs = states["np_rng_state"], np.random.get_state()
    assert ours[0] == theirs[0] and (ours[1] == theirs[1]).all() and ours[2:] == theirs[2:]
    words = [int.from_bytes(raw(tensor)[:8], "little")
             for tensor in (states["cuda_rng_state"], states["rng_tracker_states"]["model-parallel-rng"])]
    assert words == [1234, 1234 + 2718], words
    random.seed()


def check_types(temp):
    folder = os.path.join(temp, "types")
    probe("types", folder)
    state = load_all(folder)
    for name, value in state.items():
        bytes_ = raw(value)
        assert bytes_ == bytes(i % 2 for i in range(len(bytes_))), name
    return len(state), check_identical(folder)


def check_converted(folder, whole):
    state = load_all(folder)
    for key, value in whole.items():
        assert state[key].dtype == value.dtype and torch.equal(state[key], value), key
    assert state["iteration"] == 7 and state["args"].num_layers == 2 and state["opt_param_scheduler.max_lr"] == 1e-3
    steps = {key.removesuffix("exp_avg") + "step" for key in whole if key.endswith(".exp_avg")}  # torch's Adam counts updates there
    assert {key for key, value in state.items() if isinstance(value, torch.Tensor)} == whole.keys() | steps
    assert len({float(state[key]) for key in steps}) <= 1, {key: state[key] for key in steps}
    return state


def check_torch_dist(temp):
    """Converts every form of torch_dist that torch writes, and compares what torch reads of the results."""
    cases = 0
    for form in FORMS:
        source, target = os.path.join(temp, f"td-{form}"), os.path.join(temp, f"fsdp-{form}")
        whole, groups = make_form(form, source)
        dump = os.path.join(temp, f"map-{form}")
        save_groups(groups, dump)
        probe("groups", dump)
        with open(os.path.join(dump, "param_to_param_group_map.json")) as file:
            text = file.read()
        assert json.loads(text) == {f"model.module.{name}": group for name, group in groups.items()}
        assert text == json.dumps(json.loads(text), indent=2)
        probe("convert", source, target, "--swiglu", "--groups", os.path.join(dump, "param_to_param_group_map.json"))
        state = check_converted(target, whole)
        for name, group in groups.items():
            prefix = f"optimizer.param_to_group_meta.module.module.module.{name}."
            assert state[prefix + "lr"] == 0.1 * (group + 1) and state[prefix + "betas"] == (0.9, 0.95), name
            assert prefix + "params" not in state
        assert state["rerun_state_machine.sharded.mode"] == "disabled"
        assert not any(key.startswith("rng_state") or "_extra_state" in key for key in state)
        back = os.path.join(temp, f"back-{form}")
        probe("back", target, back)
        probe("convert", back, target + "2", "--swiglu")
        check_same(target, target + "2")
        cases += 1
    refused = os.path.join(temp, "td-refused")
    make_refused(refused)
    assert "dp_reshardable; resave" in probe("convert", refused, refused + "-out", ok=False)
    probe("convert", refused, refused + "-out", "--weights-only")
    assert torch.equal(load_all(refused + "-out")["model.module.w"], torch.ones(2))
    return cases


def check_same(a, b):
    """Both checkpoints must have the same tensors."""
    a, b = load_all(a), load_all(b)
    names = {key for key, value in a.items() if isinstance(value, torch.Tensor)}
    assert names == {key for key, value in b.items() if isinstance(value, torch.Tensor)}
    for name in names:
        assert torch.equal(a[name], b[name]), name


def check_large(temp):
    mine, theirs, size = os.path.join(temp, "mine.bin"), os.path.join(temp, "theirs.bin"), (1 << 32) + 100
    probe("large", mine, size)
    with open(theirs, "wb") as file:
        torch.save(torch.full((size,), 7, dtype=torch.uint8), file)
    with open(mine, "rb") as a, open(theirs, "rb") as b:
        while True:
            x, y = a.read(1 << 26), b.read(1 << 26)
            assert x == y, f"differs near byte {a.tell()}"
            if not x:
                break
    os.remove(mine)
    os.remove(theirs)
    tensor = torch.zeros(size, dtype=torch.uint8)
    tensor[-4:] = torch.arange(1, 5)
    folder = os.path.join(temp, "large")
    dcp.save({"big": tensor}, storage_writer=dcp.FileSystemWriter(folder))
    assert probe("box", folder, "big", "uint8", size - 6, 6).strip() == "000001020304"
    shutil.rmtree(folder)


def check_safetensors(temp):
    from safetensors.torch import load_file, save_file
    source, single, parts = (os.path.join(temp, name) for name in ("st", "st1", "stn"))
    os.makedirs(source)
    tensors = {f"t.{str(dtype).split('.')[1]}": pattern((5, 4), dtype, i) for i, dtype in enumerate(DTYPES)}
    tensors["scalar"] = torch.tensor(5)
    tensors["empty"] = torch.zeros(0, 3)
    tensors['quote"\\ü'] = torch.ones(3)
    save_file(tensors, os.path.join(source, "model.safetensors"), metadata={"format": "pt"})
    probe("safetensors", source, single, 1 << 40)
    theirs, mine = (open(os.path.join(f, "model.safetensors"), "rb").read() for f in (source, single))
    assert theirs == mine, "safetensors bytes differ"
    probe("safetensors", source, parts, 200)
    files = [name for name in os.listdir(parts) if name.endswith(".safetensors")]
    assert len(files) > 1
    merged = {}
    for name in files:
        merged.update(load_file(os.path.join(parts, name)))
    assert merged.keys() == tensors.keys()
    for name, value in tensors.items():
        assert raw(merged[name]) == raw(value) and merged[name].shape == value.shape, name
    probe("safetensors", parts, os.path.join(temp, "st2"), 1 << 40)
    assert open(os.path.join(temp, "st2", "model.safetensors"), "rb").read() == mine
    return len(files)


def main():
    global PROBE
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--keep")
    options = parser.parse_args()
    PROBE = options.probe
    temp = options.keep or tempfile.mkdtemp(prefix="shardc-interop-")
    os.makedirs(temp, exist_ok=True)
    print(f"torch {torch.__version__}, numpy {np.__version__}")

    there = os.path.join(temp, "there")
    spawn("save", there)
    objects, boxes = check_load_here(there, expected())
    assert objects["iteration"] == "7" and objects["nested.a.b"] == "'text'" and objects["lr"] == "[0.1, 0.2]", objects
    print(f"saved by torch on 4 processes, read here: {len(expected())} tensors whole, {boxes} boxes, {len(objects)} objects")

    here = os.path.join(temp, "here")
    probe("copy", there, here, 3)
    seen, count = check_load_there(here, expected(), temp)
    print(f"saved here on 3 ranks, read by torch: {len(expected())} tensors whole, {seen} local parts on 4 processes, "
          f"{count} records alone")
    print(f"records saved here that torch.save makes byte for byte: {check_identical(here)}")
    print("element types, byte for byte: {} loaded, {} identical".format(*check_types(temp)))
    check_rng(temp)
    check_fsdp(temp)
    print("fsdp_dtensor: keys, halves of gated layers, group metadata, generator states, train_state.pt agree")
    print(f"torch_dist made by torch: {check_torch_dist(temp)} forms converted, there and back")
    print(f"safetensors: identical bytes in one file, {check_safetensors(temp)} parts loaded")
    if options.large:
        check_large(temp)
        print("a record of more than 4 GiB is identical to torch.save's, and one of torch's is read")
    if not options.keep:
        shutil.rmtree(temp)
    print("all agree")


if __name__ == "__main__":
    main()
