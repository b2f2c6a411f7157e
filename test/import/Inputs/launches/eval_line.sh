#!/bin/bash
# expect: train_iters=10 tensor_model_parallel_size=2
run_cmd="torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256 --tensor-model-parallel-size 2"
echo ${run_cmd}
eval ${run_cmd}
set +x
