#!/usr/bin/env python3
"""One walk over all options that plans and runs depend on: what `shardc check` accepts of it compiles and verifies, with
passes left out and others asked for, is proved to compute what it says, and on the host trains as one rank does.

    walk.py SHARDC [--count=N] [--first=SEED] [--jobs=N]

A recipe is a small job (jobs.py) with values of any executed options of docs/options.md, so a new option takes part as
soon as it has a row there. Options that a rule refuses are removed from the recipe until it is accepted. One recipe in
three is compiled again with other passes. One in ten of those for the host runs, and so does the same job on one rank.
A recipe that fails is reduced: options are removed while its fault stays. Exits with 1 if a recipe fails, if hardly any
is accepted, or if an option is at its default in all accepted recipes of 10,000 or more. Without --count it takes 200
recipes, and 20,000 with SHARDC_LONG=1.
"""

import collections
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time

import reach
from batches import make_parser, show, try_all
from compare import REASONS
from jobs import DATA, draw_job, write_data
from recipes import DOMAINS, FAMILIES as MODELS, OPTIONS, write

BATCH, COUNT, COUNT_LONG = 50, 200, 20_000
ROUNDS = 20  # of removing options that rules refuse
LIMIT_S = 120
# Sizes, ranks, batches and data must fit each other, so jobs.py draws them together. Paths name files that do not
# exist.
OWN = re.compile(r"(model\.(num_layers|recompute_layers|num_moe_experts|hidden_size|num_attention_heads|seq_length|vocab_size|pipeline_model_parallel_layout)|"
                 r"(model|expert)\.\w*_parallel_size|cluster\.(nodes|gpus_per_node|memory|rates)|train\.\w*(batch_size|iters|samples|epochs)|"
                 r"dataset\.(kind|blend|split|\w*data_path)|scheduler\.lr_decay_iters|dist\.rendezvous_port|"
                 r"checkpoint\.(save|load|pretrained_checkpoint|ckpt_step|accept_differences))$")
POOL = sorted(path for path, option in OPTIONS.items() if option.status == "Executed" and not OWN.match(path))
# Other options. Accepted recipes with these must compile too.
OTHERS = sorted(path for path, option in OPTIONS.items() if path not in POOL and not OWN.match(path) and
                option.kind not in ("string", "strings") and "path" not in option.takes)
WORDS = [path for path in POOL if OPTIONS[path].kind in ("bool", "enum", "enums")]


def family_of(path):
    return re.match(r"(\w+\.)?[a-z0-9]+", path).group()


FAMILIES = collections.defaultdict(list)  # options whose names begin alike
for each in POOL:
    FAMILIES[family_of(each)].append(each)
