#!/usr/bin/env python3
"""Rewrites the expected text of lit tests from what their programs print now, as LLVM's update_test_checks.py does.

    update_checks.py BUILD TEST...

Each `X-LABEL:` of a test must still be found. Below it, a plain directive without a match gets the text of the most
similar line. Chains of `X-NEXT:` are rewritten, with new lines added and missing ones removed. Patterns (`{{...}}`,
`[[...]]`) stay where they match. Directives for absent lines, or for lines in any order, stay unchanged. A file whose
result does not pass FileCheck stays as it was, and its name is printed. Exits with 1 if there is one.
"""

import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SPECIAL = re.compile(r"\{\{.*?\}\}|\[\[.*?\]\]")
WORD = re.compile(r"\s+|\w+|.")
SIMILAR = 0.6  # similarity of two lines that may be one op before and after a change
GAP = 0.1  # cost of an added or removed line, where a match scores 2
REACH = 30  # most lines between two directives


class Directive:
    """`//   X-KIND: text` in a line of a test; `lead` is the text before X."""

    def __init__(self, number, lead, kind, text):
        self.number, self.lead, self.kind, self.text = number, lead, kind, text


def directives_of(lines, prefix):
    pattern = re.compile(rf"(.*//\s*){re.escape(prefix)}(-[A-Z]+)?:\s*(.*?)\s*$")
    found = [(number, pattern.match(line)) for number, line in enumerate(lines)]
    return [Directive(number, match[1], match[2] or "", match[3]) for number, match in found if match]


def tokens_of(text):
    """The words of a pattern. A regular expression or a variable counts as one word."""
    found, at = [], 0
    for special in SPECIAL.finditer(text):
        found += WORD.findall(text[at : special.start()])
        found.append(special.group())
        at = special.end()
    return found + WORD.findall(text[at:])


def is_special(token):
    return bool(SPECIAL.fullmatch(token))


def expression_of(pattern, variables):
    """FileCheck's pattern as a Python regular expression, and the variables that it defines, by group."""
    parts, names = [], []
    for token in tokens_of(pattern):
        if token.startswith("{{") and is_special(token):
            parts.append(f"(?:{token[2:-2]})")
        elif is_special(token):
            name, colon, inner = token[2:-2].partition(":")
            if colon:
                parts.append(f"(?P<v{len(names)}>{inner})")
                names.append(name)
            else:
                parts.append(re.escape(variables.get(name, "")))
        else:
            parts.append(r"[ \t]+" if token.isspace() else re.escape(token))
    return re.compile("".join(parts)), names


def matches(pattern, line, variables):
    """Whether the line matches the pattern. Sets variables that the pattern defines."""
    expression, names = expression_of(pattern, variables)
    match = expression.search(line)
    if match:
        variables.update({name: match[f"v{i}"] for i, name in enumerate(names)})
    return bool(match)


def restyled(pattern, line, variables):
    """A line's text in the form of a pattern: its regular expressions stay where they match. Text before the pattern's
    first word and after its last one is left out, as in the pattern."""
    old, new = tokens_of(pattern), WORD.findall(line.strip())
    steps = difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes()
    result = []
    for index, (kind, old_from, old_to, new_from, new_to) in enumerate(steps):
        removed, added = old[old_from:old_to], new[new_from:new_to]
        if kind == "insert" and index in (0, len(steps) - 1):
            continue
        special = next((i for i, token in enumerate(removed) if is_special(token)), None)
        if special is not None:
            behind = len(removed) - special - 1
            inner = added[special : len(added) - behind]
            if matches(f"{removed[special]}", "".join(inner), dict(variables)) and (inner or removed[special] == "{{.*}}"):
                result += added[:special] + [removed[special]] + added[len(added) - behind :]
                continue
        result += added
    return "".join(result)


def similarity(pattern, line):
    words = [[word for word in text if not word.isspace()] for text in (tokens_of(pattern), WORD.findall(line))]
    return difflib.SequenceMatcher(a=words[0], b=words[1], autojunk=False).ratio()


