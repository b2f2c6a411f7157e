#!/usr/bin/env python3
"""Imports lines of launchers and compares the machines and the variables of the recipes.

    launcher_cases.py [--run]
"""

import pathlib
import re
import subprocess
import sys
import tempfile

FLAGS = "pretrain_gpt.py --num-layers 2 --hidden-size 64 --train-iters 10 --lr 1e-4"
PYTHON, TORCHRUN = f"python {FLAGS}", f"torchrun --nproc_per_node=8 {FLAGS}"
HOSTS = {"hosts": "w0 slots=8\nw1   slots=8 max_slots=8\n# w9 slots=8\nw2 slots=8\nw3 slots=8\n"}
# A script; what the recipe has: nodes, GPUs on each, variables, and `?` for what it asks for; files that --with gives.
CASES = [
    # processes in all, and on each node
    (f"mpirun -np 16 -N 8 {PYTHON}", "2 8"),
    (f"aprun -n 16 -N 8 {PYTHON}", "2 8"),
    (f"mpirun -np 16 --npernode 8 {PYTHON}", "2 8"),
    (f"mpirun -np 16 --map-by ppr:8:node {PYTHON}", "2 8"),
    (f"mpiexec -n 32 -ppn 8 {PYTHON}", "4 8"),
    (f"srun -N2 -n16 {PYTHON}", "2 8"),
    (f"srun -n 16 --ntasks-per-node 8 {PYTHON}", "2 8"),
    (f"flux run -N 2 -n 16 {PYTHON}", "2 8"),
    (f"accelerate launch --num_processes 16 --num_machines 2 {FLAGS}", "2 8"),
    (f"deepspeed --num_nodes 2 --num_gpus 8 {FLAGS}", "2 8"),
    (f"mpirun -np 4 {PYTHON}", "1 4"),
    (f"torchx run -s slurm dist.ddp -j 2x8 --env NCCL_ALGO=Ring,NCCL_PROTO=LL --script {FLAGS.replace(' ', ' -- ', 1)}", "2 8 NCCL_ALGO=Ring NCCL_PROTO=LL"),
    (f"torchx run dist.ddp -j 4 --script {FLAGS.replace(' ', ' -- ', 1)}", "1 4"),
    # each process of one launcher starts several by another
    (f"mpirun -np 2 -N 1 {TORCHRUN}", "2 8"),
    (f"srun -n 2 --ntasks-per-node=1 {TORCHRUN}", "2 8"),
    (f"srun --ntasks=1 --gpus=8 {TORCHRUN}", "1 8"),
    (f"#SBATCH -N 16\n#SBATCH --gres=gpu:a100:4\n#SBATCH --ntasks-per-node=1\nsrun torchrun --nproc_per_node=gpu {FLAGS}", "16 4 a100"),
    (f"mpirun -np 4 --npernode 1 torchrun --nproc_per_node=gpu {FLAGS}", "4 ?"),
    (f"jsrun -n 8 -r 1 -g 6 -a 6 -c 42 {PYTHON}", "8 6"),
    (f"jsrun -n 8 -r 2 -a 3 {PYTHON}", "4 6"),
    (f"export PET_NNODES=2 PET_NPROC_PER_NODE=8\ntorchrun {FLAGS}", "2 8"),
    (f"PET_NPROC_PER_NODE=4 torchrun --nnodes 3 {FLAGS}", "3 4"),
    (f"export PET_NNODES=2\nPET_NPROC_PER_NODE=4 python3 -m torch.distributed.run {FLAGS}", "2 4"),
    (f"export PET_NNODES=2\n{PYTHON}", "- -"),
    # parts with machines of their own
    (f"mpirun -np 8 {PYTHON} : -np 8 {PYTHON}", "? ?"),
    (f"#SBATCH -N 2 --gres=gpu:8\n#SBATCH hetjob\n#SBATCH -N 1\nsrun --het-group=0,1 {PYTHON}", "? ?"),
    # what the flags of a script are, by variables that its job gives it
    (f"#SBATCH --export=ALL,N=3\n#SBATCH -N 2\nsrun torchrun --nproc_per_node=$N {FLAGS}", "2 3"),
    (f"#PBS -v N=3\ntorchrun --nproc_per_node=${{N:-1}} {FLAGS}", "1 3"),
    (f"sbatch --export=ALL,N=3 --wrap='torchrun --nproc_per_node=$N {FLAGS}'", "1 3"),
    (f"sbatch --export=ALL,N=3 <<'EOF'\n#!/bin/bash\ntorchrun --nproc_per_node=$N {FLAGS}\nEOF", "1 3"),
    (f"qsub -v N=3 <<'EOF'\ntorchrun --nproc_per_node=$N {FLAGS}\nEOF", "1 3"),
    # directives end at the first command
    (f"#SBATCH -N 2\ncd .\n#SBATCH -N 16\nsrun {TORCHRUN}", "2 8"),
    # chunks on nodes of their own
    (f"#PBS -l select=8:ngpus=1:mpiprocs=1\n#PBS -l place=scatter\nmpirun {PYTHON}", "8 1"),
    (f"#PBS -l select=2:ngpus=4,place=scatter:excl\nmpirun {PYTHON}", "2 4"),
    (f"mpirun -np 8 --rankfile r {PYTHON}", "? ?"),
    # hosts
    (f"mpirun -np 16 -H a:8,b:8 {PYTHON}", "2 8"),
    (f"mpirun -np 8 -H a:8,b:8 {PYTHON}", "1 8"),
    (f"mpirun -H a:4,b:4 {PYTHON}", "2 4"),
    (f"mpiexec -n 16 -hosts a,b {PYTHON}", "2 8"),
    (f"#SBATCH -w a,b\n#SBATCH --gres=gpu:8\nsrun {PYTHON}", "2 8"),
    (f"#SBATCH -w n[01-03,7],m1\n#SBATCH --gres=gpu:8\nsrun {PYTHON}", "5 8"),
    (f"mpirun -np 8 -H a,a,a,a,b,b,b,b {PYTHON}", "2 4"),
    (f"horovodrun -np 16 -H a:8,b:8 {PYTHON}", "2 8"),
    (f"#SBATCH --nodes=4-4\n#SBATCH --gres=gpu:8\nsrun {PYTHON}", "4 8"),
    (f"deepspeed --include worker-0:0,1@worker-1:0,1 {FLAGS}", "2 2"),
    (f"deepspeed --include=localhost:4,5,6,7 {FLAGS}", "1 4"),
    (f"deepspeed --exclude a:0 {FLAGS}", "? ?"),
    # files of hosts
    (f"mpirun -np 16 --hostfile hosts {PYTHON}", "2 8", HOSTS),
    (f"mpirun -hostfile hosts {PYTHON}", "4 8", HOSTS),
    (f"mpiexec -f hosts -n 16 -ppn 4 {PYTHON}", "4 4", {"hosts": "a:4\nb:4\n"}),
    (f"mpirun -machinefile $PBS_NODEFILE/hosts -np 4 {PYTHON}", "2 2", {"hosts": "a\na\nb\nb\n"}),
    (f"deepspeed --hostfile=/job/hosts {FLAGS}", "4 8", HOSTS),
    (f"deepspeed --hostfile hosts --num_nodes 2 --num_gpus 4 {FLAGS}", "2 4", HOSTS),
    (f"deepspeed --hostfile hosts --include w1@w2:0,1,2,3,4,5,6,7 {FLAGS}", "2 8", HOSTS),
    (f"deepspeed --hostfile hosts --exclude 'w2@w3' {FLAGS}", "2 8", HOSTS),
    (f"deepspeed --hostfile hosts --exclude w1:0 {FLAGS}", "? ?", HOSTS),
    (f"accelerate launch --config_file a.yaml {FLAGS}", "2 8", {"a.yaml": "num_machines: 2\nnum_processes: 16\n"}),
    # slots of LSF
    (f'#BSUB -n 32\n#BSUB -R "rusage[mem=9] span[ptile=8]"\nmpirun {PYTHON}', "4 8"),
    (f'#BSUB -n 64\n#BSUB -R "span[ptile=32]"\n#BSUB -gpu "num=4:mode=shared"\nmpirun -np 8 -npernode 4 {PYTHON}', "2 4"),
    (f'#BSUB -n 8\n#BSUB -R "span[hosts=1]"\nmpirun {PYTHON}', "1 8"),
    (f"#BSUB -n 32\nmpirun {PYTHON}", "? ?"),
    (f'bsub -n 16 -R "span[ptile=8]" -x mpirun -np 16 {PYTHON}', "2 8"),
    (f'bsub -J a -n 8 -R "span[ptile=8]" "mpirun -np 8 {PYTHON}"', "1 8"),
    (f"bsub -nnodes 2 <<EOF\njsrun -n 2 -a 4 -r 1 {PYTHON}\nEOF", "2 4"),
    (f"#BSUB -nnodes 2\njsrun -p 12 -g 1 {PYTHON}", "2 6"),
    # other hosts
    (f'export NCCL_ALGO=Ring\nssh -p 22 -t me@a "cd /w && NCCL_PROTO=LL {TORCHRUN}"', "1 8 NCCL_PROTO=LL"),
    (f"ssh a bash -s <<EOF\nexport NCCL_PROTO=LL\n{TORCHRUN}\nEOF", "1 8 NCCL_PROTO=LL"),
    (f'pdsh -R ssh -w n[1-4] "{PYTHON}"', "4 ?"),
    (f'clush -b -w n[1-2] "torchrun --nnodes 2 --nproc-per-node 4 {FLAGS}"', "2 4"),
    # job scripts
    (f"#PBS -l select=4:ngpus=8:mpiprocs=8\nmpiexec --ppn 8 -n 32 {PYTHON}", "4 8"),
    (f"#PBS -l select=16:ngpus=1,walltime=1:00:00\nmpiexec --ppn 8 {PYTHON}", "2 8"),
    (f"#PBS -N name\n#PBS -l nodes=2:ppn=16:gpus=4\nmpiexec {PYTHON}", "2 4"),
    (f"#SBATCH -N 2\n#SBATCH --gres=gpu:h100:8\nsrun {PYTHON}", "2 8 h100"),
    # what only another file or system knows
    (f"mpirun -np 16 --hostfile hosts {PYTHON}", "? ?"),
    (f"mpirun -np 16 -N 8 --hostfile hosts {PYTHON}", "2 8"),
    (f"deepspeed --hostfile hosts {FLAGS}", "? ?"),
    (f"accelerate launch --config_file a.yaml {FLAGS}", "? ?"),
    (f"srun -n 16 {PYTHON}", "? ?"),
    (f"mpirun -np 2 {TORCHRUN}", "? 8"),
    (f"mpirun -np $(python count.py) -N 8 {PYTHON}", "? 8"),
    (f"starter {FLAGS}", "? ?"),
    # an option belongs to the launcher before it, and to the command that it starts
    (f"nice -n 16 {TORCHRUN}", "1 8"),
    (f"srun -N 2 numactl -N 0 {TORCHRUN}", "2 8"),
    (f"docker run --gpus 8 image {TORCHRUN}", "1 8"),
    (f"srun -N 2 hostname; {TORCHRUN}", "1 8"),
    (f"srun -N 2 bash <<EOF\n{TORCHRUN}\nEOF\nsrun -N 3 hostname", "2 8"),
    (f"sbatch --nodes=2 <<'EOF'\n#SBATCH --gpus-per-node=8\nsrun {PYTHON}\nEOF", "2 8"),
    (f"sbatch --nodes=2 --gpus-per-node=8 --wrap='srun {PYTHON}'", "2 8"),
    (f"sbatch --nodes=2 --gpus-per-node=8 --wrap 'srun {PYTHON}'", "2 8"),
    (f"bash <<-'EOF'\n\t{TORCHRUN} --save '$HOME' --load \\$X\n\tEOF", "1 8"),
    (f"sbatch --nodes=2 -G 8 --ntasks-per-node=4 <<'EOF'\nsrun {PYTHON}\nEOF", "2 4"),
    (f"#SBATCH -N 2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\nsrun {PYTHON}", "2 1"),
    (f"torchrun --rdzv_endpoint : --nnodes 2:2 --nproc_per_node 4 {FLAGS}", "2 4"),
    # variables that programs do not pass on
    (f"export NCCL_ALGO=Ring NCCL_PROTO=LL\nenv -u NCCL_ALGO {TORCHRUN}", "1 8 NCCL_PROTO=LL"),
    (f"export NCCL_ALGO=Ring\nenv -i NCCL_PROTO=LL {TORCHRUN}", "1 8 NCCL_PROTO=LL"),
    (f"export NCCL_ALGO=Ring NCCL_PROTO=LL\nsrun -N 2 --export=NONE {TORCHRUN}", "2 8"),
    (f"export NCCL_ALGO=Ring NCCL_PROTO=LL\nsrun -N 2 --export=NCCL_PROTO,NCCL_DEBUG=INFO {TORCHRUN}", "2 8 NCCL_DEBUG=INFO NCCL_PROTO=LL"),
    (f"#SBATCH --export=NONE\nexport NCCL_ALGO=Ring\nsrun -N 2 {TORCHRUN}", "2 8"),
    (f"#SBATCH --export=NONE\nunset SLURM_EXPORT_ENV\nexport NCCL_ALGO=Ring\nsrun -N 2 {TORCHRUN}", "2 8 NCCL_ALGO=Ring"),
    (f"#SBATCH --export=NONE\nexport NCCL_ALGO=Ring\nsrun -N 2 --export=ALL {TORCHRUN}", "2 8 NCCL_ALGO=Ring"),
    (f"export NCCL_ALGO=Ring NCCL_PROTO=LL\ndocker run -e NCCL_ALGO -e NCCL_DEBUG=INFO image {TORCHRUN}", "1 8 NCCL_ALGO=Ring NCCL_DEBUG=INFO"),
    # variables
    (f"srun --export=ALL,NCCL_ALGO=Ring -N 2 {TORCHRUN}", "2 8 NCCL_ALGO=Ring"),
    (f"#SBATCH --export=ALL,NCCL_ALGO=Ring\n#SBATCH -N 2\nsrun {TORCHRUN}", "2 8 NCCL_ALGO=Ring"),
    (f"#SBATCH --export=NCCL_ALGO=Tree\nexport NCCL_ALGO=Ring\n{TORCHRUN}", "1 8 NCCL_ALGO=Ring"),
    (f"flux run --env=NCCL_ALGO=Ring -N 2 -n 16 {PYTHON}", "2 8 NCCL_ALGO=Ring"),
    (f"apptainer exec --env NCCL_ALGO=Ring,NCCL_PROTO=LL x.sif {TORCHRUN}", "1 8 NCCL_ALGO=Ring NCCL_PROTO=LL"),
    (f"export NCCL_ALGO=Ring\n{TORCHRUN}\nexport NCCL_ALGO=Tree", "1 8 NCCL_ALGO=Ring"),
    (f"export NCCL_ALGO=Ring\n{TORCHRUN}\nunset NCCL_ALGO", "1 8 NCCL_ALGO=Ring"),
    (f"{TORCHRUN}\nexport NCCL_ALGO=Ring", "1 8"),
    (f'export NCCL_ALGO=Ring\nsrun -N 2 bash -c "{TORCHRUN}"\nexport NCCL_ALGO=Tree', "2 8 NCCL_ALGO=Ring"),
    (f"mpirun -np 8 --mca mca_base_env_list 'NCCL_ALGO=Ring;NCCL_PROTO=LL' {PYTHON}", "1 8 NCCL_ALGO=Ring NCCL_PROTO=LL"),
    (f"mpirun -np 8 -x NCCL_IB_HCA=a,b {PYTHON}", "1 8 NCCL_IB_HCA=a,b"),
    (f"#PBS -v NCCL_ALGO=Ring,NCCL_PROTO=LL\n{TORCHRUN}", "1 8 NCCL_ALGO=Ring NCCL_PROTO=LL"),
    (f"#$ -v NCCL_ALGO=Ring\n{TORCHRUN}", "1 8 NCCL_ALGO=Ring"),
    (f"export APPTAINERENV_NCCL_ALGO=Ring\napptainer exec x.sif {TORCHRUN}", "1 8 NCCL_ALGO=Ring"),
    (f"export FI_PROVIDER=efa FI_EFA_USE_DEVICE_RDMA=1\n{TORCHRUN}", "1 8 FI_EFA_USE_DEVICE_RDMA=1 FI_PROVIDER=efa"),
    (f'#BSUB -env "all, NCCL_ALGO=Ring"\n{TORCHRUN}', "1 8 NCCL_ALGO=Ring"),
    (f'#SBATCH --export="ALL,NCCL_ALGO=Ring"\n#SBATCH --comment="a # b" -N "2" # it isn\'t one\nsrun {TORCHRUN}', "2 8 NCCL_ALGO=Ring"),
    (f"# SBATCH -N 4\n##SBATCH -N 3\n#\nsrun {TORCHRUN}", "1 8"),
    (f"#flux: -N 2\n# flux: --env=NCCL_ALGO=Ring\nflux run {TORCHRUN}", "2 8 NCCL_ALGO=Ring"),
    (f"mpiexec.hydra -n 16 -ppn 8 -genv NCCL_ALGO Ring -env NCCL_PROTO=LL {PYTHON}", "2 8 NCCL_ALGO=Ring NCCL_PROTO=LL"),
    (f'NCCL_ALGO=Ring srun -N 2 bash -c "{TORCHRUN}"', "2 8 NCCL_ALGO=Ring"),
    (f'NCCL_ALGO=Ring bash -c "{TORCHRUN}"', "1 8 NCCL_ALGO=Ring"),
    (f'NCCL_ALGO=Tree srun -N 2 bash -c "NCCL_ALGO=Ring {TORCHRUN}"', "2 8 NCCL_ALGO=Ring"),
]


