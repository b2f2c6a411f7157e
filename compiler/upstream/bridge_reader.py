"""Reads Python code and overrides that set Megatron-Bridge's configuration, without running the code.

    bridge_reader.py TABLES RESULTS FILE

The result is written to the folder RESULTS: the file `statements`, or `error` with one line of text. The statements
are a JSON list of

    [begin, end, "set", path, value] and [begin, end, "words", text, [word...]]

with their places in bytes. Values are in the form of a saved configuration. Only assignments that certainly run, of
literals, names and calls, have a known value; what a condition, a loop or a function may set is unknown. An empty path
stands for all settings. Words are overrides; the text is left out if they are not.
"""

import ast
import json
import math
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from bridge_standin import HARMLESS, LAUNCHES, TABLES, row_of_call, section_of, unknown  # noqa: E402

PLAIN_PATH = "mixed_precision"  # the only setting whose path has no dot
HEADS = r"\s*(if|elif|else|for|while|with|try|except|finally|def|class|async|match|case)\b"
LINES_MAX = 200  # lines that are not Python
VALUES_MAX, DEPTH_MAX = 3000, 40  # elements of a value; nesting
EXITS = ("exit", "quit", "sys.exit")
HELD_SAFELY = {*HARMLESS, *LAUNCHES, "deepcopy", "info", "debug", "len", "print"}


class Open(Exception):
    """Raised for an expression whose value the text does not show."""


class Ended(Exception):
    """Raised where a function, or the input, certainly ends."""


def words_of(line):
    """The words of a line. Text in brackets or quotes belongs to one word."""
    words = re.findall(r"""(?:"[^"]*"|'[^']*'|[\[({](?:"[^"]*"|'[^']*'|[^"'])*[\])}]|[^\s"'\[({])+|\S""", line)
    return [word[1:-1] if len(word) > 1 and word[0] == word[-1] in "\"'" else word for word in words if word != "\\"]


class Text:
    """The input as Python. Lines that are not Python are replaced by calls `_s_line(NUMBER)`."""

    def __init__(self, source):
        self.lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", source)
        self.starts, self.moved, self.replaced, at = [], {}, set(), 0
        for line in self.lines:
            self.starts.append(at)
            at += len(line.encode())
        self.python = [line.rstrip("\r\n") for line in self.lines]
        for number, line in enumerate(self.python):
            words = words_of(line)
            if line.lstrip().startswith("```"):
                self.python[number] = ""
            elif words and not line.rstrip().endswith(",") and all(is_override(word) for word in words):
                self.replace(number)
        self.tree = self.parse()

    def replace(self, number):
        line = self.python[number]
        indent = line[: len(line) - len(line.lstrip())] if number not in self.replaced else ""
        is_head = re.match(HEADS, line) and line.partition("#")[0].rstrip().endswith(":")
        self.python[number] = f"{indent}if _s_line({number}):" if is_head and number not in self.replaced else f"{indent}_s_line({number})"
        self.replaced.add(number)

    def shift(self, first, width):
        """Removes the common indentation of a block of code that begins at line `first`."""
        for number in range(first, len(self.python)):
            line = self.python[number]
            if line.strip() and not line[:width].isspace():
                return
            self.python[number] = line[width:]
            self.moved[number] = self.moved.get(number, 0) + width

    def parse(self):
        for _ in range(LINES_MAX):
            try:
                return ast.parse("\n".join(self.python) + "\n")
            except SyntaxError as error:
                named = re.search(r"an indented block after .* on line (\d+)", error.msg or "")
                number = int(named[1] if named else error.lineno or 0) - 1
                number = min(number, len(self.python) - 1)
                if number < 0:
                    raise
                line = self.python[number]
                if "unexpected indent" in error.msg and line[:1].isspace():
                    self.shift(number, len(line) - len(line.lstrip()))
                else:
                    self.replace(number)
        raise SyntaxError(f"more than {LINES_MAX} lines are neither Python nor overrides")

    def place(self, node):
        return [self.starts[line - 1] + column + self.moved.get(line - 1, 0)
                for line, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))]


def is_override(word):
    """Whether a word is an override `a.b=c`, with Hydra's prefixes. Without blanks, it is unlikely to be Python."""
    path, sign, _ = word.lstrip("+~").partition("=")
    return bool(sign) and re.fullmatch(r"\w+(\.\w+)+", path) is not None and is_path(path)


