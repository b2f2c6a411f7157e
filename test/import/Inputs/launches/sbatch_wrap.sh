#!/bin/bash
# expect: nodes=2 train_iters=10
CMD="srun python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256"
sbatch --nodes=2 --ntasks-per-node=8 --wrap="$CMD"
