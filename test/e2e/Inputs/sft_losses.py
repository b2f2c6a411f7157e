#!/usr/bin/env python3
"""Fine-tunes models in Hugging Face's form on packs, and compares the losses with those of transformers.

    sft_losses.py SHARDC WORK GOLDEN [CASE...]

GOLDEN is test/e2e/golden. Its file values/sft_training.json has, for each case, the config.json, the shapes of the
tensors, and the losses of transformers on the same rows, one row at a time. Each loss is the mean over the unmasked
tokens of the global batch (test/interop/sft_training.py). Losses must agree within 1e-5 (relative): for packs of four
rows, for one pack per row, and for the first case for each number of microbatches and on several ranks. One microbatch
has no unmasked token. The first step's gradient of each tensor must agree within 1e-5 of its norm, for packs of four
rows and of one. The file has its norm and its products with random vectors, which differ as much as gradients do.
"""

import array
import hashlib
import json
import math
import operator
import pathlib
import random
import shutil
import struct
import sys

from hf_losses import TOLERANCE, call, tensors_of

STEPS, LENGTH, ROWS, BATCH = 10, 32, 4, 8  # rows of a pack, packs of a global batch
RUN = """recipe run extends "imported.recipe" {{
  model {{ seq_length = 32 }}
  cluster {{ gpu = host  nodes = 1  gpus_per_node = 1 }}
  dist {{ use_megatron_fsdp = true }}
  ddp {{ use_megatron_fsdp = true }}
  dataset packed {{ data_path = ["{packs}"]  split = "1,0,0"  dataloader_type = single }}
  train {{ micro_batch_size = 2  global_batch_size = {batch}  train_iters = {steps} }}
  optimizer adam {{ lr = 1e-3  min_lr = 1e-3  weight_decay = 0.0  betas = (0.9, 0.95)  eps = 1e-8  clip_grad = 0.0 }}
  scheduler constant {{}}
  logger {{ log_interval = 1 }}
  checkpoint {{ pretrained_checkpoint = "{work}/weights"  finetune = true }}
}}
"""
TENSOR = ["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"]
FSDP = ["ddp.data_parallel_sharding_strategy=optim_grads_params", "train.micro_batch_size=1"]
# Of the first case: settings of a run on packs, and the numbers of packs in a microbatch.
LAYOUTS = [["train.micro_batch_size=1"], ["train.micro_batch_size=4"], ["train.micro_batch_size=8"],
           ["cluster.gpus_per_node=2", "train.micro_batch_size=1"],
           ["cluster.gpus_per_node=2", "model.context_parallel_size=2"],
           ["cluster.gpus_per_node=2", *TENSOR],
           ["cluster.gpus_per_node=2", *FSDP],
           ["cluster.gpus_per_node=4", *FSDP, *TENSOR],
           ["cluster.gpus_per_node=4", *FSDP],
           ["cluster.gpus_per_node=4", *FSDP, "ddp.num_distributed_optimizer_instances=2"],
           ["cluster.gpus_per_node=2", "model.pipeline_model_parallel_size=2", "model.num_layers=3",
            "model.num_layers_in_first_pipeline_stage=1", "dist.use_megatron_fsdp=false", "ddp.use_megatron_fsdp=false",
            "checkpoint.convert_on_load=true"]]

EXPERTS = [["cluster.gpus_per_node=2", "model.expert_model_parallel_size=2"],
           ["cluster.gpus_per_node=2", *TENSOR, "model.expert_tensor_parallel_size=2"]]
RATE = 1e6
SGD = ["optimizer=sgd", "optimizer.sgd_momentum=0", f"optimizer.lr={RATE}", f"optimizer.min_lr={RATE}", "train.train_iters=1"]
EXPERTS = [["cluster.gpus_per_node=2", "model.expert_model_parallel_size=2"]]


def rows():
    """(tokens, masks) of each row: answers count, and some rows have two. The first pack has nothing that counts."""
    rng = random.Random(62)
    made = []
    for number in range(STEPS * BATCH * ROWS):
        length = rng.randrange(3, 10)
        begin = rng.randrange(1, length)
        masks = [int(i >= begin or (number % 5 == 0 and i == 1)) for i in range(length)]
        made.append(([rng.randrange(257) for _ in range(length)], [0] * length if number < ROWS else masks))
    return made


def packs(count):
    """The rows of each pack."""
    all_rows = rows()
    return [all_rows[i:i + count] for i in range(0, len(all_rows), count)]


def write_indexed(prefix, number, code, sequences, documents):
    """Megatron's indexed dataset, of numbers in the form of struct."""
    with open(f"{prefix}.bin", "wb") as file:
        for sequence in sequences:
            file.write(struct.pack(f"<{len(sequence)}{code}", *sequence))
    lengths = [len(sequence) for sequence in sequences]
    size, at, pointers = struct.calcsize(code), 0, []
    for length in lengths:
        pointers.append(at)
        at += length * size
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, number, len(lengths), len(documents)))
        file.write(struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(pointers)}q", *pointers))
        file.write(struct.pack(f"<{len(documents)}q", *documents))


def digest(made):
    """The manifest's checksum: of tokens and masks as int32, and of the ends of packs."""
    sum_ = hashlib.sha256()
    for pack in made:
        for row in pack:
            for numbers in row:
                sum_.update(array.array("i", numbers).tobytes())
        sum_.update(b"pack")
    return sum_.hexdigest()


