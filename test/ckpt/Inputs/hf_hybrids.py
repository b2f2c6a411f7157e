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


NEMOTRON_H = {"hybrid_override_pattern": "*M-", "num_hidden_layers": 3, "mamba_num_heads": 4, "mamba_head_dim": 2, "n_groups": 2, "ssm_state_size": 3,
              "time_step_limit": [0.0, float("inf")], "mlp_hidden_act": "relu2"}
MAMBA_ARGUMENTS = ["hybrid_layer_pattern = \"*M-\"", "mamba_num_heads = 4", "mamba_head_dim = 2", "mamba_num_groups = 2", "mamba_state_dim = 3",
                   "activation_func = squared_relu", "position_embedding_type = none", "num_layers = 3"]


def nemotron_h(tensors):
    """Attention, a Mamba-2 mixer of 4 heads of 2 channels and 2 groups of 3 channels, and a feed-forward layer."""
    (hidden,), vocab = tensors["model.norm.weight"], tensors["lm_head.weight"][0]
    at, layers = "backbone.layers", {name: shape for name, shape in tensors.items() if ".0.self_attn" in name or "layers.1.mlp.up_proj" in name}
    made = {name.replace("model", "backbone").replace("self_attn", "mixer").replace("1.mlp", "2.mixer"): shape for name, shape in layers.items()}
    inner, groups, ffn = 8, 6, tensors["model.layers.1.mlp.up_proj.weight"][0]
    return made | {"backbone.embeddings.weight": [vocab, hidden], "backbone.norm_f.weight": [hidden], "lm_head.weight": [vocab, hidden],
                   **{f"{at}.{layer}.norm.weight": [hidden] for layer in range(3)}, f"{at}.2.mixer.down_proj.weight": [hidden, ffn],
                   f"{at}.1.mixer.in_proj.weight": [2 * inner + 2 * groups + 4, hidden], f"{at}.1.mixer.conv1d.weight": [inner + 2 * groups, 1, 4],
                   f"{at}.1.mixer.conv1d.bias": [inner + 2 * groups], f"{at}.1.mixer.norm.weight": [inner],
                   f"{at}.1.mixer.out_proj.weight": [hidden, inner], **{f"{at}.1.mixer.{name}": [4] for name in ("A_log", "dt_bias", "D")}}


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
