#!/usr/bin/env python3
"""Checks the house rules that a machine can check: include rules, sizes, names, links.

    tidy.py ROOT [--write-ratchets]

Files that git tracks are judged; without git, or in an unpacked archive, those of the project's own folders.

Every finding is a line `path:line: what`; status 1 if there is any. Files that were too large or too wide when a rule
came stand in ratchets.json with what they may have; a file that gets better has to be listed with less or leave the
list, so it only shrinks. --write-ratchets writes it anew, refusing to let anything grow.
"""

import json
import os
import re
import subprocess
import sys

import layers
import state
import words

COLUMNS_MAX = 100
HOUSE = ("compiler/", "grammar/", "kernels/", "runtime/")
HOUSE_LINES_MAX = 206_624  # of all files of the house; docs/architecture.md says what they are. 203,000 are wanted
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
CODE = (".cpp", ".h", ".cu", ".cuh")
TEXT = CODE + (".def", ".py", ".md", ".txt", ".cmake", ".recipe", ".plan", ".test", ".g4", ".in", ".json", ".sh")
TOP_LEVEL = {
    ".ci", ".clang-format", ".clang-tidy", ".git", ".github", ".gitignore", "CMakeLists.txt", "CMakePresets.json",
    "LICENSE", "README.md", "compiler", "dev", "docs", "grammar", "kernels", "mkdocs.yml", "recipes", "runtime", "test",
}
# Folders that builds and interpreters leave behind.
SKIPPED = re.compile(r"^(build(-.*)?|\.git|__pycache__|\.cache)$")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:root|home/\w+|work" + r")/")
VAGUE_NAMES = re.compile(r"(util|helper|fast|optimized|manager|new|v2)", re.IGNORECASE)
NAMES_ALLOWED = {"SourceManager", "PassManager"}


def tracked_files(root):
    """What git tracks, so that nobody's own files are judged; None where there is no git or no repository of it."""
    if not os.path.exists(os.path.join(root, ".git")):
        return None
    try:
        done = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=False)
    except FileNotFoundError:
        return None
    names = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    return sorted(name for name in names if os.path.isfile(os.path.join(root, name))) if done.returncode == 0 else None


def unpacked_files(root):
    """The files of an unpacked archive: all in the fixed entries of the top level, since others are the user's."""
    files = []
    for folder, folders, names in os.walk(root):
        relative = os.path.relpath(folder, root)
        is_top = relative == "."
        folders[:] = sorted(name for name in folders if not SKIPPED.match(name) and (not is_top or name in TOP_LEVEL))
        files += [name if is_top else f"{relative}/{name}" for name in sorted(names) if not is_top or name in TOP_LEVEL]
    return files


class Tree:
    """The files of the repository, relative to its root, with their lines."""

    def __init__(self, root, tracked=None):
        self.root = root
        tracked = tracked_files(root) if tracked is None else tracked
        self.files = unpacked_files(root) if tracked is None else sorted(tracked)
        self.cache = {}

    def lines(self, path):
        if path not in self.cache:
            with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
                self.cache[path] = file.read().split("\n")
        return self.cache[path]

    def select(self, *suffixes):
        return [path for path in self.files if path.endswith(suffixes)]


def is_table(path):
    """Tables may be longer than other files."""
    return path.endswith(".def") or "/golden/" in path or "/fixtures/" in path


def check_arrows(tree):
    for path in tree.select(*CODE, ".def"):
        for number, line in enumerate(tree.lines(path), 1):
            include = re.match(r'\s*#\s*include\s*([<"])([^">]+)[">]', line)
            if include:
                wrong = layers.refuse(path, include.group(2), is_system=include.group(1) == "<")
                if wrong:
                    yield f"{path}:{number}: {wrong}"


def check_top_level(tree):
    for name in sorted({path.split("/")[0] for path in tree.files}):
        if name not in TOP_LEVEL:
            yield f"{name}:1: the top level has fixed entries; this is none of them"


