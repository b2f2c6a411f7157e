#!/bin/bash -p
# Stands in for a program of a launch script. $0 is the program's name. Records the arguments and the environment, and
# succeeds. A program that starts another one, such as srun, starts the stand-in of that program. Questions about the
# machine are answered for the cluster of the import. The output of other programs is unknown: a mark that the import
# recognises.
if [ "${BASH_SOURCE[0]}" != "$0" ]; then # a script that sources a file which is not there
  builtin printf '%s\0' "${BASH_SOURCE[0]}" >>"$SHARDC_FOLDER/results/sourced"
  return 1
fi
folder=$SHARDC_FOLDER results=$SHARDC_FOLDER/results
name=${0##*/}
tools=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# record KIND WORD...: writes a new file, and puts its number into $number. Keeps texts, such as files of hosts, that words
# name.
record() {
  local file
  for file in "${@:2}"; do
    file=${file##*=}
    case $file in *.py | *.sh) ;; *) [ ! -f "$file" ] || PATH=$tools head -c 65536 "$file" >"$results/file.${file##*/}" ;; esac
  done
  set -o noclobber
  number=0
  until { printf '%s\0' "$1" "${SHARDC_PARENT:--}" "${@:2}" >"$results/$number"; } 2>/dev/null; do
    number=$((number + 1))
    [ $number -lt 300 ] || exit 1
  done
  set +o noclobber
}

unknown() { printf '@output-of-%s@\n' "$name"; }

# count_hosts LIST: prints the number of hosts in `a,n[01-04,7]`
count_hosts() {
  local number=0 rest=$1, range ranges
  while [[ $rest =~ ^[^][,]*(\[([0-9,-]*)\])?[^][,]*,(.*)$ ]]; do
    rest=${BASH_REMATCH[3]}
    IFS=, read -ra ranges <<<"${BASH_REMATCH[2]:-0}"
    for range in "${ranges[@]}"; do number=$((number + 10#${range#*-} - 10#${range%-*} + 1)); done
  done
  echo $number
}

# slurm_job OPTION...: sets the environment of a Slurm job
slurm_job() {
  local nodes=1 tasks= per_node= gpus= all= each= option value
  [ "$name" != srun ] || nodes=${SLURM_NNODES:-1} # a step of the job, or a job alone
  while [ $# -gt 0 ]; do
    option=${1%%=*} value=${1#*=}
    [ "$option" != "$1" ] || value=$2
    case $1 in -[NnJcGw]?*) option=${1:0:2} value=${1:2} ;; esac
    case $option in
    --nodes | -N) nodes=${value%%-*} ;;
    --ntasks | -n) tasks=$value ;;
    --ntasks-per-node) per_node=$value ;;
    --gpus-per-node | --gres) gpus=${value##*:} ;;
    --gpus | -G) all=${value##*:} ;;
    --gpus-per-task) each=${value##*:} ;;
    --nodelist | -w) nodes=$(count_hosts "$value") ;;
    --job-name | -J) export SLURM_JOB_NAME=$value ;;
    --cpus-per-task | -c) export SLURM_CPUS_PER_TASK=$value ;;
    --array | -a) : "${SLURM_ARRAY_TASK_ID:=@output-of-SLURM_ARRAY_TASK_ID@}" && export SLURM_ARRAY_TASK_ID ;;
    esac
    shift
  done
  nodes=${SHARDC_NODES:-$nodes}
  [ -z "$each" ] || gpus=$((each * ${per_node:-1}))
  [ -z "$all" ] || { export SLURM_GPUS=$all && gpus=${gpus:-$((all / nodes))}; }
  gpus=${SHARDC_GPUS:-$gpus}
  [ "$name$tasks$per_node" != srun ] || tasks=$SLURM_NTASKS
  [ -z "$per_node" ] || export SLURM_NTASKS_PER_NODE=$per_node
  [ -z "$gpus" ] || export SLURM_GPUS_ON_NODE=$gpus SLURM_GPUS_PER_NODE=$gpus
  export SLURM_NTASKS=${tasks:-$((nodes * ${per_node:-1}))} SLURM_NNODES=$nodes SLURM_JOB_NUM_NODES=$nodes
  export SLURM_NPROCS=$SLURM_NTASKS SLURM_JOB_ID=${SLURM_JOB_ID:-1} SLURM_JOBID=${SLURM_JOB_ID:-1}
  export SLURM_JOB_NODELIST=node0
  [ "$nodes" = 1 ] || SLURM_JOB_NODELIST=node[0-$((nodes - 1))]
  export SLURM_NODELIST=$SLURM_JOB_NODELIST SLURM_SUBMIT_DIR=${SLURM_SUBMIT_DIR:-$PWD} SLURM_PROCID=0 SLURM_NODEID=0
  export SLURM_LOCALID=0 SLURM_JOB_NAME=${SLURM_JOB_NAME:-job}
}

