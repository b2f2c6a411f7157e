#!/bin/bash
# expect: gpus_per_node=4 mixed_precision=bf16_mixed
module load apptainer
SIF=${SIF:-$HOME/torch.sif}
apptainer exec --nv --bind /scratch:/scratch "$SIF" bash -c "
  export NCCL_IB_SL=1
  torchrun --nproc_per_node=4 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256 --bf16"
