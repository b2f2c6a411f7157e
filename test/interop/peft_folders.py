#!/usr/bin/env python3
"""Folders that PEFT writes, beside its logits and merged weights.

    peft_folders.py [--write] [CASE...]

Each case trains nothing: its adapters get numbers that follow from their names. The script saves the folder with PEFT,
imports it with shardc, merges it into the base, exports the result for transformers, and compares its logits with those
of PEFT. --write records the base's config.json, PEFT's adapter_config.json, the shapes of all tensors and projections of
the merged weights, from which the test ckpt/peft-folders rebuilds the folders without these packages.

Needs peft 0.21.2, transformers 5.24.0 and torch, and shardc in PATH.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "ckpt/Inputs"))
GOLDEN = HERE.parent / "ckpt/Inputs/peft_folders.json"
import peft_numbers

warnings.filterwarnings("ignore")
os.environ["HF_HUB_OFFLINE"] = "1"
import peft
import torch
import transformers
from safetensors.torch import load_file

transformers.logging.set_verbosity_error()

COMMON = {
    "vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 4, "max_position_embeddings": 32, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT2 = {"vocab_size": 48, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, "bos_token_id": None, "eos_token_id": None}
LATENT = {"num_experts_per_tok": 2, "moe_intermediate_size": 12, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4, "first_k_dense_replace": 1,
          "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "num_key_value_heads": 4}
HYBRID = {"hybrid_override_pattern": "M*-", "num_hidden_layers": 3, "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 8}
TIED = {"tie_word_embeddings": True}
QV, BOTH = ["q_proj", "v_proj"], ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

# Name: model type, changes of its configuration, fields of LoraConfig, a text of the refusal of those that are, and options
# of PEFT's save_pretrained().
CASES = {
    "plain": ("llama", {}, {"target_modules": QV}),
    "all_linear": ("llama", {}, {"target_modules": "all-linear"}),
    "expression": ("llama", {}, {"target_modules": r"model\.layers\.1\..*(q|down)_proj"}),
    "layer": ("llama", {}, {"target_modules": QV, "layers_to_transform": [1], "layers_pattern": "layers"}),
    "excluded": ("llama", {}, {"target_modules": ["q_proj", "o_proj"], "exclude_modules": ["0.self_attn.q_proj"]}),
    "excluded_by_expression": ("llama", {}, {"target_modules": QV, "exclude_modules": r".*\.0\..*v_proj"}),
    "alpha_suffix": ("llama", {}, {"target_modules": QV, "alpha_pattern": {"q_proj": 32}}),
    "alpha_path": ("llama", {}, {"target_modules": QV, "alpha_pattern": {"model.layers.0.self_attn.q_proj": 32}}),
    "alpha_escaped": ("llama", {}, {"target_modules": QV, "alpha_pattern": {r"model\.layers\.0\.self_attn\.q_proj": 32}}),
    "alpha_anchored": ("llama", {}, {"target_modules": QV, "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 32}}),
    "alpha_either": ("llama", {}, {"target_modules": QV, "alpha_pattern": {"(q|v)_proj": 32}}),
    "alpha_layers": ("llama", {}, {"target_modules": QV, "alpha_pattern": {r"layers\.[1-9]\d*\..*": 2}}),
    "alpha_part_of_name": ("llama", {}, {"target_modules": QV, "alpha_pattern": {"proj": 32, "attn.v_proj": 4}}),
    "alpha_first": ("llama", {}, {"target_modules": QV, "alpha_pattern": {"0.self_attn.q_proj": 2, "q_proj": 32}}),
    "rank_expression": ("llama", {}, {"target_modules": ["q_proj", "v_proj", "up_proj"], "rank_pattern": {r".*\.1\..*": 4, "up_proj": 1}}),
    "rank_and_alpha": ("llama", {}, {"target_modules": QV, "rank_pattern": {"v_proj": 4}, "alpha_pattern": {"v_proj": 16}}),
    "rslora": ("llama", {}, {"target_modules": QV, "use_rslora": True, "rank_pattern": {"v_proj": 4}}),
    "dora": ("llama", {}, {"target_modules": ["q_proj", "up_proj", "down_proj"], "use_dora": True}),
    "biases": ("llama", {"attention_bias": True}, {"target_modules": QV, "lora_bias": True}),
    "saved": ("llama", {}, {"target_modules": QV, "modules_to_save": ["lm_head", "embed_tokens"]}),
    "saved_norm": ("llama", {}, {"target_modules": QV, "modules_to_save": ["model.norm"]}),
    "saved_norms": ("llama", {}, {"target_modules": QV, "modules_to_save": ["input_layernorm"]}),
    "saved_latent_norms": ("deepseek_v3", LATENT, {"target_modules": ["o_proj"], "modules_to_save": ["norm", "kv_a_layernorm"]}),
    "saved_qk_norms": ("qwen3", {}, {"target_modules": QV, "modules_to_save": ["norm"]}),
    "saved_mixer": ("nemotron_h", HYBRID, {"target_modules": QV, "modules_to_save": ["layers.0.mixer"]}),
    "saved_gate_and_up": ("llama", {}, {"target_modules": QV, "modules_to_save": ["gate_proj", "up_proj"]}),
    "stored_tables": ("llama", {}, {"target_modules": QV}, "", {"save_embedding_layers": True}),
    "stored_saved": ("llama", {}, {"target_modules": QV, "modules_to_save": ["embed_tokens"]}, "", {"save_embedding_layers": True}),
    "nemotron_h": ("nemotron_h", HYBRID, {"target_modules": QV, "modules_to_save": ["norm_f"]}),
    "saved_layers": ("llama", {}, {"target_modules": QV, "modules_to_save": ["mlp", "o_proj"]}),
    "saved_router": ("mixtral", LOCAL, {"target_modules": QV, "modules_to_save": ["gate"]}),
    "saved_router_qwen": ("qwen3_moe", EXPERTS, {"target_modules": QV, "modules_to_save": ["gate"]}),
    "tied_embedding": ("llama", TIED, {"target_modules": QV, "modules_to_save": ["embed_tokens"]}),
    "tied_ensured": ("llama", TIED, {"target_modules": QV, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "tied_head": ("llama", TIED, {"target_modules": QV, "modules_to_save": ["lm_head"]}),
    "tied_both": ("qwen3", TIED, {"target_modules": QV, "modules_to_save": ["embed_tokens", "lm_head"]}),
    "tokens": ("llama", {}, {"target_modules": QV, "trainable_token_indices": [3, 40]}),
    "tokens_tied": ("llama", TIED, {"target_modules": QV, "trainable_token_indices": [3, 40]}),
    "tokens_both": ("llama", {}, {"target_modules": QV, "trainable_token_indices": {"embed_tokens": [1, 2], "lm_head": [5]}}),
    "gpt2": ("gpt2", {}, {"target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "gpt2_layer": ("gpt2", {}, {"target_modules": ["h.1.attn.c_proj"]}),
    "starcoder2": ("starcoder2", {}, {"target_modules": "all-linear"}),
    "nemotron": ("nemotron", {}, {"target_modules": "all-linear"}),
    "phi3": ("phi3", {}, {"target_modules": ["qkv_proj", "gate_up_proj"]}),
    "qwen3_moe": ("qwen3_moe", EXPERTS, {"target_modules": QV, "target_parameters": BOTH}),
    "qwen3_moe_down": ("qwen3_moe", EXPERTS, {"target_modules": [], "target_parameters": BOTH[1:], "alpha_pattern": {"1.mlp.experts.down_proj": 9}}),
    "mixtral": ("mixtral", LOCAL, {"target_modules": ["q_proj", "w1", "w2", "w3"]}),
    "gpt_oss": ("gpt_oss", LOCAL, {"target_modules": QV, "target_parameters": BOTH}),
    "llama4": ("llama4_text", LOCAL | {"num_experts_per_tok": 1, "intermediate_size_mlp": 24}, {"target_modules": QV, "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}),
    "deepseek_v3": ("deepseek_v3", LATENT, {"target_modules": ["q_b_proj", "kv_b_proj", "down_proj", "o_proj"]}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "block_auto_adjust_ff_dim": False}, {"target_modules": ["in_proj", "out_proj", "q_proj"]}),
    "shared_experts": ("deepseek_v3", LATENT, {"target_modules": ["o_proj"], "target_parameters": ["shared_experts.up_proj.weight", "layers.0.mlp.up_proj.weight"]}),
    "tables": ("llama", {}, {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}, "adapters of the embedding or of the output layer"),
    "router": ("qwen3_moe", EXPERTS, {"target_modules": ["q_proj"], "target_parameters": ["gate.weight"]}),
    "router_latent": ("deepseek_v3", LATENT, {"target_modules": ["o_proj"], "target_parameters": ["gate.weight"]}),
    "granite_experts": ("granitemoe", LOCAL, {"target_modules": QV, "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}),
    "granite_router": ("granitemoe", LOCAL, {"target_modules": QV, "modules_to_save": ["router"]}),
    "mixer": ("nemotron_h", HYBRID, {"target_modules": ["q_proj", "in_proj"]}),
    "gpt2_ensured": ("gpt2", {}, {"target_modules": ["c_attn"], "modules_to_save": ["wte"], "ensure_weight_tying": True}, "models of type 'gpt2' have one"),
    "gpt2_tied": ("gpt2", {}, {"target_modules": ["c_attn"], "modules_to_save": ["wte"]}, "makes two matrices of the tied embedding"),
}


def fill(tensors):
    """Sets each tensor of name -> tensor to the numbers of its name."""
    for name, tensor in tensors.items():
        tensor.data.copy_(torch.tensor(peft_numbers.number_of(name, tensor.numel())).reshape(tensor.shape))


def make_base(kind, changes, folder):
    fields = dict(GPT2 if kind == "gpt2" else COMMON) | changes
    config = transformers.AutoConfig.for_model(kind, **fields)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    model.save_pretrained(folder)
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(folder / "model.safetensors").items()}
    peft_numbers.make(folder / "model.safetensors", shapes)
    return shapes


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def call(*command, fails=False):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if (done.returncode != 0) != fails:
        raise SystemExit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def run(name, case, folder):
    kind, changes, fields, refused, options = (*case, "", {})[:5] if len(case) < 4 else (*case, {})[:5]
    base, adapter = folder / "base", folder / "adapter"
    shapes = make_base(kind, changes, base)
    peft.get_peft_model(load(base), peft.LoraConfig(**{"r": 2, "lora_alpha": 8, "task_type": "CAUSAL_LM"} | fields)).save_pretrained(adapter, **options)
    saved = {each: tuple(tensor.shape) for each, tensor in load_file(adapter / "adapter_model.safetensors").items()}
    peft_numbers.make(adapter / "adapter_model.safetensors", saved)
    if fields.get("ensure_weight_tying") and not refused:
        tensors = peft_numbers.read(adapter / "adapter_model.safetensors")
        tensors["base_model.model.lm_head.weight"] = tensors["base_model.model.model.embed_tokens.weight"]
        peft_numbers.write(adapter / "adapter_model.safetensors", tensors)
    (adapter / "README.md").unlink(missing_ok=True)
    said = json.loads((adapter / "adapter_config.json").read_text())
    said["base_model_name_or_path"] = "base"
    (adapter / "adapter_config.json").write_text(json.dumps(said))
    golden = {"base": json.loads((base / "config.json").read_text()), "shapes": shapes, "adapter": said, "tensors": saved}
    if refused:
        text = call("shardc", "ckpt", "import", "peft", adapter, folder / "a", "--config", base, fails=True)
        if refused not in text:
            raise SystemExit(f"{name}: {text}")
        print(f"{name}: refused")
        return golden | {"refused": refused}
    model = peft.PeftModel.from_pretrained(load(base), adapter).eval()
    tokens = torch.arange(1, 17)[None] % 48
    with torch.no_grad():
        wanted = model(tokens).logits
        merged = model.merge_and_unload()
        merged.save_pretrained(folder / "merged")
    tensors = load_file(folder / "merged/model.safetensors")
    golden["merged"] = {each: peft_numbers.projections(tensor.flatten().tolist()) for each, tensor in tensors.items()}
    golden["logits"] = wanted[0, -1, :4].tolist()
    call("shardc", "ckpt", "import", "peft", adapter, folder / "a", "--config", base)
    call("shardc", "ckpt", "merge", folder / "a", base, folder / "m")
    call("shardc", "ckpt", "export", "hf", folder / "m", folder / "hf")
    # What shardc exports again is the same to PEFT.
    call("shardc", "ckpt", "export", "peft", folder / "a", folder / "back")
    with torch.no_grad():
        found = load(folder / "hf")(tokens).logits
        if not said.get("trainable_token_indices") and not (changes.get("tie_word_embeddings") and not said["ensure_weight_tying"]):
            back = peft.PeftModel.from_pretrained(load(base), folder / "back").eval()(tokens).logits
            if (back - wanted).abs().max() > 2e-5 * wanted.abs().max():
                raise SystemExit(f"{name}: the folder that comes back differs by {(back - wanted).abs().max():.2g}")
    far = (found - wanted).abs().max().item() / wanted.abs().max().item()
    print(f"{name}: logits differ by {far:.1e}")
    if far > 2e-5:
        raise SystemExit(f"{name}: logits differ")
    return golden


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    made, failed = {}, []
    for name in args.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                made[name] = run(name, CASES[name], pathlib.Path(folder))
            except (SystemExit, Exception) as error:
                failed.append(name)
                print(f"{name}: FAILED: {type(error).__name__} {error}")
    if args.write and not failed:
        versions = {each.__name__: each.__version__ for each in (peft, transformers, torch)}
        GOLDEN.write_text(json.dumps({"versions": versions, "cases": made}, separators=(",", ":"), sort_keys=False) + "\n")
    print(f"{len(made)} cases, {len(failed)} failed: {failed}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
