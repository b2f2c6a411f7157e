"""Models in the style of GPT-2 and Llama, as functions of a dictionary of parameters with Megatron-Core's names and row
layouts. Letters: B batch, S sequence, H hidden, N query heads, G key/value heads, D head size. In fp64 and fp32,
everything is computed in that type. In bf16 there are two forms: `rounded` computes each op in fp32 and rounds its
result, as shardc's kernels do; `native` uses PyTorch's bf16 ops. Both are correct, so the distance between them shows
how exact bf16 can be.

In fp64 and fp32 everything is computed in that type. In bf16 two ways are known: `rounded` computes
each op in fp32 and rounds its result, as shardc's kernels do; `native` leaves it to PyTorch's bf16
ops. Both are right, so the distance between them says what bf16 can promise.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

from . import transformer
from .philox import normals


def parameter_shapes(case):
    """{name: shape}, in the order of Megatron-Core's model."""
    h, head = case.hidden, case.head
    shapes = {"embedding.word_embeddings.weight": (case.padded_vocab, h)}
    if case.family == "gpt":
        shapes["embedding.position_embeddings.weight"] = (case.seq_length, h)

    def norm(name, size=h):
        shapes[f"{name}weight"] = (size,)
        if case.layer_norm:
            shapes[f"{name}bias"] = (size,)

    def adapter(name, rows, cols, end=""):
        if columns := case.adapter_columns(name):
            shapes[f"{name}.adapter.linear_in.weight{end}"] = (columns, cols)
            shapes[f"{name}.adapter.linear_out.weight{end}"] = (rows, case.rank)
            if case.lora_bias:
                shapes[f"{name}.adapter.linear_out.bias{end}"] = (rows,)
            if case.dora:
                shapes[f"{name}.adapter.weight_magnitude{end}"] = (rows,)

    def linear(name, rows, cols):
        shapes[f"{name}.weight"] = (rows, cols)
        if case.has_bias:
            shapes[f"{name}.bias"] = (rows,)
        adapter(name, rows, cols)

    def of_expert(name, expert, rows, cols):
        shapes[f"{name}.weight{expert}"] = (rows, cols)
        if case.has_bias:
            shapes[f"{name}.bias{expert}"] = (rows,)
        adapter(name, rows, cols, expert)

    def rank(name, size, beside, rows):
        linear(f"{name}_down_proj", size + beside, h)
        norm(f"{name}_up_proj.layer_norm_", size)
        linear(f"{name}_up_proj", rows, size)

    def latent(layer):
        norm(f"{layer}input_layernorm.")
        stem = f"{layer}self_attention.linear_"
        queries = case.heads * (case.plain + case.rotated)
        if case.query_rank:
            rank(f"{stem}q", case.query_rank, 0, queries)
        else:
            linear(f"{stem}q_proj", queries, h)
        rank(f"{stem}kv", case.key_rank, case.rotated, case.heads * (case.plain + case.values))
        linear(f"{stem}proj", h, case.heads * case.values)

    def add_experts(layer):
        norm(f"{layer}pre_mlp_layernorm.")
        linear(f"{layer}mlp.router", case.experts, h)
        for e in range(case.experts):
            of_expert(f"{layer}mlp.experts.linear_fc1", e, 2 * case.ffn, h)
            of_expert(f"{layer}mlp.experts.linear_fc2", e, h, case.ffn)
        if case.shared:
            linear(f"{layer}mlp.shared_experts.linear_fc1", 2 * case.shared, h)
            linear(f"{layer}mlp.shared_experts.linear_fc2", h, case.shared)
        if case.has_gate:
            shapes[f"{layer}mlp.shared_experts.gate_weight"] = (1, h)

    def conv(layer):
        norm(f"{layer}short_conv.in_proj.layer_norm_")
        linear(f"{layer}short_conv.in_proj", 3 * h, h)
        shapes[f"{layer}short_conv.conv.weight"] = (h, case.taps)
        linear(f"{layer}short_conv.out_proj", h, h)

    def add_layer(layer, has_experts, has_conv=False):
        if case.latent:
            latent(layer)
        elif has_conv:
            conv(layer)
        else:
            norm(f"{layer}self_attention.linear_qkv.layer_norm_")
            linear(f"{layer}self_attention.linear_qkv", (case.heads + 2 * case.groups) * head, h)
            if case.has_qkv_bias:
                shapes[f"{layer}self_attention.linear_qkv.bias"] = ((case.heads + 2 * case.groups) * head,)
            if case.qk_norm:
                norm(f"{layer}self_attention.q_layernorm.", head)
                norm(f"{layer}self_attention.k_layernorm.", head)
            if case.sinks:
                shapes[f"{layer}self_attention.core_attention.softmax_offset"] = (case.heads,)
            linear(f"{layer}self_attention.linear_proj", h, case.heads * head)
        if case.gemma:
            norm(f"{layer}post_self_attn_layernorm.")
        if has_experts:
            return add_experts(layer)
        ffn = case.dense_ffn or case.ffn
        norm(f"{layer}mlp.linear_fc1.layer_norm_")
        linear(f"{layer}mlp.linear_fc1", 2 * ffn if case.gated else ffn, h)
        linear(f"{layer}mlp.linear_fc2", h, ffn)
        if case.gemma:
            norm(f"{layer}post_mlp_layernorm.")

    for i in range(case.num_layers):
        add_layer(f"decoder.layers.{i}.", case.has_experts(i), i in case.convs)
    norm("decoder.final_layernorm.")
    if not case.tied:
        shapes["output_layer.weight"] = (case.padded_vocab, h)
    for i in range(case.predictions):
        block = f"mtp.layers.{i}."
        norm(f"{block}enorm.")
        norm(f"{block}hnorm.")
        shapes[f"{block}eh_proj.weight"] = (h, 2 * h)
        add_layer(f"{block}transformer_layer.", case.has_experts(case.num_layers - 1))
        norm(f"{block}final_layernorm.")
    return shapes


