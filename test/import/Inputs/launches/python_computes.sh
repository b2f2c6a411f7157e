#!/bin/bash
# expect: global_batch_size=24 lr=0.0003
GBS=$(python3 -c "print(8 * 3)")
LR=$(python - <<END
print(3e-4)
END
)
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size $GBS --train-iters 10 --lr $LR \
  --vocab-size 256
