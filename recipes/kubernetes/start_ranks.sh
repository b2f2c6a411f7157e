#!/bin/bash
# Starts the ranks of one pod, a process for each GPU, with torchrun's variables. Every pod of a job runs it:
#
#   start_ranks.sh RECIPE [OPTION of shardc run ...]
#
# Nodes, the number of this node, and the address of node 0 are what the operator sets: PET_... (TrainJob, newer PyTorchJob), otherwise
# NODES with NODE_RANK or JOB_COMPLETION_INDEX (JobSet, indexed Job), otherwise WORLD_SIZE and RANK, which count pods (Volcano, older
# PyTorchJob). RANKS_PER_NODE says how many ranks a pod has, if PET_NPROC_PER_NODE does not; by default one for each GPU.
set -euo pipefail

die() {
  echo "start_ranks.sh: error: $1" >&2
  exit 2
}

[ $# -gt 0 ] || die 'usage: start_ranks.sh RECIPE [OPTION...]'
nodes=${PET_NNODES:-${NODES:-${WORLD_SIZE:-1}}}
node=${PET_NODE_RANK:-${NODE_RANK:-${JOB_COMPLETION_INDEX:-${RANK:-}}}}
ranks=${PET_NPROC_PER_NODE:-${RANKS_PER_NODE:-auto}}
address=${PET_MASTER_ADDR:-${MASTER_ADDR:-}}
[[ $nodes =~ ^[1-9][0-9]*$ ]] || die "the number of nodes is '$nodes'; jobs whose number of pods changes are not for this script"
if [ "$nodes" = 1 ]; then
  node=0 address=127.0.0.1
fi
[[ $node =~ ^[0-9]+$ ]] || die "no variable says which of the $nodes nodes this is; set NODE_RANK"
[ "$node" -lt "$nodes" ] || die "node $node is not one of $nodes"
[ -n "$address" ] || die 'no variable has the address of node 0; set MASTER_ADDR'
if [[ $ranks == auto || $ranks == gpu ]]; then
  ranks=$(nvidia-smi -L | wc -l) || die 'nvidia-smi lists no GPU; set RANKS_PER_NODE'
fi
[[ $ranks =~ ^[1-9][0-9]*$ ]] || die "the number of ranks of a node is '$ranks'; set RANKS_PER_NODE to a number"

# The name of node 0 exists only once its pod does.
for ((waited = 0; waited < 600; ++waited)); do
  ! getent ahosts "$address" >/dev/null || break
  sleep 1
done

export WORLD_SIZE=$((nodes * ranks)) LOCAL_WORLD_SIZE=$ranks GROUP_RANK=$node MASTER_ADDR=$address
export MASTER_PORT=${PET_MASTER_PORT:-${MASTER_PORT:-29500}} TORCHELASTIC_RUN_ID=${TORCHELASTIC_RUN_ID:-shardc}
pids=() told=0
trap 'told=1; kill -TERM "${pids[@]}" 2>/dev/null' TERM INT # each rank ends after its step, and saves
for ((i = 0; i < ranks; ++i)); do
  RANK=$((node * ranks + i)) LOCAL_RANK=$i "${SHARDC:-shardc}" run "$@" --set="cluster.nodes=$nodes" --set="cluster.gpus_per_node=$ranks" &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do
  while true; do
    told=0 code=0
    wait "$pid" || code=$?
    [ "$told" = 1 ] || break # else the signal has ended the wait, not the process
  done
  [ "$code" -le "$status" ] || status=$code
done
exit "$status"
