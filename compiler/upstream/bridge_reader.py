"""Reads Python code that sets Megatron-Bridge's configuration, or lines of overrides, without running the code.

    bridge_reader.py TABLES RESULTS FILE

The result is written to the folder RESULTS: the file `configuration`, or `error` with one line of text. The configuration
has the form that bridge_standin.py writes; of overrides, it is the list of their words.

The reader evaluates statements that certainly run, in order: assignments of literals, names, fields and calls, and functions
of the input that are called without arguments. The objects are those of bridge_standin.py. What any other statement sets is
unknown, with its line.
"""

import ast
import json
import pathlib
import re
import resource
import sys
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import bridge_standin as standin  # noqa: E402

MEMORY_MAX, SHOWN_MAX, LINE_MAX = 1 << 29, 80, 1 << 14
HARMLESS = {*standin.HARMLESS, *standin.LAUNCHES, "deepcopy", "info", "debug", "len", "print", "get"}
CONFIGURATIONS = ("cfg", "config")  # variables of code that does not define them
SEE_RUN = ", which --run evaluates)"
EXITS = ("exit", "quit", "sys.exit")


def decide(what):
    """Raises an error where a function of bridge_standin.py depends on an unknown value."""
    if not what.endswith(" exists"):
        raise TypeError
    return True


def words_of(line):
    """The words of a line. Text in brackets or quotes belongs to one word."""
    words = re.findall(r"""(?:"[^"]*"|'[^']*'|[\[({](?:"[^"]*"|'[^']*'|[^"'])*[\])}]|[^\s"'\[({])+|\S""", line)
    return [word[1:-1] if len(word) > 1 and word[0] == word[-1] in "\"'" else word for word in words]


def is_override(word):
    """Whether a word is an override `a.b=c`, with Hydra's prefixes."""
    path, sign, _ = word.lstrip("+~").partition("=")
    is_path = path == "mixed_precision" or re.fullmatch(r"\w+(\.\w+)+", path)
    return bool(is_path) and path.partition(".")[0] in standin.TABLES["sections"] and (bool(sign) or word[0] == "~")


