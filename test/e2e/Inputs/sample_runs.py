#!/usr/bin/env python3
"""Compares the texts that a run prints after evaluations with those of 'shardc generate' from its checkpoint of the
same step, and the texts of several layouts with those of one rank.

    sample_runs.py SHARDC WORK
"""

import json
import pathlib
import subprocess
import sys

STEPS, SAMPLES, TOKENS = 40, 2, 12
RUN = """recipe run {{
  model {model} {{ num_layers = 4  hidden_size = 64  num_attention_heads = 4  ffn_hidden_size = 128  seq_length = 32  {more} }}
  cluster {{ gpu = host  gpus_per_node = 1 }}
  dataset text {{ train_data_path = ["words.txt"]  valid_data_path = ["words.txt"] }}
  train {{ micro_batch_size = 1  global_batch_size = 8  train_iters = {steps} }}
  optimizer adam {{ lr = 1e-2 }}
  scheduler constant {{}}
  validation {{ eval_interval = {half}  eval_iters = 1  samples = {samples}  sample_tokens = {tokens} }}
}}
"""
FSDP = ["dist.use_megatron_fsdp=true", "ddp.use_megatron_fsdp=true"]
TP, PP = "model.tensor_model_parallel_size", "model.pipeline_model_parallel_size"
LAYOUTS = {
    "tensors": [f"{TP}=2", "model.sequence_parallel=true", "cluster.gpus_per_node=2"],
    "stages": [f"{PP}=2", "model.virtual_pipeline_model_parallel_size=2", "cluster.gpus_per_node=2"],
    "stages that differ": [f"{PP}=2", "model.num_layers_in_first_pipeline_stage=1", "cluster.gpus_per_node=2"],
    "slices": ["model.context_parallel_size=2", "cluster.gpus_per_node=2"],
    "shards": [*FSDP, "cluster.gpus_per_node=4"],
    "shards of instances": [*FSDP, "ddp.num_distributed_optimizer_instances=2", "cluster.gpus_per_node=4"],
    "shards of state": ["ddp.use_distributed_optimizer=true", "cluster.gpus_per_node=2"],
}
# Processes of their own, which send weights to the first one.
PROCESSES = ["shards", "tensors", "stages"]
# Of which sums over ranks are rounded, so that they are compared with what 'generate' says alone.
ROUNDED = {
    "remainders": [*FSDP, "cluster.gpus_per_node=2", "mixed_precision=bf16_mixed", "optimizer.use_precision_aware_optimizer=true",
                   "optimizer.store_param_remainders=true"],
    "bf16": [*FSDP, "cluster.gpus_per_node=2", "mixed_precision=bf16_mixed", f"{TP}=2"],
}
EXPERTS = "num_query_groups = 2  num_moe_experts = 4  moe_ffn_hidden_size = 64  moe_router_topk = 2  moe_router_score_function = sigmoid  moe_router_enable_expert_bias = true"
EXPERT_LAYOUTS = {
    "experts": ["model.expert_model_parallel_size=2", "cluster.gpus_per_node=2"],
    "experts and shards": [*FSDP, "model.expert_model_parallel_size=2", "cluster.gpus_per_node=4"],
    "experts and stages": ["model.expert_model_parallel_size=2", f"{PP}=2", "cluster.gpus_per_node=4"],
}


def texts(shardc, work, name, settings, *options):
    """What the run says after each evaluation: (step, prompt, text of the model)."""
    metrics = work / "metrics.jsonl"
    sets = [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run([shardc, "run", "run.recipe", f"--metrics={metrics}", *sets, *options], cwd=work, capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{name}: status {done.returncode}\n{done.stdout}{done.stderr}")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    found = [(line["step"], line["prompt"], line["said"]) for line in lines if "sample" in line]
    if len(found) != 2 * SAMPLES:
        sys.exit(f"{name}: {len(found)} texts\n{done.stdout}")
    return found


def generated(shardc, work, prompt):
    words = " ".join(str(byte) for byte in prompt.encode())
    done = subprocess.run([shardc, "generate", "saved", words, f"--tokens={TOKENS}", "--tokenizer=none"], cwd=work,
                          capture_output=True, text=True, check=True)
    return bytes(int(word) for word in done.stdout.split()).decode()


def check_saved(shardc, work, name, settings):
    """Compares the texts of a run with those of its checkpoint, and returns them."""
    found = texts(shardc, work, name, [*settings, "checkpoint.save=saved", "checkpoint.overwrite=true", "checkpoint.async_save=true",
                                       f"checkpoint.save_interval={STEPS}"])
    for step, prompt, text in found:
        if step == STEPS and text != generated(shardc, work, prompt):
            sys.exit(f"{name}: '{prompt}' goes on with '{text}', from the checkpoint with '{generated(shardc, work, prompt)}'")
    print(f"{name}: {found[-1][2]!r}")
    return found


def compare(shardc, work, model, more, layouts, rounded):
    (work / "run.recipe").write_text(RUN.format(model=model, more=more, steps=STEPS, half=STEPS // 2, samples=SAMPLES, tokens=TOKENS))
    whole = check_saved(shardc, work, f"{model} on one rank", [])
    if len({text for _, _, text in whole}) == 1:
        sys.exit(f"one text alone: {whole}")
    for name, settings in layouts.items():
        for options in [[]] + [["--processes"]] * (name in PROCESSES):
            found = texts(shardc, work, name, settings, *options)
            if found != whole:
                sys.exit(f"{name} {options}: {found}, one rank {whole}")
            print(f"{name}{' in processes' * len(options)}: {found[-1][2]!r}")
    for name, settings in rounded.items():
        check_saved(shardc, work, name, settings)


def check_adapters(shardc, work):
    """Beside frozen weights of 4 bits, which a run and 'generate' take from one checkpoint."""
    (work / "run.recipe").write_text(RUN.format(model="llama", more="", steps=STEPS, half=STEPS // 2, samples=SAMPLES, tokens=TOKENS))
    base = ["validation.eval_interval=none", "validation.samples=0", "checkpoint.save=base", f"checkpoint.save_interval={STEPS}"]
    subprocess.run([shardc, "run", "run.recipe", *[word for setting in base for word in ("--set", setting)]], cwd=work, check=True,
                   capture_output=True)
    for scheme in (["peft.scheme=lora"], ["peft.scheme=lora", "peft.quantize=nf4"]):
        for layout in ([], [*FSDP, "cluster.gpus_per_node=2"]):
            settings = [*scheme, *layout, "checkpoint.pretrained_checkpoint=base", "checkpoint.finetune=true"]
            check_saved(shardc, work, f"adapters, {settings}", settings)


def main():
    shardc, work = sys.argv[1], pathlib.Path(sys.argv[2])
    work.mkdir(parents=True)
    words = ["the", "ring", "of", "ranks", "sends", "tokens"]
    (work / "words.txt").write_text("".join(" ".join(words[(i * k + k) % 6] for k in range(1, 9)) + "\n" for i in range(60)))
    compare(shardc, work, "llama", "", LAYOUTS, ROUNDED)
    compare(shardc, work, "mixtral", EXPERTS, EXPERT_LAYOUTS, {})
    check_adapters(shardc, work)


if __name__ == "__main__":
    main()
