"""The oracle's rules on how routers balance experts, among them Sinkhorn's algorithm."""


def is_asked(f):
    return f.has("model.num_moe_experts") and "sinkhorn" in f["model.moe_router_load_balancing_type"]


RULES = {
    "balance-without-weight": lambda f: f.has("model.num_moe_experts") and f.is_written("model.moe_router_load_balancing_type") and
    not f.is_written("model.moe_aux_loss_coeff") and "model.moe_aux_loss_coeff" not in f.origin and
    not {"sinkhorn", "none"} & set(f["model.moe_router_load_balancing_type"]),
    "sinkhorn-alone": lambda f: is_asked(f) and len(f["model.moe_router_load_balancing_type"]) != 1,
    "sinkhorn-aux-loss": lambda f: is_asked(f) and any(f["model.moe_aux_loss_coeff"]),
    "sinkhorn-capacity": lambda f: is_asked(f) and f.has("model.moe_expert_capacity_factor"),
    "sinkhorn-scores": lambda f: is_asked(f) and (
        f["model.moe_router_score_function"] != "softmax" or f.on("model.moe_router_pre_softmax") or f.has("model.moe_router_group_topk") or
        f.has("model.moe_router_topk_scaling_factor") or f.on("model.moe_router_enable_expert_bias")),
}
