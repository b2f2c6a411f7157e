#!/bin/bash
# gpu_variants.sh tests|race|host|pdl|rows [GPUS]: what the switches of docs/testing.md cost or gain on this machine's GPUs. Run it
# in the repository's root; programs are those of $SHARDC_BUILD/bin, build/release by default. Products that were timed stay in
# $SHARDC_CACHE_DIR where that is set.
# shellcheck disable=SC2086
set -u
B=${SHARDC_BUILD:-build/release}/bin
G=${2:-4}
T=$(mktemp -d)
export SHARDC_GPU=1 SHARDC_CACHE_DIR=${SHARDC_CACHE_DIR:-$T}
variants="python3 test/bench/run_variants.py $B/shardc-run"
make() { # NAME RECIPE OPTIONS AND SETTINGS...: a plan that saves nothing
  local name=$1 recipe=$2 words=(); shift 2
  for word in cluster.gpu=h200 cluster.nodes=1 cluster.gpus_per_node=$G 'checkpoint.save=""' ddp.grad_reduce_in_fp32=false "$@"; do
    case $word in --*) words+=("$word") ;; *) words+=("--set=$word") ;; esac
  done
  $B/shardc dump-plan "$recipe" -o "$T/$name.plan" "${words[@]}" >"$T/log" 2>&1 || cat "$T/log"
}
llama8b() { make llama8b recipes/llama3/llama3_8b_fsdp_h200.recipe train.global_batch_size=$G train.train_iters=$1 "${@:2}"; }
gpt2() { make gpt2_$1 recipes/gpt2/gpt2_124m_ddp.recipe train.micro_batch_size=$1 train.global_batch_size=$((G * $1)) \
         train.train_iters=$2 model.bias_activation_fusion=true; }
llama1b() { make llama1b test/gpu/llama_1b.recipe --overlay=recipes/overlays/fsdp.recipe ddp.nccl_ub=true model.seq_length=2048 \
            train.micro_batch_size=1 train.global_batch_size=$G train.train_iters=60; }
dependent="off=SHARDC_DEPENDENT_LAUNCHES=0 own=SHARDC_DEPENDENT_LAUNCHES=1 kernels=SHARDC_DEPENDENT_LAUNCHES=2"
case $1 in
host) # the host's work, by how much is queued
  llama8b 20; echo "llama3_8b on $G"
  $variants $T/llama8b.plan --rounds=1 all=--nodes-ahead=0 2048=--nodes-ahead=2048 1024=--nodes-ahead=1024
  gpt2 4 200; echo "gpt2_124m, micro batch 4, on $G"
  $variants $T/gpt2_4.plan --rounds=1 all=--nodes-ahead=0 1024=--nodes-ahead=1024 ;;
pdl) # dependent launches
  gpt2 4 300; echo "gpt2_124m, micro batch 4, on $G"; $variants $T/gpt2_4.plan --rounds=3 $dependent
  gpt2 64 40; echo "gpt2_124m, micro batch 64, on $G"; $variants $T/gpt2_64.plan $dependent
  llama1b; echo "llama_1b, 2,048, on $G"; $variants $T/llama1b.plan $dependent
  [ "$G" -eq 1 ] || { llama8b 20; echo "llama3_8b on $G"; $variants $T/llama8b.plan --rounds=1 $dependent; } ;;
rows) # what crosses for embeddings: the table, or rows of it
  llama8b 20; mv $T/llama8b.plan $T/table.plan
  llama8b 20 --enable-pass=exchange-embedding-rows; mv $T/llama8b.plan $T/rows.plan
  for plan in table rows; do echo "llama3_8b on $G, $plan"; $variants $T/$plan.plan --rounds=1 $plan=; done ;;
tests)
  $B/unit_kernels_cuda --gtest_brief=1
  SHARDC_DEPENDENT_LAUNCHES=2 $B/unit_kernels_cuda --gtest_brief=1
  $B/conformance_cuda --gtest_brief=1 ;;
race) # how racecheck completes
  for look in ours others; do
    for kernels in own any; do
      echo "== look=$look kernels=$kernels"
      timeout 60 python3 test/gpu/sanitized.py racecheck $B/shardc recipes --look=$look --kernels=$kernels \
        --only="llama_tiny bf16 dropout" 2>&1 | tail -n 4 | cut -c1-300
    done
  done
  echo "== all runs"
  timeout 240 python3 test/gpu/sanitized.py racecheck $B/shardc recipes 2>&1 | tail -n 12 | cut -c1-300 ;;
*) echo "usage: gpu_variants.sh tests|race|host|pdl|rows [GPUS]" >&2; exit 2 ;;
esac
rm -rf "$T"
