"""Finds the commands of a shell script from its text, without starting programs of the script or reading other files.

    shell_reader.py SETTING RESULTS FILE

SETTING is a JSON file with `variables` of the shell that would run the script, the path of the program `shfmt`, which
parses the script, `files` that it may source, by path, and, if known, the script's `arguments`. The file `commands` in the folder RESULTS receives the result:
an object, or [begin, end, error] if the script is malformed.

Assignments that certainly run are executed, also those in functions, subshells and sourced files. All other statements,
such as conditions and loops, are only searched: what they may set is unknown from there on, and their launches are listed. The text that a command gives to
another shell with `-c` is read as a script of its own, in which exported variables are set. Also unknown are the output of
programs, variables that the script never sets, variables that builtins such as `read`, or arithmetic, set anywhere, and
all expansions except `$NAME`, `${NAME}`, `${NAME[@]}`, `${NAME:-text}`, `${NAME-text}` and `$((...))`.

In the result, a command is [begin, end, words, variables: those exported, without a value if they are unset, if it may be a
launch, and those before it]. A word is [begin, end, text] with its place in bytes. An unknown word has a fourth element: [its text in the script, [begin, end] of the statement that sets it or null,
flags that it may contain]. While the script is read, one character, a mark, represents each unknown part of a text. Marks
remain valid when texts are joined or split.
"""

import collections
import copy
import itertools
import json
import pathlib
import re
import resource
import subprocess
import sys

BRACKETS = re.compile(rb"(?<![\w$\[])\[(?=[^\s\[\]=]*\](?!\+?=))")  # in arrays, shfmt refuses words such as `[0]*3+[1]*2`
PLACEHOLDER = re.compile(rb"(=|--[\w-]+ +)(<[A-Za-z][^<>\n|&;$`\"'\\]*[^<>\s]>)(?!\S)")  # `<path>` that the user replaces
TREE_MAX, MEMORY_MAX, SECONDS_MAX, DEPTH_MAX, TEXT_MAX, SHOWN_MAX, VARIABLES_MAX = 64 << 20, 2 << 30, 50, 5000, 1 << 20, 200, 2_000_000
# Variables that exist although no script sets them.
ENVIRONMENT = re.compile(r"HOME|USER|LOGNAME|PWD|OLDPWD|HOSTNAME|SHELL|PATH|UID|EUID|PPID|S?RANDOM|SECONDS|LINENO|IFS|OSTYPE|REPLY|OPTARG|"
                         r"HOSTTYPE|MACHTYPE|SHLVL|EPOCHSECONDS|OPTIND|FUNCNAME|PIPESTATUS|GROUPS|DIRSTACK|_|BASH.*")
