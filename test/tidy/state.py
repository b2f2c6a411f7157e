"""State that outlives calls without belonging to an object: mutable variables of namespaces, of functions and of threads.

What a call depends on is passed to it, or belongs to who uses it. The exceptions are listed here, each with its reason; one
that is no longer there leaves the list.
"""

import re

# (file, variable): why it cannot belong to an object.
ALLOWED = {
    ("runtime/tools/Signals.cpp", "requests"): "a handler of signals has no argument",
    ("runtime/tools/Signals.cpp", "received"): "a handler of signals has no argument",
    ("runtime/tools/Signals.cpp", "areHeld"): "a handler of signals has no argument",
    ("runtime/tools/Signals.cpp", "areQuiet"): "a handler of signals has no argument",
    ("runtime/backend/cuda/Tracer.cpp", "instance"): "CUPTI's callbacks have no argument of ours, and it has one subscriber",
    ("kernels/host/Check.cpp", "op"): "kernels do not allocate, so the vector of attributes stays for the thread's next call",
    ("runtime/cmake/old_glibc.cpp", "__libc_single_threaded"): "a variable of newer versions of glibc",
    ("runtime/base/EndSignals.h", "number"): "which signals end a run is the process', as their handlers are",
}

CODE = (".cpp", ".h", ".cu", ".cuh")
NAME = r"(?P<name>\w+)(?:\[[^\]]*\])?\s*(?:;|=(?!=)|\{)"
THREAD = re.compile(r"^\s*(?:static\s+|inline\s+)*thread_local\b[^();={]*?\b" + NAME)
LOCAL = re.compile(r"^\s+static\s+(?!const\b|constexpr\b|inline\b|_)(?:[^();={]|\([^()]*\)(?=\s*>))*?[\w>*&\]]\s*[*&\s]" + NAME)
# Code is formatted, so that what begins in column 0 is in a namespace.
GLOBAL = re.compile(r"^(?:static\s+|inline\s+|extern\s+)*(?!const\b|constexpr\b|using\b|return\b|typedef\b|template\b|namespace\b|"
                    r"struct\b|class\b|concept\b|enum\b|union\b|friend\b|public\b|private\b|protected\b|case\b|default\b|goto\b|else\b|"
                    r"do\b|try\b|extern\b|static\b|inline\b|asm\b|__)"
                    r"[A-Za-z_][^();={}]*?[\w>*&\]]\s*[*&\s](?:\w+::)*" + NAME)


def is_constant(line, name):
    """`T *const name`: written once."""
    return re.search(rf"\bconst\s+{re.escape(name)}\b", line) is not None


def variables(lines):
    """(line number, name) of each variable that a file's calls may change."""
    for number, line in enumerate(lines, 1):
        for pattern in (THREAD, LOCAL, GLOBAL):
            found = pattern.match(line)
            if found and found.group("name") != "operator" and not is_constant(line, found.group("name")):
                yield number, found.group("name")
                break


def check_state(tree):
    seen = set()
    for path in tree.select(*CODE):
        if not path.startswith(("runtime/", "kernels/")):
            continue
        for number, name in variables(tree.lines(path)):
            seen.add((path, name))
            if (path, name) not in ALLOWED:
                yield f"{path}:{number}: '{name}' is hidden state; it belongs to who uses it, or to test/tidy/state.py with a reason"
    for path, name in sorted(ALLOWED):
        if path in tree.files and (path, name) not in seen:
            yield f"{path}:1: has no variable '{name}' any more; take it off test/tidy/state.py"
