"""Draws the options on which plans depend most, together, so that rules accept most jobs: sizes of the model and the
job, the strategy, number types, the pipeline schedule and recomputation.

    draw_job(random) -> settings, by option path
"""

import os
import random

from recipes import OPTIONS

CHUNKS, SCHEDULE = "model.virtual_pipeline_model_parallel_size", "model.pipeline_schedule"
MODULES = [["core_attn"], ["mlp"], ["layernorm"], ["layernorm", "mlp"], ["core_attn", "layernorm"], ["core_attn", "layernorm", "mlp"]]
MODULES += [["moe"], ["moe_act"], ["shared_experts"]]  # of layers with experts
# Devices that support each recipe of fp8.
FP8_DEVICES = {"blockwise": ["host", "h100", "h200"], "mxfp8": ["host", "b200", "gb200"]}
DEVICES = ["host", "h100", "b200"]
PRESET_RECIPES = {"subchannel": "blockwise", "nanov2": "blockwise", "mxfp8": "mxfp8"}


# A text for runs, with a part for evaluations.
DATA = {"dataset.kind": "text", "dataset.blend": ["words.txt"], "dataset.split": "2,1,0", "model.vocab_size": 257}


def write_data(folder):
    random_ = random.Random(1)
    with open(os.path.join(folder, DATA["dataset.blend"][0]), "w", encoding="utf-8") as file:
        for _ in range(800):
            file.write(" ".join(random_.choice(["the", "a", "ring", "of", "ranks", "sends", "tokens"]) for _ in range(12)) + "\n")


