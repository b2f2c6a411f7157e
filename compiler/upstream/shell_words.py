"""The values and words of a launch script, for shell_reader.py: variables, quotes, defaults, arithmetic, splitting.

A value is a text and its place in the script. An unknown part of the text is represented by a mark: one character that
is the index of an entry in Values.unknown. Marks remain valid when texts are joined or split.
"""

import ast
import operator
import re

RUN, DOUBT, COLLECT = range(3)  # modes: execute statements; mark variables unknown; collect launches
FREE, UNSET, SET, UNKNOWN = range(4)  # states of variables; FREE: the script never sets it
ENVIRONMENT = re.compile(r"HOME|USER|LOGNAME|PWD|OLDPWD|HOSTNAME|SHELL|PATH|UID|EUID|PPID|S?RANDOM|SECONDS|LINENO|IFS|OSTYPE|"
                         r"HOSTTYPE|MACHTYPE|SHLVL|EPOCHSECONDS|OPTIND|FUNCNAME|PIPESTATUS|GROUPS|DIRSTACK|_|BASH.*")
NAME = re.compile(r"[A-Za-z_]\w*", re.A)
NUMBER = r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*"
MARK_BEGIN, MARKS_MAX, MARK = 0xF0000, 120_000, re.compile("[\U000f0000-\U0010ffff]")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv, ast.Mod: operator.mod}
BUDGET, SHOWN_MAX = 16 << 20, 200


class Malformed(Exception):
    """Raised with a place in the script and the error there."""


def is_known(text):
    return not MARK.search(text)


def joined(values, between=""):
    return "".join(text + between for text, _ in values)


