#!/bin/bash
# expect: lr=0.0005 train_iters=10
SMALL=(--num-layers 2 --hidden-size 64 --num-attention-heads 4)
TRAIN=(--micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 5e-4 --vocab-size 256)
PICK="SMALL[@]"
ALL=()
for name in PICK TRAIN; do
  [ $name = PICK ] && part=("${!PICK}") || part=("${TRAIN[@]}")
  ALL=("${ALL[@]}" "${part[@]}")
done
torchrun --nproc_per_node 8 pretrain_gpt.py "${ALL[@]}" --seq-length 32
