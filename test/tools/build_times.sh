#!/usr/bin/env bash
# Measures how long this working tree takes to build, without a compiler cache and without CUDA, and prints a table as
# in docs/benchmarks/build.md. Builds a copy of the files that git tracks, in build/times. Wall times are meaningful
# only on an otherwise idle machine.
#
#   test/tools/build_times.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=$PWD/build/times
pass=compiler/passes/Fusions.cpp
export CCACHE_DISABLE=1
rows=()

# measure WHAT COMMAND...: prints a row with wall and processor time. The command's output goes to a log.
measure() {
  local what=$1 log wall user system TIMEFORMAT='%R %U %S'
  log=$folder/${what//[^a-z]/-}.log
  shift
  printf '%s ...\n' "$what" >&2
  { time "$@" >"$log" 2>&1; } 2>"$folder/time" || { cat "$log" >&2; exit 1; }
  read -r wall user system < <(tail -n 1 "$folder/time")
  rows+=("$(awk -v what="$what" -v wall="$wall" -v cpu="$user $system" -v steps="$(steps_of "$log")" 'BEGIN {
    split(cpu, part, " "); printf "| %s | %s | %.0f s | %.0f s |", what, steps, wall, part[1] + part[2] }')")
}

# The number of steps in a log of ninja.
steps_of() { grep -oE '^\[[0-9]+/[0-9]+\]' "$1" | tail -n 1 | grep -oE '[0-9]+\]' | tr -d ']' || true; }

rm -rf "$folder"
mkdir -p "$folder/source"
git ls-files -z | tar --null --files-from=- --create --ignore-failed-read | tar --extract --directory "$folder/source"
cd "$folder/source"
printf '%s cores, load %s, %s\n' "$(nproc)" "$(cut -d ' ' -f 1 /proc/loadavg)" "$(c++ --version | head -n 1)"

cmake --preset release -DSHARDC_TESTS=OFF -DSHARDC_WITH_CUDA=OFF >"$folder/configure.log"
measure "the quickstart's programs" cmake --build --preset release --target shardc shardc-run
cmake --preset release -DSHARDC_TESTS=ON >>"$folder/configure.log"
measure "the rest of everything but CUDA" cmake --build --preset release
./dev test -R '^passes[.]' >"$folder/first-test.log" 2>&1
touch "$pass"
measure "a change of one pass: build and test" ./dev test -R '^passes[.]'

printf '\n| what | steps | wall | processor |\n|---|--:|--:|--:|\n'
printf '%s\n' "${rows[@]}"
