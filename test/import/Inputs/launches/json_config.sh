#!/bin/bash
# expect: num_layers=5 hidden_size=80
cat <<END > config.json
{"layers": 5, "width": 80}
END
LAYERS=$(sed -n 's/.*"layers": \([0-9]*\).*/\1/p' config.json)
WIDTH=$(grep -o '"width": [0-9]*' config.json | cut -d' ' -f2)
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size $WIDTH --num-attention-heads 4 \
  --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --vocab-size 256
