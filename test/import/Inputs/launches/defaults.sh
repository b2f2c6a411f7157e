#!/bin/bash
# expect: tensor_model_parallel_size=4 pipeline_model_parallel_size=1 seed=7
TP=${TP:-4}
PP=${PP:=1}
SEED=${1:-7}
: ${ITERS:=10}
OUT=${OUT:-${ROOT:-/runs}/tp${TP}}
torchrun --nproc_per_node ${GPUS_PER_NODE:-8} pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 \
  --global-batch-size 8 --train-iters $ITERS --lr 1e-4 --vocab-size 256 --tensor-model-parallel-size ${TP} \
  --pipeline-model-parallel-size $PP --seed $SEED --save "$OUT"
