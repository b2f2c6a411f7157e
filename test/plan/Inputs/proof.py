#!/usr/bin/env python3
"""The proofs that need many small plans. With SHARDC_LONG=1 they run in full, else a thousandth or so.

    proof.py plans DIR      writes the plans
    proof.py mutations      verifier and oracle agree on mutations of plans (one of every second plan, 500 of each in full)
    proof.py families       the same of plans with latent attention, multi-token prediction, sinks, windows, soft caps, norms and chunks, by
                            the oracle and by execution as `runs` has it (one of every second plan, 500 of each in full;
                            MUTATIONS, PLANS, SEED and KEEP as there)
    proof.py tuned          as `runs`, of plans that train adapters (one of each plan, 1,000 in full)
    proof.py attributes     the verifier takes any value of any attribute of every op of every plan (every twentieth plan, in full all)
    proof.py schedules      24 of the plans lose no bit in random schedules (1,000 each in full)
    proof.py touched        a run of each plan touches the bytes that its plan counts, and no others
    proof.py runs           accepted mutations run, in three schedules: losses, norms and state as the plan's own (three of
                            each second plan, 260 of each in full; MUTATIONS=n; PLANS="optim-3 eval": of these; SEED=n;
                            KEEP=DIR: plans that differ are written there)

The programs shardc, shardc-opt, shardc-run, plan-oracle and touched-memory are found on PATH, files go to TMPDIR, and JOBS=n
programs run at once (as many as there are cores by default). docs/benchmarks/plan-proof.md has what the full runs gave.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
DEBUG = HERE.parent.parent.parent / "recipes" / "debug"
sys.path.insert(0, str(HERE.parent.parent / "e2e" / "Inputs"))

import chunks  # noqa: E402

LONG = os.environ.get("SHARDC_LONG") == "1"
SEED = os.environ.get("SEED", "11")
JOBS = int(os.environ.get("JOBS", os.cpu_count()))

FSDP = ["dist.use_megatron_fsdp=true", "ddp.use_megatron_fsdp=true"]
STRATEGIES = {
    "no_shard": [],
    "optim": ["ddp.use_distributed_optimizer=true"],
    "optim_grads": [*FSDP, "ddp.data_parallel_sharding_strategy=optim_grads"],
    "optim_grads_params": [*FSDP, "ddp.data_parallel_sharding_strategy=optim_grads_params"],
}
TORCH_FSDP2 = ["dist.use_torch_fsdp2=true", "checkpoint.ckpt_format=torch_dcp"]
TIED = ["model.share_embeddings_and_output_weights=true"]
UNTIED = ["model.share_embeddings_and_output_weights=false"]
THREE_RANKS = ["cluster.gpus_per_node=3"]
BF16 = ["mixed_precision=bf16_mixed"]
FP16 = ["mixed_precision=fp16_mixed", "optimizer.initial_loss_scale=1024"]
FP8 = ["mixed_precision=bf16_mixed", "mixed_precision.fp8=hybrid", "model.num_attention_heads=1"]
FP8_DELAYED = ["mixed_precision=bf16_mixed", "mixed_precision.fp8=hybrid", "mixed_precision.fp8_amax_history_len=3",
               "model.seq_length=8", "model.hidden_size=16", "model.ffn_hidden_size=16", "model.num_attention_heads=1",
               "model.num_query_groups=1"]
FULL = ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"]
OFFLOAD = ["model.fine_grained_activation_offloading=true", "model.min_offloaded_tensor_size=1",
           "model.offload_modules=[attn_norm, core_attn, attn_proj, mlp_act]"]
SAVE = ['checkpoint.save="saved"', "checkpoint.async_save=true", "checkpoint.save_interval=1"]
PIECES = [*SAVE, "checkpoint.snapshot_limit=4096"]
EVAL = ["validation.eval_interval=1", "validation.eval_iters=1"]
THREE_MICROBATCHES = ["train.global_batch_size=12"]
ONE_MICROBATCH = ["train.global_batch_size=4"]
HYBRID = ["cluster.gpus_per_node=4", "ddp.num_distributed_optimizer_instances=2"]  # two groups of two ranks


def variants():
    """Name, recipe and settings of each plan."""
    for strategy, settings in STRATEGIES.items():
        yield f"{strategy}-1", "llama_tiny", [*settings, *ONE_MICROBATCH]
        yield f"{strategy}-3", "llama_tiny", [*settings, *THREE_MICROBATCHES]
    fsdp = STRATEGIES["optim_grads_params"]
    for count, settings in (("1", ONE_MICROBATCH), ("3", THREE_MICROBATCHES)):
        yield f"bf16-{count}", "llama_tiny", [*fsdp, *BF16, *settings]
        for strategy in ("no_shard", "optim", "optim_grads_params"):
            yield f"gpt2-{strategy}-{count}", "gpt2_tiny", [*STRATEGIES[strategy], *settings]
    yield "fp16-3", "llama_tiny", [*fsdp, *FP16, *THREE_MICROBATCHES]
    yield "gpt2-fp16-1", "gpt2_tiny", [*STRATEGIES["optim"], *FP16, *ONE_MICROBATCH]
    yield "fp8-delayed", "llama_tiny", [*fsdp, *FP8_DELAYED]
    yield "gpt2-fp8-delayed", "gpt2_tiny", [*fsdp, *FP8_DELAYED, *ONE_MICROBATCH]
    yield "fp8-gathered", "llama_tiny", [*fsdp, *FP8_DELAYED, "mixed_precision.fp8_recipe=tensorwise", "ddp.fp8_param_gather=true",
                                         *ONE_MICROBATCH]
    yield "fp8-blockwise", "llama_tiny", [*fsdp, *FP8_DELAYED, "mixed_precision.fp8_recipe=blockwise", "model.ffn_hidden_size=128",
                                          *ONE_MICROBATCH]
    scaled = ["mixed_precision.fp8_recipe=tensorwise", "model.hidden_size=16", "model.ffn_hidden_size=16", "model.seq_length=8"]
    yield "fp8-latent", "latent_tiny", [*fsdp, *FP8, *scaled, "model.kv_lora_rank=16", "model.qk_pos_emb_head_dim=16", "model.v_head_dim=16",
                                        "model.qk_head_dim=16", "model.q_lora_rank=16", *ONE_MICROBATCH]
    yield "fp8-experts", "mixtral_tiny", [*fsdp, *FP8, *scaled, "model.num_query_groups=1", "model.num_moe_experts=2",
                                          "model.expert_model_parallel_size=2", *ONE_MICROBATCH]
    two = ["model.num_moe_experts=2"]
    yield "fp8-experts-delayed", "mixtral_tiny", [*fsdp, *FP8_DELAYED, *two, "model.expert_model_parallel_size=2", *EVAL]
    yield "fp8-experts-gathered", "mixtral_tiny", [*fsdp, *FP8_DELAYED, *two, "ddp.fp8_param_gather=true", *ONE_MICROBATCH]
    yield "recompute", "llama_tiny", [*fsdp, *FULL]
    yield "offload", "llama_tiny", [*fsdp, *OFFLOAD, *THREE_MICROBATCHES]
    yield "offload-recompute", "llama_tiny", [*STRATEGIES["optim"], *FULL, *OFFLOAD]
    yield "eval", "llama_tiny", [*fsdp, *EVAL]
    yield "three-ranks", "llama_tiny", [*fsdp, *THREE_RANKS, "train.global_batch_size=12"]
    yield "slots", "llama_tiny", [*fsdp, "ddp.fsdp_double_buffer=true"]
    yield "exchanged", "llama_tiny", [*fsdp, *THREE_MICROBATCHES, "model.deterministic_mode=true"]
    yield "background", "llama_tiny", [*fsdp, *SAVE]
    yield "background-whole", "llama_tiny", [*STRATEGIES["no_shard"], *SAVE]
    yield "background-staged", "llama_tiny", [*fsdp, *SAVE, "checkpoint.snapshot_staging=4KiB"]
    yield "background-pieces", "llama_tiny", [*STRATEGIES["optim"], *PIECES]
    yield "torch_fsdp2", "llama_tiny", [*TORCH_FSDP2, *THREE_MICROBATCHES]
    # Over three ranks rows do not divide.
    yield "torch_fsdp2-1", "llama_tiny", [*TORCH_FSDP2, *THREE_RANKS, "train.global_batch_size=6"]
    yield "torch_fsdp2-kept", "gpt2_tiny", [*TORCH_FSDP2, *UNTIED, *THREE_RANKS, "train.global_batch_size=18",
                                            "dist.torch_fsdp2_reshard_after_forward=false"]
    yield "tied", "llama_tiny", [*fsdp, *TIED, *THREE_MICROBATCHES]
    yield "optim-eval", "llama_tiny", [*STRATEGIES["optim"], *EVAL]
    for strategy in ("optim", "optim_grads", "optim_grads_params"):
        yield f"hybrid-{strategy}-3", "llama_tiny", [*STRATEGIES[strategy], *HYBRID, "train.global_batch_size=24"]
    yield "hybrid-no_shard", "llama_tiny", [*HYBRID, "train.global_batch_size=16"]
    yield "hybrid-bf16", "llama_tiny", [*fsdp, *BF16, *HYBRID, "ddp.grad_reduce_in_fp32=false",
                                      "train.global_batch_size=24"]
    yield "hybrid-fp16", "llama_tiny", [*fsdp, *FP16, *HYBRID, "train.global_batch_size=24"]
    yield "hybrid-tied", "llama_tiny", [*fsdp, *BF16, *TIED, *HYBRID, "train.global_batch_size=16"]
    yield "background-hybrid", "llama_tiny", [*fsdp, *SAVE, *EVAL, *HYBRID, "train.global_batch_size=8"]
    divided = [*fsdp, *HYBRID, "ddp.outer_dp_sharding_strategy=optim"]  # state over all four ranks
    yield "hfsdp-1", "llama_tiny", [*divided, *EVAL, "train.global_batch_size=8"]
    yield "hfsdp-3", "llama_tiny", [*divided, "train.global_batch_size=24"]
    yield "hfsdp-bf16", "llama_tiny", [*divided, *BF16, "ddp.grad_reduce_in_fp32=false", "train.global_batch_size=24"]
    yield "hfsdp-tied", "llama_tiny", [*divided, *BF16, *TIED, *EVAL, "train.global_batch_size=16"]
    yield "hfsdp-exchanged", "llama_tiny", [*divided, "model.deterministic_mode=true", "train.global_batch_size=24"]
    yield "hfsdp-slots", "llama_tiny", [*divided, "ddp.fsdp_double_buffer=true", "train.global_batch_size=8"]
    yield "background-hfsdp", "llama_tiny", [*divided, *SAVE, *EVAL, "train.global_batch_size=8"]
    muon = ["optimizer.optimizer=muon"]  # over three ranks, layers share a block under optim
    yield "muon-optim", "llama_tiny", [*STRATEGIES["optim"], *muon, *THREE_RANKS, *SAVE, "train.global_batch_size=12"]
    yield "muon-fsdp", "llama_tiny", [*fsdp, *muon, *BF16, *EVAL]
    yield "muon-experts", "mixtral_tiny", [*STRATEGIES["optim"], *muon, *ONE_MICROBATCH]
    context = ["cluster.gpus_per_node=2", "model.context_parallel_size=2"]  # both have slices of each sequence
    yield "context-ring", "llama_tiny", [*fsdp, *context, *EVAL, "train.global_batch_size=6"]
    yield "context-heads", "llama_tiny", [*fsdp, *context, "model.cp_comm_type=[a2a]", "model.num_query_groups=2",
                                         "train.global_batch_size=2"]
    yield "context-gathered", "gpt2_tiny", [*STRATEGIES["optim"], *context, "cluster.gpus_per_node=4",
                                            "model.cp_comm_type=[all_gather]", *ONE_MICROBATCH]
    yield "context-levels", "llama_tiny", [*context, "model.context_parallel_size=4", "cluster.gpus_per_node=4",
                                           'model.cp_comm_type=["a2a+p2p"]', "model.hierarchical_context_parallel_sizes=[2, 2]",
                                           "model.num_query_groups=2", "model.seq_length=8", "train.global_batch_size=2"]
    tensor = ["cluster.gpus_per_node=2", "model.tensor_model_parallel_size=2"]  # with one key/value head, which both have
    rows = [*tensor, "model.sequence_parallel=true"]
    yield "tensor-shared", "llama_tiny", [*tensor, "train.global_batch_size=2"]
    yield "tensor-tied", "llama_tiny", [*tensor, *TIED, *EVAL, "model.num_query_groups=2", "train.global_batch_size=4"]
    yield "tensor-rows", "llama_tiny", [*rows, "model.num_query_groups=2", "train.global_batch_size=2"]
    yield "tensor-rows-fsdp", "llama_tiny", [*rows, *fsdp, *BF16, "cluster.gpus_per_node=4", *ONE_MICROBATCH]
    yield "tensor-fp8", "llama_tiny", [*tensor, *FP8_DELAYED, "model.num_attention_heads=2", "model.num_query_groups=2",
                                       "model.kv_channels=16", "model.ffn_hidden_size=32", "train.global_batch_size=4"]
    yield "tensor-rows-gpt2", "gpt2_tiny", [*rows, *STRATEGIES["optim"], "model.num_query_groups=2", "train.global_batch_size=2"]
    pieces = [*rows, "model.tp_comm_overlap=true", "model.tp_comm_overlap_pieces=2"]  # move beside products
    yield "tensor-pieces", "llama_tiny", [*pieces, *EVAL, "model.num_query_groups=2", "train.global_batch_size=2"]
    yield "tensor-pieces-fsdp", "llama_tiny", [*pieces, *fsdp, *BF16, "cluster.gpus_per_node=4", *ONE_MICROBATCH]
    yield "tensor-context", "llama_tiny", [*rows, *context[1:], "cluster.gpus_per_node=4", "model.seq_length=8",
                                           "train.global_batch_size=2"]
    yield "stages-1", "llama_tiny", [*stages(2, 1), *EVAL]
    yield "stages-3", "llama_tiny", [*stages(2, 3, ranks=2), *fsdp]
    yield "stages-optim", "llama_tiny", [*stages(2, 2, ranks=2), *STRATEGIES["optim"]]
    yield "stages-tied", "llama_tiny", [*stages(3, 4), *TIED]
    yield "zero_bubble-2", "llama_tiny", [*stages(2, 2, "zero_bubble"), *TIED, *EVAL]
    yield "zero_bubble-4", "llama_tiny", [*stages(3, 4, "zero_bubble")]
    yield "zero_bubble-optim_grads", "llama_tiny", [*stages(2, 3, "zero_bubble", ranks=2), *STRATEGIES["optim_grads"]]
    yield "interleaved-1", "llama_tiny", [*stages(2, 1, "interleaved"), *EVAL]
    yield "interleaved-4", "llama_tiny", [*stages(2, 4, "interleaved"), *TIED]
    yield "interleaved-5", "llama_tiny", [*stages(2, 5, "interleaved"), "model.microbatch_group_size_per_vp_stage=3"]
    yield "interleaved-fsdp", "llama_tiny", [*stages(2, 2, "interleaved", ranks=2), *fsdp]
    gathered = [*fsdp, *FP8_DELAYED, "model.seq_length=16", "ddp.fp8_param_gather=true"]
    yield "stages-fp8", "llama_tiny", [*stages(2, 3), *FP8_DELAYED, "model.seq_length=16"]
    yield "zero_bubble-fp8", "llama_tiny", [*stages(2, 2, "zero_bubble"), *gathered, "ddp.keep_fp8_transpose_cache=true"]
    yield "background-stages", "llama_tiny", [*stages(2, 2, ranks=2), *fsdp, *PIECES]


def families():
    """Likewise of kinds of attention and of losses that the others lack."""
    fsdp, rows = STRATEGIES["optim_grads_params"], ["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"]
    context = ["cluster.gpus_per_node=2", "model.context_parallel_size=2"]
    sinks, window = ["model.softmax_type=learnable"], ["model.window_size=[2, 0]"]
    pairs = ["cluster.gpus_per_node=2", "train.global_batch_size=2"]
    heads = ["model.num_query_groups=2"]  # latent attention has no groups
    yield "latent-fsdp", "latent_tiny", [*heads, *fsdp, *ONE_MICROBATCH]
    yield "latent-rows", "latent_tiny", [*heads, *rows, *pairs]
    yield "latent-ring", "latent_tiny", [*heads, *fsdp, *context, "train.global_batch_size=6"]
    yield "further-fsdp", "llama_tiny", [*fsdp, "model.mtp_num_layers=1", *THREE_MICROBATCHES]
    yield "further-stages", "llama_tiny", [*stages(2, 2), *UNTIED, "model.mtp_num_layers=2"]
    yield "further-zero_bubble", "llama_tiny", [*stages(2, 2, "zero_bubble"), *TIED, "model.mtp_num_layers=1"]
    yield "further-positions", "gpt2_tiny", [*stages(2, 1), *rows, "cluster.gpus_per_node=4", "model.seq_length=8", "model.mtp_num_layers=1"]
    yield "sinks-ring", "llama_tiny", [*sinks, *context, *STRATEGIES["optim"], "train.global_batch_size=2"]
    yield "sinks-rows", "llama_tiny", [*sinks, *window, *rows, *pairs, "model.num_query_groups=2"]
    yield "windows-heads", "llama_tiny", [*window, *context, *fsdp, "model.cp_comm_type=[a2a]", "model.num_query_groups=2",
                                          "train.global_batch_size=2"]
    yield "caps-tensor", "gemma2_tiny", ["model.tensor_model_parallel_size=2", *pairs, "model.num_query_groups=2", *EVAL]
    norms = ["model.qk_layernorm=true", "model.qk_layernorm_full_width=true"]
    yield "norms-rows", "llama_tiny", [*norms, *rows, *heads, *fsdp, "cluster.gpus_per_node=4", *ONE_MICROBATCH]
    yield "norms-shared", "llama_tiny", [*norms, "model.tensor_model_parallel_size=2", *pairs]  # both ranks have the key/value head
    experts, divided = ["model.num_moe_experts=2"], ["model.expert_model_parallel_size=2"]
    yield "experts-fsdp", "mixtral_tiny", [*fsdp, *experts, *divided, *THREE_MICROBATCHES]
    yield "experts-gathered", "mixtral_tiny", [*fsdp, *BF16, *experts, *EVAL, *ONE_MICROBATCH]
    yield "experts-parts", "mixtral_tiny", [*rows, *experts, "model.expert_tensor_parallel_size=2", "model.num_query_groups=2", *pairs]
    yield "experts-whole", "mixtral_tiny", [*experts, "cluster.gpus_per_node=1", "train.global_batch_size=6"]
    yield "experts-stages", "mixtral_tiny", [*stages(2, 2, ranks=2), *STRATEGIES["optim"], *experts, *divided]
    yield "experts-balanced", "mixtral_tiny", [*experts, *divided, *EVAL, "model.moe_router_score_function=sigmoid",
                                               "model.moe_router_enable_expert_bias=true", "model.moe_aux_loss_coeff=[0.1]",
                                               "model.moe_expert_capacity_factor=1.0", *ONE_MICROBATCH]
    yield "experts-zero_bubble", "mixtral_tiny", [*stages(2, 2, "zero_bubble"), *FP8_DELAYED, *experts, "model.seq_length=16"]
    below, matrices = ['model.freeze=["embedding", "layers.0"]'], ['model.freeze=["qkv", "layers.0.feed_forward", "head"]']
    yield "frozen-fsdp", "llama_tiny", [*fsdp, *below, "model.num_layers=2", *THREE_MICROBATCHES]
    yield "frozen-kept", "llama_tiny", [*fsdp, *matrices, *BF16, "ddp.keep_frozen=always", *ONE_MICROBATCH]
    yield "frozen-optim", "llama_tiny", [*STRATEGIES["optim"], *matrices, *BF16, *EVAL, "optimizer.use_precision_aware_optimizer=true",
                                         "optimizer.exp_avg_dtype=bf16", *ONE_MICROBATCH]
    yield "frozen-stages", "llama_tiny", [*stages(2, 2, "zero_bubble", ranks=2), *STRATEGIES["optim"], *below, *UNTIED]
    muon = ["optimizer.optimizer=muon"]  # whose updates of matrices are gathered, over shards, tensor-parallel ranks and both
    four = ["cluster.gpus_per_node=4"]
    yield "muon-rows", "llama_tiny", [*fsdp, *muon, *four, "train.global_batch_size=8"]
    yield "muon-parts", "llama_tiny", [*STRATEGIES["optim"], *muon, *rows, *heads, *BF16, *pairs]
    steps = [*muon, "optimizer.muon_tp_mode=distributed", *heads]  # which the ranks divide
    yield "muon-steps", "llama_tiny", [*STRATEGIES["optim"], *steps, *rows, *pairs]
    yield "muon-steps-rows", "llama_tiny", [*fsdp, *steps, *rows, "cluster.gpus_per_node=8", "train.global_batch_size=8"]
    yield "muon-rows-parts", "llama_tiny", [*fsdp, *muon, *rows, *heads, "cluster.gpus_per_node=8", "train.global_batch_size=8"]
    yield "chunks-ring", "llama4_tiny", [*context, *fsdp, "model.num_moe_experts=none", "model.moe_layer_freq=none", "model.num_layers=2",
                                         "model.moe_shared_expert_intermediate_size=none", "model.no_rope_freq=[2]",
                                         "model.attention_chunk_size=3", "train.global_batch_size=2"]


def tuned():
    """The same for runs that train adapters of frozen weights on packs of documents, with one denominator for all
    tokens."""
    fsdp, rows = STRATEGIES["optim_grads_params"], ["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"]
    context = ["cluster.gpus_per_node=2", "model.context_parallel_size=2"]
    documents = ["dataset.eod_token=0", "dataset.reset_attention_mask=true", "dataset.reset_position_ids=true", "dataset.eod_mask_loss=true",
                 "model.calculate_per_token_loss=true"]
    lora = ["peft.scheme=lora", "peft.rank=2", *documents]
    apart = 'peft.targets=["q_proj", "v_proj", "up_proj", "down_proj"]'
    wide = ["model.hidden_size=64", "model.ffn_hidden_size=64", "model.kv_channels=32", "peft.quantize=nf4"]
    pairs, heads = ["cluster.gpus_per_node=2", "train.global_batch_size=2"], ["model.num_query_groups=2"]
    yield "lora-fsdp", "llama_tiny", [*fsdp, *lora, "model.num_layers=2", *THREE_MICROBATCHES]
    yield "lora-optim", "llama_tiny", [*STRATEGIES["optim"], *lora, apart, *BF16, *EVAL, 'peft.modules_to_save=["norm", "lm_head"]',
                                       *UNTIED, *ONE_MICROBATCH]
    yield "lora-rows", "llama_tiny", [*lora, apart, *rows, *heads, *pairs]
    yield "lora-ring", "llama_tiny", [*lora, *context, *fsdp, "train.global_batch_size=6"]
    yield "lora-stages", "llama_tiny", [*stages(2, 2, "zero_bubble", ranks=2), *lora, apart, *STRATEGIES["optim"], *UNTIED]
    yield "lora-experts", "mixtral_tiny", [*lora, *fsdp, "model.num_moe_experts=2", "model.expert_model_parallel_size=2",
                                           'peft.targets=["linear_qkv", "experts.linear_fc1"]', *ONE_MICROBATCH]
    yield "qlora-fsdp", "llama_tiny", [*lora, *wide, *fsdp, *BF16, *ONE_MICROBATCH]
    yield "qlora-nested-rows", "llama_tiny", [*lora, *wide[2:], "model.hidden_size=512", "model.ffn_hidden_size=1024", "model.kv_channels=512",
                                              "peft.quantize=nf4_double", *rows, *heads, *pairs]
    stored = [*FP8_DELAYED, "peft.quantize=fp8"]
    yield "lora-stored", "llama_tiny", [*lora, *stored, "mixed_precision.fp8_recipe=tensorwise", *fsdp, *ONE_MICROBATCH]
    yield "lora-stored-stages", "llama_tiny", [*stages(2, 2, ranks=2), *lora, *stored, "model.seq_length=16", *STRATEGIES["optim"], *UNTIED]
    yield "lora-hybrid", "llama_tiny", [*fsdp, *HYBRID, *lora, "train.global_batch_size=24"]
    yield "lora-rows-fsdp", "llama_tiny", [*lora, apart, *rows, *fsdp, *BF16, *heads, "cluster.gpus_per_node=4", *ONE_MICROBATCH]
    yield "lora-interleaved", "llama_tiny", [*stages(2, 4, "interleaved"), *lora, *UNTIED]
    dpo, orpo = (["model.seq_length=8", f"preference.loss={loss}"] for loss in ("sigmoid", "orpo"))
    lora, wide = ["peft.scheme=lora", "peft.rank=2"], [*wide, "model.seq_length=8"]
    yield "pairs-fsdp", "llama_tiny", [*dpo, *fsdp, "model.num_layers=2", *THREE_MICROBATCHES]
    yield "pairs-optim", "llama_tiny", [*dpo, "preference.label_smoothing=0.1", *STRATEGIES["optim"], *lora, apart, *BF16, *EVAL, *ONE_MICROBATCH]
    yield "pairs-rows", "llama_tiny", [*orpo, *rows, *heads, *pairs]
    yield "pairs-stages", "llama_tiny", [*dpo, *stages(2, 2, "zero_bubble", ranks=2), *STRATEGIES["optim"], *UNTIED]
    yield "pairs-interleaved", "llama_tiny", [*orpo, *stages(2, 4, "interleaved"), *lora, *UNTIED]
    yield "pairs-hybrid", "llama_tiny", [*dpo, *fsdp, *HYBRID, *lora, "train.global_batch_size=24"]
    yield "pairs-qlora", "llama_tiny", [*dpo, *lora, *wide, *fsdp, *BF16, *ONE_MICROBATCH]
    yield "pairs-fp8", "llama_tiny", [*orpo, *FP8_DELAYED, *fsdp, *ONE_MICROBATCH]
    yield "pairs-experts", "mixtral_tiny", [*dpo, *fsdp, "model.num_moe_experts=2", "model.expert_model_parallel_size=2",
                                            "model.moe_aux_loss_coeff=[0.0]", *ONE_MICROBATCH]


# To the oracle, what tensor-parallel ranks of a stage receive differs, and gathered updates of matrices are parts of a block.
BY_EXECUTION = ["further-positions", "muon-parts", "muon-rows-parts"]


def stages(count, microbatches, schedule="one_forward_one_backward", ranks=1):
    """Options for `count` stages of `ranks` ranks, with a layer in each chunk."""
    chunks = 2 if schedule == "interleaved" else 1
    return [f"model.pipeline_model_parallel_size={count}", f"model.num_layers={count * chunks}",
            f"model.virtual_pipeline_model_parallel_size={chunks}", f"model.pipeline_schedule={schedule}",
            f"cluster.gpus_per_node={count * ranks}", "train.micro_batch_size=1",
            f"train.global_batch_size={microbatches * ranks}"]


SCHEDULED = ["no_shard-3", "optim-3", "optim_grads-3", "optim_grads_params-3", "bf16-3", "gpt2-optim_grads_params-3",
             "recompute", "eval", "three-ranks", "slots", "torch_fsdp2-1", "hfsdp-1", "hfsdp-3", "stages-1", "stages-3",
             "stages-optim", "stages-tied", "zero_bubble-2", "zero_bubble-4", "zero_bubble-optim_grads", "interleaved-1",
             "interleaved-4", "interleaved-5", "interleaved-fsdp"]


def run(command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nstatus {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def write_plans(folder, wanted=None, of=variants):
    paths = []
    for name, recipe, settings in of():
        if wanted is None or name in wanted:
            path = folder / f"{name}.plan"
            overlay = ["--overlay", HERE / "small_llama.recipe"]
            command = ["shardc", "dump-plan", DEBUG / f"{recipe}.recipe", *overlay, *(f"--set={setting}" for setting in settings)]
            run([*command, "-o", path])
            run([*command, "--specification", "-o", path.with_suffix(".spec")])
            paths.append(path)
    return paths


def write_chunked(folder):
    """Losses of parts of the vocabulary in chunks of rows, of tensor-parallel ranks with all rows and with their own."""
    tensor = ["model.tensor_model_parallel_size=2"]
    own_rows = [*tensor, "model.sequence_parallel=true", "model.num_query_groups=2", *STRATEGIES["optim_grads_params"]]
    for name, settings in (
            ("tensor-chunks", [*tensor, *EVAL, "cluster.gpus_per_node=2", "train.global_batch_size=2"]),
            ("tensor-chunks-rows", [*own_rows, "cluster.gpus_per_node=4", *ONE_MICROBATCH])):
        path = folder / f"{name}.plan"
        chunks.write_plan(run, ["shardc", "dump-plan", DEBUG / "llama_tiny.recipe", "--overlay", HERE / "small_llama.recipe",
                                *(f"--set={setting}" for setting in settings)], 4, path)
        yield path


def mutations(folder):
    plans = [*write_plans(folder), *write_chunked(folder)]
    plans, count, orders = (plans, 500, 200) if LONG else (plans[::2], 1, 2)
    print(run(["plan-oracle", "--mutations", count, "--orders", orders, "--seed", 7, *plans]), end="")


def attributes(folder):
    names = [name for name, _, _ in variants()]
    plans = write_plans(folder, names if LONG else names[::20])
    print(run(["plan-oracle", "--attributes", 97 if LONG else 997, *plans]), end="")


def losses(plan, options):
    """What the run logs, without its times."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        run(["shardc-run", plan, f"--metrics={metrics}", *options], cwd=folder)
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [(record["loss"], record["grad_norm"]) for record in records if "loss" in record]