NAME, ARGUMENT, INTEGER = re.compile(r"[A-Za-z_]\w*", re.A), re.compile(r"[1-9][0-9]*|[@*#]"), re.compile(r"-?(0|[1-9][0-9]{0,17})")
OPERAND = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)|(?<!\w)([A-Za-z_]\w*)", re.A)  # a variable in arithmetic
SHELL, IN_TEXT = re.compile(r"(.*/)?(ba|da|z)?sh"), re.compile(r"-[a-z]*c")  # a shell, and its option before a script in one word
JOBS = ("sbatch", "qsub", "bsub", "pjsub")  # programs that start a script as a job
# Programs whose other words are a script, for a shell without this one's variables, and options of theirs that have no value.
REMOTE = {"ssh": "-[46AaCfGgKkMNnqsTtVvXxYy]+", "rsh": "-[dnx]+", "pdsh": "-[SbdhLNqV]+", "clush": "-[abBNLqdvSpr]+", "bsub": "-([BHIKNrx]|I[sp]+|ar|rn)"}
VARIABLES = ("--export", "--env", "-env", "-v")  # options of jobs
DIRECTIVES = {"#SBATCH": "sbatch", "#PBS": "qsub", "#BSUB": "bsub", "#FLUX:": "flux", "#$": "qsub", "#PJM": "pjsub"}  # and the program that reads it
SAYS = re.compile(r"echo|printf|cat|tee|grep|e?sed|awk|logger|wall|mail|git|read|die|usage|(.*_)?(log|info|warn|error|print|fail)(_.*)?", re.I)
QUOTED, QUOTES = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+"""), re.compile(r"""(["'])(.*?)\1""")  # a word of a directive
TRAINS = re.compile(r"\s.*\.py\s.*--\w", re.S)  # a text in a word that may start a training
FLAG = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*", re.A)
# Texts that a shell would expand further, and lists of numbers or flags, which it would not.
PATTERN, LIST, BRACES, TILDE = (re.compile(text) for text in (r"[*?\[]", r"--.*|[0-9\[(][0-9\[\]*+()., ]*", r"\{[^}]*(,|\.\.)[^}]*\}", "(^|[:=])~"))
MARK_BEGIN, MARKS_MAX, MARK = 0xF0000, 120_000, re.compile("[\U000f0000-\U0010ffff]")
# Escapes of `$'...'`, and others, which only a shell reads.
ESCAPED = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
UNESCAPE, ESCAPE = re.compile(r"""\\([nt\\'"])"""), re.compile(r"""(?<!\\)(\\\\)*\\[^nt\\'"]""")
ASSIGNS, LINE = re.compile(rb"\+\+|--|(<<|>>|[-+*/%&|^])?=(?!=)"), re.compile(rb"[^\n]*")  # operators of arithmetic; a line
BY_NAME = re.compile(r"(printf\s+-v\s+\S*|(let|(read|mapfile|readarray)(\s+-[arseEt]+)*(\s+\w+)*|getopts\s+\S+)\s+[\"']?)\$")  # of a variable with an unknown name
SETTERS = re.compile(r"(read|mapfile|readarray|getopts|printf\s+-v)\s")  # builtins that set variables
MOVERS = re.compile(r"shift\b|set\s+([^-+\s]|(.*\s)?--(\s|$))", re.S)  # builtins that set the arguments
# What a subshell changes for itself alone; how deep functions are followed, and how many calls.
STATE, FRAMES_MAX, CALLS_MAX = ("values", "arrays", "exported", "functions", "exports_all", "all_cause", "moved", "moved_text"), 16, 500
BUILTINS = ("read", "mapfile", "readarray", "getopts", "printf", "unset", "source", ".", "shift", "set", "exit", "return", "test", "[")


class Malformed(Exception):
    """Raised with a place in the script and the error there."""


def is_known(text):
    return not MARK.search(text)


def joined(values, between=""):
    return "".join(text + between for text, _ in values or ())


def nodes_of(tree):
    """The nodes of a part of shfmt's syntax tree, in the order of the script; without those inside `$(...)`, which sets no variables."""
    todo, found = [tree], []
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            found += [node] if "Pos" in node else []
            todo += node.values() if node.get("Type") not in ("CmdSubst", "ProcSubst") else ()
        elif isinstance(node, list):
            todo += node
    return sorted(found, key=lambda node: node["Pos"])


def with_document(node):
    """A node of the tree: a place alone, or a statement that gives its here-document to its command."""
    node.get("Cmd", {}).update({"Document": one for one in node.get("Redirs", ()) if "Hdoc" in one})
    return node.get("Offset", node)


def parse(source, shfmt):
    """The syntax tree of shfmt, with places in bytes."""
    source = PLACEHOLDER.sub(lambda one: one[1] + b"%" * len(one[2]), re.sub(BRACKETS, b"%", source))
    try:
        done = subprocess.run([shfmt, "--to-json", "-ln", "bash"], input=source, capture_output=True, timeout=SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise Malformed(None, "parsing it takes too long") from None
    if error := re.match(rb"[^\n]*?(\d+):(\d+): (.*)", done.stderr):
        lines = source.split(b"\n")[:int(error[1]) - 1]
        raise Malformed(sum(len(line) + 1 for line in lines) + int(error[2]) - 1, error[3].decode(errors="replace"))
    if done.returncode != 0:  # its memory is limited, or its version has no such option
        raise Malformed(None, "shfmt: " + done.stderr.partition(b"\n")[0].decode(errors="replace"))
    if len(done.stdout) > TREE_MAX:
        raise Malformed(None, "its syntax tree is too large")
    tree = json.loads(done.stdout, object_hook=with_document)
    # A comment ends with its line; shfmt 3.6 continues a command behind a comment whose line ends with a backslash.
    ends = {node["End"] - 2 for node in nodes_of(tree) if "Hash" in node and source[node["End"] - 2:node["End"]] == b"\\\n"}
    return parse(bytes(35 if at in ends else byte for at, byte in enumerate(source)), shfmt) if ends else tree


class Reader:
    """Walks the statements of a syntax tree in the order of the script."""

    def __init__(self, source, setting, outer=None, unknown=None, starter=()):
        self.source, self.setting, self.tree = source, setting, parse(source, setting.get("shfmt", "shfmt"))
        self.commands, self.functions, self.exports_all, self.lacking = [], collections.defaultdict(list), False, []
        self.outer, self.unknown = outer, [] if unknown is None else unknown  # the place in a script, for a text in it
        # Places: the statement, and what may set all variables, or the arguments, of which `moved_text` has the flags.
        self.cause = self.all_cause = self.moved = None
        self.moved_text = ""
        # The texts and places of a variable's elements; a variable that is not an array has one, and after `unset` none.
        self.values = {name: [(text, None)] for name, text in setting["variables"].items()}
        self.arrays, self.exported, self.foreign = {"@", "*"}, set(), {}
        self.sourced, self.frames, self.calls = [], [], 0  # places of sourced texts; functions that run, with their own variables
        if "arguments" in setting:
            self.set_arguments([(text, None) for text in setting["arguments"]])
        self.take_variables([*((word, place) for *place, word in self.directives()), *(starter if starter and starter[0][0] in JOBS else ())])
        self.find_foreign(self.tree)

    def find_foreign(self, tree):
        for statement in tree.get("Stmts", ()):
            self.cause = self.line_of(statement)
            for node in nodes_of(statement):
                for name in self.foreign_in(node, node.get("Type")):
                    self.foreign[name] = self.cause
                    self.doubt(name)

    def take_variables(self, words):
        """Sets the variables that options of a job give to its script."""
        for at, (word, place) in enumerate(words):
            name, _, value = word.partition("=")
            if name in VARIABLES:
                for part in (value or "".join(text for text, _ in words[at + 1:at + 2])).split(","):
                    variable, is_set, text = part.strip().partition("=")
                    if is_set and NAME.fullmatch(variable):
                        self.values[variable] = [(text, place)]
                        self.exported.add(variable)

    def foreign_in(self, node, kind):
        """Variables that only a shell can evaluate, since more than assignments set them."""
        script, (words, names) = self.command_in(node), self.declared(node)
        options = "".join(word[1:] for word in words if word[0] in "-+")
        if "n" in options and not self.string(node).startswith("export"):
            raise Malformed(node["Pos"], "it has references to variables")
        if re.search("[^xragf]", options):
            return names
        if kind in ("UnaryArithm", "BinaryArithm") and ASSIGNS.match(self.source, node["OpPos"]):
            return NAME.findall(self.string(node["X"]))
        if kind == "ParamExp" and re.match(r"\$\{\w+:?=", self.string(node), re.A):
            return [node["Param"]["Value"]]
        return NAME.findall(self.string(node) if kind == "LetClause" else script if SETTERS.match(script) else "")

    def place_of(self, node):
        """The place in the script; of a node in a sourced text, the statement that sources it."""
        return next((place for begin, place in reversed(self.sourced) if node["Pos"] >= begin), (node["Pos"], node["End"]))

    def line_of(self, statement):
        line = LINE.match(self.source, statement["Pos"]).span()
        return self.outer or self.place_of({"Pos": line[0], "End": line[1]})

    def command_in(self, node):
        """The text of a command, without assignments in front of it. Empty for nodes of other kinds."""
        text = self.string({**node, "Pos": node["Args"][0]["Pos"]}) if node.get("Type") == "CallExpr" and node.get("Args") else ""
        return re.sub(r"^((command|builtin)\s+)+", "", text)

    def string(self, node):
        return self.source[node["Pos"]:node["End"]].decode(errors="surrogateescape")

    # --- unknown values

    def mark(self, shown, text="", cause=None):
        """A mark for a value that may contain the flags in `text`, and that is unknown for the reasons of the marks there."""
        why = self.reasons(text)
        flags = set(FLAG.findall(text)).union(*(flags for _, _, flags in why))
        if len(self.unknown) >= MARKS_MAX:
            raise MemoryError
        self.unknown.append((shown[:SHOWN_MAX], cause or next((one for _, one, _ in why if one), None), flags))
        return chr(MARK_BEGIN + len(self.unknown) - 1)

    def reasons(self, text):
        return [self.unknown[ord(mark) - MARK_BEGIN] for mark in MARK.findall(text)]

    def shown(self, text):
        return MARK.sub(lambda mark: self.unknown[ord(mark[0]) - MARK_BEGIN][0], text)

    def used_in(self, script):
        """A part of the script, and the values of the variables that it uses."""
        used = [name for name in re.findall(r"\$\{*(\w+|[@*])", script, re.A) if name in self.values]
        return " ".join([script, self.moved_text, *(joined(self.values[name], " ") for name in used)])

    def doubt(self, name, script="", keeps_head=False):
        """Marks a variable as unknown, to which `script` may be assigned; with `keeps_head`, only appended as further words."""
        held, cause = self.values.get(name, []), self.foreign.get(name, self.cause)
        unknown = self.mark("$" + name, self.used_in(script) + ("" if keeps_head else " " + joined(held, " ")), cause)
        if not keeps_head or not held:
            self.values[name] = [(unknown, cause)]
        else:
            self.values[name] = [*held, (unknown, cause)] if name in self.arrays else [(held[0][0] + " " + unknown, held[0][1])]

    # --- variables

    def assign(self, node):
        """Executes an assignment."""
        name, is_array, elements = node["Name"]["Value"], "Array" in node, node.get("Array", {}).get("Elems", [])
        # One element is set: by an index, or of an array without one.
        is_part = any("Index" in one for one in (node, *elements)) or (name in self.arrays and not is_array)
        if is_part or name in self.foreign:
            return self.doubt(name, self.string(node))
        held = self.look(name, "$" + name) or [] if "Append" in node else []
        if is_array:
            values = held + self.fields_of([element["Value"] for element in elements if "Value" in element])
            self.arrays.add(name)
        else:
            values = [(joined(held) + self.value_of(node.get("Value", {})), self.place_of(node))]
        if len(joined(values)) + len(values) > TEXT_MAX:
            raise MemoryError
        self.values[name] = values
        self.exported.update([name] if self.exports_all else [])

    def set_arguments(self, given):
        """Sets the arguments of the script, or of a function; only those before unknown ones have numbers."""
        for name in list(filter(ARGUMENT.fullmatch, self.values)):
            del self.values[name]
        known = itertools.takewhile(lambda value: is_known(value[0]), given)
        self.values.update({str(at): [value] for at, value in enumerate(known, 1)}, **{"@": given, "*": given, "#": [(str(len(given)), None)]})

    def look(self, name, shown):
        """The elements of a variable or an argument where it is used; None if the script never sets it."""
        held = self.values.get(name)
        if not NAME.match(name):
            given = self.values.get("@")
            # An unknown argument may be any number of words.
            is_open = given and (held is None or name == "#") and not is_known(joined(given))
            if self.moved or is_open or not ARGUMENT.fullmatch(name):
                return [(self.mark(shown, self.moved_text or joined(given), self.moved), None)]
            return [] if held is None and given is not None else held
        is_set_before = ENVIRONMENT.fullmatch(name) or (name.startswith("SLURM_") and b"\n#SBATCH" in self.source)
        return [(self.mark(shown, cause=self.all_cause), None)] if held is None and (self.all_cause or is_set_before) else held

    def arithmetic(self, whole):
        """The value of arithmetic with + - * / % and brackets; unknown for more, or if it may not fit 64 bits."""
        text = OPERAND.sub(self.operand, whole[3:-2])
        is_plain = re.fullmatch(r"[-0-9+*/%() ]*", text) and not re.search(r"\* *\*|/ */|\+\+|--|(?<!\d)0\d|-.*[/%]|[/%].*-", text)
        if is_plain and len(re.sub(r"[/%] *\d+|\D", "", text)) <= 18:  # the digits of a product, or a sum
            try:
                return str(int(eval(text.replace("/", "//") or "0", {"__builtins__": {}})))
            except (ArithmeticError, SyntaxError, TypeError, RecursionError, MemoryError):
                pass
        return self.mark(whole, "".join(joined(self.look(name, name)) for name in NAME.findall(whole)))

    def operand(self, name):
        """The value of a variable in arithmetic. Only a shell evaluates nested expressions."""
        words = self.look(name[1] or name[2] or name[3], "")
        text = words[0][0].strip(" \t\n") if words else "" if words == [] else "?"
        return f"({text})" if INTEGER.fullmatch(text) else "?" if text or not name[3] else "0"

    # --- words

    def fields_of(self, words):
        """The texts and places after expansion. A word may become any number of fields."""
        found = []
        for word in words:
            text, place, is_field = "", None, False
            for piece, is_quoted, of_piece in [*self.pieces(word), (None, True, None)]:
                # Unquoted blanks of a value, or of `${NAME:-a b}`, begin a new field.
                for part in [piece] if is_quoted else re.findall(r"[ \t\n]+|[^ \t\n]+", piece):
                    if part is None or (not is_quoted and part[0] in " \t\n"):
                        found += [(text, place or self.place_of(word))] if text or is_field else []
                        text, place, is_field = "", None, False
                    else:
                        text, place, is_field = text + part, of_piece or place, is_field or is_quoted
        return found

    def value_of(self, word):
        """The expanded text of a word that is not split into fields."""
        return "".join(" " if text is None else text for text, _, _ in self.pieces(word))

    def pieces(self, word, quoted=False):
        """The pieces of a word after expansion: text, or None before a new field; whether it is quoted; the place of an element."""
        bare = "".join(self.string(part) for part in word.get("Parts", ()) if part["Type"] == "Lit" and not quoted)
        if "<" in bare or TILDE.search(bare) or BRACES.search(bare) or self.is_pattern(bare):
            yield self.mark(self.string(word), self.used_in(self.string(word))), True, None
            return
        for part in word.get("Parts", ()):
            kind, whole = part["Type"], self.string(part)
            if kind == "Lit":
                # In the tree, a text ends with the backslash of a continued line.
                for escaped, plain in re.findall(r'\\(\n|[$`\\"])|([^\\]+|\\(?!$))' if quoted else r"\\(\r?\n|.)|([^\\]+)", whole, re.S):
                    if plain or not escaped.endswith("\n"):
                        yield plain or escaped, quoted or not plain, None
            elif kind == "DblQuoted":
                # Quotes create a word even if it is empty, except `"${NAME[@]}"` with an empty array.
                if whole != '"$@"' and not (whole.startswith('"${') and whole.endswith('[@]}"') and "$" not in whole[3:]):
                    yield "", True, None
                yield from self.pieces(part, True)
            elif kind == "SglQuoted" and not ("Dollar" in part and ESCAPE.search(whole)):
                yield UNESCAPE.sub(lambda one: ESCAPED[one[1]], whole[2:-1]) if "Dollar" in part else whole[1:-1], True, None
            elif kind == "ParamExp":
                yield from self.parameter(part, whole, quoted)
            else:
                text = self.arithmetic(whole) if kind == "ArithmExp" and whole.startswith("$((") else self.mark(whole)
                yield text, quoted or kind == "SglQuoted", None

    @staticmethod
    def is_pattern(text):
        """Whether a shell would look for files; not for lists of numbers, and flags."""
        return any(PATTERN.search(part) and not LIST.fullmatch(part) for part in text.split())

    def parameter(self, part, whole, quoted):
        """The pieces of `$NAME`, `${NAME}`, `${NAME[@]}`, `${NAME[*]}`, `${NAME-word}` and `${NAME:-word}`."""
        name, word = part["Param"]["Value"], part.get("Exp", {}).get("Word", {})
        words = self.look(name, whole)
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
            yield self.mark(whole, every), quoted, None
            return
        if "IFS" in self.values and quoted and len(words) > 1 and "*" in (name, whole[-3:-2]):  # between them is its first character
            words = [(self.mark(whole, every), None)]
        for at, (text, place) in enumerate(words):
            if at > 0:
                yield (None, True, None) if quoted and "@" in (name, whole[-3:-2]) else (" ", quoted, None)
            is_open = not quoted and (("IFS" in self.values and text) or self.is_pattern(text))
            yield self.mark(self.shown(text), text) if is_open else text, quoted, place if is_list else None

    # --- the result

    def read(self):
        self.run_all(self.tree.get("Stmts", ()))
        return {"commands": self.commands or self.assigned_flags(), "directives": self.directives(), "exported": self.exports(),
                "lacking": self.lacking}

    def exports(self):
        return [[name, *map(self.resolved, held)] for name, held in self.values.items()
                if name not in self.arrays and (not held or name in self.exported)]

    def directives(self):
        """The words of `#SBATCH` lines and the like, each line after the program that reads it."""
        found, end = [], next((one["Pos"] for one in self.tree.get("Stmts", ())), len(self.source))
        for comment in (node for node in nodes_of(self.tree) if "Hash" in node):
            before = self.source[max(comment["Pos"] - 1, 0):comment["Pos"]]
            if before not in b"\n \t\r;&|(<>":  # shfmt 3.6 reads `$A#b` as a comment
                raise Malformed(comment["Pos"], "this is not a comment")
            mark, *words = QUOTED.findall(re.sub("^# *flux:", "#FLUX: ", self.string(comment), flags=re.I))
            is_late = comment["Pos"] > end and mark in ("#SBATCH", "#PBS")  # Slurm and PBS stop at the first command
            if before in b"\n" and mark in DIRECTIVES and not is_late:
                words = itertools.takewhile(lambda word: word[0] != "#", words)
                found += [[*self.place_of(comment), word] for word in [DIRECTIVES[mark], *(QUOTES.sub(r"\2", word) for word in words)]]
        return found

    def assigned_flags(self):
        """The flags in the variables of a text that only assigns, each variable in the form of a command."""
        found = []
        for name, held in self.values.items():
            is_plain = name not in self.arrays and is_known(joined(held))
            fields = [(word, place) for text, place in held for word in (text.split() if is_plain else [text])]
            if fields and fields[0][0].startswith("--"):
                found.append([*(fields[0][1] or (None, None)), list(map(self.resolved, fields)), [], None])
        return found

    def resolved(self, value):
        text, place = value
        word = [*(place or (None, None)), self.shown(text)]
        if why := self.reasons(text):
            shown, cause, _ = next((one for one in why if one[1]), why[-1])
            word.append([shown, cause, sorted(set().union(*(flags for _, _, flags in why)))])
        return word

    # --- statements

    def run_all(self, statements):
        return next(filter(None, map(self.run, statements)), None)

    def run_apart(self, statement):
        """Executes a statement in a subshell."""
        kept = [copy.copy(getattr(self, name)) for name in STATE]
        self.run({name: part for name, part in statement.items() if name != "Background"})
        for name, part in zip(STATE, kept):
            setattr(self, name, part)

    def run(self, statement):
        """Executes a statement that certainly runs. Returns the word that ends the script or a function there, or None."""
        node = statement.get("Cmd", {**statement, "Type": "CallExpr"})
        kind, self.cause = node["Type"], self.line_of(statement)
        between, called = self.between(node), self.called(node)
        if kind == "Subshell" or ("Background" in statement and (kind == "Block" or called)):
            return self.run_apart({**statement, "Cmd": {**node, "Type": "Block" if kind == "Subshell" else kind}})
        if between in ("|", "|&"):
            return self.run_apart(node["X"]) or self.run_apart(node["Y"])
        if between in ("&&", "||") and "Background" not in statement:
            return self.run(node["X"]) or (self.run if between == "&&" and self.succeeds(node["X"]) else self.search)(node["Y"])
        if kind == "Block":
            return self.run_all(node["Stmts"])
        is_short = len(self.frames) < FRAMES_MAX and self.calls < CALLS_MAX and not called & {name for name, _ in self.frames}
        if is_short and len([body for name in called for body in self.functions[name]]) == 1 and not node.get("Assigns"):
            return self.call(*called, self.fields_of(node["Args"])[1:])
        if "Background" in statement or kind not in ("CallExpr", "DeclClause", "FuncDecl") or called:
            self.search(node)
        elif node["Type"] == "FuncDecl":
            self.functions[node["Name"]["Value"]] = [node["Body"]]
        elif node["Type"] == "DeclClause" or not node.get("Args"):
            is_local = self.frames and node.get("Variant", {}).get("Value") in ("local", "declare", "typeset")
            for one in node.get("Args", node.get("Assigns", ())):
                if is_local and "Name" in one:
                    name = one["Name"]["Value"]
                    self.frames[-1][1].setdefault(name, (self.values.pop(name, None), name in self.arrays))
                if "Naked" not in one:
                    self.assign(one)
            self.change(node)
        else:
            words = self.launch(node)
            if words[:1] in (["source"], ["."]):
                return self.source_file(words, node)
            if words[:1] == ["shift"] or words[:2] == ["set", "--"]:
                self.move(self.fields_of(node["Args"])[1:])
            elif words[:1] == ["unset"] and all(map(NAME.fullmatch, words[1:])):
                self.values.update({word: [] for word in words[1:]})
                self.arrays.difference_update(words[1:])
            elif words[:2] == ["unset", "-f"]:
                self.functions = collections.defaultdict(list, {name: held for name, held in self.functions.items() if name not in words})
            else:
                self.change(node)
            if words[:1] == ["set"] and {"-a", "+a", "allexport"} & {*words}:
                self.exports_all = not {"+a", "+o"} & {*words}
            return words[0] if words[:1] in (["exit"], ["return"]) or words[:1] == ["exec"] != words else None
        return None

    def call(self, name, given):
        """Executes a function, which has its own arguments and local variables."""
        kept, moved = {one: held for one, held in self.values.items() if ARGUMENT.fullmatch(one)}, (self.moved, self.moved_text)
        self.frames.append((name, {}))
        self.calls, self.moved, self.moved_text = self.calls + 1, None, self.used_in(joined(given, " "))
        self.set_arguments(given)
        end = self.run(self.functions[name][0])
        self.moved, self.moved_text = moved
        for one, (held, is_array) in self.frames.pop()[1].items():
            kept[one] = held
            (self.arrays.add if is_array else self.arrays.discard)(one)
        inner = {one: held for one, held in self.values.items() if not ARGUMENT.fullmatch(one)}
        self.values = {one: held for one, held in {**inner, **kept}.items() if held is not None}
        return None if end == "return" else end

    def move(self, words):
        """Executes `shift` and `set --`."""
        given = self.values.get("@", [])
        count = "".join(text for text, _ in words[:1]) or "1"
        if words and words[0][0] == "--":
            self.moved = None
            self.set_arguments(words[1:])
        elif not self.moved and count.isdecimal() and len(count) < 6 and int(count) <= len(given) and is_known(joined(given[:int(count)])):
            self.set_arguments(given[int(count):])
        else:
            self.moved = self.cause

    def source_file(self, words, node):
        """Executes a file that was given: the one of the path, or else of the name. Its text gets places behind those of the script."""
        files, begin, place = self.setting.get("files", {}), len(self.source), self.place_of(node)
        path = words[1].removeprefix("./") if len(words) == 2 else ""
        folder, _, base = path.rpartition("/")
        is_other = folder[:1] not in ("", "/") and any(name.endswith("/" + base) for name in files)  # of another folder
        text = files.get(path, None if is_other else files.get(base))
        if text is None or self.calls >= CALLS_MAX:
            return self.change(node)
        self.source += text.encode(errors="surrogateescape")
        self.sourced.append((begin, place))
        self.calls += 1
        try:
            tree = parse(b"\n" * begin + self.source[begin:], self.setting.get("shfmt", "shfmt"))
        except Malformed as error:
            raise Malformed(place[0], f"in a file that it sources, {error.args[1]}") from None
        self.find_foreign(tree)
        end = self.run_all(tree.get("Stmts", ()))
        return None if end == "return" else end

    def between(self, node):
        return self.string({"Pos": node["X"]["End"], "End": node["Y"]["Pos"]}).strip() if node["Type"] == "BinaryCmd" else ""

    def succeeds(self, statement):
        """Whether a statement succeeds, as assignments do, and changes of the folder should."""
        node = statement.get("Cmd", {"Type": ""})
        is_plain = node["Type"] == "CallExpr" and re.match(r"(cd|mkdir|module|ulimit|echo|true|set|umask|pip3?)\b|$", self.command_in(node))
        is_chain = self.between(node) == "&&" and self.succeeds(node["X"]) and self.succeeds(node["Y"])
        return "Negated" not in statement and bool(is_plain or is_chain or node["Type"] == "DeclClause")

    def search(self, tree):
        """Marks the variables that a statement may set as unknown, and lists its launches. Includes the functions that it calls."""
        nodes, calls, called, prefixes = nodes_of(tree), [], set(), set()
        for node in nodes:  # the list grows
            if node.get("Type") == "FuncDecl":
                self.functions[node["Name"]["Value"]].append(node["Body"])
            names = self.called(node)
            calls += [self.string(node)] if names else []
            prefixes.update(map(id, node.get("Assigns", ()) if node.get("Args") and not names else ()))
            nodes += [inner for name in names - called for body in self.functions[name] for inner in nodes_of(body)]
            called |= names
        moved = self.moved, self.moved_text
        if called:  # a function has its own arguments
            self.moved, self.moved_text = self.cause, self.used_in(" ".join(calls))
        nodes.sort(key=lambda node: node["Pos"])
        for node in nodes:
            if id(node) not in prefixes:  # a variable of a command alone
                self.change(node)
        for node in nodes:
            self.launch(node)
        if called:
            self.moved, self.moved_text = moved

    def called(self, node):
        """The function that a command calls; if its name is unknown, all functions."""
        if node.get("Type") != "CallExpr" or not node.get("Args"):
            return set()
        name = "".join(self.value_of(node["Args"][0]).split()[:1])
        return {name} & self.functions.keys() if is_known(name) else set(self.functions)

    def change(self, node):
        """Marks as unknown what a node, without its parts, may set."""
        script, command = self.string(node), self.command_in(node)
        if MOVERS.match(command):
            self.moved = self.moved or self.cause
        if name := node.get("Name", {}).get("Value"):
            own = rf"\(?\s*\"?\$({name}(?!\w)|\{{{name}(\[[@*]\])?\}})\"?[\s)]"  # the value before, as a whole word
            appends = re.match(rf"{name}(\+=(\(|[\"']?\s)|={own})", script, re.A)
            keeps_head = appends and name not in self.foreign and (name in self.arrays) == ("Array" in node)
            self.doubt(name, script[appends.end():] if keeps_head else script, keeps_head)
        doubted = NAME.findall(command) if command.startswith("unset") else []
        words, names = self.declared(node)
        if names and re.match(r"export\s|\w+\s+-\w*x", script):
            self.exported.update(names)
        if re.match(r"(source|\.|eval)\s", command) or BY_NAME.match(command or script) or any(word[0] not in "-+" for word in words):  # as in `export $(cat file)`
            self.all_cause = self.moved = self.cause
            doubted = list(self.values)
            self.lacking += [self.resolved(field) for field in self.fields_of(node["Args"])[1:2]] if re.match(r"(source|\.)\s", command) else []
        for name in doubted:
            self.doubt(name)

    def declared(self, node):
        """The words of `declare`, `export` and others that are no assignments, and the variables."""
        args = node.get("Args", ()) if node.get("Type") == "DeclClause" else ()
        return [self.string(one) for one in args if "Name" not in one], [one["Name"]["Value"] for one in args if "Name" in one]

    def launch(self, node):
        """Lists the command that a node runs. Returns its words."""
        if node.get("Type") != "CallExpr" or not node.get("Args"):
            return []
        fields = self.fields_of(node["Args"])
        words = [text for text, _ in fields]
        name = words[0] if words else ""
        if name == "eval":
            is_plain = not re.search(r"['\"\\$`;&|<>(){}*?\[~#!]", "".join(words))
            fields = [(word, place) for text, place in fields for word in text.split()] if is_plain else []
        fields = fields[1:] if name in ("exec", "eval") else fields
        fields += [(self.mark("the input of xargs", cause=self.cause), None)] if name.endswith("xargs") else []
        if self.launch_inner(node, fields):
            return words
        if fields and name not in self.functions and name not in BUILTINS and not SAYS.fullmatch(name):
            may_launch = any("--" in word or "=" in word for word in words)
            self.commands.append([*self.place_of(node), [self.resolved(field) for field in fields], self.environment_of(node, may_launch)])
        return words

    def environment_of(self, node, has_exports=True):
        """The variables of a command: those that are exported, and the assignments before it."""
        if len(self.commands) * len(self.values) > VARIABLES_MAX:
            raise MemoryError
        return (self.exports() if has_exports else []) + [[one["Name"]["Value"], self.resolved((self.value_of(one.get("Value", {})), self.place_of(one.get("Value", one))))]
                for one in node.get("Assigns", ())]

    def inner_text(self, node, words):
        """The text that another shell, or sbatch, reads as a script, the number of words before that shell, and the arguments."""
        for at in range(len(words) - 2):
            if SHELL.fullmatch(words[at]) and IN_TEXT.fullmatch(words[at + 1]):
                return words[at + 2], at, words[at + 4:]
        name = words[0].rpartition("/")[2] if words else ""
        for at, word in enumerate(words if name in JOBS else ()):
            if re.match("--wrap(=|$)", word) and words[at:] != ["--wrap"]:
                return word.partition("=")[2] or words[at + 1], at, []
        at, shells = 1, [at for at, word in enumerate(words) if SHELL.fullmatch(*word.split()[:1] or [""])]
        while name in REMOTE and at < len(words) and words[at].startswith("-"):
            at += 1 if re.fullmatch(REMOTE[name], words[at]) or "=" in words[at] else 2
        at += name in ("ssh", "rsh")  # behind the host
        if "Document" in node and (name in JOBS or shells or at >= len(words) and name in REMOTE):
            document, is_plain = node["Document"]["Hdoc"], all(part["Type"] == "Lit" for part in node["Document"]["Word"]["Parts"])
            text = "".join(piece for piece, _, _ in self.pieces(document, True) if piece) if is_plain else self.string(document)
            given = words[words.index("-s", shells[0]) + 1:] if shells and "-s" in words[shells[0]:] else []
            return text.rpartition("\n")[0], min([*shells, len(words)]), given[given[:1] == ["--"]:]
        if name in REMOTE and at < len(words):
            return " ".join(words[at:]), at, []
        at = next((at for at, word in enumerate(words) if at and TRAINS.search(word)), None)
        is_said = at is None or SAYS.fullmatch(name) or any(word.endswith(".py") for word in words)
        return (None, 0, []) if is_said else (words[at], at, [])

    def launch_inner(self, node, fields):
        """Lists the commands in a text that another shell reads, as in `srun bash -c "..."`. Returns whether there is such a text."""
        words = [text for text, _ in fields]
        inner, at, arguments = self.inner_text(node, words)
        if inner is None:
            return False
        names = {*(self.exported if words[0] not in REMOTE or words[0] in JOBS else ()), *self.setting["variables"]} - self.arrays
        variables = {name: joined(self.values[name]) for name in names if self.values.get(name)}
        variables.update((one["Name"]["Value"], self.value_of(one.get("Value", {}))) for one in node.get("Assigns", ()))
        setting = {**self.setting, "variables": variables, "arguments": arguments}
        place = (fields[at + 2][1] if at + 2 < len(fields) else None) or self.place_of(node)
        try:
            reader = Reader(inner.encode(errors="surrogateescape"), setting, place, self.unknown, fields[:at])
            found = reader.read()
        except Malformed:
            return False
        for _, _, launched, environment in found["commands"]:
            # The variables of the inner shell are words, as of `env`, behind those of the programs that start it.
            given = [word for name, *held in environment for word in
                     ([[0, 0, f"{name}={held[0][2]}", *held[0][3:]]] if held else [[0, 0, "-u"], [0, 0, name]])]
            given[:0] = [[0, 0, "env"]] if given else []
            words = [*map(self.resolved, fields[:at]), *([*place, *word[2:]] for word in [*found["directives"], *given, *launched])]
            self.commands.append([*self.place_of(node), words, self.environment_of(node)])
        return bool(found["commands"])


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
    except MemoryError:
        return [None, None, "its variables become too large"]


def main(setting, results, file):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    found = read(pathlib.Path(file).read_bytes(), json.loads(pathlib.Path(setting).read_text()))
    text = json.dumps(found, ensure_ascii=False)
    text = re.sub("[\x7f-\x9f\ufeff]", lambda one: f"\\u{ord(one[0]):04x}", text)  # YAML has them only escaped
    pathlib.Path(results, "commands").write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
