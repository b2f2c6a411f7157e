#!/bin/bash
# expect: save="/runs/a/ckpt" train_iters=10
set -euo pipefail
cd /workspace/megatron
LOGS=/runs/a/logs
mkdir -p "$LOGS"
export PYTHONPATH=/workspace/megatron:${PYTHONPATH:-}
nohup torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256 --save /runs/a/ckpt > /var/log/train/run.txt 2>&1 &
wait
