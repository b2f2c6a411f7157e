#!/bin/bash
# expect: num_layers=24 hidden_size=1024
declare -A LAYERS=([small]=12 [medium]=24)
declare -A WIDTHS
WIDTHS[small]=768; WIDTHS[medium]=1024
SIZE=medium
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers ${LAYERS[$SIZE]} --hidden-size ${WIDTHS[$SIZE]} \
  --num-attention-heads 16 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256
