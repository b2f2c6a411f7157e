"""Words that docs/glossary.md replaced do not come back: words.txt has a pattern and the word to use, a line each."""

import os
import re

# Pages that quote what stood there, or report what was.
QUOTING = ("docs/benchmarks/history/", "docs/writing.md", "docs/glossary.md", "docs/changelog.md")
CODE = (".cpp", ".h", ".cu", ".cuh", ".def")


def replaced_words(path=os.path.join(os.path.dirname(os.path.abspath(__file__)), "words.txt")):
    """(pattern, word to use) of each line that is no comment."""
    with open(path, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split(" | ") for line in file if line.strip() and not line.startswith("#")]
    return [(re.compile(pattern), instead) for pattern, instead in rows]


def check_words(tree, words=None):
    words = replaced_words() if words is None else words
    for path in tree.select(*CODE, ".md"):
        if not path.startswith(("compiler/", "runtime/", "kernels/", "docs/")) or path.startswith(QUOTING):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            for pattern, instead in words:
                found = pattern.search(line)
                if found:
                    yield f"{path}:{number}: '{found.group()}' was replaced by '{instead}' (docs/glossary.md)"
