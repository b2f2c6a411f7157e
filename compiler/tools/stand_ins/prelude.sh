# Read by each bash of a launch script. Gives programs without a stand-in one, including those of the system that the
# script calls by path. Records variables that the script unsets and files that it sources without success.
command_not_found_handle() {
  /bin/ln -sf "$SHARDC_FOLDER/stand_in.sh" "$SHARDC_FOLDER/bin/$1"
  "$SHARDC_FOLDER/bin/$1" "${@:2}"
}
unset() {
  builtin printf '%s\0' "$@" >>"$SHARDC_FOLDER/results/unset"
  builtin unset "$@"
}
if [ -z "$SHARDC_WITH_FILES" ]; then
  source() {
    if [ -r "$1" ]; then
      builtin source "$@"
    else
      builtin printf '%s\0' "$1" >>"$SHARDC_FOLDER/results/sourced"
    fi
  }
  .() { source "$@"; }
fi
# The limits and the files of this machine are not those of the cluster.
ulimit() { builtin ulimit "$@" 2>/dev/null || builtin true; }
cp() {
  command cp "$@" 2>/dev/null && return
  builtin local shardc_word
  for shardc_word in "$@"; do
    case $shardc_word in "$SHARDC_FOLDER"*) ;; /*) return 0 ;; esac
  done
  command cp "$@"
}
# In a folder of the cluster, the script goes on where it is, with the folder's name.
cd() {
  builtin cd "$@" 2>/dev/null && return
  case ${*: -1} in
  /*) PWD=${*: -1} ;;
  *) PWD=$PWD/${*: -1} ;;
  esac
}
pwd() { builtin printf '%s\n' "$PWD"; }
pushd() { builtin pushd "$@" 2>/dev/null || cd "$@"; }
popd() { builtin popd "$@" 2>/dev/null || builtin true; }
# shardc_stand_in PATH: calls of PATH run the stand-in with the name of its last part
shardc_stand_in() {
  builtin eval "function $1 { $SHARDC_FOLDER/bin/${1##*/} \"\$@\"; }"
}
for shardc_path in /usr/bin /usr/local/bin /bin; do
  for shardc_name in torchrun python python3 srun sbatch mpirun env ssh; do
    shardc_stand_in "$shardc_path/$shardc_name"
  done
done
while IFS= builtin read -r shardc_path; do
  case $shardc_path in
  *[!A-Za-z0-9_./-]*) ;;
  */torchrun | */python | */python3 | */python3.[0-9]* | */srun | */sbatch | */mpirun | */mpiexec | */deepspeed | \
    */accelerate | */docker | */apptainer | */singularity | */nsys)
    shardc_stand_in "$shardc_path" ;;
  esac
done <<<"$SHARDC_MISSING"
builtin unset shardc_path shardc_name
