#!/usr/bin/env python3
"""Exports in 4 bits beside what bitsandbytes makes of the same weights. Exits with 77 if torch, safetensors or
bitsandbytes is not there.

    bitsandbytes_folders.py SHARDC_FOLDER

All tensors of an export are those of `quantize_4bit`, to the bit, also the JSON beside them; with scales in 8 bits for an offset that is
rounded once, since PyTorch's mean is not the same on each machine. bitsandbytes reads the exports.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import bitsandbytes.functional as bnb
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(missing)
    sys.exit(77)

HIDDEN, FFN, HEADS, GROUPS, VOCAB = 192, 320, 6, 2, 64
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 2,
    "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "vocab_size": VOCAB, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16", "attention_bias": False,
    "mlp_bias": False,
}


def weights():
    keys = HIDDEN // HEADS * GROUPS
    torch.manual_seed(1)
    found = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}
    for i in range(2):
        at = f"model.layers.{i}"
        found |= {f"{at}.input_layernorm.weight": (HIDDEN,), f"{at}.post_attention_layernorm.weight": (HIDDEN,)}
        found |= {f"{at}.self_attn.{each}_proj.weight": (rows, HIDDEN) for each, rows in zip("qkvo", (HIDDEN, keys, keys, HIDDEN))}
        found |= {f"{at}.mlp.gate_proj.weight": (FFN, HIDDEN), f"{at}.mlp.up_proj.weight": (FFN, HIDDEN), f"{at}.mlp.down_proj.weight": (HIDDEN, FFN)}
    return {name: (torch.randn(shape) * 0.05).bfloat16() for name, shape in found.items()}


def call(*command):
    done = subprocess.run([pathlib.Path(sys.argv[1]) / "shardc", *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def packed(name, weight, is_nested):
    """What bitsandbytes stores of a weight."""
    codes, state = bnb.quantize_4bit(weight.float(), blocksize=64, quant_type="nf4")
    state.dtype = weight.dtype
    if is_nested:
        state.offset = state.absmax.double().mean().float()
        values = bnb.create_dynamic_map()
        # For f64, it searches the nearest values on processors too. Otherwise, a table gives the neighbours of some.
        state.absmax, groups = torch.ops.bitsandbytes.quantize_blockwise((state.absmax - state.offset).double(), values, 256)
        state.state2 = bnb.QuantState(absmax=groups, code=values, blocksize=256, dtype=torch.float32)
        state.nested = True
    return {name: codes, **{f"{name}.{key}": value for key, value in state.as_dict(packed=True).items()}}


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "base").mkdir()
        found = weights()
        save_file(found, folder / "base" / "model.safetensors", metadata={"format": "pt"})
        (folder / "base" / "config.json").write_text(json.dumps(CONFIG))
        call("ckpt", "import", "hf", folder / "base", folder / "saved")
        for pack in ("nf4", "nf4_double"):
            call("ckpt", "export", "hf", folder / "saved", folder / pack, f"--pack={pack}")
            tensors = load_file(folder / pack / "model.safetensors")
            wanted = {}
            for key, weight in found.items():
                wanted |= packed(key, weight, pack == "nf4_double") if "_proj" in key else {key: weight}
            if set(tensors) != set(wanted):
                sys.exit(f"{pack}: {set(tensors) ^ set(wanted)}")
            for key, value in wanted.items():
                if not torch.equal(tensors[key], value):
                    sys.exit(f"{pack}: {key} is {tensors[key]}, bitsandbytes makes {value}")
            for key in (each for each in found if "_proj" in each):
                own = {each.removeprefix(f"{key}."): value for each, value in tensors.items() if each.startswith(f"{key}.")}
                state = bnb.QuantState.from_dict(own, device="cpu")
                if (bnb.dequantize_4bit(tensors[key], state).float() - found[key].float()).abs().max() > 0.05:
                    sys.exit(f"{pack}: bitsandbytes opens other numbers for {key}")
            print(f"{pack}: {len(wanted)} tensors are bitsandbytes'")


if __name__ == "__main__":
    main()
