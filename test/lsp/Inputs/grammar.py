#!/usr/bin/env python3
"""Holds the TextMate grammar to the language: its sections are those of docs/options.md, and it names the parts of a line.

    grammar.py ROOT
"""

import json
import os
import re
import sys

# A line, and what each of its words has to be.
LINES = [
    ("recipe r extends \"base.recipe\" { // text", {"recipe": "keyword", "extends": "keyword", "\"": "string", "//": "comment"}),
    ("  optimizer adam { lr = 3e-4 }", {"optimizer": "section", "lr": "option", "3e-4": "number"}),
    ("  ddp.nccl_ub = true", {"ddp": "section", "nccl_ub": "option", "true": "constant"}),
    ("  let n = 8_192 * 2", {"let": "keyword", "n ": "option", "8_192": "number", "*": "operator"}),
    ("  cluster { memory = 80GiB }", {"cluster": "section", "80GiB": "number"}),
]


def main():
    root = sys.argv[1]
    folder = os.path.join(root, "docs", "editors", "vscode")
    with open(os.path.join(folder, "syntaxes", "shardc.tmLanguage.json"), encoding="utf-8") as file:
        grammar = json.load(file)
    for name in ("package.json", "language-configuration.json"):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            json.load(file)
    with open(os.path.join(root, "docs", "options.md"), encoding="utf-8") as file:
        wanted = {name for name in re.findall(r"^### (\w+)$", file.read(), re.MULTILINE)}
    rules = grammar["repository"]
    known = set(re.search(r"\((\w+(?:\|\w+)+)\)", rules["section"]["match"]).group(1).split("|"))
    if known != wanted:
        sys.exit(f"sections that differ: {sorted(known ^ wanted)}")
    for line, words in LINES:
        for word, rule in words.items():
            pattern = rules[rule].get("match") or rules[rule]["begin"]
            starts = [match.start() for match in re.finditer(pattern, line)]
            if line.index(word) not in starts:
                sys.exit(f"'{word}' is no {rule} in: {line}")
    print(f"{len(known)} sections, {sum(len(words) for _, words in LINES)} words")


if __name__ == "__main__":
    main()
