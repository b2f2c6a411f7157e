"""Options that pages and messages name: `shardc data sft --mask` is one only if that command's help has it.

    page_options.py PAGE...
"""
import pathlib
import re
import subprocess
import sys

helps = {}


def help_of(words):
    """The help of the longest beginning of the words that is a command."""
    for length in (3, 2, 1):
        command = tuple(words[:length])
        if command not in helps:
            asked = subprocess.run(["shardc", *command, "--help"], capture_output=True, text=True)
            helps[command] = asked.stdout if asked.returncode == 0 else ""
        if helps[command]:
            return helps[command]
    return ""


def main():
    wrong, seen = [], 0
    for page in map(pathlib.Path, sys.argv[1:]):
        for code in re.findall(r"`(shardc [^`\n|]*)`", page.read_text(encoding="utf-8")):
            words = re.match(r"shardc((?: [a-z][a-z-]*)*)", code)[1].split()
            for flag in re.findall(r"(?<= )--[a-z][a-z-]+", code):
                seen += 1
                if not re.search(rf"(^|[\s,]){flag}\b(?!-)", help_of(words)):
                    wrong.append(f"{page.name}: {code}: no option {flag}")
    print("\n".join(wrong))
    sys.exit(f"{len(wrong)} options that are none" if wrong else 0 if seen > 50 else "the pages name hardly an option")


main()
