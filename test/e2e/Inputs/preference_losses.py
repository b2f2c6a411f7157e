#!/usr/bin/env python3
"""Trains models in Hugging Face's form on pairs of answers, and compares losses and metrics with those of TRL.

    preference_losses.py SHARDC WORK GOLDEN [CASE...]

GOLDEN is test/e2e/golden. Its file values/preference_training.json has, for each case, the config.json, the shapes of
the tensors, the settings, and TRL's output of each step (test/interop/preference_training.py). Losses must agree within
1e-5 (relative), metrics within 1e-4 of the largest one: for packs of two pairs, and for the first case on several
ranks, for each number of microbatches. References of other packs, or missing references, are refused.
"""

import array
import json
import pathlib
import random
import struct
import subprocess
import sys

import sft_losses
from hf_losses import TOLERANCE, call

STEPS, LENGTH, PAIRS, BATCH, END, RANK, ALPHA = 6, 48, 2, 4, 256, 4, 8  # pairs of a pack, packs of a global batch
METRICS = ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected"]
REFERENCE_FREE = ("orpo", "simpo")
RUN = """recipe run extends "imported.recipe" {{
  model {{ seq_length = 48 }}
  cluster {{ gpu = host  nodes = 1  gpus_per_node = 1 }}
  dist {{ use_megatron_fsdp = true }}
  ddp {{ use_megatron_fsdp = true }}
  preference {loss} {{}}
  dataset packed {{ data_path = ["{work}/pairs"]  split = "1,0,0"  dataloader_type = single }}
  train {{ micro_batch_size = 2  global_batch_size = {batch}  train_iters = {steps} }}
  optimizer adam {{ lr = 1e-3  min_lr = 1e-3  weight_decay = 0.0  betas = (0.9, 0.95)  eps = 1e-8  clip_grad = 0.0 }}
  scheduler constant {{}}
  logger {{ log_interval = 1 }}
  checkpoint {{ pretrained_checkpoint = "{work}/weights"  finetune = {finetune} }}
}}
"""
WHOLE = ["dist.use_megatron_fsdp=false", "ddp.use_megatron_fsdp=false", "checkpoint.convert_on_load=true"]
LAYOUTS = [["train.micro_batch_size=1"], ["train.micro_batch_size=4"],
           ["cluster.gpus_per_node=2", "train.micro_batch_size=1"],
           ["cluster.gpus_per_node=2", "train.micro_batch_size=1", "ddp.use_distributed_optimizer=true", *WHOLE],
           ["cluster.gpus_per_node=2", "model.tensor_model_parallel_size=2", "model.sequence_parallel=true"],
           ["cluster.gpus_per_node=2", "model.pipeline_model_parallel_size=2", "model.num_layers=3",
            "model.num_layers_in_first_pipeline_stage=1", *WHOLE]]
LORA = ["peft.scheme=lora", f"peft.rank={RANK}", f"peft.alpha={ALPHA}", 'peft.targets=["q_proj", "v_proj"]']


def pairs():
    """(prompt, chosen, rejected) of each pair; the answers end with an end token."""
    rng = random.Random(62)

    def draw(least, most):
        return [rng.randrange(1, END) for _ in range(rng.randrange(least, most))]
    return [(draw(2, 5), draw(1, 6) + [END], draw(1, 6) + [END]) for _ in range(STEPS * BATCH * PAIRS)]


def write_pairs(prefix):
    rows = [(prompt + answer, [0] * len(prompt) + [1] * len(answer)) for prompt, *answers in pairs() for answer in answers]
    sft_losses.write_packs(prefix, [rows[i:i + 2 * PAIRS] for i in range(0, len(rows), 2 * PAIRS)])
    path = pathlib.Path(f"{prefix}.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "length": LENGTH, "pairs": True}))


def write_adapter(folder, shapes):
    """PEFT's folder, of first factors that are drawn and second ones of zeros."""
    rng, tensors = random.Random(96), {}
    folder.mkdir()
    for name, shape in sorted(shapes.items()):
        module = name.removesuffix(".weight")
        if module.split(".")[-1] in ("q_proj", "v_proj"):
            tensors[f"base_model.model.{module}.lora_A.weight"] = (RANK, shape[1]), [rng.gauss(0, 0.2) for _ in range(RANK * shape[1])]
            tensors[f"base_model.model.{module}.lora_B.weight"] = (shape[0], RANK), [0.0] * (shape[0] * RANK)
    header, at, data = {"__metadata__": {"format": "pt"}}, 0, b""
    for name, (shape, values) in tensors.items():
        data += array.array("f", values).tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, len(data)]}
        at = len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj", "v_proj"], "bias": "none",
        "lora_dropout": 0.0}))