def find(pattern, lines, begin, variables):
    """The first line from `begin` on that matches the pattern, otherwise the most similar one, or None."""
    for at in range(begin, len(lines)):
        if matches(pattern, lines[at], variables):
            return at
    ratio, at = max(((similarity(pattern, lines[at]), -at) for at in range(begin, len(lines))), default=(0, 0))
    return -at if ratio >= SIMILAR else None


def likeness(pattern, line, variables):
    """2 if the line matches the pattern, otherwise their similarity; 0 if they are too different."""
    if matches(pattern, line, dict(variables)):
        return 2
    ratio = similarity(pattern, line)
    return ratio if ratio >= SIMILAR else 0


def aligned(chain, lines, variables):
    """Aligns a chain of directives with lines; the first one is line 0. For each line up to the last aligned one: its
    directive, or None if the line is new. Maximises the sum of likenesses (Needleman-Wunsch with an open end)."""
    window = lines[: 2 * len(chain) + 20]
    best = [[None] * len(window) for _ in chain]  # (score, previous step) with directive i at line j
    best[0][0] = (2, None)
    for i in range(1, len(chain)):
        for j in range(1, len(window)):
            like = likeness(chain[i].text, window[j], variables)
            before = [
                (best[k][m][0] + like - GAP * (i - k - 1 + j - m - 1), (k, m))
                for k in range(i)
                for m in range(max(0, j - 1 - REACH), j)
                if best[k][m] and (i - k == 1 or j - m == 1)
            ]
            if like and before:
                best[i][j] = max(before)
    at = max(((cell[0], (i, j)) for i, row in enumerate(best) for j, cell in enumerate(row) if cell))[1]
    result = [None] * (at[1] + 1)
    while at:
        result[at[1]] = chain[at[0]]
        at = best[at[0]][at[1]][1]
    return result


def written_anew(chain, lines, first, variables):
    """A chain whose first directive is at line `first`, rewritten as pairs (directive or None, text); and the next
    line."""
    olds = aligned(chain, lines[first:], variables)
    result = []
    for old, line in zip(olds, lines[first:]):
        if old and matches(old.text, line, variables):
            result.append((old, old.text))
            continue
        model = old or max(chain, key=lambda each: similarity(each.text, line))
        text = restyled(model.text, line, variables)
        matches(text, line, variables)
        result.append((old, text))
    return result, first + len(olds)


def chains_of(directives):
    """Chains of directives: each plain directive with the -NEXT directives after it, and each other directive alone."""
    chains = []
    for directive in directives:
        if directive.kind == "-NEXT" and chains and chains[-1][-1].kind in ("", "-NEXT", "-LABEL"):
            chains[-1].append(directive)
        else:
            chains.append([directive])
    return chains


def updates_of(lines, prefix, output):
    """{number of a line of the test: its replacement}, so that directives of the prefix expect the output."""
    directives, output, updates = directives_of(lines, prefix), output.splitlines(), {}
    labels, at = {}, 0
    for directive in [each for each in directives if each.kind == "-LABEL"]:
        found = next((i for i in range(at, len(output)) if matches(directive.text, output[i], {})), None)
        if found is None:
            raise ValueError(f"line {directive.number + 1}: no line has the label '{directive.text}'")
        labels[directive.number], at = found, found + 1
    ends = [*list(labels.values())[1:], len(output)]
    end_of = dict(zip(labels, ends))
    at, end, variables = 0, next(iter(labels.values()), len(output)), {}
    for chain in chains_of(directives):
        head = chain[0]
        if head.kind == "-LABEL":
            at, end = labels[head.number], end_of[head.number]
        elif head.kind not in ("", "-NEXT"):
            continue
        section = output[:end]
        first = find(head.text, section, at, variables)
        if first is None:
            raise ValueError(f"line {head.number + 1}: no line is similar to '{head.text}'")
        anew, at = written_anew(chain, section, first, variables)
        kept = {directive.number for directive, _ in anew if directive}
        updates.update({directive.number: [] for directive in chain if directive.number not in kept})
        number = head.number
        updates.setdefault(number, [])
        for index, (directive, text) in enumerate(anew):
            model = directive or min(chain[1:] or chain, key=lambda each: abs(each.number - number))
            number = directive.number if directive else number
            kind = head.kind if index == 0 else "-NEXT"
            updates.setdefault(number, []).append(f"{model.lead}{prefix}{kind}: {text}")
    return updates


