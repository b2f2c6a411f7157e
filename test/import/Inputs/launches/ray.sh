#!/bin/bash
# expect: train_iters=10 mixed_precision=bf16_mixed
ray start --head --num-gpus 8
ray job submit --address http://127.0.0.1:8265 --runtime-env-json '{"env_vars": {"A": "b c"}}' -- \
  python3 train.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256 --bf16