FAMILIES = {family: paths for family, paths in FAMILIES.items() if len(paths) > 1}
# Options that have no meaning without others.
NEEDS = [(re.compile(pattern), needed) for pattern, needed in [
    (r"mixed_precision\.(\w*loss_scale\w*|hysteresis)$", {"mixed_precision": "fp16_mixed"}),
    (r"mixed_precision\.(fp8_\w+|\w*layers\w*)$", {"mixed_precision": "bf16_mixed", "mixed_precision.fp8": "hybrid"}),
    (r"optimizer\.(\w*loss_scale\w*|hysteresis)$", {"model.fp16": True}),
    (r"model\.(fp8_\w+|\w*layers\w*_in_bf16)$", {"model.bf16": True, "model.fp8": "hybrid"}),
    (r"model\.(multi_latent|q_lora|kv_lora|qk_head|qk_pos|v_head|rope_type|rotary_scaling|original_max|mscale|beta_)",
     {"model.multi_latent_attention": True, "model.position_embedding_type": "rope"}),
    (r"model\.(yarn_|position_embedding_type)", {"model.position_embedding_type": "yarn", "model.yarn_rotary_scaling_factor": 4.0}),
    (r"model\.(moe_|expert_)", {"model.num_moe_experts": 4, "model.moe_ffn_hidden_size": 32}),
    (r"model\.moe_(expert_capacity|token_drop|pad_expert)", {"model.num_moe_experts": 4, "model.moe_expert_capacity_factor": 1.0}),
    (r"model\.moe_router_(enable_expert_bias|bias_update_rate)", {"model.moe_router_score_function": "sigmoid", "model.moe_router_enable_expert_bias": True}),
    (r"model\.moe_router_(num_groups|group_topk)", {"model.moe_router_num_groups": 2, "model.moe_router_group_topk": 1}),
    (r"model\.moe_(aux_loss|router_load)", {"model.moe_aux_loss_coeff": [0.1]}),
    (r"model\.(activation_func_clamp|glu_linear)", {"model.activation_func": "quick_gelu", "model.gated_linear_unit": True}),
    (r"model\.seq_len_interpolation", {"model.position_embedding_type": "rope"}),
    (r"dataset\.(reset_|eod_mask)", {"dataset.eod_token": 3}), (r"validation\.", {"validation.eval_interval": 2, "validation.eval_iters": 1}),
    (r"scheduler\.(\w+_weight_decay|weight_decay_incr_style)$",
     {"scheduler.weight_decay_incr_style": "cosine", "scheduler.start_weight_decay": 0.01, "scheduler.end_weight_decay": 0.1}),
    (r"dataset.drop_last_partial_validation_sequence|dataset.mid_level", {**DATA, "validation.eval_interval": 2})]]
INTEGERS, NUMBERS = [0, 1, 2, 3, 4, 8, 16, 32, 64, 128], [0.0, 1e-5, 1e-3, 0.1, 0.5, 0.9, 1.0, 8.0, 1024.0]
EXPERT_SIZE = {"model.moe_ffn_hidden_size": 16}
WITH_EXPERTS = {model for model, settings in MODELS.items() if "num_moe_experts" in dict(settings)}
FIXED = {*EXPERT_SIZE, "cluster.gpu", "model.num_layers", "model.hidden_size", "model.num_attention_heads", "model.seq_length",
         "model.vocab_size", "train.train_iters", "train.train_samples"}  # stay in every recipe
BATCHES = {"train.global_batch_size", "train.micro_batch_size"}
# Errors about the text itself, and errors by which a recipe is accepted but not compiled.
OF_TEXT = {"value-out-of-range", "wrong-type", "cannot-read-schedule", "schedule-named-twice"}
NOT_COMPILED = {"checks-only", "cannot-be-compiled", "plan-refused"}
OF_SIZES = {"memory-saves-in-pieces", "staging-in-pieces"}  # rules about bytes that only a plan knows
# A message of the latter kind that names an option and its value: shardc only checks that option.
NOT_EXECUTED = re.compile(r"'([\w.]+)(?: = [^']*)?' is checked but cannot be executed")
# Options that may have no meaning on one rank, and do not change what is trained.
OF_RANKS = re.compile(r"parallel|overlap|shard|fsdp|comm|nccl|registration|instances|pipeline|stage|microbatch_group|"
                      r"distributed|double_buffer|sharp|hierarchical|cluster\.")
# With types of few bits, losses depend on the order of sums. A rate of 1e-3 keeps steps from amplifying that.
RUN = {"train.train_iters": 3, "logger.log_interval": 1, "optimizer.lr": 1e-3}
RATES = {"optimizer.decoupled_lr", "optimizer.decoupled_min_lr"}  # likewise, where they are drawn


def pass_flags(shardc):
    """The passes that --disable-pass and --enable-pass accept, from the program's help."""
    text = subprocess.run([shardc, "dump-plan", "--help"], capture_output=True, text=True, check=True).stdout
    return [f"--{kind}-pass={name}" for kind, names in re.findall(r"--(disable|enable)-pass TEXT:\{([^}]*)\}", text)
            for name in names.split(",")]


