#!/usr/bin/env python3
"""Compares layouts that were published with what `shardc tune` chooses for the same model, GPUs and batch.

    published_layouts.py SHARDC [--record FILE HARDWARE] [--most=N] [NAME...]

Prints, or writes with --record, the table of docs/benchmarks/published-layouts.md: of each row of ROWS the published layout, the published tokens per second
and GPU, what we predict for that layout, and the fastest layout that tune finds, with its prediction and the processor's seconds
of the search, which compiles as many layouts as --most of tune says. A layout that does not fit or is refused has the reason in place of its figure.
"""

import argparse
import json
import pathlib
import re
import resource
import subprocess
import tempfile

import record_figure

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NUMBER = r"[0-9,.]+$"
TENSORWISE = ROOT / "recipes/overlays/fp8_tensorwise.recipe"
# The distributed optimizer with sums of gradients in bf16, as the published runs have it.
DISTOPT = ["dist.use_megatron_fsdp=false", "ddp.use_megatron_fsdp=false", "ddp.use_distributed_optimizer=true",
           "ddp.data_parallel_sharding_strategy=none", "checkpoint.ckpt_format=torch_dist", "ddp.grad_reduce_in_fp32=false"]
FSDP = ["dist.use_megatron_fsdp=true", "ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params",
        "checkpoint.ckpt_format=fsdp_dtensor", "ddp.grad_reduce_in_fp32=false"]


def parallel(tensor=1, stages=1, chunks=1, context=1, experts=1, more=()):
    found = [f"model.tensor_model_parallel_size={tensor}", f"model.sequence_parallel={'true' if tensor > 1 else 'false'}",
             f"model.pipeline_model_parallel_size={stages}", f"model.context_parallel_size={context}"]
    if chunks > 1:
        found += [f"model.virtual_pipeline_model_parallel_size={chunks}", "model.pipeline_schedule=interleaved"]
    if experts > 1:
        found += [f"model.expert_model_parallel_size={experts}", "model.expert_tensor_parallel_size=1"]
    return [*found, *more]


# NAME: a recipe, GPUs, sequences of a step, positions, whether in fp8; the published layout in words and as settings, and its
# tokens per second and GPU.
ROWS = {
    "Llama 3 8B": ("llama3/llama3_8b", 8, 128, 8192, True, "FSDP 8", [*parallel(), *FSDP], 14_451),
    "Llama 3 70B": ("llama3/llama3_70b", 64, 256, 8192, True, "tp 4, pp 8, vp 5", [*parallel(4, 8, 5), *DISTOPT], 1_664),
    "Llama 3.1 405B": ("llama3/llama31_405b", 1024, 1536, 8192, True, "tp 8, pp 8, vp 8, cp 2",
                       [*parallel(8, 8, 8, 2, more=["model.account_for_embedding_in_pipeline_split=true",
                                                    "model.account_for_loss_in_pipeline_split=true"]), *DISTOPT], 328),
    "GPT-OSS 120B": ("gpt_oss/gpt_oss_120b", 64, 1280, 4096, False, "pp 4, ep 8", [*parallel(1, 4, experts=8), *DISTOPT], 5_993),
    "Qwen3-30B-A3B": ("qwen3_moe/qwen3_30b_a3b", 16, 1024, 4096, False, "pp 2, vp 12, ep 8",
                      [*parallel(1, 2, 12, experts=8), *DISTOPT], 9_058),
    "Qwen3-30B-A3B, ep 16": ("qwen3_moe/qwen3_30b_a3b", 16, 1024, 4096, False, "ep 16", [*parallel(experts=16), *DISTOPT], 8_960),
    "Qwen3-235B-A22B": ("qwen3_moe/qwen3_235b_a22b", 256, 8192, 4096, False, "tp 2, pp 8, vp 4, ep 32",
                        [*parallel(2, 8, 4, experts=32, more=["model.account_for_embedding_in_pipeline_split=true",
                                                              "model.account_for_loss_in_pipeline_split=true"]), *DISTOPT], 1_712),
    "DeepSeek-V3": ("deepseek/deepseek_v3", 1024, 8192, 4096, False, "tp 2, pp 8, vp 4, ep 64",
                    [*parallel(2, 8, 4, experts=64, more=["model.pipeline_model_parallel_layout=\"Et|(tt|)*30L\""]), *DISTOPT], 1_297),
}
COLUMNS = ("tp", "cp", "by", "ep", "etp", "pp", "vp", "schedule", "layers", "sharding", "hsdp", "mbs", "recompute")


def words_of(row):
    sizes = {"tp", "cp", "ep", "etp", "pp", "vp", "hsdp"}
    words = []
    for column in COLUMNS:
        word = row["layout"][column]
        if word in ("-", "given") or (column in sizes and word == "1") or (column, word) in (("recompute", "none"), ("mbs", "1")):
            continue
        words.append(word if column in ("by", "schedule", "layers", "sharding") else f"{column} {word}")
    return ", ".join(words)


