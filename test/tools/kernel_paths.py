#!/usr/bin/env python3
"""Compares the kernels that plans name with a second statement of what each kernel serves on each GPU.

    kernel_paths.py SHARDC RECIPES [--only REGEX] [--table OUT.tsv]

Compiles families x kinds of job x GPUs: a fixed sample, or all 616 with SHARDC_LONG=1. For each plan, every op of attention
and of experts has to take the kernels that `kernels_of` says, and a plan has to have a warning [slow-kernels] exactly if one
of its ops in 8 or 16 bits runs on CUDA cores. --table writes a row per plan with its kernels and its predicted step.
"""
import argparse
import json
import os
import re
import subprocess
import sys

GPUS = {"a100": 80, "h100": 90, "b200": 100, "l40s": 89}
FAMILIES = {
    "gpt2": "gpt2/gpt2_1558m_fsdp", "llama2": "llama2/llama2_7b_fsdp", "llama3": "llama3/llama31_8b_fsdp",
    "mistral": "mistral/mistral_7b_fsdp", "qwen25": "qwen25/qwen25_7b_fsdp", "qwen3": "qwen3/qwen3_8b_fsdp",
    "gemma2": "gemma2/gemma2_9b_fsdp", "gemma3": "gemma3/gemma3_4b_fsdp", "phi": "phi/phi4_fsdp", "olmo2": "olmo2/olmo2_7b_fsdp",
    "smollm3": "smollm3/smollm3_3b_fsdp", "starcoder2": "starcoder2/starcoder2_7b_fsdp", "glm4": "glm4/glm4_9b_fsdp",
    "nemotron": "nemotron/nemotron4_15b_fsdp", "mixtral": "mixtral/mixtral_8x7b_fsdp", "qwen3_moe": "qwen3_moe/qwen3_30b_a3b_fsdp",
    "qwen2_moe": "qwen2_moe/qwen15_moe_a2_7b_fsdp", "gpt_oss": "gpt_oss/gpt_oss_20b_fsdp",
    "moonlight": "deepseek/moonlight_16b_a3b_fsdp", "deepseek_v3": "deepseek/deepseek_v3_fsdp",
    "glm45": "glm45/glm45_air_106b_a12b_fsdp", "llama4": "llama4/llama4_scout_109b_a17b_fsdp"}
CASES = {"pretrain": [], "sft_packs": ["sft"], "lora_packs": ["sft", "lora"], "dpo": ["dpo"], "dropout": [],
         "fp8": ["fp8_tensorwise"], "muon": []}
SETS = {"sft_packs": ["dataset.data_path=packs"], "lora_packs": ["dataset.data_path=packs", "checkpoint.pretrained_checkpoint=weights"],
        "dpo": ["dataset.data_path=packs"], "dropout": ["model.attention_dropout=0.1"], "muon": ["optimizer.optimizer=muon"]}
# One of each path, and a warning for each reason.
SAMPLE = r"gpt2-dropout-h100|gpt2-sft_packs-(h100|b200)|gemma3-pretrain-b200|mixtral-(pretrain|fp8)-(h100|l40s)"


def attention_of(op, values):
    """The properties of an attention op, from its attributes and the shapes of its operands."""
    attrs, first = op["attrs"], 1 if op["op"].endswith("_bwd") else 0
    q, packed, part = values[op["operands"][first]]["type"], "qkv" in op["op"], "part" in op["op"]
    if packed:
        n, g, d = attrs["num_heads"], attrs["num_groups"], attrs["head_dim"]
        e, keys = d, q["shape"][1]
    else:
        k, v = (values[op["operands"][first + i]]["type"]["shape"] for i in (1, 2))
        n, d, g, e, keys = q["shape"][2], q["shape"][3], k[2], v[3], k[1]
    return {"dtype": q["dtype"], "gradient": first == 1, "drops": attrs.get("p", 0) > 0, "docs": attrs.get("reset_mask", False),
            "window": attrs.get("window", -1) >= 0, "chunk": attrs.get("chunk", 0) > 0, "cap": attrs.get("soft_cap", 0) > 0,
            "causal": attrs.get("causal", False), "packed": packed, "slices": part, "all_keys": keys > q["shape"][1],
            "known": attrs.get("slices", 0) > 0, "n": n, "g": g, "d": d, "e": e}


def cudnn_serves(a, sm):
    """cuDNN 9.19 with frontend 1.32.0 (node/scaled_dot_product_flash_attention.h): semantics, layouts, head sizes."""
    uneven = a["packed"] and not (a["g"] in (1, a["n"]) and a["d"] % 8 == 0)
    unknown = a["slices"] and a["causal"] and not a["known"]
    if any((a["drops"], a["docs"], a["chunk"], a["cap"], a["window"] and a["slices"], uneven, unknown)):
        return False
    wide = max(a["d"], a["e"])
    if not a["gradient"] or sm == 90:
        return wide <= 256
    return wide <= 128 or sm // 10 == 10 and (a["d"], a["e"]) == (192, 128)


