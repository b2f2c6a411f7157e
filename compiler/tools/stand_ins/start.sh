#!/bin/bash -p
# Starts a launch script whose launchers are stand-ins. First creates the folder that becomes its PATH, and the paths
# that an earlier run lacked. A script with #SBATCH lines starts as Slurm would start it; #PBS, #BSUB and #FLUX: likewise.
#   start.sh SCRIPT ARGUMENT...
folder=$SHARDC_FOLDER
tools=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
PATH=$tools
export HOME=$folder/home
mkdir -p "$folder/bin" "$HOME"
# Programs that only compute are real; everything else is a stand-in.
for name in awk basename base64 bash bc cat chmod cksum cmp column comm cp cut date diff dirname du echo egrep envsubst \
  expand expr factor false fgrep find flock fmt fold gawk getopt grep head install join jq ln ls mawk md5sum mkdir \
  mkfifo mktemp mv nice nl nohup nproc numfmt od paste pathchk printenv printf pwd readlink realpath rev rm rmdir sed \
  seq setsid sha1sum sha256sum shuf sort split stat stdbuf sum sync tac tail tee test timeout touch tr true truncate \
  tsort uname unexpand uniq unlink wc which xargs yes; do
  program=$(type -P "$name") && ln -sf "$program" "$folder/bin/$name"
done
ln -sf "$folder/stand_in.sh" "$folder/bin/sh"
names="torchrun python python3 srun sbatch qsub bsub flux salloc scontrol sinfo squeue sacct mpirun mpiexec deepspeed accelerate ray \
  docker podman apptainer singularity enroot nvidia-smi hostname whoami id getent ip sleep git nsys ncu numactl uv conda pip ssh rsh pdsh clush pjsub env"
for name in $names; do
  ln -sf "$folder/stand_in.sh" "$folder/bin/$name"
done
# Paths that an earlier run of the script lacked: their folders, files of --with, and a stand-in for scripts.
while read -r path; do
  case $path in
  */*) mkdir -p "${path%/*}" 2>/dev/null ;;
  esac
  [ -n "$path" ] && [ ! -e "$path" ] || continue
  if [ -f "${path##*/}" ] && { [[ $path == /* ]] || ! compgen -G "*/${path##*/}" >/dev/null; }; then # it may be another one
    ln -s "$PWD/${path##*/}" "$path"
  else
    case $path in *.sh | *.bash) ln -s "$folder/stand_in.sh" "$path" ;; esac
  fi
done <<<"$SHARDC_MISSING"
# Empty files for the training programs that the script names, since it may look for them.
grep -oE '[A-Za-z0-9_./-]*train[A-Za-z0-9_]*\.py' "$1" | while read -r path; do
  path=${path#/}
  case /$path in
  */../* | */./*) path=${path##*/} ;;
  esac
  case $path in */*) mkdir -p "${path%/*}" ;; esac
  [ -e "$path" ] || : >"$path"
done
# Upper-case variables that the script only uses, outside of conditions, come from its user's shell, or from files that are not there.
text=$(sed '/^[ \t]*#/d' "$1")
for name in $(grep -oE '[$]\{?[A-Z][A-Z0-9_]+' <<<"$text" | tr -d '${' | sort -u); do
  case $name in SLURM_* | PBS_* | LSB_* | SGE_* | FLUX_* | PJM_* | BASH* | RANDOM | SECONDS | LINENO | OPT* | REPLY | HOSTTYPE | OSTYPE | MACHTYPE | SHELLOPTS | FUNCNAME) continue ;; esac
  [ -n "${!name+set}" ] || grep -qE "(^|[^\$\{A-Z0-9_a-z])$name([^A-Z0-9_a-z]|$)|[$]\{$name[^}A-Z0-9_a-z]|(\[|test |case |\(\(|while |if ).*[$]\{?$name([^A-Z0-9_a-z]|$)" <<<"$text" ||
    export "$name=@output-of-$name@"
done
export PATH=$folder/bin BASH_ENV=$folder/prelude.sh
is_in() { PATH=$tools grep -qE -- "$1" "$script"; }
script=$1
kind=$(PATH=$tools sed '/^[ \t]*[^# \t]/q' "$1" | PATH=$tools grep -oE -m 1 '^#(SBATCH|PBS|BSUB|PJM|[$] | *[Ff][Ll][Uu][Xx]:)')
declare -A jobs=(["#SBATCH"]=sbatch ["#PBS"]=qsub ["#$ "]=qsub ["#BSUB"]=bsub ["#PJM"]=pjsub)
job=${kind:+${jobs[$kind]:-flux}}
[ -z "$SLURM_JOB_ID" ] || job=${job/sbatch/}
# A script that asks whether it is a job, and submits itself or has no directives, starts in both ways.
if is_in '(-[nzv] +"?[$]?\{?|[$]\{)(SLURM|PBS|LSB)_[A-Z_]+(\}?"? +\]|:?[+])' && [ -z "$SLURM_JOB_ID" ] &&
  { [ -z "$job" ] || is_in '^[^#]*(sbatch|qsub|bsub) '; }; then
  bash "$@" >/dev/null 2>&1
  job=${job:-sbatch}
fi
[ "$job" != flux ] || set -- batch "$@"
[ -z "$job" ] || SHARDC_GIVEN=1 exec "$folder/bin/$job" "$@"
exec bash "$@"
