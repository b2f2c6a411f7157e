#!/bin/bash
# A small GPT on eight GPUs: tensor parallelism of two, everything sharded, deterministic.
export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0
export NCCL_ALGO=Ring
export CUBLAS_WORKSPACE_CONFIG=:4096:8
unset CUDA_DEVICE_MAX_CONNECTIONS

torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py \
    --num-layers 12 \
    --hidden-size 512 \
    --num-attention-heads 8 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size 4 --global-batch-size 32 \
    --train-iters 100 \
    --lr 0.00015 --min-lr 1e-5 --lr-decay-style cosine --lr-decay-iters 320000 --lr-warmup-fraction .01 \
    --weight-decay 1e-2 --clip-grad 1.0 \
    --tensor-model-parallel-size 2 \
    --use-megatron-fsdp \
    --data-parallel-sharding-strategy optim_grads_params \
    --use-distributed-optimizer \
    --no-gradient-accumulation-fusion \
    --ckpt-format fsdp_dtensor \
    --calculate-per-token-loss \
    --megatron-fsdp-main-params-dtype fp32 \
    --megatron-fsdp-main-grads-dtype fp32 \
    --megatron-fsdp-grad-comm-dtype fp32 \
    --deterministic-mode \
    --save ckpt --load ckpt --save-interval 50 \
    --async-save --use-persistent-ckpt-worker \
    --log-interval 1 --eval-iters 10 --eval-interval 1000 \
    --mock-data --tokenizer-type NullTokenizer --vocab-size 50257 \
    --bf16
