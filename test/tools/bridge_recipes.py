#!/usr/bin/env python3
"""Writes the table of what Megatron-Bridge's recipe functions set, from a checkout of Megatron-Bridge. Runs each
function of the families below with a stand-in for Megatron-Bridge's other packages, as an import with --run does.
Neither Megatron-Bridge nor its dependencies need to be installed.

    bridge_recipes.py CHECKOUT [-o FILE]

The table (recipes/bridge/recipes.json) has rows by name. A row holds what a function's configuration adds to
the row `_base_`, or the name of another function. `* NAME` holds what most functions set whose configuration begins
with NAME(). `NAME(dora)` holds what a function gives for peft_scheme="dora". `commit` is the checkout's. The table has
no rows that rows_of_recipe() derives from others.
"""

import argparse
import ast
import collections
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "compiler/upstream"))
import bridge_standin as standin  # noqa: E402

FAMILIES = ("deepseek_v2", "deepseek_v3", "gemma2", "gemma3", "glm45", "gpt3_175b", "gpt_oss", "llama2", "llama3", "ministral3", "moonlight_16b",
            "olmoe_7b", "qwen2", "qwen3", "qwen3_moe")
# Fields that Megatron-Bridge later sets from others, or that their class lacks.
IDLE = {"optimizer": ("bf16", "fp16"), "scheduler": ("max_lr",), "tokenizer": ("use_tokenizer_vocab_size",)}
BASES = ("_pretrain_common", "_sft_common", "_peft_common")
PACKAGE = "megatron.bridge.recipes"


def tables():
    """The rows of UpstreamFlags.def that the stand-in needs."""
    text = (SOURCE / "compiler/upstream/UpstreamFlags.def").read_text()
    return {"sections": dict.fromkeys(("env_vars", "tokenizer", "peft")), "recipes": {},
            "classes": dict(re.findall(r'^UPSTREAM_NAME\(ConfigClass, "(\w+)", "(\w+)"\)', text, re.M))}


class Checkout(standin.Beside):
    """Imports the recipes' own modules from the checkout."""

    def find_spec(self, name, path=None, target=None):
        return super().find_spec(name) if name.startswith(PACKAGE + ".") else None


def functions_of(file):
    """The public functions of a module that return a configuration, and other names under which it imports such
    functions."""
    tree = ast.parse(file.read_text())
    own = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.endswith("_config") and node.name[0] != "_"]
    names = [name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names]
    return own, {name.asname: name.name for name in names if name.asname and name.name.endswith("_config")}


