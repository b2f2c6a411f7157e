#!/usr/bin/env python3
"""Trains models in Hugging Face's form and compares the losses with those of transformers.

    hf_losses.py WORK GOLDEN VALUES [CASE...]

GOLDEN is test/e2e/golden. Its file values/VALUES has, for each case, the config.json, the shapes of the tensors and
some losses, made by test/interop/hf_training.py or hf_random.py. Values of tensors follow from their names. `shardc
import hf` makes the recipe, and `ckpt import hf` the checkpoint. Losses must agree within 1e-5 (relative), and an
export of the imported checkpoint must have the bytes of the model. Saves of the run contain the other files of the
model's folder, which an export writes again, except its config.json if the run has computed something else.
"""

import json
import pathlib
import shutil
import subprocess
import sys

TOLERANCE = 1e-5
RUN = """recipe run extends "imported.recipe" {{
  model {{ seq_length = 32 }}
  cluster {{ gpu = host  nodes = 1  gpus_per_node = 1 }}
  dist {{ use_megatron_fsdp = true }}
  ddp {{ use_megatron_fsdp = true }}
  dataset indexed {{ blend = ["{data}"]  split = "100,0,0"  random_seed = 110  eod_token = 256  eod_mask_loss = true }}
  train {{ micro_batch_size = 2  global_batch_size = 8  train_iters = {steps} }}
  optimizer adam {{ lr = 1e-3  min_lr = 1e-3  weight_decay = 0.0  betas = (0.9, 0.95)  eps = 1e-8  clip_grad = 0.0 }}
  scheduler constant {{}}
  logger {{ log_interval = 1 }}
  checkpoint {{ load = "{work}/weights"  finetune = true  save = "{work}/saved" }}
}}
"""


def call(*command, status=0):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != status:
        sys.exit(f"{command}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def write_recipe(work, golden, steps):
    """Writes the recipe of a run with one more step than `steps`, so that runs exit before the last step."""
    text = RUN.format(data=golden / "data" / "tokens", steps=steps + 1, work=work)
    (work / "run.recipe").write_text(text)


def losses_of(shardc, work, settings, steps):
    metrics = work / "metrics.jsonl"
    call(shardc, "run", work / "run.recipe", f"--metrics={metrics}", *(f"--set={s}" for s in settings),
         f"--set=train.exit_interval={steps}")
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def tensors_of(folder):
    tensors = {}
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = (8 + size + offset for offset in entry["data_offsets"])
                tensors[name.removeprefix("transformer.")] = (entry["shape"], data[begin:end])
    return tensors


def check_carried(shardc, work, model, settings, steps):
    """A run continues the saved one with another rotary base. Exports of both checkpoints must have the config.json of
    their own run, and the tokenizer."""
    call(shardc, "run", work / "run.recipe", *(f"--set={s}" for s in settings), f"--set=train.exit_interval={steps}",
         f"--set=checkpoint.load=\"{work}/saved\"", f"--set=checkpoint.save=\"{work}/other\"", "--set=model.rotary_base=20000.0",
         "--set=checkpoint.accept_differences=[\"model.rotary_base\"]")
    for folder, is_same in ((work / "saved", True), (work / "other", False)):
        out = work / f"{folder.name}.out"
        call(shardc, "ckpt", "export", "hf", folder, out)
        config = (out / "config.json").read_text()
        if (out / "tokenizer.json").read_text() != "{}" or (config == (model / "config.json").read_text()) != is_same:
            sys.exit(f"{folder}: {config}")
        if not is_same and json.loads(config)["rope_theta"] != 20000.0:
            sys.exit(f"{folder}: {config}")


def check(work, golden, name, case, hf_values):
    model = work / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(case["config"], indent=2))
    (model / "tokenizer.json").write_text("{}")
    hf_values.write_tensors(model / "model.safetensors", case["shapes"], case["config"]["model_type"])
    accepted = [f"--accept-field={field}" for field in case.get("accepted", [])]
    call("shardc", "import", "hf", model, "-o", work / "imported.recipe", *accepted)
    call("shardc", "ckpt", "import", "hf", model, work / "weights", *accepted)
    write_recipe(work, golden, len(case["losses"]))
    found = losses_of("shardc", work, case["settings"], len(case["losses"]))
    far = max(abs(ours - theirs) / theirs for ours, theirs in zip(found, case["losses"], strict=True))
    if far > TOLERANCE:
        sys.exit(f"{name}: {far:.1e} apart\n{found}\n{case['losses']}")
    if case["config"].get("num_local_experts", 1) > 1 and case["config"]["num_experts_per_tok"] > 1:  # shapes do not show it
        said = call("shardc", "run", work / "run.recipe", "--set=model.moe_router_topk=1", status=1)
        chosen = case["config"]["num_experts_per_tok"]
        if f"model.moe_router_topk: {chosen} in the checkpoint, 1 in the recipe" not in said:
            sys.exit(f"{name}: {said}")
    call("shardc", "ckpt", "export", "hf", work / "weights", work / "back", "--config", model, "--weight-dtype=float32", *accepted)
    before, after = tensors_of(model), tensors_of(work / "back")
    # A router that gives all tokens to the only expert may have any values; an export writes zeros.
    other = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    free = ".mlp.router." if case["config"].get("num_local_experts") == 1 else None
    other = [key for key in other if not (free and free in key)]
    if other:
        sys.exit(f"{name}: {sorted(other)[:5]} came back otherwise")
    if name == "llama2":
        check_carried("shardc", work, model, case["settings"], len(case["losses"]))
    print(f"{name}: {len(found)} losses, {far:.1e} apart")


def main():
    work, golden = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    sys.path.insert(0, str(golden.parents[1] / "interop"))
    import hf_values

    shutil.rmtree(work, ignore_errors=True)
    cases = json.loads((golden / "values" / sys.argv[3]).read_text())["cases"]
    for name in sys.argv[4:] or cases:
        check(work / name, golden, name, cases[name], hf_values)


if __name__ == "__main__":
    main()