def check_headers(tree):
    for path in tree.select(".h", ".cuh"):
        lines = tree.lines(path)
        if not lines[0].startswith("//"):
            yield f"{path}:1: a header begins with a comment that says what it is for"
        if "#pragma once" not in lines:
            yield f"{path}:1: a header has '#pragma once'"
    files = set(tree.files)
    for path in tree.select(".cpp", ".cu"):
        has_header = any(os.path.splitext(path)[0] + suffix in files for suffix in (".h", ".cuh"))
        if path.startswith(("compiler/", "runtime/", "kernels/")) and not has_header and not tree.lines(path)[0].startswith("//"):
            yield f"{path}:1: a source file without a header of its name begins with a comment that says what it is for"


def check_names(tree):
    for path in tree.select(*CODE):
        name = os.path.basename(path).split(".")[0].removesuffix("Test")
        words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
        vague = [word for word in words if VAGUE_NAMES.fullmatch(word)]
        if vague and name not in NAMES_ALLOWED:
            yield f"{path}:1: '{vague[0]}' says nothing in a name"


def check_todos(tree):
    for path in tree.select(*CODE, ".def", ".py"):
        for number, line in enumerate(tree.lines(path), 1):
            if re.search(r"\bTO" + r"DO\b(?!\([\w-]+\):)|\bFIX" + r"ME\b", line):
                yield f"{path}:{number}: an open task names its owner, as in 'TO" + "DO(name): what'"


def check_blanks(tree):
    for path in tree.select(*CODE, ".def", ".py", ".recipe"):
        if is_table(path) and not path.endswith(".def"):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            if "\t" in line or line != line.rstrip():
                yield f"{path}:{number}: a tab, or blanks at the end"


def check_machine_paths(tree):
    for path in tree.select(*TEXT) + [path for path in tree.files if path in ("dev", ".ci/run")]:
        if is_table(path) and not path.endswith((".def", ".py", ".recipe")):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            if MACHINE_PATHS.search(line):
                yield f"{path}:{number}: a path of one machine"


def wide_lines(tree, path):
    return [number for number, line in enumerate(tree.lines(path), 1) if len(line) > COLUMNS_MAX]


def function_lengths(tree, path):
    """(first line, lines) of each body that opens in column 0, or in column 2 inside of a class."""
    head, text = None, ""
    for number, line in enumerate(tree.lines(path), 1):
        if head is None:
            if not text and re.match(r"(  )?[A-Za-z_~\[:]", line) and not line.lstrip().startswith("//"):
                text, start = line, number
            elif text:
                text += " " + line.strip()
            if text.endswith("{") and "(" in text and not re.match(r"\s*(namespace|enum)\b", text):
                head, text = (start, len(tree.lines(path)[start - 1]) - len(tree.lines(path)[start - 1].lstrip())), ""
            elif re.search(r"[;{}:]$|//", text):
                text = ""
        elif line.startswith(" " * head[1] + "}"):
            yield head[0], number - head[0] + 1
            head = None


def long_functions(tree, path):
    return [(number, count) for number, count in function_lengths(tree, path) if count > FUNCTION_LINES_MAX]


def check_links(tree):
    for path in tree.select(".md"):
        folder = os.path.dirname(path)
        in_code = False
        for number, line in enumerate(tree.lines(path), 1):
            if line.startswith("```"):
                in_code = not in_code
            if in_code or line.startswith("    "):
                continue
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                if re.match(r"[a-z]+:|#", target):
                    continue
                file = os.path.normpath(os.path.join(folder, target.split("#")[0]))
                if not os.path.exists(os.path.join(tree.root, file)):
                    yield f"{path}:{number}: there is no '{target}'"
            for name in re.findall(r"`([^`\s]+)`", line):
                if is_missing_file(tree, folder, name):
                    yield f"{path}:{number}: there is no file '{name}'"


