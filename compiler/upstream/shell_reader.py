"""Finds the commands of a shell script from its text, without starting programs of the script or reading other files.

    shell_reader.py SETTING RESULTS FILE

SETTING is a JSON file with `variables` of the shell that would run the script, the path of the program `shfmt`, which
parses the script, and, if known, the script's `arguments`. The file `commands` in the folder RESULTS receives the result:
an object, or [begin, end, error] if the script is malformed.

Statements that certainly run are executed: assignments, and of an `if`, `case`, `&&` or `||` with known words the part that
runs. All others, such as loops, functions and pipes, are only searched: what they may set is unknown from there on, and
their launches are listed. Also unknown are the output of programs, variables that the script never sets, and all
expansions except `$NAME`, `${NAME}`, `${NAME[@]}`, `${NAME:-text}`, `${NAME-text}` and `$((...))`.

In the result, a word is [begin, end, text] with its place in bytes. An unknown word has a fourth element: [its text in
the script, [begin, end] of the statement that sets it or null, flags that it may contain]. While the script is read, one
character, a mark, represents each unknown part of a text. Marks remain valid when texts are joined or split.
"""

import fnmatch
import json
import pathlib
import re
import resource
import subprocess
import sys

BRACKETS = re.compile(rb"(?<![\w$\[])\[(?=[^\s\[\]=]*\](?!\+?=))")  # in arrays, shfmt refuses words such as `[0]*3+[1]*2`
TREE_MAX, MEMORY_MAX, SECONDS_MAX, DEPTH_MAX, BUDGET, SHOWN_MAX = 64 << 20, 1 << 30, 50, 5000, 16 << 20, 200
# Variables that exist although no script sets them.
ENVIRONMENT = re.compile(r"HOME|USER|LOGNAME|PWD|OLDPWD|HOSTNAME|SHELL|PATH|UID|EUID|PPID|S?RANDOM|SECONDS|LINENO|IFS|OSTYPE|REPLY|OPTARG|"
                         r"HOSTTYPE|MACHTYPE|SHLVL|EPOCHSECONDS|OPTIND|FUNCNAME|PIPESTATUS|GROUPS|DIRSTACK|_|BASH.*")
NAME, ARGUMENT, INTEGER = re.compile(r"[A-Za-z_]\w*", re.A), re.compile(r"[1-9][0-9]*|[@*#]"), re.compile(r"-?(0|[1-9][0-9]{0,17})")
OPERAND = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)|(?<!\w)([A-Za-z_]\w*)", re.A)  # a variable in arithmetic
PLAIN, QUOTED, VALUE, BREAK = range(4)  # kinds of pieces: text, text in quotes, value, a new field
MARK_BEGIN, MARKS_MAX, MARK = 0xF0000, 120_000, re.compile("[\U000f0000-\U0010ffff]")
ASSIGNS = re.compile(rb"\+\+|--|(<<|>>|[-+*/%&|^])?=(?!=)")  # operators of arithmetic
BUILTINS = ("read", "mapfile", "readarray", "getopts", "printf", "unset", "source", ".", "shift", "set", "exit", "return")


class Malformed(Exception):
    """Raised with a place in the script and the error there."""


class Ended(Exception):
    """Raised where the script ends."""


def is_known(text):
    return not MARK.search(text)


def joined(values, between=""):
    return "".join(text + between for text, _ in values or ())


def place_of(node):
    return node["Pos"], node["End"]


