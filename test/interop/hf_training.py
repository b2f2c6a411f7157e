"""Compares training of Hugging Face's models in shardc and in transformers: `shardc import hf` and `ckpt import/export
hf`.

usage: hf_training.py BIN [FAMILY...]

For each family, transformers makes a small model in fp32 and saves it; its tensors get values that follow from their
names. `shardc import hf` makes a recipe of the folder, and `ckpt import hf` a checkpoint, from which a run on the host
trains ten steps. The same steps in transformers with torch's AdamW must have the same losses within 1e-5 (relative).
The run's last save is exported twice, with the model's config.json and with one derived from the run's options.
transformers must load both without a missing or surplus weight, and the loss on the next batch must be that of the
model that it trained, within 1e-5. BIN is the folder of shardc and shardc-run. `--record` writes configurations, shapes
and losses with the versions into test/e2e/golden/values/hf_training.json, from which `hf_losses.py` there tests without
transformers. Exits with 77 without torch or transformers.
"""

import json
import pathlib
import sys
import tempfile

from hf_models import GOLDEN, VERSIONS, call, expect, loaded, made, torch, transformers

sys.path[:0] = [str(GOLDEN), str(GOLDEN.parent / "Inputs")]
from maker import cases, dataset  # noqa: E402

import hf_losses  # noqa: E402
import hf_values  # noqa: E402

STEPS, TOLERANCE, LR = 10, 1e-5, 1e-3  # as in hf_losses.py
EAGER = {"attn_implementation": "eager"}
CASE = cases.LLAMA  # for its data: 257 tokens, sequences of 32, batches of 8
SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 257, "max_position_embeddings": 64, "initializer_range": 0.06}
PLAIN = {"pad_token_id": None}  # the library does not train the embedding of that token
EXPERTS = {"moe_intermediate_size": 40, "num_experts": 8, "num_experts_per_tok": 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 64,
        "rope_theta": 10000.0}