def check_rooms(tree):
    """docs/architecture.md names every folder of the compiler, the runtime and the kernels, docs/testing.md of the tests."""
    for page, top in (("docs/architecture.md", "compiler"), ("docs/architecture.md", "runtime"),
                      ("docs/architecture.md", "kernels"), ("docs/testing.md", "test")):
        if page not in tree.files:
            continue
        text = "\n".join(tree.lines(page))
        rooms = {path.split("/")[1] for path in tree.files if path.startswith(f"{top}/") and path.count("/") > 1}
        for room in sorted(rooms):
            name = room if top == "test" else f"{top}/{room}"
            if not re.search(rf"(?<![\w/-]){name}(?![\w/-])", text):
                yield f"{page}:1: folder '{top}/{room}' is not named"


def check_waits(tree):
    """A kernel that may be launched before its predecessor has ended (Queue.h) waits for that end first of all."""
    for path in tree.select(".cu", ".cuh"):
        text = "\n".join(tree.lines(path))
        if "launchKernel(" not in text:
            continue
        for kernel in re.finditer(r"__global__ [^{;]*?(\w+)\((?:[^(){};])*\) \{\s*(awaitPrevious\(\);)?", text):
            if not kernel.group(2):
                number = text.count("\n", 0, kernel.start()) + 1
                yield f"{path}:{number}: kernel '{kernel.group(1)}' does not begin with awaitPrevious()"


def is_missing_file(tree, folder, name):
    """Whether a word in backquotes is the path of a file of the project, and there is none."""
    if not re.fullmatch(r"[\w./-]+", name) or name.split("/")[0] not in TOP_LEVEL or "/" not in name:
        return False
    if re.match(r"Name[.A-Z]", name.split("/")[-1]):
        return False  # a placeholder
    # Files are also named without their suffix.
    return not any(os.path.exists(os.path.join(tree.root, start, name + suffix))
                   for start in ("", folder) for suffix in ("", ".h", ".cpp"))


def check_job_reads(tree):
    """Code reads and writes the job of a plan by members and JobField, not by the text of a path."""
    by_text = re.compile(r'\bfindJob\(|\bjob(?:Bool|Int|Float|String)\(|\bjob\.(?:set|put|has|unset|value|text)\(\s*"[\w.]+"\s*[,)]')
    for path in tree.select(*CODE):
        if not path.startswith(("compiler/", "runtime/", "kernels/")):
            continue
        text = "\n".join(tree.lines(path))
        for use in by_text.finditer(text):
            number = text.count("\n", 0, use.start()) + 1
            yield f"{path}:{number}: a field of the job is a member of plan::Job or a JobField, not a text"


def check_kinds(tree):
    """What a cell, a unit, a segment, a value, a role or a stream is, its kind says; names are for people."""
    thing = r"(?:cells?|units?|segments?|values?|roles?|streams?)"
    by_name = re.compile(
        rf'\b{thing}_?(?:\[[^;{{}}]*?\])*\)?(?:\.|->|\(\)\.)name\)?\s*(?:[=!]=\s*"|\.(?:starts_with|ends_with|find|rfind|substr|compare)\()'
        rf'|"\s*[=!]=\s*\w*{thing}(?:\[[^;{{}}]*?\])*\.name\b'
        r'|\bfind(?:Cell|Segment)\([^;{}()]*"'
        r'|"\w*",\s*&(?:plan::)?(?:Cell|Unit|Segment|Value|Role|Stream)::name\b')
    for path in tree.select(*CODE):
        if not path.startswith(("compiler/lower/", "compiler/model/", "compiler/passes/", "compiler/predict/", "kernels/", "runtime/")):
            continue
        text = "\n".join(tree.lines(path))
        for use in by_name.finditer(text):
            number = text.count("\n", 0, use.start()) + 1
            yield f"{path}:{number}: what this is, its kind says (runtime/plan/Kinds.def), not its name"


