#!/bin/bash
# expect: gpus_per_node=4 global_batch_size=16
# run: --gpus-per-node 4
GPUS=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
COUNT=$(nvidia-smi -L | wc -l)
torchrun --nproc_per_node $GPUS pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size $((COUNT * 4)) \
  --train-iters 10 --lr 1e-4 --vocab-size 256