def mma_serves(a):
    masks = a["causal"] or not (a["docs"] or a["slices"])
    keys = not a["slices"] or a["all_keys"] and (a["known"] or not a["causal"])
    return masks and keys and max(a["d"], a["e"]) <= 256 and a["d"] % 8 == a["e"] % 8 == 0


def wgmma_serves(a, sm):
    return sm == 90 and mma_serves(a) and not a["drops"] and a["d"] == a["e"] and a["d"] in (64, 128)


def kernels_of(op, values, sm):
    """(kernels, whether tensor cores have the type) of an op; None if it has no choice of kernels."""
    if op["op"].startswith("grouped_matmul"):
        fp8, dtype = op["attrs"].get("fp8_recipe", 0), values[op["operands"][0]]["type"]["dtype"]
        tensor = bool(fp8) or dtype in ("bf16", "f16")
        return ("wgmma" if sm == 90 and tensor else "mma" if tensor and not fp8 else "plain"), tensor
    if re.fullmatch(r"attention(_qkv|_part)?(_bwd)?", op["op"]):
        a = attention_of(op, values)
        half = a["dtype"] in ("bf16", "f16")
        served = [("cudnn", cudnn_serves(a, sm)), ("wgmma", wgmma_serves(a, sm)), ("mma", mma_serves(a))]
        return next((name for name, serves in served if half and serves), "plain"), half
    return None


def check(shardc, root, family, case, gpu):
    """The findings for one plan, and its row of the table."""
    command = [shardc, "dump-plan", f"{root}/{FAMILIES[family]}.recipe", f"--set=cluster.gpu={gpu}", "--emit=json",
               *(f"--overlay={root}/overlays/{name}.recipe" for name in CASES[case]), *(f"--set={item}" for item in SETS.get(case, []))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    row = {"family": family, "case": case, "gpu": gpu, "refused": "", "step_s": "", "slow_s": "", "kernels": ""}
    if done.returncode != 0:
        errors = re.findall(r"error: (.*)", done.stderr)
        row["refused"] = errors[0] if errors else f"status {done.returncode}"
        return ([] if errors else [f"status {done.returncode} without an error"]), row
    plan, findings, paths, slow = json.loads(done.stdout), [], {}, False
    for role in plan["roles"]:
        for segment in role["segments"]:
            values = {value["name"]: value for value in segment["values"]}
            for op in segment["ops"]:
                expected = kernels_of(op, values, GPUS[gpu])
                if expected is None:
                    continue
                found, (wanted, tensor) = op.get("kernels"), expected
                if found != wanted:
                    findings.append(f"{op['op']} takes {found}, expected {wanted}")
                slow |= tensor and found == "plain"
                paths.setdefault(op["op"], set()).add(found)
    warnings = re.findall(r"warning: .* runs on CUDA cores on \S+ \((\S+) of \S+ (m?s) of a step\) \[slow-kernels\]", done.stderr)
    if slow != bool(warnings):
        findings.append(f"{'no ' if slow else 'a '}warning [slow-kernels]")
    step = plan["job"].get("derived.predicted.step_ms")
    row["step_s"] = f"{float(step) / 1e3:.4g}" if step else ""
    row["slow_s"] = f"{sum(float(s) * (1e-3 if unit == 'ms' else 1) for s, unit in warnings):.4g}" if warnings else ""
    row["kernels"] = "; ".join(f"{name}: {', '.join(sorted(map(str, found)))}" for name, found in sorted(paths.items()))
    return findings, row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shardc")
    parser.add_argument("recipes")
    parser.add_argument("--only", help="expression for FAMILY-CASE-GPU")
    parser.add_argument("--table")
    options = parser.parse_args()
    only = re.compile(options.only or ("" if os.environ.get("SHARDC_LONG") == "1" else SAMPLE))
    jobs = [(f, c, g) for f in FAMILIES for c in CASES for g in GPUS if only.search(f"{f}-{c}-{g}")]
    table, bad, compiled, slow = open(options.table, "w", encoding="utf-8") if options.table else None, 0, 0, 0
    for family, case, gpu in jobs:
        findings, row = check(options.shardc, options.recipes, family, case, gpu)
        if table:
            table.write("\t".join(row.values()) + "\n")
            table.flush()
        for finding in findings:
            print(f"{family} {case} {gpu}: {finding}")
        bad, compiled, slow = bad + bool(findings), compiled + (not row["refused"]), slow + bool(row["slow_s"])
    print(f"{len(jobs)} jobs, {compiled} plans, {slow} with ops on CUDA cores, {bad} with findings")
    sys.exit(1 if bad or compiled == 0 else 0)


if __name__ == "__main__":
    main()
