"""Finds the commands of a shell script from its text, without starting programs of the script or reading other files.

    shell_reader.py SETTING RESULTS FILE

SETTING is a JSON file with `variables` of the shell that would run the script, the path of the program `shfmt`, which
parses the script, and, if known, the script's `arguments`. The file `commands` in the folder RESULTS receives the result:
an object, or [begin, end, error] if the script is malformed.

Statements that certainly run are executed: of an `if` or `case` with known words, only the branch that runs. Statements
that depend on another condition, a loop or a function are walked twice: to mark the variables that they may set as
unknown from there on, and to collect their launches. Also unknown are the output of programs, variables that the script
never sets, and everything derived from these.

In the result, a word is [begin, end, text] with its place in bytes. An unknown word has a fourth element: [its text in
the script, [begin, end] of the statement that sets it or null, flags that it may contain].
"""

import fnmatch
import json
import pathlib
import re
import resource
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from shell_words import COLLECT, DOUBT, RUN, SET, Malformed, Variable, Words, is_known, joined, nodes_of, place_of  # noqa: E402

# What shfmt parses otherwise than bash, and a text of the same size that it parses as bash parses the first.
REPLACED = [(rb"(?m)^```", b"###"),  # fences of a page that the script was copied from
            (rb"(\$\w+|\$[@*#?$!-]|['\"}`)]|[^\s\\;&|()<>]\\\r?\n)#", rb"\1%"),  # version 3.6: `#` in a word begins a comment
            (rb"(?<![\w$\[])\[(?=[^\s\[\]=]*\](?!\+?=))", b"%")]  # in arrays: words with brackets, `[0]*3+[1]*2`
OPERATOR = re.compile(rb"-?[a-z]+|[^\s\w\"'$()]*")
COMPOUND = ("Block", "Subshell", "IfClause", "CaseClause", "WhileClause", "ForClause")
TREE_MAX, MEMORY_MAX, SECONDS_MAX, DEPTH_MAX = 64 << 20, 1 << 30, 50, 5000


class Ended(Exception):
    """Raised where the script ends."""


def parse(source, shfmt):
    """The syntax tree of shfmt, with places in bytes."""
    for pattern, text in REPLACED:
        source = re.sub(pattern, text, source)
    try:
        done = subprocess.run([shfmt, "--to-json", "-ln", "bash"], input=source, capture_output=True, timeout=SECONDS_MAX, check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX)))
    except subprocess.TimeoutExpired:
        raise Malformed(None, "parsing it takes too long") from None
    if error := re.match(rb"[^\n]*?(\d+):(\d+): (.*)", done.stderr):
        lines = source.split(b"\n")[:int(error[1]) - 1]
        raise Malformed(sum(len(line) + 1 for line in lines) + int(error[2]) - 1, error[3].decode(errors="replace"))
    if done.returncode != 0:  # its memory is limited, or its version has no such option
        raise Malformed(None, "shfmt: " + done.stderr.partition(b"\n")[0].decode(errors="replace"))
    if len(done.stdout) > TREE_MAX:
        raise Malformed(None, "its syntax tree is too large")
    return json.loads(done.stdout, object_hook=lambda node: node.get("Offset", node))


