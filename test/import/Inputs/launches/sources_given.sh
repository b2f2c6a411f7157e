#!/bin/bash
# expect: num_layers=3 hidden_size=48 train_iters=10
# run: --with sizes.inc
HERE=$(dirname "$0")
source $HERE/sizes.inc
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers ${SIZES[layers]} --hidden-size $WIDTH --num-attention-heads 4 \
  --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256
