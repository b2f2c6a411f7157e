#!/bin/bash
INSTANCES=2
EP=4
export CUDA_DEVICE_MAX_CONNECTIONS=32
uv run python -m torch.distributed.run --nproc_per_node=8 scripts/pretrain.py \
    ddp.use_megatron_fsdp=true \
    ddp.num_distributed_optimizer_instances=${INSTANCES} \
    model.num_moe_experts=128 \
    model.expert_model_parallel_size=${EP} \
    checkpoint.ckpt_format=fsdp_dtensor
