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
