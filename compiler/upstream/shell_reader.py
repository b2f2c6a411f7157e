"""Finds the commands of a shell script from its text, without starting programs of the script or reading other files.

    shell_reader.py SETTING RESULTS FILE

SETTING is a JSON file with `variables` of the shell that would run the script, the path of the program `shfmt`, which
parses the script, and, if known, the script's `arguments`. The file `commands` in the folder RESULTS receives the result:
an object, or [begin, end, error] if the script is malformed.

Statements that certainly run are executed: assignments, and of an `if`, `case`, `&&` or `||` with known words the part that
runs. All others, such as loops, functions and pipes, are only searched: what they may set is unknown from there on, and
their launches are listed. Also unknown are the output of programs, variables that the script never sets, and everything
derived from these.

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

# What shfmt parses otherwise than bash, and a text of the same size that it parses as bash parses the first.
REPLACED = [(rb"(?m)^```", b"###"),  # fences of a page that the script was copied from
            (rb"(\$\w+|\$[@*#?$!-]|['\"}`)]|[^\s\\;&|()<>]\\\r?\n)#", rb"\1%"),  # version 3.6: `#` in a word begins a comment
            (rb"(?<![\w$\[])\[(?=[^\s\[\]=]*\](?!\+?=))", b"%")]  # in arrays: words with brackets, `[0]*3+[1]*2`
TREE_MAX, MEMORY_MAX, SECONDS_MAX, DEPTH_MAX, BUDGET, SHOWN_MAX = 64 << 20, 1 << 30, 50, 5000, 16 << 20, 200
# Variables that exist although no script sets them.
ENVIRONMENT = re.compile(r"HOME|USER|LOGNAME|PWD|OLDPWD|HOSTNAME|SHELL|PATH|UID|EUID|PPID|S?RANDOM|SECONDS|LINENO|IFS|OSTYPE|REPLY|OPTARG|"
                         r"HOSTTYPE|MACHTYPE|SHLVL|EPOCHSECONDS|OPTIND|FUNCNAME|PIPESTATUS|GROUPS|DIRSTACK|_|BASH.*")
NAME, ARGUMENT, INTEGER = re.compile(r"[A-Za-z_]\w*", re.A), re.compile(r"[1-9][0-9]*|[@*#]"), re.compile(r"-?(0|[1-9][0-9]{0,17})")
PLAIN, QUOTED, VALUE, WORD, BREAK = range(5)  # kinds of pieces: text, text in quotes, value, text of `${NAME:-text}`, a new field
MARK_BEGIN, MARKS_MAX, MARK = 0xF0000, 120_000, re.compile("[\U000f0000-\U0010ffff]")
ASSIGNS = re.compile(rb"\+\+|--|(<<|>>|[-+*/%&|^])?=(?!=)")  # operators of arithmetic
LEAVES = ("CallExpr", "DeclClause", "TestClause", "CaseClause")
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


class Variable:
    """The values and places of its elements; none if the script unsets it. A plain variable has one."""

    def __init__(self, elements=(), is_array=False):
        self.elements, self.is_array, self.is_exported = list(elements), is_array, False


class Reader:
    """Walks the statements of a syntax tree in the order of the script."""

    def __init__(self, source, setting):
        self.source, self.tree, self.budget = source, parse(source, setting.get("shfmt", "shfmt")), BUDGET
        self.commands, self.functions, self.unknown, self.variables = [], {}, [], {}
        self.foreign = set()  # variables whose assignments only a shell evaluates, such as those of `declare -i`
        self.cause = self.all_cause = self.moved = None  # places: the statement, what may set all variables or arguments
        self.is_in_function, self.has_arguments = False, "arguments" in setting
        for name, text in setting["variables"].items():
            self.variables[name] = Variable([(text, None)])
        if self.has_arguments:
            given = [(text, None) for text in setting["arguments"]]
            self.variables.update({str(at): Variable([text]) for at, text in enumerate(given, 1)})
            self.variables.update({"@": Variable(given, True), "*": Variable(given, True), "#": Variable([(str(len(given)), None)])})

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
        used = [self.variables[name] for name in re.findall(r"\$\{*(\w+)", script, re.A) if name in self.variables and name != but]
        return self.flags_in(script).union(*(self.flags_in(joined(held.elements, " ")) for held in used))

    def doubt(self, name, flags=(), keeps_head=False):
        """Marks a variable as unknown; with `keeps_head`, only what may have been appended to it."""
        held = self.variables.setdefault(name, Variable())
        if not keeps_head:
            flags = self.flags_in(joined(held.elements, " ")).union(flags)
            held.elements = []
        unknown = self.mark("$" + name, self.cause, flags)
        if held.elements and not held.is_array:  # a separate word when the value is split
            held.elements[0] = (held.elements[0][0] + " " + unknown, held.elements[0][1])
        else:
            held.elements.append((unknown, self.cause))

    # --- variables

    def set(self, name, values, appends=False, is_array=False):
        held = self.variables.setdefault(name, Variable())
        if name in self.foreign or (held.is_array and not is_array):  # sets the first element, which may not exist
            self.doubt(name, self.flags_in(joined(values, " ")))
            return
        if not is_array and appends and held.elements:
            values = [(held.elements[0][0] + values[0][0], values[0][1])]
        self.spend(len(joined(values)) + len(values) + 1)
        held.elements = (held.elements if appends and is_array else []) + values
        held.is_array = is_array

    def assign(self, assignment):
        """Executes an assignment."""
        name, elements = assignment["Name"]["Value"], assignment["Array"].get("Elems", []) if "Array" in assignment else None
        if elements is None:
            values = [(self.value_of(assignment.get("Value", {})), place_of(assignment))]
        else:
            values = self.fields_of([element["Value"] for element in elements if "Value" in element])
        if "Index" in assignment or any("Index" in element for element in elements or ()):
            self.doubt(name, self.flags_of(self.string(assignment)))
        else:
            self.set(name, values, "Append" in assignment, elements is not None)

    def look(self, name, index, shown):
        """The elements of a variable or an argument where it is used; None if the script never sets it."""
        held, is_argument = self.variables.get(name), not NAME.match(name)
        if is_argument and (self.moved or self.is_in_function or not ARGUMENT.fullmatch(name)):
            return [(self.mark(shown, self.moved), None)]
        if held is None and is_argument:
            return [] if self.has_arguments else None
        if held is None:
            is_set_before = ENVIRONMENT.fullmatch(name) or (b"\n#SBATCH" in self.source and name.startswith("SLURM_"))
            return [(self.mark(shown, self.all_cause), None)] if self.all_cause or is_set_before else None
        if index in ("@", "*") or name in ("@", "*") or not held.elements:
            return held.elements
        at, every = 0 if index == "" else self.evaluate(index), joined(held.elements)
        # An unknown element may become several words, so all indices are unknown.
        if at is None or at < 0 or name in self.foreign or (held.is_array and not is_known(every)):
            return [(self.mark_as(shown, every), None)]
        return held.elements[at:at + 1]

    def evaluate(self, expression):
        """The value of expanded arithmetic with + - * / % and brackets; None for more, or if it may not fit 64 bits."""
        text = NAME.sub(self.number, expression) or "0"
        is_plain = re.fullmatch(r"[-0-9+*/%() ]*", text) and not re.search(r"\* *\*|/ */|\+\+|--|(?<!\d)0\d|-.*[/%]|[/%].*-", text)
        if not is_plain or len(re.sub(r"[/%] *\d+|\D", "", text)) > 18:  # the digits of a product, or a sum
            return None
        try:
            return int(eval(text.replace("/", "//"), {"__builtins__": {}}))
        except (ArithmeticError, SyntaxError, TypeError, RecursionError, MemoryError):
            return None

    def number(self, name):
        """The value of a variable in arithmetic. Only a shell evaluates nested expressions."""
        words = self.look(name[0], "", "")
        text = words[0][0].strip(" \t\n") if words else "" if words == [] else "?"
        return f"({text})" if INTEGER.fullmatch(text) else "?" if text else "0"

    # --- words

    def fields_of(self, words):
        """The texts and places after expansion. A word may become any number of fields."""
        found = []
        for word in words:
            text, bare, place, has_quotes = "", "", None, False
            for piece, kind, of_piece in [*self.pieces(word), ("", BREAK, None)]:
                # Unquoted blanks of a value begin a new field.
                for part in re.findall(r"[ \t\n]+|[^ \t\n]+", piece) if kind in (VALUE, WORD) else [piece]:
                    if kind == BREAK or (kind in (VALUE, WORD) and part[0] in " \t\n"):
                        found += [(self.settled(text, bare, True), place or place_of(word))] if text or has_quotes else []
                        text, bare, place, has_quotes = "", "", None, False
                    else:
                        text, place, has_quotes = text + part, of_piece or place, has_quotes or kind == QUOTED
                        bare += part if kind in (PLAIN, WORD) else "".join(re.findall(r"[*?\[]", part)) if kind == VALUE else ""
        return found

    def value_of(self, word, quoted=False):
        """The expanded text of a word that is not split into fields."""
        pieces = list(self.pieces(word, quoted))
        bare = "".join(text for text, kind, _ in pieces if kind in (PLAIN, WORD))
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
            elif kind == "ArithmExp" and whole.startswith("$(("):
                yield self.arithmetic(part, whole), QUOTED if quoted else VALUE, None
            else:
                yield self.mark(whole), QUOTED if quoted or kind == "SglQuoted" else VALUE, None

    def expanded(self, tree, begin, end):
        """The text from `begin` to `end` in the script, with the values of the expansions in `tree`."""
        text, at = "", begin
        expansions = (node for node in nodes_of(tree) if node.get("Type") in ("ParamExp", "CmdSubst", "ArithmExp"))
        for part in sorted(expansions, key=lambda node: node["Pos"]):
            if part["Pos"] >= at and self.source[part["Pos"]] in b"$`":
                text += self.slice(at, part["Pos"]) + self.value_of({"Parts": [part]}, True)
                at = part["End"]
        return text + self.slice(at, end)

    def arithmetic(self, part, whole):
        expression = self.expanded(part, part["Pos"] + 3, part["End"] - 2)
        value = self.evaluate(expression) if is_known(expression) else None
        if value is None:  # for its own reasons and for those of its variables
            return self.mark_as(whole, expression + "".join(joined(self.look(name, "", name)) for name in NAME.findall(expression)))
        return str(value)

    def parameter(self, part, whole, quoted):
        name, index, at = part["Param"]["Value"], "", part["Param"]["End"]
        if "Index" in part:
            index, at = self.expanded(part["Index"], *place_of(part["Index"])), part["Index"]["End"] + 1
        op = self.slice(at, part["End"] - 1) if "Short" not in part else ""
        words, kind = self.look(name, index, whole), QUOTED if quoted else VALUE
        every, is_list = joined(words), "@" in (index, name) or "*" in (index, name)
        if sign := re.match(":?[-=+?]", op):
            words = yield from self.default(part, sign[0], (words, is_list), quoted)
        elif op or not whole.startswith(("$" + name, "${" + name)):
            words = None  # only a shell can expand lengths, parts and replacements
        if words is None:
            yield self.mark_as(whole, every), kind, None
        for at, (text, place) in enumerate(words or ()):
            if at > 0:
                yield ("", BREAK, None) if quoted and "@" in (index, name) else (" ", kind, None)
            is_split = kind == VALUE and "IFS" in self.variables and text
            yield self.mark_as(self.shown(text), text) if is_split else text, kind, place if is_list else None

    def default(self, part, sign, held, quoted):
        """Expands the word of `${NAME:-word}` and the forms with `=`, `+` and `?`. Returns the values to use; None if unknown."""
        (words, is_list), word, name = held, part["Exp"].get("Word", {}), part["Param"]["Value"]
        text, every = self.string(word) if word else "", joined(words)
        is_set = bool(words) and not (sign[0] == ":" and len(words) == 1 and not every)
        uses_word = is_set == (sign[-1] == "+")
        # An unknown value may be empty, or not set. Inside quotes, it depends on the context whether quotes in the word are text.
        is_unknown = (every and not MARK.sub("", every)) or (is_list and not is_known(every))
        if is_unknown or (uses_word and (sign[-1] == "?" or (quoted and re.search(r"['\"\\]", text)))):
            if sign[-1] == "=":
                self.doubt(name, self.flags_of(text))
            return None
        if quoted:
            yield "", QUOTED, None  # an empty text is a word too
        if sign[-1] == "=" and uses_word:
            self.set(name, [(self.value_of(word), place_of(part))])
            return self.variables[name].elements
        for piece, kind, place in self.pieces(word, quoted) if uses_word else ():
            yield piece, WORD if kind == PLAIN else kind, place
        return [] if uses_word or sign[-1] == "+" else words

    # --- the result

    def read(self):
        directives = self.directives()
        try:
            self.statements(self.tree.get("Stmts"))
        except Ended:
            pass
        exported = [[name, *map(self.resolved, held.elements)] for name, held in self.variables.items()
                    if not (held.elements or held.is_array) or (held.is_exported and len(held.elements) == 1)]
        return {"commands": self.commands or self.assigned_flags(), "directives": directives, "exported": exported}

    def directives(self):
        """The words of `#SBATCH` lines."""
        found = []
        for comment in sorted((node for node in nodes_of(self.tree) if "Hash" in node), key=lambda node: node["Pos"]):
            begin, before = comment["Pos"], self.slice(max(comment["Pos"] - 1, 0), comment["Pos"])
            if before not in "\n \t\r;&|(<>":
                raise Malformed(begin, "this is not a comment")
            if before in "\n" and self.string(comment).startswith("#SBATCH"):
                found += [[*place_of(comment), word] for word in self.string(comment)[7:].partition(" #")[0].split()]
        return found

    def assigned_flags(self):
        """The flags in the variables of a text that only assigns, each variable in the form of a command."""
        found = []
        for held in self.variables.values():
            is_plain = not held.is_array and is_known(joined(held.elements))
            fields = [(word, place) for text, place in held.elements for word in (text.split() if is_plain else [text])]
            if fields and fields[0][0].startswith("--"):
                found.append([*(fields[0][1] or (None, None)), [self.resolved(field) for field in fields], []])
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
        if "Background" in statement or (node["Type"] in LEAVES and any(map(self.computed_in, nodes_of(node)))):
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
        self.declare(node)

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
            self.variables.update({word: Variable() for word in fields[1:]})
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
        """Evaluates an expression of `[[`."""
        op, left = self.operator(node) if "OpPos" in node else "", node["X"]
        if op in ("&&", "||"):
            status = self.run_TestClause({"X": left})
            return self.run_TestClause({"X": node["Y"]}) if status == (op == "&&") else status
        if "X" in left:
            status = self.run_TestClause(left)
            # shfmt applies `!` to all tests that follow, and bash to the next one.
            return status if not op else None if op != "!" or status is None or left["Type"] == "BinaryTest" else not status
        if "Y" not in node:
            return self.tested([op, self.value_of(left)] if op else [self.value_of(left)])
        if op not in ("=", "==", "!="):
            return self.tested([self.value_of(left), op, self.value_of(node["Y"])])
        status = self.matches(node["Y"], self.value_of(left))
        return None if status is None else status == (op != "!=")

    def tested(self, words):
        """The result of `[` or `test`; None if unknown."""
        if not is_known("".join(words)) or len(words) not in (1, 2, 3):
            return None
        if len(words) == 1:
            return words != [""]
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
        nodes, todo, called = [], list(trees), set()
        while todo:
            found = [node for node in nodes_of(todo.pop()) if "Pos" in node]
            self.add_functions(found)
            names = {name for node in found for name in self.called(node)} - called
            called |= names
            nodes += found
            todo += [body for name in names for body in self.functions[name]]
        nodes.sort(key=lambda node: node["Pos"])
        self.is_in_function = bool(called)
        for node in nodes:
            for name, script, keeps_head in self.changes(node):
                self.doubt(name, self.flags_of(script, name if keeps_head else ""), keeps_head)
        for node in nodes:
            self.launch(node)
        self.is_in_function = False

    def add_functions(self, nodes):
        for node in nodes:
            if node.get("Type") == "FuncDecl":
                self.functions.setdefault(node["Name"]["Value"], []).append(node["Body"])

    def called(self, node):
        """The function that a command calls; if its name is unknown, all functions."""
        if node.get("Type") != "CallExpr" or not node.get("Args") or not self.functions:
            return ()
        name = "".join(self.value_of(node["Args"][0]).split()[:1])
        return [name] if name in self.functions else [] if is_known(name) else list(self.functions)

    def computed_in(self, node):
        """The variables that an operator of arithmetic sets."""
        sets = node.get("Type") in ("UnaryArithm", "BinaryArithm") and ASSIGNS.match(self.source, node["OpPos"])
        return NAME.findall(self.string(node["X"])) if sets else []

    def changes(self, node):
        """The variables that a statement may set: name, text that it may get, and whether the text is only appended."""
        kind, script = node.get("Type"), self.string(node)
        for name in NAME.findall(script[3:]) if kind == "LetClause" else self.computed_in(node):
            yield name, "", False
        if kind == "ForClause" and "Name" in node["Loop"]:
            yield node["Loop"]["Name"]["Value"], self.string(node["Loop"]), False
        held = self.variables.get(node["Param"]["Value"], Variable()) if kind == "ParamExp" else None
        if held and re.match(r"\$\{\w+:?=", script, re.A) and not MARK.sub("", joined(held.elements)):
            yield node["Param"]["Value"], script, False
        if kind == "DeclClause":
            self.declare(node)
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
            return list(self.variables)
        is_setting = name in ("read", "mapfile", "readarray", "getopts") or (name, first) == ("printf", "-v") or (name == "unset" and first != "-f")
        return [match[0] for match in map(NAME.match, words[1:]) if match] if is_setting else []

    def declare(self, node):
        """The effects of `declare`, `export` and the like, except the assignments."""
        names = [one["Name"]["Value"] for one in node.get("Args", ()) if "Name" in one]
        options = "".join(self.string(one) for one in node.get("Args", ()) if "Name" not in one)
        if re.search(r"[^-+xragf]", options):  # such as `-i` and `-A`
            self.foreign.update(names)
        if "n" in options:  # a reference: an assignment to it sets another variable
            self.foreign.update(NAME.findall(self.slice(0, None)))
            for name in list(self.variables):
                self.doubt(name)
        for name in names if node["Variant"]["Value"] == "export" or "x" in options else ():
            if name in self.variables:
                self.variables[name].is_exported = True

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