def initial_values(case):
    """{name: float32 array}; the same for every precision."""
    values = {}
    shapes = parameter_shapes(case)

    def deviation(name):
        scaled = any(end in name for end in ("linear_proj.weight", "linear_fc2.weight", "out_proj.weight"))
        return case.init_std / math.sqrt(2 * case.num_layers) if scaled else case.init_std

    for name, shape in shapes.items():
        is_drawn = len(shape) > 1 or name.endswith("router.bias")
        if name.rstrip("0123456789").endswith(("bias", "softmax_offset")) and not is_drawn:
            values[name] = np.zeros(shape, np.float32)
        elif name.endswith(".weight_magnitude"):  # the norm of a row on average
            weight = name.replace(".adapter.weight_magnitude", ".weight")
            values[name] = np.full(shape, deviation(weight) * math.sqrt(shapes[weight][1]), np.float32)
        elif not is_drawn:
            values[name] = np.full(shape, 0 if case.zero_centered else 1, np.float32)
        elif ".adapter.linear_out." in name:
            values[name] = np.zeros(shape, np.float32)
        elif ".adapter.linear_in." in name: # from the fan-in and fan-out of one part
            std = math.sqrt(2 / (shape[1] + case.rank))
            drawn = normals(case.seed, name, math.prod(shape)).astype(np.float64)
            values[name] = (std * drawn).astype(np.float32).reshape(shape)
        else:
            std = deviation(name)
            drawn = normals(case.seed, name, math.prod(shape)).astype(np.float64)
            values[name] = (std * drawn).astype(np.float32).reshape(shape)
            if case.quantized and ".linear_" in name:
                values[name] = as_quantized(values[name])
    return values


def as_quantized(weight):
    """The values with which bitsandbytes' Linear4bit multiplies in place of the weight."""
    import bitsandbytes.functional as bnb

    return bnb.dequantize_4bit(*bnb.quantize_4bit(torch.from_numpy(weight), blocksize=64, quant_type="nf4")).numpy()


class Numerics:
    """How ops convert their operands before computing, and round their results."""

    module = None  # of transformers, with products of its own

    def __init__(self, dtype, native=False):
        self.dtype, self.native = dtype, native
        self.inner = torch.float64 if dtype == torch.float64 else torch.float32

    def up(self, x):
        return x.to(self.inner)

    def down(self, x):
        return x.to(self.dtype)

    def linear(self, x, p, name):
        w, b = p[f"{name}.weight"], p.get(f"{name}.bias")
        if self.native:
            return F.linear(x, w, b)
        y = self.up(x) @ self.up(w).T
        return self.down(y if b is None else y + self.up(b))

    def norm(self, x, p, name, case):
        w, b = p[f"{name}weight"], p.get(f"{name}bias")
        if self.native:
            shape = (case.hidden,)
            return (
                F.rms_norm(x, shape, w, case.eps)
                if b is None
                else F.layer_norm(x, shape, w, b, case.eps)
            )
        x = self.up(x)
        if b is None:
            return self.down(
                x * torch.rsqrt(x.square().mean(-1, keepdim=True) + case.eps) * self.up(w)
            )
        centered = x - x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(centered.square().mean(-1, keepdim=True) + case.eps)
        return self.down(centered * rstd * self.up(w) + self.up(b))

    def activation(self, x, case):
        if case.family == "gpt":
            return F.gelu(x) if self.native else self.down(F.gelu(self.up(x)))
        gate, up = x.chunk(2, dim=-1)
        if self.native:
            return F.silu(gate) * up
        return self.down(F.silu(self.up(gate)) * self.up(up))

    def rope(self, x, case):
        """Rotary positions: rotates the two halves of each head of x[B,S,heads,D]."""
        seq, dim = x.shape[1], x.shape[-1]
        frequency = case.rotary_base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angle = torch.outer(torch.arange(seq, dtype=torch.float64), frequency)
        angle = torch.cat([angle, angle], -1)[None, :, None, :]
        cos, sin = angle.cos().to(self.inner), angle.sin().to(self.inner)
        y = self.up(x)
        first, second = y.chunk(2, dim=-1)
        return self.down(y * cos + torch.cat([-second, first], -1) * sin)

    def attention(self, q, k, v, allowed):
        """q[B,S,N,D], k, v[B,S,G,D], allowed[B,S,S] -> [B,S,N*D]."""
        repeat = q.shape[2] // k.shape[2]
        q, k, v = (
            t.transpose(1, 2) for t in (q, *(t.repeat_interleave(repeat, 2) for t in (k, v)))
        )
        if self.native:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed[:, None])
        else:
            scores = self.up(q) @ self.up(k).transpose(-1, -2) / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(~allowed[:, None], -math.inf)
            out = self.down(scores.softmax(-1) @ self.up(v))
        return out.transpose(1, 2).flatten(2)


