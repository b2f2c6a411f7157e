#!/bin/bash
# expect: gpus_per_node=8 train_iters=10
IMAGE=nvcr.io/nvidia/pytorch:24.05-py3
docker pull $IMAGE
docker run --rm --gpus all --ipc=host --ulimit memlock=-1 -v /data:/data -e NCCL_DEBUG=INFO $IMAGE \
  torchrun --nproc_per_node 8 /workspace/pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256
