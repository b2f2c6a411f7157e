"""Reads Python code and overrides that set Megatron-Bridge's configuration, without running the code.

    bridge_reader.py TABLES RESULTS FILE

The result is written to the folder RESULTS: the file `statements`, or `error` with one line of text. The statements
are a JSON list of

    [begin, end, "set", path, value], [begin, end, "words", text, [word...]], [begin, end, "leave_out", text],
    [begin, end, "variable", name, text or null], [begin, end, "forget", path, text], [begin, end, "forget_all", text]

with their places in bytes. A value is [begin, end, kind, ...]. After "scalar", "text" or "name" follows a text; after
"list", its values; after "call", the name of the function or class (empty for a dictionary), the positional values, and
pairs of a name and a value. A setting whose value the text does not determine, for example under an unknown condition,
is marked as unknown by "forget".
"""

import ast
import json
import operator
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from bridge_standin import HARMLESS, LAUNCHES, rows_of_recipe  # noqa: E402

NO, UNKNOWN, YES = 0, 1, 2
OPEN = object()
HEADS = r"\s*(if|elif|else|for|while|with|try|except|finally|def|class|async|match|case)\b"
LINES_MAX = 200  # lines that are not Python
VALUES_MAX, HELD_MAX, DEPTH_MAX = 100_000, 3000, 40  # values in total and in a variable; nesting
HELD_SAFELY = {*HARMLESS, *LAUNCHES, "deepcopy", "info", "debug", "len", "print"}
COMPARISONS = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
               ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
               ast.In: lambda one, all: one in all, ast.NotIn: lambda one, all: one not in all}


def words_of(line):
    """The words of a line. Text in brackets or quotes belongs to one word."""
    words = re.findall(r"""(?:"[^"]*"|'[^']*'|[\[({](?:"[^"]*"|'[^']*'|[^"'])*[\])}]|[^\s"'\[({])+|\S""", line)
    return [word[1:-1] if len(word) > 1 and word[0] == word[-1] in "\"'" else word for word in words if word != "\\"]


class Text:
    """The input as Python. Lines that are not Python are replaced by calls `_s_line(NUMBER)`."""

    def __init__(self, source, is_path):
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
            elif words and not line.rstrip().endswith(",") and all(is_override(word, is_path) for word in words):
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


def is_override(word, is_path):
    """Whether a word is an override `a.b=c`, with Hydra's prefixes. Without blanks, it is unlikely to be Python."""
    path, sign, _ = word.lstrip("+~").partition("=")
    return bool(sign) and re.fullmatch(r"\w+(\.\w+)+", path) is not None and is_path(path)


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
        todo += [(inner, depth - 1) for inner in value if isinstance(inner, list)]
    return left > 0


def tree_as_value(tree, place):
    """Converts a value of a saved configuration to this file's form of values, with the place of a statement."""
    if isinstance(tree, dict):
        fields = [[name, tree_as_value(inner, place)] for name, inner in tree.items() if name not in ("_target_", "_args_", "_call_")]
        return [*place, "call", tree.get("_target_", ""), [tree_as_value(inner, place) for inner in tree.get("_args_", [])], fields]
    if isinstance(tree, list):
        return [*place, "list", [tree_as_value(inner, place) for inner in tree]]
    return [*place, "text", tree] if isinstance(tree, str) else [*place, "scalar", repr(tree)]