def sizes(draw):
    """The sizes of the model, of its parallel groups, and of its batches."""
    tensor, stages, context = draw.choice([1, 1, 2, 2, 4]), draw.choice([1, 1, 2, 2, 3, 4]), draw.choice([1, 1, 1, 2, 4])
    data, micro = draw.choice([1, 1, 2, 2, 3, 4]), draw.choice([1, 2])
    ranks, nodes = tensor * stages * context * data, draw.choice([1, 1, 1, 2])
    out = {"model.hidden_size": draw.choice([32, 64, 64, 128]), "model.num_attention_heads": draw.choice([4, 8]),
           "model.seq_length": draw.choice([16, 32, 64]), "model.vocab_size": draw.choice([64, 100, 257]),
           "model.tensor_model_parallel_size": tensor, "model.pipeline_model_parallel_size": stages,
           "model.context_parallel_size": context, "cluster.gpus_per_node": ranks, "train.micro_batch_size": micro}
    if nodes > 1 and ranks % nodes == 0:
        out.update({"cluster.nodes": nodes, "cluster.gpus_per_node": ranks // nodes})
    microbatches = draw.choice([1, 2, 3, 4, 5, 8])
    out.update(pipeline(draw, stages, microbatches) if stages > 1 else {"model.num_layers": draw.choice([1, 2, 3, 4])})
    out["train.global_batch_size"] = micro * data * microbatches
    if draw.random() < 0.1:  # these layers are in the last stage
        out["model.mtp_num_layers"] = draw.choice([1, 1, 2])
    if draw.random() < 0.15:
        out["train.train_samples"] = out["train.global_batch_size"] * draw.choice([3, 7])
        if microbatches > 1 and draw.random() < 0.5:
            out["train.rampup_batch_size"] = ramp(draw, micro * data, microbatches, out["train.train_samples"])
    else:
        out["train.train_iters"] = draw.choice([3, 7])
    if context > 1 and draw.random() < 0.6:
        out["model.cp_comm_type"] = draw.choice([["p2p"], ["a2a"], ["all_gather"], ["a2a+p2p"], ["p2p", "a2a"]])
        if "a2a+p2p" in out["model.cp_comm_type"]:
            out["model.hierarchical_context_parallel_sizes"] = [2, context // 2]
    if tensor > 1 and draw.random() < 0.6:
        out["model.sequence_parallel"] = True
        if draw.random() < 0.3:
            out.update({"model.tp_comm_overlap": True, "model.hidden_dropout": 0.0})
    return out


def ramp(draw, each, microbatches, samples):
    """A ramp: from a few microbatches on all ranks up to the whole batch."""
    first = draw.randint(1, microbatches - 1)
    increment = draw.choice([count for count in range(1, microbatches) if (microbatches - first) % count == 0])
    return [each * first, each * increment, draw.choice([samples // 3, samples // 2, samples])]


def pipeline(draw, stages, microbatches):
    """The layers of each stage, and the pipeline schedule."""
    kind, layers = draw.random(), draw.choice([1, 2])
    schedule = draw.choice(OPTIONS[SCHEDULE].words)
    if schedule == "interleaved":
        chunks = draw.choice([2, 2, 3])
        out = {SCHEDULE: schedule, CHUNKS: chunks, "model.num_layers": stages * chunks * layers}
        if microbatches >= stages and draw.random() < 0.3:
            out["model.microbatch_group_size_per_vp_stage"] = draw.randint(stages, microbatches)
        return out
    if schedule in ("zb_v", "dual_pipe_v", "looped_bfs"):
        are_few = schedule == "dual_pipe_v" and microbatches < 2 * stages
        return {SCHEDULE: "zb_v" if are_few else schedule, CHUNKS: 2, "model.num_layers": stages * 2 * layers}
    out = {SCHEDULE: schedule, "model.num_layers": stages * layers}
    if kind < 0.1:
        out.update({"model.num_layers": stages * layers + 1, "model.num_layers_in_first_pipeline_stage": layers + 1})
    elif kind < 0.2:
        out.update({"model.num_layers": stages * layers + 1, "model.num_layers_in_last_pipeline_stage": layers + 1})
    elif kind < 0.3:
        layout = "|".join("t" * draw.randint(1, 3) for _ in range(stages))
        out.update({"model.num_layers": layout.count("t"), "model.pipeline_model_parallel_layout": f"E{layout}L"})
    elif kind < 0.35:
        out.update({"model.num_layers": stages * layers + stages - 1, "model.account_for_embedding_in_pipeline_split": True})
    return out


def strategy(draw):
    kind = draw.random()
    if kind < 0.15:
        return {}
    if kind < 0.3:
        return {"ddp.use_distributed_optimizer": True}
    if kind < 0.4:
        return {"dist.use_torch_fsdp2": True, "model.pipeline_model_parallel_size": 1, "model.share_embeddings_and_output_weights": False}
    out = {"dist.use_megatron_fsdp": True,
           "ddp.data_parallel_sharding_strategy": draw.choice(OPTIONS["ddp.data_parallel_sharding_strategy"].words + ["optim_grads_params"])}
    if draw.random() < 0.25:
        out["ddp.num_distributed_optimizer_instances"] = 2
        if draw.random() < 0.4:
            out.update({"ddp.outer_dp_sharding_strategy": "optim", "ddp.data_parallel_sharding_strategy": "optim_grads_params"})
    for path, share in (("ddp.fsdp_double_buffer", 0.3), ("ddp.nccl_ub", 0.2), ("ddp.fp8_param_gather", 0.1)):
        if draw.random() < share:
            out[path] = True
    return out


def precision(draw):
    kind = draw.random()
    if kind < 0.15:
        return {}
    if kind < 0.3:
        return {f"model.{draw.choice(['bf16', 'fp16'])}": True}
    if kind < 0.55:
        preset = draw.choice(OPTIONS["mixed_precision"].words)
        recipe = next((recipe for name, recipe in PRESET_RECIPES.items() if name in preset), None)
        return {"mixed_precision": preset, "cluster.gpu": draw.choice(FP8_DEVICES.get(recipe, DEVICES))}
    out = {"mixed_precision": draw.choice(["bf16_mixed", "bf16_mixed", "fp16_mixed"])}
    if kind < 0.85:
        recipe = draw.choice(["delayed", "delayed", "tensorwise", "blockwise", "mxfp8"])
        out.update({"mixed_precision.fp8": draw.choice(OPTIONS["mixed_precision.fp8"].words), "mixed_precision.fp8_recipe": recipe})
        out["cluster.gpu"] = draw.choice(FP8_DEVICES.get(recipe, DEVICES))
    return out


def recomputation(draw):
    kind = draw.random()
    if kind < 0.25:
        return {"model.recompute_granularity": "full", "model.recompute_method": draw.choice(OPTIONS["model.recompute_method"].words),
                "model.recompute_num_layers": 1}
    if kind < 0.5:
        return {"model.recompute_granularity": "selective", "model.recompute_modules": draw.choice(MODULES)}
    return {}


def saves(draw):
    if draw.random() < 0.6:
        return {}
    out = {"checkpoint.save": "saved", "checkpoint.save_interval": 2}
    way = draw.random()
    if way < 0.5:
        out["checkpoint.async_save"] = True
    if 0.4 < way < 0.7:
        out["checkpoint.in_memory_interval"] = 3
    if 0.3 < way < 0.6:
        out["checkpoint.snapshot_staging"] = 65536
    return out


def evaluation(draw):
    if draw.random() < 0.7:
        return {}
    out = {"validation.eval_interval": 2, "validation.eval_iters": draw.choice([1, 2])}
    if draw.random() < 0.1:
        out["validation.skip_train"] = True
    return out


def experts(draw):
    if draw.random() < 0.8:
        return {}
    count = draw.choice([2, 4, 4, 8])
    out = {"model.num_moe_experts": count, "model.moe_router_topk": draw.choice([1, 2, 2]), "model.moe_ffn_hidden_size": draw.choice([16, 32])}
    if out["model.moe_router_topk"] == 1:
        out["model.moe_router_pre_softmax"] = True
    if draw.random() < 0.3:
        out.update({"model.moe_router_score_function": draw.choice(["sigmoid", "sqrtsoftplus"]),
                    "model.moe_router_enable_expert_bias": draw.random() < 0.5})
    if draw.random() < 0.5:
        out.update({"model.moe_router_load_balancing_type": [draw.choice(OPTIONS["model.moe_router_load_balancing_type"].words)],
                    "model.moe_aux_loss_coeff": [0.1]})
    if out.get("model.moe_router_load_balancing_type") == ["sinkhorn"]:  # it ignores the options of scores
        for name in ("pre_softmax", "score_function", "enable_expert_bias"):
            out.pop(f"model.moe_router_{name}", None)
        out["model.moe_aux_loss_coeff"] = [0.0]
    elif draw.random() < 0.25:
        out.update({"model.moe_expert_capacity_factor": draw.choice([0.5, 1.0]), "model.moe_token_drop_policy": draw.choice(["probs", "position"])})
    if draw.random() < 0.25:
        out["model.moe_shared_expert_intermediate_size"] = draw.choice([16, 32])
    elif draw.random() < 0.3:
        out["model.add_bias_linear"] = True
    return out


def experts_in_fp8(draw, job):
    """Experts that are trained with a recipe of fp8."""
    if "model.num_moe_experts" not in job or draw.random() < 0.6:
        return {}
    out = {"mixed_precision": "bf16_mixed", "mixed_precision.fp8": draw.choice(OPTIONS["mixed_precision.fp8"].words), "cluster.gpu": "host",
           "mixed_precision.fp8_recipe": draw.choice(["delayed", "delayed", "tensorwise", "blockwise", "mxfp8"]), "model.moe_ffn_hidden_size": 64}
    if out["mixed_precision.fp8_recipe"] in ("delayed", "tensorwise") and draw.random() < 0.4:  # a scale for each expert's weight
        out.update({"mixed_precision.fp8_param_gather": True, "dist.use_megatron_fsdp": True, "ddp.data_parallel_sharding_strategy": "optim_grads_params"})
    if out["mixed_precision.fp8_recipe"] == "delayed" and draw.random() < 0.5:
        out.update({"mixed_precision.fp8_amax_history_len": draw.choice([2, 3]), "mixed_precision.fp8_amax_compute_algo": draw.choice(["max", "most_recent"])})
    if "model.moe_shared_expert_intermediate_size" in job:
        out["model.moe_shared_expert_intermediate_size"] = 64
    return out


def latent(draw):
    """Latent attention: compressed keys and values, and possibly queries. Favours sizes that fp8 products accept."""
    if draw.random() < 0.85:
        return {}
    fits = draw.random() < 0.8
    out = {"model.multi_latent_attention": True, "model.position_embedding_type": "rope", "model.rope_type": draw.choice(["rope", "yarn"]),
           "model.kv_lora_rank": 32 if fits else 20, "model.qk_pos_emb_head_dim": 32 if fits else 8, "model.qk_head_dim": 32 if fits else 16,
           "model.v_head_dim": 32 if fits else 24}
    if draw.random() < 0.5:
        out["model.q_lora_rank"] = 32 if fits else 24
    return out


def ranks_of_experts(draw, job):
    """The expert-parallel size, and the number of ranks that divide each expert."""
    if "model.num_moe_experts" not in job:
        return {}
    ranks = job["cluster.gpus_per_node"] * job.get("cluster.nodes", 1) // job["model.pipeline_model_parallel_size"]
    fitting = [size for size in (1, 2, 2, 4) if ranks % size == 0 and job.get("model.num_moe_experts", 1) % size == 0]
    size, parts = draw.choice(fitting), draw.choice([None, 1, 1, 2])
    out = {"model.expert_model_parallel_size": size} if size > 1 else {}
    if parts and ranks % (size * parts) == 0:
        out["model.expert_tensor_parallel_size"] = parts
    if job["model.tensor_model_parallel_size"] > 1 and draw.random() < 0.9:
        out["model.sequence_parallel"] = True
    return out


def data(draw):
    return DATA if draw.random() < 0.15 else {}


def masters(draw, job):
    """Stores master weights as remainders of bf16 weights, where the distributed optimizer may do so."""
    is_distributed = "dist.use_megatron_fsdp" in job or "ddp.use_distributed_optimizer" in job
    if not is_distributed or not job.get("mixed_precision", "").startswith("bf16") or draw.random() < 0.5:
        return {}
    return {"optimizer.use_precision_aware_optimizer": True, "optimizer.store_param_remainders": draw.random() < 0.9}


def frozen(draw, job):
    """Freezes a part of the model, often a third of its layers, and chooses where its weights are stored."""
    if draw.random() < 0.7:
        return {}
    layers = job["model.num_layers"]
    first, last = sorted(draw.choice([0, layers // 3, 2 * layers // 3, layers - 1]) for _ in range(2))
    some = draw.choice([f"layers.{first}-{last}", f"layers.{first}", "layers", f"layers.{first}-{last}.qkv", "norm", "base.feed_forward", "experts"])
    out = {"model.freeze": [some] + draw.choice([[], ["embedding"], ["head"], ["bias", "mtp"]])}
    if draw.random() < 0.4:
        out["ddp.keep_frozen"] = draw.choice(OPTIONS["ddp.keep_frozen"].words)
    return out


def optimizer(draw, job):
    kind = draw.random()
    if kind < 0.75:
        return {}
    if kind < 0.85:
        return {"optimizer.optimizer": "lion"}
    if kind < 0.92:
        return {"optimizer.optimizer": "sgd", "optimizer.sgd_momentum": draw.choice([0.0, 0.9])}
    if "dist.use_megatron_fsdp" not in job and "ddp.use_distributed_optimizer" not in job:
        return {}
    return {"optimizer.use_precision_aware_optimizer": True, "optimizer.exp_avg_dtype": "bf16", "optimizer.exp_avg_sq_dtype": draw.choice(["bf16", "fp32"])}


def draw_job(draw):
    out = {"cluster.gpu": "host" if draw.random() < 0.5 else draw.choice(OPTIONS["cluster.gpu"].words)}
    for part in (sizes, strategy, precision, recomputation, saves, evaluation, data, experts):
        out.update(part(draw))
    out.update(ranks_of_experts(draw, out))
    out.update(latent(draw))
    out.update(experts_in_fp8(draw, out))
    out.update(masters(draw, out))
    out.update(frozen(draw, out))
    out.update(optimizer(draw, out))
    return out