def schedules(folder):
    count = 1000 if LONG else 1
    plans = write_plans(folder, SCHEDULED)
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for plan in plans:
            expected = losses(plan, [])
            seeds = range(1, count + 1)
            for seed, found in zip(seeds, pool.map(lambda s: losses(plan, [f"--seed-schedule={s}"]), seeds)):
                if found != expected or len(found) == 0:
                    sys.exit(f"{plan.stem}, schedule {seed}: {found}, without a schedule {expected}")
            print(f"{plan.stem}: {count} schedules, {len(expected)} steps equal to the bit", flush=True)


def runs(folder):
    """Accepted mutations run in the process of plan-oracle; one that trains otherwise than its plan ends this."""
    count = int(os.environ.get("MUTATIONS", 260 if LONG else 3))
    plans = write_plans(folder, os.environ.get("PLANS", "").split() or None)
    if not run_accepted(plans if LONG or "PLANS" in os.environ else plans[::2], count):
        sys.exit(1)


def of_families(folder):
    plans = write_plans(folder, os.environ.get("PLANS", "").split() or None, families)
    plans, count, orders = (plans, 500, 60) if LONG else (plans if "PLANS" in os.environ else plans[::2], 1, 4)
    count = int(os.environ.get("MUTATIONS", count))
    asked = [plan for plan in plans if plan.stem not in BY_EXECUTION]
    if not all([ask_oracle(asked, count, orders), run_accepted(plans, count)]):
        sys.exit(1)


