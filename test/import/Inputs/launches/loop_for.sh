#!/bin/bash
# expect: train_iters=8 global_batch_size=48
STEPS=1
for k in a b c; do
  STEPS=$((STEPS*2))
done
BATCH=0
for ((k=0; k<3; k++)); do BATCH=$((BATCH+16)); done
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 2 --global-batch-size $BATCH --train-iters $STEPS \
  --lr 1e-4 --vocab-size 256
