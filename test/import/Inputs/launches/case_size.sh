#!/bin/bash
# expect: num_layers=4 hidden_size=128 seed=7
# run: -- LARGE
case ${1,,} in
  tiny|small) LAYERS=2 WIDTH=64 ;;
  l*)
    LAYERS=4
    WIDTH=128
    ;;
  *) exit 2 ;;
esac
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size $WIDTH --num-attention-heads 4 \
  --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256 --seed ${2:-7}
