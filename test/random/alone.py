#!/usr/bin/env python3
"""Tries each option of docs/options.md alone, at values that are not its default: the run must differ, or a message
must tell why not.

    alone.py SHARDC [--count=N] [--first=SEED] [--jobs=N]

The recipe is a small model on two ranks of the host that trains, evaluates and saves for two steps. Each option is
tried at values of its type. A value passes if a message names the option, or the option to which the value is copied,
or if the recipe has this value anyway. Otherwise the program compares plans, without their tables of job options, and
then runs: losses, rates and norms, output, and the contents of checkpoints. Of a number, one value must show an effect.
An option that docs/options.md says has an effect only beside others must give a message alone, and show its effect
beside them. The page also says which options show effects only on other devices, or only after events that this run
does not have. Without --count it tries a fixed part of the options, and all of them with SHARDC_LONG=1. Exits with 1 if
an option is ignored.
"""

import collections
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from batches import parse_options, try_all
from recipes import OPTIONS, write

BATCH, COUNT = 40, 80
LIMIT_S = 300
BASE = """recipe base {
  model gpt { num_layers = 2  hidden_size = 16  num_attention_heads = 2  seq_length = 8  vocab_size = 260  ffn_hidden_size = 24 }
  cluster { gpu = host  nodes = 1  gpus_per_node = 2 }
  train { micro_batch_size = 1  global_batch_size = 4  train_iters = 2 }
  validation { eval_interval = 1  eval_iters = 1 }
  dataset text { data_path = ["texts"]  split = "60,40,0" }
  optimizer adam { lr = 1e-2  min_lr = 1e-3  weight_decay = 0.1 }
  scheduler cosine { lr_warmup_iters = 1 }
  checkpoint { save = "saved"  save_interval = 1 }
  logger { log_interval = 1 }
}
"""
# Settings that give a recipe what an option needs, where the one setting in docs/options.md is not enough.
FP8 = ["mixed_precision = bf16_with_fp8_delayed_scaling_mixed", "mixed_precision.fp8_param_gather = false", "model.seq_length = 16",
       "model.ffn_hidden_size = 32"]
