#!/usr/bin/env python3
"""Lists the words that this repository uses often and the field rarely: candidates for docs/glossary.md.

    private_words.py FOLDER... [--least=N] [--ratio=R] [--bigrams]
    private_words.py --glossary      counts the words that docs/glossary.md replaced

FOLDER is the source tree of a program of the field, such as site-packages/torch, transformers, megatron or
/usr/include/llvm-14. Words are counted in comments, strings, pages and identifiers, which are split at capitals and
underscores. A word is listed if it occurs at least N times here (20), and R times as often per million words as in
FOLDER (10).
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENDINGS = {".h", ".hpp", ".cpp", ".cu", ".cuh", ".def", ".py", ".md", ".rst", ".c", ".cc"}
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def words(text):
    """The words of a text in lower case. Parts of identifiers count as words."""
    return [part.lower() for part in PART.findall(text) if len(part) > 2]


def count(files, pairs):
    """How often each word (or pair of neighbouring words) occurs in the files."""
    counts = collections.Counter()
    for file in files:
        try:
            found = words(file.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        counts.update(zip(found, found[1:]) if pairs else found)
    return counts


def own_files():
    """The sources and pages of this repository, without generated pages and without upstream's names in test data."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in listed if pathlib.Path(name).suffix in ENDINGS and "/Inputs/" not in name]


def pattern_of(word):
    """A word as a part of identifiers or of prose: `turned` in isTurned, turnedBy and `is turned`, not in `returned`."""
    first, rest = word[0], re.escape(word[1:]).replace(r"\ ", r"\s+(?://+\s*)?")
    return re.compile(rf"(?:(?<![A-Za-z]){first}|(?<=[a-z0-9]){first.upper()}|(?<![A-Z]){first.upper()}){rest}(?![a-z])")


def glossary_counts():
    """How often each replaced word occurs in sources and pages, except in pages that quote it."""
    page = ROOT / "docs/glossary.md"
    rows = [line.strip("|").split("|") for line in page.read_text(encoding="utf-8").split("\n") if line.startswith("| ")]
    words_of = [re.findall(r"`([^`]+)`", cells[3]) for cells in rows if len(cells) == 6]
    quoting = ("docs/benchmarks/history/", "docs/writing.md", "docs/glossary.md", "docs/changelog.md", "test/tidy/")
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in own_files()
             if not str(file.relative_to(ROOT)).startswith(quoting)]
    for word in sorted({word for row in words_of for word in row}):
        print(f"{sum(len(pattern_of(word).findall(text)) for text in texts):6}  {word}")


def main():
    if sys.argv[1:] == ["--glossary"]:
        return glossary_counts()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--least", type=int, default=20)
    parser.add_argument("--ratio", type=float, default=10)
    parser.add_argument("--bigrams", action="store_true")
    options = parser.parse_args()
    here = count(own_files(), options.bigrams)
    there = collections.Counter()
    for folder in options.folders:
        there += count((f for f in pathlib.Path(folder).rglob("*") if f.suffix in ENDINGS), options.bigrams)
    if not there:
        sys.exit("no words in " + " ".join(options.folders))
    scale_here, scale_there = 1e6 / sum(here.values()), 1e6 / sum(there.values())
    rows = []
    for word, times in here.items():
        often, elsewhere = times * scale_here, (there[word] + 1) * scale_there
        if times >= options.least and often / elsewhere >= options.ratio:
            rows.append((times, often / elsewhere, there[word], " ".join(word) if options.bigrams else word))
    for times, ratio, elsewhere, word in sorted(rows, reverse=True):
        print(f"{word:32} {times:7} here {elsewhere:8} there {ratio:9.1f} times as often")


if __name__ == "__main__":
    main()