def attend(x, p, layer, case, numerics, allowed):
    batch, seq, _ = x.shape
    head, queries = case.hidden // case.heads, case.heads // case.groups
    qkv = numerics.linear(x, p, f"{layer}self_attention.linear_qkv")
    qkv = qkv.view(batch, seq, case.groups, queries + 2, head)
    q = qkv[..., :queries, :].reshape(batch, seq, case.heads, head)
    k, v = qkv[..., queries, :], qkv[..., queries + 1, :]
    if case.family == "llama":
        q, k = numerics.rope(q, case), numerics.rope(k, case)
    return numerics.linear(
        numerics.attention(q, k, v, allowed), p, f"{layer}self_attention.linear_proj"
    )


def allowed_positions(starts):
    """[B,S,S]: whether a token may attend to another one."""
    seq = torch.arange(starts.shape[1])
    return (seq[None, None, :] <= seq[None, :, None]) & (seq[None, None, :] >= starts[:, :, None])


def embed(case, p, tokens, positions):
    x = p["embedding.word_embeddings.weight"][tokens]
    if case.family == "gpt":
        x = x + p["embedding.position_embeddings.weight"][positions]
    return x


def apply_layer(case, p, layer, numerics, x, allowed):
    """Applies a layer. `layer` is the prefix of its parameters' names."""
    y = numerics.norm(x, p, f"{layer}self_attention.linear_qkv.layer_norm_", case)
    x = x + attend(y, p, layer, case, numerics, allowed)
    y = numerics.norm(x, p, f"{layer}mlp.linear_fc1.layer_norm_", case)
    y = numerics.activation(numerics.linear(y, p, f"{layer}mlp.linear_fc1"), case)
    return x + numerics.linear(y, p, f"{layer}mlp.linear_fc2")


def losses(case, p, numerics, tokens, labels, mask, positions, starts):
    """Masked losses of all tokens, in at least fp32; then the losses and masks of each multi-token prediction."""
    if case.module:
        logits = transformer.logits(case, p, numerics.dtype, tokens, numerics.module)
        return masked_losses(case, numerics, logits, labels, mask), []
    allowed = allowed_positions(starts)
    x = embed(case, p, tokens, positions)
    for i in range(case.num_layers):
        x = apply_layer(case, p, f"decoder.layers.{i}.", numerics, x, allowed)
    x = numerics.norm(x, p, "decoder.final_layernorm.", case)
    own = losses_of(case, p, numerics, x, labels, mask)
    return own, further_losses(case, p, numerics, x, tokens, labels, mask, positions, allowed)


def ahead(x):
    """The value one position later in each sequence, and 0 at its end: Megatron-Core's roll_tensor."""
    y = torch.roll(x, -1, -1)
    y[:, -1] = 0
    return y


def further_losses(case, p, numerics, x, tokens, labels, mask, positions, allowed):
    """Losses and mask of each multi-token prediction, as in Megatron-Core's multi_token_prediction.py."""
    found = []
    for i in range(case.predictions):
        block = f"mtp.layers.{i}."
        tokens, labels, mask, positions = map(ahead, (tokens, labels, mask, positions))
        embedded = numerics.norm(embed(case, p, tokens, positions), p, f"{block}enorm.", case)
        hidden = numerics.norm(x, p, f"{block}hnorm.", case)
        x = numerics.linear(torch.cat((embedded, hidden), -1), p, f"{block}eh_proj")
        x = apply_layer(case, p, f"{block}transformer_layer.", numerics, x, allowed)
        x = numerics.norm(x, p, f"{block}final_layernorm.", case)
        found.append((losses_of(case, p, numerics, x, labels, mask), mask))
    return found


def losses_of(case, p, numerics, x, labels, mask):
    """Masked losses from the output of the last norm."""
    head = p["embedding.word_embeddings.weight" if case.tied else "output_layer.weight"]
    logits = numerics.linear(x, {"head.weight": head}, "head")
    return masked_losses(case, numerics, logits, labels, mask)


def masked_losses(case, numerics, logits, labels, mask):
    # Padded columns are not tokens.
    logits = numerics.up(logits)[..., : case.vocab_size]
    return mask * F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(
        mask
    )
