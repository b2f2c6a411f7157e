"""Which options, words and pairs of choices the recipes of a walk cover."""

import collections
import itertools

from recipes import OPTIONS


def strategy_of(settings):
    def has(path):
        return settings.get(path) is True

    if has("dist.use_torch_fsdp2"):
        return "FSDP2"
    if any(map(has, ("dist.use_megatron_fsdp", "ddp.use_megatron_fsdp", "ddp.use_custom_fsdp"))):
        kind = settings.get("ddp.data_parallel_sharding_strategy", "optim_grads_params")
        if settings.get("ddp.num_distributed_optimizer_instances", 1) > 1:
            kind += ", instances" if settings.get("ddp.outer_dp_sharding_strategy", "no_shard") == "no_shard" else ", divided instances"
        return f"FSDP {kind}"
    if has("ddp.use_distributed_optimizer") or has("optimizer.use_distributed_optimizer"):
        return "distributed optimizer"
    return "DDP"


def precision_of(settings):
    preset = settings.get("mixed_precision")
    if preset:
        words = {**{path.split(".")[1]: value for path, value in settings.items() if path.startswith("mixed_precision.")}}
        if words.get("fp8") and "fp8" not in preset:
            return f"fp8 {words.get('fp8_recipe', settings.get('model.fp8_recipe', 'delayed'))}"
        return preset.replace("bf16_with_", "").replace("_mixed", "")
    if settings.get("model.fp8"):
        return f"fp8 {settings.get('model.fp8_recipe', 'delayed')}"
    return next((kind for kind in ("bf16", "fp16") if settings.get(f"model.{kind}") is True), "fp32")


def choices(settings, flags):
    """The recipe's choice on each of the axes on which most depends."""
    def several(path):
        return "yes" if settings.get(path, 1) > 1 else "no"

    def on(path):
        return "yes" if settings.get(path) is True else "no"

    stages = settings.get("model.pipeline_model_parallel_size", 1)
    schedule = settings.get("model.pipeline_schedule", "one_forward_one_backward") if stages > 1 else "none"
    if schedule == "one_forward_one_backward" and settings.get("model.virtual_pipeline_model_parallel_size", 1) > 1:
        schedule = "interleaved"
    return {"device": "host" if settings.get("cluster.gpu") == "host" else "GPU",
            "tensor": several("model.tensor_model_parallel_size"), "context": several("model.context_parallel_size"),
            "schedule": schedule, "sequence parallelism": on("model.sequence_parallel"), "strategy": strategy_of(settings),
            "precision": precision_of(settings), "recomputation": settings.get("model.recompute_granularity", "none"),
            "double buffer": on("ddp.fsdp_double_buffer"), "registered buffers": on("ddp.nccl_ub"),
            "asynchronous saves": on("checkpoint.async_save") if "checkpoint.save" in settings else "no",
            "passes": "others" if flags else "usual"}


def count(counts, settings, flags):
    """Adds an accepted recipe to the counts of coverage."""
    for path, value in settings.items():
        option = OPTIONS[path]
        if value != option.default:
            counts["off default", path] += 1
        for word in value if isinstance(value, list) else [value]:
            if option.words:
                counts["word", path, word] += 1
    chosen = choices(settings, flags)
    for one, other in itertools.combinations(chosen.items(), 2):
        counts["pair", *one, *other] += 1


def unreached(counts, pool):
    """Options of the pool that every accepted recipe has at the default."""
    return [path for path in pool if not counts["off default", path]]


def table(counts, pool):
    """A table: recipes that a rule still refuses, by rule; coverage by option; words and pairs that no recipe has."""
    refused = sorted((key[1] for key in counts if key[0] == "refused by"), key=lambda rule: counts["refused by", rule])
    lines = [f"{counts['refused by', rule]:7} refused by {rule}" for rule in refused]
    lines += [f"{counts['off default', path]:7} {path}" for path in sorted(pool, key=lambda path: counts["off default", path])]
    for path in pool:
        missing = [word for word in OPTIONS[path].words if not counts["word", path, word]]
        if missing:
            lines.append(f"no recipe has {path} = {', '.join(missing)}")
    values = collections.defaultdict(set)
    for key in counts:
        if key[0] == "pair":
            values[key[1]].add(key[2])
            values[key[3]].add(key[4])
    axes = list(values)
    for one, other in itertools.combinations(axes, 2):
        for a, b in itertools.product(sorted(values[one]), sorted(values[other])):
            if not counts["pair", one, a, other, b] and not counts["pair", other, b, one, a]:
                lines.append(f"no recipe has {one} {a} and {other} {b}")
    return lines
