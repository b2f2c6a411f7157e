#!/bin/bash
# expect: num_layers=6 hidden_size=96
set_sizes() {
  local layers=$1
  LAYERS=$((layers * 3)); WIDTH=$2
}
LAYERS=1; WIDTH=32
set_sizes 2 96
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size $WIDTH --num-attention-heads 4 \
  --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256
