#!/usr/bin/env python3
"""Writes docs/compatibility.md: which features of Megatron FSDP work together, and how far each pair is tested.

    compatibility.py SHARDC PAGE [--check]

Every cell is a recipe: the scheme of its column with the feature of its row. `shardc check` says whether it is refused
(and by which rule), only checked (an op is missing), or compiled to a verified plan; what is executed by a test is named
in PROOFS below with the test that does. With --check nothing is written, and an outdated page is an error.
"""

import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BASE = """  model llama { num_layers = 2  hidden_size = 64  num_attention_heads = 4  num_query_groups = 4
                ffn_hidden_size = 128  seq_length = 32  vocab_size = 256 }
  train { micro_batch_size = 1  global_batch_size = 32  train_iters = 10 }
"""
# Without a GPU a plan is for the host; rules that ask for hardware get one.
WORLD = "  cluster { nodes = 1  gpus_per_node = 8 }\n"
ON = "  dist.use_megatron_fsdp = true\n"


def fsdp(strategy, *more):
    return ON + "".join(f"  ddp.{line}\n" for line in (f"data_parallel_sharding_strategy = {strategy}", *more))


HYBRID = "num_distributed_optimizer_instances = 2"
SCHEMES = {
    "no_shard": fsdp("no_shard"), "optim": fsdp("optim"), "optim_grads": fsdp("optim_grads"),
    "optim_grads_params": fsdp("optim_grads_params"), "HSDP": fsdp("optim_grads_params", HYBRID),
    "HFSDP": fsdp("optim_grads_params", HYBRID, "outer_dp_sharding_strategy = optim"),
    "torch FSDP2": "  dist.use_torch_fsdp2 = true\n",
}
MOE = "  model { num_moe_experts = 4  moe_grouped_gemm = true  expert_model_parallel_size = %d }\n"
FEATURES = {
    "bf16": "  mixed_precision = bf16_mixed\n",
    "fp16, dynamic loss scale": "  mixed_precision = fp16_mixed\n",
    "FP8 compute, delayed scaling": "  mixed_precision bf16_with_fp8_delayed_scaling_mixed { fp8_param_gather = false }\n",
    "FP8 compute, current scaling": "  mixed_precision bf16_mixed { fp8 = hybrid  fp8_recipe = tensorwise }\n",
    "FP8 compute, blockwise": "  mixed_precision = bf16_with_fp8_subchannel_scaling_mixed\n",
    "FP8 compute, MXFP8": "  mixed_precision bf16_with_mxfp8_mixed { fp8_param_gather = false  "
                          "reuse_grad_buf_for_mxfp8_param_ag = false }\n",
    "FP8 parameters": "  mixed_precision = bf16_with_fp8_current_scaling_mixed\n",
    "meta-device initialisation": "  model.init_model_with_meta_device = true\n",
    "TP with SP": "  model { tensor_model_parallel_size = 2  sequence_parallel = true }\n",
    "CP": "  model.context_parallel_size = 2\n",
    "PP": "  model.pipeline_model_parallel_size = 2\n",
    "VPP": "  model { pipeline_model_parallel_size = 2  virtual_pipeline_model_parallel_size = 2  num_layers = 4 }\n",
    "EP, expert DP of 2 or more": MOE % 2,
    "EP, expert DP of 1": MOE % 4 + "  cluster { nodes = 1  gpus_per_node = 4 }\n",
    "overlap of expert communication": MOE % 2 + "  mixed_precision = bf16_mixed\n"
    "  model { moe_token_dispatcher_type = alltoall  overlap_moe_expert_parallel_comm = true }\n",
    "delayed weight gradients": MOE % 2 + "  mixed_precision = bf16_mixed\n"
    "  model { moe_token_dispatcher_type = alltoall  overlap_moe_expert_parallel_comm = true\n"
    "          delay_wgrad_compute = true }\n",
    "selective recomputation": "  model.recompute_granularity = selective\n",
    "full recomputation": "  model { recompute_granularity = full  recompute_method = uniform"
                          "  recompute_num_layers = 1 }\n",
    "activations on the host": "  model { cpu_offloading = true  cpu_offloading_num_layers = 1 }\n",
    "CUDA graph of each layer": "  model.cuda_graph_impl = transformer_engine\n",
    "CUDA graph of the iteration": "  model.cuda_graph_impl = full_iteration\n"
                                   "  rerun_state_machine.check_for_nan_in_loss = false\n",
    "double buffer": "  ddp.fsdp_double_buffer = true\n",
    "nccl_ub": "  ddp.nccl_ub = true\n",
    "gradient accumulation fusion": "  model.gradient_accumulation_fusion = true\n",
    "precision-aware optimizer": "  optimizer.use_precision_aware_optimizer = true\n",
    "optimizer on the host": "  optimizer { use_precision_aware_optimizer = true  optimizer_cpu_offload = true }\n",
    "SGD": "  optimizer sgd { }\n",
    "Muon": "  optimizer muon { }\n",
    "checkpoint, default format": '  checkpoint { save = "ckpt" }\n',
    "asynchronous save": '  checkpoint { save = "ckpt"  async_save = true }\n',
    "comparison of weight hashes": "  train.check_weight_hash_across_dp_replicas_interval = 10\n",
    "tied embeddings": "  model.share_embeddings_and_output_weights = true\n",
    "MTP": "  model.mtp_num_layers = 1\n",
    "loss per token": "  model.calculate_per_token_loss = true\n",
}
SHARDINGS = ("no_shard", "optim", "optim_grads", "optim_grads_params")
MEASURED = "docs/benchmarks/cuda-multi-gpu.md"
# What is executed and compared by a test, or measured: feature, schemes, test or record, how far. The farthest first.
PROOFS = [
    ("bf16", ("optim_grads_params",), MEASURED, "measured"),
    ("bf16", ("no_shard", "optim_grads_params"), "test/e2e/golden-bf16.test", "tested on host"),
    ("fp16, dynamic loss scale", SHARDINGS, "test/e2e/golden-fp16.test", "tested on host"),
    ("FP8 compute, current scaling", SHARDINGS, "test/e2e/golden-fp8.test", "tested on host"),
    ("FP8 compute, delayed scaling", SHARDINGS, "test/e2e/golden-fp8-delayed.test", "tested on host"),
    ("FP8 compute, blockwise", ("optim", "optim_grads_params"), "test/e2e/golden-fp8-blocks.test", "tested on host"),
    ("FP8 compute, MXFP8", ("optim", "optim_grads_params"), "test/e2e/golden-fp8-blocks.test", "tested on host"),
    ("FP8 parameters", ("optim_grads_params",), "test/e2e/golden-fp8-gathered.test", "tested on host"),
    ("EP, expert DP of 2 or more", (*SHARDINGS, "HFSDP"), "test/e2e/experts-agree.test", "tested on host"),
    ("EP, expert DP of 1", (*SHARDINGS, "HSDP", "HFSDP"), "test/e2e/experts-agree.test", "tested on host"),
    ("overlap of expert communication", ("no_shard", "optim_grads", "optim_grads_params"), "test/e2e/pipelines-overlap.test",
     "tested on host"),
    ("selective recomputation", ("optim_grads_params",), "test/e2e/recompute-agrees.test", "tested on host"),
    ("full recomputation", ("optim_grads_params",), "test/e2e/recompute-agrees.test", "tested on host"),
    ("activations on the host", ("no_shard", "optim_grads_params", "HSDP", "torch FSDP2"), "test/e2e/offload-agrees.test",
     "tested on host"),
    ("checkpoint, default format", (*SHARDINGS, "torch FSDP2"), "test/e2e/resume-agrees.test", "tested on host"),
    ("asynchronous save", SHARDINGS, "test/e2e/save-background.test", "tested on host"),
    ("double buffer", ("optim_grads_params",), "test/e2e/schedules-agree.test", "tested on host"),
    ("tied embeddings", ("optim", "optim_grads", "optim_grads_params"), "test/e2e/golden-strategies.test", "tested on host"),
    ("loss per token", SHARDINGS, "test/e2e/strategies-agree.test", "tested on host"),
    ("CP", (*SHARDINGS, "HSDP", "HFSDP", "torch FSDP2"), "test/e2e/context-agrees.test", "tested on host"),
    ("TP with SP", (*SHARDINGS, "HSDP", "HFSDP"), "test/e2e/tensor-agrees.test", "tested on host"),
    ("PP", (*SHARDINGS, "HSDP"), "test/e2e/pipelines-agree.test", "tested on host"),
    ("MTP", SHARDINGS, "test/e2e/further-agrees.test", "tested on host"),
    ("checkpoint, default format", ("HSDP",), "test/e2e/hybrid-layouts.test", "tested on host"),
    ("tied embeddings", ("HSDP",), "test/e2e/hybrid-agrees.test", "tested on host"),
    ("loss per token", ("HSDP",), "test/e2e/hybrid-average-agrees.test", "tested on host"),
    ("bf16", ("HFSDP",), "test/e2e/hybrid-divided-same.test", "tested on host"),
    ("double buffer", ("HFSDP",), "test/e2e/hybrid-divided-same.test", "tested on host"),
    ("selective recomputation", ("HFSDP",), "test/e2e/hybrid-divided-same.test", "tested on host"),
    ("full recomputation", ("HFSDP",), "test/e2e/hybrid-divided-same.test", "tested on host"),
    ("SGD", ("HFSDP",), "test/e2e/hybrid-divided.test", "tested on host"),
    ("checkpoint, default format", ("HFSDP",), "test/e2e/hybrid-layouts.test", "tested on host"),
    ("asynchronous save", ("HFSDP",), "test/e2e/hybrid-formats.test", "tested on host"),
    ("tied embeddings", ("HFSDP",), "test/e2e/hybrid-divided.test", "tested on host"),
    ("loss per token", ("HFSDP",), "test/e2e/hybrid-divided-average.test", "tested on host"),
]
REMARKS = {"upstream-differs", "upstream-only", "wrong-upstream"}