class Reader(Words):
    """Walks the statements of a syntax tree in the order of the script."""

    def __init__(self, source, tree, setting):
        super().__init__(source, setting)
        self.tree, self.commands, self.functions, self.active = tree, [], {}, set()
        self.has_cases = b"nocasematch" not in source

    def read(self):
        directives = self.directives()
        try:
            self.statements(self.tree.get("Stmts"))
        except Ended:
            pass
        return {"commands": self.commands or self.assigned_flags(), "directives": directives, "exported": self.exported()}

    def directives(self):
        """The words of `#SBATCH` lines."""
        found = []
        for comment in sorted((node for node in nodes_of(self.tree) if "Hash" in node), key=lambda node: node["Pos"]):
            begin, before = comment["Pos"], self.slice(max(comment["Pos"] - 1, 0), comment["Pos"])
            if before not in "\n \t\r;&|(<>":
                raise Malformed(begin, "this is not a comment")
            if before in "\n" and self.string(comment).startswith("#SBATCH"):
                words = self.string(comment)[7:].partition(" #")[0].split()
                found += [[*place_of(comment), word] for word in words]
        return found

    def exported(self):
        exported = []
        for name, held in self.values.variables.items():
            if not held.is_set:
                exported.append([name, None, held.place])
            elif held.is_exported and len(held.elements) == 1:
                exported.append([name, self.resolved(held.elements[0]), held.place])
        return exported

    def assigned_flags(self):
        """The flags in the variables of a text that only assigns, each variable in the form of a command."""
        found = []
        for held in self.values.variables.values():
            is_plain = not held.is_array and is_known(joined(held.elements))
            fields = [(word, place) for text, place in held.elements for word in (text.split() if is_plain else [text])]
            if fields and fields[0][0].startswith("--"):
                found.append([*(held.place or (None, None)), [self.resolved(field) for field in fields], []])
        return found

    def resolved(self, value):
        text, place = value
        word = [*(place or (None, None)), self.values.shown(text)]
        if why := self.values.reasons(text):
            shown, cause, _ = next((one for one in why if one[1]), why[-1])
            word.append([shown, cause, sorted(set().union(*(flags for _, _, flags in why)))])
        return word

    # --- which statements run

    def guarded(self, begin, walk, *arguments):
        """Walks statements that may or may not run, depending on the statement at `begin`."""
        if self.mode != RUN:
            return walk(*arguments)
        self.cause = self.first_line(begin)
        for self.mode in (DOUBT, COLLECT):
            walk(*arguments)
        self.mode = RUN
        return None

    def first_line(self, begin):
        end = self.source.find(b"\n", begin)
        return begin, end if end >= 0 else len(self.source)

    def statements(self, statements):
        """Walks statements. Returns the status of the last one; None if unknown."""
        status = True
        for statement in statements or ():
            status = self.statement(statement)
        return status

    def statement(self, statement):
        self.values.spend(1)
        node = {"Type": "CallExpr", "Pos": statement["Pos"], "End": statement["Pos"], **statement.get("Cmd", {})}
        ends = [node["End"], *(redirection["Word"]["End"] for redirection in statement.get("Redirs", ()))]
        walk, place = getattr(self, "walk_" + node["Type"]), (node["Pos"], max(ends))
        if self.mode == RUN:
            self.cause = self.first_line(node["Pos"])
        if "Background" in statement or node["Type"] in ("WhileClause", "ForClause", "Subshell", "CoprocClause"):
            status = self.guarded(node["Pos"], walk, node, place)
        else:
            status = walk(node, place)
        return None if status is None or self.mode != RUN else status != ("Negated" in statement)

    # --- compound statements

    def walk_BinaryCmd(self, node, _):
        left, right, op = node["X"], node["Y"], self.operator(node)
        if op not in ("&&", "||"):  # both sides of a pipe run in subshells
            self.guarded(left["Pos"], self.statement, left)
            return self.guarded(right["Pos"], self.statement, right)
        status = self.statement(left)
        if status is None:
            return self.guarded(right["Pos"], self.statement, right)
        return self.statement(right) if status == (op == "&&") else status

    def walk_Block(self, node, _):
        return self.statements(node.get("Stmts"))

    walk_Subshell = walk_Block

    def walk_TimeClause(self, node, _):
        return self.statement(node["Stmt"]) if "Stmt" in node else None

    walk_CoprocClause = walk_TimeClause

    def walk_WhileClause(self, node, _):
        self.statements(node.get("Cond"))
        self.statements(node["Do"])

    def walk_ForClause(self, node, _):
        head, name = self.slice(node["Loop"]["Pos"], node["DoPos"]), node["Loop"].get("Name")
        if self.mode == DOUBT:
            self.doubt_changes(head)
            self.doubt(name["Value"] if name else "", head)
        self.statements(node["Do"])

    def walk_IfClause(self, node, place):
        """Evaluates the conditions in order; from the first unknown one on, walks all branches."""
        status = self.statements(node["Cond"]) if "Cond" in node else True
        if status is None or self.mode != RUN:
            return self.guarded(place[0], self.branches, node)
        if status:
            return self.statements(node["Then"])
        return self.walk_IfClause(node["Else"], place) if "Else" in node else True

    def branches(self, node):
        self.statements(node["Then"])
        while node := node.get("Else"):
            self.statements(node.get("Cond"))
            self.statements(node["Then"])

    def walk_CaseClause(self, node, place):
        self.doubts(place_of(node["Word"]))
        items = node.get("Items", [])
        text = self.value_of(node["Word"]) if self.mode == RUN else ""
        for at, item in enumerate(items):
            status = self.matches(text, item["Patterns"]) if self.mode == RUN else None
            if status is None or self.operator(item) in (";&", ";;&"):
                return self.guarded(place[0], self.clauses, items[at:])
            if status:
                return self.statements(item.get("Stmts"))
        return True

    def clauses(self, items):
        for item in items:
            for pattern in item["Patterns"]:
                self.doubts(place_of(pattern))
            self.statements(item.get("Stmts"))

    def matches(self, subject, patterns):
        for pattern in patterns:
            self.doubts(place_of(pattern))
            text = self.value_of(pattern)
            one = self.matches_one(text, subject, text == self.string(pattern)) if is_known(subject + text) and self.has_cases else None
            if one is None or one:
                return one
        return False

    @staticmethod
    def matches_one(pattern, text, is_bare):
        """Whether the pattern matches; None if it contains character lists or quotes."""
        return None if re.search(r"[\[\\(]" if is_bare else r"[\[\\(*?]", pattern) else fnmatch.fnmatchcase(text, pattern)

    def walk_FuncDecl(self, node, _):
        name, body = node["Name"]["Value"], node["Body"]
        if body.get("Cmd", {}).get("Type") not in COMPOUND:
            raise Malformed(body["Pos"], "expected '{' after a function's name")
        if self.mode == RUN:
            self.functions[name] = []
        self.functions.setdefault(name, []).append(body)

    def call(self, name):
        """Calls a function; if it may have several definitions, all of them."""
        if name in self.active:
            return
        self.active.add(name)
        was, self.values.is_in_function = self.values.is_in_function, True
        for body in list(self.functions[name]):
            self.guarded(body["Pos"], self.statement, body)
        self.values.is_in_function = was
        self.active.remove(name)

    # --- simple statements

    def operator(self, node):
        return OPERATOR.match(self.source, node["OpPos"])[0].decode(errors="replace")

    def doubts(self, place):
        if self.mode != COLLECT:
            self.doubt_changes(self.slice(*place))

    def walk_ArithmCmd(self, node, place):
        return self.guarded(node["Pos"], self.doubts, place)

    def walk_LetClause(self, node, place):
        for name in re.findall(r"[A-Za-z_]\w*", self.slice(place[0] + len("let"), place[1]), re.A) if self.mode != COLLECT else ():
            self.doubt(name)

    def walk_TestClause(self, node, place):
        self.doubts(place)
        return self.truth(node["X"]) if self.mode == RUN and self.has_cases else None

    def walk_CallExpr(self, node, place):
        if self.source[place[0]] in b"#":
            raise Malformed(place[0], "a comment needs a blank before it")
        self.doubts(place)
        words, assignments, script = node.get("Args"), node.get("Assigns", ()), self.slice(*place)
        if not words:
            for assignment in assignments if self.mode != COLLECT else ():
                self.assign(assignment)
            # An assignment succeeds, unless it runs a program: then it has the program's status.
            return None if "$(" in script or "`" in script else True
        fields = self.fields_of(words)
        name = fields[0][0] if fields else None
        if name in self.functions:
            self.call(name)
        elif name in ("true", "false", ":"):
            return name != "false"
        elif name in ("[", "test"):
            return self.tested(name, [text for text, _ in fields[1:]])
        elif name is not None:
            fields = self.builtin(name, fields, script)
            if fields and self.mode != DOUBT:
                environment = [[one["Name"]["Value"], self.resolved((self.value_of(one.get("Value", {})), place_of(one.get("Value", one))))]
                               for one in assignments]
                self.commands.append([*place, [self.resolved(field) for field in fields], environment])
        return None

    def walk_DeclClause(self, node, place):
        self.doubts(place)
        naked = [one for one in node.get("Args", ()) if "Naked" in one]
        assignments = [one for one in node.get("Args", ()) if "Naked" not in one]
        for assignment in assignments if self.mode != COLLECT else ():
            self.assign(assignment)
        fields = [field for one in naked for field in ([(one["Name"]["Value"], place_of(one))] if "Name" in one else self.fields_of([one["Value"]]))]
        self.declare(node["Variant"]["Value"], fields, [one["Name"]["Value"] for one in assignments])

    def assign(self, assignment):
        name, place, script = assignment["Name"]["Value"], place_of(assignment), self.string(assignment).partition("=")[2]
        elements = assignment["Array"].get("Elems", []) if "Array" in assignment else None
        self.splits_as_usual &= name != "IFS"
        if elements is None:
            values = [(self.value_of(assignment.get("Value", {})), place)]
        else:
            values = self.fields_of([element["Value"] for element in elements if "Value" in element])
        is_foreign = "Index" in assignment or any("Index" in element for element in elements or ())
        # A value that begins with the variable's own value only appends to it.
        adds = "Append" in assignment or re.match(rf"[( \t\r\n\"]*\$({name}(?!\w)|\{{{name}(\[[@*]\])?\}})", script, re.A)
        if self.mode != RUN or is_foreign:
            self.doubt(name, script, bool(adds) and not is_foreign)
        else:
            self.values.assign(name, values, "Append" in assignment, elements is not None, place)

    def declare(self, command, fields, names):
        exports, is_foreign = command == "export", False
        for word, _ in fields:
            if word[:1] in ("-", "+"):
                exports |= "x" in word
                is_foreign |= re.search(r"[^-+xragf]", word) is not None
            else:
                names.append(word)
        for name in names:
            if is_foreign and self.mode != COLLECT:  # such as `-i` and `-A`
                self.values.variable(name).is_foreign = True
            if exports and (self.mode == RUN or self.values.look(name, "", name)[0] == SET):
                self.export(name)

    def export(self, name):
        if name in self.values.variables:
            self.values.variables[name].is_exported = True

    def builtin(self, name, fields, script):
        """Executes a builtin command. Returns the words of the program that runs, if any."""
        operands, doubts = fields[1:], self.mode != COLLECT
        first = operands[0][0] if operands else ""
        if name in ("read", "mapfile", "readarray", "getopts", "printf"):
            for word, _ in operands if doubts and (name != "printf" or first == "-v") else ():
                self.doubt(re.match(r"\w*", word, re.A)[0], script)
        elif name == "unset":
            for word, place in operands if doubts and first != "-f" else ():
                self.unset(re.match(r"\w*", word, re.A)[0], word, place)
        elif name in ("source", "."):
            if doubts:
                self.values.doubt_all(self.cause)
        elif name == "shift" or (name == "set" and (not first.startswith("-") or first == "--")):
            if doubts and not self.values.is_in_function:
                self.values.arguments, self.values.arguments_cause = None, self.cause
        elif name in ("exit", "return"):
            if self.mode == RUN:
                raise Ended
        elif name == "eval":
            return self.open_eval(operands)
        elif name == "exec":
            return operands
        elif name != "set":
            return fields
        return []

    def unset(self, name, word, place):
        if self.mode == RUN and name == word:
            self.values.variables[name] = Variable(place, is_set=False)
            return
        self.doubt(name)
        self.export(name)  # it may still be exported to launches

    def open_eval(self, operands):
        """The words of the command that `eval` runs. If they need parsing, all variables become unknown."""
        inner = [(part, place) for text, place in operands for part in re.findall(r"[^ \t\n]+", text)]
        if inner and "=" not in inner[0][0] and is_known(inner[0][0]) and not any(re.search(r"['\"\\$`;&|<>(){}*?\[~#!]", text)
                                                                                  for text, _ in operands):
            return inner
        if self.mode != COLLECT:
            self.values.doubt_all(self.cause)
        return []

    # --- tests with known words

    def truth(self, node):
        """The result of an expression of `[[`; None if unknown."""
        kind, op = node["Type"], self.operator(node) if "OpPos" in node else ""
        if kind == "ParenTest":
            return self.truth(node["X"])
        if op in ("&&", "||"):
            left = self.truth(node["X"])
            return self.truth(node["Y"]) if left is not None and left == (op == "&&") else left
        if op == "!":
            status = self.truth(node["X"])
            return None if status is None else not status
        words = [node] if kind == "Word" else [node[side] for side in "XY" if side in node]
        if not all(word["Type"] == "Word" for word in words):
            return None
        texts = [self.value_of(word) for word in words]
        if not is_known("".join(texts)):
            return None
        if kind == "BinaryTest":
            return self.compared(texts[0], op, texts[1], True, texts[1] == self.string(words[1]))
        return (texts[0] != "") == (op != "-z") if op in ("", "-n", "-z") else None

    def tested(self, name, words):
        """The result of `[` or `test`; None if unknown."""
        if name == "[" and (not words or words.pop() != "]") or not is_known("".join(words)):
            return None
        if len(words) > 1 and words[0] == "!":
            if len(words) == 3 and words[1] in ("=", "==", "!="):  # in `[ ! = x ]`, `!` is a text
                return None
            status = self.tested("test", words[1:])
            return None if status is None else not status
        if len(words) < 2:
            return words not in ([], [""])
        if len(words) == 2 and words[0] in ("-n", "-z"):
            return (words[1] == "") == (words[0] == "-z")
        return self.compared(*words, False, False) if len(words) == 3 else None

    def compared(self, left, op, right, is_double, is_bare):
        """Compares two words; None if unknown. `[[` compares patterns and arithmetic, `[` only texts and decimal numbers."""
        if op in ("=", "==", "!="):
            is_same = self.matches_one(right, left, is_bare) if is_double else left == right
            return None if is_same is None else is_same == (op != "!=")
        a, b = (self.values.evaluate(text) if is_double else int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None for text in (left, right))
        if a is None or b is None:
            return None
        return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}.get(op)


def read(source, setting):
    """The result as described in the head of this file."""
    sys.setrecursionlimit(DEPTH_MAX)
    try:
        if not is_known(source.decode(errors="surrogateescape")):
            raise Malformed(None, "it has characters of private use")
        return Reader(source, parse(source, setting.get("shfmt", "shfmt")), setting).read()
    except Malformed as error:
        at, what = error.args
        return [at, at, what]
    except RecursionError:  # also functions that call each other without end
        return [None, None, "it is nested too deep"]


def main(setting, results, file):
    found = read(pathlib.Path(file).read_bytes(), json.loads(pathlib.Path(setting).read_text()))
    pathlib.Path(results, "commands").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
