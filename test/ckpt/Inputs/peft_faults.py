#!/usr/bin/env python3
"""Folders of adapters and of models with faults, and adapters of every naming through PEFT's form and back.

    peft_faults.py
"""

import json
import os
import pathlib
import shutil
import struct
import tempfile

import peft_folders
import peft_numbers
from peft_folders import call

PLAIN = json.loads((peft_folders.HERE / "peft_folders.json").read_text())["cases"]
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
SAVED = "base_model.model.lm_head.weight"

# Changes of a folder's fields, and a part of the message.
FIELDS = (
    ({"lora_alpha": "16"}, "'lora_alpha' is \"16\"; a number above 0 is needed"),
    ({"lora_alpha": False}, "'lora_alpha' is false; a number above 0 is needed"),
    ({"lora_alpha": {}}, "'lora_alpha' is {}; a number above 0 is needed"),
    ({"lora_alpha": -16}, "'lora_alpha' is -16; a number above 0 is needed"),
    ({"use_rslora": "true"}, "'use_rslora' is \"true\"; true or false is needed"),
    ({"use_dora": 1}, "'use_dora' is 1; true or false is needed"),
    ({"r": 2.5}, "'r' is 2.5; a whole number above 0 is needed"),
    ({"r": 8}, "have rank 2; adapter_config.json says 8"),
    ({"rank_pattern": {"q_proj": 8}}, "q_proj' have rank 2; adapter_config.json says 8"),
    ({"rank_pattern": {"q_proj": "8"}}, "an object of whole numbers above 0 is needed"),
    ({"alpha_pattern": {"(q_proj": 8}}, "'(.*\\.)?((q_proj)' is a regular expression that cannot be read"),
    ({"alpha_pattern": ["q_proj"]}, "an object of numbers above 0 is needed"),
    ({"lora_dropout": 1.0}, "a number from 0 to below 1 is needed"),
    ({"target_modules": ["q_proj"]}, "v_proj', which 'target_modules' of adapter_config.json does not name"),
    ({"target_modules": r"model\.layers\.0\..*"}, "model.layers.1.self_attn.q_proj', which 'target_modules'"),
    ({"exclude_modules": ["0.self_attn.v_proj"]}, "model.layers.0.self_attn.v_proj', which 'target_modules'"),
    ({"layers_to_transform": [0]}, "model.layers.1.self_attn.q_proj', whose layer 'layers_to_transform'"),
    ({"layers_to_transform": [0, 1], "layers_pattern": "h"}, "whose layer 'layers_to_transform' of adapter_config.json does not name"),
    ({"alpha_pattern": {"q_proj\\Z": 8}}, "is a regular expression that cannot be read"),
    ({"target_modules": [1]}, "a text, or a list of texts is needed"),
    ({"init_lora_weights": "corda"}, "started by 'corda', which changes the base weights"),
    ({"init_lora_weights": "lora_ga"}, "started by 'lora_ga', which changes the base weights"),
    ({"init_lora_weights": "loftq"}, "started by 'loftq', which changes the base weights"),
    ({"init_lora_weights": "pissa_niter_4"}, "started by 'pissa_niter_4', which changes the base weights"),
    ({"init_lora_weights": "newest"}, "'init_lora_weights' is \"newest\", which PEFT 0.21 does not have"),
    ({"kasa_config": {"beta": 1}}, "'kasa_config' is {\"beta\":1}; no value is needed"),
    ({"layer_replication": [[0, 2]]}, "no value is needed"),
    ({"alora_invocation_tokens": [1]}, "no value is needed"),
    ({"trainable_token_indices": "all"}, "a list of whole numbers, or an object of such is needed"),
    ({"peft_type": "IA3", "r": 0}, "has adapters of kind 'IA3'"),
)
ACCEPTED = ({"layers_to_transform": [0, 1]}, {"layers_to_transform": [1, 0], "layers_pattern": ["layers"]}, {"newest_config": None}, {"loftq_config": {}}, {"init_lora_weights": "gaussian"}, {"layers_pattern": []}, {"r": 2, "corda_config": None},
            {"bias": "all"}, {"bias": "lora_only"}, {"target_modules": [], "target_parameters": ["q_proj.weight", "v_proj.weight"]}, {"newest_config": {"x": 1}, "lorap_lr": 1e-6})


