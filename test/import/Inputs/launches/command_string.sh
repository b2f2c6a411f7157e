#!/bin/bash
# expect: train_iters=10 gpus_per_node=2
LAUNCHER="torchrun --nproc_per_node 2"
CMD="pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256"
echo "$LAUNCHER $CMD"
$LAUNCHER $CMD --bf16
