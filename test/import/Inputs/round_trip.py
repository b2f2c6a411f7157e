#!/usr/bin/env python3
"""Imports an input, checks the recipe, exports it again, and compares the flags that a real shell would hand to the
program before and after.

    round_trip.py megatron-args SCRIPT [--set PATH=VALUE...] [--unsupported=RULE,RULE...]
    round_trip.py bridge-yaml|bridge-overrides FILE

What the import left out it has to have listed; it is printed as `left out: ...`. What the export gives beyond the
input is printed as `added: ...`. Anything else that differs is an error. The check has to refuse the recipe for the
rules that are named, because shardc cannot execute it, and for no others. Needs bash and Python.
"""

import json
import os
import pathlib
import re
import stat
import subprocess
import sys
import tempfile

CLASSES = {"DistributedDataParallelConfig": "ddp"}

STUB = """#!/bin/bash
if [ "$(basename "$0")" = sbatch ]; then exec bash; fi
if [ "$(basename "$0")" = srun ]; then
    while [ $# -gt 0 ] && [ "$1" != bash ]; do shift; done
    exec "$@"
fi
if [ "$(basename "$0")" = uv ]; then shift; exec "$@"; fi
printf '%s\\n' "$@" > "$ROUND_TRIP_OUT"
"""


def call(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def normal(value):
    value = value.strip("'\"")
    if re.fullmatch(r"[\[\]()0-9*+, ]+", value) and "[" in value:
        return repr(eval(value, {"__builtins__": {}}))  # a pattern of layers, digits and signs alone
    try:
        return repr(float(value.replace("_", "")))
    except ValueError:
        return {"True": "true", "False": "false", "None": "null"}.get(value, value)


def flags_of(words):
    words = [part for word in words for part in (word.split() if word.startswith("--") else [word])]
    flags, at = {}, None
    for word in words:
        if re.match(r"--[a-z]", word):
            at, _, value = word.partition("=")
            flags[at] = [normal(value)] if value else []
        elif at:
            flags[at].append(normal(word))
        elif re.match(r"[a-z_]+\.[a-z_.]+=", word):
            name, _, value = word.partition("=")
            flags[name] = [normal(value)]
    return flags


def shell_words(script, folder):
    """The words that the program of a script is started with, by a real shell with stubs for programs."""
    stubs = folder / "stubs"
    stubs.mkdir(exist_ok=True)
    for name in ("torchrun", "python", "srun", "sbatch", "git", "uv", "tee"):
        text = STUB if name not in ("git", "tee") else "#!/bin/bash\ncat > /dev/null\n"
        (stubs / name).write_text(text)
        (stubs / name).chmod(stat.S_IRWXU)
    out = folder / "words"
    subprocess.run(
        ["bash", script],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        env={"PATH": f"{stubs}:{os.environ['PATH']}", "ROUND_TRIP_OUT": str(out)},
        capture_output=True,
    )
    words = out.read_text().split("\n")[:-1]
    program = max(i for i, word in enumerate(words) if word.endswith(".py"))
    return words[program + 1 :]


def overrides_of(text):
    flags, opened = {}, None
    for line in text.splitlines():
        line = line.split("  #")[0].strip()
        if line.startswith("#"):
            continue
        if re.match(r"\w+ = (\w+)\($", line):
            opened = re.match(r"\w+ = (\w+)\($", line)
            continue
        for word in re.sub(r"\s*=\s*", "=", line).split():
            name, equals, value = word.partition("=")
            name = name.removeprefix("cfg.").lstrip("+")
            if opened and equals and "." not in name:
                name = f"{CLASSES[opened.group(1)]}.{name}"
            if equals and ("." in name or name == "mixed_precision"):
                flags[name] = [normal(value.rstrip(","))]
    return flags


def yaml_fields(text):
    """The values of the test's small YAML file by dotted path. Mappings are indented lines, or {a: b} on one line."""
    flags, section, inner = {}, None, None
    for line in text.splitlines():
        line = line.split(" #")[0].rstrip()
        indent, body = len(line) - len(line.lstrip()), line.strip()
        if not body or body.startswith("#"):
            continue
        name, _, value = body.partition(":")
        value = re.sub(r"^&\w+ ", "", value.strip())
        if indent == 0:
            section = name
            for field in re.findall(r"(\w+): ([^,}]+)", value) if value.startswith("{") else []:
                flags[f"{section}.{field[0]}"] = [normal(field[1])]
            if value and not value.startswith("{"):
                flags[name] = [normal(value)]
        elif indent == 2:
            inner = name
            if value and name != "_target_":
                flags[f"{section}.{name}"] = [normal(value)]
        elif name == "_target_":
            flags[f"{section}.{inner}"] = [normal(value).removeprefix("torch.nn.functional.")]
    return flags


def left_out(recipe):
    lines = re.search(r"Left out, because a recipe has no counterpart:\n((?://   .*\n)*)", recipe)
    return [line[5:] for line in lines.group(1).splitlines()] if lines else []


def check(recipe, sets, unsupported):
    """Errors have to be those of these rules."""
    done = subprocess.run(["shardc", "check", "--diag-format=json", recipe, *sets], capture_output=True, text=True)
    errors = {message["id"] for message in map(json.loads, done.stdout.splitlines()) if message["severity"] == "error"}
    if done.returncode != (1 if unsupported else 0) or errors != unsupported:
        sys.exit(f"check ends with {done.returncode}, refused for {sorted(errors)}\n{done.stdout}{done.stderr}")


def main():
    form, source, sets = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]
    unsupported = set()
    if sets and sets[-1].startswith("--unsupported="):
        unsupported = set(sets.pop().partition("=")[2].split(","))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        recipe, exported = folder / "r.recipe", folder / "exported.sh"
        runs = ["--run"] if form == "megatron-args" else []  # conditions and here-documents are a shell's to evaluate
        call("shardc", "import", form, *runs, source, "-o", recipe)
        check(recipe, sets, unsupported)
        call("shardc", "fmt", "--check", recipe)
        if form == "megatron-args":
            before = flags_of(shell_words(source, folder))
        elif form == "bridge-yaml":
            before = yaml_fields(source.read_text())
        else:
            before = overrides_of(source.read_text())
        if form == "megatron-args" and not any("." in flag for flag in before):
            call("shardc", "export", "megatron-args", recipe, *sets, "-o", exported)
            after = flags_of(shell_words(exported, folder))
        else:
            call("shardc", "export", "bridge-overrides", recipe, *sets, "-o", exported)
            after = overrides_of(exported.read_text())
        idle = left_out(recipe.read_text())
    for line in idle:
        print(f"left out: {line}")
        before.pop(line.split()[0].rstrip(":"), None)
    for flag in sorted(after.keys() - before.keys()):
        print(f"added: {flag} {' '.join(after[flag])}".rstrip())
    wrong = [f"lost: {flag} {before[flag]}" for flag in sorted(before.keys() - after.keys())]
    wrong += [f"{flag}: {before[flag]} became {after[flag]}"
              for flag in sorted(before.keys() & after.keys()) if before[flag] != after[flag]]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(before)} settings agree")


if __name__ == "__main__":
    main()
