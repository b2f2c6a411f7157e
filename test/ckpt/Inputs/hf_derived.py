#!/usr/bin/env python3
"""Trains small models, exports them without a config.json, imports them again and compares the weights.

    hf_derived.py WORK RECIPES
"""

import json
import pathlib
import shutil
import sys

from hf_models import call, expect, read_model
from subprocess import run

FSDP = ["dist.use_megatron_fsdp=true", "ddp.use_megatron_fsdp=true", "checkpoint.ckpt_format=fsdp_dtensor"]
LLAMA = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 257, "max_position_embeddings": 32,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32"}
MODELS = [
    ("llama_tiny", [], {**LLAMA, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}),
    ("llama_tiny", ["model.add_qkv_bias=true", "model.share_embeddings_and_output_weights=true"],
     {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True}),
    ("llama_tiny", ["model.rope_scaling=true", "model.rope_scaling_factor=8.0"],
     {**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 8192}}),
    ("llama_tiny", ["model.rotary_percent=0.5"], {**LLAMA, "model_type": "phi3", "partial_rotary_factor": 0.5}),
    ("llama_tiny", ["model.rotary_percent=0.5", "model.qk_layernorm=true"],
     {"model_type": "glm4_moe", "first_k_dense_replace": 2, "partial_rotary_factor": 0.5, "use_qk_norm": True}),
    ("llama_tiny", ["model.rotary_interleaved=true"],
     {"model_type": "llama4_text", "moe_layers": [], "no_rope_layers": [1, 1], "use_qk_norm": False}),
    ("glm4_tiny", [], {"model_type": "glm4", "attention_bias": True, "partial_rotary_factor": 0.5}),
    ("glm45_tiny", [], {"model_type": "glm4_moe", "attention_bias": True, "use_qk_norm": True, "first_k_dense_replace": 1}),
    ("gemma2_tiny", [], {"model_type": "gemma2", "query_pre_attn_scalar": 16, "attn_logit_softcapping": 0.1, "pad_token_id": None,
                         "sliding_window": 8, "hidden_activation": "gelu_new"}),
    ("gemma2_tiny", ["model.window_size=none", "model.final_logit_softcapping=none", "model.softmax_scale=0.5"],
     {"query_pre_attn_scalar": 4, "final_logit_softcapping": None, "layer_types": ["full_attention"] * 2}),
    ("gemma3_tiny", [], {"model_type": "gemma3_text", "rope_local_base_freq": 10000.0, "rope_theta": 1000000.0,
                         "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    ("llama4_tiny", [], {"model_type": "llama4_text", "no_rope_layers": [1, 1, 1, 0], "moe_layers": [1, 3], "attention_chunk_size": 12,
                         "intermediate_size": 48, "intermediate_size_mlp": 160, "floor_scale": 8, "use_qk_norm": True}),
    ("qwen2_moe_tiny", [], {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 80, "norm_topk_prob": False}),
    ("starcoder2_tiny", [], {"model_type": "starcoder2", "use_bias": True, "residual_dropout": 0.0, "embedding_dropout": 0.0,
                             "norm_epsilon": 1e-5, "sliding_window": 8, "hidden_act": "gelu_new", "tie_word_embeddings": True}),
    ("smollm3_tiny", ["model.no_rope_freq=[0, 1, 1, 0]"], {"model_type": "smollm3", "no_rope_layers": [1, 0, 0, 1]}),
    ("smollm3_tiny", [], {"model_type": "smollm3", "rope_theta": 5000000.0, "attention_bias": False, "mlp_bias": False, "pad_token_id": None,
                          "use_sliding_window": False, "tie_word_embeddings": True}),
    ("olmo3_tiny", [], {"model_type": "olmo3", "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}),
    ("stablelm_tiny", [], {"model_type": "stablelm", "partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5}),
    ("granite_tiny", [], {"model_type": "granite", "logits_scaling": 8.0, "attention_multiplier": 0.05, "residual_multiplier": 0.22}),
    ("hunyuan_tiny", [], {"model_type": "hunyuan_v1_dense"}),
    ("exaone4_tiny", [], {"model_type": "exaone4", "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}),
    ("exaone4_tiny", ["model.window_size=none", "model.no_rope_freq=none"], {"model_type": "exaone4", "sliding_window": None}),
    ("qwen3_next_tiny", [], {"model_type": "qwen3_next", "layer_types": ["linear_attention"] * 3 + ["full_attention"],
                             "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4, "norm_topk_prob": True,
                             "shared_expert_intermediate_size": 32, "partial_rotary_factor": 0.25}),
    ("qwen3_next_tiny", ["model.linear_attention_freq=[0,1,1,0]", "model.linear_conv_kernel_dim=3", "model.experimental_attention_variant=gdn"],
     {"layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"], "linear_conv_kernel_dim": 3}),
    ("nemotron_h_tiny", [], {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*", "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 4,
                             "ssm_state_size": 16, "mlp_hidden_act": "relu2", "time_step_min": 1e-9, "num_hidden_layers": 4}),
    ("nemotron_3_nano_tiny", [], {"model_type": "nemotron_h", "hybrid_override_pattern": "MEM*", "n_routed_experts": 8, "num_experts_per_tok": 3,
                                  "moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 96, "routed_scaling_factor": 2.5,
                                  "n_group": 1}),
    ("granite4_tiny", [], {"model_type": "granitemoehybrid", "layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2,
                           "position_embedding_type": None, "shared_intermediate_size": 96, "intermediate_size": 48, "mamba_expand": 2,
                           "num_local_experts": 8, "residual_multiplier": 0.22}),
    ("granite4_tiny", ["model.num_moe_experts=none", "model.moe_shared_expert_intermediate_size=none", "model.hybrid_layer_pattern=\"*-M-\"",
                       "model.position_embedding_type=rope"],
     {"num_local_experts": 0, "shared_intermediate_size": 256, "position_embedding_type": "rope", "layer_types": ["full_attention", "linear_attention"]}),
    ("bamba_tiny", [], {"model_type": "bamba", "attn_layer_indices": [1], "num_hidden_layers": 2, "mamba_d_head": 16, "pad_token_id": None}),
    ("lfm2_tiny", [], {"model_type": "lfm2", "layer_types": ["conv", "conv", "full_attention", "conv"], "conv_L_cache": 3,
                       "block_auto_adjust_ff_dim": False, "intermediate_size": 160, "tie_word_embeddings": True}),
    ("lfm2_tiny", ["model.short_conv_freq=[2]", "model.short_conv_kernel_dim=5"],
     {"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 5}),
    ("glm45_tiny", ["model.mtp_num_layers=1"], {"num_nextn_predict_layers": 1}),
    ("gpt2_tiny", [], {"model_type": "gpt2", "n_embd": 64, "n_inner": 256, "n_layer": 2, "n_head": 4,
                       "n_positions": 32, "vocab_size": 257, "activation_function": "gelu",
                       "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.1}),
]


def train(recipe, folder, settings):
    sets = [*FSDP, "train.train_iters=1", f'checkpoint.save="{folder}"', *settings]
    done = run(["shardc", "run", recipe, *[f"--set={text}" for text in sets]], capture_output=True, text=True)
    expect(done.returncode == 0, done.stdout + done.stderr)


def check(work, number, recipe, settings, wanted):
    saved, model, back = (work / f"{kind}{number}" for kind in ("saved", "model", "back"))
    train(recipe, saved, settings)
    said = call("export", "hf", saved, model, "--weight-dtype=float32")
    expect("no tokenizer" in said, said)
    config = json.loads((model / "config.json").read_text())
    for key, value in wanted.items():
        expect(config.get(key) == value, f"{recipe.stem} {settings}: {key} is {config.get(key)}, not {value}")
    said = call("import", "hf", model, back)
    expect("warning" not in said, said)
    tensors = [json.loads(call("inspect", folder, "--json"))["tensors"] for folder in (saved, back)]
    ours = {name for name in tensors[0] if name.startswith("model.")}
    expect(ours == tensors[1].keys(), f"{sorted(ours ^ tensors[1].keys())[:5]} are on one side only")
    again = work / f"again{number}"
    call("export", "hf", back, again, "--config", model, "--weight-dtype=float32")
    for file in sorted(model.iterdir()):
        expect(file.read_bytes() == (again / file.name).read_bytes(), f"{recipe.stem}: {file.name} differs")


def check_types(work, recipes):
    """Left open, the weights have the type that the run computed with, and config.json says it."""
    for kind, recipe in (("float32", "llama_tiny"), ("bfloat16", "llama_tiny_fsdp_bf16")):
        saved, model = work / f"{kind}.saved", work / kind
        train(recipes / f"{recipe}.recipe", saved, [])
        said = call("export", "hf", saved, model)
        expect(f"({kind}; no tokenizer)" in said, said)
        expect(json.loads((model / "config.json").read_text())["torch_dtype"] == kind, f"{kind} is not in config.json")
        types = {dtype for dtype, _, _ in read_model(model).values()}
        expect(types == {{"float32": "F32", "bfloat16": "BF16"}[kind]}, f"{kind}: {types}")
    said = call("export", "hf", work / "bfloat16.saved", work / "asked", "--weight-dtype=float16")
    expect("(float16; no tokenizer)" in said, said)


def check_refusals(work, recipe):
    call("export", "hf", work / "back0", work / "kept", "--weight-dtype=float32")
    for file in sorted((work / "model0").iterdir()):
        expect(file.read_bytes() == (work / "kept" / file.name).read_bytes(), f"{file.name} was not kept")
    bare = work / "back0" / "iter_0000000"
    shutil.rmtree(bare / "huggingface")
    (bare / ".shardc_integrity").unlink()
    said = call("export", "hf", work / "back0", work / "none", status=1)
    expect("run_config.yaml" in said and "give a folder that has one with --config" in said, said)
    for settings, word in (
        (["model.rotary_interleaved=true", "model.qk_layernorm=true"],
         "of Qwen3ForCausalLM, model.rotary_interleaved would be false and is true"),
        (["model.rotary_interleaved=true", "model.rotary_percent=0.5", "model.qk_layernorm=true"], "model.rotary_interleaved would be false"),
    ):
        shutil.rmtree(work / "odd", ignore_errors=True)
        train(recipe, work / "odd", settings)
        said = call("export", "hf", work / "odd", work / "none", status=1)
        expect(word in said and not (work / "none").exists(), said)
    said = call("export", "hf", work / "odd", work / "none", "--config", work / "model0", status=1)
    expect("is of another model than the run that saved" in said and "model.rotary_interleaved would be false and is true" in said, said)
    config = work / "odd" / "iter_0000001" / "run_config.yaml"
    (config.parent / ".shardc_integrity").unlink()  # with it the change is damage
    config.write_text("model:\n" + "".join(f"  {line}\n" for line in (
        "normalization: RMSNorm", "gated_linear_unit: true", "activation_func: silu", "position_embedding_type: rope",
        "hidden_size: 64")))
    said = call("export", "hf", work / "odd", work / "none", status=1)
    expect("does not set " in said and "num_layers" in said, said)


def main():
    work, recipes = map(pathlib.Path, sys.argv[1:])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for number, (recipe, settings, wanted) in enumerate(MODELS):
        check(work, number, recipes / f"{recipe}.recipe", settings, wanted)
    check_types(work, recipes)
    check_refusals(work, recipes / "llama_tiny.recipe")


if __name__ == "__main__":
    main()
