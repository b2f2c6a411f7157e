#!/bin/bash -p
# Starts a launch script whose launchers are stand-ins. First creates the folder that becomes its PATH, and the paths
# that an earlier run lacked. A script with #SBATCH lines starts as Slurm would start it.
#   start.sh SCRIPT ARGUMENT...
folder=$SHARDC_FOLDER
tools=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
PATH=$tools
export HOME=$folder/home
mkdir -p "$folder/bin" "$HOME"
# Programs that only compute are real; everything else is a stand-in.
for name in awk basename base64 bash bc cat chmod cksum cmp column comm cp cut date diff dirname du egrep env envsubst \
  expand expr factor false fgrep find flock fmt fold gawk getopt grep head id install join jq ln ls mawk md5sum mkdir \
  mkfifo mktemp mv nice nl nohup nproc numfmt od paste pathchk printenv printf pwd readlink realpath rev rm rmdir sed \
  seq setsid sha1sum sha256sum shuf sort split stat stdbuf sum sync tac tail tee test timeout touch tr true truncate \
  tsort uname unexpand uniq unlink wc which whoami xargs yes; do
  program=$(type -P "$name") && ln -sf "$program" "$folder/bin/$name"
done
ln -sf "$folder/stand_in.sh" "$folder/bin/sh"
names="torchrun python python3 srun sbatch salloc scontrol sinfo squeue sacct mpirun mpiexec deepspeed accelerate ray \
  docker podman apptainer singularity enroot nvidia-smi hostname getent ip sleep git nsys ncu numactl uv conda pip ssh"
for name in $names; do
  ln -sf "$folder/stand_in.sh" "$folder/bin/$name"
done
# Paths that an earlier run of the script lacked.
while read -r path; do
  [ -n "$path" ] && mkdir -p "${path%/*}" 2>/dev/null
done <<<"$SHARDC_MISSING"
export PATH=$folder/bin BASH_ENV=$folder/prelude.sh
if grep -q '^#SBATCH' "$1" && [ -z "$SLURM_JOB_ID" ]; then
  exec "$folder/bin/sbatch" "$@"
fi
exec bash "$@"
