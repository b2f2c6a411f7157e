"""Makes every form of torch_dist that Megatron writes, with real PyTorch, and the expected results of its conversion.

usage: torch_dist_forms.py OUT

Writes OUT/FORM, a torch_dist checkpoint; OUT/FORM.groups, the map that --dump-param-to-param-group-map writes; and
OUT/FORM.json, the options of the conversion with the expected tensors and settings, or the expected error. Exits with
77 without torch.
"""
import argparse
import io
import json
import os
import pickle
import random
import sys

try:
    import torch
    import torch.distributed.checkpoint as dcp
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

FORMS = ("dense", "dense-common-file", "moe", "deepseek", "reformulated", "chained")
REFUSED = "dp-reshardable"


def pattern(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 8
    return values.to(dtype) if dtype.is_floating_point else values.to(torch.int64).to(dtype)


class RawBytesPlanner(dcp.DefaultSavePlanner):
    """Writes bytes that already are a record unchanged, as Megatron's planner does."""

    def transform_object(self, write_item, value):
        return value if isinstance(value, io.BytesIO) else super().transform_object(write_item, value)


def save_torch_dist(folder, tensors, common, common_file=False, original_shapes=None, objects=()):
    """Saves a torch_dist checkpoint in Megatron's layout: unflattened keys, and objects as raw bytes."""
    state = {key: value for key, value in tensors.items()}
    for key, value in [*objects, *([] if common_file else [("common_state/shard_0_1", [common])])]:
        state[key] = io.BytesIO()
        torch.save(value, state[key])
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder),
             planner=RawBytesPlanner(flatten_state_dict=False))
    if common_file:
        torch.save(common, os.path.join(folder, "common.pt"))
    with open(os.path.join(folder, "metadata.json"), "w") as file:
        file.write('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    if original_shapes:  # what Metadata of old Megatron had beside the standard fields
        path = os.path.join(folder, ".metadata")
        with open(path, "rb") as file:
            metadata = pickle.load(file)
        metadata.mcore_data = {key: {"nd_reformulated_orig_global_shape": shape}
                               for key, shape in original_shapes.items()}
        with open(path, "wb") as file:
            pickle.dump(metadata, file)


def common_state(chained):
    groups = [{"lr": 0.1 * (i + 1), "betas": (0.9, 0.95), "eps": 1e-8, "step": 7, "weight_decay": 0.1, "wd_mult": 1.0,
               "is_expert_parallel": bool(i), "params": [0, 1]} for i in range(2)]
    optimizer = {i: {"optimizer": {"param_groups": [g]}} for i, g in enumerate(groups)} if chained else {
        "optimizer": {"param_groups": groups}, "param_state_sharding_type": "fully_reshardable"}
    return {"args": argparse.Namespace(num_layers=2, params_dtype=torch.bfloat16), "checkpoint_version": 3.0,
            "iteration": 7, "opt_param_scheduler": {"max_lr": 1e-3}, "optimizer": optimizer,
            "content_metadata": {"singleton_local_shards": False}}


def fsdp_keys(whole, name, weight, exp_avg, exp_avg_sq, gated):
    """Adds a parameter's master and moments under their names in fsdp_dtensor."""
    for suffix, index in (("_w", 0), ("_v", 1)) if gated else (("", None),):
        def half(value):
            return value if index is None else value.chunk(2)[index].contiguous()
        whole[f"model.module.{name}{suffix}"] = half(weight)
        whole[f"optimizer.state.module.module.module.{name}{suffix}.exp_avg"] = half(exp_avg)
        whole[f"optimizer.state.module.module.module.{name}{suffix}.exp_avg_sq"] = half(exp_avg_sq)


class Form:
    """The tensors of one form (stored key: tensor), the tensors after conversion, and the group of each parameter."""

    def __init__(self):
        self.tensors, self.whole, self.groups, self.shapes = {}, {}, {}, {}

    def param(self, key, names, shape, gated=False, master="param", prefix="", cut=None):
        """Adds a stored key, with the names of its slices: {name: index into the leading dimensions}."""
        parts = [pattern(shape, torch.float32, len(self.tensors) + i) for i in range(3)]
        self.tensors[key] = parts[0].to(torch.bfloat16)
        for state, value in zip((master, "exp_avg", "exp_avg_sq"), parts):
            stored = value
            if cut:  # fragments along each axis, each flattened
                dims = [n for f, s in zip(cut, shape) for n in (f, s // f)]
                order = [*range(0, len(dims), 2), *range(1, len(dims), 2)]
                stored = value.reshape(dims).permute(order).reshape(*cut, -1).contiguous()
                self.shapes[f"{prefix}optimizer.state.{state}.{key}"] = torch.Size(shape)
            self.tensors[f"{prefix}optimizer.state.{state}.{key}"] = stored
        for name, index in names.items():
            fsdp_keys(self.whole, name, *(value[index].contiguous() for value in parts), gated)
            self.groups[name] = int("experts" in name)


def fill(form, name):
    layer = {f"decoder.layers.{i}.": i for i in range(2)}
    attention, fc1 = "self_attention.linear_qkv.weight", "mlp.linear_fc1.weight"
    form.param("embedding.word_embeddings.weight", {"embedding.word_embeddings.weight": ...}, (12, 8))
    if name.startswith("dense") or name == "chained":
        prefix = "chained_0." if name == "chained" else ""
        form.param(f"decoder.layers.{attention}", {p + attention: i for p, i in layer.items()}, (2, 6, 8), prefix=prefix)
        form.param(f"decoder.layers.{fc1}", {p + fc1: i for p, i in layer.items()}, (2, 10, 8), True, prefix=prefix)
    elif name == "moe":
        for fc, gated in (("linear_fc1", True), ("linear_fc2", False)):
            form.param(f"decoder.layers.mlp.experts.experts.{fc}.weight",
                       {f"{p}mlp.experts.{fc}.weight{e}": (i, e) for p, i in layer.items() for e in range(3)},
                       (2, 3, 4, 8), gated)
    elif name == "deepseek":
        form.param("decoder.layers.0." + fc1, {"decoder.layers.0." + fc1: ...}, (10, 8), True)
        form.param("decoder.layers.1.mlp.experts.experts.linear_fc1.weight",
                   {f"decoder.layers.1.mlp.experts.linear_fc1.weight{e}": e for e in range(4)}, (4, 6, 8), True)
        form.param("decoder.layers.1.mlp.shared_experts.linear_fc1.weight",
                   {"decoder.layers.1.mlp.shared_experts.linear_fc1.weight": ...}, (6, 8), True)
        form.tensors["decoder.layers.1.mlp.router.expert_bias"] = torch.ones(4)
        form.whole["model.module.decoder.layers.1.mlp.router.expert_bias"] = torch.ones(4)
    else:
        form.param(f"decoder.layers.{attention}", {p + attention: i for p, i in layer.items()}, (2, 6, 8),
                   master="fp32_param", cut=(2, 3, 1))
        form.param(f"decoder.layers.{fc1}", {p + fc1: i for p, i in layer.items()}, (2, 4, 8), True,
                   master="fp32_param", cut=(2, 2, 4))


def make_form(name, folder):
    """Saves one form. Returns the tensors after conversion and the groups of its parameters."""
    form = Form()
    fill(form, name)
    objects = [("rng_state/shard_0.0_1.1", [{"random_rng_state": random.Random(1).getstate()}]),
               ("decoder.layers.self_attention.core_attention._extra_state/shard_0_2", [io.BytesIO(b"x")]),
               ("rerun_state_machine_state/shard_0_1", [{"mode": "disabled", "current_iteration": 7}])]
    save_torch_dist(folder, form.tensors, common_state(name == "chained"), name == "dense-common-file", form.shapes,
                    objects)
    return form.whole, form.groups


def make_refused(folder):
    save_torch_dist(folder, {"w": torch.ones(2), "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_"
                             "(torch.bfloat16, torch.float32).bucket_idx_0.param": torch.ones(2)}, common_state(False))


def save_groups(groups, folder):
    dcp.save({f"module.module.{name}": group for name, group in groups.items()}, checkpoint_id=folder)


def expectation(whole, groups):
    """The expected result, in a form that a program without torch can read."""
    tensors = {key: {"dtype": str(value.dtype).split(".")[1], "shape": list(value.shape),
                     "values": value.flatten().tolist()} for key, value in whole.items()}
    settings = {name: {"lr": 0.1 * (group + 1), "betas": [0.9, 0.95], "step": 7} for name, group in groups.items()}
    return {"options": ["--swiglu"], "tensors": tensors, "settings": settings}


def main():
    out = sys.argv[1]
    os.makedirs(out)
    for name in FORMS:
        whole, groups = make_form(name, os.path.join(out, name))
        save_groups(groups, os.path.join(out, f"{name}.groups"))
        with open(os.path.join(out, f"{name}.json"), "w") as file:
            json.dump(expectation(whole, groups), file)
    make_refused(os.path.join(out, REFUSED))
    with open(os.path.join(out, f"{REFUSED}.json"), "w") as file:
        json.dump({"options": [], "error": "optimizer state is dp_reshardable; resave with "
                                           "--dist-ckpt-optim-fully-reshardable or convert weights only"}, file)


if __name__ == "__main__":
    main()
