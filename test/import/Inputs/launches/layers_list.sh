#!/bin/bash
# expect: num_moe_experts=8 moe_layer_freq=[0, 1]
DENSE=1
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256 --num-experts 8 --moe-router-topk 2 \
  --moe-layer-freq [0]*${DENSE}+[1]*1 --expert-model-parallel-size 8
