#!/bin/bash
# expect: lr=0.0002 train_iters=250
LR=$(awk 'BEGIN { printf "%.4f", 0.0001 * 2 }')
SAMPLES=2000
ITERS=$(expr $SAMPLES / 8)
WARMUP=$(echo "$ITERS / 10" | sed 's/ //g' | awk -F/ '{ print $1 / $2 }')
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters $ITERS --lr $LR \
  --lr-warmup-iters $WARMUP --vocab-size 256