# pbs_job OPTION...: sets the environment of a job of PBS, and writes its file of hosts: each chunk's host, once for each process
pbs_job() {
  local chunks chunk each i j hosts=0 all=$*
  export PBS_O_WORKDIR=${PBS_O_WORKDIR:-$PWD} PBS_JOBID=${PBS_JOBID:-1}
  while [ $# -gt 0 ]; do
    case $1 in -J* | -t*) : "${PBS_ARRAY_INDEX:=@output-of-PBS_ARRAY_INDEX@}" && export PBS_ARRAY_INDEX PBS_ARRAYID=$PBS_ARRAY_INDEX ;; esac
    [[ ! $1 =~ (select|nodes)=([^,]*) ]] || IFS=+ read -ra chunks <<<"${BASH_REMATCH[2]}"
    shift
  done
  [[ ${chunks[*]} != *ngpus=1* || $all == *scatter* ]] || return 0 # a host may have several chunks
  for chunk in "${chunks[@]}"; do
    [[ $chunk =~ (mpiprocs|ppn)=([0-9]+) ]] && each=${BASH_REMATCH[2]} || each=1
    for ((i = ${chunk%%:*}; i > 0; --i, ++hosts)); do
      for ((j = 0; j < each; ++j)); do echo "node$hosts"; done
    done
  done >"${PBS_NODEFILE:=$folder/nodes}" && export PBS_NODEFILE
}

# ask_task SCRIPT OPTION...: asks which task of an array the job is if its script uses that. Outside arrays, a script may
# have a default.
ask_task() {
  local variable uses='[^:A-Z_+-]|$'
  case " ${*:2}" in *" --array"* | *" -a"* | *" -t "* | *" -J "*[0-9]-[0-9]*) uses='.?' ;; esac
  for variable in $(PATH=$tools sed '/^[ \t]*#/d' "$1" |
    PATH=$tools grep -oE "(SLURM_ARRAY_TASK_[A-Z]+|PBS_ARRAY_?I[A-Z]+|SGE_TASK_[A-Z]+|LSB_JOBINDEX|PJM_BULKNUM)($uses)"); do
    variable=${variable//[!A-Z_]/}
    [ -n "${!variable+set}" ] || { record ask "$variable" && exit 1; }
  done
}

# Prints the directives before a script's first command, one word per line
directives() {
  PATH=$tools sed -nE -e '/^[ \t]*[^# \t]/q' -e 's/^# *flux:/#FLUX /I' -e '/^#(SBATCH|PBS|BSUB|PJM|FLUX|[$])[ \t]/!d' \
    -e 's/^#[A-Z$]+[ \t]+//' -e "s/((\"[^\"]*\"|'[^']*'|[^ \t])+)[ \t]*/\1\n/g" -e 's/(^|\n)#.*//' -e 's/\n$//' \
    -e "s/\"([^\"]*)\"|'([^']*)'/\1\2/g" -e '/./p' "$1"
}

# clean NAME...: unsets the exported variables, but those of Slurm and of containers, and the names
clean() {
  local variable kept='^(PATH|HOME|USER|LOGNAME|HOSTNAME|LANG|BASH_ENV|(SHARDC|SLURM|APPTAINERENV|SINGULARITYENV)_.*)$'
  for variable in $(compgen -e); do
    [[ " $* " == *" $variable "* || $variable =~ $kept ]] || unset "$variable"
  done
}