def settings_of(case):
    return case["settings"] + (LORA if case["lora"] else [])


def prepare(shardc, work, case, shapes):
    """Data, the reference, and the weights to begin with."""
    sft_losses.imported(shardc, work)
    write_pairs(work / "pairs")
    if case["loss"] not in REFERENCE_FREE:
        call(shardc, "data", "reference", work / "pairs", f"--model={work}/made", "--set=mixed_precision=fp32")
    if case["lora"]:
        write_adapter(work / "adapter", shapes)
        call(shardc, "ckpt", "import", "peft", work / "adapter", work / "begun", "--config", work / "made")
    (work / "run.recipe").write_text(RUN.format(loss=case["loss"], work=work, batch=BATCH, steps=STEPS, finetune=str(not case["lora"]).lower()))


def run(shardc, work, case, settings):
    """The records of the steps."""
    metrics = work / "metrics.jsonl"
    more = [f"checkpoint.load={work}/begun", "checkpoint.load_optim=false"] if case["lora"] else []
    # The factors that add nothing yet are not in the model of the reference.
    other = ["--any-reference"] if case["lora"] else []
    call(shardc, "run", work / "run.recipe", f"--metrics={metrics}", *other, *(f"--set={s}" for s in settings_of(case) + more + settings))
    return [record for record in map(json.loads, metrics.read_text().splitlines()) if "loss" in record]


def compare(name, case, settings, records):
    losses = [record["loss"] for record in records]
    apart = max(abs(a - b) / abs(b) for a, b in zip(losses, case["losses"], strict=True))
    if not apart <= TOLERANCE:
        sys.exit(f"{name}, {settings}: {losses}, expected {case['losses']}")
    for metric in METRICS:
        ours = [record[metric] for record in records]
        apart_of = [abs(a - b) for a, b in zip(ours, case["metrics"][metric], strict=True)]
        if metric == "rewards/accuracies" and case["loss"] not in REFERENCE_FREE:
            apart_of[0] = 0.0  # rewards are those of the reference: 0, but for rounding
        if max(apart_of) > 1e-4 * max(map(abs, case["metrics"][metric])) + 2e-6:
            sys.exit(f"{name}, {settings}: {metric} is {ours}, expected {case['metrics'][metric]}")
    return apart


def check(shardc, work, name, case, is_first):
    layouts = LAYOUTS if is_first else case.get("layouts", [])
    worst = max(compare(name, case, layout, run(shardc, work, case, layout)) for layout in [[], *layouts])
    print(f"{name}: {1 + len(layouts)} runs agree, {worst:.1e} apart", flush=True)


def refused(shardc, work, said):
    done = subprocess.run([str(shardc), "run", str(work / "run.recipe")], capture_output=True, text=True, check=False)
    if done.returncode == 0 or said not in done.stderr:
        sys.exit(f"status {done.returncode}, without '{said}':\n{done.stdout}{done.stderr}")


def check_refusals(shardc, work):
    path = work / "pairs.reference.json"
    text = path.read_text()
    path.write_text(text.replace('"packs_sha256": "', '"packs_sha256": "of others'))
    refused(shardc, work, "was made for other packs")
    path.write_text(text.replace('"embedding.word_embeddings.weight": "', '"embedding.word_embeddings.weight": "of others'))
    refused(shardc, work, "and training begins with another one: 'embedding.word_embeddings.weight' differs")
    call(shardc, "run", work / "run.recipe", "--any-reference")
    path.write_text(text.replace(" -", " ", 1))
    refused(shardc, work, "row 0 has no log-probability of 0 or less")
    path.unlink()
    refused(shardc, work, "have no reference")
    path = work / "pairs.json"
    path.write_text(path.read_text().replace('"pairs": true', '"pairs": false'))
    refused(shardc, work, "have no pairs of answers")


def main():
    shardc, work, golden = (pathlib.Path(word) for word in sys.argv[1:4])
    sys.path[:0] = [str(golden.parents[1] / "interop")]
    import hf_values
    values = json.loads((golden / "values/preference_training.json").read_text())
    cases = values["cases"]
    for name in sys.argv[4:] or cases:
        folder, case = work / name, cases[name]
        (folder / "made").mkdir(parents=True)
        (folder / "made/config.json").write_text(json.dumps(case["config"]))
        hf_values.write_tensors(folder / "made/model.safetensors", case["shapes"], case["config"]["model_type"])
        prepare(shardc, folder, case, case["shapes"])
        is_first = name == next(iter(cases))
        check(shardc, folder, name, case, is_first)
        if is_first:
            check_refusals(shardc, folder)


if __name__ == "__main__":
    main()
