#!/usr/bin/env python3
"""Trains under DDP, converts the checkpoint for Megatron FSDP in the three steps of the guide, continues training, and
converts back.

    convert_runs.py RECIPE [--set path=value ...]

Also exports the model to Hugging Face's form and imports it again, which must give the same model.
"""

import argparse
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

from compare_runs import Runner, close, equal

STEPS, SAVED = 10, 4
# Sums in another order differ in their last bits, which a weight's rounding to 16 bits makes larger.
TOLERANCE, TOLERANCE_16_BITS = 1e-6, 1e-5
DDP = ["cluster.gpus_per_node=2"]
FSDP = ["cluster.gpus_per_node=2", "dist.use_megatron_fsdp=true", "ddp.use_megatron_fsdp=true",
        "ddp.data_parallel_sharding_strategy=optim_grads_params"]


def ckpt(*words, status=0):
    done = subprocess.run(["shardc", "ckpt", *map(str, words)], capture_output=True, text=True)
    if done.returncode != status:
        sys.exit(f"shardc ckpt {words}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def loads(folder):
    return [f'checkpoint.load="{folder}"']


def saves(folder):
    return [f'checkpoint.save="{folder}"', "checkpoint.save_interval=1000", f"train.exit_interval={SAVED}"]


def group_maps(runner, work, settings, dumped):
    """Steps one and two, with a run and without: the same map."""
    made = work / "made"
    ckpt("group-map", runner.recipe, *runner.arguments(settings), "-o", made)
    texts = []
    for folder in (dumped, made):
        ckpt("print-torch-dcp-in-json", folder)
        texts.append((folder / "param_to_param_group_map.json").read_text())
    if texts[0] != texts[1] or not set(json.loads(texts[0]).values()) == {0, 1}:
        sys.exit(f"the maps of a run and of a recipe: {texts}")
    return dumped / "param_to_param_group_map.json"


def gated(dist):
    """What --swiglu is for is not in the tensors, but in the arguments that were saved."""
    args = json.loads(ckpt("inspect", dist, "--json"))["common"]["args"]
    if args["distributed_timeout_minutes"] != 10:
        sys.exit(f"arguments have durations in the unit of their name; found {args['distributed_timeout_minutes']}")
    return ["--swiglu"] if args["swiglu"] else []


def check_there(runner, work, settings, whole, tolerance):
    dist, fsdp, dumped = work / "dist", work / "fsdp", work / "dumped"
    arguments = [*runner.arguments([*settings, *DDP, *saves(dist)]), f"--dump-param-to-param-group-map={dumped}"]
    runner.call(["shardc", "run", runner.recipe, *arguments])
    groups = group_maps(runner, work, [*settings, *DDP], dumped)
    ckpt("convert", "torch-dist-to-fsdp-dtensor", *gated(dist), dist, fsdp, "--param-to-param-group-map-json", groups)
    ckpt("verify", fsdp)
    ckpt("diff", dist, fsdp)
    rest = runner.run(*settings, *FSDP, *loads(fsdp))
    close("DDP to step 4, converted, Megatron FSDP from there", whole[SAVED:], rest, tolerance)
    return fsdp


def settings_of(folder):
    """What the optimizer's settings are for each parameter."""
    objects = json.loads(ckpt("inspect", folder, "--json"))["objects"]
    return {name: value for name, value in objects.items() if name.startswith("optimizer.param_to_group_meta.")}


def check_settings(before, after):
    if not before or {value for name, value in before.items() if name.endswith(".wd_mult")} != {0, 1}:
        sys.exit(f"settings with and without weight decay are needed; found {before}")
    differ = [f"{name}: {before.get(name)} and {after.get(name)}" for name in sorted(before.keys() | after.keys())
              if before.get(name) != after.get(name)]
    if differ:
        sys.exit("settings of parameters before and after there and back:\n" + "\n".join(differ))


def check_back(runner, work, settings, whole, tolerance):
    fsdp, dist, again = work / "fsdp2", work / "dist2", work / "fsdp3"
    runner.run(*settings, *FSDP, *saves(fsdp), "checkpoint.save_rng=false")  # conversion leaves generators out
    ckpt("convert", "fsdp-dtensor-to-torch-dist", fsdp, dist)
    rest = runner.run(*settings, *DDP, *loads(dist))
    close("Megatron FSDP to step 4, converted back, DDP from there", whole[SAVED:], rest, tolerance)
    # There and back, Megatron FSDP continues as if nothing had happened.
    groups = work / "made/param_to_param_group_map.json"
    ckpt("convert", "torch-dist-to-fsdp-dtensor", *gated(dist), dist, again, "--param-to-param-group-map-json", groups)
    ckpt("diff", fsdp, again, "--tensors-only")
    check_settings(settings_of(fsdp), settings_of(again))
    direct = runner.run(*settings, *FSDP, *loads(fsdp))
    equal("resumed, and resumed from there and back", direct, runner.run(*settings, *FSDP, *loads(again)))


def config_of(inspected):
    args = inspected["objects"]["args"]
    return {"model_type": "llama", "num_hidden_layers": args["num_layers"], "hidden_size": args["hidden_size"],
            "num_attention_heads": args["num_attention_heads"], "num_key_value_heads": args["num_query_groups"],
            "head_dim": args["kv_channels"], "intermediate_size": args["ffn_hidden_size"],
            "rms_norm_eps": args["layernorm_epsilon"], "rope_theta": args["rotary_base"],
            "vocab_size": args["vocab_size"], "tie_word_embeddings": not args["share_embeddings_and_output_weights"] is False}


def len_of(inspected, name):
    return inspected["tensors"][f"model.module.{name}"]["shape"][0]


def check_hub(runner, work, settings, fsdp):
    """Export in fp32 and import: the weights are the same to the bit."""
    hub = work / "config"
    hub.mkdir()
    inspected = json.loads(ckpt("inspect", fsdp, "--json"))
    config = config_of(inspected)
    (hub / "config.json").write_text(json.dumps(config))
    ckpt("export", "hf", fsdp, work / "hub", "--config", hub, "--weight-dtype=float32")
    data = (work / "hub/model.safetensors").read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    if header["model.embed_tokens.weight"]["shape"][0] != config["vocab_size"]:
        sys.exit(f"the exported vocabulary: {header['model.embed_tokens.weight']}")
    ckpt("import", "hf", work / "hub", work / "imported")
    ckpt("convert", "fsdp-dtensor-to-torch-dist", fsdp, work / "weights", "--weights-only")
    diff = json.loads(ckpt("diff", work / "weights", work / "imported", "--json", status=1))
    # The hub has no rows beyond the vocabulary; they come back as zeros.
    padding = (len_of(inspected, "embedding.word_embeddings.weight") - config["vocab_size"]) * config["hidden_size"]
    differ = {tensor["name"]: tensor["elements"] for tensor in diff["tensors"]}
    wanted = {name: padding for name in ("embedding.word_embeddings.weight", "output_layer.weight")}
    if differ != wanted or diff["only_in_a"] or diff["only_in_b"]:
        sys.exit(f"exported and imported: {diff}")
    print("exported and imported: the same weights")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--hub", action="store_true", help="also by way of Hugging Face's form")
    options = parser.parse_args()
    runner = Runner(options.recipe, options.set)
    settings = [f"train.train_iters={STEPS}"]
    tolerance = TOLERANCE_16_BITS if "mixed_precision=bf16_mixed" in options.set else TOLERANCE
    work = pathlib.Path(tempfile.mkdtemp(prefix="shardc-convert-"))
    try:
        for run in runner.in_turn([runner.run]):
            whole = run(*settings, *DDP)
            fsdp = check_there(runner, work, settings, whole, tolerance)
            check_back(runner, work, settings, whole, tolerance)
            if options.hub:
                check_hub(runner, work, settings, fsdp)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