def first_error(text):
    found = re.search(r"error: (.*?)(?: \[[a-z0-9-]+\])?$", text, re.MULTILINE)
    return found[1] if found else text.strip().splitlines()[-1]


def predicted(shardc, words, folder):
    """Tokens per second and GPU and GiB of a layout, or why there are none."""
    plan = folder / "published.plan"
    plan.unlink(missing_ok=True)
    done = subprocess.run([shardc, "dump-plan", *words, "-o", plan], capture_output=True, text=True)
    if done.returncode != 0:
        return first_error(done.stderr)
    rate = re.search(r"^// predicted step: .*?, ([0-9,.]+) tokens/s", plan.read_text(), re.MULTILINE)
    return rate[1]


def ratio(rate, figure):
    return f"{float(rate.replace(',', '')) / figure:.2f}" if re.match(NUMBER, rate) else ""


def print_row(shardc, name, folder, more, record):
    recipe, gpus, batch, sequence, is_fp8, layout, settings, figure = ROWS[name]
    words = [ROOT / f"recipes/{recipe}.recipe", "--set=cluster.gpu=h100", "--set=cluster.gpus_per_node=8",
             f"--set=cluster.nodes={gpus // 8}", f"--set=train.global_batch_size={batch}", f"--set=model.seq_length={sequence}",
             f"--set=dataset.seq_length={sequence}", "--set=checkpoint.save=none"]
    words += [f"--overlay={TENSORWISE}"] if is_fp8 else []
    whole = [*words, "--set=train.micro_batch_size=1", "--set=model.recompute_granularity=none",
             "--set=model.recompute_method=none", "--set=model.recompute_num_layers=none", *(f"--set={setting}" for setting in settings)]
    own = predicted(shardc, whole, folder)
    # If it does not fit: with the capacity factor 2, because the published runs force balanced experts, then with recomputation.
    capacity = ["--set=model.moe_expert_rank_capacity_factor=2"]
    recompute = ["--set=model.recompute_granularity=auto", "--set=model.recompute_modules=none"]
    attempts = [("recomputation", recompute)]
    has_experts = any(setting.startswith("model.expert_model_parallel_size") for setting in settings)
    if has_experts:
        attempts = [("capacity 2", capacity), ("capacity 2, recomputation", [*capacity, *recompute])]
    with_what = "—"
    for what, sets in attempts:
        if not re.match(NUMBER, own):
            other = predicted(shardc, [*whole, *sets], folder)
            own, with_what = (other, what) if re.match(NUMBER, other) else (f"{own}; with {what}: {other}", with_what)
    free = ["--free=all", "--force", "--list", folder / "list", *(capacity if has_experts else [])]
    precision = [f"--set=mixed_precision.fp8={'hybrid' if is_fp8 else 'none'}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([shardc, "tune", *words, *precision, "--set=ddp.grad_reduce_in_fp32=false", *free, *more],
                          capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    if done.returncode != 0:
        chosen, rate, memory, others = first_error(done.stderr), "", "", None
    else:
        best = json.loads((folder / "list").read_text().splitlines()[0])
        chosen, rate, memory = words_of(best), f"{best['tokens_per_s']:,.0f}", f"{best['bytes'] / 2**30:.1f}"
        others = re.search(r"by their estimates (\d+) others", done.stdout)
    model = f"{name.split(',')[0]}, {gpus:,} GPUs, {'fp8' if is_fp8 else 'bf16'}, batch {batch}"
    rest = {"with": with_what, "chosen": chosen, "predicted for it, tokens/s": rate, "its ratio": ratio(rate, figure), "its GiB": memory,
            "search, s": f"{seconds:.0f}", "could be faster": f"{int(others[1]) if others else 0:,}"}
    print(f"| {model} | {layout} | {figure:,} | {own} | {ratio(own, figure)} | {' | '.join(rest.values())} |", flush=True)
    if record and re.match(NUMBER, own):
        ours = float(own.replace(",", ""))
        record_figure.record(record[0], case=f"{model}: {layout}", measure="predicted tokens/s per GPU", peer=figure, peer_is="published, measured",
                             ours=int(ours) if ours.is_integer() else ours, ratio=round(ours / figure, 2), more=rest, hardware=record[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("shardc")
    parser.add_argument("names", nargs="*", metavar="NAME")
    record_figure.add_argument(parser)
    arguments, more = parser.parse_known_args()
    print("| model | published layout | published, tokens/s per GPU | predicted for it | ratio | with | chosen | "
          "predicted, tokens/s per GPU | ratio | GiB | search, s | could be faster |\n"
          "|---|---|--:|--:|--:|---|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names or ROWS:
            print_row(arguments.shardc, name, pathlib.Path(folder), more, arguments.record)


if __name__ == "__main__":
    main()
