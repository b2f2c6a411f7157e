#!/bin/bash
# A run that continues by itself under torchrun, whose agents start all processes again after a fault and replace machines. Run it on
# each node:
#
#   NODES=2 GPUS=8 ENDPOINT=node1:29500 recipes/slurm/restarts_torchrun.sh RECIPE [path=value ...]
#
# Each start continues from the newest checkpoint in CHECKPOINTS. shardc's own --restarts is not for runs whose torchrun restarts them.
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: restarts_torchrun.sh RECIPE [path=value ...]" >&2
  exit 2
fi

recipe=$1
saves=${CHECKPOINTS:-checkpoints}
settings=("--set=checkpoint.save=\"$saves\"" "--set=checkpoint.load=\"$saves\"")
for setting in "${@:2}"; do
  settings+=("--set=$setting")
done
# Otherwise an agent that takes the place of a lost one never learns the address of rank 0 (torch 2.15), and all end after a minute.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=${TORCH_DISABLE_SHARE_RDZV_TCP_STORE:-1}
exec torchrun --no-python --nnodes="${NODES:-1}" --nproc-per-node="${GPUS:-8}" --max-restarts="${RESTARTS:-5}" \
  --rdzv-backend=c10d --rdzv-id="${JOB:-shardc}" --rdzv-endpoint="${ENDPOINT:-localhost:29500}" \
  "${SHARDC:-shardc}" run "$recipe" "${settings[@]}"
