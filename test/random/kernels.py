"""The oracle's rules on kernels: settings for which GPUs have no kernels."""

HEAD_MAX, ROW_MAX = 256, 16384
# Bytes of shared memory of a block, where it is less than on the A100.
SHARED_BYTES = dict.fromkeys(
    ("rtx3090", "a10g", "a10", "a6000", "a40", "l40s", "rtx4090", "rtx6000ada", "l4", "rtx5090", "rtxpro6000", "gb10"), 99 << 10)


def on_gpu(f):
    return f["cluster.gpu"] not in (None, "host")


def latent(f):
    return f.on("model.multi_latent_attention")


def head(f):
    """The width of a head's keys."""
    if latent(f):
        return f.num("model.qk_head_dim", 128) + f.num("model.qk_pos_emb_head_dim", 64)
    return max(f.num("model.kv_channels", 1), 1)


def values(f):
    return f.num("model.v_head_dim", 128) if latent(f) else 0


def has_long_rows(f):
    full_width = f.on("model.qk_layernorm") and f.on("model.qk_layernorm_full_width") and f.tp == 1
    return (f.num("model.hidden_size") > ROW_MAX or
            latent(f) and max(f.num("model.q_lora_rank"), f.num("model.kv_lora_rank", 512)) > ROW_MAX or
            full_width and f.num("model.num_attention_heads", 1) * max(f.num("model.kv_channels", 1), 1) > ROW_MAX)


def has_wide_heads(f):
    """The gradients' tiles of 32 rows of q, k, v and dO, one number wider than the head, in fp32; cuDNN has none as wide."""
    wide, other = head(f), values(f) or head(f)
    fits = 32 * 4 * 2 * (wide + 1 + other + 1) <= SHARED_BYTES.get(f["cluster.gpu"], 163 << 10)
    return max(wide, other) > HEAD_MAX or not fits


ERRORS = {
    "cuda-kernel-limit": lambda f: on_gpu(f) and (has_wide_heads(f) or has_long_rows(f)),
}
