#!/bin/bash
# expect: micro_batch_size=2 train_iters=10
MICRO=16
while [ $MICRO -gt 2 ]; do
  MICRO=$((MICRO/2))
done
until [ "$ITERS" = 10 ]; do ITERS=$((ITERS+5)); done
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size $MICRO --global-batch-size 16 --train-iters $ITERS \
  --lr 1e-4 --vocab-size 256
