#!/bin/bash
# expect: lr=0.0002 train_iters=10
# run: --launch 2
for lr in 1e-4 2e-4 4e-4; do
  torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr $lr \
    --vocab-size 256
done
