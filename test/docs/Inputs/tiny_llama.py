#!/usr/bin/env python3
"""Writes a small Llama in Hugging Face's form: config.json, model.safetensors with random weights in bf16, a tokenizer's file.

    tiny_llama.py FOLDER
"""
import json
import pathlib
import random
import struct
import sys

HIDDEN, HEADS, GROUPS, FFN, VOCAB, LAYERS = 64, 4, 2, 160, 257, 2
HEAD = HIDDEN // HEADS


def shapes():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for part, rows in (("q", HEADS * HEAD), ("k", GROUPS * HEAD), ("v", GROUPS * HEAD)):
            yield f"{at}self_attn.{part}_proj.weight", (rows, HIDDEN)
        yield f"{at}self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD)
        for part in ("gate", "up"):
            yield f"{at}mlp.{part}_proj.weight", (FFN, HIDDEN)
        yield f"{at}mlp.down_proj.weight", (HIDDEN, FFN)
        yield f"{at}input_layernorm.weight", (HIDDEN,)
        yield f"{at}post_attention_layernorm.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def bf16(value):
    return struct.pack("<f", value)[2:]


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
              "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": HEAD, "intermediate_size": FFN,
              "vocab_size": VOCAB, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
              "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
              "initializer_range": 0.02, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "tokenizer.json").write_text("{}")
    header, data, draw = {}, bytearray(), random.Random(0)
    for name, shape in shapes():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        begin = len(data)
        for _ in range(count):
            data += bf16(1.0 if len(shape) == 1 else draw.gauss(0, 0.02))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    main()
