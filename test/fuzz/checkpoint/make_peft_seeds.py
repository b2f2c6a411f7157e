#!/usr/bin/env python3
"""Makes the seeds of fuzz_peft: folders of adapters for the Llama of FuzzPeft.cpp.

    make_peft_seeds.py
"""

import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus/peft"
QV = ["self_attn.q_proj", "self_attn.v_proj"]
COMMON = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": True}


def tensors(modules, rank=2, layers=(0, 1), **more):
    """Shapes by name. `more`: the ends of further names, and their shapes."""
    shapes = {}
    for layer in layers:
        for module in modules:
            path = f"base_model.model.model.layers.{layer}.{module}"
            shapes[path + ".lora_A.weight"], shapes[path + ".lora_B.weight"] = [rank, 4], [4, rank]
            shapes.update({f"{path}.{end.replace('__', '.')}": shape for end, shape in more.items()})
    return shapes


def seed(name, shapes, kind="F32", **fields):
    config = json.dumps({**COMMON, **fields}).encode()
    size, offset, header = 4 if kind == "F32" else 2, 0, {}
    for key, shape in shapes.items():
        count = size
        for extent in shape:
            count *= extent
        header[key] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + count]}
        offset += count
    text = json.dumps(header).encode()
    values = b"".join(struct.pack("<f" if size == 4 else "<e", 1 / (1 + i)) for i in range(offset // size))
    (CORPUS / name).write_bytes(struct.pack("<H", len(config)) + config + struct.pack("<Q", len(text)) + text + values)


CORPUS.mkdir(parents=True, exist_ok=True)
seed("plain", tensors(QV))
seed("half", tensors(QV, layers=[1]), kind="F16", use_rslora=True)
seed("patterns", tensors(QV, rank=4, layers=[0]) | tensors(QV, layers=[1]), rank_pattern={r".*\.0\..*": 4}, alpha_pattern={"1.self_attn.v_proj": 3})
seed("expression", tensors(["mlp.up_proj"]), target_modules=r".*\.(up|down)_proj", exclude_modules=["1.mlp.down_proj"])
seed("dora", tensors(QV, lora_magnitude_vector=[4]), use_dora=True)
seed("biases", tensors(QV, lora_B__bias=[4]), lora_bias=True)
seed("saved", tensors(QV) | {"base_model.model.lm_head.weight": [8, 4], "base_model.model.model.norm.weight": [4]}, modules_to_save=["lm_head", "norm"])
seed("unnamed", tensors([*QV, "mlp.gate_proj"]))
seed("shape", tensors(["self_attn.q_proj"]) | {"base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight": [2]})
