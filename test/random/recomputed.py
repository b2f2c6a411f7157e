"""Which ops a recipe's settings recompute or move to the host: a part of oracle.py."""

RECOMPUTED = {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "gdn_norm_out", "gdp_in_proj",
              "gdp_qkv", "mhc"}
MOVED = {"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "mlp_act", "expert_fc1", "moe_act", "fused_group_mlp", "gdp_qkv"}


def recomputed_layers(f, path="model.recompute_layers", whole="full", parts=frozenset(RECOMPUTED)):
    """The parts of each layer that are recomputed, as sets of words; None if the entries are malformed."""
    layers = []
    for entry in f[path]:
        count, star, words = entry.rpartition("*")
        words = words.split("+")
        wrong = len(set(words)) < len(words) or words not in ([whole], ["none"]) and not set(words) <= parts
        if star and not (count.isdigit() and int(count) > 0) or wrong:
            return None
        layers += [set(words)] * int(count or 1)
    return layers if len(layers) == f.num("model.num_layers") else None


def moved_layers(f):
    """The same of what lies on the host between forward and backward pass."""
    return recomputed_layers(f, "model.offload_layers", "all", MOVED)


def selective(f, module):
    if f["model.recompute_granularity"] == "auto" and f.has("model.recompute_layers"):
        return any(module in layer for layer in recomputed_layers(f) or [])
    return f["model.recompute_granularity"] == "selective" and module in (f["model.recompute_modules"] or [])


def module_missing(f):
    return (selective(f, "moe_act") and not f.on("model.moe_grouped_gemm") or
            selective(f, "mla_up_proj") and not f.on("model.multi_latent_attention") or
            selective(f, "moe") and not f.has("model.num_moe_experts") or
            selective(f, "shared_experts") and not f.has("model.moe_shared_expert_intermediate_size"))
