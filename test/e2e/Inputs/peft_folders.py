#!/usr/bin/env python3
"""Tests imports and exports of PEFT folders. This script writes the adapters and the Hugging Face base model itself, so
it needs only Python.

    peft_folders.py

A folder that is imported and exported again is bitwise equal. Merged weights equal those of the formula. A run with
the adapters has the losses of a run with the merged weights; both load Hugging Face folders. Settings of PEFT that
shardc does not support are refused.
"""

import array
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "ckpt/Inputs"))

import peft_numbers

HIDDEN, HEADS, GROUPS, FFN, VOCAB, LAYERS, RANK, ALPHA = 32, 4, 2, 48, 64, 2, 4, 6.0
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "vocab_size": VOCAB,
    "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    "torch_dtype": "float32", "attention_bias": False, "mlp_bias": False,
}
RECIPE = f"""recipe tuned {{
  model llama {{
    num_layers = {LAYERS}  hidden_size = {HIDDEN}  num_attention_heads = {HEADS}  num_query_groups = {GROUPS}
    ffn_hidden_size = {FFN}  seq_length = 32  vocab_size = {VOCAB}  rotary_base = 10_000  layernorm_epsilon = 1e-5
    make_vocab_size_divisible_by = 128
  }}
  cluster {{ gpu = host  nodes = 1  gpus_per_node = 2 }}
  dataset synthetic {{}}
  optimizer adam {{ lr = 1e-3 }}
  train {{ micro_batch_size = 1  global_batch_size = 4  train_iters = 1 }}
  logger {{ log_interval = 1 }}
}}
"""


def shapes():
    found = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}
    for i in range(LAYERS):
        at, keys = f"model.layers.{i}", GROUPS * HIDDEN // HEADS
        found |= {f"{at}.input_layernorm.weight": (HIDDEN,), f"{at}.post_attention_layernorm.weight": (HIDDEN,),
                  f"{at}.self_attn.q_proj.weight": (HIDDEN, HIDDEN), f"{at}.self_attn.k_proj.weight": (keys, HIDDEN),
                  f"{at}.self_attn.v_proj.weight": (keys, HIDDEN), f"{at}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
                  f"{at}.mlp.gate_proj.weight": (FFN, HIDDEN), f"{at}.mlp.up_proj.weight": (FFN, HIDDEN),
                  f"{at}.mlp.down_proj.weight": (HIDDEN, FFN)}
    return found


def read(folder):
    return peft_numbers.read(next(pathlib.Path(folder).glob("*.safetensors")))


def draw(rng, shape, size):
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    return shape, array.array("f", (rng.gauss(0, size) for _ in range(count)))