# Kinds of ops and of what is known of them: the compiler finds the switches that a new one is missing in.
OP_CASES = re.compile(r"\bcase (?:[\w:]+::)?"
                      r"(?:OpKind|CollectiveKind|CostClass|OpTraffic|Workspace|BlockUse|SumRole|Recompute)::")


def check_op_switches(tree):
    """A switch over ops, or over a column of the op table, has a case for each, and no default."""
    for path in tree.select(*CODE):
        plain = r"//.*|'(?:\\.|[^'\\])'|\"(?:\\.|[^\"\\])*\""
        text = "\n".join(re.sub(plain, "", line) for line in tree.lines(path))
        for switch in re.finditer(r"\bswitch \(.*\) \{", text):
            depth, own = 1, ""
            for symbol in text[switch.end():]:
                depth += (symbol == "{") - (symbol == "}")
                if depth == 0:
                    break
                own += symbol if depth == 1 else ""
            if OP_CASES.search(own) and re.search(r"\bdefault:", own):
                number = text.count("\n", 0, switch.start()) + 1
                yield f"{path}:{number}: a switch over ops has no default, so that the compiler finds where a new op is missing"


def check_directives(tree):
    """Sources are compiled in batches, in which the names of a namespace reach all files after a directive at file level."""
    for path in tree.select(*CODE):
        for number, line in enumerate(tree.lines(path), 1):
            directive = re.match(r"using namespace ([\w:]+)", line)
            if directive and not directive.group(1).endswith("literals"):
                yield (f"{path}:{number}: names of '{directive.group(1)}' reach the next files of a batch; write the code in the "
                       "namespace, or declare the names that are used")


# Parts of the standard library that Debian's clang, which builds the fuzz targets, cannot compile.
SUBRANGES = re.compile(r"std::(?:ranges::(?:unique|remove|remove_if|rotate|partition|stable_partition|search|search_n|find_end|"
                       r"equal_range|subrange)\b|(?:ranges::)?views::)")


def check_subranges(tree):
    """Code that fuzz targets need must not use views, or algorithms that return a std::ranges::subrange."""
    for path in tree.select(*CODE):
        for number, line in enumerate(tree.lines(path), 1):
            found = SUBRANGES.search(line)
            if found:
                yield f"{path}:{number}: clang 14 cannot compile '{found.group()}'; use the algorithm of std that takes two iterators"


# The word where a group, an index or a part is meant: in names, comments and texts, but not in words of recipes and of
# checkpoints, such as outer_dp_sharding_strategy, and not in names of options.
DATA_PARALLEL = re.compile(r"(?<![\w.])dp(?!\w)|\bdp[A-Z]\w*|\b\w*[a-z]Dp(?![a-z])\w*|\b\w*_dp\b(?<!\bouter_dp)")
# The degrees of a recipe, of which data parallelism is one, and other programs' options.
DEGREES = ("compiler/config/", "compiler/upstream/")


def check_data_parallel(tree):
    """Plans name groups. Only code that reads a recipe's degrees may know which group is data parallelism."""
    for path in tree.select(*CODE, ".def"):
        if not path.startswith(("compiler/", "runtime/", "kernels/")) or path.startswith(DEGREES):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            word = DATA_PARALLEL.search(re.sub(r"\bOpt::\w+", "", line))
            if word:
                yield f"{path}:{number}: '{word.group()}' means data parallelism; name the group, the index or the part"


# Headers whose functions have a form, or a trap, for every architecture that code is compiled for.
OF_ARCHITECTURES = ("kernels/cuda/common.cuh", "kernels/cuda/hopper.cuh")
# Where a capability is found or compared. Everything else asks KernelPath.h for kernels, or a device for formats.
OF_CAPABILITIES = ("runtime/base/KernelPath.cpp", "compiler/predict/DeviceTable.cpp", "compiler/predict/DeviceTable.h",
                   "kernels/cuda/Context.cpp")
CAPABILITY = re.compile(r"\bisHopper\b|cudaDevAttrComputeCapability|\b(architecture|capability)\s*([<>]|[!=]=)")


