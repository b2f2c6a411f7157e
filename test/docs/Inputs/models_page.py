#!/usr/bin/env python3
"""Writes docs/models.md: the recipes of models with their sizes, and against what each family is checked.

    models_page.py SHARDC PAGE [--check]

Sizes are those that `shardc recipes` prints. What is checked follows from the recorded values in test/e2e/golden. With --check nothing is
written, and an outdated page is an error.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "test/e2e/golden"
NOT_MODELS = {"bridge", "debug", "finetune"}
SUFFIXES = re.compile(r"_((?:ddp|distopt|fsdp|hsdp|hfsdp|long|tp\d)(?:_[a-z]*\d+)*)$")
# Families that test/interop/megatron_core.py exchanges with Megatron-Core in both directions.
MEGATRON = {"gpt", "llama", "mixtral"}
HEAD = """# Models

<!-- Written by test/docs/Inputs/models_page.py. -->

This page lists the models that have recipes, with their sizes, and says against what each family is checked. A model that
is not listed may have the same architecture: [hugging-face.md](hugging-face.md) lists all architectures of `config.json`
that can be imported.

    $ shardc check shardc:qwen3/qwen3_8b_fsdp.recipe
    $ shardc recipes --path

`shardc init` asks for a model, GPUs and data, and writes a recipe that extends one of these. A recipe without suffix says
what the model is. The *layouts* are recipes that extend it, such as `shardc:llama3/llama3_8b_fsdp.recipe`: `ddp` keeps all
state on each rank, `distopt` divides the optimizer's state, and `fsdp` all state ([fsdp.md](fsdp.md)). The GPUs are those of
the recipe without suffix; `--set cluster.gpu=a100` and `--set cluster.nodes=2` choose others. Recipes of
`shardc:finetune` are in [fine-tuning.md](fine-tuning.md).
"""
CHECKS = """
## What is checked

A small model of each family is trained by transformers, and by shardc from the same folder. The ten losses agree in fp32
within 5e-7, and the exported models have the loss of the model that transformers trained
(`test/e2e/golden-hugging-face.test`). *Continuations* are greedy texts that equal those of transformers' `generate`.
*Gradients* are those of all parameters, on one and two ranks (`test/e2e/golden`). *Megatron-Core* loads checkpoints of runs,
and runs load those of Megatron-Core. `test/interop` has the figures.

| family (`model` of the recipe) | losses: models of transformers | continuations | gradients | Megatron-Core |
|---|--:|---|---|---|
"""


def families_of_types():
    """The recipe's family of each `model_type`, as docs/hugging-face.md has it."""
    text = (ROOT / "docs/hugging-face.md").read_text(encoding="utf-8").split("\n## Architectures\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| `\w+` \| `(\w+)` \|$", text, re.M))


def family_of(recipe):
    """The family that a recipe or one of its bases names."""
    text = recipe.read_text(encoding="utf-8")
    named = re.search(r"\bmodel (\w+) \{|\bmodel = (\w+)|model\.family = (\w+)", text)
    if named:
        return next(name for name in named.groups() if name)
    base = re.search(r'extends "([^"]+)"', text).group(1)
    return family_of(ROOT / "recipes" / base[7:] if base.startswith("shardc:") else recipe.parent / base)


def checks(families):
    """For each family: models whose losses are compared, whether continuations are, and whether gradients are."""
    types = families_of_types()
    cases = json.loads((GOLDEN / "values/hf_training.json").read_text(encoding="utf-8"))["cases"]
    family_of_case = {name: name if name in families else types[case["config"]["model_type"]] for name, case in cases.items()}
    losses = {}
    for family in family_of_case.values():
        losses[family] = losses.get(family, 0) + 1
    texts = json.loads((GOLDEN / "values/generate.json").read_text(encoding="utf-8"))["cases"]
    continued = {family_of_case[name] for name in texts}
    gradients = {family_of(GOLDEN / f"{path.stem}.recipe") for path in (GOLDEN / "values").glob("*.npz")
                 if (GOLDEN / f"{path.stem}.recipe").exists()}
    return losses, continued, gradients


def amount(count):
    for unit, size in (("B", 1e9), ("M", 1e6)):
        if count >= 0.9995 * size:
            value = count / size
            return f"{value:.0f} {unit}" if value >= 99.5 else f"{value:.1f} {unit}"
    return str(count)


def page(shardc):
    recipes = json.loads(subprocess.run([shardc, "recipes", str(ROOT / "recipes"), "--json"], capture_output=True, text=True,
                                        check=True).stdout)
    models, layouts = [], {}
    for recipe in recipes:
        folder, name = recipe["file"].removesuffix(".recipe").split("/")
        suffix = SUFFIXES.search(name)
        if folder in NOT_MODELS:
            continue
        if suffix:
            layouts.setdefault(f"{folder}/{name[:suffix.start()]}", []).append(suffix.group(1))
        else:
            models.append((f"{folder}/{name}", recipe))
    lonely = set(layouts) - {name for name, _ in models}
    if lonely:
        sys.exit(f"layouts without a recipe of their model: {sorted(lonely)}")
    out = HEAD + "\n## Recipes\n\n| recipe | family | parameters | GPUs | layouts |\n|---|---|--:|---|---|\n"
    family_by_name = {name: family_of(ROOT / f"recipes/{name}.recipe") for name, _ in models}
    families = sorted(set(family_by_name.values()))
    losses, continued, gradients = checks(families)
    for name, recipe in models:
        family = family_by_name[name]
        out += (f"| `shardc:{name}.recipe` | {family} | {amount(recipe['parameters'])} | {recipe['gpus']} {recipe['gpu']} | "
                f"{', '.join(f'`{layout}`' for layout in layouts.get(name, [])) or '-'} |\n")
    out += CHECKS
    unchecked = [family for family in families if not losses.get(family)]
    if unchecked:
        sys.exit(f"no losses are recorded for {unchecked}")
    for family in sorted({*families, *losses}):
        out += (f"| `{family}` | {losses.get(family, 0)} | {'yes' if family in continued else '-'} | "
                f"{'yes' if family in gradients else '-'} | {'yes' if family in MEGATRON else '-'} |\n")
    return out


def main():
    shardc, path = sys.argv[1], pathlib.Path(sys.argv[2])
    text = page(shardc)
    if "--check" not in sys.argv:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path} is out of date; write it again with test/docs/Inputs/models_page.py")


if __name__ == "__main__":
    main()
