"""Small copies of recipes, and their losses on the host.

A copy keeps the family, the strategy, recomputation, transports and all other options of its recipe. Numbers of layers,
widths, sequence length, vocabulary, ranks and microbatches are small, and data are synthetic.
"""

import concurrent.futures
import json
import os
import pathlib
import platform
import random
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools"))
import blas_kernels  # noqa: E402
import canonical  # noqa: E402
import recorded  # noqa: E402
import matrix  # noqa: E402, of the folder that the one before adds

STEPS = 5
STRATEGY = re.compile(r"^// strategy +(\S+)", re.MULTILINE)
PRECISIONS = {"fp32": "mixed_precision=fp32", "bf16": "mixed_precision=bf16_mixed"}
# Relative tolerances if libraries or processors differ from those of the record: BLIS and libm round differently.
NEAR = {"fp32": 1e-5, "bf16": 1e-2}
# Upper limits of sizes of experts and latent attention. 32 experts are four in each of DeepSeek-V3's groups.
SMALL = {"num_moe_experts": 32, "moe_ffn_hidden_size": 96, "moe_shared_expert_intermediate_size": 96, "q_lora_rank": 48,
         "kv_lora_rank": 32, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 16}
OVERLAY = """recipe small_copy {{
  model {{
    num_layers = {layers}
    hidden_size = 64
    num_attention_heads = 4
    num_query_groups = {groups}
    kv_channels = 16
    ffn_hidden_size = {ffn}
    seq_length = 32
    vocab_size = 257
  }}
  cluster {{ gpu = host  nodes = 1  gpus_per_node = {ranks} }}
  dataset synthetic {{}}
  checkpoint {{ pretrained_checkpoint = none }}
  scheduler {{ lr_warmup_iters = 2 }}
  train {{ micro_batch_size = {micro}  global_batch_size = {batch}  train_iters = {steps} }}
  logger {{ log_interval = 1 }}
  ddp {{ num_distributed_optimizer_instances = {instances} }}
}}
"""


def kernels(bin_):
    """The environment in which every processor that can uses BLIS' kernels for Haswell, since others round
    differently."""
    return blas_kernels.environments(pathlib.Path(bin_).resolve() / "shardc-run").get("haswell", {})


def arithmetic(bin_):
    """The processor, the C library and the version of BLIS, on which the last bits of losses depend too."""
    said = recorded.call(pathlib.Path(bin_) / "shardc-run", "--version", env={**os.environ, **kernels(bin_)})
    blas = re.search(r"BLIS [\d.]+ [(]\w+[)]", said)
    return f"{platform.machine()}, {' '.join(platform.libc_ver())}, {blas[0] if blas else 'no BLIS'}"


