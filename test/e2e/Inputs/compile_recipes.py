#!/usr/bin/env python3
"""Compiles every recipe of a folder, verifies each plan, prints and parses it. Needs only Python.

    compile_recipes.py RECIPES

overlays/ holds parts of recipes, which compile as part of others. A recipe may say what it needs to
become a plan: a comment line `// dump-plan: OPTIONS`.
"""

import pathlib
import subprocess
import sys
import tempfile


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(map(str, command))}\nstatus {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def plan_options(recipe):
    for line in recipe.read_text().splitlines():
        if line.startswith("// dump-plan: "):
            return line.split()[2:]
    return []


def without_comments(text):
    return [line for line in text.splitlines() if not line.startswith("//")]


def compile_recipe(recipe, folder):
    first, second = folder / "first.plan", folder / "second.plan"
    call("shardc", "fmt", "--check", recipe)
    call("shardc", "check", recipe)
    call("shardc", "dump-plan", recipe, "-o", first, *plan_options(recipe))
    call("shardc-opt", "--verify", first, "-o", second)
    if without_comments(first.read_text()) != without_comments(second.read_text()):
        sys.exit(f"{recipe}: the plan is printed otherwise after parsing")


def main():
    recipes = [
        r
        for r in sorted(pathlib.Path(sys.argv[1]).rglob("*.recipe"))
        if r.parent.name != "overlays"
    ]
    with tempfile.TemporaryDirectory() as folder:
        for recipe in recipes:
            compile_recipe(recipe, pathlib.Path(folder))
            print(recipe.relative_to(sys.argv[1]))


if __name__ == "__main__":
    main()
