#!/bin/bash
# Experts' communication beside computation, gradients in fp32.
set -euo pipefail
GPUS=8
function fsdp_flags() {
    echo unused
}
case "${STRATEGY:-zero3}" in
zero3) STRATEGY_FLAGS="--data-parallel-sharding-strategy optim_grads_params" ;;
zero2) STRATEGY_FLAGS="--data-parallel-sharding-strategy optim_grads" ;;
*)
    echo "unknown strategy"
    exit 1
    ;;
esac
mkdir -p logs || { echo "no logs"; exit 1; }
if [ ! -f pretrain_gpt.py ]; then
    echo "run this where pretrain_gpt.py is"
fi
python -m torch.distributed.run --nproc_per_node ${GPUS} pretrain_gpt.py \
    --num-layers 2 --hidden-size 512 --num-attention-heads 8 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 4 \
    --moe-token-dispatcher-type alltoall \
    --overlap-moe-expert-parallel-comm --delay-wgrad-compute \
    --use-megatron-fsdp $STRATEGY_FLAGS \
    --no-gradient-accumulation-fusion --use-distributed-optimizer --ckpt-format fsdp_dtensor \
    --megatron-fsdp-main-grads-dtype fp32 --megatron-fsdp-grad-comm-dtype fp32 \
    --micro-batch-size 4 --global-batch-size 32 --train-iters 50 --lr 3e-4 \
    --bf16 --mock-data --tokenizer-type NullTokenizer --vocab-size 32000 2>&1 | tee logs/out.txt