def value_of(option, draw):
    low, high = option.bounds()
    fits = [lambda number: (low is None or number >= low) and (high is None or number <= high)][0]
    if option.kind == "bool":
        return draw.random() < 0.75 if not option.default else draw.random() < 0.25
    if option.kind == "string":
        return draw.choice(DOMAINS.get(option.path, ["0", "1", "8"]))
    if option.kind == "enum":
        return draw.choice(option.words)
    if option.kind == "enums":
        return draw.sample(option.words, draw.choice([1, 1, 2]))
    if option.kind in ("ints", "floats"):
        return [draw.choice([1, 2, 4, 0, -1]) for _ in range(2)]
    if option.kind == "size":
        return draw.choice(["4KiB", "1MiB", "1GiB"])
    choices = [number for number in (INTEGERS if option.kind != "float" else NUMBERS) if fits(number)]
    return draw.choice(choices or [option.default])


def draw_settings(seed):
    """A job with some further options, and the paths of the job."""
    draw = random.Random(seed)
    job = {"model": draw.choice(["gpt", "gpt", "llama", "llama", "qwen2", "qwen3", "mistral", *OPTIONS["model"].words]), **draw_job(draw)}
    if job["model"] in WITH_EXPERTS:
        job = {**EXPERT_SIZE, **job}
    settings, few = dict(job), draw.random() < 0.5  # with many options, some exclude each other
    others = draw.sample(OTHERS, draw.randint(1, 2)) if draw.random() < 0.2 else []
    chosen = others + draw.sample(WORDS, draw.randint(0, 2 if few else 10)) + draw.sample(POOL, draw.randint(0, 2 if few else 5))
    for family in draw.sample(sorted(FAMILIES), draw.choice([0, 0, 1] if few else [0, 1, 1, 2])):  # draws related options together
        chosen += draw.sample(FAMILIES[family], draw.randint(1, len(FAMILIES[family])))
    for path in chosen:
        for _, needed in [pair for pair in NEEDS if pair[0].match(path)]:
            settings = {**needed, **settings}
        if path not in settings:
            settings[path] = value_of(OPTIONS[path], draw)
        if path.endswith("_samples") and "train.train_iters" in settings:
            settings["train.train_samples"] = settings["train.global_batch_size"] * settings.pop("train.train_iters")
    return settings, frozenset(job)


def text_of(settings):
    return "recipe r {\n" + "".join(f"  {path} = {write(OPTIONS[path], value)}\n" for path, value in settings.items()) + "}\n"


class Said:
    """The messages and the status of a program for one recipe."""

    def __init__(self, messages, status=0, stderr=""):
        self.messages, self.status, self.stderr = messages, status, stderr
        self.errors = {message["id"] for message in messages if message["severity"] == "error" or self.unexecuted(message)}

    @staticmethod
    def unexecuted(message):
        """The option that is checked but not compiled, if the message is about one."""
        named = NOT_EXECUTED.search(message["text"]) if message["id"] in NOT_COMPILED else None
        return named.group(1) if named else None

    def fault(self):
        """What is wrong, as a word that stays the same while the recipe is reduced; None if nothing is."""
        if self.status not in (0, 1):
            return f"status {self.status}"
        is_named = any(map(self.unexecuted, self.messages))
        for message in self.messages:
            if message["id"] == "plan-refused" or message["id"] in NOT_COMPILED and not is_named:
                rule = re.search(r"violates rule '([a-z-]+)'", message["text"])
                return f"{message['id']} {rule.group(1) if rule else message['text'][:60]}"
        unknown = self.errors - REASONS - OF_TEXT - NOT_COMPILED - OF_SIZES
        return f"refused by no rule: {sorted(unknown)}" if unknown else None


def write_recipes(folder, all_settings):
    paths = [os.path.join(folder, f"{number}.recipe") for number in range(len(all_settings))]
    write_data(folder)
    for path, settings in zip(paths, all_settings):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text_of(settings))
    return paths


