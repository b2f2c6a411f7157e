#!/usr/bin/env bash
# Uses installed programs as a user would, in a folder of his own: installed.sh SHARDC [SHARDC_RUN]. SHARDC is the
# program's name or path. Ends with status 0 if everything worked.
set -euo pipefail
shardc=$1
run=${shardc%shardc}shardc-run
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# refused WORDS COMMAND...: the command must end with status 1 and print WORDS.
refused() {
  local words=$1 out status=0
  shift
  out=$("$@" 2>&1) || status=$?
  if [ "$status" -ne 1 ] || [[ $out != *"$words"* ]]; then
    printf 'not refused with "%s" but status %d:\n%s\n' "$words" "$status" "$out"
    exit 1
  fi
}

"$shardc" check shardc:llama3/llama3_8b_fsdp.recipe
cat >mine.recipe <<'RECIPE'
recipe mine extends "shardc:debug/llama_tiny.recipe" {
  train { train_iters = 4 }
}
RECIPE
"$shardc" check mine.recipe
[ "$("$shardc" explain mine.recipe train.train_iters 2>/dev/null | head -n 1)" = "train.train_iters = 4" ]
"$shardc" run mine.recipe | tail -n 1
"$shardc" dump-plan mine.recipe -o mine.plan
"$run" mine.plan | grep -q 'done after 4 of 4 steps'
"$shardc" check mine.recipe --overlay shardc:overlays/fsdp.recipe

# Programs that shardc starts have the environment in which they find others.
"$shardc" run mine.recipe --metrics='| env >variables; cat >rows' >/dev/null
grep -q "^PATH=$PATH\$" variables || { echo "a program that shardc starts has other variables:"; cat variables; exit 1; }

# The documentation that is installed shows this recipe.
"$shardc" run shardc:debug/quickstart.recipe --set train.train_iters=2 --set checkpoint.save=none | grep -q 'done after 2 of 2 steps'

refused "cannot extend 'shardc:debug/nothing.recipe'" "$shardc" check <(sed 's/llama_tiny/nothing/' mine.recipe)
refused 'nothing.recipe' "$shardc" check shardc:debug/nothing.recipe

# The same through a link from another folder.
ln -s "$(command -v "$shardc")" linked
./linked run mine.recipe | grep -q 'done after 4 of 4 steps'
echo "installed programs work"
