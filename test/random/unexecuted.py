"""The oracle's side of option-not-executed: which of a recipe's options shardc does not execute, by docs/options.md."""

from recipes import OPTIONS

# Options that are not executed, and the option whose value an unset one gets.
FOLLOWED = {"dataset.seq_length": "model.seq_length", "scheduler.max_steps": "train.train_iters",
            "model.tensor_parallel_num_weight_shards": "model.tensor_model_parallel_size",
            "model.expert_tensor_parallel_num_weight_shards": "model.expert_tensor_parallel_size"}


def needed(f, path):
    """The only value of an option that shardc does not execute with which a run still follows the recipe."""
    if path in ("model.pipeline_dtype", "model.logit_dtype"):
        return "bf16" if f.on("model.bf16") else "fp16" if f.on("model.fp16") else "fp32"
    return f[FOLLOWED[path]] if path in FOLLOWED and f.has(FOLLOWED[path]) else OPTIONS[path].default


def holds(f, need):
    """Whether the recipe has a setting that an option needs: `a = x`, `b > 1`, or `c`, which is on or has a value. `a = none` is also
    a value that follows from other options."""
    path, equal, value = need.partition(" = ")
    if equal:
        return str(f[path]).lower() == value if f.has(path) and f.origin.get(path) != "derived" else value == "none"
    path, above, low = need.partition(" > ")
    return f.num(path) > int(low) if above else f.has(path) and f[path] is not False


def is_idle(f, path):
    """Whether the option lacks a setting that it needs."""
    return not all(any(holds(f, need) for need in needs) for needs in OPTIONS[path].needs)


def without_effect(f):
    """Whether the recipe sets an option to which nothing in it gives an effect."""
    return any(f.is_written(path) and f.has(path) and f[path] != OPTIONS[path].default and is_idle(f, path)
               for path in OPTIONS if not path.startswith("peft."))


def honoured(f, path):
    """Whether the option has no effect here, upstream also ignores it here, or shardc executes it here."""
    if is_idle(f, path):
        return True
    if f.fsdp and path in ("ddp.reduce_scatter_with_fp32_accumulation", "ddp.check_for_large_grads"):
        return True
    return path == "ddp.reduce_scatter_with_fp32_accumulation" and (
        f["cluster.gpu"] == "host" or f.on("model.deterministic_mode"))


def weight_shards(f):
    return f.num("model.tensor_parallel_num_weight_shards") > f.tp or \
        f.num("model.expert_tensor_parallel_num_weight_shards") > max(f.num("model.expert_tensor_parallel_size"), 1)


def not_executed(f):
    return any(option.status == "Not executed" and f.has(path) and f.origin.get(path) != "derived" and
               f[path] != needed(f, path) and not honoured(f, path) for path, option in OPTIONS.items())
