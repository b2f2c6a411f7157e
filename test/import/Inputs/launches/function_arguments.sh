#!/bin/bash
# expect: num_layers=2 lr=0.0002 tensor_model_parallel_size=2 mixed_precision=bf16_mixed NCCL_ALGO="Ring"
# A function with arguments of its own, in a subshell whose variables end with it.
train() {
  local tp=$1 lr=$2
  shift 2
  torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 \
    --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr "$lr" --vocab-size 256 \
    --tensor-model-parallel-size "$tp" --mock-data --tokenizer-type NullTokenizer "$@"
}
export NCCL_ALGO=Tree
(
  export NCCL_ALGO=Ring
  train 2 2e-4 --bf16 2>&1 | tee log.txt
)
