#!/usr/bin/env python3
"""Checks that docs/language.md names every section of docs/options.md: language_sections.py LANGUAGE OPTIONS."""

import re
import sys

text = open(sys.argv[1], encoding="utf-8").read()
form = text.split("\n## Form\n")[1].split("\n## ")[0]
sections = set(re.findall(r"^### (\w+)$", open(sys.argv[2], encoding="utf-8").read(), re.M))
missing = sorted(section for section in sections if f"`{section}`" not in form)
if not sections or missing:
    sys.exit(f"{sys.argv[1]} does not name the sections {missing}")
