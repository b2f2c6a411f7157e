"""The values and words of a launch script, for shell_reader.py: variables, quotes, defaults, arithmetic, splitting.

A value is a text and its place in the script. An unknown part of the text is represented by a mark: one character that
is the index of an entry in Values.unknown. Marks remain valid when texts are joined or split.
"""

import ast
import operator
import re

RUN, DOUBT, COLLECT, SKIP = range(4)  # modes: execute statements; mark variables unknown; collect launches; only parse
FREE, UNSET, SET, UNKNOWN = range(4)  # states of variables; FREE: the script never sets it
ENDS = " \t\r\n;&|()<>"  # characters that end a word
ENVIRONMENT = re.compile(r"HOME|USER|LOGNAME|PWD|OLDPWD|HOSTNAME|SHELL|PATH|UID|EUID|PPID|S?RANDOM|SECONDS|LINENO|IFS|OSTYPE|"
                         r"HOSTTYPE|MACHTYPE|SHLVL|EPOCHSECONDS|OPTIND|FUNCNAME|PIPESTATUS|GROUPS|DIRSTACK|_|BASH.*")
NAME = re.compile(r"[A-Za-z_]\w*", re.A)
NUMBER = r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*"
MARK_BEGIN, MARKS_MAX, MARK = 0xF0000, 120_000, re.compile("[\U000f0000-\U0010ffff]")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv, ast.Mod: operator.mod}
DEPTH_MAX, BUDGET, SHOWN_MAX = 100, 16 << 20, 200


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


