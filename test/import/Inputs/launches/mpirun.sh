#!/bin/bash
# expect: train_iters=10 nodes=2 gpus_per_node=8
NODES=2
mpirun -np $((NODES * 8)) --map-by ppr:8:node -x NCCL_DEBUG -x PATH --bind-to none \
  python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256
