#!/usr/bin/env python3
"""Checks random combinations of parallelism, schedules, strategies, recomputation and precision: what `shardc check` accepts
it has compiled and verified, and what it refuses it refuses by rules of docs/rules.md.

    parallelism.py SHARDC [--count=N] [--first=SEED] [--jobs=N]

A recipe is a small model of one of two families. None may end with a message that no rule gives, nor be accepted and not
compiled. Exits with 1 if one is, or if fewer than half are accepted. Without --count it takes 2,000, and 100,000 with
SHARDC_LONG=1.
"""

import collections
import json
import random
import sys

from batches import parse_options, show, try_all
from precision import check, fault

BATCH = 50  # recipes of one process
COUNT = 2000
SHAPE = ("num_attention_heads = 8  hidden_size = 64  ffn_hidden_size = 256  seq_length = 64  max_position_embeddings = 64  "
         "vocab_size = 128")
STRATEGIES = ["no_shard", "optim", "optim_grads", "optim_grads_params"]
MODULES = [["core_attn"], ["mlp"], ["layernorm"], ["layernorm", "mlp"], ["core_attn", "layernorm"]]


def ranks(draw):
    """How ranks divide the work, and what each way has of its own."""
    tensor, stages = draw.choice([1, 1, 2, 2, 4]), draw.choice([1, 1, 2, 4])
    context, data = draw.choice([1, 1, 2]), draw.choice([1, 2])
    yield "cluster.gpus_per_node", tensor * stages * context * data
    yield "train.micro_batch_size", draw.choice([1, 2])
    yield "train.global_batch_size", 16 * data
    yield "model.tensor_model_parallel_size", tensor
    yield "model.pipeline_model_parallel_size", stages
    yield "model.context_parallel_size", context
    if stages > 1:
        schedule = draw.choice(["one_forward_one_backward", "zero_bubble", "interleaved"])
        yield "model.pipeline_schedule", schedule
        if schedule == "interleaved":
            yield "model.virtual_pipeline_model_parallel_size", 2
    if context > 1:
        yield "model.cp_comm_type", [draw.choice(["p2p", "a2a", "all_gather"])]
    if tensor > 1 and draw.random() < 0.5:
        yield "model.sequence_parallel", True
        yield from overlap(draw, stages)


def overlap(draw, stages):
    if draw.random() < 0.3:
        yield "model.tp_comm_overlap", True
        yield "model.hidden_dropout", 0.0
        if stages == 1 and draw.random() < 0.5:
            yield "model.tp_comm_overlap_pieces", 2


def model(draw):
    yield "model.num_layers", draw.choice([4, 8])
    yield "model.num_query_groups", draw.choice([1, 2, 4, 8])
    yield "model.kv_channels", draw.choice([8, 8, 16, 16, 32])
    yield "model.hidden_dropout", draw.choice([0.0, 0.1])
    yield "model.attention_dropout", draw.choice([0.0, 0.1])
    for option, share in (("share_embeddings_and_output_weights", 0.4), ("calculate_per_token_loss", 0.2), ("add_bias_linear", 0.3),
                          ("add_qkv_bias", 0.2), ("qk_layernorm", 0.15), ("deterministic_mode", 0.2)):
        if draw.random() < share:
            yield f"model.{option}", True
    kind = draw.random()
    if kind < 0.15:
        yield "model.recompute_granularity", "full"
        yield "model.recompute_method", "uniform"
        yield "model.recompute_num_layers", 1
    elif kind < 0.35:
        yield "model.recompute_granularity", "selective"
        yield "model.recompute_modules", draw.choice(MODULES)


def training(draw):
    is_sharded = draw.random() < 0.6
    if is_sharded:
        yield "ddp.use_megatron_fsdp", True
        yield "ddp.data_parallel_sharding_strategy", draw.choice(STRATEGIES)
    if draw.random() < 0.15:
        yield "ddp.fsdp_double_buffer", True
    if draw.random() < 0.2:
        yield "ddp.grad_reduce_in_fp32", draw.choice([False, True])
    if draw.random() < 0.3:
        yield "validation.eval_interval", 2
        yield "validation.eval_iters", 1
    if draw.random() < 0.2:
        yield "optimizer.clip_grad", 0.0
    yield from precision(draw, is_sharded)


def precision(draw, is_sharded):
    kind = draw.choice(["fp32", "bf16", "fp16", "fp8", "fp8", "fp8"])
    if kind != "fp32":
        yield "mixed_precision", kind + "_mixed" if kind != "fp8" else draw.choice(["bf16_mixed", "fp16_mixed"])
    if kind != "fp8":
        return
    yield "mixed_precision.fp8", draw.choice(["hybrid", "e4m3"])
    yield "mixed_precision.fp8_recipe", draw.choice(["delayed", "delayed", "tensorwise", "blockwise", "mxfp8"])
    if is_sharded and draw.random() < 0.35:
        yield "ddp.fp8_param_gather", True
    if draw.random() < 0.2:
        yield "ddp.keep_fp8_transpose_cache", True
    if draw.random() < 0.2:
        yield "model.first_last_layers_bf16", True
    if draw.random() < 0.1:
        yield "model.fp8_wgrad", False


def recipe(seed):
    draw = random.Random(seed)
    settings = {"cluster.gpu": "host", **dict(model(draw)), **dict(training(draw)), **dict(ranks(draw))}
    lines = [f"model {draw.choice(['gpt', 'llama'])} {{ {SHAPE} }}", "train.train_iters = 4"]
    lines += [f"{path} = {json.dumps(value)}" for path, value in settings.items()]
    return f"recipe r{seed} {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def try_batch(shardc, seeds):
    found, counts = [], collections.Counter()
    texts = [recipe(seed) for seed in seeds]
    for seed, text, said in zip(seeds, texts, check(shardc, texts)):
        counts["refused" if said["error"] else "compiled"] += 1
        counts.update(said["error"])
        why = fault(said)
        if why:
            found.append((seed, text, why))
    return found, counts


def main():
    options = parse_options("checks random combinations of parallelism", COUNT)
    found, counts = try_all(options, try_batch, BATCH)
    show(options, found)
    compiled, refused = counts.pop("compiled"), counts.pop("refused")
    print(f"{options.count} combinations from seed {options.first}: {compiled} compiled, {refused} refused by rules, "
          f"{len(found)} otherwise\nrefused by {dict(counts.most_common())}")
    sys.exit(1 if found or compiled < options.count // 2 else 0)


if __name__ == "__main__":
    main()