def nodes_of(tree):
    """The nodes of a part of shfmt's syntax tree, in no order; without those inside `$(...)`, which sets no variables."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            yield node
            todo += node.values() if node.get("Type") not in ("CmdSubst", "ProcSubst") else ()
        elif isinstance(node, list):
            todo += node


def parse(source, shfmt):
    """The syntax tree of shfmt, with places in bytes."""
    source = re.sub(BRACKETS, b"%", source)
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


class Reader:
    """Walks the statements of a syntax tree in the order of the script."""

    def __init__(self, source, setting):
        self.source, self.tree, self.budget = source, parse(source, setting.get("shfmt", "shfmt")), BUDGET
        self.commands, self.functions, self.unknown = [], {}, []
        self.cause = self.all_cause = self.moved = None  # places: the statement, what may set all variables or arguments
        # The texts and places of a variable's elements; a variable that is not an array has one, and after `unset` none.
        self.values = {name: [(text, None)] for name, text in setting["variables"].items()}
        self.arrays, self.exported, self.foreign = {"@", "*"}, set(), set()
        self.has_arguments, given = "arguments" in setting, [(text, None) for text in setting.get("arguments", ())]
        if self.has_arguments:
            self.values.update({str(at): [text] for at, text in enumerate(given, 1)}, **{"@": given, "*": given, "#": [(str(len(given)), None)]})
        for node in nodes_of(self.tree):
            self.note_declared(node)

    def note_declared(self, node):
        """Notes variables that only a shell can evaluate, such as those of `declare -i` and `declare -A`."""
        arguments = node.get("Args", ()) if node.get("Type") == "DeclClause" else ()
        options = "".join(self.string(one) for one in arguments if "Name" not in one)
        if "n" in options:
            raise Malformed(node["Pos"], "it has references to variables")
        if re.search(r"[^-+xragf]", options):
            self.foreign.update(one["Name"]["Value"] for one in arguments if "Name" in one)

    def string(self, node):
        return self.slice(*place_of(node))

    def slice(self, begin, end):
        return self.source[begin:end].decode(errors="surrogateescape")

    # --- unknown values

    def spend(self, size):
        self.budget -= size
        if self.budget <= 0 or len(self.unknown) >= MARKS_MAX:
            raise Malformed(None, "its variables become too large")

    def mark(self, shown, cause=None, flags=()):
        self.spend(64 + len(shown))
        self.unknown.append((shown[:SHOWN_MAX], cause, set(flags)))
        return chr(MARK_BEGIN + len(self.unknown) - 1)

    def mark_as(self, shown, text):
        """A mark for a value derived from `text`; it combines the reasons of the marks in `text`."""
        why = self.reasons(text)
        return self.mark(shown, next((cause for _, cause, _ in why if cause), None), self.flags_in(text))

    def reasons(self, text):
        return [self.unknown[ord(mark) - MARK_BEGIN] for mark in MARK.findall(text)]

    def shown(self, text):
        return MARK.sub(lambda mark: self.unknown[ord(mark[0]) - MARK_BEGIN][0], text)

    def flags_in(self, text):
        """The flags that a value may contain."""
        self.spend(len(text) + 1)
        return set(re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", text, re.A)).union(*(flags for _, _, flags in self.reasons(text)))

    def flags_of(self, script, but=""):
        """The flags in a part of the script and in the variables that it uses, except `but`."""
        used = [self.values[name] for name in re.findall(r"\$\{*(\w+)", script, re.A) if name in self.values and name != but]
        return self.flags_in(script).union(*(self.flags_in(joined(held, " ")) for held in used))

    def doubt(self, name, flags=(), keeps_head=False):
        """Marks a variable as unknown; with `keeps_head`, only what may have been appended to it."""
        held = self.values.get(name, [])
        unknown = self.mark("$" + name, self.cause, flags if keeps_head else self.flags_in(joined(held, " ")).union(flags))
        if not keeps_head or not held:
            held = [(unknown, self.cause)]
        elif name in self.arrays:
            held = [*held, (unknown, self.cause)]
        else:  # a separate word when the value is split
            held = [(held[0][0] + " " + unknown, held[0][1])]
        self.values[name] = held

    # --- variables

    def assign(self, assignment):
        """Executes an assignment."""
        name, is_array, appends = assignment["Name"]["Value"], "Array" in assignment, "Append" in assignment
        elements, held = assignment["Array"].get("Elems", []) if is_array else [], self.values.get(name, [])
        if is_array:
            values = self.fields_of([element["Value"] for element in elements if "Value" in element])
        else:
            values = [(self.value_of(assignment.get("Value", {})), place_of(assignment))]
        # One element is set: by an index, or of an array without one.
        is_part = any("Index" in one for one in (assignment, *elements)) or (name in self.arrays and not is_array)
        if is_part or name in self.foreign:
            self.doubt(name, self.flags_of(self.string(assignment)))
            return
        if appends and held and not is_array:
            values = [(held[0][0] + values[0][0], values[0][1])]
        self.spend(len(joined(values)) + len(values) + 1)
        self.values[name] = held + values if appends and is_array else values
        self.arrays.update([name] if is_array else [])

    def look(self, name, shown):
        """The elements of a variable or an argument where it is used; None if the script never sets it."""
        held, cause, is_set_before = self.values.get(name), self.all_cause, ENVIRONMENT.fullmatch(name)
        if not NAME.match(name):
            held, cause, is_set_before = None if self.moved else held, self.moved, not ARGUMENT.fullmatch(name)
        elif name.startswith("SLURM_") and b"\n#SBATCH" in self.source:
            is_set_before = True
        if held is None and (cause or is_set_before):
            return [(self.mark(shown, cause), None)]
        return [] if held is None and self.has_arguments and not NAME.match(name) else held

    def arithmetic(self, whole):
        """The value of arithmetic with + - * / % and brackets; unknown for more, or if it may not fit 64 bits."""
        text = OPERAND.sub(self.operand, whole[3:-2])
        is_plain = re.fullmatch(r"[-0-9+*/%() ]*", text) and not re.search(r"\* *\*|/ */|\+\+|--|(?<!\d)0\d|-.*[/%]|[/%].*-", text)
        if is_plain and len(re.sub(r"[/%] *\d+|\D", "", text)) <= 18:  # the digits of a product, or a sum
            try:
                return str(int(eval(text.replace("/", "//") or "0", {"__builtins__": {}})))
            except (ArithmeticError, SyntaxError, TypeError, RecursionError, MemoryError):
                pass
        return self.mark_as(whole, "".join(joined(self.look(name, name)) for name in NAME.findall(whole)))

    def operand(self, name):
        """The value of a variable in arithmetic. Only a shell evaluates nested expressions."""
        words = self.look(name[1] or name[2] or name[3], "")
        text = words[0][0].strip(" \t\n") if words else "" if words == [] else "?"
        return f"({text})" if INTEGER.fullmatch(text) and not name[0] in self.foreign else "?" if text or not name[3] else "0"

    # --- words

    def fields_of(self, words):
        """The texts and places after expansion. A word may become any number of fields."""
        found = []
        for word in words:
            text, bare, place, has_quotes = "", "", None, False
            for piece, kind, of_piece in [*self.pieces(word), ("", BREAK, None)]:
                # Unquoted blanks of a value, or of `${NAME:-a b}`, begin a new field.
                for part in re.findall(r"[ \t\n]+|[^ \t\n]+", piece) if kind in (VALUE, PLAIN) else [piece]:
                    if kind == BREAK or (kind != QUOTED and part[0] in " \t\n"):
                        found += [(self.settled(text, bare, True), place or place_of(word))] if text or has_quotes else []
                        text, bare, place, has_quotes = "", "", None, False
                    else:
                        text, place, has_quotes = text + part, of_piece or place, has_quotes or kind == QUOTED
                        bare += part if kind == PLAIN else "".join(re.findall(r"[*?\[]", part)) if kind == VALUE else ""
        return found

    def value_of(self, word, quoted=False):
        """The expanded text of a word that is not split into fields."""
        pieces = list(self.pieces(word, quoted))
        bare = "".join(text for text, kind, _ in pieces if kind == PLAIN)
        return self.settled("".join(" " if kind == BREAK else text for text, kind, _ in pieces), bare, False)

    def settled(self, text, bare, is_word):
        """The text of a field; unknown if the shell would expand a file pattern, braces or `~` in its unquoted part `bare`.

        Lists of numbers, and flags, are not file patterns.
        """
        is_list = bare.startswith("--") or re.fullmatch(r"[0-9\[\]*+()., ]*", bare)
        is_pattern = not is_list and re.search(r"[*?\[]", bare)
        is_open = is_word and (is_pattern or re.search(r"\{[^}]*(,|\.\.)[^}]*\}", bare))
        return self.mark_as(self.shown(text), text) if is_open or bare.startswith("~") or ":~" in bare else text

    def pieces(self, word, quoted=False):
        """The pieces of a word after expansion: text, kind, and the place of an array's element."""
        for part in word.get("Parts", ()):
            kind, whole = part["Type"], self.string(part)
            self.spend(len(whole))
            if kind == "Lit":
                # In the tree, a text ends with the backslash of a continued line.
                for escaped, plain in re.findall(r'\\(\n|[$`\\"])|([^\\]+|\\(?!$))' if quoted else r"\\(\r?\n|.)|([^\\]+)", whole, re.S):
                    if plain or not escaped.endswith("\n"):
                        yield plain or escaped, PLAIN if plain and not quoted else QUOTED, None
            elif kind == "DblQuoted":
                # Quotes create a word even if it is empty, except `"${NAME[@]}"` with an empty array.
                if whole != '"$@"' and not (whole.startswith('"${') and whole.endswith('[@]}"') and "$" not in whole[3:]):
                    yield "", QUOTED, None
                yield from self.pieces(part, True)
            elif kind == "SglQuoted" and not ("Dollar" in part and "\\" in whole):
                yield whole.lstrip("$")[1:-1], QUOTED, None
            elif kind == "ParamExp":
                yield from self.parameter(part, whole, quoted)
            else:
                text = self.arithmetic(whole) if kind == "ArithmExp" and whole.startswith("$((") else self.mark(whole)
                yield text, QUOTED if quoted or kind == "SglQuoted" else VALUE, None

    def parameter(self, part, whole, quoted):
        """The pieces of `$NAME`, `${NAME}`, `${NAME[@]}`, `${NAME[*]}`, `${NAME-word}` and `${NAME:-word}`."""
        name, kind = part["Param"]["Value"], QUOTED if quoted else VALUE
        words, word = self.look(name, whole), part.get("Exp", {}).get("Word", {})
        form = re.fullmatch(rf"\$\{{?{re.escape(name)}(\[[@*]\])?(?:(:?-).*)?\}}?", whole, re.S)
        is_list, every = form is not None and (form[1] or name in "@*"), joined(words)
        if form and name in self.arrays and not is_list:  # its first element, if it has one
            words = words[:1] if is_known(every) else None
        if form and form[2]:
            is_set = bool(words) and not (form[2] == ":-" and len(words) == 1 and not every)
            # An unknown value may be empty, or not set.
            is_unknown = (every and not MARK.sub("", every)) or (is_list and not is_known(every))
            # Inside quotes, it depends on the context whether quotes in the word are text.
            if is_unknown or (not is_set and quoted and re.search(r"['\"\\]", self.string(word) if word else "")):
                words = None
            elif not is_set:
                yield from self.pieces(word, quoted)
                return
        if not form or words is None:
            yield self.mark_as(whole, every), kind, None
            return
        for at, (text, place) in enumerate(words):
            if at > 0:
                yield ("", BREAK, None) if quoted and "@" in (name, whole[-3:-2]) else (" ", kind, None)
            is_split = kind == VALUE and "IFS" in self.values and text
            yield self.mark_as(self.shown(text), text) if is_split else text, kind, place if is_list else None

    # --- the result

    def read(self):
        directives = self.directives()
        try:
            self.statements(self.tree.get("Stmts"))
        except Ended:
            pass
        exported = [[name, *map(self.resolved, held)] for name, held in self.values.items()
                    if name not in self.arrays and (not held or name in self.exported)]
        return {"commands": self.commands or self.assigned_flags(), "directives": directives, "exported": exported}

    def directives(self):
        """The words of `#SBATCH` lines."""
        found = []
        for comment in sorted((node for node in nodes_of(self.tree) if "Hash" in node), key=lambda node: node["Pos"]):
            begin, before = comment["Pos"], self.slice(max(comment["Pos"] - 1, 0), comment["Pos"])
            if before not in "\n \t\r;&|(<>":  # shfmt 3.6 reads `$A#b` as a comment
                raise Malformed(begin, "this is not a comment")
            if before in "\n" and self.string(comment).startswith("#SBATCH"):
                found += [[*place_of(comment), word] for word in self.string(comment)[7:].partition(" #")[0].split()]
        return found

    def assigned_flags(self):
        """The flags in the variables of a text that only assigns, each variable in the form of a command."""
        found = []
        for name, held in self.values.items():
            is_plain = name not in self.arrays and is_known(joined(held))
            fields = [(word, place) for text, place in held for word in (text.split() if is_plain else [text])]
            if fields and fields[0][0].startswith("--"):
                found.append([*(fields[0][1] or (None, None)), list(map(self.resolved, fields)), []])
        return found

    def resolved(self, value):
        text, place = value
        word = [*(place or (None, None)), self.shown(text)]
        if why := self.reasons(text):
            shown, cause, _ = next((one for one in why if one[1]), why[-1])
            word.append([shown, cause, sorted(set().union(*(flags for _, _, flags in why)))])
        return word

    # --- statements that certainly run

    def statements(self, statements):
        """Executes statements. Returns the status of the last one; None if unknown."""
        status = True
        for statement in statements or ():
            status = self.statement(statement)
        return status

    def statement(self, statement):
        self.spend(1)
        node = statement.get("Cmd", {"Type": "CallExpr"})
        run = getattr(self, "run_" + node["Type"], self.search)
        is_leaf = node["Type"] in ("CallExpr", "DeclClause", "TestClause", "CaseClause")
        if "Background" in statement or (is_leaf and any(map(self.computed_in, nodes_of(node)))):
            run = self.search
        self.cause = self.first_line(statement["Pos"])
        status = run(node)
        return None if status is None else status != ("Negated" in statement)

    def first_line(self, begin):
        end = self.source.find(b"\n", begin)
        return begin, end if end >= 0 else len(self.source)

    def operator(self, node):
        return re.compile(rb"-?[a-z]+|[^\s\w\"'$()]*").match(self.source, node["OpPos"])[0].decode(errors="replace")

    def run_BinaryCmd(self, node):
        if self.operator(node) not in ("&&", "||"):  # both sides of a pipe run in subshells
            return self.search(node)
        status = self.statement(node["X"])
        if status is None:
            return self.search(node["Y"])
        return self.statement(node["Y"]) if status == (self.operator(node) == "&&") else status

    def run_Block(self, node):
        return self.statements(node.get("Stmts"))

    def run_IfClause(self, node):
        """Evaluates the conditions in order."""
        cause, status = self.cause, self.statements(node.get("Cond"))
        self.cause = cause
        if status is None:
            return self.search(node["Then"], node.get("Else"))
        if status:
            return self.statements(node["Then"])
        return self.run_IfClause(node["Else"]) if "Else" in node else True

    def run_CaseClause(self, node):
        text = self.value_of(node["Word"])
        for item in node.get("Items", ()):
            results = [self.matches(pattern, text) for pattern in item["Patterns"]]
            status = next((result for result in results if result is not False), False)
            if status is None or self.operator(item) in (";&", ";;&"):
                return self.search(node)
            if status:
                return self.statements(item.get("Stmts"))
        return True

    def run_FuncDecl(self, node):
        self.functions[node["Name"]["Value"]] = [node["Body"]]

    def run_DeclClause(self, node):
        for one in node.get("Args", ()):
            if "Naked" not in one:
                self.assign(one)
        self.export(node)

    def run_CallExpr(self, node):
        words = node.get("Args")
        if not words:
            for assignment in node.get("Assigns", ()):
                self.assign(assignment)
            # An assignment succeeds, unless it runs a program: then it has the program's status.
            return None if any(one.get("Type") == "CmdSubst" for one in nodes_of(node)) else True
        node["Fields"] = self.fields_of(words)
        fields = [text for text, _ in node["Fields"]]
        name = fields[0] if fields else ""
        if name in ("true", "false", ":") and name not in self.functions:
            return name != "false"
        if name == "test" or (name == "[" and fields[-1] == "]"):
            return self.tested(fields[1:] if name == "test" else fields[1:-1])
        if name in ("exit", "return"):
            raise Ended
        if name == "unset" and all(re.fullmatch(NAME, word) for word in fields[1:]):
            self.values.update({word: [] for word in fields[1:]})
            self.arrays.difference_update(fields[1:])
            return True
        return self.search(node)

    # --- conditions

    def matches(self, pattern, text):
        """Whether a text matches the word `pattern`; None if unknown, with quotes or with lists of characters."""
        shown = self.value_of(pattern)
        if not is_known(shown + text) or re.search(r"[\[\\(]" if shown == self.string(pattern) else r"[\[\\(*?]", shown):
            return None
        return fnmatch.fnmatchcase(text, shown) if b"nocasematch" not in self.source else None

    def run_TestClause(self, node):
        """Evaluates `[[` with one test."""
        test = node["X"]
        operands = [test[side] for side in "XY" if side in test]
        if "OpPos" not in test or not all("Parts" in operand for operand in operands):
            return None
        op, left = self.operator(test), self.value_of(operands[0])
        if len(operands) == 1:
            return self.tested([op, left])
        if op not in ("=", "==", "!="):
            return self.tested([left, op, self.value_of(operands[1])])
        status = self.matches(operands[1], left)
        return None if status is None else status == (op != "!=")

    def tested(self, words):
        """The result of `[` or `test`; None if unknown."""
        if not is_known("".join(words)) or len(words) not in (2, 3):
            return None
        if len(words) == 2:
            return (words[1] == "") == (words[0] == "-z") if words[0] in ("-n", "-z") else None
        left, op, right = words
        if op in ("=", "==", "!="):
            return (left == right) == (op != "!=")
        if not INTEGER.fullmatch(left) or not INTEGER.fullmatch(right):
            return None
        a, b = int(left), int(right)
        return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}.get(op)

    # --- statements that may run, any number of times

    def search(self, *trees):
        """Marks the variables that statements may set as unknown, and lists their launches. Includes the functions they call."""
        nodes, todo, called, moved = [], list(trees), set(), self.moved
        while todo:
            found = [node for node in nodes_of(todo.pop()) if "Pos" in node]
            for node in found:
                if node.get("Type") == "FuncDecl":
                    self.functions.setdefault(node["Name"]["Value"], []).append(node["Body"])
            names = {name for node in found for name in self.called(node)} - called
            called |= names
            nodes += found
            todo += [body for name in names for body in self.functions[name]]
        nodes.sort(key=lambda node: node["Pos"])
        self.moved = self.cause if called else moved  # a function has its own arguments
        for node in nodes:
            for name, script, keeps_head in self.changes(node):
                self.doubt(name, self.flags_of(script, name if keeps_head else ""), keeps_head)
        for node in nodes:
            self.launch(node)
        self.moved = moved if called else self.moved

    def called(self, node):
        """The function that a command calls; if its name is unknown, all functions."""
        if node.get("Type") != "CallExpr" or not node.get("Args") or not self.functions:
            return ()
        name = "".join(self.value_of(node["Args"][0]).split()[:1])
        return [name] if name in self.functions else [] if is_known(name) else list(self.functions)

    def computed_in(self, node):
        """The variables that an operator of arithmetic, or `${NAME:=text}`, sets."""
        if node.get("Type") == "ParamExp":
            return [node["Param"]["Value"]] if re.match(r"\$\{\w+:?=", self.string(node), re.A) else []
        sets = node.get("Type") in ("UnaryArithm", "BinaryArithm") and ASSIGNS.match(self.source, node["OpPos"])
        return NAME.findall(self.string(node["X"])) if sets else []

    def changes(self, node):
        """The variables that a statement may set: name, text that it may get, and whether the text is only appended."""
        kind, script = node.get("Type"), self.string(node)
        for name in NAME.findall(script[3:]) if kind == "LetClause" else self.computed_in(node):
            yield name, script, False
        if kind == "ForClause" and "Name" in node["Loop"]:
            yield node["Loop"]["Name"]["Value"], self.string(node["Loop"]), False
        if kind == "DeclClause":
            self.export(node)
            yield from (self.appended(one) for one in node.get("Args", ()) if "Naked" not in one)
        if kind == "CallExpr" and (not node.get("Args") or self.called(node)):
            yield from map(self.appended, node.get("Assigns", ()))
        if kind == "CallExpr" and node.get("Args"):
            yield from ((name, script, False) for name in self.changed_by([text for text, _ in self.fields_of(node["Args"])]))

    def appended(self, assignment):
        """A value that begins with the variable's own value only appends to it."""
        name, script = assignment["Name"]["Value"], self.string(assignment).partition("=")[2]
        adds = "Append" in assignment or re.match(rf"[( \t\r\n\"]*\$({name}(?!\w)|\{{{name}(\[[@*]\])?\}})", script, re.A)
        return name, script, bool(adds) and "Index" not in assignment and name not in self.foreign

    def changed_by(self, words):
        """The variables that a command may set."""
        name, first = (words + ["", ""])[:2]
        if name == "shift" or (name == "set" and first and (first[0] not in "-+" or first == "--")):
            self.moved = self.cause
        if name in ("source", ".") or (name == "eval" and self.evaluated(words[1:]) is None):
            self.all_cause = self.moved = self.cause
            return list(self.values)
        is_setting = name in ("read", "mapfile", "readarray", "getopts") or (name, first) == ("printf", "-v") or (name == "unset" and first != "-f")
        return [match[0] for match in map(NAME.match, words[1:]) if match] if is_setting else []

    def export(self, node):
        """Notes the variables of `export` and `declare -x`."""
        is_export = node["Variant"]["Value"] == "export" or any("x" in self.string(one) for one in node.get("Args", ()) if "Name" not in one)
        self.exported.update(one["Name"]["Value"] for one in node.get("Args", ()) if "Name" in one and is_export)

    @staticmethod
    def evaluated(texts):
        """The words of the command that `eval` runs; None if they need parsing."""
        words = " ".join(texts).split()
        is_open = not words or "=" in words[0] or not is_known(words[0]) or re.search(r"['\"\\$`;&|<>(){}*?\[~#!]", "".join(texts))
        return None if is_open else words

    def launch(self, node):
        """Lists the command that a statement runs."""
        if node.get("Type") != "CallExpr" or not node.get("Args"):
            return
        fields = node["Fields"] if "Fields" in node else self.fields_of(node["Args"])
        name = fields[0][0] if fields else ""
        if name == "eval":
            fields = [(word, fields[-1][1]) for word in self.evaluated([text for text, _ in fields[1:]]) or ()]
        fields = fields[1:] if name == "exec" else fields
        if fields and name not in self.functions and name not in BUILTINS:
            environment = [[one["Name"]["Value"], self.resolved((self.value_of(one.get("Value", {})), place_of(one.get("Value", one))))]
                           for one in node.get("Assigns", ())]
            self.commands.append([*place_of(node), [self.resolved(field) for field in fields], environment])


def read(source, setting):
    """The result as described in the head of this file."""
    sys.setrecursionlimit(DEPTH_MAX)
    try:
        if not is_known(source.decode(errors="surrogateescape")):
            raise Malformed(None, "it has characters of private use")
        return Reader(source, setting).read()
    except Malformed as error:
        at, what = error.args
        return [at, at, what]
    except RecursionError:
        return [None, None, "it is nested too deep"]


def main(setting, results, file):
    found = read(pathlib.Path(file).read_bytes(), json.loads(pathlib.Path(setting).read_text()))
    text = json.dumps(found, ensure_ascii=False)
    text = re.sub("[\x7f-\x9f\ufeff]", lambda one: f"\\u{ord(one[0]):04x}", text)  # YAML has them only escaped
    pathlib.Path(results, "commands").write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