def call(*command, fails=False):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if (done.returncode != 0) != fails:
        sys.exit(f"{' '.join(map(str, command))}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stderr if fails else done.stdout


def write_adapter(folder, rng, targets, /, **more):
    folder.mkdir()
    tensors = {}
    for name, shape in shapes().items():
        module = name.removesuffix(".weight")
        if module.split(".")[-1] in targets:
            tensors[f"base_model.model.{module}.lora_A.weight"] = draw(rng, (RANK, shape[1]), 0.2)
            tensors[f"base_model.model.{module}.lora_B.weight"] = draw(rng, (shape[0], RANK), 0.2)
            if more.get("use_dora"):
                magnitudes = array.array("f", (abs(rng.gauss(0, 1)) for _ in range(shape[0])))
                tensors[f"base_model.model.{module}.lora_magnitude_vector"] = (shape[0],), magnitudes
    peft_numbers.write(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": targets, "bias": "none", **more}))
    return tensors


def norm(values, row, columns):
    return math.sqrt(sum(value * value for value in values[row * columns:(row + 1) * columns]))


def merged(base, adapter, alphas=None):
    out = {}
    for name, (shape, values) in base.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{module}.lora_A.weight" in adapter:
            (rank, columns), a = adapter[f"{module}.lora_A.weight"]
            _, b = adapter[f"{module}.lora_B.weight"]
            scale = (alphas or {}).get(module.split(".")[-1], ALPHA) / rank
            values = array.array("f", (
                values[r * columns + c] + scale * sum(b[r * rank + j] * a[j * columns + c] for j in range(rank))
                for r in range(shape[0]) for c in range(columns)))
            if f"{module}.lora_magnitude_vector" in adapter:
                _, magnitudes = adapter[f"{module}.lora_magnitude_vector"]
                scales = [magnitude / norm(values, row, columns) for row, magnitude in enumerate(magnitudes)]
                values = array.array("f", (value * scales[i // columns] for i, value in enumerate(values)))
        out[name] = shape, values
    return out


def expect_close(found, wanted, what):
    if set(found) != set(wanted):
        sys.exit(f"{what}: {set(found) ^ set(wanted)}")
    for name, (shape, values) in wanted.items():
        worst = max(abs(x - y) for x, y in zip(found[name][1], values))
        if found[name][0] != shape or worst > 1e-6:
            sys.exit(f"{what}: {name} is {found[name][0]}, apart by {worst}")


def losses(folder, recipe, *settings):
    metrics = folder / "metrics"
    metrics.unlink(missing_ok=True)
    call("shardc", "run", recipe, f"--metrics={metrics}", "--set=dataset.kind=synthetic", *(f"--set={each}" for each in settings))
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines() if "loss" in json.loads(line)]


def check_new(folder, recipe, base, weights, peft):
    """Magnitudes of new adapters are the norms of the base's rows, so the first loss is that of the base."""
    losses(folder, recipe, *peft, f'checkpoint.pretrained_checkpoint="{base}"', f'checkpoint.save="{folder / "new"}"',
           "checkpoint.save_interval=1", "optimizer.lr=0", "optimizer.min_lr=0")
    call("shardc", "ckpt", "export", "peft", folder / "new", folder / "new.peft")
    found = 0
    for name, (shape, magnitudes) in read(folder / "new.peft").items():
        if not name.endswith(".lora_magnitude_vector"):
            continue
        _, values = weights[name.removeprefix("base_model.model.").replace(".lora_magnitude_vector", ".weight")]
        columns = len(values) // shape[0]
        for row, magnitude in enumerate(magnitudes):
            if abs(magnitude / norm(values, row, columns) - 1) > 1e-6:
                sys.exit(f"{name}, row {row}: {magnitude}, where the norm is {norm(values, row, columns)}")
        found += 1
    if found == 0:
        sys.exit("no magnitudes are saved")
    for each in ("new", "new.peft"):
        subprocess.run(["rm", "-r", folder / each], check=True)
    print("new magnitudes are norms")


def main():
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        base = folder / "base"
        base.mkdir()
        weights = {each: draw(rng, shape, 0.1) for each, shape in shapes().items()}
        peft_numbers.write(base / "model.safetensors", weights)
        (base / "config.json").write_text(json.dumps(CONFIG))
        some = ["q_proj", "v_proj", "down_proj", "up_proj"]
        every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        for what, targets, is_dora in (("some", some, False), ("all", every, False), ("some_dora", some, True), ("all_dora", every, True)):
            adapter = write_adapter(folder / f"{what}.peft", rng, targets, use_dora=is_dora)
            call("shardc", "ckpt", "import", "peft", folder / f"{what}.peft", folder / what, "--config", base)
            call("shardc", "ckpt", "export", "peft", folder / what, folder / f"{what}.back")
            if read(folder / f"{what}.back") != adapter:
                sys.exit(f"{what}: the adapters that come back are others")
            said = json.loads((folder / f"{what}.back" / "adapter_config.json").read_text())
            if (said["r"], said["lora_alpha"], said["target_modules"], said["use_dora"]) != (RANK, ALPHA, sorted(targets), is_dora):
                sys.exit(f"{what}: the configuration that comes back is {said}")
            call("shardc", "ckpt", "merge", folder / what, base, folder / f"{what}.merged")
            call("shardc", "ckpt", "export", "hf", folder / f"{what}.merged", folder / f"{what}.hf")
            expect_close(read(folder / f"{what}.hf"), merged(weights, adapter), f"{what}, merged")
            print(f"{what}: to the bit, and merged")
            recipe = folder / "a.recipe"
            recipe.write_text(RECIPE)
            peft = [f"peft.scheme={'dora' if is_dora else 'lora'}", f"peft.rank={RANK}", f"peft.alpha={ALPHA}", f"peft.targets={json.dumps(targets)}"]
            tuned = losses(folder, recipe, *peft, f'checkpoint.pretrained_checkpoint="{base}"', f'checkpoint.load="{folder / what}"',
                           "checkpoint.finetune=true", "checkpoint.convert_on_load=true")
            plain = losses(folder, recipe, f'checkpoint.pretrained_checkpoint="{folder / f"{what}.merged"}"',
                           "checkpoint.convert_on_load=true")
            if not tuned or abs(tuned[0] / plain[0] - 1) > 1e-6:
                sys.exit(f"{what}: adapters give {tuned}, merged weights {plain}")
            print(f"{what}: a run with adapters is one with merged weights")
            if is_dora:
                check_new(folder, recipe, base, weights, peft)
        patterned = write_adapter(folder / "p.peft", rng, ["o_proj", "down_proj"], alpha_pattern={"o_proj": 12.0})
        call("shardc", "ckpt", "import", "peft", folder / "p.peft", folder / "p", "--config", base)
        call("shardc", "ckpt", "merge", folder / "p", base, folder / "p.merged")
        call("shardc", "ckpt", "export", "hf", folder / "p.merged", folder / "p.hf")
        expect_close(read(folder / "p.hf"), merged(weights, patterned, {"o_proj": 12.0}), "patterns")
        for what, more, words in (("lora_bias", {"lora_bias": True}, "lora_B.bias' is missing; it needs to be [32]"),
                                  ("pissa", {"init_lora_weights": "pissa"}, "changes the base weights")):
            write_adapter(folder / what, rng, ["q_proj"], **more)
            said = call("shardc", "ckpt", "import", "peft", folder / what, folder / "no", "--config", base, fails=True)
            if words not in said:
                sys.exit(f"{what}: {said}")
        for command, words in ((["merge", folder / "p.peft", base], "contains adapters of PEFT, not a checkpoint"),
                               (["export", "peft", folder / "p.merged"], "is not a checkpoint of adapters: its run_config.yaml has no")):
            said = call("shardc", "ckpt", *command, folder / "no", fails=True)
            if words not in said:
                sys.exit(f"{command}: {said}")
        print("others are refused")


if __name__ == "__main__":
    main()
