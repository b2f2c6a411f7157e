#!/bin/bash
# expect: train_iters=10 lr=0.0001
TAG=$(git rev-parse --short HEAD)
OUT=/runs/gpt-${TAG}
mkdir -p $OUT
git diff > $OUT/patch.diff
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256 --save $OUT --tensorboard-dir "$OUT/tb" 2>&1 | tee $OUT/log.txt
