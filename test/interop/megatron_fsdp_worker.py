"""A rank of Megatron-FSDP on the processor, which loads, trains and saves a small GPT as Megatron's training does.

usage: megatron_fsdp_worker.py resume IN OUT STEPS TOKENS
       megatron_fsdp_worker.py train LIKE OUT STEPS TOKENS

As megatron_worker.py, but the model is wrapped in Megatron-Core's FullyShardedDataParallel, its optimizer is the
distributed optimizer over it, and checkpoints are fsdp_dtensor. The environment has RANK, WORLD_SIZE, STORE (a file for
the ranks' rendezvous) and ADAM (fused or torch). Rank 0 prints a line of JSON.

Megatron-FSDP asks for devices, streams and meshes of GPUs. Here it gets those of the processor, where every stream is
the program's own order. If ADAM is fused, it gets an Adam of the form that Transformer Engine has on GPUs. Nothing else
of it is changed.
"""

import contextlib
import copy
import json
import os
import pathlib
import sys

from megatron_worker import bare_model_of, optimizer_of, train, with_fused_adam, without_gpu

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


class NoStream:
    """A stream or event of a device without streams: everything asked of it has already happened."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        return lambda *_, **__: NoStream()

    def query(self):
        return True


def without_streams():
    torch.cuda.Stream = torch.cuda.Event = NoStream
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *_: NoStream()
    torch.cuda.stream = lambda *_: contextlib.nullcontext()
    torch.cuda.current_device = lambda: 0
    from torch.distributed.device_mesh import DeviceMesh
    of_groups = DeviceMesh.from_group
    DeviceMesh.from_group = staticmethod(lambda group, device_type, *more, **kwargs: of_groups(group, "cpu", *more, **kwargs))


def model_of(args):
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

    config, model = bare_model_of(args)
    model = FullyShardedDataParallel(
        config, DistributedDataParallelConfig(
            use_distributed_optimizer=True, use_megatron_fsdp=True, grad_reduce_in_fp32=True,
            gradient_reduce_div_fusion=False,  # gloo cannot scale while it sums
            data_parallel_sharding_strategy=args.data_parallel_sharding_strategy), model, device=torch.device("cpu"))
    return model, optimizer_of(args, model)


def state_of(args, iteration, model, optimizer, is_loading=False):
    """A state as Megatron's training saves it: gated layers in halves, and every shard with its offset."""
    from megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor import preprocess_state_dict_for_uneven_dtensor
    from megatron.core.transformer.fsdp_dtensor_checkpoint import handle_fp8_extra_state_case, handle_swiglu_in_state_dict

    inner = model.module  # MegatronFSDP: what Megatron's unwrap_model returns
    state = {"args": args, "checkpoint_version": 3.0, "iteration": iteration,
             "model": inner.state_dict_for_save_checkpoint()}
    state["optimizer"] = optimizer.sharded_state_dict(
        state, metadata={"distrib_optim_sharding_type": "fsdp_dtensor"}, is_loading=is_loading)
    handle_fp8_extra_state_case(state["model"])
    raw = {"model": state["model"].copy(), "optimizer": state["optimizer"].copy()}
    if args.swiglu:
        state["model"], state["optimizer"] = handle_swiglu_in_state_dict(inner, state["model"], state["optimizer"])
    preprocess_state_dict_for_uneven_dtensor(state)
    return state, raw


FUSED = {".input_layernorm.": ".self_attention.linear_qkv.layer_norm_", ".pre_mlp_layernorm.": ".mlp.linear_fc1.layer_norm_"}


def with_fused_norms(state):
    """The state under the names of Transformer Engine's modules, which contain the norms before them.

    Transformer Engine needs a GPU, so the model here uses Megatron's local specification.
    """
    def fused(name):
        for local, inside in FUSED.items():
            name = name.replace(local, inside)
        return name

    def renamed(entries):
        return {fused(name): value for name, value in entries.items()}

    optimizer = {key: renamed(entries) for key, entries in state["optimizer"].items()}
    return {**state, "model": renamed(state["model"]), "optimizer": optimizer}


def common_of(folder):
    state = {"args": None, "iteration": None}
    dcp.load(state, checkpoint_id=folder)
    return state


def load(folder):
    common = common_of(folder)
    args = common["args"]
    model, optimizer = model_of(args)
    state, raw = state_of(args, common["iteration"], model, optimizer, is_loading=True)
    names = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    if not any(".input_layernorm." in name for name in names):
        state = with_fused_norms(state)
    dcp.load(state, checkpoint_id=folder, planner=dcp.DefaultLoadPlanner(allow_partial_load=False))
    fill(model, raw["model"])
    optimizer.load_state_dict(raw["optimizer"])
    return args, state["iteration"], model, optimizer


def fill(model, state):
    """Loads a state as Megatron's training does (load_model_state_dict in checkpointing.py): strictly, or else what
    fits.

    In fp32 nothing fits, since the wrapper adds a 'module.' for a Float16Module that does not exist. The values are in
    the model anyway: the state that was loaded is the model's own.
    """
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError:
        model.load_state_dict(state, strict=False)


def save(folder, args, iteration, model, optimizer):
    place = pathlib.Path(folder) / f"iter_{iteration:07}"
    place.mkdir(parents=True, exist_ok=True)
    state, _ = state_of(args, iteration, model, optimizer)
    dcp.save(state, checkpoint_id=str(place))
    (place.parent / "latest_checkpointed_iteration.txt").write_text(str(iteration))


def resume(source, target, steps, tokens):
    args, iteration, model, optimizer = load(source)
    save(target, args, iteration, model, optimizer)
    return train(model, optimizer, tokens, steps)


def begin(like, target, steps, tokens):
    args = copy.deepcopy(common_of(like)["args"])
    torch.manual_seed(args.seed)
    model, optimizer = model_of(args)
    losses = train(model, optimizer, tokens, steps)
    args.iteration, args.consumed_train_samples = steps, steps * args.global_batch_size
    save(target, args, steps, model, optimizer)
    return losses + train(model, optimizer, tokens, steps)


def main():
    command, source, target, steps, tokens = sys.argv[1:]
    import megatron.core
    from megatron.core import parallel_state
    from megatron.core.distributed.fsdp.src import megatron_fsdp
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with without_gpu():
        without_streams()
        if os.environ["ADAM"] == "fused":
            with_fused_adam()
        dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=ranks)
        parallel_state.initialize_model_parallel(1, 1)
        work = {"resume": resume, "train": begin}[command]
        losses = work(source, target, int(steps), json.loads(tokens))
        if rank == 0:
            print(json.dumps({"version": megatron.core.__version__, "fsdp": megatron_fsdp.__version__,
                              "torch": torch.__version__, "losses": losses}))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
