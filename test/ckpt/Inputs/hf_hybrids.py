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