# take_variables OPTION...: exports the variables that options of a job, or of a step, give it; the others are in `options`
take_variables() {
  local list= parts part && options=()
  while [ $# -gt 0 ]; do
    case $name/$1 in
    */--export=* | */--env=*) list+=${list:+,}${1#*=} ;;
    */--export | */--env | */-env | qsub/-v) list+=${list:+,}$2 && shift ;;
    *) options+=("$1") ;;
    esac
    shift
  done
  [ "$name" != srun ] || list=${list:-$SLURM_EXPORT_ENV}
  IFS=, read -ra parts <<<"$list"
  case $name,$list,${list^^}, in
  *,,, | srun,*,ALL,*) ;;
  srun,*) clean "${parts[@]}" ;;
  sbatch,*)
    [[ $SHARDC_GIVEN || ,${list^^}, == *,ALL,* ]] || clean "${parts[@]}" # variables of --var are the job's
    export SLURM_EXPORT_ENV=$list ;;
  esac
  unset SHARDC_GIVEN
  for part in "${parts[@]}"; do
    part=${part# }
    case $part in [A-Za-z_]*=*) export "$part" 2>/dev/null ;; esac
  done
}

# submit SCRIPT OPTIONS... -- ARGUMENTS...: runs a script as a job
submit() {
  local script=$1 options=()
  shift
  mapfile -t options < <(directives "$script")
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
  done
  ask_task "$script" "${options[@]}"
  [ "$name" != sbatch ] || slurm_job "${options[@]}"
  [ "$name" != qsub ] || pbs_job "${options[@]}"
  take_variables "${options[@]}" ${SHARDC_NODES:+--nodes=$SHARDC_NODES} \
    ${SHARDC_GPUS:+--gres=gpu:${SHARDC_GPU:+${SHARDC_GPU,,}:}$SHARDC_GPUS}
  SHARDC_PARENT=- record wrap "$name" "${options[@]}"
  export SHARDC_PARENT=$number
  exec bash "$script" "${@:2}"
}

sbatch() {
  local options=() wrapped=
  while [ $# -gt 0 ]; do
    case $name/$1 in
    */--wrap=*) wrapped=${1#*=} ;;
    */--wrap) wrapped=$2 && shift ;;
    */--) shift && wrapped=$* && set -- && break ;;
    */--*=* | sbatch/-[NnJcptAoeaGwCqd]?* | bsub/-[BHIKNrx] | bsub/-I[sp] | qsub/-[VIXzh]) options+=("$1") ;;
    */-*) # a value follows, unless it is the script
      options+=("$1")
      [ -f "$2" ] || { options+=("$2") && shift; } ;;
    *) break ;;
    esac
    shift
  done
  [ "$name" != bsub ] || [ -r "$1" ] || { wrapped=$* && set --; }
  if [ $# -gt 0 ] && [ -z "$wrapped" ]; then
    [ -r "$1" ] && submit "$1" "${options[@]}" -- "${@:2}"
    record sourced "$1"
    return
  fi
  local script=$folder/batch.$$
  if [ -n "$wrapped" ]; then printf '%s\n' "$wrapped" >"$script"; else PATH=$tools cat >"$script"; fi
  submit "$script" "${options[@]}" -- "$@"
}

# remote OPTION... [HOST] COMMAND: runs a command, or a script from the input, as on another host
remote() {
  local words=() values=wxgXnfutloRm has_host=
  case $name in ssh | rsh) values=bcDEeFIiJLlmOopQRSWw has_host=1 ;; esac
  while [[ $1 == -* || $has_host ]]; do
    [[ $1 == -* ]] || has_host=
    words+=("$1")
    [[ $1 != -[$values] ]] || { words+=("$2") && shift; }
    shift
  done
  record wrap "$name" "${words[@]}"
  clean && export SHARDC_PARENT=$number
  if [ $# = 0 ]; then exec bash; else exec bash -c "$*"; fi
}

# Asks for the number of GPUs per node if it is unknown
ask_gpus() {
  gpus=${SHARDC_GPUS:-$SLURM_GPUS_ON_NODE}
  [ -n "$gpus" ] && return
  record ask gpus
  exit 1
}