def combine(scheme, feature):
    """The recipe of a cell. Settings that FSDP2 needs are added if the feature does not set them."""
    text = BASE
    settings = SCHEMES[scheme] + FEATURES[feature]
    if scheme == "torch FSDP2" and "share_embeddings" not in settings:
        settings += "  model.share_embeddings_and_output_weights = false\n"
    if "num_layers" in settings:
        text = text.replace("num_layers = 2  ", "")
    if "num_layers =" in settings:
        settings = settings.replace("  num_layers = 4", "")
        text = text.replace("model llama { ", "model llama { num_layers = 4  ")
    return "recipe r {\n" + text + ("" if "cluster" in settings else WORLD) + settings + "}\n"


def messages(shardc, texts):
    """What `check` says of each recipe."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, text in enumerate(texts):
            paths.append(os.path.join(folder, f"{number}.recipe"))
            with open(paths[-1], "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run([shardc, "check", "--diag-format=json", *paths], capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            sys.exit(f"shardc check ended with {done.returncode}: {done.stderr}")
        out = {path: [] for path in paths}
        for line in done.stdout.splitlines():
            message = json.loads(line)
            out[message["file"]].append(message)
        return [out[path] for path in paths]


def ids(said, severity):
    return sorted({message["id"] for message in said if message["severity"] == severity})


def cell(scheme, feature, said, used):
    errors = ids(said, "error")
    if "plan-refused" in errors:
        sys.exit(f"a fault of the compiler: {feature} with {scheme} gives a plan that the verifier refuses")
    if errors:
        return "refused: " + ", ".join(f"`{id}`" for id in errors)
    differs = sorted({message["id"] for message in said if message.get("group") in REMARKS and
                      message["id"] not in ("main-grads-in-fp32",)})
    marks = "".join(f" `{id}`" for id in ids(said, "warning") + differs)
    if any(message["id"] == "checks-only" for message in said):
        return "checked" + marks
    for row, schemes, test, how in PROOFS:
        if row == feature and scheme in schemes:
            if test not in used:
                used.append(test)
            return f"{how} [{used.index(test) + 1}]" + marks
    return "compiled" + marks


def page(shardc):
    pairs = [(scheme, feature) for feature in FEATURES for scheme in SCHEMES]
    said = dict(zip(pairs, messages(shardc, [combine(*pair) for pair in pairs])))
    used = []
    rows = [[feature] + [cell(scheme, feature, said[scheme, feature], used) for scheme in SCHEMES] for feature in FEATURES]
    out = ["# Compatibility", "",
           "This page says which features work with which data-parallel scheme, and how far that is tested. Every cell is",
           "a small recipe that the page's generator (`test/docs/Inputs/compatibility.py`) gives to `shardc check`; a test",
           "compares the page with the results. [rules.md](rules.md) and `shardc explain ID` explain the rules.", "",
           "| | means |", "|---|---|",
           "| refused | an error, by the rules that are named |",
           "| checked | the rules accept it, but an op that it needs does not exist yet, so it is not compiled |",
           "| compiled | compiled to a plan that the verifier accepts; none of the tests below executes it |",
           "| tested on host | executed on the host by the test of that number, in some cells only with `--long`, and its results compared |",
           "| measured | also trained on GPUs and compared with PyTorch; the record of that number has time and memory |", "",
           "If a cell also names a rule, that rule gives a warning, or a remark that upstream does something different.", "",
           "## Features and schemes", "",
           "| feature | " + " | ".join(SCHEMES) + " |", "|---" * (len(SCHEMES) + 1) + "|"]
    out += ["| " + " | ".join(row) + " |" for row in rows]
    out += ["", "## Tests and records", ""] + [f"{number}. `{test}`" for number, test in enumerate(used, 1)]
    for test in used:
        if not os.path.exists(os.path.join(ROOT, test)):
            sys.exit(f"{test} proves cells and does not exist")
    return "\n".join(out) + "\n"


def main():
    shardc, path = sys.argv[1:3]
    text = page(shardc)
    if "--check" not in sys.argv:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return
    with open(path, encoding="utf-8") as file:
        if file.read() != text:
            sys.exit(f"{path} is not what the compiler says; write it anew with {os.path.relpath(__file__, ROOT)}")


if __name__ == "__main__":
    main()
