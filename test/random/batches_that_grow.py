"""The oracle's rules on batch sizes that change during a run: the size of each step, and the rules on the options."""

import re

SCHEDULE, UNITS = "train.step_batch_size_schedule", {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12, "": 1}


def schedule(f):
    """A schedule as {first sample: batch size}; None if the option is not a schedule."""
    steps = {}
    entries = (f[SCHEDULE] or "").upper().replace(",", " ").split()
    for entry in entries:
        match = re.fullmatch(r"([0-9.]+)([KMBT]?):([0-9.]+)([KMBT]?)", entry)
        if not match or int(float(match[3]) * UNITS[match[4]]) < 1:
            return None
        steps[int(float(match[1]) * UNITS[match[2]]) // f["model.seq_length"]] = int(float(match[3]) * UNITS[match[4]])
    return steps if len(steps) == len(entries) and 0 in steps else None


def derive(f):
    """Derives options from a schedule: the run's batch size is the last one, and evaluations use the smallest one."""
    steps = schedule(f)
    if steps:
        f.derive("train.global_batch_size", steps[max(steps)])
        f.derive("validation.eval_global_batch_size", f["train.micro_batch_size"] * f.dp)


def ramp(f):
    """The start, increment and samples of a ramp; None if they are not three numbers of at least 1."""
    numbers = f["train.rampup_batch_size"] or []
    return numbers if len(numbers) == 3 and min(numbers) >= 1 else None


def ramp_leads(f):
    """Whether there is a ramp whose increments lead exactly to the global batch size."""
    batch, numbers = f.num("train.global_batch_size", 1), ramp(f)
    return bool(numbers) and numbers[0] <= batch and (batch - numbers[0]) % numbers[1] == 0


def grows(f):
    """Whether the batch grows during the run: it has a schedule or a ramp, and counts enough samples."""
    is_counted = f.has("train.train_samples") and not f.has("train.train_iters")
    if schedule(f):
        return is_counted and f["train.train_samples"] >= schedule(f)[0]
    return ramp_leads(f) and is_counted and f["train.train_samples"] >= ramp(f)[0]


def batch_sizes(f):
    """The batch size of each step, by Megatron-Core's calculator; one size for all steps if the batch does not grow."""
    batch = f.num("train.global_batch_size", 1)
    if not grows(f):
        return [batch]
    steps = schedule(f)
    start, increment, over = ramp(f) if not steps else (1, 1, 1)
    sizes, consumed, increments = [], 0, (batch - start) // increment
    while True:
        if steps:
            size = steps[max(first for first in steps if first <= consumed)]
        else:
            size = batch if consumed > over or increments == 0 else start + int(consumed / (over / increments)) * increment
        if consumed + size > f["train.train_samples"]:
            return sizes
        sizes.append(size)
        consumed += size


def microbatches(f):
    """The microbatches of a rank, for steps of each size."""
    return [max(size // max(f["train.micro_batch_size"] * f.dp, 1), 1) for size in sorted(set(batch_sizes(f)))]


def steps_of(f):
    """The steps of the run; 0 if the recipe does not determine them."""
    if f.num("train.train_iters") > 0 or not f.has("train.train_samples"):
        return f.num("train.train_iters")
    if grows(f):
        return len(batch_sizes(f))
    return f["train.train_samples"] // max(f.num("train.global_batch_size", 1), 1)


RULES = {
    "rampup-form": lambda f: f.has("train.rampup_batch_size") and not ramp(f),
    "rampup-needs-samples": lambda f: (f.has("train.rampup_batch_size") or f.has(SCHEDULE)) and
    (f.has("train.train_iters") or f.has("train.num_epochs")),
    "rampup-start": lambda f: ramp(f) and ramp(f)[0] > f["train.global_batch_size"],
    "rampup-increment": lambda f: ramp(f) and ramp(f)[0] <= f["train.global_batch_size"] and
    (f["train.global_batch_size"] - ramp(f)[0]) % ramp(f)[1] != 0,
    "rampup-divides": lambda f: f.world % (f.tp * f.pp * f.cp) == 0 and any(
        size % (f["train.micro_batch_size"] * f.dp) != 0 for size in batch_sizes(f) if size != f["train.global_batch_size"]),
    "rampup-sizes": lambda f: len(set(batch_sizes(f))) > 256,
    "step-schedule-form": lambda f: f.has(SCHEDULE) and not schedule(f),
    "step-schedule-alone": lambda f: f.has(SCHEDULE) and (
        f.has("train.rampup_batch_size") or f.origin.get("train.global_batch_size") != "derived"),
    "samples-below-batch": lambda f: f.has("train.train_samples") and not f.has("train.train_iters") and
    f["train.train_samples"] < (schedule(f)[0] if schedule(f) else ramp(f)[0] if ramp_leads(f) else
                                f["train.global_batch_size"]),
}
