#!/usr/bin/env python3
"""Compiles the recipes of a folder that can be executed, and verifies, prints and parses their plans.

    compile_recipes.py RECIPES

overlays/ holds parts of recipes, which compile as part of others. A recipe may say what it needs to
become a plan: a comment line `// dump-plan: OPTIONS`. A recipe that asks for ops that do not exist
yet is valid, and `dump-plan` names them; they are listed at the end. Needs only Python.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

MISSING = re.compile(r"cannot be executed: (.*) is not supported yet \[missing-op\]")


def call(*command, expected=0):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != expected:
        sys.exit(
            f"{' '.join(map(str, command))}\nstatus {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout + done.stderr


def plan_options(recipe):
    for line in recipe.read_text().splitlines():
        if line.startswith("// dump-plan: "):
            return line.split()[2:]
    return []


def without_comments(text):
    return [line for line in text.splitlines() if not line.startswith("//")]


def compile_recipe(recipe, folder):
    """The ops that the recipe's plan lacks; none if there is a plan."""
    first, second = folder / "first.plan", folder / "second.plan"
    options = plan_options(recipe)
    done = subprocess.run(["shardc", "dump-plan", recipe, "-o", first, *options], capture_output=True, text=True)
    missing = set(MISSING.findall(done.stdout + done.stderr)) if not options else set()
    if done.returncode != (1 if missing else 0):
        sys.exit(f"{recipe}: dump-plan ended with {done.returncode}\n{done.stdout}{done.stderr}")
    if missing:
        return missing
    call("shardc-opt", "--verify", first, "-o", second)
    if without_comments(first.read_text()) != without_comments(second.read_text()):
        sys.exit(f"{recipe}: the plan is printed otherwise after parsing")
    return set()


def main():
    recipes = sorted(pathlib.Path(sys.argv[1]).rglob("*.recipe"))
    call("shardc", "fmt", "--check", *recipes)
    missing = {}
    with tempfile.TemporaryDirectory() as folder:
        for recipe in recipes:
            if recipe.parent.name == "overlays":
                continue
            ops = compile_recipe(recipe, pathlib.Path(folder))
            print(f"{recipe.relative_to(sys.argv[1])}: {'not yet' if ops else 'compiles'}")
            for op in ops:
                missing.setdefault(op, recipe)
    for op in sorted(missing):
        print(f"missing: {op}")


if __name__ == "__main__":
    main()
