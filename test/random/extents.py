"""The extents that products in fp8 require, computed independently of the compiler."""


def has_odd_extent(f):
    """Whether an extent of a layer's products on a rank is not a multiple of what fp8 requires."""
    hidden, ffn, length, heads = (max(f.num(f"model.{name}", 1), 1) for name in ("hidden_size", "ffn_hidden_size", "seq_length", "num_attention_heads"))
    rows = max(f.num("train.micro_batch_size", 1), 1) * (length // f.cp)
    part = 32 if f["model.fp8_recipe"] == "mxfp8" else 16
    attention = latent_extents(f, rows, heads // f.tp) if f.on("model.multi_latent_attention") else grouped_extents(f, hidden, heads)
    return any(size % part for size in (rows, hidden, ffn // f.tp, *attention, *expert_extents(f, ffn)))


def grouped_extents(f, hidden, heads):
    groups = max(f.num("model.num_query_groups", 1), 1)
    head = max(f.num("model.kv_channels", hidden // heads), 1)
    return heads // f.tp * head, (heads + 2 * groups) * head // f.tp


def expert_extents(f, ffn):
    """The widths of a rank's part of an expert, and of its part of the shared expert."""
    if not f.has("model.num_moe_experts"):
        return ()
    own, shared = (f.num(f"model.moe_{name}", default) for name, default in (("ffn_hidden_size", ffn), ("shared_expert_intermediate_size", 0)))
    return own // f.etp, shared // f.tp


def latent_extents(f, rows, heads):
    """The extents of each product of latent attention on a rank with this many heads. Down projections read divided
    rows."""
    sizes = (("kv_lora_rank", 512), ("qk_head_dim", 128), ("qk_pos_emb_head_dim", 64), ("v_head_dim", 128), ("q_lora_rank", 0))
    kv, channels, rotated, values, queries = (f.num(f"model.{name}", default) for name, default in sizes)
    divided = rows // f.tp if f.on("model.sequence_parallel") else rows
    return kv, kv + rotated, heads * (channels + rotated), heads * (channels + values), heads * values, queries, divided