def write_packs(prefix, made):
    flat = [row for pack in made for row in pack]
    documents = [0]
    for pack in made:
        documents.append(documents[-1] + len(pack))
    write_indexed(prefix, 8, "H", [tokens for tokens, _ in flat], documents)
    write_indexed(f"{prefix}.mask", 1, "B", [masks for _, masks in flat], documents)
    manifest = {"packs_format": 1, "vocab_size": 257, "pad_token": 0, "length": LENGTH, "packing": "first_fit" if len(made[0]) > 1 else "none",
                "rows": len(flat), "packs": len(made), "tokens": sum(len(tokens) for tokens, _ in flat), "sha256": digest(made)}
    pathlib.Path(f"{prefix}.json").write_text(json.dumps(manifest))


def losses(shardc, work, count, settings):
    """Of a run on packs of `count` rows."""
    prefix = work / f"packs{count}"
    write_packs(prefix, packs(count))
    (work / "run.recipe").write_text(RUN.format(packs=prefix, batch=BATCH * ROWS // count, steps=STEPS, work=work))
    metrics = work / "metrics.jsonl"
    call(shardc, "run", work / "run.recipe", f"--metrics={metrics}", *(f"--set={s}" for s in settings))
    return [record["loss"] for record in map(json.loads, metrics.read_text().splitlines()) if "loss" in record]


def sketch(name, values):
    """The norm, and products with three random vectors of variance 1 that follow from the name."""
    draw, width = random.Random(name).random, math.sqrt(12)
    vectors = ([width * (draw() - 0.5) for _ in values] for _ in range(3))
    return [math.sqrt(sum(map(operator.mul, values, values))), *(sum(map(operator.mul, values, vector)) for vector in vectors)]


def gradients(shardc, work, count, settings):
    """Sketches of the first step's gradients, by which SGD with a high rate moves the weights."""
    shutil.rmtree(work / "moved", ignore_errors=True)
    losses(shardc, work, count, [*settings, *SGD, f'checkpoint.save="{work}/moved"'])
    call(shardc, "ckpt", "export", "hf", work / "moved", work / "moved/hf", "--config", work / "made", "--weight-dtype=float32")
    before, after = (tensors_of(work / folder) for folder in ("made", "moved/hf"))
    made = {}
    for name, (_, data) in before.items():
        pairs = zip(*(memoryview(each).cast("f") for each in (data, after[name][1])), strict=True)
        made[name] = sketch(name, [(a - b) / RATE for a, b in pairs])
    return made


def check_gradients(name, ours, theirs):
    """The largest difference, relative to the norm of a tensor's gradient; ends if it is too large."""
    if ours.keys() != theirs.keys():
        sys.exit(f"{name}: gradients of {sorted(ours.keys() ^ theirs.keys())}")
    apart = {tensor: max(abs(a - b) for a, b in zip(ours[tensor], of, strict=True)) / of[0] for tensor, of in theirs.items()}
    worst = max(apart, key=apart.get)
    if not apart[worst] <= TOLERANCE:
        sys.exit(f"{name}: gradient of {worst} is {ours[worst]}, expected {theirs[worst]}")
    return apart[worst]


def check(shardc, work, name, case, is_first):
    """The largest difference; ends if it is too large."""
    worst = 0.0
    layouts = LAYOUTS if is_first else EXPERTS if name == "mixtral" else []
    runs = [(ROWS, []), (1, [])] + [(ROWS, layout) for layout in layouts]
    for count, settings in runs:
        ours = losses(shardc, work, count, case["settings"] + settings)
        apart = max(abs(a - b) / abs(b) for a, b in zip(ours, case["losses"], strict=True))
        if not apart <= TOLERANCE:
            sys.exit(f"{name}, {count} rows a pack, {settings}: {ours}, expected {case['losses']}")
        worst = max(worst, apart)
    steep = max(check_gradients(name, gradients(shardc, work, count, case["settings"]), case["gradients"]) for count in (ROWS, 1))
    print(f"{name}: {len(runs)} runs agree, {worst:.1e} apart; gradients {steep:.1e}", flush=True)
    if is_first:
        check_order(shardc, work, case)


def check_order(shardc, work, case):
    """Whole batches at random: the same ones for each number of ranks, which share them by their costs; other losses than in order."""
    order = case["settings"] + ["dataset.dataloader_type=batch", "train.micro_batch_size=1"]
    one, two = (losses(shardc, work, ROWS, order + [f"cluster.gpus_per_node={ranks}"]) for ranks in (1, 2))
    if max(abs(a - b) / abs(b) for a, b in zip(one, two, strict=True)) > TOLERANCE or abs(one[0] - case["losses"][0]) < 1e-3:
        sys.exit(f"one rank {one}, two {two}, in order {case['losses']}")


def imported(shardc, work):
    call(shardc, "import", "hf", work / "made", "-o", work / "imported.recipe")
    call(shardc, "ckpt", "import", "hf", work / "made", work / "weights")


def main():
    shardc, work, golden = (pathlib.Path(word) for word in sys.argv[1:4])
    sys.path[:0] = [str(golden.parents[1] / "interop")]
    import hf_values
    cases = json.loads((golden / "values/sft_training.json").read_text())["cases"]
    for name in sys.argv[4:] or cases:
        folder = work / name
        (folder / "made").mkdir(parents=True)
        (folder / "made/config.json").write_text(json.dumps(cases[name]["config"]))
        hf_values.write_tensors(folder / "made/model.safetensors", cases[name]["shapes"], cases[name]["config"]["model_type"])
        imported(shardc, folder)
        check(shardc, folder, name, cases[name], name == next(iter(cases)))


if __name__ == "__main__":
    main()
