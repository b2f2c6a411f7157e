#!/bin/bash
# expect: global_batch_size=96 train_iters=1000 gpus_per_node=8
NODES=2 ; GPUS=8
WORLD=$(($NODES*$GPUS))
MBS=2
ACCUMULATE=3
GBS=$((WORLD * MBS * ACCUMULATE))
TOKENS=$((GBS * 32 * 1000))
torchrun --nnodes $NODES --nproc_per_node $GPUS pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size $MBS --global-batch-size $GBS \
  --train-iters $((TOKENS / (GBS * 32))) --lr 1e-4 --vocab-size 256