def machines_of(script, options, files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            pathlib.Path(folder, name).write_text(text)
        options = [*options, *(f"--with={folder}/{name}" for name in files)]
        done = subprocess.run(["shardc", "import", "megatron-args", *options, "-"], input=script, capture_output=True, text=True, check=False)
    def value(pattern, otherwise):
        found = re.search(pattern, done.stdout, re.M)
        return found[1] if found else otherwise
    asked = {name: "?" if f"//   cluster.{name}:" in done.stdout else "-" for name in ("nodes", "gpus_per_node")}
    variables = [f"{name}={text}" for name, text in re.findall(r'^ *((?:NCCL|FI)_\w+) = "([^"]*)"', done.stdout, re.M)]
    return " ".join([value(r"^ *nodes = (\d+)", asked["nodes"]), value(r"^ *gpus_per_node = (\d+)", asked["gpus_per_node"]),
                     *filter(None, [value(r"^ *gpu = (\w+)", "")]), *variables]), done.stderr


def main(*options):
    wrong = 0
    for script, wanted, *files in CASES:
        found, said = machines_of("#!/bin/bash\n" + script + "\n", options, dict(*files))
        if found != wanted:
            print(f"{script!r}: {found!r} instead of {wanted!r}", said, sep="\n")
            wrong += 1
    print(f"{len(CASES)} scripts, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