def change(folder, **fields):
    path = folder / "adapter/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def refused(folder, words):
    said = call("shardc", "ckpt", "import", "peft", folder / "adapter", folder / "no", "--config", folder / "base", fails=True)
    if words not in said or (folder / "no").exists() and any((folder / "no").glob("iter_*")):
        raise SystemExit(f"expected {words}, got {said}")


def each_folder(case):
    folder = pathlib.Path(tempfile.mkdtemp())
    peft_folders.make(case, folder)
    return folder


def check_fields():
    folder = each_folder(PLAIN["plain"])
    said = (folder / "adapter/adapter_config.json").read_text()
    for fields, words in FIELDS:
        (folder / "adapter/adapter_config.json").write_text(said)
        change(folder, **fields)
        refused(folder, words)
    for index, fields in enumerate(ACCEPTED):
        (folder / "adapter/adapter_config.json").write_text(said)
        change(folder, **fields)
        told = call("shardc", "ckpt", "import", "peft", folder / "adapter", folder / f"yes{index}", "--config", folder / "base")
    if "'lorap_lr', 'newest_config' left out, since LoraConfig of PEFT 0.21 does not read such fields [hf-fields-unread]" not in told:
        raise SystemExit(told)
    shutil.rmtree(folder)
    print(f"{len(FIELDS)} values refused, {len(ACCEPTED)} accepted")