class Test:
    """A lit test: its RUN lines and the input that they give to FileCheck."""

    def __init__(self, path, build):
        self.path, self.build = path, build
        self.lines = path.read_text().splitlines()
        self.commands = [line.split("RUN:", 1)[1].strip() for line in self.lines if "RUN:" in line]

    def run(self, lines, checker):
        """Runs all RUN lines on the given text, with a program in place of FileCheck. Returns its errors."""
        source = self.build.parent.parent
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            test, errors = folder / self.path.name, []
            test.write_text("\n".join(lines) + "\n")
            (folder / "FileCheck").write_text(f"#!/bin/sh\n{checker}\n")
            (folder / "FileCheck").chmod(0o755)
            (folder / "not").write_text('#!/bin/sh\nif "$@"; then exit 1; fi\n')
            (folder / "not").chmod(0o755)
            environment = {**os.environ, "PATH": os.pathsep.join([str(folder), str(self.build / "bin"), os.environ["PATH"]])}
            for command in self.commands:
                for name, value in (("%s", test), ("%t", folder / "made"), ("%S", self.path.parent), ("%source", source),
                                    ("%recipes", source / "recipes"), ("%python", sys.executable)):
                    word = re.sub(r"[^\w@%+=:,./-]", r"\\\g<0>", str(value))  # as lit's paths, with a backslash before a blank
                    command = re.sub(rf"{name}(?![a-zA-Z])", lambda _, word=word: word, command)
                done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=folder,
                                      env=environment)
                if done.returncode != 0:
                    errors.append(done.stderr.strip())
            return errors

    def outputs(self):
        """What FileCheck is called with: [(prefix, text)]."""
        with tempfile.TemporaryDirectory() as folder:
            self.run(self.lines, f'n=$(ls {folder} | wc -l); echo "$*" > {folder}/$n.1; cat > {folder}/$n.2')
            texts = [path.read_text() for path in sorted(pathlib.Path(folder).iterdir(), key=lambda p: float(p.name))]
        found = []
        for arguments, text in zip(texts[::2], texts[1::2]):
            prefix = re.search(r"--check-prefix(?:es)?[= ](\S+)", arguments)
            found += [(name, text) for name in (prefix[1] if prefix else "CHECK").split(",")]
        return found

    def update(self, check):
        """Updates the test. Returns the lines that changed, or raises ValueError."""
        updates = {}
        for prefix, text in self.outputs():
            for number, new in updates_of(self.lines, prefix, text).items():
                if new != [self.lines[number].rstrip()] and updates.setdefault(number, new) != new:
                    raise ValueError(f"line {number + 1}: two outputs need other texts")
        lines = []
        for number, line in enumerate(self.lines):
            lines += updates.get(number, [line])
        if lines == self.lines:
            return []
        if errors := self.run(lines, f'exec {check} "$@"'):
            raise ValueError("\n".join(errors))
        before = self.lines
        part = self.path.with_suffix(".part")
        part.write_text("\n".join(lines) + "\n")
        part.replace(self.path)
        return [line for line in difflib.unified_diff(before, lines, lineterm="", n=0) if not line.startswith(("---", "+++", "@@"))]


def main(build, *paths):
    build = pathlib.Path(build).resolve()
    check = re.search(r'llvm_bin = "(.*)"', (build / "test" / "lit.site.cfg.py").read_text())
    check = pathlib.Path(check[1]) / "FileCheck" if check else "FileCheck"
    left = 0
    for path in map(pathlib.Path, paths):
        try:
            changes = Test(path.resolve(), build).update(check)
        except ValueError as error:
            print(f"{path}: left as it is: {error}", file=sys.stderr)
            left += 1
            continue
        if changes:
            print("\n".join([f"{path}:", *changes]))
    return 1 if left else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
