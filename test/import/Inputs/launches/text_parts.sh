#!/bin/bash
# expect: num_layers=12 hidden_size=768 train_iters=10
MODEL=gpt-12x768-base
SIZES=${MODEL#gpt-}
SIZES=${SIZES%-*}
LAYERS=${SIZES%x*}
WIDTH=${SIZES#*x}
DTYPE=BF16
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size $WIDTH --num-attention-heads 12 \
  --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256 --${DTYPE,,}
