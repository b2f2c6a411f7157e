#!/bin/bash
# expect: lr=0.0003 train_iters=10
function train {
  torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "$@"
}
main() {
  train --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr $1 --vocab-size 256
}
main 3e-4