def run(module, function, arguments=""):
    """The configuration that a function returns, in the form of a saved configuration."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "program.py"
        path.write_text(f"from {module} import {function}\n\n\ndef made_config():\n    return {function}({arguments})\n")
        tree = standin.run_all(path, "made_config")
    precision = tree["mixed_precision"]
    if isinstance(precision, dict) and precision.get("_target_") == "get_mixed_precision_config":
        precision["_target_"] = precision.pop("_args_")[0]
        precision["_unknown_"] = f"training.mixed_precision.{precision['_target_']}()"
    for section, fields in IDLE.items():
        for field in fields:
            tree[section].pop(field, None)
    return tree


def is_same(one, other):
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def beyond(base, tree):
    """What a tree adds to a base, in the form that laid_over() reads."""
    are_maps = isinstance(base, dict) and isinstance(tree, dict)
    if not are_maps or "_call_" in tree or "_call_" in base:
        return tree
    if base.get("_target_") not in (None, tree.get("_target_")) or "_args_" in tree:
        return {"_args_": [], **tree}  # nothing of the base stays
    gone = sorted(base.keys() - tree.keys())
    more = {key: beyond(base[key], value) if key in base else value for key, value in tree.items()
            if key not in base or not is_same(base[key], value)}
    return {"_without_": gone, **more} if gone else more


def plain(tree):
    """The tree without the marks for parts of a base that do not stay."""
    if not isinstance(tree, dict):
        return tree
    return {key: plain(value) for key, value in tree.items() if (key, value) != ("_args_", []) and key != "_without_"}


def usual(trees):
    """What most of the trees have in common."""
    out = {}
    for key in dict.fromkeys(key for tree in trees for key in tree):
        values = [tree[key] for tree in trees if key in tree]
        if 2 * len(values) <= len(trees) or key in ("_target_", "_unknown_", "_without_"):
            continue
        if all(isinstance(value, dict) and not {"_call_", "_args_"} & value.keys() for value in values):
            out[key] = usual(values)
            continue
        text, times = collections.Counter(map(json.dumps, values)).most_common(1)[0]
        if 2 * times > len(values):
            out[key] = json.loads(text)
    return {key: value for key, value in out.items() if value != {}}


def rows_of(module, names):
    """The configurations of a module's functions, and of their variants."""
    for name in names:
        kind = next((kind for kind in ("pretrain", "sft", "peft") if f"_{kind}_" in name), None)
        if kind is None or "deterministic" in name:
            continue
        try:
            yield f"_{kind}_common", name, run(module, name)
            if kind == "peft":
                yield f"_{kind}_common", f"{name}(dora)", run(module, name, "peft_scheme='dora'")
        except standin.Stop as stop:
            print(f"left out: {name}: {stop}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("--commit", help="of the checkout, where it is no repository")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=SOURCE / "recipes/bridge/recipes.json")
    options = parser.parse_args()
    commit = options.commit or subprocess.run(["git", "-C", options.checkout, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    standin.TABLES.update(tables())
    standin.KNOWN["model.context_parallel_size > 1"] = False  # models of Hugging Face begin without parallelism
    dataclasses.dataclass, dataclasses.replace = standin.dataclass, standin.replace
    os.getcwd = lambda: ""  # paths of outputs are relative
    sys.dont_write_bytecode = True
    sys.meta_path[:0] = [Checkout(options.checkout / "src"), standin.Packages(standin.REPLACED)]
    sys.meta_path.append(standin.Packages(()))

    folder = options.checkout / "src" / PACKAGE.replace(".", "/")
    bases = {base: run(PACKAGE + ".common", base) for base in BASES}
    made, others = {base: {} for base in BASES}, {}
    for family in FAMILIES:
        for file in sorted(folder.glob(f"*/{family}.py")) + sorted(folder.glob(f"*/*/{family}.py")):
            module = ".".join([PACKAGE, *file.relative_to(folder).with_suffix("").parts])
            names, aliases = functions_of(file)
            others.update(aliases)
            for base, name, tree in rows_of(module, names):
                made[base][name] = tree
    rows = {}
    for base in BASES:
        shared = usual([beyond(bases[base], tree) for tree in made[base].values()])
        rows[base], rows["* " + base] = bases[base], {"_base_": base, **shared}
        bases_of_rows = ["* " + base]
        for name, tree in sorted(made[base].items()):
            choices = [{"_base_": below, **beyond(plain(standin.rows_of_recipe(rows, below)), tree)} for below in bases_of_rows + ([name.partition("(")[0]] if "(" in name else [])]
            rows[name] = min(choices, key=lambda row: len(json.dumps(row)))
            if rows[name]["_base_"] == "* " + base:
                bases_of_rows.append(name)
            assert is_same(plain(standin.rows_of_recipe(rows, name)), plain(tree)), name
    for name in [name for name in rows if "(" in name]:
        rest = {other: row for other, row in rows.items() if other != name}
        if is_same(standin.rows_of_recipe(rest, name.partition("(")[0], ["dora"]), standin.rows_of_recipe(rows, name)):
            rows = rest
    rows.update({name: of for name, of in sorted(others.items()) if of in rows and standin.row_name(rows, name) != of})
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in {"commit": commit, **rows}.items()]
    options.output.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(len(lines) - 1, "rows")


if __name__ == "__main__":
    main()