YARN = ["model.position_embedding_type = yarn", "model.yarn_rotary_scaling_factor = 4.0"]
ROPE = ["model.position_embedding_type = rope", "model.rope_scaling_factor = 8.0"]
LINEAR = ["model.experimental_attention_variant = gdn", "model.linear_attention_freq = [2]", "model.linear_num_key_heads = 2", "model.linear_num_value_heads = 4", "model.linear_key_head_dim = 8", "model.linear_value_head_dim = 8"]
HYBRID = ['model.hybrid_layer_pattern = "M-M*"', "model.num_layers = 4", "model.mamba_head_dim = 8", "model.mamba_num_groups = 2", "model.mamba_state_dim = 8"]
NO_ROPE = ["model.position_embedding_type = rope", "model.no_rope_freq = [2]"]
EXPERTS = ["model.num_moe_experts = 4", "model.moe_ffn_hidden_size = 16"]
BALANCED = [*EXPERTS, "model.moe_aux_loss_coeff = [0.01]"]
WAYS = {
    "validation.samples": ["validation.samples = 2"],
    "dataset.valid_data_path": ["dataset.data_path = none", "dataset.split = none", 'dataset.train_data_path = ["texts"]',
                                'dataset.valid_data_path = ["texts", "texts"]'],
    "model.fp8": FP8, "model.first_last_layers_bf16": [*FP8, "model.num_layers = 3", "model.first_last_layers_bf16 = true"],
    "model.fp16": ["mixed_precision = fp16_mixed"], "model.bf16": ["mixed_precision = bf16_mixed"],
    "model.hybrid_layer_pattern": HYBRID, "model.is_hybrid_model": HYBRID, "model.experimental_attention_variant": LINEAR, "model.linear_attention_freq": LINEAR, "model.short_conv_freq": ["model.short_conv_freq = [2]"],
    "model.no_rope_freq": NO_ROPE, "model.attn_temperature_tuning": [*NO_ROPE, "model.attn_temperature_tuning = true"],
    "model.moe_shared_expert_intermediate_size": [*EXPERTS, "model.moe_shared_expert_intermediate_size = 32"],
    "model.window_size": ["model.window_size = [2, 0]", "model.position_embedding_type = rope"],
    "model.multi_latent_attention": ["model.multi_latent_attention = true", "model.position_embedding_type = rope"],
    "model.rope_type = yarn": ["model.multi_latent_attention = true", "model.position_embedding_type = rope"],
    "model.position_embedding_type = yarn": [*YARN, "model.yarn_mscale = 1.0", "model.yarn_mscale_all_dim = 0.5"],
    "model.rope_scaling": [*ROPE, "model.rope_scaling = true"], "model.rope_scaling_factor > 1": ROPE,
    "model.recompute_granularity = full": ["model.recompute_granularity = full", "model.recompute_method = uniform",
                                           "model.recompute_num_layers = 2"],
    "model.recompute_granularity = auto": ["model.recompute_granularity = auto", 'model.recompute_layers = ["full", "none"]'],
    "model.num_moe_experts": EXPERTS, "model.moe_aux_loss_coeff": BALANCED,
    "model.moe_layer_freq": [*EXPERTS, "model.moe_layer_freq = [1, 0]"],
    "model.moe_router_group_topk": [*EXPERTS, "model.moe_router_num_groups = 2", "model.moe_router_group_topk = 2"],
    "model.expert_model_parallel_size > 1": [*EXPERTS, "model.expert_model_parallel_size = 2"],
    "model.moe_expert_capacity_factor": [*EXPERTS, "model.moe_expert_capacity_factor = 0.5"],
    "preference.loss": ["preference.loss = sigmoid", "dataset.kind = synthetic", "dataset.data_path = none"],
    "model.cp_comm_type": ["cluster.gpus_per_node = 4", "model.context_parallel_size = 4", 'model.cp_comm_type = ["a2a+p2p"]',
                           "model.hierarchical_context_parallel_sizes = [2, 2]"],
    "model.tp_comm_overlap": ["model.tensor_model_parallel_size = 2", "model.sequence_parallel = true",
                              "model.tp_comm_overlap = true"],
    "dist.use_torch_fsdp2": ["dist.use_torch_fsdp2 = true", "model.share_embeddings_and_output_weights = false"],
    "train.train_samples": ["train.train_iters = none", "train.train_samples = 8", "scheduler.lr_warmup_iters = 0"],
    "optimizer.use_precision_aware_optimizer": [
        "mixed_precision = bf16_mixed", "ddp.use_distributed_optimizer = true", "optimizer.use_precision_aware_optimizer = true"],
    "optimizer.decoupled_lr": ["optimizer.decoupled_lr = 0.01"],
    "model.freeze": ['model.freeze = ["layers.0"]', "dist.use_megatron_fsdp = true"],
    "model.mtp_num_layers": ["model.mtp_num_layers = 1"],
    "peft.scheme": ["peft.scheme = lora", "peft.rank = 2"],
    "checkpoint.load": ['checkpoint.load = "nowhere"', "checkpoint.exit_on_missing_checkpoint = false"],
    "checkpoint.use_checkpoint_args": ['checkpoint.load = "nowhere"', "checkpoint.exit_on_missing_checkpoint = false",
                                       "checkpoint.use_checkpoint_args = true"],
    "checkpoint.in_memory_interval": ["checkpoint.in_memory_interval = 1"],
    "logger.log_throughput_to_tensorboard": ["logger.log_throughput_to_tensorboard = true", 'logger.tensorboard_dir = "events"'],
    "logger.tensorboard_dir": ['logger.tensorboard_dir = "events"'],
    "scheduler.lr_decay_style = WSD": ["scheduler.lr_decay_style = WSD", "scheduler.lr_wsd_decay_iters = 2"]}
# Recipes to which a setting is added if it shows no effect in the base recipe. It must show one in some of these.
OTHERS = [["mixed_precision = fp16_mixed"], ["mixed_precision = bf16_mixed"], FP8, ["dist.use_megatron_fsdp = true"],
          ["mixed_precision = bf16_mixed", "dist.use_megatron_fsdp = true"], BALANCED, [*FP8, *EXPERTS],
          [*EXPERTS, "model.expert_model_parallel_size = 2"]]
UNSET = {"ddp.keep_frozen": "never"}  # words for options without a default that mean "not set"
# Sections whose values are copied to options of other sections. Messages name those options.
COPIED = ("mixed_precision", "comm_overlap")


def values(option):
    """Values of the option's type within its bounds that are not its default, as recipe text."""
    low, high = option.bounds()

    def fits(number):
        return (low is None or number >= low) and (high is None or number <= high)

    numbers = [number for number in (1, 2, 3, 4, 7, 0, 64, 1000) if fits(number)]
    tried = {
        "bool": [True, False], "int": numbers, "enum": option.words, "enums": [[word] for word in option.words],
        "float": [float(number) for number in (0.5, 0.25, 2, 1e-4, 100, 0) if fits(number)],
        "ints": [[2, 2, 4], [1, 1], [4, 1], [2]], "floats": [[0.5]], "string": ["x", "1"], "strings": [["x"]],
        "size": ["64KiB", "1GiB"], "duration": [30, 1]}[option.kind]
    if option.path == "dataset.split":
        tried = ["50,50,0"]
    texts = [write(option, value) for value in tried if value not in (option.default, UNSET.get(option.path))]
    return texts if option.kind in ("enum", "enums") else texts[:3]