LATENT = {**SIZES, "num_key_value_heads": 4, "moe_intermediate_size": 40, "n_routed_experts": 8, "num_experts_per_tok": 4,
          "n_group": 4, "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 24,
          "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 12, "num_mtp_layers": 0}
GLM = {**SIZES, "head_dim": 16, "moe_intermediate_size": 40, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
       "first_k_dense_replace": 1, "num_mtp_layers": 0}
LITE = {key: value for key, value in LATENT.items() if key not in ("n_group", "topk_group", "first_k_dense_replace", "num_mtp_layers")}
DOTS = {**GLM, "num_experts_per_tok": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
del DOTS["num_mtp_layers"]
MULTIPLIERS = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 8.0}
LFM2 = {**SIZES, **PLAIN}
LINEAR = {"head_dim": 16, "shared_expert_intermediate_size": 56, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
          "linear_key_head_dim": 8, "linear_value_head_dim": 12}
# transformers raises steps to `time_step_min`, which no other program does; steps of the first layer are smaller than its default.
MAMBA = {key: value for key, value in SIZES.items() if key != "num_hidden_layers"} | {
    "head_dim": 16, "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 12, "n_groups": 2, "chunk_size": 16, "time_step_min": 1e-9}
ROUTED = {"moe_intermediate_size": 40, "moe_shared_expert_intermediate_size": 56, "n_routed_experts": 8, "num_experts_per_tok": 3,
          "routed_scaling_factor": 2.5}
PAIRS = {**SIZES, "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 16}
GEMMA = {**SIZES, "pad_token_id": None, "head_dim": 16, "query_pre_attn_scalar": 12, "sliding_window": 6}
LLAMA4 = {**SIZES, "pad_token_id": None, "num_hidden_layers": 4, "head_dim": 16, "intermediate_size": 40, "intermediate_size_mlp": 64,
          "num_local_experts": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
# Weights of norms are about 1, which here means twice that. Queries and keys with such norms have scores so far apart
# that the rounding of gradients decides Adam's direction.
MILD = {"query_pre_attn_scalar": 256}
# transformers does not change the bias on experts in training.
CONSTANT_BIAS = ["model.moe_router_bias_update_rate=0"]
# A pack of documents has the losses of its documents alone.
DOCUMENTS, EOD = ["dataset.reset_position_ids=true", "dataset.reset_attention_mask=true"], 256
# {name: (type of the model, configuration, further settings of the run)}.
FAMILIES = {
    "gpt2": ("gpt2", {"n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 257, "n_positions": 64, "resid_pdrop": 0.0,
                      "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.06}, []),
    "llama2": ("llama", {**SIZES, "num_key_value_heads": 4, "rms_norm_eps": 1e-5}, []),
    "llama3": ("llama", {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}, []),
    "llama31": ("llama", {**SIZES, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}}, []),
    "llama32_tied": ("llama", {**SIZES, "tie_word_embeddings": True}, []),
    "llama_biases": ("llama", {**SIZES, "attention_bias": True, "mlp_bias": True}, []),
    "llama_attention_biases": ("llama", {**SIZES, "attention_bias": True}, []),
    "llama_mlp_biases": ("llama", {**SIZES, "mlp_bias": True}, []),
    "smollm2": ("llama", {**SIZES, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_interleaved": False, "is_llama_config": True,
                          "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}, []),
    "llama_yarn": ("llama", {**SIZES, "rope_parameters": YARN}, []),
    "llama_linear": ("llama", {**SIZES, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
                               "hidden_act": "gelu_pytorch_tanh"}, []),
    "mistral": ("mistral", {**SIZES, "head_dim": 16, "sliding_window": 8}, []),
    "qwen2": ("qwen2", {**SIZES}, []),
    "qwen25_tied": ("qwen2", {**SIZES, "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, []),
    "qwen3": ("qwen3", {**SIZES, "head_dim": 16}, []),
    "qwen3_windows": ("qwen3", {**SIZES, "head_dim": 16, "use_sliding_window": True, "sliding_window": 6,
                                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, []),
    "qwen3_first_window": ("qwen3", {**SIZES, "head_dim": 16, "use_sliding_window": True, "sliding_window": 6,
                                     "layer_types": ["sliding_attention", "full_attention", "full_attention"]}, []),
    "nemotron": ("nemotron", {**SIZES, "head_dim": 16}, []),
    "mixtral": ("mixtral", {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}, []),
    "qwen3_moe": ("qwen3_moe", {**SIZES, **EXPERTS, "head_dim": 16, "norm_topk_prob": True}, []),
    "qwen3_moe_dense": ("qwen3_moe", {**SIZES, **EXPERTS, "head_dim": 16, "norm_topk_prob": False, "mlp_only_layers": [0]}, []),
    "qwen2_moe": ("qwen2_moe", {**SIZES, **EXPERTS, "shared_expert_intermediate_size": 56, "mlp_only_layers": [0]}, []),
    "deepseek_v2": ("deepseek_v2", {**{k: v for k, v in LATENT.items() if k != "num_mtp_layers"}, "q_lora_rank": None,
                                    "topk_method": "greedy", "n_group": 1, "topk_group": 1, "n_shared_experts": 2,
                                    "routed_scaling_factor": 1.5}, []),
    "deepseek_v3": ("deepseek_v3", {**LATENT}, CONSTANT_BIAS),
    "deepseek_v3_yarn": ("deepseek_v3", {**LATENT, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}}, CONSTANT_BIAS),
    "moonlight": ("deepseek_v3", {**LATENT, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 2,
                                  "routed_scaling_factor": 2.446}, CONSTANT_BIAS),
    "phi3": ("phi3", {**SIZES, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                                         "partial_rotary_factor": 0.5}}, []),
    "phi3_windows": ("phi3", {**SIZES, "pad_token_id": None, "sliding_window": 6, "tie_word_embeddings": True}, []),
    "glm4": ("glm4", {**SIZES, "pad_token_id": None, "head_dim": 16}, []),
    "glm4_plain": ("glm4", {**SIZES, "pad_token_id": None, "head_dim": 16, "attention_bias": False}, []),
    "olmo2": ("olmo2", {**SIZES, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}, []),
    "glm4_moe": ("glm4_moe", {**GLM, "attention_bias": True, "use_qk_norm": True, "routed_scaling_factor": 2.5}, CONSTANT_BIAS),
    "glm4_moe_groups": ("glm4_moe", {**GLM, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "n_shared_experts": 2}, CONSTANT_BIAS),
    "gemma2": ("gemma2", {**GEMMA, "attn_logit_softcapping": 0.75, "final_logit_softcapping": 2.0}, []),
    "gemma2_plain": ("gemma2", {**GEMMA, "query_pre_attn_scalar": 16, "attn_logit_softcapping": None, "final_logit_softcapping": None,
                                "tie_word_embeddings": False, "layer_types": ["full_attention"] * 3}, []),
    "gemma3": ("gemma3_text", {**GEMMA, **MILD, "num_hidden_layers": 7, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}}, []),
    "gemma3_capped": ("gemma3_text", {**GEMMA, **MILD, "final_logit_softcapping": 2.0,
                                      "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, []),
    "llama4": ("llama4_text", {**LLAMA4, "moe_layers": [1, 3], "attention_chunk_size": 12, "floor_scale": 5, "attn_scale": 0.5}, []),
    "llama4_all": ("llama4_text", {**LLAMA4, "use_qk_norm": False, "attn_temperature_tuning": False, "no_rope_layers": [1, 0, 0, 1],
                                   "attention_chunk_size": None, "tie_word_embeddings": True}, []),
    "starcoder2": ("starcoder2", {**SIZES, "sliding_window": 6}, []),
    "starcoder2_plain": ("starcoder2", {**SIZES, "head_dim": 16, "use_bias": False, "hidden_act": "gelu", "tie_word_embeddings": False}, []),
    "smollm3": ("smollm3", {**SIZES, "pad_token_id": None, "num_hidden_layers": 4}, []),
    "smollm3_biases": ("smollm3", {**SIZES, "pad_token_id": None, "num_hidden_layers": 5, "head_dim": 16, "no_rope_layers": [1, 1, 1, 0, 1],
                                   "attention_bias": True, "mlp_bias": True, "rope_parameters": YARN, "tie_word_embeddings": False}, []),
    "seed_oss": ("seed_oss", {**SIZES, **PLAIN, "head_dim": 16, "residual_dropout": 0.0, "attention_dropout": 0.0}, []),
    "seed_oss_biases": ("seed_oss", {**SIZES, **PLAIN, "head_dim": 16, "residual_dropout": 0.0, "attention_dropout": 0.0,
                                     "attention_out_bias": True, "tie_word_embeddings": True}, []),
    "gemma": ("gemma", {**SIZES, **PLAIN, "head_dim": 16}, []),
    "gemma_biases": ("gemma", {**SIZES, **PLAIN, "head_dim": 16, "attention_bias": True, "hidden_act": "gelu"}, []),
    "ernie4_5": ("ernie4_5", {**SIZES, **PLAIN, "head_dim": 16}, []),
    "ernie4_5_biases": ("ernie4_5", {**SIZES, **PLAIN, "head_dim": 12, "use_bias": True, "tie_word_embeddings": False}, []),
    "arcee": ("arcee", {**SIZES}, []),
    "arcee_biases": ("arcee", {**SIZES, "head_dim": 16, "attention_bias": True, "rope_parameters": YARN}, []),
    "helium": ("helium", {**SIZES, **PLAIN, "head_dim": 12}, []),
    "helium_biases": ("helium", {**SIZES, **PLAIN, "head_dim": 12, "attention_bias": True, "mlp_bias": True}, []),
    "glm": ("glm", {**SIZES, **PLAIN, "head_dim": 16}, []),
    "glm_plain": ("glm", {**SIZES, **PLAIN, "head_dim": 16, "attention_bias": False, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}, []),
    "ministral": ("ministral", {**SIZES, "head_dim": 16, "sliding_window": 6,
                                "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}, []),
    "ministral_all": ("ministral", {**SIZES, "head_dim": 16, "sliding_window": 6}, []),
    "ministral3": ("ministral3", {**SIZES, **PLAIN, "head_dim": 16, "sliding_window": None, "rope_parameters": {
        **YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}}, []),
    "olmo3": ("olmo3", {**SIZES, **PLAIN, "num_hidden_layers": 4, "sliding_window": 6, "rope_parameters": {
        "full_attention": {**YARN, "rope_theta": 500000.0, "attention_factor": 1.1386294361119891},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}, []),
    "olmo3_biases": ("olmo3", {**SIZES, **PLAIN, "attention_bias": True, "sliding_window": 6,
                               "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}, []),
    "olmoe": ("olmoe", {**SIZES, **PLAIN, "intermediate_size": 40, "num_experts": 8, "num_experts_per_tok": 2}, []),
    "olmoe_divided": ("olmoe", {**SIZES, **PLAIN, "intermediate_size": 40, "num_experts": 8, "num_experts_per_tok": 2,
                                "norm_topk_prob": True, "attention_bias": True, "tie_word_embeddings": True}, []),
    "stablelm": ("stablelm", {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}, []),
    "stablelm_biases": ("stablelm", {**SIZES, "use_qkv_bias": True, "tie_word_embeddings": True, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}}, []),
    "dots1": ("dots1", {**DOTS, "sliding_window": None}, CONSTANT_BIAS),
    "dots1_windows": ("dots1", {**DOTS, "attention_bias": True, "sliding_window": 6, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
                                "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}, CONSTANT_BIAS),
    "glm4_moe_lite": ("glm4_moe_lite", {**LITE, "routed_scaling_factor": 1.8}, CONSTANT_BIAS),
    "glm4_moe_lite_layers": ("glm4_moe_lite", {**LITE, "q_lora_rank": None, "mlp_layer_types": ["sparse", "dense", "sparse"]}, CONSTANT_BIAS),
    "mistral4": ("mistral4", {**LITE, **PLAIN, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}}, []),
    "mistral4_plain": ("mistral4", {**LITE, **PLAIN, "norm_topk_prob": False, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
                                    "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.0}}, []),
    "minimax_m2": ("minimax_m2", {**SIZES, "intermediate_size": 40, "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2,
                                  "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
                   CONSTANT_BIAS),
    "granite": ("granite", {**SIZES, **MULTIPLIERS}, []),
    "granite_biases": ("granite", {**SIZES, **MULTIPLIERS, "attention_bias": True, "mlp_bias": True, "head_dim": 16,
                                   "tie_word_embeddings": True, "rope_parameters": YARN}, []),
    "granitemoe": ("granitemoe", {**SIZES, **MULTIPLIERS, "intermediate_size": 40, "num_local_experts": 8, "num_experts_per_tok": 3}, []),
    "hunyuan": ("hunyuan_v1_dense", {**SIZES, **PLAIN, "head_dim": 16, "rope_parameters": {
        "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 10000.0}}, []),
    "hunyuan_biases": ("hunyuan_v1_dense", {**SIZES, **PLAIN, "head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}, []),
    "exaone4": ("exaone4", {**SIZES, "sliding_window": None, "layer_types": ["full_attention"] * 3}, []),
    "exaone4_windows": ("exaone4", {**SIZES, "head_dim": 16, "sliding_window": 6, "sliding_window_pattern": "LLG",
                                    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
                                    "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "low_freq_factor": 1.0,
                                                        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}, []),
    "lfm2": ("lfm2", {**LFM2, "layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False}, []),
    "lfm2_untied": ("lfm2", {**LFM2, "num_hidden_layers": 4, "full_attn_idxs": [0, 2], "conv_L_cache": 4, "norm_eps": 1e-6,
                             "block_ff_dim": 100, "block_multiple_of": 16, "tie_embedding": False,
                             "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, []),
    # With two experts for each token, the scores of a token's second and third expert are 3e-5 apart after ten steps.
    "qwen3_next": ("qwen3_next", {**SIZES, **EXPERTS, **LINEAR, "num_hidden_layers": 4, "num_experts_per_tok": 3}, []),
    "qwen3_next_documents": ("qwen3_next", {**SIZES, **EXPERTS, **LINEAR, "num_hidden_layers": 4, "mlp_only_layers": [0, 1, 2, 3]}, DOCUMENTS),
    "qwen3_next_dense": ("qwen3_next", {**SIZES, **EXPERTS, **LINEAR, "num_key_value_heads": 1, "linear_num_key_heads": 4,
                                        "linear_conv_kernel_dim": 3, "attention_bias": True, "tie_word_embeddings": True,
                                        "mlp_only_layers": [0, 1, 2], "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
                         []),
    "nemotron_h": ("nemotron_h", {**MAMBA, "hybrid_override_pattern": "M*-M"}, []),
    "nemotron_h_documents": ("nemotron_h", {**MAMBA, "hybrid_override_pattern": "MM-*"}, DOCUMENTS),
    "nemotron_h_groups": ("nemotron_h", {**MAMBA, "hybrid_override_pattern": "-M*", "n_groups": 1, "mamba_num_heads": 4, "mamba_head_dim": 6,
                                         "mlp_bias": True, "layer_norm_epsilon": 1e-6}, []),
    "nemotron_h_experts": ("nemotron_h", {**MAMBA, **ROUTED, "hybrid_override_pattern": "ME*E-"}, CONSTANT_BIAS),
    "nemotron_h_experts_documents": ("nemotron_h", {**MAMBA, **ROUTED, "hybrid_override_pattern": "EM*", "num_experts_per_tok": 4, "n_group": 4,
                                                    "topk_group": 2}, CONSTANT_BIAS + DOCUMENTS),
    "granite4": ("granitemoehybrid", {**PAIRS, **MULTIPLIERS, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
                                      "intermediate_size": 40, "shared_intermediate_size": 56, "num_experts_per_tok": 3}, []),
    "granite4_documents": ("granitemoehybrid", {**PAIRS, **MULTIPLIERS, "layer_types": ["full_attention", "linear_attention", "linear_attention"],
                                                "num_local_experts": 0, "shared_intermediate_size": 56, "attention_bias": True,
                                                "tie_word_embeddings": True}, DOCUMENTS),
    "granite4_dense": ("granitemoehybrid", {**PAIRS, **MULTIPLIERS, "layer_types": ["full_attention"] * 3, "num_local_experts": 0,
                                            "shared_intermediate_size": 64, "position_embedding_type": "rope", "rms_norm_eps": 1e-5}, []),
    "bamba": ("bamba", {**PAIRS, **PLAIN, "attn_layer_indices": [1], "attention_bias": True, "mlp_bias": True}, []),
    "bamba_documents": ("bamba", {**PAIRS, **PLAIN, "attn_layer_indices": [0, 2], "mamba_n_groups": 1, "num_key_value_heads": 1,
                                  "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}, DOCUMENTS),
    # Dense layers; in transformers, each is the only expert of its layer.
    "gpt_oss": ("gpt_oss", {**SIZES, "num_local_experts": 1, "num_experts_per_tok": 1, "head_dim": 16, "sliding_window": 6,
                            "swiglu_limit": 0.75}, []),
    "gpt_oss_experts": ("gpt_oss", {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16,
                                    "sliding_window": 6}, []),
}

# Fields without effect in sequences as short as these.
ACCEPTED = dict.fromkeys(("ministral3", "mistral4"), ["rope_parameters.llama_4_scaling_beta"])


def make(folder, kind, settings):
    """Makes a model. Returns {name: shape} of the tensors as saved."""
    made(kind, settings).save_pretrained(folder)
    shapes = hf_values.shapes_of(folder / "model.safetensors")
    hf_values.write_tensors(folder / "model.safetensors", shapes, kind)
    return shapes


def logits_of(model, tokens, by_document):
    """By document, each begins after an end of a document and is computed alone."""
    if not by_document:
        return model(tokens).logits
    rows = []
    for row in tokens:
        ends = [0, *((row[:-1] == EOD).nonzero().flatten() + 1).tolist(), len(row)]
        rows.append(torch.cat([model(row[None, first:end]).logits for first, end in zip(ends, ends[1:])], 1))
    return torch.cat(rows)


def microbatch_loss(model, order, first, by_document=False):
    """The sum of losses over the tokens that count, and their number."""
    batch = dataset.batch(order, first, CASE.micro_batch, CASE)
    tokens, labels, mask = (torch.from_numpy(part.astype("int64")) for part in batch[:3])
    logits = logits_of(model, tokens, by_document).flatten(0, 1)
    each = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="none")
    return (each * mask.flatten()).sum(), mask.sum()


def step_loss(model, order, step, backward, by_document=False):
    """The mean loss over all tokens of a step. Gradients are those of the mean of its microbatches' means."""
    total, tokens, count = 0.0, 0, CASE.global_batch // CASE.micro_batch
    for part in range(count):
        loss, number = microbatch_loss(model, order, step * CASE.global_batch + part * CASE.micro_batch, by_document)
        if backward:
            (loss / number / count).backward()
        total, tokens = total + loss.item(), tokens + number.item()
    return total / tokens


def train(model, order, by_document):
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        losses.append(step_loss(model, order, step, True, by_document))
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        losses.append(step_loss(model.eval(), order, STEPS, False, by_document))
    return losses


def run(binaries, work, settings):
    hf_losses.write_recipe(work, GOLDEN, STEPS)
    return hf_losses.losses_of(binaries / "shardc", work, settings, STEPS)


def apart(ours, theirs):
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


def check_steps(folder, order):
    """With the default of `time_step_min`, transformers computes another model than other programs, if states matter. Should this
    fail, the note on the field in HfFields.def is out of date."""
    losses = []
    for least in (1e-9, 0.001):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"time_step_min": least}))
        model = loaded(folder, **EAGER).eval()
        with torch.no_grad():
            model.model.layers[0].mixer.conv1d.bias += 2
            losses.append(step_loss(model, order, STEPS, False))
    print(f"{folder.parent.name}: with time_step_min 0 and 0.001, losses {losses[0]:.7f} and {losses[1]:.7f}", flush=True)
    expect(apart(losses[:1], losses[1:]) > TOLERANCE, f"time_step_min changes nothing: {losses}")


def check(binaries, work, name):
    kind, config, settings = FAMILIES[name]
    work.mkdir()
    shapes = make(work / "made", kind, config)
    accepted = [f"--accept-field={field}" for field in ACCEPTED.get(name, [])]
    call(binaries / "shardc", "import", "hf", work / "made", "-o", work / "imported.recipe", *accepted)
    call(binaries / "shardc", "ckpt", "import", "hf", work / "made", work / "weights", *accepted)
    order = dataset.SampleOrder(dataset.documents(), (STEPS + 1) * CASE.global_batch, CASE.seq_length, CASE.data_seed)
    by_document = settings[-2:] == DOCUMENTS
    theirs = train(loaded(work / "made", **EAGER), order, by_document)
    ours = run(binaries, work, settings)
    first, worst = apart(ours[:1], theirs[:1]), apart(ours, theirs[:STEPS])
    print(f"{name}: first losses {ours[0]:.7f} and {theirs[0]:.7f}, {first:.1e} apart; {STEPS} losses {worst:.1e}", flush=True)
    expect(worst <= TOLERANCE, f"{name}: {ours}\n{theirs}")
    found = []
    for part, more in (("back", ["--config", work / "made", *accepted]), ("derived", [])):
        call(binaries / "shardc", "ckpt", "export", "hf", work / "saved", work / part, "--weight-dtype=float32", *more)
        with torch.no_grad():
            found.append(step_loss(loaded(work / part, **EAGER).eval(), order, STEPS, False, by_document))
    worst = apart(found, [theirs[STEPS]] * 2)
    print(f"{name}: exported, loss {found[0]:.7f}, in transformers {theirs[STEPS]:.7f}: {worst:.1e} apart", flush=True)
    expect(worst <= TOLERANCE, f"{name}: {found}, {theirs[STEPS]}")
    if name == "nemotron_h":
        check_steps(work / "back", order)
    config = json.loads((work / "made" / "config.json").read_text())
    more = {"accepted": ACCEPTED[name]} if name in ACCEPTED else {}
    return {"config": config, "settings": settings, **more, "shapes": shapes, "losses": theirs[:STEPS]}


def write_values(name, made_by, cases_of):
    """Writes one line for each case, with torch's version if it is not that of the file."""
    head, path = {"made_by": made_by, "torch": torch.__version__, "transformers": transformers.__version__}, GOLDEN / "values" / name
    before = json.loads(path.read_text()) if path.exists() else {**head, "cases": {}}
    head["torch"] = before["torch"]
    for case_name, case in cases_of.items():
        if case != before["cases"].get(case_name) and torch.__version__ != head["torch"]:
            case["torch"] = torch.__version__
    lines = [f"{json.dumps(case_name)}: {json.dumps(case, separators=(',', ':'))}" for case_name, case in cases_of.items()]
    path.write_text(json.dumps(head)[:-1] + ', "cases": {\n' + ",\n".join(lines) + "\n}}\n")


def record(cases_of):
    """Records cases. Those that did not run stay as they are."""
    path = GOLDEN / "values" / "hf_training.json"
    before = json.loads(path.read_text())["cases"] if path.exists() else {}
    cases_of = {name: cases_of.get(name) or before[name] for name in FAMILIES if name in cases_of or name in before}
    write_values(path.name, "test/interop/hf_training.py --record", cases_of)


def main():
    words = [word for word in sys.argv[1:] if word != "--record"]
    binaries = pathlib.Path(words[0]).resolve()
    torch.set_num_threads(1)  # the models are small
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    cases_of = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in words[1:] or FAMILIES:
            cases_of[name] = check(binaries, pathlib.Path(folder) / name, name)
    if "--record" in sys.argv:
        record(cases_of)
    print(f"{VERSIONS}: all equal")


if __name__ == "__main__":
    main()
