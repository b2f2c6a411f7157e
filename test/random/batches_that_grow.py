"""The oracle's side of batches that grow: the size of each step, and the rules on train.rampup_batch_size."""


def ramp(f):
    """Start, increment and samples of a batch that grows, if they are three and at least 1."""
    numbers = f["train.rampup_batch_size"] or []
    return numbers if len(numbers) == 3 and min(numbers) >= 1 else None


def ramp_leads(f):
    """Whether there is a ramp that leads to the global batch size."""
    batch, numbers = f.num("train.global_batch_size", 1), ramp(f)
    return bool(numbers) and numbers[0] <= batch and (batch - numbers[0]) % numbers[1] == 0


def grows(f):
    """Whether there are steps whose sizes are those of a ramp."""
    is_counted = f.has("train.train_samples") and not f.has("train.train_iters")
    return ramp_leads(f) and is_counted and f["train.train_samples"] >= ramp(f)[0]


def batch_sizes(f):
    """Of a batch that grows, the size of each step, by Megatron-Core's calculator; else that of all."""
    batch = f.num("train.global_batch_size", 1)
    if not grows(f):
        return [batch]
    start, increment, over = ramp(f)
    sizes, consumed, increments = [], 0, (batch - start) // increment
    while True:
        size = batch if consumed > over or increments == 0 else start + int(consumed / (over / increments)) * increment
        if consumed + size > f["train.train_samples"]:
            return sizes
        sizes.append(size)
        consumed += size


def microbatches(f):
    """Of a rank in the steps of each size."""
    return [max(size // max(f["train.micro_batch_size"] * f.dp, 1), 1) for size in sorted(set(batch_sizes(f)))]


def steps_of(f):
    """Steps of the run; 0 if their number is not said."""
    if f.num("train.train_iters") > 0 or not f.has("train.train_samples"):
        return f.num("train.train_iters")
    if grows(f):
        return len(batch_sizes(f))
    return f["train.train_samples"] // max(f.num("train.global_batch_size", 1), 1)


RULES = {
    "rampup-form": lambda f: f.has("train.rampup_batch_size") and not ramp(f),
    "rampup-needs-samples": lambda f: f.has("train.rampup_batch_size") and
    (f.has("train.train_iters") or f.has("train.num_epochs")),
    "rampup-start": lambda f: ramp(f) and ramp(f)[0] > f["train.global_batch_size"],
    "rampup-increment": lambda f: ramp(f) and ramp(f)[0] <= f["train.global_batch_size"] and
    (f["train.global_batch_size"] - ramp(f)[0]) % ramp(f)[1] != 0,
    "rampup-divides": lambda f: f.world % (f.tp * f.pp * f.cp) == 0 and any(
        size % (f["train.micro_batch_size"] * f.dp) != 0 for size in batch_sizes(f) if size != f["train.global_batch_size"]),
    "rampup-sizes": lambda f: len(set(batch_sizes(f))) > 256,
    "samples-below-batch": lambda f: f.has("train.train_samples") and not f.has("train.train_iters") and
    f["train.train_samples"] < (ramp(f)[0] if ramp_leads(f) else f["train.global_batch_size"]),
}