def is_path(name):
    return name.partition(".")[0] in TABLES["sections"]


def dotted(node):
    """The dotted name of an expression: a.b.c for `a.b["c"]`; empty if it is not a name."""
    if isinstance(node, ast.Name):
        return node.id
    part = node.attr if isinstance(node, ast.Attribute) else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        part = node.slice.value
    inner = dotted(node.value) if part is not None else ""
    return f"{inner}.{part}" if inner else ""


def names_in(node):
    if name := dotted(node):
        return [name]
    return [name for inner in ast.iter_child_nodes(node) for name in names_in(inner)]


def is_small(value):
    """Whether a value has a limited number of elements and depth. Repeated assignments could grow it without end."""
    todo, left = [(value, DEPTH_MAX)], VALUES_MAX
    while todo and left > 0:
        value, depth = todo.pop()
        left -= 1
        if depth == 0:
            return False
        todo += [(inner, depth - 1) for inner in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())]
    return left > 0


class Reader:
    def __init__(self, source):
        self.source, self.text = source.encode(), Text(source)
        self.out = []
        self.variables = {}  # variables with a literal value
        self.aliases = {}  # variables that refer to a section: its path
        self.roots = set()  # variables that refer to a configuration
        self.made = {}  # variables that a call returned: its text
        self.functions = set()  # functions that the input defines
        self.function, self.of_functions = None, []  # the function whose body is read, and the settings of functions
        self.is_certain = True  # whether the statement certainly runs, once

    def read_all(self):
        self.read_until_end(self.text.tree.body)
        if len({function for function, _, _ in self.of_functions}) > 1:
            for _, path, place in self.of_functions:
                self.say(place, path, unknown(f"{path}: several functions set values; --run FILE:FUNCTION"))
        return self.out

    def say(self, place, path, value):
        self.out.append([*place, "set", path, value])

    def leave_out(self):
        self.out.append([*self.here, "words", self.segment(self.statement), [""]])

    def segment(self, node):
        begin, end = self.text.place(node)
        return self.source[begin:end].decode()

    # --- statements that certainly run ---

    def read_until_end(self, body):
        was = self.is_certain
        try:
            self.read(body)
        except Ended:
            pass
        self.is_certain = was

    def read(self, body):
        for statement in body:
            self.statement, self.here = statement, self.text.place(statement)
            read = getattr(self, "read_" + type(statement).__name__, self.search)
            (read if self.is_certain else self.search)(statement)

    def read_FunctionDef(self, node):
        self.functions.add(node.name)
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                self.variables.pop(argument.arg, None)
        self.function, was = self.function or node, self.function
        self.read_until_end(node.body)
        self.function = was

    def read_With(self, node):
        for item in node.items:
            self.search(item)
        self.read(node.body)

    def read_If(self, node):
        if ast.unparse(node.test) == "__name__ == '__main__'":
            return self.read(node.body)
        if isinstance(node.test, ast.Call) and dotted(node.test.func) == "_s_line":
            self.read_line(node.test.args[0].value)
        return self.search(node)

    def read_Assign(self, node):
        self.note_calls(node.value)
        for target in node.targets:
            self.assign(target, node.value, self.value(node.value))

    def read_AnnAssign(self, node):
        if node.value is not None:
            self.note_calls(node.value)
            self.assign(node.target, node.value, self.value(node.value))

    def read_Return(self, node):
        if node.value is not None:
            self.note_calls(node.value)
            self.assign_name("return", node.value, self.value(node.value))
        raise Ended

    def read_Expr(self, node):
        call = node.value
        if isinstance(call, ast.Constant):
            return
        function = dotted(call.func) if isinstance(call, ast.Call) else ""
        if function == "_s_line":
            self.read_line(call.args[0].value)
        elif function in EXITS and self.is_certain:
            raise Ended
        else:
            self.note_calls(call)
            if function not in self.functions and not is_harmless(function.rpartition(".")[2]):
                self.leave_out()

    # --- statements that may not run, or several times ---

    def search(self, node):
        """Marks what a statement may set as unknown. If it may end the function, all that follows may not run either."""
        was, self.is_certain = self.is_certain, False
        self.search_part(node)
        ends = any(isinstance(part, (ast.Return, ast.Raise)) or dotted(getattr(part, "func", None)) in EXITS for part in ast.walk(node))
        self.is_certain = was and not ends

    def search_part(self, node):
        if isinstance(node, ast.stmt):
            self.statement, self.here = node, self.text.place(node)
        if isinstance(node, ast.Expr):
            self.read_Expr(node)
        elif isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            self.assign(node, None, self.open())
        else:
            if isinstance(node, ast.Call):
                self.note_call(node)
            for part in ast.iter_child_nodes(node):
                self.search_part(part)

    # --- values ---

    def path_of(self, name):
        """The configuration path of a dotted name: ddp.bucket_size for `cfg.ddp.bucket_size`; empty if it has none."""
        root, _, rest = name.partition(".")
        if root in self.aliases:
            return self.aliases[root] + ("." + rest if rest else "")
        parts = name.split(".")
        for at in range(len(parts)):
            if parts[at] in TABLES["sections"] and (len(parts) > 1 or name == PLAIN_PATH):
                return ".".join(parts[at:])
        return ""

    def value(self, node, shown=None):
        """The value of a literal, a name or a call; an unknown value, whose text is `shown`, for anything else."""
        try:
            value = self.tree(node)
        except Open:
            return self.open(shown)
        return value if is_small(value) else self.open(shown)

    def open(self, shown=None):
        return unknown(self.segment(shown or self.statement))

    def tree(self, node):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bool, int, float, type(None))):
            return node.value if node.value not in (math.inf, -math.inf) else str(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            inner = self.tree(node.operand)
            if type(inner) in (int, float):
                return -inner if isinstance(node.op, ast.USub) else inner
        elif name := dotted(node):
            if name in self.variables:
                return self.variables[name]
            if "." not in name or not self.path_of(name):
                return {"_target_": name, "_call_": False}
        elif isinstance(node, (ast.List, ast.Tuple)):
            return [self.tree(item) for item in node.elts]
        elif isinstance(node, ast.Dict) and None not in node.keys:
            keys = [dotted(key) or self.tree(key) for key in node.keys]
            if all(isinstance(key, str) for key in keys):
                return {key: self.tree(value) for key, value in zip(keys, node.values)}
        elif isinstance(node, ast.Call) and dotted(node.func) and all(word.arg for word in node.keywords):
            made = {"_target_": dotted(node.func), "_args_": [self.tree(item) for item in node.args]}
            return {**made, **{word.arg: self.value(word.value, word.value) for word in node.keywords}}
        raise Open

    # --- assignments ---

    def assign(self, target, node, value):
        if isinstance(target, (ast.Tuple, ast.List)):
            is_whole = isinstance(value, list) and len(value) == len(target.elts)
            for inner, part in zip(target.elts, value if is_whole else [self.open()] * len(target.elts)):
                self.assign(inner, None, part)
            return
        name = dotted(target)
        if not name and isinstance(target, (ast.Subscript, ast.Starred)):  # assigns a part of a value
            return self.assign(target.value, None, self.open())
        if not name:
            return self.leave_out()
        if name.startswith("os.environ."):
            return self.set_variable(name[len("os.environ."):], value)
        if "." not in name and name != PLAIN_PATH:
            return self.assign_name(name, node, value)
        self.set_path(self.path_of(name), name, value)

    def set_variable(self, name, value):
        is_known = not isinstance(value, (dict, list))
        self.say(self.here, "env_vars." + name, str(value) if is_known else None)
        if not is_known:
            self.leave_out()

    def assign_name(self, name, node, value):
        self.variables.pop(name, None)
        self.aliases.pop(name, None)
        if name in self.roots:  # the variable now refers to another configuration
            self.forget_all()
        source, made = dotted(node) if node is not None else "", made_by(value)
        if "." in source and self.is_configuration(source):
            self.aliases[name] = self.path_of(source)
        elif made == "shardc.unknown" or (made and not self.make_configuration(name, made, value)):
            self.note_object(name, node)
        elif not made and not is_name(value):
            self.variables[name] = value

    def make_configuration(self, name, made, value):
        """Reads a call that creates a configuration or a section; returns false for any other call."""
        section, row = section_of(made), row_of_call(made, value["_args_"], fields_in(value))
        if row is not None or section == "cfg":
            self.roots.add(name)
            self.set_container(fields_in(value) if row is None else row)
        elif not section:
            return False
        elif section in self.aliases.values():  # it is unknown which of the two objects is used
            self.set_path(section, name, self.open())
        else:
            if name != "return":
                self.aliases[name] = section
            self.set_path(section, name, value)
        return True

    def set_container(self, fields):
        for section, value in fields.items():
            if section_of(made_by(value)) == "cfg":
                self.set_container(fields_in(value))
            if not is_name(value) or self.aliases.get(value["_target_"]) != section:
                self.set_path(section, section, value)

    def note_object(self, name, node):
        """Remembers a variable that a function returned; the function may be a recipe of Megatron-Bridge."""
        if name != "return" and isinstance(node, ast.Call):
            self.made[name] = self.segment(node)

    def set_path(self, path, target, value):
        if not path:
            return self.leave_out()
        self.note_setting(path, target)
        self.say(self.here, path, value)

    def note_setting(self, path, target):
        root = target.partition(".")[0]
        if root != target and root not in self.aliases and not is_path(target) and root not in self.roots:
            self.roots.add(root)
            if root in self.made:
                self.say(self.here, "_unknown_", self.made[root])
        if self.function is not None:
            self.of_functions.append((self.function, path, self.here))

    def forget_all(self):
        self.say(self.here, "", self.open())

    def is_configuration(self, name):
        path = self.path_of(name) if "." in name else ""
        return name in self.roots or name in self.aliases or bool(path) and "." not in path

    def note_calls(self, node):
        for call in ast.walk(node):
            if isinstance(call, ast.Call):
                self.note_call(call)

    def note_call(self, call):
        """Marks all settings as unknown if a function receives the configuration or a section: it may change it."""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)
        owner = names_in(call.func.value) if isinstance(call.func, ast.Attribute) else []
        given = [one for part in [*call.args, *call.keywords] for one in names_in(part)]
        if not is_harmless(name) and any(map(self.is_configuration, owner + given)):
            self.forget_all()

    def read_line(self, number):
        """Reads a line that is not Python: overrides, variables of a shell, or any other text."""
        line = self.text.lines[number]
        begin = self.text.starts[number] + len(line) - len(line.lstrip())
        self.here, line = [begin, begin + len(line.strip().encode())], line.strip()
        command, _, rest = line.partition(" ")
        if command == "export" and "=" in rest:
            name, _, value = rest.partition("=")
            self.say(self.here, "env_vars." + name.strip(), value.strip(" '\""))
        elif command == "unset":
            for name in rest.split():
                self.say(self.here, "env_vars." + name, None)
        elif self.is_certain:
            self.out.append([*self.here, "words", line, words_of(line)])
        else:
            for word in words_of(line):
                self.say(self.here, word.lstrip("+~").partition("=")[0], unknown(line))


