#!/bin/sh
# Two layers of it on four GPUs, by way of the script of the larger one.
ARGS="--num-layers 2 --hidden-size 512 --num-attention-heads 8"
ARGS="$ARGS --seq-length 1024 --max-position-embeddings 1024"
ARGS="$ARGS --normalization RMSNorm --swiglu --ffn-hidden-size 2048 --disable-bias-linear"
ARGS="$ARGS --num-experts 8 --moe-router-topk 4 --expert-model-parallel-size 2"
ARGS="$ARGS --moe-token-dispatcher-type alltoall"
FSDP_ARGS=" \
  --use-megatron-fsdp \
  --data-parallel-sharding-strategy optim_grads_params \
  --no-gradient-accumulation-fusion \
  --use-distributed-optimizer \
  --ckpt-format fsdp_dtensor \
"
NCCL_NVLS_ENABLE=0 torchrun --nproc_per_node=4 pretrain_gpt.py $ARGS $FSDP_ARGS \
    --micro-batch-size 4 --global-batch-size 32 --train-iters 50 --lr 3e-4 \
    --bf16 --mock-data --tokenizer-type NullTokenizer --vocab-size 32000
