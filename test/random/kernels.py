"""The oracle's rules on kernels: settings for which GPUs have no kernels or slow ones."""

import rotations
import stored

HEAD_MAX, ROW_MAX = 256, 16384


def on_gpu(f):
    return f["cluster.gpu"] not in (None, "host")


def latent(f):
    return f.on("model.multi_latent_attention")


def head(f):
    """The width of a head's keys."""
    if latent(f):
        return f.num("model.qk_head_dim", 128) + f.num("model.qk_pos_emb_head_dim", 64)
    return max(f.num("model.kv_channels", 1), 1)


def half(f):
    return f.on("model.bf16") or f.on("model.fp16")


def barred(f):
    """Whether some layer has attention that cuDNN does not support, in 16 bits."""
    return (f.num("model.attention_dropout") > 0 or stored.splits_documents(f) or
            f.has("model.attn_logit_softcapping") or
            f.has("model.attention_chunk_size") and f["model.attention_chunk_size"] < f["model.seq_length"] or
            f.has("model.window_size") and f["model.window_size"][:1] > [-1] and not rotations.all_full(f["model.window_attn_skip_freq"]) and
            f.cp > 1 and (not f.has("model.cp_comm_type") or any(way != "a2a" for way in f["model.cp_comm_type"])))


def values(f):
    return f.num("model.v_head_dim", 128) if latent(f) else 0


def has_long_rows(f):
    full_width = f.on("model.qk_layernorm") and f.on("model.qk_layernorm_full_width") and f.tp == 1
    return (f.num("model.hidden_size") > ROW_MAX or
            latent(f) and max(f.num("model.q_lora_rank"), f.num("model.kv_lora_rank", 512)) > ROW_MAX or
            full_width and f.num("model.num_attention_heads", 1) * max(f.num("model.kv_channels", 1), 1) > ROW_MAX)


ERRORS = {
    "cuda-kernel-limit": lambda f: on_gpu(f) and (max(head(f), values(f)) > HEAD_MAX or has_long_rows(f)),
}
WARNINGS = {
    "attention-on-cuda-cores": lambda f: on_gpu(f) and half(f) and barred(f) and max(head(f), values(f)) <= HEAD_MAX,
}