def recipe_of(settings):
    """A recipe with these settings. Of several settings of one option, the last one counts."""
    last = {setting.split(" = ")[0]: setting for setting in settings}
    return 'recipe r extends "base.recipe" {\n' + "".join(f"  {setting}\n" for setting in last.values()) + "}\n"


def names(option):
    """The names under which messages may mention the option."""
    section, _, name = option.path.partition(".")
    return [option.path] + ([f".{name}"] if section in COPIED and name else [])


def call(folder, *command):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S, errors="replace")


def make_folder(folder):
    """Writes the recipe that all others extend, and text files of one document each."""
    (pathlib.Path(folder) / "base.recipe").write_text(BASE, encoding="utf-8")
    texts = pathlib.Path(folder) / "texts"
    texts.mkdir()
    for number in range(80):
        (texts / f"{number:02}.txt").write_text(f"text {number} of a few words\n", encoding="utf-8")


def check_all(shardc, recipes):
    """The messages about each recipe. Uses one process for all, unless it crashes."""
    with tempfile.TemporaryDirectory() as folder:
        make_folder(folder)
        paths = [f"{number}.recipe" for number in range(len(recipes))]
        for path, text in zip(paths, recipes):
            (pathlib.Path(folder) / path).write_text(text, encoding="utf-8")
        done = call(folder, shardc, "check", "--diag-format=json", *paths)
        if done.returncode not in (0, 1):
            sys.exit(f"check ends with {done.returncode}\n{done.stderr[-2000:]}")
        said = collections.defaultdict(list)
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                message = json.loads(line)
                said[message.get("file")].append(message)
        return [said[path] for path in paths]


def is_named(option, messages):
    return any(name in message["text"] for name in names(option) for message in messages)


def is_refused(messages):
    return any(message["severity"] == "error" for message in messages)


def base_paths():
    """The options that the base recipe sets."""
    paths = set()
    for line in BASE.splitlines()[1:-1]:
        section = line.split()[0]
        paths |= {f"{section}.{name}" for name in re.findall(r"(\w+) = ", line)}
    return paths


def beside(option):
    """Settings that the option needs to have an effect; nothing if the base recipe has them."""
    return [setting for needs in option.needs if needs[0] not in base_paths() for setting in way_of(needs[0])]


def way_of(need):
    """Settings that meet a need of docs/options.md."""
    if need in WAYS:
        return WAYS[need]
    path, above, low = need.partition(" > ")
    return [f"{path} = {int(low) + 1}"] if above else [need if " = " in need else f"{need} = true"]


def values_of_recipe(shardc, settings):
    """The recipe's options after all rules, without defaults and without sections whose values are copied elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        make_folder(folder)
        (pathlib.Path(folder) / "r.recipe").write_text(recipe_of(settings), encoding="utf-8")
        out = call(folder, shardc, "dump-plan", "r.recipe", "--print-after=adjust", "-o", "r.plan").stdout
    found, section = [], ""
    for line in out.splitlines():
        head = re.match(r"  (\w+)( \w+)? {", line)
        section = head.group(1) if head else section
        setting = re.match(r" +(\w+) = (.*?)( })?$", line)
        option = OPTIONS.get(f"{section}.{setting.group(1)}") if setting else None
        if option and section not in COPIED and (option.default is None or write(option, option.default) != setting.group(2)):
            found.append((option.path, setting.group(2)))
    return sorted(found)


def plan_of(shardc, settings):
    """The plan without the parts that repeat the recipe: the job's options, places and sources."""
    with tempfile.TemporaryDirectory() as folder:
        make_folder(folder)
        (pathlib.Path(folder) / "r.recipe").write_text(recipe_of(settings), encoding="utf-8")
        done = call(folder, shardc, "dump-plan", "r.recipe")
    kept, part = [], ""
    for line in done.stdout.splitlines():
        if re.match(r"(job|source|loc)\b", line):
            part = line.split()[0]
        elif not line.startswith((" ", "}")):
            part = ""
        is_option = part == "job" and not re.match(r"  derived\.(?!loc)", line)
        if not is_option and part not in ("source", "loc") and not line.startswith("//"):
            kept.append(re.sub(r" loc \d+| hash [0-9a-f]+$", "", line))
    return done.returncode, "\n".join(kept)


