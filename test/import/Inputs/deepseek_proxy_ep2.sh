#!/bin/bash
# A small model in the manner of DeepSeek: latent attention, eight experts over two ranks, fp8.
LAYERS=${LAYERS:-8}
DENSE=3
MBS=${MBS:-32}
GBS=$((MBS * 8))
export NCCL_NVLS_ENABLE=0
export PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"

MODEL=(
    --num-layers $LAYERS --hidden-size 512 --ffn-hidden-size 2048
    --num-attention-heads 8 --kv-channels 128
    --seq-length 1024 --max-position-embeddings 1024
    --position-embedding-type rope
    --normalization RMSNorm --swiglu --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0
    --multi-latent-attention
    --q-lora-rank 256 --kv-lora-rank 128
    --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128
)
# Which layers have experts: all but the first ones.
MOE=(
    --num-experts 8 --moe-router-topk 4
    --moe-layer-freq "([0]*${DENSE}+[1]*$((LAYERS - DENSE)))"
    --moe-ffn-hidden-size 1024 --moe-shared-expert-intermediate-size 1024
    --moe-router-num-groups 4 --moe-router-group-topk 2
    --moe-router-score-function sigmoid --moe-router-enable-expert-bias
    --moe-router-topk-scaling-factor 2.0
    --moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 1e-4
    --moe-token-dispatcher-type alltoall --moe-grouped-gemm
    --expert-model-parallel-size 2
)
FSDP=(
    --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params
    --no-gradient-accumulation-fusion --use-distributed-optimizer
    --ckpt-format fsdp_dtensor
    --overlap-grad-reduce --overlap-param-gather
)
FP8=()
if [[ "${DTYPE:-fp8}" == "fp8" ]]; then
    FP8+=("--fp8-format e4m3" "--fp8-recipe tensorwise" "--fp8-param-gather")
fi

torchrun --nnodes=1 --nproc-per-node=8 pretrain_gpt.py \
    "${MODEL[@]}" "${MOE[@]}" "${FSDP[@]}" ${FP8[@]} \
    --micro-batch-size ${MBS} --global-batch-size ${GBS} --train-iters 50 \
    --lr 3e-4 --bf16 --mock-data --tokenizer-type NullTokenizer --vocab-size 32000
