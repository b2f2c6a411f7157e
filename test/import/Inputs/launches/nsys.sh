#!/bin/bash
# expect: train_iters=10
PROFILE=${PROFILE:-0}
LAUNCH="torchrun --nproc_per_node=8"
if [ "$PROFILE" -eq 1 ]; then
  LAUNCH="nsys profile -s none -o out --capture-range=cudaProfilerApi $LAUNCH"
  EXTRA="--profile --profile-step-start 4"
fi
$LAUNCH pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256 $EXTRA
