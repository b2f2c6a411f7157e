#!/bin/bash
# expect: normalization=RMSNorm lr=0.0001
MODEL_ARGS="
  --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 \
  --normalization RMSNorm
"
TRAIN_ARGS="--micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256"
ALL="$MODEL_ARGS $TRAIN_ARGS"
python -m torch.distributed.launch --nproc_per_node 4 pretrain_gpt.py $ALL --bf16
