#!/bin/bash
# expect: num_layers=4 hidden_size=128 train_iters=10
SIZE=large
if [ $SIZE = small ]; then
  LAYERS=2; WIDTH=64
elif [ $SIZE = large ]; then
  LAYERS=4; WIDTH=128
else
  echo "unknown size" >&2; exit 1
fi
[ -n "$DEBUG" ] && LAYERS=1
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size $WIDTH --num-attention-heads 4 \
  --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256
