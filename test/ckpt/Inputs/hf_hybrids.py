"""Shapes of the tensors of models whose layers differ in how they mix positions."""


def lfm2(tensors):
    """A short convolution in the second of two layers; other names than Llama's for everything else."""
    names = {"input_layernorm": "operator_norm", "post_attention_layernorm": "ffn_norm", "q_norm": "q_layernorm", "k_norm": "k_layernorm",
             "o_proj": "out_proj", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
             "model.norm": "model.embedding_norm"}
    hidden, at = tensors["model.norm.weight"][0], "model.layers.1.conv"
    for old, new in names.items():
        tensors = {name.replace(old, new): shape for name, shape in tensors.items() if name != "lm_head.weight" and ".1.self_attn" not in name}
    return tensors | {f"{at}.in_proj.weight": [3 * hidden, hidden], f"{at}.conv.weight": [hidden, 1, 3], f"{at}.out_proj.weight": [hidden, hidden]}


def mamba(at, hidden, inner):
    """A Mamba-2 mixer of 4 heads and of 2 groups of 3 channels."""
    shapes = {"in_proj.weight": [2 * inner + 12 + 4, hidden], "conv1d.weight": [inner + 12, 1, 4], "conv1d.bias": [inner + 12],
              "norm.weight": [inner], "out_proj.weight": [hidden, inner], "A_log": [4], "dt_bias": [4], "D": [4]}
    return {f"{at}.{name}": shape for name, shape in shapes.items()}


NEMOTRON_H = {"hybrid_override_pattern": "*M-E", "num_hidden_layers": 4, "mamba_num_heads": 4, "mamba_head_dim": 2, "n_groups": 2, "ssm_state_size": 3,
              "time_step_limit": [0.0, float("inf")], "mlp_hidden_act": "relu2", "n_routed_experts": 3, "moe_intermediate_size": 4,
              "moe_shared_expert_intermediate_size": 6}
MAMBA_ARGUMENTS = ["hybrid_layer_pattern = \"*M-E\"", "mamba_num_heads = 4", "mamba_head_dim = 2", "mamba_num_groups = 2", "mamba_state_dim = 3",
                   "activation_func = squared_relu", "position_embedding_type = none", "num_layers = 4", "moe_ffn_hidden_size = 4",
                   "moe_shared_expert_intermediate_size = 6", "moe_router_enable_expert_bias = true"]


def nemotron_h(tensors):
    """Attention, a Mamba-2 mixer with heads of 2 channels, a feed-forward layer, and 3 experts."""
    (hidden,), vocab = tensors["model.norm.weight"], tensors["lm_head.weight"][0]
    at, layers = "backbone.layers", {name: shape for name, shape in tensors.items() if ".0.self_attn" in name or "layers.1.mlp.up_proj" in name}
    made = {name.replace("model", "backbone").replace("self_attn", "mixer").replace("1.mlp", "2.mixer"): shape for name, shape in layers.items()}
    for expert, width in (("experts.0", 4), ("experts.1", 4), ("experts.2", 4), ("shared_experts", 6)):
        made |= {f"{at}.3.mixer.{expert}.up_proj.weight": [width, hidden], f"{at}.3.mixer.{expert}.down_proj.weight": [hidden, width]}
    ffn = tensors["model.layers.1.mlp.up_proj.weight"][0]
    return made | {"backbone.embeddings.weight": [vocab, hidden], "backbone.norm_f.weight": [hidden], "lm_head.weight": [vocab, hidden],
                   **{f"{at}.{layer}.norm.weight": [hidden] for layer in range(4)}, f"{at}.2.mixer.down_proj.weight": [hidden, ffn],
                   f"{at}.3.mixer.gate.weight": [3, hidden], **mamba(f"{at}.1.mixer", hidden, 8)}


PAIRS = {"mamba_n_heads": 4, "mamba_d_head": "auto", "mamba_n_groups": 2, "mamba_d_state": 3}
GRANITE = {**PAIRS, "num_local_experts": 3, "intermediate_size": 4, "shared_intermediate_size": 6, "residual_multiplier": 0.22,
           # The library prefers the first of the lists.
           "layers_block_type": ["attention", "mamba"], "layer_types": ["mamba", "attention"]}