def overrides_in(text):
    """The words of lines of overrides; empty if there are other lines."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if any(len(line) > LINE_MAX for line in lines):
        return []  # the search for the ends of brackets takes long
    plain = [re.sub(r"^\s*(cfg|config)\.([\w.]+) = ", r"\2=", line) for line in lines]  # of a field among overrides
    words = [word for line in (lines if all(map(str.__ne__, plain, lines)) else plain) for word in words_of(line)]
    return words if all(map(is_override, words)) else []


def as_configuration(value):
    """Makes an unknown object that is used like a configuration one."""
    if isinstance(value, standin.Thing) and not value._s_section and not value._s_name:
        value.__dict__.update(_s_section="cfg", _s_call=value._s_call or [])


class Reader:
    def __init__(self, text):
        self.lines, self.tree = re.split(r"\r\n?|\n", text), ast.parse(text)
        self.environment, self.system = standin.Thing("os.environ", unknown=False, section="env_vars"), standin.Thing("os", name=True)
        self.system.__dict__["environ"] = self.environment
        self.names, self.returned, self.is_certain, self.is_over = {}, None, True, False
        self.implied = standin.configuration()  # what `cfg` is in code that does not define it
        self.forgotten = []  # what may have changed configurations or sections
        self.found = {}  # configurations and sections that a variable refers to or that a function returns, by identity

    def read_all(self):
        nodes = list(ast.walk(self.tree))
        for node in nodes:
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                raise standin.Stop(f"only a run can follow this variable: {self.shown(node)}")
        called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        self.read(self.tree.body)
        self.collect()
        is_open = not self.found and not standin.LAUNCHED  # then a function makes the configuration
        for name, value in list(self.names.items()) if is_open else ():
            if isinstance(value, tuple) and name not in called:
                self.implied = standin.configuration()
                self.read_function(*value, True)
        return self.result()

    def result(self):
        found = {id(thing): thing for thing in standin.LAUNCHED} or self.found
        configurations = [thing for thing in found.values() if thing._s_section == "cfg"]
        if len(configurations) > 1:
            raise standin.Stop("several functions or variables make a configuration; --run FILE:FUNCTION reads the one of a function")
        whole = configurations[0] if configurations else standin.configuration()
        for thing in () if configurations else found.values():
            if thing._s_section in vars(whole):
                raise standin.Stop("several objects for one section; --run FILE:FUNCTION reads those of a function")
            setattr(whole, thing._s_section, thing)
        tree = standin.whole_tree(whole, standin.tree_of(self.environment))
        model = tree.get("model") or {}
        unknown = [tree.get("_unknown_", ""), *self.forgotten]
        unknown.append(model["_args_"][0] if model.get("_target_") == "shardc.unknown" else model.get("_unknown_", ""))
        if unknown := list(dict.fromkeys(text for text in unknown if text.endswith(SEE_RUN))):
            tree["_unknown_"] = "; ".join(unknown)
        return tree

    def shown(self, node):
        text = ast.unparse(node) if isinstance(node, ast.Call) else self.lines[node.lineno - 1].strip()
        return f"{text[:SHOWN_MAX]} (line {node.lineno}{SEE_RUN}"

    def open(self, node):
        return standin.Thing(self.shown(node))

    # --- statements that certainly run ---

    def read(self, body):
        for statement in body:
            read = getattr(self, "read_" + type(statement).__name__, self.search)
            if not self.is_over:
                (read if self.is_certain else self.search)(statement)

    def collect(self):
        """Notes the objects that the variables of a function, or of the input, refer to at its end."""
        for thing in (self.implied, self.returned, *self.names.values()):
            is_used = isinstance(thing, standin.Thing) and thing._s_section and thing is not self.environment and thing._s_owner is None
            if is_used and (standin.has_fields(thing) or thing._s_unknown):
                self.found[id(thing)] = thing

    def read_function(self, node, names, is_certain):
        """Reads the body of a function. Returns the value that it returns."""
        was = self.names, self.returned, self.is_certain, self.is_over
        arguments = [one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)]
        positional = node.args.posonlyargs + node.args.args
        given = {one.arg: self.evaluate(value) for one, value in zip(reversed(positional), reversed(node.args.defaults)) if is_certain}
        self.names = {**names, **{name: self.implied if is_certain and name in CONFIGURATIONS else given.get(name, standin.Thing(name)) for name in arguments}}
        self.returned, self.is_certain, self.is_over = None, is_certain, False
        self.read(node.body)
        if is_certain:
            self.collect()
        returned = self.returned if self.is_certain else self.open(node)  # another statement may return
        self.names, self.returned, self.is_certain, self.is_over = was
        return returned

    def read_ImportFrom(self, node):
        self.search(node)
        for alias in node.names:
            if alias.asname and not {alias.name, alias.asname} & {*CONFIGURATIONS, "*", "environ"}:
                self.names[alias.asname] = standin.member("megatron.core", alias.name)

    def read_FunctionDef(self, node):
        self.names[node.name] = (node, self.names)

    def read_If(self, node):
        if ast.unparse(node.test) == "__name__ == '__main__'":
            return self.read(node.body)
        return self.search(node)

    def read_Assign(self, node):
        value = self.evaluate(node.value)
        for target in node.targets:
            self.assign(target, value)

    def read_AnnAssign(self, node):
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value))

    def read_Expr(self, node):
        self.evaluate(node.value)
        self.is_over = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in EXITS

    def read_Return(self, node):
        self.returned, self.is_over = node.value and self.evaluate(node.value), True

    def read_Raise(self, _):
        self.is_over = True

    # --- statements that may not run, or several times ---

    def search(self, tree):
        """Makes unknown what a statement may set. If it may end the function, all that follows may not run either."""
        was, self.is_certain = self.is_certain, False
        nodes = list(ast.walk(tree))
        for node in nodes:
            name = getattr(node, "asname", None) or getattr(node, "name", None) or getattr(node, "rest", None)
            if isinstance(name, str) and (name in self.names or name in CONFIGURATIONS or not isinstance(node, ast.alias)):
                self.assign(ast.copy_location(ast.Name(name), node), self.open(node))
            elif isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
                self.assign(node, self.open(node))
            elif isinstance(node, ast.Call):
                self.call(node)
        ends = any(isinstance(node, (ast.Return, ast.Raise)) or isinstance(node, ast.Call) and ast.unparse(node.func) in EXITS for node in nodes)
        self.is_certain = was and (not ends or isinstance(tree, ast.ClassDef))  # a method may return

    # --- values ---

    def evaluate(self, node):
        """The value of a literal, a name, a field or a call; an unknown value for all else."""
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bool, int, float, type(None))):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and type(value := self.evaluate(node.operand)) in (int, float):
            return -value
        if isinstance(node, ast.Name):
            if node.id in self.names:
                return self.names[node.id]
            return self.implied if node.id in CONFIGURATIONS else self.system if node.id == "os" else standin.member("megatron.core", node.id)
        if isinstance(node, ast.Attribute) and not node.attr.startswith(("__", "_s_")):
            value = self.evaluate(node.value)
            is_object = isinstance(value, (standin.Thing, standin.Meta)) and not self.is_loose(node.value, value)
            return getattr(value, node.attr) if is_object else self.open(node)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.evaluate(item) for item in node.elts]
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            return {key.value: self.evaluate(value) for key, value in zip(node.keys, node.values)}
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            value = self.evaluate(node.value)
            return getattr(value, node.slice.value) if isinstance(value, standin.Thing) and value._s_section else self.open(node)
        if isinstance(node, ast.Call) and self.is_certain:
            return self.call(node)
        if self.is_certain:
            self.search(node)
        return self.open(node)

    @staticmethod
    def is_loose(node, value):
        """Whether a variable refers to a section that the configuration may no longer have."""
        return isinstance(node, ast.Name) and "_s_loose" in vars(value)

    def call(self, node):
        """The result of a call. Unless the function is known, what it receives becomes unknown."""
        function, what = self.evaluate(node.func), self.shown(node)
        args, fields = [self.evaluate(one) for one in node.args], {one.arg: self.evaluate(one.value) for one in node.keywords}
        is_plain = self.is_certain and None not in fields and not any(isinstance(one, ast.Starred) for one in node.args)
        if isinstance(function, tuple) and is_plain and not args and not fields and len(function[0].args.args) == len(function[0].args.defaults):
            return self.read_function(*function, True)
        if isinstance(function, standin.Meta):
            return function(*args, **fields) if is_plain else self.open(node)
        given = [*args, *fields.values(), *([self.evaluate(node.func.value)] if isinstance(node.func, ast.Attribute) else [])]
        name = function._s_what.rpartition(".")[2] if isinstance(function, standin.Thing) else ""
        if name in standin.LAUNCHES:
            as_configuration((args or [fields.get("config")])[0])
        is_known = is_plain and name and function._s_name and (name in standin.FUNCTIONS or standin.row_of_call(name, args, fields) is not None)
        if isinstance(function, tuple):
            self.read_function(*function, False)
        if name not in HARMLESS and not is_known:
            self.forget(given, what)
        try:
            if is_known or (is_plain and name in standin.LAUNCHES):
                return standin.call(function, args, fields)
        except TypeError:
            self.forget(given, what)
        result = self.open(node)
        if is_plain and name and function._s_name and not fields:
            result.__dict__.update(_s_target=name, _s_call=args)
        return result

    def forget(self, value, what):
        """Makes a configuration, a section, or the elements of a list or dictionary unknown."""
        if isinstance(value, (list, dict)):
            for inner in list(value.values() if isinstance(value, dict) else value):
                self.forget(inner, what)
            value.clear()
        if isinstance(value, list):
            value.append(standin.Thing(what))
        elif isinstance(value, dict):
            value["_unknown_"] = what
        elif isinstance(value, standin.Thing) and value._s_section:
            standin.taint(value, what)
            self.forgotten.append(what)
            for thing in (value, *vars(value).values(), *value._s_read.values()):
                if isinstance(thing, standin.Thing) and thing._s_section != "cfg":  # the configuration may have another one now
                    thing.__dict__["_s_loose"] = True

    # --- assignments ---

    def assign(self, target, value):
        if isinstance(target, (ast.Tuple, ast.List)):
            is_whole = isinstance(value, (list, tuple)) and len(value) == len(target.elts)
            for at, inner in enumerate(target.elts):
                self.assign(inner, value[at] if is_whole else self.open(target))
        elif isinstance(target, ast.Starred):
            self.assign(target.value, self.open(target))
        elif isinstance(target, ast.Name):
            held = self.evaluate(target)
            if not self.is_certain and isinstance(held, standin.Thing) and held._s_section:  # may refer to another one
                self.forget(held, self.shown(target))
                value = held
            self.names[target.id] = value
        else:
            self.assign_field(target, value)

    def assign_field(self, target, value):
        base = target.value
        if isinstance(base, ast.Attribute) and base.attr in standin.TABLES["sections"]:
            owner = self.evaluate(base.value)
            if isinstance(base.value, ast.Name) and base.value.id not in self.names and isinstance(owner, standin.Thing) and owner._s_name:
                owner = self.names[base.value.id] = standin.configuration()
            as_configuration(owner)
        elif isinstance(base, ast.Name) and base.id not in self.names and base.id in standin.TABLES["sections"]:
            base = ast.Attribute(ast.Name("cfg"), base.id)
        owner = self.evaluate(base)
        key = target.attr if isinstance(target, ast.Attribute) else getattr(target.slice, "value", None)
        is_name = isinstance(key, str) and not key.startswith(("__", "_s_"))
        if owner is None:
            raise standin.Stop(f"it sets a field of nothing: {self.shown(target)}")
        if isinstance(owner, dict) and is_name:
            owner[key] = value
        elif isinstance(owner, standin.Thing) and is_name:
            held = vars(owner).get(key)
            if not self.is_certain and isinstance(held, standin.Thing) and held._s_section:
                return self.forget(held, self.shown(target))
            if self.is_loose(base, owner):
                value = self.open(target)
            if owner._s_unknown and not owner._s_name and owner._s_owner is None:  # its other fields remain unknown
                owner.__dict__["_s_call"] = owner._s_call or []
            setattr(owner, key, value)
        else:
            self.forget(owner, self.shown(target))


def main():
    tables, results, file = map(pathlib.Path, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    standin.decide, name = decide, "error"
    try:
        standin.TABLES.update(json.loads(tables.read_text()))
        text = textwrap.dedent(file.read_bytes().decode())
        text = json.dumps(overrides_in(text) or Reader(text).read_all(), indent=1, ensure_ascii=False)
        text = re.sub("[\x7f-\x9f\ufeff]", lambda one: f"\\u{ord(one[0]):04x}", text)  # YAML has them only escaped
        name = "configuration"
    except UnicodeDecodeError:
        text = "it is not UTF-8"
    except (RecursionError, MemoryError):
        text = "it is nested too deep"
    except SyntaxError as error:
        text = f"line {error.lineno} is neither Python nor an override: {error.msg}"
    except (ValueError, standin.Stop) as error:
        text = str(error)
    (results / name).write_text(text)


if __name__ == "__main__":
    main()
