#!/bin/bash
# gpu_variants.sh host|pdl|tests|race [GPUS]: what the switches of docs/testing.md cost or gain on this machine's GPUs. Run it
# in the repository's root; programs are those of $SHARDC_BUILD/bin, build/release by default.
# shellcheck disable=SC2086
set -u
B=${SHARDC_BUILD:-build/release}/bin
G=${2:-4}
T=$(mktemp -d)
export SHARDC_GPU=1 SHARDC_CACHE_DIR=$T
variants="python3 test/bench/run_variants.py $B/shardc-run"
make() { # NAME RECIPE SETTINGS...
  local name=$1 recipe=$2; shift 2
  local sets=(); for s in cluster.gpu=h200 cluster.nodes=1 "$@"; do sets+=(--set "$s"); done
  $B/shardc dump-plan "$recipe" -o "$T/$name.plan" "${sets[@]}" 2>"$T/log" >&2 || cat "$T/log"
}
llama8b() { make llama8b recipes/llama3/llama3_8b_fsdp_h200.recipe cluster.gpus_per_node=$1 train.train_iters=$2; }
gpt2() { make gpt2_$2 recipes/gpt2/gpt2_124m_ddp.recipe cluster.gpus_per_node=$1 train.micro_batch_size=$2 \
         train.global_batch_size=$(($1 * $2)) train.train_iters=$3 model.bias_activation_fusion=true; }
llama1b() { make llama1b test/gpu/llama_1b.recipe cluster.gpus_per_node=$1 train.train_iters=60 model.seq_length=2048 \
            train.micro_batch_size=1 train.global_batch_size=$1; }
case $1 in
host) # the host's work, by how much is queued
  llama8b $G 24; echo "llama3_8b on $G"
  $variants $T/llama8b.plan --rounds=1 all=--nodes-ahead=0 4096=--nodes-ahead=4096 2048=--nodes-ahead=2048 \
    1024=--nodes-ahead=1024 512=--nodes-ahead=512
  gpt2 $G 4 200; echo "gpt2_124m, micro batch 4, on $G"
  $variants $T/gpt2_4.plan all=--nodes-ahead=0 1024=--nodes-ahead=1024 256=--nodes-ahead=256 ;;
pdl) # dependent launches
  gpt2 $G 4 300; echo "gpt2_124m, micro batch 4, on $G"
  $variants $T/gpt2_4.plan --rounds=3 off=SHARDC_DEPENDENT_LAUNCHES=0 own=SHARDC_DEPENDENT_LAUNCHES=1 kernels=SHARDC_DEPENDENT_LAUNCHES=2
  gpt2 $G 64 40; echo "gpt2_124m, micro batch 64, on $G"
  $variants $T/gpt2_64.plan off=SHARDC_DEPENDENT_LAUNCHES=0 own=SHARDC_DEPENDENT_LAUNCHES=1 kernels=SHARDC_DEPENDENT_LAUNCHES=2
  llama1b $G; echo "llama_1b, 2,048, on $G"
  $variants $T/llama1b.plan off=SHARDC_DEPENDENT_LAUNCHES=0 own=SHARDC_DEPENDENT_LAUNCHES=1 kernels=SHARDC_DEPENDENT_LAUNCHES=2
  if [ "$G" -gt 1 ]; then
    llama8b $G 20; echo "llama3_8b on $G"
    $variants $T/llama8b.plan --rounds=1 off=SHARDC_DEPENDENT_LAUNCHES=0 own=SHARDC_DEPENDENT_LAUNCHES=1 kernels=SHARDC_DEPENDENT_LAUNCHES=2
  fi ;;
tests)
  $B/unit_kernels_cuda --gtest_brief=1
  SHARDC_DEPENDENT_LAUNCHES=2 $B/unit_kernels_cuda --gtest_brief=1
  $B/conformance_cuda --gtest_brief=1 ;;
race) # which way racecheck gets through
  for look in ours others all; do
    for kernels in own any; do
      echo "== look=$look kernels=$kernels"
      python3 test/gpu/sanitized.py racecheck $B/shardc recipes --look=$look --kernels=$kernels --only="llama_tiny bf16 dropout" 2>&1 | tail -n 4 | cut -c1-300
    done
  done
  echo "== all runs, look=ours kernels=own"; python3 test/gpu/sanitized.py racecheck $B/shardc recipes 2>&1 | tail -n 12 | cut -c1-300 ;;
esac
rm -rf "$T"
