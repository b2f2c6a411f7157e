#!/usr/bin/env python3
"""Adapters on a base that is stored in 8 bits. Needs only Python.

    base_8_bits.py RECIPE

The numbers of a base in bf16 are quantised at a load as in each microbatch. So by recipe tensorwise, a run has the losses of one that
keeps the base in bf16, to the bit. It also has them with sharded weights, with stages, with a base of the same numbers in fp32, and when
it continues from a save; delayed scaling is compared among layouts. Parts of layers and slices of sequences differ by as much as
docs/precision.md says. The adapters that it saves are merged into the base as it was.
With RECIPE, which has experts, ranks with other experts have the losses of one rank.
"""

import json
import pathlib
import random
import subprocess
import struct
import sys
import tempfile

import peft_folders
import peft_numbers  # peft_folders knows its folder
from peft_folders import call, draw, losses

peft_folders.HIDDEN, peft_folders.FFN = 64, 128
CONFIG = {**peft_folders.CONFIG, "hidden_size": 64, "intermediate_size": 128}
RECIPE = peft_folders.RECIPE.replace("hidden_size = 32", "hidden_size = 64").replace("ffn_hidden_size = 48", "ffn_hidden_size = 128")
FP8 = ["mixed_precision=bf16_mixed", "mixed_precision.grad_reduce_in_fp32=true", "mixed_precision.fp8=hybrid"]
LORA = ["peft.scheme=lora", "peft.rank=4", "peft.alpha=8", "optimizer.lr=0.01", "train.train_iters=4", "scheduler.lr_decay_iters=10",
        "scheduler.lr_warmup_iters=0"]
STORED = ["peft.quantize=fp8"]
FSDP = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"]
TENSOR = ["model.tensor_model_parallel_size=2", "model.sequence_parallel=true", "model.make_vocab_size_divisible_by=64"]
RING = ["model.context_parallel_size=2"]
HEADS = [*RING, "model.cp_comm_type=[a2a]"]
LAYOUTS = {
    "one rank": ["cluster.gpus_per_node=1"],
    "FSDP": FSDP,
    "FSDP, kept": [*FSDP, "ddp.keep_frozen=always"],
    "stages": ["model.pipeline_model_parallel_size=2"],
    "recomputed": ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"],
    "transposes kept": ["ddp.keep_fp8_transpose_cache=true"],
}


def write_bf16(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        own = b"".join(struct.pack("<f", value)[2:] for value in values)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [len(data), len(data) + len(own)]}
        data += own
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def in_bf16(values):
    """The numbers without the bits that bf16 lacks."""
    for i, value in enumerate(values):
        values[i] = struct.unpack("<f", b"\0\0" + struct.pack("<f", value)[2:])[0]
    return values


def make_bases(folder, rng):
    weights = {name: (shape, in_bf16(draw(rng, shape, 0.1)[1])) for name, shape in peft_folders.shapes().items()}
    for name, write in (("bf16", write_bf16), ("fp32", peft_numbers.write)):
        (folder / name).mkdir()
        write(folder / name / "model.safetensors", weights)
        (folder / name / "config.json").write_text(json.dumps(CONFIG))
    return weights


def expect(name, found, wanted, allowed=0.0):
    apart = max(abs(a / b - 1) for a, b in zip(found, wanted, strict=True))
    if not found or apart > allowed:
        sys.exit(f"{name}: losses are {found}, and not {wanted}")
    print(f"{name}: losses are the same" if allowed == 0 else f"{name}: losses are {apart:.1e} apart")


def check_dense(folder, rng):
    weights = make_bases(folder, rng)
    recipe = folder / "a.recipe"
    recipe.write_text(RECIPE)
    base = f'checkpoint.pretrained_checkpoint="{folder / "bf16"}"'
    settings = [*FP8, *LORA, base]
    plain = losses(folder, recipe, *settings, "mixed_precision.fp8_recipe=tensorwise")
    stored = [*settings, *STORED, "mixed_precision.fp8_recipe=tensorwise"]
    for name, own in LAYOUTS.items():
        expect(name, losses(folder, recipe, *stored, *own), plain)
    expect("base in fp32", losses(folder, recipe, *stored, base.replace('bf16"', 'fp32"')), plain)
    for name, own in (("parts of layers", TENSOR), ("slices of sequences", RING), ("slices by heads", HEADS)):
        expect(name, losses(folder, recipe, *stored, *own), plain, 2e-3)
    delayed = [*settings, *STORED, "mixed_precision.fp8_recipe=delayed"]
    one = losses(folder, recipe, *delayed, "cluster.gpus_per_node=1")
    for name in ("FSDP", "stages"):
        expect(f"{name}, delayed", losses(folder, recipe, *delayed, *LAYOUTS[name]), one)
    for name, own, allowed in (("parts of layers", TENSOR, 2e-3), ("slices of sequences", RING, 2e-3), ("slices by heads", HEADS, 1e-5)):
        expect(f"{name}, delayed", losses(folder, recipe, *delayed, *own), one, allowed)
    saves = [f'checkpoint.save="{folder / "saved"}"', "checkpoint.save_interval=2"]
    whole = losses(folder, recipe, *stored, *FSDP, *saves)
    expect("with saves", whole, plain)
    again = losses(folder, recipe, *stored, *FSDP, f'checkpoint.load="{folder / "saved"}"', "checkpoint.ckpt_step=2")
    expect("continued", again, plain[2:])
    call("shardc", "ckpt", "export", "peft", folder / "saved", folder / "peft")
    said = [subprocess.run(["shardc", "ckpt", "merge", folder / "saved", folder / base, folder / out], capture_output=True, text=True,
                           check=True).stderr for base, out in (("bf16", "merged"), ("merged", "twice"))]
    if said[0] or "[other-base]" not in said[1] or "layers.0.mlp.linear_fc2.weight" not in said[1]:
        sys.exit(f"merging once and twice says {said}")
    call("shardc", "ckpt", "export", "hf", folder / "merged", folder / "hf", "--weight-dtype=float32")
    adapter = peft_folders.read(folder / "peft")
    merged = peft_folders.merged(weights, adapter, dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 8.0))
    peft_folders.expect_close(peft_folders.read(folder / "hf"), merged, "merged")
    print("merged into the base as it was")


def check_experts(folder, recipe):
    sizes = ["train.micro_batch_size=2", "train.global_batch_size=8", "model.share_embeddings_and_output_weights=false", "model.num_moe_experts=4",
             "cluster.gpus_per_node=4"]
    call("shardc", "run", recipe, *(f"--set={each}" for each in [*sizes, "train.train_iters=1", "train.micro_batch_size=2",
         f'checkpoint.save="{folder / "base"}"', "checkpoint.save_interval=1"]))
    stored = [*sizes, *FP8, "mixed_precision.fp8_recipe=tensorwise", *LORA, *STORED, f'checkpoint.pretrained_checkpoint="{folder / "base"}"',
              "checkpoint.convert_on_load=true"]
    one = losses(folder, recipe, *stored, "cluster.gpus_per_node=1")
    for name, own in {"experts 2": ["cluster.gpus_per_node=2", "model.expert_model_parallel_size=2"],
                      "experts 2, FSDP": ["model.expert_model_parallel_size=2", *FSDP]}.items():
        expect(name, losses(folder, recipe, *stored, *own), one, 2e-3)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_dense(folder, random.Random(1))
        (folder / "experts").mkdir()
        check_experts(folder / "experts", sys.argv[1])


if __name__ == "__main__":
    main()