def of_tuned(folder):
    plans = write_plans(folder, os.environ.get("PLANS", "").split() or None, tuned)
    if not run_accepted(plans, int(os.environ.get("MUTATIONS", 1000 if LONG else 1))):
        sys.exit(1)


def ask_oracle(plans, count, orders):
    """Prints the verdicts of verifier and oracle on mutations of the plans. Returns false if one of them failed."""
    table, failures = tables_of(plans, count, ["--orders", orders])
    print("| mutation | refused breaks | accepted harmless | missed breaks | refused harmless |\n|---|--:|--:|--:|--:|")
    for kind, verdicts in table.items():
        print(f"| `{kind}` | {' | '.join(map(str, verdicts))} |")
    total, disagreed = sum(map(sum, table.values())), sum(sum(verdicts[2:]) for verdicts in table.values())
    print(f"{total} mutations of {len(plans)} plans, seed {SEED}, {disagreed} on which verifier and oracle disagree", flush=True)
    return not failures


def run_accepted(plans, count):
    """Executes mutations that verifier and specification accept, and their plans, in the process of plan-oracle.
    Returns whether all train as their plans do."""
    table, failures = tables_of(plans, count, ["--run"])
    print("| mutation | refused | trains as its plan | differs |\n|---|--:|--:|--:|")
    for kind, verdicts in table.items():
        print(f"| `{kind}` | {' | '.join(map(str, verdicts[:3]))} |")
    refused, alike, differ, _ = (sum(column) for column in zip(*table.values()))
    print(f"{refused + alike + differ} mutations of {len(plans)} plans, {alike + differ} accepted, {differ} differ")
    return not failures