def call(command, folder):
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S, errors="replace")
        return done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        return 124, "", f"no end after {LIMIT_S} s"


def read_messages(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def check(shardc, all_settings):
    """The messages of `shardc check` for each recipe. Uses one process for all, unless it crashes."""
    with tempfile.TemporaryDirectory() as folder:
        paths = write_recipes(folder, all_settings)
        status, out, _ = call([shardc, "check", "--diag-format=json", *paths], folder)
        if status in (0, 1):
            by_file = collections.defaultdict(list)
            for message in read_messages(out):
                by_file[message.get("file")].append(message)
            return [Said(by_file[path]) for path in paths]
        alone = [call([shardc, "check", "--diag-format=json", path], folder) for path in paths]
        return [Said(read_messages(out), status, stderr[-1000:]) for status, out, stderr in alone]


def compile_with(shardc, settings, flags):
    with tempfile.TemporaryDirectory() as folder:
        path = write_recipes(folder, [settings])[0]
        command = [shardc, "dump-plan", path, "--diag-format=json", *flags, "-o", os.path.join(folder, "r.plan")]
        status, out, stderr = call(command, folder)
        return Said(read_messages(out + stderr), status, stderr[-1000:])


def without_refused(settings, said, job, draw):
    """The settings without one option at the place of each error or its notes. It removes an option of the job only if
    there is no other."""
    lines = list(settings)

    def named(message):
        places = [part["range"]["begin"]["line"] - 2 for part in [message, *message["notes"]] if "range" in part]
        return [lines[place] for place in places if place < len(lines)] + [said.unexecuted(message)]

    drop = set()
    for message in said.messages:
        paths = sorted({path for path in named(message) if path in settings and path not in FIXED})
        paths = [path for path in paths if path not in job] or paths
        if paths and (message["severity"] == "error" or said.unexecuted(message)) and not drop & set(paths):
            drop.add(draw.choice(paths))
    if not drop and "model" in settings:  # the model family sets the refused option
        drop = {"model"}
    if not drop:  # the refused option was not drawn: remove any option
        free = sorted(set(lines) - FIXED - job) or sorted(set(lines) - FIXED)
        drop = set(draw.sample(free, max(len(free) // 4, 1)) if free else [])
    return {path: value for path, value in settings.items() if path not in drop}


def accepted(shardc, all_settings, jobs, seed=0):
    """Removes options from each recipe until no rule refuses it, at most for some rounds, and returns the recipes with
    their messages. Options of `jobs` are removed last."""
    state, draw = [(settings, None) for settings in all_settings], random.Random(seed)
    for _ in range(ROUNDS):
        todo = [i for i, (_, said) in enumerate(state) if said is None or (said.errors and not said.fault())]
        if not todo:
            break
        trial = [state[i][0] if state[i][1] is None else without_refused(*state[i], jobs[i], draw) for i in todo]
        for i, settings, said in zip(todo, trial, check(shardc, trial)):
            state[i] = (settings, said)
    return state


def run(shardc, settings, flags):
    """The outcome of a run: its status, the losses and gradient norms of steps, losses of evaluations, and its last
    output."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_recipes(folder, [settings])[0]
        plan, metrics = os.path.join(folder, "r.plan"), os.path.join(folder, "metrics.jsonl")
        status, _, stderr = call([shardc, "dump-plan", path, *flags, "-o", plan], folder)
        if status == 0:
            runner = os.path.join(os.path.dirname(shardc), "shardc-run")
            status, _, stderr = call([runner, plan, f"--metrics={metrics}"], folder)
        found = []
        if os.path.exists(metrics):
            with open(metrics, encoding="utf-8") as file:
                records = map(json.loads, file)
                found = [(record["step"], [record[key] for key in ("loss", "grad_norm", "eval_loss") if key in record])
                         for record in records if "loss" in record or "eval_loss" in record]
        return status, found, stderr[-1000:]


def tolerance_of(settings):
    """The relative tolerance of losses and norms, by the narrowest type in which a layer may compute."""
    text = json.dumps({path: value for path, value in settings.items() if path != "cluster.gpu" and value is not False})
    return 0.2 if "fp8" in text else 0.05 if re.search("bf16|fp16", text) else 2e-4


def worst(many, single):
    """The largest relative difference. The weight of a difference falls by a factor of 20 per step, since some
    optimizers amplify differences."""
    pairs = [(a, b, 20 ** (step - 1)) for (step, values), (_, others) in zip(many, single) for a, b in zip(values, others)]
    return max((abs(a - b) / max(abs(b), 0.1) / share for a, b, share in pairs), default=0)


def of_one_rank(shardc, settings):
    """The same job on one rank; None if an option that has no meaning there changes the training."""
    one = {path: value for path, value in settings.items() if not OF_RANKS.search(path)}
    one.update({"cluster.gpu": "host", "cluster.gpus_per_node": 1})
    divisor = "model.make_vocab_size_divisible_by"  # tensor parallelism multiplies it: this gives equal padding
    one[divisor] = settings.get(divisor, OPTIONS[divisor].default) * settings.get("model.tensor_model_parallel_size", 1)
    (kept, said), = accepted(shardc, [one], [frozenset()])
    return kept if not said.errors and set(kept) == set(one) else None


def run_fault(shardc, settings, flags, counts):
    """The fault of the recipe's run, or of its losses compared with those of one rank."""
    settings = {**settings, **RUN, **{path: RUN["optimizer.lr"] for path in sorted(RATES & set(settings))}}
    if "train.train_samples" in settings:
        settings["train.train_samples"] = settings.pop("train.train_iters") * settings.get("train.global_batch_size", 1)
    if not BATCHES <= set(settings):  # otherwise they depend on the number of ranks
        return None
    has_text, has_vocabulary = settings.get("dataset.kind") == "text", settings["model.vocab_size"] >= DATA["model.vocab_size"]
    if settings.get("dataset.dataloader_type") == "cyclic":  # each rank draws from a part of the data
        return None
    if "global_aux_loss" in settings.get("model.moe_router_load_balancing_type", []):  # its gradient counts ranks, as upstream's
        return None
    rows = [settings.get(f"model.{kind}_parallel_size", 1) for kind in ("tensor_model", "context")]
    if "model.moe_expert_capacity_factor" in settings and max(rows) > 1:  # it counts the tokens of a rank
        return None
    if "sinkhorn" in settings.get("model.moe_router_load_balancing_type", []) and max(rows) > 1:  # likewise
        return None
    if settings.get("model.softmax_scale", 1) >= 64:  # attention takes one position, by a rounding another one
        return None
    if "dataset.blend" in settings and not (has_text and has_vocabulary and "dataset.split" in settings):  # DATA is a text
        return None
    if "scheduler.lr_warmup_init" in settings or check(shardc, [settings])[0].errors:
        return None
    status, many, stderr = run(shardc, settings, flags)
    counts["run"] += 1
    if status != 0:
        ended = re.search(r"not finite|non-finite|is nan|is -?inf|overflow|\[rows-without-room\]", stderr, re.IGNORECASE)
        return None if ended else f"run ends with {status}: {stderr[-300:]}"
    one = of_one_rank(shardc, settings)
    if one is None:
        return None
    status, single, stderr = run(shardc, one, [])
    if status != 0 and "[rows-without-room]" in stderr:  # on one rank, routers may divide rows less evenly
        return None
    if status != 0:
        return f"one rank ends with {status}: {stderr[-300:]}"
    if any(value is None or not math.isfinite(value) or abs(value) > 100 for _, values in many + single for value in values):
        return None  # gradients overflow, or the run diverges by the values drawn
    counts["compared"] += 1
    is_alike = [step for step, _ in many] == [step for step, _ in single] and worst(many, single) <= tolerance_of(settings)
    return None if is_alike else f"losses and norms {many}, on one rank {single}"


def reduced(settings, is_faulty):
    """The settings without options that the fault does not need, and with the smallest sizes that keep it. Sizes stay
    set, since their defaults are those of large models."""
    for _ in range(2):
        for path in reversed([path for path in settings if path not in FIXED | BATCHES]):
            less = {key: value for key, value in settings.items() if key != path}
            if is_faulty(less):
                settings = less
        for path in [path for path, value in settings.items() if isinstance(value, int) and not isinstance(value, bool)]:
            for value in (1, 2, 4):
                if value < settings[path] and is_faulty({**settings, path: value}):
                    settings = {**settings, path: value}
                    break
    return settings


def report(shardc, seed, settings, flags, said):
    """The report of a fault: the reduced recipe, the passes, and the error."""
    word = said.fault()

    def is_faulty(less):
        again = compile_with(shardc, less, flags) if flags else check(shardc, [less])[0]
        return again.fault() == word

    least = reduced(settings, is_faulty)
    texts = [message["text"] for message in said.messages if message["id"] in NOT_COMPILED]
    return seed, text_of(least), f"{' '.join(flags)} {word}: {(texts or [said.stderr])[0][:300]}"


def try_batch(shardc, seeds):
    found, counts = [], collections.Counter()
    flags = pass_flags(shardc)
    drawn, jobs = zip(*map(draw_settings, seeds))
    for seed, (settings, said) in zip(seeds, accepted(shardc, drawn, jobs, seeds[0])):
        draw = random.Random(seed + 1_000_000)
        if said.fault():
            found.append(report(shardc, seed, settings, [], said))
            continue
        counts["refused" if said.errors else "compiled"] += 1
        if said.errors:
            counts.update(("refused by", rule) for rule in said.errors)
            continue
        chosen = draw.sample(flags, draw.randint(1, 3)) if draw.random() < 1 / 3 else []
        reach.count(counts, settings, chosen)
        if chosen:
            counts["with other passes"] += 1
            with_passes = compile_with(shardc, settings, chosen)
            if with_passes.fault():
                found.append(report(shardc, seed, settings, chosen, with_passes))
                continue
        is_run = settings.get("cluster.gpu") == "host" and draw.random() < 0.1
        why = run_fault(shardc, settings, chosen, counts) if is_run else None
        if why:
            least = reduced(settings, lambda less: not check(shardc, [less])[0].errors and
                            str(run_fault(shardc, less, chosen, collections.Counter()))[:6] == why[:6])
            found.append((seed, text_of(least), f"{' '.join(chosen)} {why}"))
    return found, counts


def main():
    parser = make_parser("walks over all options that are executed", COUNT)
    parser.add_argument("--reached", action="store_true", help="print how many accepted recipes set each option, and what none has")
    options = parser.parse_args()
    options.count, options.shardc = min(options.count, COUNT_LONG), os.path.abspath(options.shardc)
    began = time.monotonic()
    found, counts = try_all(options, try_batch, BATCH)
    show(options, found)
    if options.reached:
        print("\n".join(reach.table(counts, POOL)))
    print(f"{options.count} recipes of {len(POOL)} options from seed {options.first}: {counts['compiled']} compiled, "
          f"{counts['with other passes']} of them with other passes too, {counts['refused']} refused by rules, {counts['run']} run, "
          f"{counts['compared']} compared with one rank, {len(found)} otherwise; {time.monotonic() - began:.0f} s")
    missing = reach.unreached(counts, POOL) if options.count >= COUNT_LONG // 2 else []
    if missing:
        print(f"no accepted recipe has these off their defaults: {', '.join(missing)}")
    sys.exit(1 if found or missing or counts["compiled"] < options.count // 2 else 0)


if __name__ == "__main__":
    main()