class Reader:
    def __init__(self, source, tables):
        self.source, self.tables = source.encode(), tables
        self.sections = {*tables["paths"], *tables["foreign"]}
        self.text = Text(source, self.is_path)
        self.out = []
        self.variables = {"__name__": [0, 0, "text", "__main__"]}  # variables with a literal value
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
                self.say(place, "forget", path, f"{path}: several functions set values; --run FILE:FUNCTION")
        return self.out

    def say(self, place, *what):
        self.out.append([*place, *what])

    def segment(self, node):
        begin, end = self.text.place(node)
        return self.source[begin:end].decode()

    def is_path(self, name):
        return name.partition(".")[0] in self.sections

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

    def read_With(self, node):
        for item in node.items:
            self.note_calls(item)
            self.drop_names(item)
        self.read_block(node.body, YES)

    read_AsyncWith = read_With

    def read_other(self, node):
        """Reads loops and the like, whose blocks may or may not run, and statements that change no setting."""
        for _, part in ast.iter_fields(node):
            parts = part if isinstance(part, list) else [part]
            if parts and isinstance(parts[0], ast.stmt):
                self.read_block(parts, UNKNOWN)
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
        if isinstance(node, ast.BoolOp):
            return (min if isinstance(node.op, ast.And) else max)(map(self.truth, node.values))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return YES - self.truth(node.operand)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            sign = type(node.ops[0])
            left, right = self.plain(node.left), self.plain(node.comparators[0])
            is_same = sign in (ast.Is, ast.IsNot)
            if OPEN in (left, right) or isinstance(left, list) or (is_same and None not in (left, right)):
                return UNKNOWN
            if isinstance(right, list) != (sign in (ast.In, ast.NotIn)) or OPEN in (right if isinstance(right, list) else ()):
                return UNKNOWN
            try:
                return YES if COMPARISONS[sign](left, right) else NO
            except TypeError:
                return UNKNOWN
        value = self.plain(node)
        return UNKNOWN if value is OPEN else YES if value else NO

    def plain(self, node):
        """The Python value of an expression; OPEN if it is unknown."""

        def of_value(value):
            kind = value[2]
            if kind == "list":
                return [of_value(inner) for inner in value[3]]
            return ast.literal_eval(value[3]) if kind == "scalar" else value[3] if kind == "text" else OPEN

        value = self.value(node)
        return OPEN if value is None else of_value(value)

    def path_of(self, name):
        """The configuration path of a dotted name: ddp.bucket_size for `cfg.ddp.bucket_size`; empty if it has none."""
        root, _, rest = name.partition(".")
        if root in self.aliases:
            return self.aliases[root] + ("." + rest if rest else "")
        parts = name.split(".")
        for at in range(len(parts)):
            if parts[at] in self.sections and (len(parts) > 1 or is_plain_path(name)):
                return ".".join(parts[at:])
        return ""

    def value(self, node):
        """The value of a literal, a name or a call; None for anything else."""
        value = self.any_value(node)
        return value if value is not None and is_small(value, VALUES_MAX) else None

    def any_value(self, node):
        place = self.text.place(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            inner = self.any_value(node.operand)
            is_number = inner is not None and inner[2] == "scalar" and inner[3][0].isdigit()
            return [*place, "scalar", ("-" if isinstance(node.op, ast.USub) else "") + inner[3]] if is_number else None
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return [*place, "text", node.value]
            is_plain = node.value is None or isinstance(node.value, (bool, int, float))
            return [*place, "scalar", repr(node.value)] if is_plain else None
        if name := dotted(node):
            path = self.path_of(name) if "." in name else ""
            return self.variables.get(name) or (self.values.get(path) if path else [*place, "name", name])
        if isinstance(node, (ast.List, ast.Tuple)):
            items = [self.any_value(item) for item in node.elts]
            return None if None in items else [*place, "list", items]
        if isinstance(node, ast.Dict):
            keys, fields = [key and self.any_value(key) for key in node.keys], [self.any_value(value) for value in node.values]
            is_whole = None not in keys + fields and all(key[2] in ("text", "name") for key in keys)
            return [*place, "call", "", [], [[key[3], field] for key, field in zip(keys, fields)]] if is_whole else None
        if isinstance(node, ast.Call) and dotted(node.func) and all(word.arg for word in node.keywords):
            items = [self.any_value(item) for item in node.args]
            fields = [[word.arg, self.any_value(word.value) or self.unknown(word.value)] for word in node.keywords]
            return None if None in items else [*place, "call", dotted(node.func), items, fields]
        return None

    def unknown(self, node):
        place = self.text.place(node)
        return [*place, "call", "shardc.unknown", [[*place, "text", self.segment(node)]], []]

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
        self.assign(node.target, None, None)

    def read_Return(self, node):
        if node.value is not None:
            self.note_calls(node.value)
            self.assign_name("return", node.value, self.value(node.value) if self.runs() == YES else None)
        self.leave()

    def assign(self, target, node, value):
        if isinstance(target, (ast.Tuple, ast.List)):
            whole = value[3] if value is not None and value[2] == "list" else []
            whole = whole if len(whole) == len(target.elts) else [None] * len(target.elts)
            for inner, part in zip(target.elts, whole):
                self.assign(inner, None, part)
            return
        name = dotted(target)
        if not name and isinstance(target, (ast.Subscript, ast.Starred)):  # assigns a part of a value
            return self.assign(target.value, None, None)
        if not name:
            return self.say(self.here, "leave_out", self.segment(self.statement))
        value = value if self.runs() == YES else None
        if name.startswith("os.environ."):
            return self.set_variable(name[len("os.environ."):], value)
        if "." not in name and not is_plain_path(name):
            return self.assign_name(name, node, value)
        self.set_path(self.path_of(name), name, value)

    def set_variable(self, name, value):
        is_known = value is not None and value[2] in ("text", "scalar")
        self.say(self.here, "variable", name, value[3] if is_known else None)
        if not is_known:
            self.say(self.here, "leave_out", self.segment(self.statement))

    def assign_name(self, name, node, value):
        self.variables.pop(name, None)
        self.aliases.pop(name, None)
        if name in self.roots:  # the variable now refers to another configuration
            self.forget_all(self.segment(self.statement))
        source = dotted(node) if node is not None else ""
        if "." in source and self.is_configuration(source) and self.runs() == YES:
            self.aliases[name] = self.path_of(source)
        elif value is None:
            self.note_object(name, node)
        elif value[2] != "call" or not value[3]:
            if value[2] != "name" and is_small(value, HELD_MAX):
                self.variables[name] = value
        elif not self.make_configuration(name, value):
            self.note_object(name, node)

    def make_configuration(self, name, value):
        """Reads a call that creates a configuration or a section; returns false for any other call."""
        made, items, fields = value[3].rpartition(".")[2], value[4], value[5]
        words = [word[3] for word in [*items, *(word for name, word in fields if name == "peft_scheme")] if word[2] == "text"]
        is_plain = len(words) == len(items) + len(fields)
        row = rows_of_recipe(self.tables["recipes"], made, words) if is_plain else None
        if row is not None:
            for section, tree in row.items():
                self.set_path(section, section, tree_as_value(tree, self.here))
            self.roots.add(name)
            return True
        if made == "ConfigContainer":
            self.roots.add(name)
            self.set_container(fields)
            return True
        section = self.tables["classes"].get(made, "model" if made.endswith(("Provider", "ModelConfig")) else "")
        if not section:
            return False
        if section in self.aliases.values():  # it is unknown which of the two objects is used
            self.set_path(section, name, None)
            return True
        if name != "return":
            self.aliases[name] = section
        self.set_path(section, name, value)
        return True

    def set_container(self, fields):
        for section, value in fields:
            made = value[3] if value[2] == "call" else ""
            if made.rpartition(".")[2] == "ConfigContainer":
                self.set_container(value[5])
            if value[2] != "name" or self.aliases.get(value[3]) != section:
                self.set_path(section, section, None if made == "shardc.unknown" else value)

    def note_object(self, name, node):
        """Remembers a variable that a function returned; the function may be a recipe of Megatron-Bridge."""
        if name != "return" and isinstance(node, ast.Call):
            self.made[name] = [*self.here, "text", self.segment(node)]

    def set_path(self, path, target, value):
        if not path:
            return self.say(self.here, "leave_out", self.segment(self.statement))
        self.note_setting(path, target)
        for held in [held for held in self.values if (held + ".").startswith(path + ".")]:
            del self.values[held]
        if value is None:
            return self.say(self.here, "forget", path, self.segment(self.statement))
        if is_small(value, HELD_MAX):
            self.values[path] = value
            self.values.update({f"{path}.{field}": inner for field, inner in (value[5] if value[2] == "call" else [])})
        self.say(self.here, "set", path, value)

    def note_setting(self, path, target):
        root = target.partition(".")[0]
        if root != target and root not in self.aliases and not self.is_path(target) and root not in self.roots:
            self.roots.add(root)
            if root in self.made:
                self.say(self.here, "set", "_unknown_", self.made[root])
        function = next((block[1] for block in self.blocks if block[1]), None)
        if function is not None:
            self.of_functions.append((function, path, self.here))

    def forget_all(self, why):
        self.values.clear()
        self.say(self.here, "forget_all", why)

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
                return self.forget_all(self.segment(self.statement))

    def read_Expr(self, node):
        call, text = node.value, self.segment(node)
        if isinstance(call, ast.Constant):
            return None
        function = dotted(call.func) if isinstance(call, ast.Call) else ""
        if function == "_s_line":
            return self.read_line(call.args[0].value)
        if function in ("exit", "quit", "sys.exit"):
            return self.leave()
        self.note_calls(call)
        if function not in self.functions and not is_harmless(function.rpartition(".")[2]):
            self.say(self.here, "leave_out", text)
        return None

    def read_line(self, number):
        """Reads a line that is not Python: overrides, variables of a shell, or any other text."""
        line = self.text.lines[number]
        begin = self.text.starts[number] + len(line) - len(line.lstrip())
        self.here, line = [begin, begin + len(line.strip().encode())], line.strip()
        command, _, rest = line.partition(" ")
        words = words_of(line)
        if command == "export" and "=" in rest:
            name, _, value = rest.partition("=")
            self.say(self.here, "variable", name.strip(), value.strip(" '\""))
        elif command == "unset":
            for name in rest.split():
                self.say(self.here, "variable", name, None)
        elif self.runs() == YES:
            self.say(self.here, "words", line, words)
        else:
            for word in words:
                self.say(self.here, "forget", word.lstrip("+~").partition("=")[0], line)

    def read_Delete(self, node):
        self.forget_all(self.segment(node))

    def read_Raise(self, _):
        self.leave()


def is_plain_path(name):
    """Whether an undotted name is a setting, as in `mixed_precision = "bf16_mixed"`."""
    return name == "mixed_precision"


def is_harmless(name):
    """Whether a function leaves configurations unchanged: classes, and functions known to be harmless."""
    return name[:1].isupper() or name in HELD_SAFELY


def main():
    tables, results, file = map(pathlib.Path, sys.argv[1:])
    name = "error"
    try:
        text = json.dumps(Reader(file.read_bytes().decode(), json.loads(tables.read_text())).read_all())
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