def made_by(value):
    """The name of the function or class whose call is the value; otherwise empty."""
    return value.get("_target_", "") if isinstance(value, dict) and not is_name(value) else ""


def is_name(value):
    return isinstance(value, dict) and "_call_" in value


def fields_in(value):
    return {name: inner for name, inner in value.items() if name not in ("_target_", "_args_", "_call_")} if isinstance(value, dict) else {}


def is_harmless(name):
    """Whether a function leaves configurations unchanged: classes, and functions known to be harmless."""
    return name[:1].isupper() or name in HELD_SAFELY


def main():
    tables, results, file = map(pathlib.Path, sys.argv[1:])
    name = "error"
    try:
        TABLES.update(json.loads(tables.read_text()))
        text = json.dumps(Reader(file.read_bytes().decode()).read_all(), ensure_ascii=False)
        text = re.sub("[\x7f-\x9f\ufeff]", lambda one: f"\\u{ord(one[0]):04x}", text)  # YAML has them only escaped
        name = "statements"
    except UnicodeDecodeError:
        text = "it is not UTF-8"
    except (RecursionError, MemoryError):
        text = "it is nested too deep"
    except (SyntaxError, ValueError) as error:
        text = str(error)
    (results / name).write_text(text)


if __name__ == "__main__":
    main()