def check_architectures(tree):
    """A kernel whose code depends on the architecture computes something else from PTX, and the host does not know."""
    for path in tree.select(".cu", ".cuh", ".h"):
        for number, line in enumerate(tree.lines(path), 1):
            if "__CUDA_ARCH__" in line and path.startswith("kernels/") and path not in OF_ARCHITECTURES:
                yield f"{path}:{number}: a kernel does not ask for the architecture; call a function of {OF_ARCHITECTURES[1]}"
    for path in tree.select(*CODE):
        for number, line in enumerate(tree.lines(path), 1):
            if CAPABILITY.search(line) and not path.startswith("test/") and path not in OF_CAPABILITIES:
                yield f"{path}:{number}: kernels are chosen by rows of KernelPaths.def, not by a capability"


def check_house(tree):
    """What programs are made of stays small enough to be known: a new mechanism replaces an old one."""
    lines = sum(len(tree.lines(path)) - 1 for path in tree.files if path.startswith(HOUSE))
    if lines > HOUSE_LINES_MAX:
        yield f"docs/architecture.md:1: the house has {lines} lines; it may have {HOUSE_LINES_MAX}"


CHECKS = [check_house, check_arrows, check_top_level, check_headers, check_names, check_todos, check_blanks, check_machine_paths,
          check_links, check_rooms, check_waits, check_job_reads, check_kinds, check_op_switches, check_directives,
          state.check_state, check_subranges, check_data_parallel, check_architectures, words.check_words]


def measure(tree):
    """What files have beyond the limits: {rule: {path: how much}}."""
    found = {"wide_lines": {}, "file_lines": {}, "long_functions": {}}
    for path in tree.select(".cpp", ".h"):
        if wide := wide_lines(tree, path):
            found["wide_lines"][path] = len(wide)
    for path in tree.select(*CODE, ".py"):
        if len(tree.lines(path)) - 1 > FILE_LINES_MAX and not is_table(path):
            found["file_lines"][path] = len(tree.lines(path)) - 1
    for path in tree.select(*CODE):
        if functions := long_functions(tree, path):
            found["long_functions"][path] = max(count for _, count in functions)
    return found


LIMITS = {
    "wide_lines": f"lines wider than {COLUMNS_MAX} columns",
    "file_lines": f"lines; a file has at most {FILE_LINES_MAX}",
    "long_functions": f"lines in its longest function; the limit is {FUNCTION_LINES_MAX}",
}


def check_ratchets(tree, allowed, found):
    for rule, files in found.items():
        for path, count in files.items():
            most = allowed[rule].get(path, 0)
            if count > most:
                where = wide_lines(tree, path)[0] if rule == "wide_lines" else 1
                if rule == "long_functions":
                    where = max(long_functions(tree, path), key=lambda item: item[1])[0]
                yield f"{path}:{where}: {count} {LIMITS[rule]}" + (f"; ratchets.json allows {most}" if most else "")
        for path in allowed[rule]:
            if path not in files:
                yield f"{path}:1: keeps the limit; take it off ratchets.json ('{rule}') with tidy.py --write-ratchets"


def main():
    root = sys.argv[1]
    tree = Tree(root)
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ratchets.json")
    with open(file, encoding="utf-8") as stream:
        allowed = json.load(stream)
    found = measure(tree)
    if "--write-ratchets" in sys.argv:
        kept = {rule: {path: min(count, files.get(path, 0)) for path, count in allowed[rule].items() if path in files}
                for rule, files in found.items()}
        with open(file, "w", encoding="utf-8") as stream:
            json.dump(kept, stream, indent=1, sort_keys=True)
            stream.write("\n")
        allowed = kept
    findings = [finding for check in CHECKS for finding in check(tree)]
    findings += check_ratchets(tree, allowed, found)
    for finding in findings:
        print(finding)
    print(f"{len(tree.files)} files, {len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
