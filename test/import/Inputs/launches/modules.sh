#!/bin/bash
# expect: gpus_per_node=8 train_iters=10
module purge
module load cuda/12.4 nccl
eval "$(conda shell.bash hook)"
conda activate megatron
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_NVLS_ENABLE=0
ulimit -n 4096 2>/dev/null
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256
