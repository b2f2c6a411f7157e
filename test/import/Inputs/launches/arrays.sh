#!/bin/bash
# expect: tensor_model_parallel_size=2 train_iters=10 nodes=2
GPUS=(--nproc_per_node=8 --nnodes=2)
MODEL=(
  --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32
  --swiglu  # gated
)
TRAIN=(--micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256)
PARALLEL=(--tensor-model-parallel-size 2)
PARALLEL+=(--sequence-parallel)
torchrun "${GPUS[@]}" pretrain_gpt.py "${MODEL[@]}" "${TRAIN[@]}" "${PARALLEL[@]}"
