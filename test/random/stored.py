"""The oracle's side of options that come from a checkpoint, of which random recipes have none."""


def is_missing(f):
    """Whether options are to come from a checkpoint that the recipe names."""
    is_loaded = f.has("checkpoint.load") or f.has("checkpoint.pretrained_checkpoint")
    return (f.on("checkpoint.use_checkpoint_args") and is_loaded) or (
        f.on("scheduler.use_checkpoint_opt_param_scheduler") and f.has("checkpoint.load"))


RULES = {
    "checkpoint-settings-missing": is_missing,
    "schedule-from-both": lambda f: f.on("scheduler.override_opt_param_scheduler") and
    f.on("scheduler.use_checkpoint_opt_param_scheduler"),
}
