"""The oracle's rules on Muon: which options exclude it."""


def is_asked(f):
    return f["optimizer.optimizer"] in ("muon", "dist_muon")


def has_parts(f):
    """Whether ranks hold parts of matrices."""
    return f.tp > 1 or f.num("model.expert_tensor_parallel_size", f.tp) > 1


def is_blockwise(f):
    return f["optimizer.muon_tp_mode"] == "blockwise"


RULES = {
    "muon-fp16": lambda f: is_asked(f) and f.on("model.fp16"),
    "muon-cubic-steps": lambda f: is_asked(f) and f["optimizer.muon_coefficient_type"] == "cubic5" and
    f["optimizer.muon_num_ns_steps"] != 5,
}
WARNINGS = {"muon-blockwise": lambda f: is_asked(f) and has_parts(f) and is_blockwise(f)}
