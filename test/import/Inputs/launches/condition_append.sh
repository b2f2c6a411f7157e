#!/bin/bash
# expect: train_iters=10 lr=0.0001 fp8=hybrid
USE_FP8=${USE_FP8:-1}
ARGS=(--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256)
if [[ "$USE_FP8" == 1 ]]; then
  ARGS+=(--fp8-format hybrid --fp8-amax-history-len 1024)
fi
if [ -d tokenizer ]; then
  ARGS+=(--tokenizer-type HuggingFaceTokenizer --tokenizer-model tokenizer)
fi
torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}" --bf16
