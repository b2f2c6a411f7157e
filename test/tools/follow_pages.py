#!/usr/bin/env python3
"""Follows pages of docs/ literally: writes their recipes, runs every command that they show, and compares what follows a `$`.

    follow_pages.py PAGES FOLDER [PAGE...]

PAGES is a folder of pages; without names, all that users read are followed, each in a folder of its own below FOLDER. The programs
are found on the path. A command that needs what the machine lacks (NEEDS) is named with its need and not run; a row of NEEDS that
no page has is an error. Ends with 1 if a command does something else than its page says.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import page_session

# Pages for people who change shardc; their commands are those of ./dev, and of tests.
INTERNAL = re.compile(r"adding-|contributing|testing|releasing|writing|architecture|coordinates|factors|glossary|commands")
PROGRAM = re.compile(r"(?:\w+=\S+ )*(shardc(-run|-opt)?|(~/shardc/bin/)?pip|python3|kubectl|torchrun|sbatch|srun|mpirun|flux|export|sed|echo|podman"
                     r"|\./dev|cmake|nvim|git|cd|npx|code|mkdir|lit|sudo|tensorboard)( |$)")
# What a command needs that a bare machine lacks.
NEEDS = [
    (r"^kubectl ", "a Kubernetes cluster"),
    (r"^(SPARE_NODES=1 )?sbatch |^srun ", "a Slurm controller"),
    (r"torchrun ", "torchrun, and several GPUs or machines"),
    (r"--nodes=2 --node-rank=0", "a second machine"),
    (r"^podman ", "podman"),
    (r"^\./dev |^cmake |build/release", "the sources: ./dev fresh quickstart, test and package run these"),
    (r"shardc_cuda", "the wheel with CUDA"),
    (r"doctor( --gpu=h100|$)|measure -o machine", "a GPU"),
    (r"node1:8,node2:8", "two machines with GPUs"),
    (r"--restarts=3 ", "a Kubernetes cluster: test/launch/pod_runs.py starts pods"),
    (r"hf llama|run train.recipe|hf trained", "a model of transformers: test/docs/pages.test makes one, and runs these"),
    (r"^tensorboard ", "tensorboard"),
    (r"^sudo ", "root"),
    (r"--run launch.sh|bridge-python --run", "namespaces, which no chroot has: test/import runs these"),
    (r"cluster.rates=machine.jsonl|--rates=machine.jsonl", "a GPU, which writes machine.jsonl"),
    (r"models/Llama-3.1-8B|data/chat|data/pairs|(generate|score) checkpoints", "the weights and the tokenizer of Llama 3.1 8B"),
    (r"shardc run shardc:llama3/llama3_70b.recipe", "64 GPUs"),
    (r"llama31_8b_lora.recipe --set checkpoint", "a GPU, and the weights of Llama 3.1 8B"),
    (r"overlays/fp8_delayed", "a GPU with fp8"),
    (r"/usr/lib/llvm-14", "Debian's LLVM; the page has pip's lit and filecheck too"),
]
# Commands that the pages show to be refused, or to end with another status than 0.
REFUSED = re.compile(r"global_batch_size=7$|llama3_70b_fsdp.recipe --set cluster.nodes=1$")
# Recipes that pages leave to the reader, and those that stand for them.
THEIRS = {"R.recipe": "shardc:debug/llama_tiny.recipe", "mine.recipe": "shardc:debug/llama_tiny.recipe"}
# What else a reader of a page has: commands that make it in the page's folder. $PAGES is the folder of pages.
BEFORE = {
    "checkpoints": """echo 'recipe ddp extends "shardc:debug/llama_tiny.recipe" { checkpoint { save = "ddp_checkpoints" } }' >ddp.recipe""",
    "data": """mkdir more && echo '{"text": "one"}' >corpus.jsonl && echo two >more/a.txt""",
    "importing": """
        shards=$(shardc recipes --path)
        python3 "$shards/finetune/first_tuning.py" . && shardc ckpt import hf model ckpt
        shardc run shardc:debug/llama_tiny.recipe --set train.train_iters=1 --set checkpoint.save=saves
        cp saves/iter_0000001/run_config.yaml .
        layers='--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1'
        rest='--global-batch-size 8 --train-iters 10 --lr 1e-3 --vocab-size 256 --mock-data --tokenizer-type NullTokenizer'
        echo "torchrun --nproc_per_node 8 pretrain_gpt.py $layers $rest" >launch.sh
        sed p launch.sh | sed '2s/--lr 1e-3/--lr 2e-3/' >sweep.sh
        echo 'ddp.use_megatron_fsdp=true' >overrides.txt
        printf 'from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\n\n\ndef my_config():\n    return llama3_8b_pretrain_config()\n' >recipe.py
        printf '[training]\nsteps = 10\nlocal_batch_size = 1\nseq_len = 64\n[optimizer]\nlr = 1e-3\n' >train.toml""",
    "language": """echo 'recipe run extends "shardc:llama3/llama3_8b_fsdp.recipe" { }' >run.recipe
        echo 'recipe cluster_b { cluster { gpu = h200 } }' >cluster_b.recipe""",
    "recipe-tests": 'cp -r "$PAGES/examples/recipe-tests" .',
}


def needs_of(command, used):
    for pattern, need in NEEDS:
        if re.search(pattern, command):
            used.add(pattern)
            return need
    return "words of the reader's" if re.search(r"\.\.\.|\b(FOLDER|CHECKPOINT|BASE_MODEL|IN OUT|BASE OUT)\b|\[OPTIONS\]", command) else None


class Page:
    """A page in a folder of its own. `cd` and `export` hold for the commands below."""

    def __init__(self, path, folder, used):
        self.path, self.folder, self.used = path, folder, used
        self.before, self.counts, self.wrong = [], [0, 0], []
        folder.mkdir(parents=True)
        for wheel in pathlib.Path().glob("*.whl"):  # what the reader has copied to the machine
            shutil.copy(wheel, folder)
        for name, base in THEIRS.items():
            (folder / name).write_text(f'recipe theirs extends "{base}" {{ }}\n')
        if path.stem in BEFORE:
            subprocess.run(["bash", "-ec", BEFORE[path.stem]], cwd=folder, check=True, stdout=subprocess.DEVNULL,
                           env={**os.environ, "PAGES": str(path.parent.resolve())})

    def run(self, command, shown=()):
        need = needs_of(command, self.used)
        if need:
            self.counts[1] += 1
            print(f"  needs {need}: {command}")
            return
        self.counts[0] += 1
        whole = "\n".join([*self.before, command])
        done = subprocess.run(["bash", "-c", whole], cwd=self.folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        output = done.stdout + done.stderr
        missing = page_session.shown_in([line for line in shown if line.strip()], output)
        fails = any("error:" in line or "FAIL" in line for line in shown) or bool(REFUSED.search(command))
        if missing is not None or (done.returncode != 0) != fails:
            self.wrong.append(command)
            why = f"does not show '{missing}'" if missing is not None else f"ended with {done.returncode}"
            print(f"  WRONG: {command}\n    {why}\n" + "".join(f"    | {line}\n" for line in output.splitlines()[-15:]))
        elif re.match(r"(cd|export) ", command):
            self.before.append(command)

    def follow(self):
        for block in page_session.blocks(self.path.read_text(encoding="utf-8")):
            name = re.match(r"// ([\w.-]+\.(?:recipe|test))$", block.split("\n", 1)[0])
            if name:
                (self.folder / name[1]).write_text(block + "\n")
            elif re.search(r"^\$ ", block, re.MULTILINE):
                for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                    command, *lines = part.split("\n")
                    self.run(command, lines)
            elif PROGRAM.match(block):
                for line in block.replace("\\\n", " ").split("\n"):
                    if PROGRAM.match(line):
                        self.run(re.sub(r"\s+# .*", "", line).strip())


def main():
    pages, work, names = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    shutil.rmtree(work, ignore_errors=True)
    used, wrong, table = set(), 0, []
    for path in sorted(pages.glob("*.md")):
        if (names and path.stem not in names) or (not names and INTERNAL.match(path.stem)):
            continue
        print(f"{path.name}:", flush=True)
        page = Page(path, work / path.stem, used)
        page.follow()
        wrong += len(page.wrong)
        if sum(page.counts):
            table.append(f"{path.name:<26} {page.counts[0]:3} run, {page.counts[1]:2} need what is not here, {len(page.wrong)} wrong")
    print("\n".join(table))
    unused = [] if names else [pattern for pattern, _ in NEEDS if pattern not in used]
    if unused:
        print(f"no page has a command for these rows: {unused}")
    sys.exit(1 if wrong or unused else 0)


if __name__ == "__main__":
    main()
