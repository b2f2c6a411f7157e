#!/usr/bin/env python3
"""Writes test/unit/config/ForeignArguments.inc: the arguments of other programs, as their packages of PyPI declare them. A test
demands that ForeignNames.def, or an option of ours, answers each.

    foreign_arguments.py FOLDER DEEPSPEED

FOLDER is for the packages, which pip downloads. The package of DeepSpeed has no wheel: DEEPSPEED is a checkout. The arguments are
the fields of dataclasses and of pydantic's models in SOURCES, and DeepSpeed's keys.
"""
import ast
import pathlib
import re
import subprocess
import sys
import textwrap
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Program, package and version, and the files that declare its arguments.
SOURCES = [
    ("Hugging Face", "transformers==5.24.0", ["transformers/training_args.py"]),
    ("PEFT", "peft==0.21.2", ["peft/tuners/lora/config.py"]),
    ("TRL", "trl==1.16.0", ["trl/trainer/*_config.py", "trl/scripts/utils.py"]),
    ("LLaMA-Factory", "llamafactory==0.9.5", ["llamafactory/hparams/*_args.py"]),
    ("Axolotl", "axolotl==0.19.0", ["axolotl/utils/schemas/*.py", "axolotl/utils/schemas/internal/*.py", "axolotl/integrations/*/args.py"]),
    ("torchtitan", "torchtitan==0.2.2", ["torchtitan/config/job_config.py"]),
]

DEEPSPEED = [f"deepspeed/{name}.py" for name in ("runtime/zero/config", "runtime/zero/offload_config", "runtime/precision_config",
             "monitor/config", "comm/config", "compile/config", "runtime/tensor_parallel/config", "profiling/config")]
KEYS = ["deepspeed/runtime/constants.py", "deepspeed/runtime/activation_checkpointing/config.py"]
NO_KEY = re.compile(r"ROUTE|SPARSE_|EIGEN|PLD|DATA_PARALLEL_GROUP|GLOBAL_RANK|PIPE_REPL|GRADIENT_ALLREDUCE_OP_|.*_(DEFAULT|MODE)$")


def keys(source):
    """The texts of DeepSpeed's constants that name keys of its configuration."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            if node.targets[0].id.isupper() and not NO_KEY.match(node.targets[0].id) and node.value.value.isidentifier():
                yield node.value.value


def fields(source):
    """Names that classes annotate, but for what only Python sees of them."""
    for node in ast.walk(ast.parse(source)):
        for item in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and "ClassVar" not in ast.unparse(item.annotation):
                if not item.target.id.startswith("_") and item.target.id != "model_config":
                    yield item.target.id


def row(program, package, names):
    if not names:
        sys.exit(f"{package} declares no arguments where SOURCES says")
    lines = textwrap.wrap(" ".join(sorted(names)), 92, break_long_words=False)
    text = "".join(f'\n             "{line} "' for line in lines)
    return f'\nARGUMENTS("{program}", "{package}",{text})\n'


def main():
    folder, deepspeed = map(pathlib.Path, sys.argv[1:])
    out = "// Made by test/tools/foreign_arguments.py from packages of PyPI and a checkout of DeepSpeed: program, package, arguments.\n"
    for program, package, patterns in SOURCES:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package], check=True)
        with zipfile.ZipFile(folder / f"{package.replace('==', '-')}-py3-none-any.whl") as wheel:
            files = [name for name in wheel.namelist() if any(pathlib.PurePath(name).match(pattern) for pattern in patterns)]
            out += row(program, package, {name for file in files for name in fields(wheel.read(file).decode())})
    commit = subprocess.run(["git", "rev-parse", "--short=9", "HEAD"], cwd=deepspeed, check=True, capture_output=True, text=True).stdout.strip()
    names = {name for read, files in ((fields, DEEPSPEED), (keys, KEYS)) for file in files for name in read((deepspeed / file).read_text())}
    out += row("DeepSpeed", f"DeepSpeed {commit}", names)
    (ROOT / "test/unit/config/ForeignArguments.inc").write_text(out)


main()