def check_tensors():
    folder = each_folder(PLAIN["saved"])
    path = folder / "adapter/adapter_model.safetensors"
    tensors = peft_numbers.read(path)
    for name, value in ((FIRST, "nan"), (FIRST, "inf"), (SAVED, "-inf")):
        changed = {each: (shape, values[:]) for each, (shape, values) in tensors.items()}
        changed[name][1][5] = float(value)
        peft_numbers.write(path, changed)
        refused(folder, f"'{name}' has {value} as number 5; adapters need finite numbers")
    peft_numbers.write(path, tensors)
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack_from("<Q", data)[0]])
    header[FIRST]["dtype"] = "I32"
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + struct.unpack_from("<Q", data)[0] :])
    refused(folder, f"'{FIRST}' is of type int32; adapters are float32, bfloat16 or float16")
    grown = dict(tensors)
    grown[SAVED] = (50, 16), peft_numbers.numbers("grown", 50 * 16)
    peft_numbers.write(path, grown)
    refused(folder, f"'{SAVED}' is [50, 16]; by the base's config.json it needs to be [48, 16]")
    # PEFT loads nothing that it names as of a part which the model lacks. A part of a parameter is not trained whole alone.
    peft_numbers.write(path, {name.replace(".layers.", ".language_model.layers."): tensor for name, tensor in tensors.items()})
    refused(folder, "self_attn.q_proj.lora_A.weight', and the model has no part 'language_model': PEFT would load nothing of it")
    peft_numbers.write(path, tensors | {FIRST.replace("q_proj.lora_A", "k_proj"): ((8, 16), peft_numbers.numbers("k", 8 * 16))})
    refused(folder, "are a part of what is trained whole: 'modules_to_save' needs q_proj, k_proj and v_proj together")
    # What is left has its reason.
    one = ((2, 16), peft_numbers.numbers("one", 2 * 16))
    for name, words in ((FIRST.replace("language_model", "x").replace("layers", "vision_tower.layers"), "are of the vision part, which is left out"),
                        ("base_model.model.score.weight", "trains a part that a causal language model does not have"),
                        (FIRST.replace("q_proj", "k_proj"), "k_proj.lora_A.weight' without 'lora_B.weight'")):
        peft_numbers.write(path, tensors | {name: one})
        refused(folder, words)
    peft_numbers.write(path, tensors | {"base_model.model.model.layers.0.self_attn.q_proj.bias": ((16,), peft_numbers.numbers("bias", 16))})
    change(folder, bias="lora_only")
    refused(folder, "has trained biases ('bias' is 'lora_only'); it needs to be none")
    change(folder, bias="none")
    # A state as a model in memory names it is the same adapter.
    peft_numbers.write(path, tensors)
    call("shardc", "ckpt", "import", "peft", folder / "adapter", folder / "named", "--config", folder / "base")
    peft_numbers.write(path, {name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default."): each for name, each in tensors.items()})
    call("shardc", "ckpt", "import", "peft", folder / "adapter", folder / "raw", "--config", folder / "base")
    for each in ("named", "raw"):
        call("shardc", "ckpt", "export", "peft", folder / each, folder / f"{each}_peft", "--config", folder / "base")
    if peft_numbers.read(folder / "named_peft/adapter_model.safetensors") != peft_numbers.read(folder / "raw_peft/adapter_model.safetensors"):
        raise SystemExit("names of a state give another adapter")
    # An import reports NaN in a model's weight. A checkpoint with padding of the vocabulary is a base like the folder.
    peft_numbers.write(path, tensors)
    call("shardc", "ckpt", "import", "peft", folder / "adapter", folder / "a", "--config", folder / "base")
    call("shardc", "ckpt", "import", "hf", folder / "base", folder / "padded")
    for base in ("base", "padded"):
        call("shardc", "ckpt", "merge", folder / "a", folder / base, folder / f"of_{base}")
        call("shardc", "ckpt", "export", "hf", folder / f"of_{base}", folder / f"{base}_hf")
    if peft_numbers.read(folder / "base_hf/model.safetensors") != peft_numbers.read(folder / "padded_hf/model.safetensors"):
        raise SystemExit("a padded base gives other weights")
    change(folder, modules_to_save=["lm_head", "norm"])
    peft_numbers.write(path, tensors | {"base_model.model.model.norm.weight": ((15,), peft_numbers.numbers("norm", 15))})
    call("shardc", "ckpt", "import", "peft", folder / "adapter", folder / "b", "--config", folder / "base")
    said = call("shardc", "ckpt", "merge", folder / "b", folder / "base", folder / "none", fails=True)
    if "'decoder.final_layernorm.weight' is [16]" not in said or "the trained one is [15]" not in said:
        raise SystemExit(said)
    weights = peft_numbers.read(folder / "base/model.safetensors")
    weights["model.norm.weight"][1][3] = float("nan")
    peft_numbers.write(folder / "base/model.safetensors", weights)
    said = call("shardc", "ckpt", "import", "hf", folder / "base", folder / "w")
    if "infinite or not numbers in 1 tensors: [weights-not-finite]\n  decoder.final_layernorm.weight" not in said:
        raise SystemExit(said)
    shutil.rmtree(folder)
    print("numbers, types and shapes of tensors")


def check_places():
    """Adapters in a folder with the adapter's name, and those of MLX."""
    folder = each_folder(PLAIN["plain"])
    (folder / "adapter").rename(folder / "named")
    (folder / "adapter").mkdir()
    (folder / "named").rename(folder / "adapter/sft")
    refused(folder, "has no adapter_config.json, and its folder 'sft' has one: name that")
    shutil.rmtree(folder)
    folder = each_folder(PLAIN["plain"])
    (folder / "adapter/adapter_model.safetensors").rename(folder / "adapter/adapters.safetensors")
    refused(folder, "has adapters of MLX; convert them to the form of PEFT")
    shutil.rmtree(folder)


def check_base():
    """A router's adapter needs the base's weights, which are finite."""
    folder = each_folder(PLAIN["router_latent"])
    tensors = peft_numbers.read(folder / "base/model.safetensors")
    router = "model.layers.1.mlp.gate.weight"
    tensors[router][1][0] = float("nan")
    peft_numbers.write(folder / "base/model.safetensors", tensors)
    refused(folder, "has numbers that are not finite")
    (folder / "base/model.safetensors").unlink()
    refused(folder, "has an adapter, and recipes have none for it; it would be added to the base's weights, which are not read: ")
    shutil.rmtree(folder)


def check_magnitudes():
    """Magnitudes of DoRA import if '.weight' ends their names, as in PEFT's memory, and not if the settings lack 'use_dora'."""
    folder = each_folder(PLAIN["dora"])
    path = folder / "adapter/adapter_model.safetensors"
    peft_numbers.write(path, {name + ".weight" * name.endswith("lora_magnitude_vector"): tensor for name, tensor in peft_numbers.read(path).items()})
    call("shardc", "ckpt", "import", "peft", folder / "adapter", folder / "a", "--config", folder / "base")
    peft_folders.check_merged("dora", PLAIN["dora"], folder)
    change(folder, use_dora=False)
    refused(folder, "has magnitudes of DoRA, and its settings do not say 'use_dora'")
    shutil.rmtree(folder)
    print("magnitudes by another name")


def check_overlay():
    """An index may place a tensor in one of two files that have it."""
    folder = each_folder(PLAIN["plain"])
    base = folder / "base"
    weights = peft_numbers.read(base / "model.safetensors")
    call("shardc", "ckpt", "import", "hf", base, folder / "whole")
    other = dict(weights)
    other["lm_head.weight"] = weights["lm_head.weight"][0], peft_numbers.numbers("other", 48 * 16)
    peft_numbers.write(base / "model-00001-of-00001.safetensors", other)
    peft_numbers.write(base / "overlay.safetensors", {"lm_head.weight": weights["lm_head.weight"]})
    (base / "model.safetensors").unlink()
    places = {name: "overlay.safetensors" if name == "lm_head.weight" else "model-00001-of-00001.safetensors" for name in weights}
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    call("shardc", "ckpt", "import", "hf", base, folder / "overlaid")
    call("shardc", "ckpt", "diff", folder / "whole", folder / "overlaid")
    shutil.rmtree(folder)
    print("an index with an overlay")


def check_parts():
    """A load that takes a part of a folder's tensors is refused unless it is asked for."""
    folder = each_folder(PLAIN["saved"])
    call("shardc", "ckpt", "import", "peft", folder / "adapter", folder / "a", "--config", folder / "base")
    call("shardc", "import", "hf", folder / "base", "-o", folder / "base.recipe")
    (folder / "host.recipe").write_text(
        "recipe host { cluster { gpu = host nodes = 1 gpus_per_node = 1 } dataset synthetic {} optimizer adam { lr = 1e-3 }\n"
        'train { micro_batch_size = 1 global_batch_size = 1 train_iters = 1 } model { seq_length = 8 } peft lora { rank = 2 alpha = 8 targets = ["q_proj", "v_proj"] }\n'
        f'checkpoint {{ pretrained_checkpoint = "{folder}/base" load = "{folder}/a" finetune = true convert_on_load = true }} }}\n')
    command = ["shardc", "run", folder / "base.recipe", f"--overlay={folder}/host.recipe"]
    said = call(*command, fails=True)
    if "has adapters or trained modules that this run does not have [checkpoint-mismatch]\n  2 tensors are in the checkpoint but not needed" not in said:
        raise SystemExit(said)
    call(*command, "--set=checkpoint.dist_ckpt_strictness=ignore_all")
    shutil.rmtree(folder)
    print("parts of a folder")


def check_experts():
    """Experts of a layer with scales of their own, as separate modules, are imported with a warning."""
    folder = each_folder(PLAIN["qwen3_moe"])
    change(folder, target_modules=["down_proj"], target_parameters=None, alpha_pattern={"experts.1.down_proj": 2})
    shapes = {}
    for layer in range(2):
        for expert in range(4):
            path = f"base_model.model.model.layers.{layer}.mlp.experts.{expert}.down_proj"
            shapes |= {f"{path}.lora_A.weight": (2, 12), f"{path}.lora_B.weight": (16, 2)}
    peft_numbers.make(folder / "adapter/adapter_model.safetensors", shapes)
    said = call("shardc", "ckpt", "import", "peft", folder / "adapter", folder / "a", "--config", folder / "base")
    if "[adapter-scales]\n  model.layers.0.mlp.experts.1.down_proj\n  model.layers.1.mlp.experts.1.down_proj" not in said or "target_alphas" in said:
        raise SystemExit(said)
    shutil.rmtree(folder)
    print("experts with scales of their own")


def check_families():
    """Adapters that a run trains go through PEFT's form and back, and the model through Hugging Face's."""
    for family, more in (("nemotron", ""), ("gpt", ""), ("starcoder2", ""), ("smollm3", "num_query_groups = 2"), ("llama", "num_query_groups = 2")):
        folder = pathlib.Path(tempfile.mkdtemp())
        os.chdir(folder)
        tied = "share_embeddings_and_output_weights = true" if family == "llama" else ""
        (folder / "a.recipe").write_text(
            f"recipe a {{ model {family} {{ num_layers = 2 hidden_size = 32 num_attention_heads = 4 ffn_hidden_size = 64 seq_length = 16 vocab_size = 64\n"
            f"  hidden_dropout = 0.0 attention_dropout = 0.0 {more} {tied} }}\n cluster {{ gpu = host nodes = 1 gpus_per_node = 1 }} dataset synthetic {{}}\n"
            '  optimizer adam { lr = 1e-2 } train { micro_batch_size = 1 global_batch_size = 2 train_iters = 1 } checkpoint { save = "base" } }\n')
        call("shardc", "run", "a.recipe")
        call("shardc", "ckpt", "export", "hf", "base", "hf")
        call("shardc", "ckpt", "import", "hf", "hf", "weights")
        call("shardc", "run", "a.recipe", "--set=checkpoint.pretrained_checkpoint=weights", "--set=checkpoint.convert_on_load=true", "--set=checkpoint.save=none", "--set=dataset.kind=synthetic")
        adapters = ["--set=dataset.kind=synthetic", "--set=peft.scheme=lora", "--set=peft.rank=2", "--set=checkpoint.pretrained_checkpoint=base", "--set=checkpoint.save=lora"]
        said = call("shardc", "run", "a.recipe", *adapters, *(['--set=peft.modules_to_save=["embed_tokens"]'] if tied else []))
        tensors = call("shardc", "ckpt", "inspect", next(folder.glob("lora/iter_*")))
        if (size := said.split("'lora/iter_0000001', ")[1].split("\n")[0]) not in tensors:
            raise SystemExit(f"{family}: the save is said to have {size}\n{tensors}")
        base = json.loads(next(folder.glob("lora/iter_*/adapter_base.json")).read_text())["base"]
        if not os.path.isabs(base) or not os.path.isdir(base):
            raise SystemExit(f"{family}: the adapters name '{base}' as their base")
        call("shardc", "ckpt", "export", "peft", "lora", "peft", "--config", "hf")
        said = json.loads((folder / "peft/adapter_config.json").read_text())
        if said["ensure_weight_tying"] != bool(tied) or (tied and said["modules_to_save"] != ["embed_tokens", "lm_head"]):
            raise SystemExit(f"{family}: {said}")
        call("shardc", "ckpt", "import", "peft", "peft", "back", "--config", "hf")
        texts = [call("shardc", "generate", which, "1 2 3", "--tokens=4", "--tokenizer=none", "--backend=host", "--base=base") for which in ("lora", "back")]
        if texts[0] != texts[1]:
            raise SystemExit(f"{family}: {texts}")
        os.chdir("/")
        shutil.rmtree(folder)
    print("families through PEFT's form and back")


if __name__ == "__main__":
    check_fields()
    check_tensors()
    check_places()
    check_base()
    check_magnitudes()
    check_overlay()
    check_parts()
    check_experts()
    check_families()