PAIR_ARGUMENTS = ["num_layers = 4", "mamba_head_dim = 4", "mamba_num_heads = 4", "mamba_num_groups = 2", "mamba_state_dim = 3"]
GRANITE_ARGUMENTS = [*PAIR_ARGUMENTS, "hybrid_layer_pattern = \"*EME\"", "moe_ffn_hidden_size = 4", "moe_shared_expert_intermediate_size = 6",
                     "position_embedding_type = none", "residual_multiplier = 0.22"]
# Half of the two channels of a head is odd.
BAMBA = {**PAIRS, "attn_layer_indices": [0], "attention_bias": True, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}}
BAMBA_ARGUMENTS = [*PAIR_ARGUMENTS, "hybrid_layer_pattern = \"*-M-\"", "add_qkv_bias = true", "add_attn_proj_bias = true"]


def pairs(tensors):
    """A Mamba-2 mixer in place of attention in the second of two layers, with heads of 4 channels."""
    (hidden,) = tensors["model.norm.weight"]
    return {name: shape for name, shape in tensors.items() if ".1.self_attn" not in name} | mamba("model.layers.1.mamba", hidden, 16)


def granite(tensors):
    """The experts of a layer in one tensor, and a shared one."""
    (hidden,) = tensors["model.norm.weight"]
    shapes = {"block_sparse_moe.router.layer": [3, hidden], "block_sparse_moe.input_linear": [3, 8, hidden],
              "block_sparse_moe.output_linear": [3, hidden, 4], "shared_mlp.input_linear": [12, hidden], "shared_mlp.output_linear": [hidden, 6]}
    return {name: shape for name, shape in pairs(tensors).items() if ".mlp." not in name} | {
        f"model.layers.{layer}.{name}.weight": shape for layer in (0, 1) for name, shape in shapes.items()}


def bamba(tensors):
    """Other names than Llama's for the last norm, and for feed-forward layers and their norms."""
    names = {"model.norm": "model.final_layernorm", ".mlp.": ".feed_forward.", "post_attention_layernorm": "pre_ff_layernorm"}
    tensors = pairs(tensors)
    for old, new in names.items():
        tensors = {name.replace(old, new): shape for name, shape in tensors.items()}
    return tensors


QWEN3_NEXT = {"mlp_only_layers": [0, 1], "layer_types": ["full_attention", "linear_attention"], "moe_intermediate_size": 4,
              "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4, "linear_value_head_dim": 2}
ARGUMENTS = ["linear_attention_freq = [0, 1]", "experimental_attention_variant = gated_delta_net", "attention_output_gate = true",
             "linear_num_value_heads = 4", "layernorm_zero_centered_gamma = true", "rotary_percent = 0.25"]


def qwen3_next(tensors):
    """A gated delta net in the second of two layers: 2 key heads of 4 channels, 4 value heads of 2; a gate behind each query head."""
    hidden, at = tensors["model.norm.weight"][0], "model.layers.1.linear_attn"
    made = {name: [2 * shape[0], *shape[1:]] if name.endswith("q_proj.weight") else shape for name, shape in tensors.items()
            if ".1.self_attn" not in name}
    return made | {f"{at}.in_proj_qkvz.weight": [2 * (8 + 8), hidden], f"{at}.in_proj_ba.weight": [8, hidden], f"{at}.conv1d.weight": [24, 1, 4],
                   f"{at}.A_log": [4], f"{at}.dt_bias": [4], f"{at}.norm.weight": [2], f"{at}.out_proj.weight": [hidden, 8]}


WANTED = {"nemotron_h": MAMBA_ARGUMENTS, "granitemoehybrid": GRANITE_ARGUMENTS, "bamba": BAMBA_ARGUMENTS, "qwen3_next": ARGUMENTS,
          "lfm2": ["short_conv_freq = [0, 1]", "qk_layernorm = true", "rotary_base = 1000000.0"]}
