"""Exchanges models with Hugging Face's transformers in both directions: `shardc ckpt import/export hf`.

usage: hf_transformers.py BIN

For each family, transformers makes a small model with random weights and saves it. It is imported, exported with its
own config.json, and loaded by AutoModelForCausalLM without a missing or surplus weight; the logits must be bitwise
equal. Then runs of the golden recipes are exported without a config.json. transformers must load them with AutoConfig
and AutoModelForCausalLM alone, and its loss on the next batch must be that of the run's next step, within 1e-5. Of
models that also accept images, the text model is imported and exported, and its logits must be those of the whole
model. BIN is the folder of shardc and shardc-run. Exits with 77 without torch or transformers.
"""

import json
import pathlib
import sys
import tempfile

from hf_models import GOLDEN, VERSIONS, AutoConfig, call, expect, loaded, made, torch, transformers

from safetensors.torch import load_file, save_file
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

sys.path.insert(0, str(GOLDEN))
from maker import cases, dataset  # noqa: E402

STEPS = 4
TOLERANCE = 1e-5
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 99, "max_position_embeddings": 64}
EXPERTS = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
LATENT = {**SIZES, "num_key_value_heads": 4, "moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2,
          "n_shared_experts": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
FAMILIES = {
    "llama": {**SIZES},
    "mistral": {**SIZES, "sliding_window": None},
    "qwen2": {**SIZES},
    "qwen3": {**SIZES, "head_dim": 8},
    "mixtral": {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen2_moe": {**SIZES, **EXPERTS, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {**SIZES, **EXPERTS, "head_dim": 8},
    "deepseek_v3": {**SIZES, "num_key_value_heads": 4, "moe_intermediate_size": 24, "n_routed_experts": 4,
                    "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 1,
                    "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
                    "qk_rope_head_dim": 8, "v_head_dim": 8},
    "nemotron": {**SIZES, "head_dim": 8},
    "deepseek_v2": {**SIZES, "num_key_value_heads": 4, "moe_intermediate_size": 24, "n_routed_experts": 4,
                    "num_experts_per_tok": 2, "n_shared_experts": 2, "first_k_dense_replace": 1, "q_lora_rank": None,
                    "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8},
    "gpt_oss": {**SIZES, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "phi3": {**SIZES, "pad_token_id": None},
    "glm4": {**SIZES, "pad_token_id": None, "head_dim": 8},
    "olmo2": {**SIZES, "pad_token_id": None},
    "glm4_moe": {**SIZES, "head_dim": 8, "moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2,
                 "attention_bias": True, "use_qk_norm": True},
    "gemma2": {**SIZES, "pad_token_id": None, "head_dim": 8, "sliding_window": 8},
    "gemma3_text": {**SIZES, "pad_token_id": None, "head_dim": 8, "sliding_window": 8},
    "llama4_text": {**SIZES, "pad_token_id": None, "head_dim": 8, "intermediate_size": 24, "intermediate_size_mlp": 48,
                    "num_local_experts": 4, "moe_layers": [1]},
    "starcoder2": {**SIZES, "sliding_window": 8},
    "smollm3": {**SIZES, "pad_token_id": None, "no_rope_layer_interval": 2},
    "seed_oss": {**SIZES, "pad_token_id": None, "head_dim": 8},
    "gemma": {**SIZES, "pad_token_id": None, "head_dim": 8, "attention_bias": True},
    "ernie4_5": {**SIZES, "pad_token_id": None, "head_dim": 8, "use_bias": True},
    "arcee": {**SIZES, "mlp_bias": True},
    "helium": {**SIZES, "pad_token_id": None, "head_dim": 8, "attention_bias": True},
    "glm": {**SIZES, "pad_token_id": None, "head_dim": 8},
    "ministral": {**SIZES, "head_dim": 8, "sliding_window": 8},
    "olmo3": {**SIZES, "pad_token_id": None, "sliding_window": 8},
    "olmoe": {**SIZES, "pad_token_id": None, "intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2},
    "stablelm": {**SIZES, "use_qkv_bias": True},
    "dots1": {**SIZES, "head_dim": 8, "moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
              "norm_topk_prob": True, "first_k_dense_replace": 1},
    "glm4_moe_lite": {**LATENT, "mlp_layer_types": ["dense", "sparse"]},
    "mistral4": {**LATENT, "pad_token_id": None, "rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "llama_4_scaling_beta": 0.0, "original_max_position_embeddings": 64}},
    "minimax_m2": {**SIZES, "intermediate_size": 24, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granite": {**SIZES, "attention_bias": True, "mlp_bias": True, "logits_scaling": 8.0},
    "granitemoe": {**SIZES, "intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2, "residual_multiplier": 0.22},
    "hunyuan_v1_dense": {**SIZES, "pad_token_id": None, "head_dim": 8},
    "exaone4": {**SIZES, "sliding_window": 8},
    "qwen3_next": {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
                   "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
                   "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]},
    "nemotron_h": {**{key: SIZES[key] for key in SIZES if key != "num_hidden_layers"}, "hybrid_override_pattern": "M*", "head_dim": 16, "ssm_state_size": 8,
                   "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2},
    "granitemoehybrid": {**SIZES, "intermediate_size": 24, "shared_intermediate_size": 40, "num_local_experts": 4, "mamba_n_heads": 8,
                         "mamba_d_state": 8, "layer_types": ["linear_attention", "full_attention"], "residual_multiplier": 0.22},
    "bamba": {**SIZES, "pad_token_id": None, "attn_layer_indices": [0], "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 8},
    "lfm2": {**SIZES, "pad_token_id": None, "layer_types": ["conv", "full_attention"], "conv_L_cache": 4},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64},
}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
AXES = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
OUTER = {
    "gemma3": {"text_config": {**SIZES, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8, "model_type": "gemma3_text"},
               "vision_config": {**VISION, "model_type": "siglip_vision_model"}, "mm_tokens_per_image": 4},
    "mistral3": {"text_config": {**SIZES, "head_dim": 8, "sliding_window": None, "model_type": "mistral"},
                 "vision_config": {**VISION, "model_type": "pixtral", "head_dim": 8}},
    "llama4": {"text_config": {**SIZES, "head_dim": 8, "intermediate_size": 24, "intermediate_size_mlp": 48, "num_local_experts": 4,
                               "moe_layers": [1]},
               "vision_config": {**VISION, "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}},
    "qwen2_vl": {"text_config": {**SIZES, "rope_parameters": AXES},
                 "vision_config": {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2}},
    "qwen2_5_vl": {"text_config": {**SIZES, "rope_parameters": AXES},
                   "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "out_hidden_size": 32, "num_heads": 2}},
    "qwen3_vl": {"text_config": {**SIZES, "head_dim": 8, "rope_parameters": {**AXES, "mrope_interleaved": True}},
                 "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "out_hidden_size": 32, "num_heads": 2,
                                   "deepstack_visual_indexes": [0], "num_position_embeddings": 16}},
}
OUTER["qwen3_vl_moe"] = {**OUTER["qwen3_vl"], "text_config": {**OUTER["qwen3_vl"]["text_config"], **EXPERTS}}
RUNS = {
    "golden_llama": ("llama", cases.LLAMA, []),
    "golden_llama_tied": ("llama_tied", next(c for c in cases.CASES if c.name == "llama_tied"), []),
    "golden_qwen2": ("llama", cases.LLAMA, ["model.add_qkv_bias=true"]),
    "golden_gpt2": ("gpt2", cases.GPT2, []),
}


def logits_of(model, tokens):
    with torch.no_grad():
        return model(tokens).logits


def check_family(binaries, work, family):
    torch.manual_seed(7)
    model = made(family, FAMILIES[family]).eval()
    with torch.no_grad():  # new biases and norms are zeros and ones, which would hide mistakes
        biases = [value for name, value in model.named_buffers() if name.endswith("e_score_correction_bias")]
        for value in [*model.parameters(), *biases]:
            value.add_(0.1 * torch.randn_like(value))
    folder, saved, back = (work / f"{family}_{part}" for part in ("made", "saved", "back"))
    model.save_pretrained(folder, max_shard_size="20KB")
    expect((folder / "model.safetensors.index.json").exists(), f"{family}: one file")
    call(binaries / "shardc", "ckpt", "import", "hf", folder, saved, "--weight-dtype=float32")
    call(binaries / "shardc", "ckpt", "export", "hf", saved, back, "--config", folder, "--weight-dtype=float32")
    tokens = torch.randint(0, 99, (2, 24))
    expect(torch.equal(logits_of(loaded(back).eval(), tokens), logits_of(loaded(folder).eval(), tokens)), f"{family}: other logits")
    print(f"{family}: loaded without a missing or surplus weight, logits equal to the bit", flush=True)


def turn_experts(folder):
    """Stores the matrices of experts transposed, as published models have them."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, value in tensors.items():
        if ".mlp.experts." in name:
            tensors[name] = value.transpose(1, 2).contiguous()
    save_file(tensors, file, {"format": "pt"})


def check_outer(binaries, work, name, is_turned=False):
    torch.manual_seed(7)
    config = AutoConfig.for_model(name, **OUTER[name])
    model = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)](config).to(torch.float32).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.1 * torch.randn_like(value))
    folder, saved, back = (work / f"{name}_{part}{'_turned' if is_turned else ''}" for part in ("made", "saved", "back"))
    model.save_pretrained(folder)
    if is_turned:
        turn_experts(folder)
    call(binaries / "shardc", "ckpt", "import", "hf", folder, saved, "--weight-dtype=float32")
    call(binaries / "shardc", "ckpt", "export", "hf", saved, back, "--weight-dtype=float32")
    tokens = torch.randint(0, 99, (2, 24))
    text = model.language_model if name == "llama4" else model  # the whole model needs an image
    exported = loaded(back).eval()
    far = (logits_of(exported, tokens) - logits_of(text, tokens)).abs().max().item()
    expect(far <= TOLERANCE, f"{name}: logits {far} apart")
    print(f"{name}: {type(exported).__name__}, logits {far:.1e} apart", flush=True)


def losses_of(binaries, work, recipe, *settings):
    metrics = work / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    call(binaries / "shardc", "run", f"{recipe}.recipe", f"--metrics={metrics}", *(f"--set={s}" for s in settings), cwd=GOLDEN)
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def loss_of(model, case):
    """The loss on the batch after STEPS steps: the mean over all tokens that count."""
    order = dataset.SampleOrder(dataset.documents(), case.steps * case.global_batch, case.seq_length, case.data_seed)
    batch = dataset.batch(order, STEPS * case.global_batch, case.global_batch, case)
    tokens, labels, mask = (torch.from_numpy(part.astype("int64")) for part in batch[:3])
    each = torch.nn.functional.cross_entropy(logits_of(model, tokens).flatten(0, 1).double(), labels.flatten(), reduction="none")
    return ((each * mask.flatten()).sum() / mask.sum()).item()


def check_run(binaries, work, name):
    recipe, case, settings = RUNS[name]
    fsdp = ["dist.use_megatron_fsdp=true", "ddp.use_megatron_fsdp=true", "cluster.gpus_per_node=2", *settings]
    whole = losses_of(binaries, work, recipe, *fsdp)
    saved, exported = work / f"{name}_run", work / f"{name}_exported"
    losses_of(binaries, work, recipe, *fsdp, f'checkpoint.save="{saved}"', f"train.exit_interval={STEPS}")
    call(binaries / "shardc", "ckpt", "export", "hf", saved, exported, "--weight-dtype=float32")
    config, model = AutoConfig.from_pretrained(exported), loaded(exported).eval()
    expect(config.vocab_size == 257, f"{name}: {config.vocab_size} tokens")
    ours, theirs = whole[STEPS], loss_of(model, case)
    far = abs(ours - theirs) / ours
    expect(far <= TOLERANCE, f"{name}: loss {theirs} in transformers, {ours} in the run")
    print(f"{name}: {type(model).__name__} from the derived config.json, loss {theirs:.7f}, the run's {ours:.7f}: {far:.1e} apart", flush=True)


def main():
    binaries = pathlib.Path(sys.argv[1]).resolve()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        for family in FAMILIES:
            check_family(binaries, work, family)
        for outer in OUTER:
            check_outer(binaries, work, outer)
        check_outer(binaries, work, "qwen3_vl_moe", is_turned=True)
        for run in RUNS:
            check_run(binaries, work, run)
    print(f"{VERSIONS}: all equal")


if __name__ == "__main__":
    main()
