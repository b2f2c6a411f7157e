"""Reads Python code and overrides that set Megatron-Bridge's configuration, without running the code.

    bridge_reader.py TABLES RESULTS FILE

The result is written to the folder RESULTS: the file `statements`, or `error` with one line of text. The statements
are a JSON list of

    [begin, end, "set", path, value] and [begin, end, "words", text, [word...]]

with their places in bytes. Values are in the form of a saved configuration. A setting whose value the text does not
determine, for example under an unknown condition, is set to an unknown value; an empty path stands for all settings.
Words are overrides; the text is left out if they are not.
"""

import ast
import copy
import json
import math
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from bridge_standin import HARMLESS, LAUNCHES, TABLES, row_of_call, section_of, unknown  # noqa: E402

NO, UNKNOWN, YES = 0, 1, 2
PLAIN_PATH = "mixed_precision"  # the only setting whose path has no dot
HEADS = r"\s*(if|elif|else|for|while|with|try|except|finally|def|class|async|match|case)\b"
LINES_MAX = 200  # lines that are not Python
VALUES_MAX, HELD_MAX, DEPTH_MAX = 100_000, 3000, 40  # values in total and in a variable; nesting
HELD_SAFELY = {*HARMLESS, *LAUNCHES, "deepcopy", "info", "debug", "len", "print"}
SHOWN = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Load, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.Not)


class Open(Exception):
    """Raised for an expression whose value the text does not show."""


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

    def byte(self, line, column):
        number = line - 1
        return self.starts[number] + column + self.moved.get(number, 0)

    def place(self, node):
        return [self.byte(node.lineno, node.col_offset), self.byte(node.end_lineno, node.end_col_offset)]


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


