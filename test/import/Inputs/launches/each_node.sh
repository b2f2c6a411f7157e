#!/bin/bash
# expect: nodes=2 train_iters=10
HOSTS="node0 node1"
RANK=0
for host in $HOSTS; do
  ssh $host torchrun --nnodes 2 --node_rank $RANK --nproc_per_node 8 --master_addr node0 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256 &
  RANK=$((RANK + 1))
done
wait