def overlay(plan):
    """The overlay that makes a recipe small, derived from its plan."""
    job, world = plan.job, plan.mesh.world()
    heads = job["model.num_attention_heads"]
    instances = min(dict(plan.mesh.axes).get("dp_outer", 1), 2)
    tensor = job.get("model.tensor_model_parallel_size", 1)
    pipeline = job.get("model.pipeline_model_parallel_size", 1)
    context = job.get("model.context_parallel_size", 1)
    experts = job.get("model.expert_model_parallel_size", 1)
    data, parts, stages, slices = world // (tensor * pipeline * context), min(tensor, 2), min(pipeline, 2), min(context, 2)
    ranks = stages * slices * (4 if instances > 1 or tensor * context * experts > 1 else min(world // pipeline, 4) if world <= 8 else 3)
    layers = min(job["model.num_layers"], 3 if pipeline == 1 else 4)
    micro = min(job["train.micro_batch_size"], 2)
    microbatches = min(job["train.global_batch_size"] // (job["train.micro_batch_size"] * data), 3)
    small = OVERLAY.format(layers=layers, groups=max(parts, 4 * job["model.num_query_groups"] // heads),
                           ranks=ranks, micro=micro, batch=micro * (ranks // (parts * stages * slices)) * microbatches,
                           steps=STEPS, instances=instances,
                           ffn=192 if job.get("peft.quantize") else 160)  # rows of whole blocks
    sizes = {"tensor_model_parallel_size": (tensor, parts), "pipeline_model_parallel_size": (pipeline, stages),
             "context_parallel_size": (context, slices), "expert_model_parallel_size": (experts, min(experts, 2))}
    said = "".join(f"{option} = {own} " for option, (whole, own) in sizes.items() if whole > 1)
    said += "".join(f"{option} = {min(job[f'model.{option}'], most)} " for option, most in SMALL.items() if job.get(f"model.{option}"))
    uneven = [option for option in ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage") if f"model.{option}" in job]
    said += "".join(f"{option} = none " for option in uneven)
    if job.get("model.recompute_granularity") == "auto":  # its choice depends on a device, and on other layers
        said += "recompute_granularity = none recompute_layers = none "
    if len(job.get("model.moe_layer_freq", [])) > 1:
        said += f"moe_layer_freq = {[0] + [1] * (layers - 1)} "
    if len(linear := job.get("model.linear_attention_freq", [])) > 1:
        said += f"linear_attention_freq = {[int(each) for each in linear[:layers]]} "
    if symbols := job.get("model.hybrid_layer_pattern"):
        kinds = "".join(dict.fromkeys(symbols))
        said += f'hybrid_layer_pattern = "{(kinds + symbols)[:layers]}" mamba_num_heads = 8 mamba_head_dim = 16 mamba_num_groups = 4 mamba_state_dim = 16 '
    if len(convs := job.get("model.short_conv_freq", [])) > 1:
        said += f"short_conv_freq = {[int(each) for each in convs[:layers]]} "
    return small.replace("model {", f"model {{ {said}", 1) if said else small


def head_of(bin_, recipe, options):
    """The text of a plan up to its roles: its job and mesh, without ops, which take long to read."""
    return recorded.compile_plan(bin_, recipe, options).partition("\nrole ")[0]


def small_plans(bin_, recipe, options, head, precisions):
    """{precision: the plan of the recipe's small copy}."""
    with tempfile.TemporaryDirectory() as folder:
        small = pathlib.Path(folder) / "small.recipe"
        small.write_text(overlay(canonical.read(head)), encoding="utf-8")
        return {precision: recorded.compile_plan(bin_, recipe, [*options, "--overlay", small, f"--set={PRECISIONS[precision]}"])
                for precision in precisions}


def features(name, head):
    """The features whose pairs of values must all occur when only some recipes are trained."""
    plan = canonical.read(head)
    return {"family": pathlib.PurePath(name).parts[0], "strategy": STRATEGY.search(head)[1],
            "axes": " ".join(axis for axis, size in plan.mesh.axes if size > 1),
            "recompute": str(plan.job.get("model.recompute_granularity", "none"))}


def some(heads):
    """{name of a recipe: precisions}, so that each pair of features occurs that occurs in any recipe and precision."""
    rows = {json.dumps(row, sort_keys=True): (name, row["precision"]) for name, head in heads.items()
            for row in ({**features(name, head), "precision": precision} for precision in PRECISIONS)}
    out = {}
    for row in matrix.covering([json.loads(row) for row in rows], random.Random(1)):
        name, precision = rows[json.dumps(row, sort_keys=True)]
        out.setdefault(name, []).append(precision)
    return out


def key(text):
    """A key that is equal for plans that train alike: the same ops over the same data."""
    plan = canonical.read(text)
    whole, _ = canonical.hashes(canonical.sections_of(plan, {}))
    job = sorted((path, setting) for path, setting in plan.job.items() if path.startswith(("dataset.", "rng.", "train.")))
    return f"{whole} {job}"


def run(bin_, text):
    """The loss and gradient norm of each step, as hexadecimal floating-point numbers."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "a.plan").write_text(text, encoding="utf-8")
        recorded.call(pathlib.Path(bin_).resolve() / "shardc-run", "a.plan", "--metrics=metrics.jsonl", cwd=folder,
                      env={**os.environ, **kernels(bin_)})
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [[float(each["loss"]).hex(), float(each["grad_norm"]).hex()] for each in records if "loss" in each]
    if len(steps) != STEPS:
        raise RuntimeError(f"{len(steps)} steps were logged instead of {STEPS}")
    return steps


def all_losses(bin_, jobs, whole=True):
    """Losses by recipe and precision, and the names of all recipes. Copies that train alike run once. Without `whole`,
    only some recipes run."""
    wanted, texts = {}, {}
    cases = {name: (recipe, options) for name, recipe, options in recorded.cases(bin_) if not name.startswith("small/")}
    heads = {name: head_of(bin_, *case) for name, case in cases.items()}
    chosen = dict.fromkeys(cases, PRECISIONS) if whole else some(heads)
    for name, precisions in chosen.items():
        for precision, text in small_plans(bin_, *cases[name], heads[name], precisions).items():
            wanted[name, precision] = key(text)
            texts.setdefault(wanted[name, precision], text)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        losses = dict(zip(texts, pool.map(lambda text: run(bin_, text), texts.values())))
    print(f"{len(wanted)} small copies, {len(texts)} of which differ")
    out = {}
    for (name, precision), which in wanted.items():
        out.setdefault(name, {})[precision] = losses[which]
    return out, cases.keys()


def is_near(was, found, relative):
    was, found = float.fromhex(was), float.fromhex(found)
    return abs(was - found) <= relative * max(abs(was), abs(found))


def compare(was, found, names, bitwise):
    """A line for each recipe whose losses differ, and for each recipe that is missing in the record or only there."""
    out = [f"{name}: " + ("is not recorded" if name in names else "does not compile any more") for name in sorted(was.keys() ^ names)]
    for name in found.keys() & was.keys():
        for precision in found[name]:
            for step, (before, after) in enumerate(zip(was[name][precision], found[name][precision], strict=True), 1):
                if before != after if bitwise else not is_near(before[0], after[0], NEAR[precision]):
                    out.append(f"{name}: {precision}, step {step}: loss and norm were {before}, are {after}")
                    break
    return sorted(out)
