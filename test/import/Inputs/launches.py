#!/usr/bin/env python3
"""Imports every launch script of a folder twice, read and run, and compares the settings.

    launches.py FOLDER

What runs has to have the settings that the script's line `# expect:` names, and nothing unknown. What is read has to
have the same settings as what runs, or list them among those to fill in, or say that there is no launch or several.
Prints a line a script: how many settings are known to the reader, and what it says of the rest.
"""

import pathlib
import re
import subprocess
import sys


def run_import(script, *options):
    """The recipe, or the ids of the errors."""
    at = options.index("--") if "--" in options else len(options)
    command = ["shardc", "import", "megatron-args", *options[:at], script, *options[at:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=script.parent)
    if done.returncode == 0:
        return done.stdout, []
    errors = re.findall(r"error: .* \[([a-z-]+)\]", done.stderr)
    if not errors:
        sys.exit(f"{script.name}: status {done.returncode}\n{done.stderr}")
    return None, errors


def settings_of(recipe):
    """Values by dotted path, and the settings to fill in; without upstream's defaults, which follow from the rest."""
    head = re.search(r"Fill in these settings.*?\n((?://   .*\n)*)", recipe)
    asked = [line[5:].split(":")[0] for line in head.group(1).splitlines()] if head else []
    values, section = {}, None
    for line in recipe.splitlines():
        if line.startswith("  // Upstream's defaults"):
            break
        if opened := re.fullmatch(r"  (\w+)( \w+)? \{\}?", line):
            section = opened.group(1)
            if opened.group(2):
                values[f"{section}.kind"] = opened.group(2).strip()
        elif given := re.fullmatch(r"    (\w+) = (.*)", line):
            values[f"{section}.{given.group(1)}"] = given.group(2)
    return values, asked


def words_after(script, mark):
    found = re.search(rf"^# {mark}: (.*)$", script.read_text(), re.M)
    return found.group(1) if found else ""


def check_expected(script, ran):
    names = {path.removesuffix(".kind").split(".")[-1]: value.replace("_", "") for path, value in ran.items()}
    for name, value in re.findall(r"(\w+)=(\[.*?\]|\S+)", words_after(script, "expect")):
        if names.get(name) != value.replace("_", ""):
            yield f"{name} = {names.get(name)}, and {value} is right"


def compare(script, ran, read, asked):
    """What the reader says otherwise than the run, without calling it unknown."""
    holds_any = any(name.startswith("whatever") for name in asked)
    for path in sorted(ran.keys() | read.keys()):
        if ran.get(path) == read.get(path) or path in asked:
            continue
        if path in read or not holds_any:
            yield f"{path} is read as {read.get(path)} and runs as {ran.get(path)}"


def main():
    wrong = []
    for script in sorted(pathlib.Path(sys.argv[1]).resolve().glob("*.s*")):
        if script.suffix not in (".sh", ".sbatch"):
            continue
        options = words_after(script, "run").split()
        recipe, errors = run_import(script, "--run", *options)
        if recipe is None:
            wrong.append(f"{script.name}: the run ends with {errors}")
            continue
        ran, asked = settings_of(recipe)
        faults = list(check_expected(script, ran))
        arguments = options[options.index("--"):] if "--" in options else []
        given = [word for option in zip(options, options[1:]) if option[0] == "--with" for word in option]
        recipe, errors = run_import(script, *given, *arguments)
        if recipe is None:
            print(f"{script.name}: {' '.join(errors)}")
        else:
            read, unknown = settings_of(recipe)
            faults += compare(script, ran, read, unknown)
            agree = sum(ran.get(path) == value for path, value in read.items())
            print(f"{script.name}: {agree} of {len(ran)} agree" + "".join(f"; {name}" for name in unknown))
        if asked:
            print(f"{script.name}: run: {'; '.join(asked)}")
        wrong += [f"{script.name}: {fault}" for fault in faults]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
