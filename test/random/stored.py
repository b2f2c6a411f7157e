"""The oracle's rules on options that come from a checkpoint, which random recipes lack, and on validation sets."""


def is_missing(f):
    """Whether options are to come from a checkpoint that the recipe names."""
    is_loaded = f.has("checkpoint.load") or f.has("checkpoint.pretrained_checkpoint")
    return (f.on("checkpoint.use_checkpoint_args") and is_loaded) or (
        f.on("scheduler.use_checkpoint_opt_param_scheduler") and f.has("checkpoint.load"))


def splits_documents(f):
    """Whether tokens attend only within their document."""
    return f["dataset.kind"] == "packed" or f.on("dataset.reset_attention_mask") or (
        f.on("dataset.inter_document_masking") and f["dataset.kind"] not in (None, "synthetic"))


def sets(f):
    """The validation sets, if there are several."""
    return f["dataset.valid_data_path"] if f.on("validation.multiple_validation_sets") else None


def is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


RULES = {
    "validation-sets-together": lambda f: sets(f) is not None and f.on("validation.full_validation"),
    "validation-sets-weighted": lambda f: any(is_number(path) for path in sets(f) or []),
    "validation-set-names": lambda f: sets(f) is not None and f.has("validation.validation_set_names") and
    len(f["validation.validation_set_names"]) != len(sets(f)),
    "checkpoint-settings-missing": is_missing,
    "schedule-from-both": lambda f: f.on("scheduler.override_opt_param_scheduler") and
    f.on("scheduler.use_checkpoint_opt_param_scheduler"),
}
