"""Draws jobs from what docs/options.md and the pages of features say: a model, how it is trained, and a layout.

A job is a dictionary of settings. Those of the layout are apart, so that the same job can have one rank, or another layout.
"""

DENSE = ["gpt", "llama", "mistral", "qwen2", "qwen3", "nemotron", "phi3", "glm4", "olmo2", "gemma2", "gemma3",
         "starcoder2", "smollm3"]
ROUTED = ["mixtral", "qwen3_moe", "gpt_oss", "glm4_moe", "llama4", "qwen2_moe"]
LATENT = ["deepseek_v2", "deepseek_v3", "moonlight"]
FP8 = ["tensorwise", "delayed", "blockwise"]


def draw_model(draw, wide):
    """The model. `wide`: 0, or the number of which all widths are multiples (16 for fp8, 64 and 512 for 4 bits)."""
    family = draw.choice(draw.choice([DENSE, DENSE, ROUTED, ROUTED, LATENT]))
    heads = draw.choice([4, 4, 8])
    head = draw.choice([8, 16]) if not wide else draw.choice([16, 32])
    job = {
        "model": family, "model.num_layers": draw.choice([2, 2, 3, 4, 4]), "model.hidden_size": draw.choice([32, 48, 64]),
        "model.num_attention_heads": heads, "model.num_query_groups": draw.choice([1, 2, 4, heads]),
        "model.kv_channels": head, "model.ffn_hidden_size": draw.choice([48, 64, 96]),
        "model.seq_length": draw.choice([16, 32]), "model.vocab_size": draw.choice([61, 96, 257]),
        "model.make_vocab_size_divisible_by": draw.choice([8, 16, 64]),
    }
    if wide:
        job.update({"model.hidden_size": max(64, 2 * wide), "model.ffn_hidden_size": max(64, 2 * wide),
                    "model.seq_length": 32, "model.num_attention_heads": 4, "model.num_query_groups": draw.choice([2, 4]),
                    "model.kv_channels": max(16, wide // 2)})
    if family == "gpt_oss":
        job["model.window_size"] = "[7, 0]"
        if draw.random() < 0.3:
            job["model.num_moe_experts"] = "none"
    if family in ("gemma2", "gemma3", "mistral", "starcoder2"):
        job["model.window_size"] = "[7, 0]"
    if family == "llama4":
        job.update({"model.attention_chunk_size": 12, "model.attn_floor_scale": 8})
    if family in LATENT:
        job.pop("model.kv_channels")
        job.update({"model.q_lora_rank": draw.choice(["none", 16, 32]), "model.kv_lora_rank": draw.choice([16, 32]),
                    "model.qk_head_dim": 16, "model.qk_pos_emb_head_dim": draw.choice([8, 16]),
                    "model.v_head_dim": 16, "model.num_query_groups": job["model.num_attention_heads"]})
        if wide:
            job.update({"model.qk_pos_emb_head_dim": 16, "model.kv_lora_rank": 32, "model.q_lora_rank": 32})
    experts = (family in ROUTED or family in LATENT) and job.get("model.num_moe_experts") != "none"
    if experts:
        draw_experts(draw, job, family, wide)
    draw_details(draw, job, family)
    return job, experts


def draw_experts(draw, job, family, wide):
    width = 32 if wide else draw.choice([16, 24, 48])
    job.update({"model.num_moe_experts": draw.choice([4, 4, 8]), "model.moe_router_topk": draw.choice([1, 2, 2, 3]),
                "model.moe_ffn_hidden_size": width})
    layers = job["model.num_layers"]
    if family in ("deepseek_v2", "deepseek_v3", "moonlight", "glm4_moe", "llama4") or draw.random() < 0.2:
        freq = [draw.choice([0, 1]) for _ in range(layers)]
        freq[-1] = 1
        job["model.moe_layer_freq"] = f"[{', '.join(map(str, freq))}]"
    if family in ("deepseek_v2", "deepseek_v3", "moonlight", "glm4_moe", "llama4", "qwen2_moe"):
        job["model.moe_shared_expert_intermediate_size"] = width * draw.choice([1, 2])
    if family in ("deepseek_v2", "deepseek_v3", "moonlight", "glm4_moe"):
        if draw.random() < 0.5:
            job.update({"model.moe_router_num_groups": 2, "model.moe_router_group_topk": 1,
                        "model.moe_router_topk": draw.choice([1, 2])})
        else:
            job.update({"model.moe_router_num_groups": "none", "model.moe_router_group_topk": "none"})
    kinds = draw.choice([["aux_loss"], ["aux_loss"], ["seq_aux_loss"], ["none"], ["aux_loss", "seq_aux_loss"]])
    job["model.moe_router_load_balancing_type"] = f"[{', '.join(kinds)}]"
    job["model.moe_aux_loss_coeff"] = f"[{', '.join(draw.choice(['0.01', '0.02', '0.1']) for _ in kinds)}]"
    if kinds == ["none"]:
        job["model.moe_aux_loss_coeff"] = "[0.0]"
    if draw.random() < 0.4:
        job["model.moe_z_loss_coeff"] = draw.choice(["0.001", "0.01"])
    if draw.random() < 0.2:
        job["model.moe_input_jitter_eps"] = 0.01
    if draw.random() < 0.2:
        job["model.moe_router_dtype"] = "fp32"


def draw_details(draw, job, family):
    """Settings that any model may have; rules refuse some of them."""
    if draw.random() < 0.25:
        job["model.share_embeddings_and_output_weights"] = draw.choice(["true", "false"])
    if draw.random() < 0.15:
        job["model.hidden_dropout"] = job["model.attention_dropout"] = 0.1
    else:
        job["model.hidden_dropout"] = job["model.attention_dropout"] = 0.0
    if draw.random() < 0.15:
        job["model.qk_layernorm"] = "true"
    if draw.random() < 0.1:
        job["model.softmax_type"] = draw.choice(["off-by-one", "learnable"]).join('""')
    if draw.random() < 0.1:
        job["model.add_qkv_bias"] = "true"
    if draw.random() < 0.1:
        job["model.final_logit_softcapping"] = 2.0
    if draw.random() < 0.1:
        job["model.layernorm_zero_centered_gamma"] = "true"
    if draw.random() < 0.1:
        job["model.calculate_per_token_loss"] = "true"
    if draw.random() < 0.12:
        job["model.mtp_num_layers"] = draw.choice([1, 2])
    elif family in ("deepseek_v3", "glm4_moe"):
        job["model.mtp_num_layers"] = draw.choice(["none", "none", 1])
    if draw.random() < 0.2:
        job.update(draw.choice([
            {"model.recompute_granularity": "full", "model.recompute_method": "uniform",
             "model.recompute_num_layers": 1},
            {"model.recompute_granularity": "full", "model.recompute_method": "block", "model.recompute_num_layers": 1},
            {"model.recompute_granularity": "selective", "model.recompute_modules": "[core_attn]"},
            {"model.recompute_granularity": "selective", "model.recompute_modules": "[layernorm, moe_act]"}]))
    if draw.random() < 0.1:
        job["model.loss_chunk_rows"] = 8
    if draw.random() < 0.1:
        job["model.mask_padded_vocab"] = "false"


def draw_training(draw, job, experts, precision, wide, data):
    """Optimizer, precision, adapters, frozen parts, packs, preferences."""
    job.update({"train.train_iters": 3, "optimizer.lr": draw.choice(["1e-3", "3e-3"]), "optimizer.weight_decay": 0.1,
                "optimizer.clip_grad": draw.choice([0, 1.0, 0.5]), "scheduler.lr_warmup_iters": 0,
                "scheduler.lr_decay_style": draw.choice(["constant", "cosine"]), "logger.log_interval": 1})
    kind = draw.choice(["adam"] * 5 + ["sgd", "lion", "muon", "muon", "muon"])
    job["optimizer"] = kind
    if kind == "muon":
        job.update({"optimizer.muon_num_ns_steps": draw.choice([2, 5]),
                    "optimizer.muon_fp32_matmul_prec": "highest",
                    "optimizer.muon_nesterov": draw.choice(["true", "false"]),
                    "optimizer.muon_split_fc1": draw.choice(["true", "false"]),
                    "optimizer.muon_split_qkv": draw.choice(["true", "true", "false"]),
                    "optimizer.muon_split_qkv_per_head": draw.choice(["false", "false", "true"]),
                    "optimizer.muon_scalar_optimizer": draw.choice(["adam", "adam", "lion"])})
    if kind == "sgd":
        job["optimizer.lr"] = "1e-2"
    if precision == "bf16":
        job["mixed_precision"] = "bf16_mixed"
        if draw.random() < 0.2 and kind == "adam":
            job["optimizer.use_precision_aware_optimizer"] = "true"
    elif precision == "fp16":
        job.update({"mixed_precision": "fp16_mixed", "optimizer.initial_loss_scale": 1024})
    elif precision != "fp32":
        job.update({"mixed_precision": "bf16_mixed", "mixed_precision.fp8": draw.choice(["hybrid", "e4m3"]),
                    "mixed_precision.fp8_recipe": precision})
        if precision == "delayed":
            job.update({"mixed_precision.fp8_amax_history_len": 4, "mixed_precision.fp8_amax_compute_algo":
                        draw.choice(["max", "most_recent"])})
    tuned = draw.random()
    if wide in (64, 512) or tuned < 0.25:
        job.update({"peft": draw.choice(["lora", "lora", "canonical_lora", "dora"]), "peft.rank": draw.choice([2, 4]),
                    "peft.alpha": 8})
        if wide in (64, 512):
            job["peft.quantize"] = "nf4" if wide == 64 else "nf4_double"
        elif precision in FP8 and draw.random() < 0.5:
            job["peft.quantize"] = "fp8"
        if draw.random() < 0.4:
            job["peft.targets"] = draw.choice([
                '["all-linear"]', '["linear_qkv", "linear_proj"]', '["q_proj", "v_proj"]', '["linear_fc1", "linear_fc2"]',
                '["experts.linear_fc1", "experts.linear_fc2"]'])
        if draw.random() < 0.2:
            job["peft.modules_to_save"] = draw.choice(['["norm"]', '["embed_tokens"]', '["lm_head"]'])
        if draw.random() < 0.2:
            job["peft.dropout"] = 0.1
        if draw.random() < 0.2:
            job["peft.rslora"] = "true"
    elif tuned < 0.4:
        job["model.freeze"] = draw.choice(['["embedding"]', '["layers.0"]', '["layers.0", "embedding"]', '["norm"]',
                                           '["layers.qkv"]', '["layers"]', '["head"]', '["bias"]', '["experts"]',
                                           '["base.router"]', '["feed_forward"]'])
    if draw.random() < 0.15:
        job["preference.loss"] = draw.choice(["sigmoid", "sigmoid_norm", "ipo", "robust", "orpo"])
        if job["preference.loss"] != "orpo":
            job["preference.label_smoothing"] = draw.choice([0, 0.1])
            if job["preference.loss"] == "ipo":
                job["preference.label_smoothing"] = 0
        if experts:
            job.update({"model.moe_aux_loss_coeff": "[0.0]", "model.moe_z_loss_coeff": "none",
                        "model.moe_router_load_balancing_type": "[none]"})
        job["model.mtp_num_layers"] = "none"
    elif draw.random() < 0.2:
        length = job["model.seq_length"]
        job.update({"dataset.kind": "packed", "dataset.train_data_path": f'["{data}/packs{length}"]',
                    "dataset.valid_data_path": f'["{data}/more{length}"]', "model.mtp_num_layers": "none"})
        if experts:  # packs are divided among microbatches by the layout, and these losses are means of microbatches
            job.update({"model.moe_aux_loss_coeff": "[0.0]", "model.moe_z_loss_coeff": "none",
                        "model.moe_router_load_balancing_type": "[none]"})
    if draw.random() < 0.5:
        job.update({"validation.eval_interval": 2, "validation.eval_iters": 1})


def draw_layout(draw, job, experts):
    """A layout, and how samples are divided into microbatches; both lists of settings."""
    world = draw.choice([2, 2, 3, 4, 4, 4, 6, 8, 8])
    free = world
    layout = {}

    def take(choices):
        nonlocal free
        found = draw.choice([choice for choice in choices if free % choice == 0] or [1])
        free //= found
        return found

    kinds = ["tp", "cp", "pp"]
    draw.shuffle(kinds)
    sizes = {"tp": 1, "cp": 1, "pp": 1}
    for kind in kinds:
        if draw.random() < 0.4:
            sizes[kind] = take([2, 2, 4])
    if sizes["tp"] > 1:
        layout["model.tensor_model_parallel_size"] = sizes["tp"]
        if experts or draw.random() < 0.6:
            layout["model.sequence_parallel"] = "true"
            if draw.random() < 0.3:
                layout.update({"model.tp_comm_overlap": "true", "model.tp_comm_overlap_pieces": draw.choice([2, 4, 8])})
        if job.get("optimizer") == "muon":
            layout["optimizer.muon_tp_mode"] = draw.choice(["duplicated", "distributed"])
    if sizes["cp"] > 1:
        layout["model.context_parallel_size"] = sizes["cp"]
        kind = draw.choice(["p2p", "p2p", "all_gather", "a2a", "a2a+p2p"])
        layout["model.cp_comm_type"] = f'["{kind}"]'
        if kind == "a2a+p2p":
            layout["model.hierarchical_context_parallel_sizes"] = f"[2, {max(1, sizes['cp'] // 2)}]"
    microbatches = draw.choice([1, 2, 3, 4])
    if sizes["pp"] > 1:
        layout["model.pipeline_model_parallel_size"] = sizes["pp"]
        schedule = draw.choice(["one_forward_one_backward", "zero_bubble", "interleaved", "interleaved"])
        layout["model.pipeline_schedule"] = schedule
        if schedule == "interleaved":
            layout["model.virtual_pipeline_model_parallel_size"] = 2
            microbatches = draw.choice([sizes["pp"], 2 * sizes["pp"], sizes["pp"] + 1])
        elif draw.random() < 0.2:
            layout["model.pipeline_split"] = "balanced"
    if experts and draw.random() < 0.7:
        layout["model.expert_model_parallel_size"] = draw.choice([
            size for size in (1, 2, 2, 4) if (free * sizes["cp"] * sizes["tp"]) % size == 0])
        if sizes["tp"] > 1 and draw.random() < 0.5:
            layout["model.expert_tensor_parallel_size"] = draw.choice([1, sizes["tp"]])
    strategy = draw.choice(["ddp", "distopt", "optim", "optim_grads", "optim_grads_params", "optim_grads_params",
                            "hsdp", "hfsdp", "fsdp2"])
    if strategy == "distopt":
        layout["ddp.use_distributed_optimizer"] = "true"
    elif strategy == "fsdp2":
        layout["dist.use_torch_fsdp2"] = "true"
    elif strategy != "ddp":
        layout.update({"dist.use_megatron_fsdp": "true", "ddp.use_megatron_fsdp": "true",
                       "ddp.data_parallel_sharding_strategy": "optim_grads_params" if strategy[0] == "h" else strategy})
        if strategy[0] == "h":
            layout["ddp.num_distributed_optimizer_instances"] = 2
        if strategy == "hfsdp":
            layout["ddp.outer_dp_sharding_strategy"] = "optim"
        if draw.random() < 0.1:
            layout["ddp.fsdp_double_buffer"] = "true"
        if "mixed_precision.fp8" in job and job["mixed_precision.fp8_recipe"] in ("tensorwise", "delayed") and (
                strategy == "optim_grads_params" and draw.random() < 0.3):
            layout["ddp.fp8_param_gather"] = "true"
        if ("model.freeze" in job or "peft" in job) and draw.random() < 0.3:
            layout["ddp.keep_frozen"] = "always"
    if draw.random() < 0.15:
        layout["ddp.average_in_collective"] = "true"
    if draw.random() < 0.15 and "mixed_precision" in job:
        layout["ddp.grad_reduce_in_fp32"] = "true"
    layout["cluster.gpus_per_node"] = world
    # What a rank's rows decide (docs/experts-router.md) is drawn only where a rank has all rows of its microbatch.
    whole = {}
    if experts and sizes["tp"] == 1 and sizes["cp"] == 1 and "preference.loss" not in job:
        if draw.random() < 0.1:
            whole = {"model.moe_expert_capacity_factor": 1.0,
                     "model.moe_token_drop_policy": draw.choice(["probs", "position"])}
        elif draw.random() < 0.1:
            whole = {"model.moe_router_load_balancing_type": "[sinkhorn]", "model.moe_aux_loss_coeff": "[0.0]"}
    if job.get("dataset.kind") == "packed":
        whole = {}  # a microbatch has other packs in another layout (docs/data.md: dataloader_type = batch)
    micro = draw.choice([1, 1, 2])
    return layout, {"train.micro_batch_size": micro, "train.global_batch_size": micro * microbatches * free, **whole}


def one_rank(job, layout):
    """One rank in place of a layout. Rows of padding that count in the softmax are as many as in the layout."""
    parts = layout.get("model.tensor_model_parallel_size", 1)
    layout = {"cluster.gpus_per_node": 1}
    if job.get("model.mask_padded_vocab") == "false":
        layout["model.make_vocab_size_divisible_by"] = parts * job["model.make_vocab_size_divisible_by"]
    if job.get("optimizer") == "muon":
        layout["optimizer.muon_tp_mode"] = "duplicated"
    if "optimizer.use_precision_aware_optimizer" in job:
        layout["ddp.use_distributed_optimizer"] = "true"  # the option needs it
    return layout


def recipe_of(*parts):
    """The text of a recipe with the settings of several dictionaries; a later one wins."""
    job = {"cluster.gpu": "host", "cluster.nodes": 1, "dataset.kind": "synthetic"}
    for part in parts:
        job.update(part)
    words = ["recipe drawn {"]
    words += [f"  {option} = {value}" for option, value in job.items() if value != "none" or option != "model"]
    return "\n".join(words + ["}"]) + "\n"
