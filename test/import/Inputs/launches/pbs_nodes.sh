#!/bin/bash
#PBS -l select=2:ngpus=4:mpiprocs=4
#PBS -l walltime=1:00:00
# expect: nodes=2 gpus_per_node=4 global_batch_size=16 lr=0.0001
# The file of hosts says how many there are, each once for each process.
cd ${PBS_O_WORKDIR}
NODES=$(sort -u $PBS_NODEFILE | wc -l)
RANKS=$(wc -l < $PBS_NODEFILE)
mpiexec -n $RANKS --ppn $((RANKS / NODES)) -hostfile $PBS_NODEFILE python pretrain_gpt.py --num-layers 2 --hidden-size 64 \
  --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size $((2 * RANKS)) \
  --train-iters 10 --lr 1e-4 --vocab-size 256 --mock-data --tokenizer-type NullTokenizer
