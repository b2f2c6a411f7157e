"""When a run, its training or its evaluations would get no data."""


def is_zero(f, split):
    """Whether data that all splits share leave nothing for one of them."""
    parts = str(f["dataset.split"] or "").split(",")
    is_shared = f.has("dataset.data_path") or f.has("dataset.blend")
    return f["dataset.kind"] != "synthetic" and is_shared and split < len(parts) and parts[split].strip() == "0"


def evaluates_some(f):
    """An evaluation of all validation data has a rule of its own."""
    return f.has("validation.eval_interval") and not f.on("validation.full_validation") and f.num("validation.eval_iters", 100) > 0


RULES = {
    "data-path-missing": lambda f: f["dataset.kind"] != "synthetic" and not any(
        f[f"dataset.{name}"] for name in ("data_path", "blend", "train_data_path")),
    "no-training-data": lambda f: is_zero(f, 0),
    "no-validation-data": lambda f: evaluates_some(f) and (
        is_zero(f, 1) or f.has("dataset.train_data_path") and not f.has("dataset.valid_data_path")),
}