def run_of(shardc, settings):
    """The outcome of a run: its status, losses, output without times and speeds, and the files that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        make_folder(folder)
        (pathlib.Path(folder) / "r.recipe").write_text(recipe_of(settings), encoding="utf-8")
        done = call(folder, shardc, "run", "r.recipe", "--metrics=metrics.jsonl")
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        numbers = [[line.get(key) for key in ("step", "loss", "lr", "grad_norm", "eval_loss", "loss_scale", "tokens")] for line in lines]
        files = sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).glob("**/*"))
        # The contents of checkpoints, without the arguments, which repeat the recipe.
        held = call(folder, shardc, "ckpt", "inspect", "saved").stdout
        held = [line for line in held.splitlines() if not line.strip().startswith(("args", "'saved"))]
    text = re.sub(r"\d+(\.\d+)?[kM]? tokens/s.*|in \d+:\d+.*|\d+(\.\d+)? (ms|s|GB/s|GiB|MiB|KiB|B)\b|0x[0-9a-f]+", "", done.stdout + done.stderr)
    return done.returncode, numbers, text, files, held


class Bases:
    """Caches the messages, plans and runs of recipes with which others are compared."""

    def __init__(self, shardc):
        self.shardc, self.made = shardc, {}

    def of(self, make, settings):
        key = make, tuple(settings)
        if key not in self.made:
            self.made[key] = make(self.shardc, settings)
        return self.made[key]

    def shows(self, others, setting):
        """The effect of adding a setting to others: it changes the plan or the run, it repeats a value that the recipe
        has anyway, or it has no effect."""
        for how, make in (("plan", plan_of), ("run", run_of)):
            if make(self.shardc, [*others, setting]) != self.of(make, others):
                return how
        return "same" if values_of_recipe(self.shardc, [*others, setting]) == self.of(values_of_recipe, others) else None


def shows_elsewhere(bases, setting):
    """Whether the setting has an effect in another recipe. In this one, it then only repeats a value that the recipe
    has anyway."""
    return any(bases.shows(others, setting) in ("plan", "run") for others in OTHERS)


def try_values(bases, option, said, others, counts):
    """The fault of an option together with others, or None; `said` has the messages about each of its values."""
    silent = []
    for value, messages in said:
        how = "named" if is_named(option, messages) or is_refused(messages) else bases.shows(others, f"{option.path} = {value}")
        counts[how] += 1
        if how is None:
            silent.append(value)
    # One value of a number or list must have an effect; of other options, all, unless the default is 'auto'.
    one_of = option.kind in ("int", "float", "size", "duration", "ints", "enums") or option.default == "auto"
    if one_of and len(silent) < len(said):
        return None
    elsewhere = [value for value in silent if shows_elsewhere(bases, f"{option.path} = {value}")]
    if one_of and elsewhere:
        return None
    silent = [value for value in silent if value not in elsewhere]
    where = f" beside {', '.join(others)}" if others else ""
    return f"{option.path} = {', '.join(silent)} changes nothing{where}, and no message names it" if silent else None


def try_batch(shardc, seeds):
    found, counts, bases = [], collections.Counter(), Bases(shardc)
    trials = []
    for path in [ORDER[seed % len(ORDER)] for seed in seeds]:
        option = OPTIONS[path]
        others = beside(option)
        # An option that needs others must give a message alone, even if its effect shows only elsewhere.
        if others or not option.seen:
            trials.append((option, []))
        is_executed = option.status == "Executed" and OPTIONS[option.needs[0][0].split(" ")[0]].status == "Executed" if others else False
        if is_executed and not option.seen:
            trials.append((option, others))
    settings = [(option, others, value) for option, others in trials for value in values(option)]
    messages = check_all(shardc, [recipe_of([*others, f"{option.path} = {value}"]) for option, others, value in settings])
    said = collections.defaultdict(list)
    for (option, others, value), texts in zip(settings, messages):
        said[option.path, tuple(others)].append((value, texts))
    for option, others in trials:
        if others and is_refused(check_all(shardc, [recipe_of(others)])[0]):
            found.append((option.path, "", f"{option.path} cannot be tried beside {', '.join(others)}, which is refused"))
        elif option.status == "Not executed" and any(is_named(option, texts) for _, texts in said[option.path, ()]):
            counts["named"] += 1  # the other values equal the unset option's
        elif why := try_values(bases, option, said[option.path, tuple(others)], others, counts):
            found.append((option.path, "", why))
    return found, counts


ORDER = sorted(OPTIONS)
random.Random(0).shuffle(ORDER)


def main():
    options = parse_options("tries each option alone", COUNT)
    if os.environ.get("SHARDC_LONG") == "1":
        options.count = min(options.count, len(ORDER))
    found, counts = try_all(options, try_batch, BATCH)
    for _, _, why in found:
        print(why)
    print(f"{options.count} options: {counts['named']} values are named by a message, {counts['plan']} change the plan, "
          f"{counts['run']} the run, {counts['same']} are there anyway, {len(found)} options are ignored")
    sys.exit(1 if found or counts["named"] == 0 or counts["plan"] == 0 else 0)


if __name__ == "__main__":
    main()