def tables_of(plans, count, options):
    """The verdicts on mutations of each kind, summed over plans, each of which has a process; the plans that fail."""
    def mutate(plan):
        command = ["plan-oracle", *options, "--mutations", count, "--seed", SEED]
        if "--run" in options:
            command += ["--specification", plan.with_suffix(".spec")]
        keep = os.environ.get("KEEP")
        if keep:
            pathlib.Path(keep, plan.stem).mkdir(parents=True, exist_ok=True)
            command += ["--keep", pathlib.Path(keep, plan.stem)]
        return subprocess.run([str(word) for word in [*command, plan]], capture_output=True, text=True)

    table, failures = {}, []
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for plan, done in zip(plans, pool.map(mutate, plans)):
            rows = re.findall(r"^\| `(\S+)` \|[^|]*\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", done.stdout, re.MULTILINE)
            for kind, *verdicts in rows:
                table[kind] = [a + int(b) for a, b in zip(table.get(kind, [0] * 4), verdicts)]
            if done.returncode != 0 or not rows:
                failures.append(plan.stem)
                print(f"{plan.stem}: status {done.returncode}", done.stdout.partition(" mutations\n")[2], done.stderr, flush=True)
            elif LONG:
                print(f"{plan.stem}: {count} mutations, seed {SEED}", flush=True)
    return table, failures


def touched(folder):
    # Snapshots are made for saves, and these runs save nothing.
    plans = [plan for plan in write_plans(folder) if " = snapshot " not in plan.read_text(encoding="utf-8")]
    print(run(["touched-memory", *plans]), end="")


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "plans":
        return print("\n".join(map(str, write_plans(pathlib.Path(sys.argv[2])))))
    checks = {"mutations": mutations, "attributes": attributes, "schedules": schedules, "touched": touched, "runs": runs,
              "families": of_families, "tuned": of_tuned}
    if len(sys.argv) != 2 or sys.argv[1] not in checks:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        checks[sys.argv[1]](pathlib.Path(folder))


if __name__ == "__main__":
    main()
