#!/bin/bash
# expect: tensor_model_parallel_size=2 train_iters=20 data_path=["/data/a"]
# run: -- --tp 2 --iters=20 /data/a
TP=1; ITERS=10
while [[ $# -gt 0 ]]; do
  case "$1" in
    --tp) TP="$2"; shift 2 ;;
    --iters=*) ITERS="${1#*=}"; shift ;;
    *) DATA="$1"; shift ;;
  esac
done
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters $ITERS \
  --lr 1e-4 --vocab-size 256 --tensor-model-parallel-size $TP --data-path $DATA
