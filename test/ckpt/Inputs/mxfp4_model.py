"""A gpt-oss model whose experts are packed in mxfp4. Its values follow from the names of tensors. Needs no package."""

import json
import random
import struct

EXPERTS, HIDDEN, FFN, HEADS, GROUPS, HEAD, VOCAB = 2, 32, 64, 4, 2, 8, 10
LAYER = "model.layers.0"
CONFIG = {"model_type": "gpt_oss", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_attention_heads": HEADS,
          "num_key_value_heads": GROUPS, "head_dim": HEAD, "vocab_size": VOCAB, "num_hidden_layers": 1, "num_local_experts": EXPERTS,
          "num_experts_per_tok": 2, "layer_types": ["full_attention"], "torch_dtype": "bfloat16", "pad_token_id": None,
          "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens", "lm_head"]}}
PLAIN = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN], "lm_head.weight": [VOCAB, HIDDEN],
         f"{LAYER}.input_layernorm.weight": [HIDDEN], f"{LAYER}.post_attention_layernorm.weight": [HIDDEN],
         **{f"{LAYER}.self_attn.{part}_proj.weight": [rows * HEAD, HIDDEN] for part, rows in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))},
         **{f"{LAYER}.self_attn.{part}_proj.bias": [rows * HEAD] for part, rows in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))},
         f"{LAYER}.self_attn.o_proj.weight": [HIDDEN, HEADS * HEAD], f"{LAYER}.self_attn.o_proj.bias": [HIDDEN],
         f"{LAYER}.self_attn.sinks": [HEADS], f"{LAYER}.mlp.router.weight": [EXPERTS, HIDDEN], f"{LAYER}.mlp.router.bias": [EXPERTS],
         f"{LAYER}.mlp.experts.gate_up_proj_bias": [EXPERTS, 2 * FFN], f"{LAYER}.mlp.experts.down_proj_bias": [EXPERTS, HIDDEN]}
# Names, and the shape without the packed dimension, and how many groups of 32 that has.
PACKED = {f"{LAYER}.mlp.experts.gate_up_proj": ([EXPERTS, 2 * FFN], HIDDEN // 32),
          f"{LAYER}.mlp.experts.down_proj": ([EXPERTS, HIDDEN], FFN // 32)}


def bytes_of(name, count, most):
    draw = random.Random(name).randrange
    return bytes(draw(most + 1) for _ in range(count))


def packed_tensors():
    """Blocks of 16 bytes, two values in each, and a scale for each block; all scales but the infinite one."""
    tensors = {}
    for name, (shape, groups) in PACKED.items():
        count = shape[0] * shape[1] * groups
        tensors[f"{name}_blocks"] = ([*shape, groups, 16], bytes_of(f"{name}_blocks", 16 * count, 255))
        tensors[f"{name}_scales"] = ([*shape, groups], bytes_of(f"{name}_scales", count, 254))
    return tensors


def write(folder, leave_out=()):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {name: ("BF16", shape, bytes_of(name, 2 * (shape[0] * (shape[1] if len(shape) > 1 else 1)), 60))
               for name, shape in PLAIN.items()}
    tensors |= {name: ("U8", shape, data) for name, (shape, data) in packed_tensors().items() if name not in leave_out}
    header, end = {}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
