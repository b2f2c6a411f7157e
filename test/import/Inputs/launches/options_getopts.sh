#!/bin/bash
# expect: micro_batch_size=4 mixed_precision=bf16_mixed
# run: -- -m 4 -b
MBS=1
while getopts "m:b" flag; do
  case $flag in
    m) MBS=$OPTARG ;;
    b) EXTRA="--bf16" ;;
  esac
done
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size $MBS --global-batch-size 32 --train-iters 10 --lr 1e-4 \
  --vocab-size 256 $EXTRA
