#!/bin/bash
# expect: nodes=2 gpus_per_node=8 save="/runs/exp1"
NAME=exp1
ARGS="--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256 --save /runs/${NAME}"
sbatch <<EOT
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --job-name=${NAME}
echo "starts on \$(hostname)"
srun --container-image=/images/torch.sqsh bash -c "
  export OMP_NUM_THREADS=4;
  python pretrain_gpt.py ${ARGS}"
EOT