class Words:
    """Parses and expands words from a position in a script: quotes, variables, defaults, arithmetic, splitting."""

    def __init__(self, text, setting):
        self.text, self.at, self.end, self.depth = text, 0, len(text), 0
        self.values = Values(setting, "\n#SBATCH" in text)
        self.mode, self.cause, self.splits_as_usual = RUN, None, True
        if not is_known(text):
            self.fail("it has characters of private use")

    def fail(self, what):
        raise Malformed(self.at, what)

    def peek(self, ahead=0):
        return self.text[self.at + ahead] if self.at + ahead < self.end else ""

    def follows(self, what):
        return self.text.startswith(what, self.at, self.end)

    def consume(self, what):
        is_here = self.follows(what)
        self.at += len(what) if is_here else 0
        return is_here

    def match(self, pattern):
        found = re.compile(pattern, re.A).match(self.text, self.at, self.end)
        self.at = found.end() if found else self.at
        return found[0] if found else ""

    def enter(self):
        self.depth += 1
        if self.depth > DEPTH_MAX:
            self.fail("it is nested too deep")

    def close(self, close, quoted=False):
        """Moves to after the closing quote or bracket `close`. Inside double quotes, single quotes are text."""
        begin = self.at - 1
        self.enter()
        while self.at < self.end and self.peek() != close:
            c = self.peek()
            self.at += 1
            if close == "'" and not quoted:
                continue  # single quotes contain only text
            if c == "\\":
                self.at += 1 if self.at < self.end else 0
            elif c == "`" or (c == "'" and not quoted and close != "'"):
                self.at = max(self.text.find(c, self.at, self.end), self.at) + 1
            elif c == '"' and close != "'":
                self.close('"', True)
            elif c == "$" and close != "'":
                self.expansion(quoted)
            elif c + close in ("()", "[]"):
                self.close(close)
        self.depth -= 1
        if self.at >= self.end:
            self.at = begin
            self.fail({")": "a bracket", "]": "a bracket", "}": "a brace"}.get(close, "a quote") + " is not closed")
        self.at += 1

    def expansion(self, quoted):
        """Parses `$(...)`, `${...}`, `$[...]` or `$'...'` from after its `$`; returns false for anything else."""
        if not quoted and self.consume("'"):
            self.close("'", True)
            return True
        opening = self.peek()
        if not opening or opening not in "({[":
            return False
        self.at += 1
        self.close({"(": ")", "{": "}", "[": "]"}[opening], quoted and opening == "{")
        return True

    def word(self):
        """The place of the word that begins here; empty if there is none."""
        begin = self.at
        while self.at < self.end and self.peek() not in ENDS:
            c = self.peek()
            self.at += 1
            if c == "\\":
                self.at += 0 if self.consume("\r\n") or self.at >= self.end else 1
            elif c in "'`":
                self.close(c)
            elif c == '"':
                self.close(c, True)
            elif c == "$":
                self.expansion(False)
        return begin, self.at

    def string(self, place):
        return self.text[place[0]:place[1]]

    # --- expansion of words

    def fields_of(self, words):
        """The fields after expansion. A word may become any number of fields."""
        found = []
        for word in words:
            if self.text[word[0]] in "<>":
                found.append((self.values.mark(self.string(word)), word))
                continue
            for field in self.read_all(word, splits=True):
                self.settle(field, True)
                if field.text or field.has_quotes:
                    found.append((field.text, field.place or word))
        return found

    def value_of(self, word):
        """The expanded text of a word that is not split into fields, and its place."""
        field = self.read_all(word)[0]
        self.settle(field, False)
        return field.text, word

    def quoted_text(self, begin, end):
        return self.read_all((begin, end), quoted=True)[0].text

    def read_all(self, place, quoted=False, splits=False, into=None, splits_text=False):
        saved = self.at, self.end, getattr(self, "into", None)
        self.at, self.end = place
        self.into = into or [[Field()], splits, False]
        self.into[2], was = splits_text, self.into[2]
        self.enter()
        while self.at < self.end:
            self.read_part(quoted)
        self.depth -= 1
        fields = self.into[0]
        self.into[2] = was
        self.at, self.end, self.into = saved
        return fields

    def settle(self, field, is_word):
        """Marks a field as unknown if the shell would expand a file pattern, braces or `~` in it.

        Lists of numbers, and flags, are not file patterns.
        """
        bare = field.bare
        is_list = bare.startswith("--") or re.fullmatch(r"[0-9\[\]*+()., ]*", bare)
        is_pattern = is_word and not is_list and re.search(r"[*?\[]", bare)
        if bare.startswith("~") or ":~" in bare or is_pattern or (is_word and re.search(r"\{[^}]*(,|\.\.)[^}]*\}", bare)):
            field.text = self.values.mark_as(self.values.shown(field.text), field.text)

    def read_part(self, quoted):
        """Reads one character, a quoted text or an expansion."""
        c, following, begin = self.peek(), self.peek(1), self.at
        self.at += 1
        if c == "\\" and following and (not quoted or following in '$`\\"\n'):
            if not self.consume("\n") and not self.consume("\r\n"):
                self.at += 1
                self.put_text(following, True)
        elif c == "'" and not quoted:
            self.close("'")
            self.put_text(self.text[begin + 1:self.at - 1], True)
        elif c == '"' and not quoted:
            self.close('"', True)
            inside = self.text[begin + 1:self.at - 1]
            self.read_all((begin + 1, self.at - 1), True, into=self.into, splits_text=self.into[2])
            # Quotes create a word even if it is empty, except `"${NAME[@]}"` with an empty array.
            is_list = inside == "$@" or (inside.startswith("${") and inside.endswith("[@]}") and "$" not in inside[2:])
            self.into[0][-1].has_quotes |= not is_list
        elif c == "`":
            self.close("`")
            self.put(self.values.mark(self.text[begin:self.at]), quoted, False)
        elif c == "$":
            self.read_dollar(begin, quoted)
        else:
            self.put_text(c, quoted)

    def read_dollar(self, begin, quoted):
        values, is_ansi = self.values, not quoted and self.peek() == "'"
        if not quoted and self.peek() == '"':
            return  # `$"..."` is a translated string; read it like other quotes
        if self.consume("{"):
            self.close("}", quoted)
            self.read_braces(begin, quoted)
        elif self.expansion(quoted):
            whole = self.text[begin:self.at]
            if is_ansi and "\\" not in whole:
                self.put_text(whole[2:-1], True)
            elif whole.startswith("$((") and whole.endswith("))"):
                self.read_arithmetic(begin, quoted)
            else:
                self.put(values.mark(whole), quoted or is_ansi, False)
        elif name := self.match(r"[A-Za-z_]\w*|[0-9@*#?$!-]"):
            kind, is_list, words = values.look(name, "", "$" + name)
            if kind == FREE:
                self.put(values.mark("$" + name), quoted, False)
            else:
                self.put_held(words, is_list, quoted, name == "@")
        else:
            self.put_text("$", quoted)

    def read_arithmetic(self, begin, quoted):
        expression = self.quoted_text(begin + 3, self.at - 2)
        value = self.values.evaluate(expression) if is_known(expression) else None
        if value is not None:
            return self.put(str(value), quoted, self.into[1])
        # Unknown for its own reasons and for those of its variables.
        reasons = expression + "".join(joined(self.values.look(name, "", name)[2]) for name in NAME.findall(expression))
        return self.put(self.values.mark_as(self.text[begin:self.at], reasons), quoted, False)

    def read_braces(self, begin, quoted):
        whole, values = self.text[begin:self.at], self.values
        body = whole[2:-1]
        name = re.match(r"[@*]|[0-9]+|\w*", body, re.A)[0]
        at, index = len(name), ""
        if name and body[at:at + 1] == "[" and "]" in body[at:]:
            index = body[at + 1:body.index("]", at)]
            at += len(index) + 2
            if index not in ("@", "*"):
                index = self.quoted_text(begin + 2 + at - len(index) - 1, begin + 2 + at - 1)
        op = body[at:]
        kind, is_list, words = values.look(name, index, name if op else whole)
        if name and re.match(":?[-=+?]", op):
            self.read_default(begin, quoted, (name, index), op, (kind, is_list, words))
        elif not name or op:  # only a shell can expand lengths, parts and replacements
            self.put(values.mark_as(whole, joined(words)), quoted, False)
        elif kind == FREE:
            self.put(values.mark(whole), quoted, False)
        else:
            self.put_held(words, is_list, quoted, "@" in (index, name))

    def read_default(self, begin, quoted, of, op, held):
        """Expands `${NAME:-word}` and the forms with `=`, `+` and `?`."""
        values, (name, index), (kind, is_list, words) = self.values, of, held
        end, tests_empty = self.at - 1, op.startswith(":")
        sign = op[tests_empty]
        word = (begin + 2 + (self.at - 1 - begin - 2) - len(op) + tests_empty + 1, end)
        whole, every = self.text[begin:self.at], joined(words)
        values.spend(len(every) + 1)
        is_unknown = kind == UNKNOWN or (is_list and not is_known(every))
        # An unknown value may be empty.
        if tests_empty and len(words) == 1 and every and not MARK.sub("", every):
            is_unknown = True
        is_set = kind == SET and bool(words) and not (tests_empty and len(words) == 1 and not every)
        uses_word = not is_unknown and is_set == (sign == "+")
        # Inside quotes, it depends on the context whether quotes in the default are text.
        is_unknown |= uses_word and quoted and re.search(r"['\"\\]", self.string(word)) is not None
        if sign == "=" and (is_unknown or (uses_word and self.mode != RUN)):
            self.doubt(name, self.string(word))
        if is_unknown or (uses_word and sign == "?"):
            self.put(values.mark_as(whole, every), quoted, False)
        elif not uses_word and sign != "+":
            self.put_held(words, is_list, quoted, "@" in (index, name))
        elif uses_word and sign == "=":
            value = self.quoted_text(*word) if quoted else self.value_of(word)[0]
            self.put(value, quoted, self.into[1])
            if self.mode == RUN:
                values.assign(name, [(value, (begin, self.at))], False, False, (begin, self.at))
        else:
            if uses_word:
                self.read_all(word, quoted, into=self.into, splits_text=True)
            self.into[0][-1].has_quotes |= quoted  # in quotes, an empty text is a word too

    def put_held(self, words, is_list, quoted, apart):
        fields, splits, _ = self.into
        for i, (text, place) in enumerate(words):
            self.values.spend(1)
            if i > 0 and apart and quoted and splits:
                fields.append(Field())
            elif i > 0:
                self.put(" ", quoted, splits)
            first = len(fields) - 1
            self.put(text, quoted, splits)
            for field in fields[first:] if is_list else ():
                field.place = place

    def put_text(self, text, quoted):
        if not quoted:
            self.into[0][-1].bare += text
        self.put(text, quoted, self.into[1] and self.into[2])

    def put(self, text, quoted, splits):
        """Appends text to the last field; unquoted blanks start a new field."""
        fields = self.into[0]
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