def computed(node):
    """The value of a Python expression; ValueError if 64-bit integers in C would give another result."""
    if isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.UnaryOp):
        value = computed(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
    else:
        left, right = computed(node.left), computed(node.right)
        if isinstance(node.op, (ast.Div, ast.Mod)) and (left < 0 or right < 1):
            raise ValueError
        value = OPERATORS[type(node.op)](left, right)
    if not -2**63 <= value < 2**63:
        raise ValueError
    return value


class Variable:
    def __init__(self, place=None, is_set=True):
        self.elements, self.place, self.is_set = [], place, is_set  # a plain variable has one element
        self.is_array = self.is_exported = self.is_foreign = False


class Values:
    """The variables of a script, and the reasons for unknown values."""

    def __init__(self, setting, is_job):
        self.unknown, self.variables, self.budget, self.is_job = [], {}, BUDGET, is_job
        self.arguments = [(text, None) for text in setting["arguments"]] if "arguments" in setting else None
        self.arguments_cause = self.all_cause = None
        self.is_in_function = False
        for name, text in setting["variables"].items():
            self.assign(name, [(text, None)], False, False, None)

    def spend(self, size):
        self.budget -= size
        if self.budget <= 0 or len(self.unknown) >= MARKS_MAX:
            raise Malformed(None, "its variables become too large")

    def mark(self, shown, cause=None, flags=()):
        self.spend(64 + len(shown))
        self.unknown.append((shown[:SHOWN_MAX], cause, set(flags)))
        return chr(MARK_BEGIN + len(self.unknown) - 1)

    def reasons(self, text):
        return [self.unknown[ord(mark) - MARK_BEGIN] for mark in MARK.findall(text)]

    def shown(self, text):
        return MARK.sub(lambda mark: self.unknown[ord(mark[0]) - MARK_BEGIN][0], text)

    def mark_as(self, shown, text):
        """A mark for a value derived from `text`; it combines the reasons of the marks in `text`."""
        why = self.reasons(text)
        flags = set().union(*(flags for _, _, flags in why))
        self.add_flags(flags, self.shown(text).replace("$", " "))
        return self.mark(shown, next((cause for _, cause, _ in why if cause), None), flags)

    def add_flags(self, flags, script, but=""):
        """Adds the flags in `script`, a part of the script, and in the variables that it uses, except `but`."""
        self.spend(len(script) + 1)
        flags.update(re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", script, re.A))
        for name in re.findall(r"\$\{*(\w+)", script, re.A):
            if name in self.variables and name != but:
                held = joined(self.variables[name].elements, " ")
                self.add_flags(flags, self.shown(held).replace("$", " "))
                flags.update(*(own for _, _, own in self.reasons(held)))

    def variable(self, name):
        held = self.variables.setdefault(name, Variable())
        held.is_set = True
        return held

    def assign(self, name, values, appends, is_array, place):
        held = self.variable(name)
        held.place = place
        if held.is_array and not is_array:  # assigns the first element, which may not exist
            return self.doubt(name, place, joined(values))
        if not is_array and appends and held.elements:
            values = [(held.elements[0][0] + values[0][0], values[0][1])]
        self.spend(len(joined(values)) + len(values) + 1)
        held.elements = (held.elements if appends and is_array else []) + values
        held.is_array |= is_array
        return None

    def doubt(self, name, cause, script="", keeps_head=False):
        """Marks a variable as unknown: `cause` may run `script`, which with `keeps_head` only appends to it."""
        held, flags = self.variable(name), set()
        self.add_flags(flags, script if keeps_head else f"${name} {script}", name if keeps_head else "")
        unknown = self.mark("$" + name, cause, flags)
        if not keeps_head:
            held.elements = []
        if held.elements and not held.is_array:  # a separate word when the value is split
            held.elements[0] = (held.elements[0][0] + " " + unknown, held.elements[0][1])
        else:
            held.elements.append((unknown, cause))

    def doubt_all(self, cause):
        self.all_cause = self.arguments_cause = cause
        self.arguments = None
        for name in self.variables:
            self.doubt(name, cause)

    def look(self, name, index="", shown=""):
        """The state of a variable where it is used, whether that is a list, and its values."""
        if not NAME.match(name) or name == "_":
            return self.look_argument(name, shown)
        is_list = index in ("@", "*")
        held = self.variables.get(name)
        if held is None:
            is_set_before = ENVIRONMENT.fullmatch(name) or (self.is_job and name.startswith("SLURM_"))
            return (UNKNOWN, is_list, [(self.mark(shown, self.all_cause), None)]) if self.all_cause or is_set_before else (FREE, is_list, [])
        every = joined(held.elements, " ")
        if held.is_foreign:
            return UNKNOWN, is_list, [(self.mark_as(shown, every), None)]
        if is_list or not held.is_set:
            return SET if held.is_set else UNSET, is_list, held.elements
        at = 0 if index == "" else self.evaluate(index) if is_known(index) else None
        # An unknown element may become several words, so all indices are unknown.
        if at is None or at < 0 or (held.is_array and not is_known(every)):
            return UNKNOWN, False, [(self.mark_as(shown, every), None)]
        return (SET, False, [held.elements[at]]) if at < len(held.elements) else (UNSET, False, [])

    def look_argument(self, name, shown):
        is_list, known = name in ("@", "*"), self.arguments
        is_number = re.fullmatch("0*[1-9][0-9]{,8}", name) is not None
        if self.is_in_function or self.arguments_cause or not (is_number or (known is not None and (is_list or name == "#"))):
            return UNKNOWN, is_list, [(self.mark(shown, self.arguments_cause), None)]
        if is_list:
            return SET, True, known
        if name == "#":
            return SET, False, [(str(len(known)), None)]
        if known is not None:
            return (SET, False, [known[int(name) - 1]]) if int(name) <= len(known) else (UNSET, False, [])
        given = self.variables.get(name)  # from `--var`
        return (SET, False, given.elements) if given else (FREE, False, [])

    def evaluate(self, expression):
        """The value of expanded arithmetic with + - * / % and brackets; None for more, or if C does not define it."""
        if not expression.strip():
            return 0
        if re.search(r"[^\w\s()+*/%-]|\*\s*\*|/\s*/|\+\+|--", expression, re.A):
            return None
        try:
            numbers = re.sub(r"\w+", lambda word: f"({self.number(word[0])})", expression, flags=re.A)
            return computed(ast.parse(f"({numbers})", mode="eval").body)
        except (AttributeError, SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
            return None

    def number(self, word):
        if not NAME.fullmatch(word):
            return int(word, 8 if re.fullmatch("0[0-7]+", word) else 0) if re.fullmatch(NUMBER, word) else None
        kind, _, words = self.look(word, "", word)
        text = words[0][0].strip(" \t\n") if kind == SET and words else "" if kind == UNSET else None
        if text is None or not re.fullmatch(f"-?({NUMBER})|", text):  # only a shell evaluates nested expressions
            return None
        return (-1 if text.startswith("-") else 1) * self.number(text.lstrip("-")) if text else 0


class Field:
    def __init__(self):
        self.text = self.bare = ""  # bare: the unquoted part, for braces and patterns
        self.has_quotes, self.place = False, None


class Expansion:
    """The fields of a word that is being expanded."""

    def __init__(self, splits=False):
        self.fields, self.splits, self.splits_text = [Field()], splits, False


def place_of(node):
    return node["Pos"], node["End"]


def nodes_of(tree):
    """The nodes of a part of shfmt's syntax tree, in no order."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            yield node
            todo += node.values()
        elif isinstance(node, list):
            todo += node


class Words:
    """Expands the words of a syntax tree: quotes, variables, defaults, arithmetic, splitting."""

    def __init__(self, source, setting):
        self.source = source
        self.values = Values(setting, b"\n#SBATCH" in source)
        self.mode, self.cause, self.splits_as_usual = RUN, None, True

    def slice(self, begin, end):
        return self.source[begin:end].decode(errors="surrogateescape")

    def string(self, node):
        return self.slice(*place_of(node))

    def fields_of(self, words):
        """The fields after expansion. A word may become any number of fields."""
        found = []
        for word in words:
            for field in self.expand(word, splits=True):
                self.settle(field, True)
                if field.text or field.has_quotes:
                    found.append((field.text, field.place or place_of(word)))
        return found

    def value_of(self, word):
        """The expanded text of a word that is not split into fields."""
        field = self.expand(word)[0]
        self.settle(field, False)
        return field.text

    def expand(self, word, quoted=False, splits=False):
        into = Expansion(splits)
        self.parts(word, quoted, into)
        return into.fields

    def expanded(self, tree, begin, end):
        """The text from `begin` to `end` in the script, with the values of the expansions in `tree`."""
        text, at = "", begin
        expansions = (node for node in nodes_of(tree) if node.get("Type") in ("ParamExp", "CmdSubst", "ArithmExp"))
        for part in sorted(expansions, key=lambda node: node["Pos"]):
            if part["Pos"] >= at and self.source[part["Pos"]] in b"$`":
                text += self.slice(at, part["Pos"]) + self.expand({"Parts": [part]}, quoted=True)[0].text
                at = part["End"]
        return text + self.slice(at, end)

    def settle(self, field, is_word):
        """Marks a field as unknown if the shell would expand a file pattern, braces or `~` in it.

        Lists of numbers, and flags, are not file patterns.
        """
        bare = field.bare
        is_list = bare.startswith("--") or re.fullmatch(r"[0-9\[\]*+()., ]*", bare)
        is_pattern = is_word and not is_list and re.search(r"[*?\[]", bare)
        if bare.startswith("~") or ":~" in bare or is_pattern or (is_word and re.search(r"\{[^}]*(,|\.\.)[^}]*\}", bare)):
            field.text = self.values.mark_as(self.values.shown(field.text), field.text)

    def parts(self, word, quoted, into):
        for part in word.get("Parts", ()):
            self.part(part, quoted, into)

    def part(self, part, quoted, into):
        kind, whole = part["Type"], self.string(part)
        if kind == "Lit":
            self.literal(whole, quoted, into)
        elif kind == "DblQuoted":
            self.parts(part, True, into)
            # Quotes create a word even if it is empty, except `"${NAME[@]}"` with an empty array.
            is_list = whole == '"$@"' or (whole.startswith('"${') and whole.endswith('[@]}"') and "$" not in whole[3:])
            into.fields[-1].has_quotes |= not is_list
        elif kind == "SglQuoted" and not ("Dollar" in part and "\\" in whole):
            self.put_text(whole.lstrip("$")[1:-1], True, into)
        elif kind == "ParamExp":
            self.parameter(part, whole, quoted, into)
        elif kind == "ArithmExp" and whole.startswith("$(("):
            self.arithmetic(part, whole, quoted, into)
        else:
            self.put(self.values.mark(whole), quoted or kind == "SglQuoted", False, into)

    def literal(self, text, quoted, into):
        """Appends text of the script without its backslashes."""
        # In the tree, a text ends with the backslash of a continued line.
        for escaped, plain in re.findall(r'\\(\n|[$`\\"])|([^\\]+|\\(?!$))' if quoted else r"\\(\r?\n|.)|([^\\]+)", text, re.S):
            if plain:
                self.put_text(plain, quoted, into)
            elif not escaped.endswith("\n"):
                self.put_text(escaped, True, into)

    def arithmetic(self, part, whole, quoted, into):
        expression = self.expanded(part, part["Pos"] + 3, part["End"] - 2)
        value = self.values.evaluate(expression) if is_known(expression) else None
        if value is not None:
            return self.put(str(value), quoted, into.splits, into)
        # Unknown for its own reasons and for those of its variables.
        reasons = expression + "".join(joined(self.values.look(name, "", name)[2]) for name in NAME.findall(expression))
        return self.put(self.values.mark_as(whole, reasons), quoted, False, into)

    def parameter(self, part, whole, quoted, into):
        values, name, index, at = self.values, part["Param"]["Value"], "", part["Param"]["End"]
        if "Index" in part:
            index = self.expanded(part["Index"], *place_of(part["Index"]))
            at = part["Index"]["End"] + 1
        op = self.slice(at, part["End"] - 1) if "Short" not in part else ""
        kind, is_list, words = values.look(name, index, name if op else whole)
        apart = "@" in (index, name)
        if not whole.startswith(("$" + name, "${" + name)) or (op and not re.match(":?[-=+?]", op)):
            # Only a shell can expand lengths, parts and replacements.
            self.put(values.mark_as(whole, joined(words)), quoted, False, into)
        elif op:
            self.default(part, whole, quoted, (kind, is_list, words, apart), into)
        elif kind == FREE:
            self.put(values.mark(whole), quoted, False, into)
        else:
            self.put_held(words, is_list, quoted, apart, into)

    def default(self, part, whole, quoted, held, into):
        """Expands `${NAME:-word}` and the forms with `=`, `+` and `?`."""
        values, (kind, is_list, words, apart), name = self.values, held, part["Param"]["Value"]
        word = part["Exp"].get("Word", {})
        text, every = self.string(word) if word else "", joined(words)
        op = whole[:len(whole) - len(text) - 1]
        sign, tests_empty = op[-1], op[-2] == ":"
        values.spend(len(every) + 1)
        is_unknown = kind == UNKNOWN or (is_list and not is_known(every))
        # An unknown value may be empty.
        if tests_empty and len(words) == 1 and every and not MARK.sub("", every):
            is_unknown = True
        is_set = kind == SET and bool(words) and not (tests_empty and len(words) == 1 and not every)
        uses_word = not is_unknown and is_set == (sign == "+")
        # Inside quotes, it depends on the context whether quotes in the default are text.
        is_unknown |= uses_word and quoted and re.search(r"['\"\\]", text) is not None
        if sign == "=" and (is_unknown or (uses_word and self.mode != RUN)):
            self.doubt(name, text)
        if is_unknown or (uses_word and sign == "?"):
            self.put(values.mark_as(whole, every), quoted, False, into)
        elif not uses_word and sign != "+":
            self.put_held(words, is_list, quoted, apart, into)
        elif uses_word and sign == "=":
            value = self.expand(word, quoted=True)[0].text if quoted else self.value_of(word)
            self.put(value, quoted, into.splits, into)
            if self.mode == RUN:
                values.assign(name, [(value, place_of(part))], False, False, place_of(part))
        else:
            if uses_word:
                was, into.splits_text = into.splits_text, True
                self.parts(word, quoted, into)
                into.splits_text = was
            into.fields[-1].has_quotes |= quoted  # in quotes, an empty text is a word too

    def put_held(self, words, is_list, quoted, apart, into):
        fields = into.fields
        for i, (text, place) in enumerate(words):
            self.values.spend(1)
            if i > 0 and apart and quoted and into.splits:
                fields.append(Field())
            elif i > 0:
                self.put(" ", quoted, into.splits, into)
            first = len(fields) - 1
            self.put(text, quoted, into.splits, into)
            for field in fields[first:] if is_list else ():
                field.place = place

    def put_text(self, text, quoted, into):
        if not quoted:
            into.fields[-1].bare += text
        self.put(text, quoted, into.splits and into.splits_text, into)

    def put(self, text, quoted, splits, into):
        """Appends text to the last field; unquoted blanks start a new field."""
        fields = into.fields
        self.values.spend(len(text) + 1)
        if quoted or not splits:
            fields[-1].text += text
            fields[-1].has_quotes |= quoted
            return
        if not self.splits_as_usual and text:
            fields[-1].text += self.values.mark_as(self.values.shown(text), text)
            return
        for part in re.findall(r"[ \t\n]+|[^ \t\n]+", text):
            if part[0] not in " \t\n":
                fields[-1].text += part
                fields[-1].bare += "".join(re.findall(r"[*?\[]", part))
            elif fields[-1].text or fields[-1].has_quotes:
                fields.append(Field())

    # --- variables that may change

    def doubt(self, name, script="", keeps_head=False):
        if NAME.match(name):
            self.values.doubt(name, self.cause, script, keeps_head)

    def doubt_changes(self, script):
        """Marks variables that expansions in `script` may set. In mode RUN, `${X:=...}` is excluded: it is executed."""
        for opened in re.finditer(r"\(\(|(?<=\w)\[", script, re.A):  # arithmetic and indices
            expression = script[opened.end():].partition("]" if opened[0] == "[" else "))")[0]
            if re.search(r"\+\+|--|<<=|>>=|(?<![=!<>])=(?!=)", expression):
                for name in NAME.findall(expression):
                    self.doubt(name)
        if self.mode != RUN:
            for name, word in re.findall(r"\$\{(\w+):?=([^}]*)", script, re.A):
                self.doubt(name, word)