nvidia_smi() {
  local field fields i line header=1
  case "$*" in
  -L | --list-gpus) ask_gpus && for ((i = 0; i < gpus; ++i)); do echo "GPU $i: NVIDIA ${SHARDC_GPU:-GPU} (UUID: GPU-$i)"; done ;;
  *--query-gpu=*)
    ask_gpus
    fields=${*#*--query-gpu=} fields=${fields%% *}
    case "$*" in *noheader*) header= ;; esac
    [ -z "$header" ] || echo "$fields"
    for ((i = 0; i < gpus; ++i)); do
      line=
      for field in ${fields//,/ }; do
        case $field in
        index) line+=", $i" ;;
        count) line+=", $gpus" ;;
        uuid | gpu_uuid) line+=", GPU-$i" ;;
        name | gpu_name) line+=", NVIDIA ${SHARDC_GPU:-$(unknown)}" ;;
        *) line+=", $(unknown)" ;;
        esac
      done
      echo "${line#, }"
    done
    ;;
  *) unknown ;;
  esac
}

scontrol() {
  local i nodes=${SHARDC_NODES:-${SLURM_JOB_NUM_NODES:-1}}
  case "$1 $2" in
  "show hostname" | "show hostnames")
    case "${3:-$SLURM_JOB_NODELIST}" in
    "$SLURM_JOB_NODELIST" | "$SLURM_NODELIST") for ((i = 0; i < nodes; ++i)); do echo "node$i"; done ;;
    *) unknown ;;
    esac ;;
  *) unknown ;;
  esac
}

# find_program WORD...: sets $at to the number of the first word that is a launcher, a shell or a script of this folder.
# Earlier words belong to the start of that program.
find_program() {
  at=0
  local word
  for word in "$@"; do
    at=$((at + 1))
    case ${word##*/} in
    bash | sh | zsh | torchrun | python | python3 | srun | mpirun | mpiexec | deepspeed | accelerate | numactl | nsys | uv | \
      env | docker | podman | apptainer | singularity | ssh)
      return 0 ;;
    *.sh | *.sbatch | *.slurm) [ -f "$word" ] && return 0 ;;
    esac
  done
  return 1
}

record_launch() {
  record launch "$name" "$@"
  PATH=$tools env -0 >"$results/$number.environment"
}

follow_or_record() {
  if ! find_program "$@"; then
    record_launch "$@"
    unknown
    return
  fi
  local options=("${@:1:at-1}")
  case $name in
  srun)
    slurm_job "${options[@]}"
    take_variables "${options[@]}" ;;
  docker | podman) clean "${options[@]}" ;;
  esac
  record wrap "$name" "${options[@]}"
  export SHARDC_PARENT=$number
  case $name in
  srun) export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 ;;
  mpirun | mpiexec) export OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 ;;
  esac
  local program=${*:at:1}
  shift "$at"
  case ${program##*/} in
  bash | sh | zsh) exec bash "$@" ;;
  *.sh | *.sbatch | *.slurm) exec bash "$program" "$@" ;;
  *) exec "$folder/bin/${program##*/}" "$@" ;;
  esac
}

case $name in
sh | bash | zsh) exec "$folder/bin/bash" "$@" ;;
sleep) ;;
sbatch | qsub | bsub | pjsub) sbatch "$@" ;;
env)
  case $1 in - | -i | --ignore-environment) clean && shift ;; esac
  exec /usr/bin/env "$@" ;;
ssh | rsh | pdsh | clush) remote "$@" ;;
flux) if [ "$1" = batch ]; then sbatch "${@:2}"; else follow_or_record "$@"; fi ;;
whoami | id) unknown ;;
nvidia-smi) nvidia_smi "$@" ;;
scontrol) scontrol "$@" ;;
hostname) case $1 in -[iI] | --ip-address | --all-ip-addresses) echo 10.0.0.1 ;; *) echo node0 ;; esac ;;
python | python3)
  if [ "$1" = -c ] || [ "$1" = - ] || [ $# = 0 ]; then # it computes something
    program=$(PATH=$tools type -P python3) && "$program" "$@" || unknown
  else
    record_launch "$@"
    unknown
  fi ;;
torchrun | deepspeed | accelerate) record_launch "$@" ;;
*.sh | *.bash) # a file that is not there
  record sourced "$0"
  follow_or_record "$@" ;;
*) follow_or_record "$@" ;;
esac
