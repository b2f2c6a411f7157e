"""The oracle's rules on pipelines: the layers of each stage, schedules, and placements of chunks of layers."""

from batches_that_grow import microbatches

FIRST, LAST = "model.num_layers_in_first_pipeline_stage", "model.num_layers_in_last_pipeline_stage"
COUNTED = "model.account_for_embedding_in_pipeline_split", "model.account_for_loss_in_pipeline_split"


def uneven(f):
    if f.pp > 1 and f.has("model.num_layers") and f["model.pipeline_split"] == "balanced":
        return f["model.num_layers"] < f.pp * f.vp - 1
    if not f.has(FIRST) and not f.has(LAST):
        return False
    layers, stages = f.num("model.num_layers", 1) - f.num(FIRST) - f.num(LAST), f.pp - f.has(FIRST) - f.has(LAST)
    return not (layers >= 0 and layers % stages == 0 if stages > 0 else layers == 0 and stages == 0)


def empty_stage(f):
    """Whether an inner chunk has no layer, or a stage has unequal chunks. recipes.py draws no layouts."""
    if f.pp == 1 or not f.has("model.num_layers") or not (f.has(FIRST) or f.has(LAST)) or uneven(f):
        return False
    stages = f.pp - f.has(FIRST) - f.has(LAST)
    each = (f["model.num_layers"] - f.num(FIRST) - f.num(LAST)) // stages if stages > 0 else 0
    return any(n % f.vp != 0 for n in (f.num(FIRST), f.num(LAST), each)) or (each == 0 and stages > 0 and f.pp * f.vp > 2)


def divided_twice(f):
    """Whether stages are balanced by time and also divided by hand."""
    by_hand = any(map(f.has, (FIRST, LAST, "model.pipeline_model_parallel_layout"))) or any(map(f.on, COUNTED))
    return f["model.pipeline_split"] == "balanced" and by_hand


def split_evenly(f):
    if f["model.pipeline_split"] == "balanced" or f.has(FIRST) or f.has(LAST):
        return True
    return not f.has("model.num_layers") or (f["model.num_layers"] + sum(map(f.on, COUNTED))) % (f.pp * f.vp) == 0


def in_turns(f):
    return f["model.pipeline_schedule"] in ("one_forward_one_backward", "interleaved")


def in_v(f):
    return f["model.pipeline_schedule"] in ("zb_v", "dual_pipe_v")


def placed(f, text):
    """The stage of each chunk of layers; empty if the text is none."""
    chunks, stages = range(f.pp * f.vp), set(range(f.pp))
    if text == "looped":
        return [chunk % f.pp for chunk in chunks]
    if text == "v":
        return [f.pp - 1 - chunk % f.pp if chunk // f.pp % 2 else chunk % f.pp for chunk in chunks]
    parts = [part.strip() for part in text.split(",")]
    stage_of = [int(part) for part in parts] if all(part.isdigit() for part in parts) else []
    return stage_of if len(stage_of) == len(chunks) and set(stage_of) == stages else []


def misplaced(f):
    found = placed(f, f["model.pipeline_placement"]) if f.has("model.pipeline_placement") else []
    return f["model.pipeline_schedule"] not in ("looped_bfs", "zero_bubble_greedy") and found and found != placed(f, "v" if in_v(f) else "looped")


def group(f):
    return f.num("model.microbatch_group_size_per_vp_stage", f.pp)


RULES = {
    "stages-divide-layers": lambda f: not split_evenly(f),
    "uneven-stages": uneven,
    "virtual-stages-alone": lambda f: f.vp > 1 and f.pp == 1,
    "interleaved-microbatches": lambda f: f.vp > 1 and in_turns(f) and any(
        count > group(f) and 0 < count % group(f) < f.pp for count in microbatches(f)),
    "microbatch-group-size": lambda f: f.has("model.microbatch_group_size_per_vp_stage") and (
        f.vp == 1 or not f.pp <= group(f) <= min(microbatches(f))),
    "interleaved-needs-chunks": lambda f: f["model.pipeline_schedule"] == "interleaved" and (f.pp == 1 or f.vp == 1),
    "pipeline-placement-unreadable": lambda f: f.has("model.pipeline_placement") and not placed(f, f["model.pipeline_placement"]),
    "pipeline-placement-needs": misplaced,
    "v-schedule-needs-two-chunks": lambda f: in_v(f) and (f.pp == 1 or f.vp != 2),
    "dual-pipe-v-needs-microbatches": lambda f: f["model.pipeline_schedule"] == "dual_pipe_v" and
    min(microbatches(f)) < 2 * f.pp,
    "zero-bubble-needs-stages": lambda f: f["model.pipeline_schedule"] == "zero_bubble" and (f.pp == 1 or f.vp > 1),
    "pipeline-stages": empty_stage,
    "balanced-stages-divided": divided_twice,
}
