"""The oracle's rules on latent attention and on rotary position embeddings: rows of its table.

`f` are the facts of a recipe (oracle.py).
"""


def rotated_odd(f):
    kind = f["model.position_embedding_type"]
    if kind not in ("rope", "yarn") or f.on("model.multi_latent_attention"):
        return False
    if not f.has("model.kv_channels"):
        return False
    rotated = int(f["model.kv_channels"] * (f.num("model.rotary_percent", 1.0) if kind == "rope" else 1))
    return rotated % 2 != 0 or rotated == 0


def ignored_by_rotation(f):
    """Whether an option is set that upstream ignores: in latent attention, or with YaRN."""
    heads = f.num("model.num_attention_heads", 1)
    own = (f.has("model.softmax_scale") or f.on("model.add_qkv_bias") or f.num("model.num_query_groups", heads) != heads or
           f.has("model.attention_chunk_size") or f.has("model.no_rope_freq") or f.on("model.qk_l2_norm"))
    both = (f.num("model.rotary_percent", 1.0) != 1 or f.has("model.seq_len_interpolation_factor") or
            f.on("model.rotary_interleaved") or f.on("model.rope_scaling"))
    return own or both if f.on("model.multi_latent_attention") else both and f["model.position_embedding_type"] == "yarn"


def no_layers(f, option):
    """Whether the option is neither a number nor a switch for each layer."""
    pattern = f[option]
    is_number = len(pattern) == 1 and pattern[0] > 0
    return not is_number and not (len(pattern) == f.num("model.num_layers", 1) and set(pattern) <= {0, 1})


def symbols(f):
    """The symbols of the pattern of layers, if there is one."""
    return f["model.hybrid_layer_pattern"] if f.has("model.hybrid_layer_pattern") else ""


def mamba_heads(f):
    return f.num("model.mamba_num_heads", 2 * f.num("model.hidden_size", 1) // f.num("model.mamba_head_dim", 64))


def all_full(pattern):
    """Whether a pattern of windows (a number or a list) gives no layer a window."""
    return bool(pattern) and set(pattern) == ({1} if len(pattern) == 1 else {0})


def is_yarn(f):
    return f["model.rope_type" if f.on("model.multi_latent_attention") else "model.position_embedding_type"] == "yarn"


def betas_turned(f):
    if not is_yarn(f):
        return False
    latent = f.on("model.multi_latent_attention")
    fast, slow = (f.num(f"model.{'' if latent else 'yarn_'}beta_{name}", other) for name, other in (("fast", 32), ("slow", 1)))
    return fast <= slow


RULES = {
    "rotary-even": rotated_odd,
    "latent-positions-unsupported": lambda f: f.on("model.multi_latent_attention") and
    f["model.position_embedding_type"] != "rope",
    "latent-rotary-even": lambda f: f.on("model.multi_latent_attention") and f["model.qk_pos_emb_head_dim"] % 2 != 0,
    "rotation-ignores": ignored_by_rotation,
    "latent-rope-fusion": lambda f: f.on("model.multi_latent_attention") and f.on("model.apply_rope_fusion") and
    f["model.rope_type"] != "yarn",
    "latent-window-unsupported": lambda f: f.on("model.multi_latent_attention") and f.has("model.window_size"),
    "no-rope-layers": lambda f: f.has("model.no_rope_freq") and no_layers(f, "model.no_rope_freq"),
    "window-layers": lambda f: f.has("model.window_attn_skip_freq") and no_layers(f, "model.window_attn_skip_freq"),
    "hybrid-layer-symbols": lambda f: bool(set(symbols(f)) - set("M*-E")),
    "hybrid-layer-count": lambda f: f.has("model.hybrid_layer_pattern") and len(symbols(f)) != f.num("model.num_layers", 1),
    "hybrid-layer-experts": lambda f: "E" in symbols(f) and not f.has("model.num_moe_experts"),
    "hybrid-model-pattern": lambda f: f.on("model.is_hybrid_model") and not f.has("model.hybrid_layer_pattern"),
    "hybrid-layer-lists": lambda f: f.has("model.hybrid_layer_pattern") and
    any(f.has(f"model.{name}_freq") for name in ("short_conv", "linear_attention", "moe_layer")),
    "mamba-heads": lambda f: f.has("model.hybrid_layer_pattern") and
    (mamba_heads(f) < 1 or mamba_heads(f) % f.num("model.mamba_num_groups", 8) != 0),
    "mamba-tensor-parallel": lambda f: f.has("model.hybrid_layer_pattern") and
    f.num("model.mamba_num_groups", 8) % f.num("model.tensor_model_parallel_size", 1) != 0,
    "mamba-context-parallel": lambda f: f.has("model.hybrid_layer_pattern") and f.num("model.context_parallel_size", 1) > 1,
    "linear-attention-layers": lambda f: f.has("model.linear_attention_freq") and no_layers(f, "model.linear_attention_freq"),
    "linear-attention-context-parallel": lambda f: f.has("model.linear_attention_freq") and f.num("model.context_parallel_size", 1) > 1,
    "short-conv-layers": lambda f: f.has("model.short_conv_freq") and no_layers(f, "model.short_conv_freq"),
    "short-conv-context-parallel": lambda f: f.has("model.short_conv_freq") and f.num("model.context_parallel_size", 1) > 1,
    "yarn-factor": lambda f: f["model.position_embedding_type"] == "yarn" and
    not f.has("model.yarn_rotary_scaling_factor"),
    "yarn-betas": betas_turned,
    "yarn-base": lambda f: is_yarn(f) and f.num("model.rotary_base", 10000) <= 1,
}
