"""The jobs whose plans changed_plans.py changes: small, and together with every feature."""

COMMON = {
    "train.train_iters": 4, "train.global_batch_size": None, "checkpoint.save": '"ck"', "checkpoint.load": '"ck"',
    "checkpoint.save_interval": 2, "validation.eval_interval": 2, "validation.eval_iters": 1,
    "logger.log_interval": 1, "scheduler.lr_warmup_iters": 1,
}
TINY = {"model.hidden_size": 32, "model.num_attention_heads": 4, "model.num_query_groups": 2, "model.kv_channels": 8,
        "model.ffn_hidden_size": 48, "model.seq_length": 16, "model.vocab_size": 61,
        "model.make_vocab_size_divisible_by": 8}
WIDE = {**TINY, "model.hidden_size": 64, "model.kv_channels": 16, "model.ffn_hidden_size": 64, "model.seq_length": 32}
EXPERTS = {**TINY, "model.moe_ffn_hidden_size": 24}
FSDP = {"dist.use_megatron_fsdp": "true", "ddp.use_megatron_fsdp": "true",
        "ddp.data_parallel_sharding_strategy": "optim_grads_params", "ddp.average_in_collective": "false",
        "checkpoint.ckpt_format": "fsdp_dtensor"}
GRADS = {**FSDP, "ddp.data_parallel_sharding_strategy": "optim_grads"}
OPTIM = {**FSDP, "ddp.data_parallel_sharding_strategy": "optim"}
DISTOPT = {"ddp.use_distributed_optimizer": "true"}
BF16 = {"mixed_precision": "bf16_mixed"}


def size(ranks, batch, micro=1):
    return {"cluster.gpus_per_node": ranks, "train.global_batch_size": batch, "train.micro_batch_size": micro}


def tensor(n, **more):
    return {"model.tensor_model_parallel_size": n, "model.sequence_parallel": "true", **more}


def context(n, kind="p2p"):
    return {"model.context_parallel_size": n, "model.cp_comm_type": kind}


def stages(n, schedule="one_forward_one_backward", chunks=None, layers=None):
    found = {"model.pipeline_model_parallel_size": n, "model.pipeline_schedule": schedule}
    if chunks:
        found["model.virtual_pipeline_model_parallel_size"] = chunks
    if layers:
        found["model.num_layers"] = layers
    return found


def experts(n, **more):
    return {"model.expert_model_parallel_size": n, **more}


LORA = {"peft": "lora", "peft.rank": 4, "peft.alpha": 8, "peft.targets": '["all-linear"]'}
MUON = {"optimizer": "muon", "optimizer.muon_num_ns_steps": 2}
PACKS = {"dataset.kind": "packed", "dataset.train_data_path": '["PACKS"]', "dataset.valid_data_path": '["MORE"]'}
MTP = {"model.mtp_num_layers": 1}
OVERLAP = {"model.overlap_moe_expert_parallel_comm": "true", "model.moe_token_dispatcher_type": "alltoall"}
AUX = {"model.moe_aux_loss_coeff": "[0.01]", "model.moe_z_loss_coeff": "0.001"}