def is_small(value, left):
    """Whether a value has at most `left` elements, at limited depth. Repeated assignments could grow it without end."""
    todo = [(value, DEPTH_MAX)]
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
        self.variables = {"__name__": "__main__"}  # variables with a literal value
        self.aliases = {}  # variables that refer to a section: its path
        self.values = {}  # the settings at the current statement, by path
        self.roots = set()  # variables that refer to a configuration
        self.made = {}  # variables that a call returned: its text
        self.functions = set()  # functions that the input defines
        self.of_functions = []
        self.blocks = [[YES, False, False]]  # open blocks: whether it runs, its function if it is a function's body

    def read_all(self):
        self.read(self.text.tree.body)
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

    # --- blocks ---

    def runs(self):
        return min(block[0] for block in self.blocks)

    def read(self, body):
        for statement in body:
            if self.runs() != NO:
                self.statement, self.here = statement, self.text.place(statement)
                getattr(self, "read_" + type(statement).__name__, self.read_other)(statement)

    def read_block(self, body, holds, function=False):
        self.blocks.append([holds, function])
        self.read(body)
        self.blocks.pop()

    def leave(self):
        """After `return`, `raise` or exit: the rest of the function, or of the file, does not run, or may not run."""
        left = next((block for block in reversed(self.blocks) if block[1]), self.blocks[0])
        left[0] = min(left[0], YES - self.runs())

    def read_If(self, node):
        self.note_calls(node.test)
        if isinstance(node.test, ast.Call) and dotted(node.test.func) == "_s_line":
            self.read_line(node.test.args[0].value)
        # If the block may not run or may repeat, variables can differ from the lines before.
        holds = self.truth(node.test) if self.runs() == YES else UNKNOWN
        self.read_block(node.body, holds)
        self.read_block(node.orelse, YES - holds)

    def read_FunctionDef(self, node):
        self.functions.add(node.name)
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                self.variables.pop(argument.arg, None)
        self.read_block(node.body, YES, function=node)

    read_AsyncFunctionDef = read_FunctionDef

    def read_other(self, node):
        """Reads loops and the like, whose blocks may or may not run, and statements that change no setting."""
        holds = YES if isinstance(node, (ast.With, ast.AsyncWith)) else UNKNOWN
        for _, part in ast.iter_fields(node):
            parts = part if isinstance(part, list) else [part]
            if parts and isinstance(parts[0], ast.stmt):
                self.read_block(parts, holds)
                continue
            for inner in parts:
                if isinstance(inner, ast.AST) and hasattr(inner, "body") and not isinstance(inner, ast.expr):  # a block
                    self.read_other(inner)
                elif isinstance(inner, ast.AST):
                    self.note_calls(inner)
                    self.drop_names(inner)

    def drop_names(self, node):
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                self.variables.pop(name.id, None)

    # --- values ---

    def truth(self, node):
        """Whether a condition holds, if it consists of comparisons of known values."""

        class Known(ast.NodeTransformer):
            def visit(known, part):
                return ast.parse(repr(self.value(part)), mode="eval").body if dotted(part) else known.generic_visit(part)

        known = ast.fix_missing_locations(ast.Expression(Known().visit(copy.deepcopy(node))))
        if not all(isinstance(part, SHOWN) for part in ast.walk(known)):
            return UNKNOWN
        try:
            return YES if eval(compile(known, "condition", "eval"), {"__builtins__": {}}) else NO
        except TypeError:
            return UNKNOWN

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

    def value(self, node):
        """The value of a literal, a name or a call; an unknown value for anything else."""
        try:
            value = self.tree(node)
        except Open:
            return self.open()
        return value if is_small(value, VALUES_MAX) else self.open()

    def open(self):
        return unknown(self.segment(self.statement))

    def tree(self, node):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bool, int, float, type(None))):
            return node.value if node.value not in (math.inf, -math.inf) else str(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            inner = self.tree(node.operand)
            if type(inner) in (int, float):
                return -inner if isinstance(node.op, ast.USub) else inner
        elif name := dotted(node):
            path = self.path_of(name) if "." in name else ""
            held, key = (self.values, path) if path else (self.variables, name)
            if key in held:
                return held[key]
            if not path:
                return {"_target_": name, "_call_": False}
        elif isinstance(node, (ast.List, ast.Tuple)):
            return [self.tree(item) for item in node.elts]
        elif isinstance(node, ast.Dict) and None not in node.keys:
            keys = [dotted(key) or self.tree(key) for key in node.keys]
            if all(isinstance(key, str) for key in keys):
                return {key: self.tree(value) for key, value in zip(keys, node.values)}
        elif isinstance(node, ast.Call) and dotted(node.func) and all(word.arg for word in node.keywords):
            made = {"_target_": dotted(node.func), "_args_": [self.tree(item) for item in node.args]}
            return {**made, **{word.arg: self.argument(word.value) for word in node.keywords}}
        raise Open

    def argument(self, node):
        try:
            return self.tree(node)
        except Open:
            return unknown(self.segment(node))

    # --- statements ---

    def read_Assign(self, node):
        self.note_calls(node.value)
        for target in node.targets:
            self.assign(target, node.value, self.value(node.value))

    def read_AnnAssign(self, node):
        if node.value is not None:
            self.note_calls(node.value)
            self.assign(node.target, node.value, self.value(node.value))

    def read_AugAssign(self, node):
        self.note_calls(node.value)
        self.assign(node.target, None, self.open())

    def read_Return(self, node):
        if node.value is not None:
            self.note_calls(node.value)
            self.assign_name("return", node.value, self.value(node.value) if self.runs() == YES else self.open())
        self.leave()

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
        value = value if self.runs() == YES else self.open()
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
        if "." in source and self.is_configuration(source) and self.runs() == YES:
            self.aliases[name] = self.path_of(source)
        elif made == "shardc.unknown" or (made and not self.make_configuration(name, made, value)):
            self.note_object(name, node)
        elif not made and not is_name(value) and is_small(value, HELD_MAX):
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
        for held in [held for held in self.values if (held + ".").startswith(path + ".")]:
            del self.values[held]
        if made_by(value) != "shardc.unknown" and is_small(value, HELD_MAX):
            self.values[path] = value
            self.values.update({f"{path}.{field}": inner for field, inner in fields_in(value).items()})
        self.say(self.here, path, value)

    def note_setting(self, path, target):
        root = target.partition(".")[0]
        if root != target and root not in self.aliases and not is_path(target) and root not in self.roots:
            self.roots.add(root)
            if root in self.made:
                self.say(self.here, "_unknown_", self.made[root])
        function = next((block[1] for block in self.blocks if block[1]), None)
        if function is not None:
            self.of_functions.append((function, path, self.here))

    def forget_all(self):
        self.values.clear()
        self.say(self.here, "", self.open())

    def is_configuration(self, name):
        path = self.path_of(name) if "." in name else ""
        return name in self.roots or name in self.aliases or bool(path) and "." not in path

    def note_calls(self, node):
        """Marks all settings as unknown if a function receives the configuration or a section: it may change it."""
        for call in ast.walk(node):
            if not isinstance(call, ast.Call):
                continue
            name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)
            owner = names_in(call.func.value) if isinstance(call.func, ast.Attribute) else []
            given = [one for part in [*call.args, *call.keywords] for one in names_in(part)]
            if not is_harmless(name) and any(map(self.is_configuration, owner + given)):
                return self.forget_all()

    def read_Expr(self, node):
        call = node.value
        if isinstance(call, ast.Constant):
            return None
        function = dotted(call.func) if isinstance(call, ast.Call) else ""
        if function == "_s_line":
            return self.read_line(call.args[0].value)
        if function in ("exit", "quit", "sys.exit"):
            return self.leave()
        self.note_calls(call)
        if function not in self.functions and not is_harmless(function.rpartition(".")[2]):
            self.leave_out()
        return None

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
        elif self.runs() == YES:
            self.out.append([*self.here, "words", line, words_of(line)])
        else:
            for word in words_of(line):
                self.say(self.here, word.lstrip("+~").partition("=")[0], unknown(line))

    def read_Delete(self, _):
        self.forget_all()

    def read_Raise(self, _):
        self.leave()


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
