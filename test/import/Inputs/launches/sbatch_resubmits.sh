#!/bin/bash
# expect: nodes=2 gpus_per_node=4 train_iters=10
# Without directives: the options stand on the line that submits the script again.
if [[ -z "${SLURM_JOB_ID:-}" ]]; then
  exec sbatch --nodes=2 --gres=gpu:4 --job-name=again "$0" "$@"
fi
srun --nodes=$SLURM_NNODES torchrun --nnodes=$SLURM_NNODES --nproc_per_node=$SLURM_GPUS_ON_NODE pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256