# name: (recipe below recipes/, settings...)
JOBS = {
    "ddp": ("debug/llama_tiny", TINY, size(2, 6)),
    "ddp-average": ("debug/llama_tiny", TINY, BF16, size(2, 6), {"ddp.average_in_collective": "true",
                                                               "optimizer.lr": "2e-3", "optimizer.clip_grad": 0}),
    "distopt": ("debug/llama_tiny", TINY, DISTOPT, size(2, 6), {
        "train.check_weight_hash_across_dp_replicas_interval": 2, "optimizer.decoupled_lr": "5e-4"}),
    "fsdp": ("debug/llama_tiny", TINY, FSDP, size(2, 6)),
    "fsdp-bf16": ("debug/llama_tiny", TINY, FSDP, BF16, size(2, 6), {
        "model.recompute_granularity": "full", "model.recompute_method": "uniform", "model.recompute_num_layers": 1,
        "optimizer.use_precision_aware_optimizer": "true", "optimizer.exp_avg_dtype": "bf16"}),
    "grads": ("debug/llama_tiny", TINY, GRADS, BF16, size(2, 6), {"ddp.average_in_collective": "true"}),
    "optim-fp16": ("debug/llama_tiny", TINY, OPTIM, size(2, 6), {"mixed_precision": "fp16_mixed",
                                                              "optimizer.initial_loss_scale": 65536}),
    "fsdp2": ("debug/llama_tiny", TINY, size(3, 6), {"dist.use_torch_fsdp2": "true"}),
    "hsdp": ("debug/llama_tiny", TINY, FSDP, size(4, 8), {"ddp.num_distributed_optimizer_instances": 2}),
    "hfsdp": ("debug/llama_tiny", TINY, FSDP, size(4, 8), {"ddp.num_distributed_optimizer_instances": 2,
                                                         "ddp.outer_dp_sharding_strategy": "optim"}),
    "gpt-tensor": ("debug/gpt2_tiny", TINY, tensor(2), size(2, 3), {"model.num_query_groups": None}),
    "tensor-fsdp": ("debug/llama_tiny", TINY, FSDP, tensor(2), size(4, 4, 2), {
        "model.tp_comm_overlap": "true", "model.tp_comm_overlap_pieces": 2}),
    "tensor-groups": ("debug/llama_tiny", TINY, tensor(4), DISTOPT, size(4, 2), {
        "model.qk_layernorm": "true"}),
    "context": ("debug/llama_tiny", TINY, FSDP, context(2, "[p2p, a2a]"), size(4, 4)),
    "context-levels": ("debug/llama_tiny", TINY, context(4, '["a2a+p2p", "all_gather"]'), size(4, 2), {
        "model.hierarchical_context_parallel_sizes": "[2, 2]"}),
    "pipeline": ("debug/gpt2_tiny", TINY, stages(2), size(2, 3), {"model.num_query_groups": None}),
    "pipeline-chunks": ("debug/llama_tiny", TINY, stages(2, chunks=2, layers=4), size(4, 8)),
    "pipeline-fsdp": ("debug/llama_tiny", TINY, FSDP, stages(2, "interleaved", 2, 4), size(4, 8)),
    "pipeline-zero": ("debug/llama_tiny", TINY, stages(4, "zero_bubble", layers=4), size(4, 5)),
    "pipeline-zero-tensor": ("debug/llama_tiny", TINY, stages(2, "zero_bubble"), tensor(2), FSDP, size(4, 3)),
    "pipeline-frozen": ("debug/llama_tiny", TINY, stages(2), GRADS, size(4, 6), {
        "model.freeze": '["embedding", "layers.0"]'}),
    "pipeline-cells": ("debug/llama_tiny", TINY, FSDP, stages(2, "dual_pipe_v", 2, 4), size(8, 16), {
        "ddp.num_distributed_optimizer_instances": 2}),
    "experts-cells": ("debug/mixtral_tiny", EXPERTS, BF16, OVERLAP, FSDP, experts(2), size(2, 6)),
    "experts-cells-chunks": ("debug/mixtral_tiny", EXPERTS, BF16, OVERLAP, stages(2, chunks=2, layers=4), experts(2), size(4, 8)),
    "experts": ("debug/mixtral_tiny", EXPERTS, AUX, experts(2), size(2, 6)),
    "experts-tensor": ("debug/mixtral_tiny", EXPERTS, AUX, tensor(2), experts(2), FSDP, size(4, 4), {
        "model.expert_tensor_parallel_size": 2}),
    "experts-bias": ("debug/glm45_tiny", EXPERTS, MTP, experts(2), FSDP, size(2, 6), AUX),
    "experts-prediction": ("debug/glm45_tiny", EXPERTS, {"model.mtp_num_layers": 2}, stages(2), size(4, 6),
                           {"model.moe_layer_freq": "[0, 1, 1, 1]", "model.num_layers": 4}),
    "experts-losses": ("debug/qwen2_moe_tiny", EXPERTS, tensor(2), size(4, 4), {
        "model.moe_router_load_balancing_type": "[seq_aux_loss, global_aux_loss]",
        "model.moe_aux_loss_coeff": "[0.01, 0.02]", "model.moe_shared_expert_intermediate_size": 32}),
    "experts-capacity": ("debug/mixtral_tiny", EXPERTS, experts(2), size(2, 4), DISTOPT, AUX, {
        "model.moe_expert_capacity_factor": 1.0}),
    "experts-sinkhorn": ("debug/mixtral_tiny", EXPERTS, size(2, 4), {
        "model.moe_router_load_balancing_type": "[sinkhorn]"}),
    "experts-biases": ("debug/gpt_oss_experts_tiny", EXPERTS, experts(2), size(4, 4), GRADS, AUX),
    "experts-chunks": ("debug/llama4_tiny", EXPERTS, size(2, 4), FSDP),
    "latent": ("debug/latent_tiny", {"model.seq_length": 16, "model.vocab_size": 61, "model.hidden_size": 32,
                                     "model.ffn_hidden_size": 48}, MTP, tensor(2), size(4, 4), FSDP),
    "gemma": ("debug/gemma2_tiny", TINY, stages(2), tensor(2), size(4, 3), DISTOPT),
    "gemma3": ("debug/gemma3_tiny", TINY, {"model.num_layers": 3, "model.window_attn_skip_freq": "[1, 0, 1]"},
               context(2, "all_gather"), size(2, 3), FSDP),
    "lora": ("debug/llama_tiny", TINY, LORA, size(2, 6)),
    "lora-fsdp": ("debug/llama_tiny", TINY, LORA, FSDP, BF16, size(2, 6), {"ddp.keep_frozen": "always",
                                                                         "peft.dropout": 0.1}),
    "lora-tensor": ("debug/llama_tiny", TINY, LORA, FSDP, tensor(2), size(4, 4), {
        "peft.modules_to_save": '["norm"]'}),
    "dora": ("debug/llama_tiny", TINY, LORA, FSDP, size(2, 6), {"peft": "dora"}),
    "dora-tensor": ("debug/llama_tiny", TINY, LORA, tensor(2), stages(2), size(4, 3), {"peft": "dora"}),
    "qlora": ("debug/llama_tiny", WIDE, LORA, FSDP, BF16, size(2, 4), {"peft.quantize": "nf4"}),
    "lora-fp8": ("debug/llama_tiny", WIDE, LORA, FSDP, BF16, size(2, 4), {
        "mixed_precision.fp8": "hybrid", "mixed_precision.fp8_recipe": "delayed", "peft.quantize": "fp8",
        "mixed_precision.fp8_amax_history_len": 4}),
    "lora-experts": ("debug/mixtral_tiny", EXPERTS, AUX, LORA, experts(2), FSDP, size(4, 4), {
        "peft.targets": '["experts.linear_fc1", "experts.linear_fc2", "linear_qkv"]'}),
    "packs": ("debug/llama_tiny", TINY, PACKS, size(2, 6)),
    "packs-context": ("debug/llama_tiny", TINY, PACKS, FSDP, context(2), size(4, 6)),
    "packs-experts": ("debug/mixtral_tiny", EXPERTS, PACKS, AUX, experts(2), size(2, 6)),
    "dpo": ("debug/llama_tiny", TINY, LORA, FSDP, size(2, 6), {"preference.loss": "sigmoid"}),
    "orpo": ("debug/llama_tiny", TINY, size(4, 6), stages(2), DISTOPT, {"preference.loss": "orpo"}),
    "ipo-tensor": ("debug/llama_tiny", TINY, tensor(2), size(4, 4), FSDP, {"preference.loss": "ipo"}),
    "muon": ("debug/llama_tiny", TINY, MUON, size(2, 6), {"optimizer.muon_nesterov": "true"}),
    "muon-fsdp": ("debug/llama_tiny", TINY, MUON, FSDP, size(2, 6), {"optimizer.muon_split_fc1": "true"}),
    "muon-tensor": ("debug/llama_tiny", TINY, MUON, FSDP, tensor(2), size(4, 4), {
        "optimizer.muon_tp_mode": "distributed"}),
    "muon-groups": ("debug/llama_tiny", TINY, MUON, tensor(4), size(4, 2)),
    "muon-experts": ("debug/mixtral_tiny", EXPERTS, AUX, MUON, experts(2), DISTOPT, size(4, 4), {
        "optimizer.muon_scalar_optimizer": "lion"}),
    "muon-heads": ("debug/latent_tiny", {"model.seq_length": 16, "model.vocab_size": 61}, MUON, tensor(2), OPTIM,
                   size(4, 4), {"optimizer.muon_split_qkv_per_head": "true"}),
    "fp8-delayed": ("debug/llama_tiny", WIDE, FSDP, size(2, 4), {
        "mixed_precision": "bf16_with_fp8_delayed_scaling_mixed", "mixed_precision.fp8_amax_history_len": 4}),
    "fp8-tensorwise": ("debug/llama_tiny", WIDE, tensor(2), size(4, 4), DISTOPT, {
        "mixed_precision": "bf16_mixed", "mixed_precision.fp8": "hybrid",
        "mixed_precision.fp8_recipe": "tensorwise"}),
    "fp8-blocks": ("debug/mixtral_tiny", {**WIDE, "model.moe_ffn_hidden_size": 32}, AUX, experts(2), FSDP,
                   size(2, 4), {"mixed_precision": "bf16_mixed", "mixed_precision.fp8": "hybrid",
                                "mixed_precision.fp8_recipe": "blockwise"}),
    "fp8-experts": ("debug/mixtral_tiny", {**WIDE, "model.moe_ffn_hidden_size": 32}, experts(2), size(2, 4), {
        "mixed_precision": "bf16_mixed", "mixed_precision.fp8": "hybrid", "mixed_precision.fp8_recipe": "delayed"}),
    "background": ("debug/llama_tiny", TINY, FSDP, size(2, 4), {"checkpoint.async_save": "true"}),
    "background-ddp": ("debug/llama_tiny", TINY, BF16, size(2, 4), {
        "checkpoint.async_save": "true", "checkpoint.snapshot_staging": "1MiB"}),
    "background-stages": ("debug/gpt2_tiny", TINY, stages(2), DISTOPT, size(4, 6), {
        "model.num_query_groups": None, "checkpoint.async_save": "true"}),
    "growing": ("debug/llama_tiny", TINY, FSDP, size(2, 6), {
        "train.train_iters": None, "train.train_samples": 20, "train.rampup_batch_size": "[2, 2, 8]",
        "scheduler.lr_warmup_iters": None}),
    "sgd-frozen": ("debug/llama_tiny", TINY, FSDP, size(2, 4), {"optimizer": "sgd", "model.freeze": '["embedding"]'}),
    "lion": ("debug/starcoder2_tiny", TINY, size(2, 4), {
        "optimizer": "lion", "scheduler.lr_decay_style": "WSD", "scheduler.lr_wsd_decay_iters": 2,
        "train.iterations_to_skip": "[2]"}),
    "sets": ("debug/smollm3_tiny", TINY, FSDP, size(2, 4), {
        "dataset.kind": "indexed", "dataset.train_data_path": '["WORDS"]',
        "dataset.valid_data_path": '["WORDS", "WORDS2"]', "dataset.test_data_path": '["WORDS2"]',
        "validation.multiple_validation_sets": "true", "dataset.dataloader_type": "cyclic",
        "scheduler.weight_decay_incr_style": "linear", "scheduler.start_weight_decay": 0.0,
        "scheduler.end_weight_decay": 0.1}),
}


def settings_of(name, data):
    """The settings of a job, with the prefixes of its data."""
    merged = dict(COMMON)
    for part in JOBS[name][1:]:
        merged.update(part)
    if "scheduler.lr_warmup_iters" not in merged or merged["scheduler.lr_warmup_iters"] is None:
        merged["scheduler.lr_warmup_iters"] = "none"
    found = []
    for option, value in merged.items():
        if value is None:
            value = "none"
        text = str(value)
        for word, prefix in data.items():
            text = text.replace(f'"{word}"', f'"{prefix}"')
        found.append(f"{option}={text}")
    return found
