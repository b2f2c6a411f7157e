#!/bin/bash
# Conditions that the text decides.
# expect: num_layers=32 hidden_size=4096 global_batch_size=512 use_distributed_optimizer=true
SIZE=8b
NODES=2
GPUS_PER_NODE=8
PRECISION=bf16
SAVE=

if [ "$SIZE" = 8b ]; then
  LAYERS=32
  HIDDEN=4096
elif [[ $SIZE == 70b* ]]; then
  LAYERS=80
  HIDDEN=8192
else
  echo "unknown size $SIZE" >&2
  exit 1
fi

case "$PRECISION" in
  fp16|half) FLAGS=(--fp16) ;;
  bf*) FLAGS=(--bf16) ;;
  *) exit 1 ;;
esac

WORLD=$((NODES * GPUS_PER_NODE))
if (( WORLD > 8 )); then :; fi
if [[ $WORLD -gt 8 && -n $PRECISION ]]; then
  FLAGS+=(--use-distributed-optimizer)
fi
[ -z "$SAVE" ] && SAVE=/checkpoints/$SIZE
[ $NODES -ge 2 ] || FLAGS+=(--no-save-optim)
[[ $WORLD -eq 16 ]] && BATCH=512 || BATCH=64

torchrun --nproc-per-node $GPUS_PER_NODE --nnodes $NODES pretrain_gpt.py \
  --num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads 32 --seq-length 4096 \
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size $BATCH --train-iters 100 \
  --vocab-size 32000 --lr 1e-4 --save "$SAVE" "${FLAGS[@]}" --mock-data --tokenizer-type NullTokenizer
