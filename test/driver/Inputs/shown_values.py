"""Prints what commands say of recipes that set a secret in a wrong form."""

import pathlib
import subprocess

COMMANDS = ["check a.recipe", "check a.recipe --diag-format=json", "check a.recipe --diag-format=sarif", "check --dump-ast a.recipe", "fmt --check a.recipe"]
VALUES = ['= "a" + "hf_abcdef"', '= hf_abcdef', "= 'hf_abcdef'", '"hf_abcdef"', f'"hf_abcdef{"f" * 100}"', ': "hf_abcdef"', '= "hf_abcdef', '= """hf_abcdef"""',
          '= [1, "hf_abcdef"]', '=\n  [1, "hf_abcdef"]']

for value in VALUES:
    pathlib.Path("a.recipe").write_text(f'recipe a extends "base.recipe" {{\nenv {{ HF_TOKEN {value} }}\n}}\n')
    for command in COMMANDS:
        found = subprocess.run(["shardc", *command.split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        print(found.stdout, "status", found.returncode)
