"""Finds the commands of a shell script from its text, without starting programs or reading other files.

    shell_reader.py SETTING RESULTS FILE

SETTING is a JSON file with `variables` of the shell that would run the script and, if known, its `arguments`. The file
`commands` in the folder RESULTS receives the result: an object, or [begin, end, error] if the script is malformed.

Statements that certainly run are executed: of an `if` or `case` with known words, only the branch that runs. Statements
that depend on another condition, a loop or a function are walked twice: to mark the variables that they may set as
unknown from there on, and to collect their launches. Also unknown are the output of programs, variables that the script
never sets, and everything derived from these.

In the result, a word is [begin, end, text] with its place in bytes. An unknown word has a fourth element: [its text in
the script, [begin, end] of the statement that sets it or null, flags that it may contain].
"""

import fnmatch
import itertools
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from shell_words import COLLECT, DOUBT, ENDS, RUN, SET, SKIP, Malformed, Variable, Words, is_known  # noqa: E402

ANY, SUCCESS, FAILURE, PIPE = range(4)  # what the operator before a statement requires of the previous one
INNER = ("then", "elif", "else", "fi", "do", "done", ";;", ";&", ";;&", "esac", "}", ")")
LOOPS = ("(", "while", "until", "for", "select")  # `(` runs in a subshell
DECLARES = ("export", "declare", "local", "readonly", "typeset")  # assignments are arguments of these commands


class Command:
    def __init__(self, begin, words=()):
        self.begin, self.words, self.assignments = begin, list(words), []
        self.kind, self.place, self.is_elsewhere = "command", (begin, begin), False


class Reader(Words):
    """Walks the statements of a script in the order of its text."""

    def __init__(self, text, setting):
        super().__init__(text, setting)
        self.commands, self.directives, self.documents, self.functions, self.active = [], {}, {}, {}, set()
        self.has_ended, self.has_cases = False, "nocasematch" not in text
        self.bytes = [0, *itertools.accumulate(len(c.encode(errors="surrogateescape")) for c in text)]

    def read(self):
        self.statements((), "")
        return {"commands": self.commands, "directives": [word for at in sorted(self.directives) for word in self.directives[at]],
                **self.variables()}

    def variables(self):
        exported, arrays = [], []
        for name, held in self.values.variables.items():
            if not held.is_set:
                exported.append([name, None, self.place(held.place)])
            elif held.is_exported and len(held.elements) == 1:
                exported.append([name, self.resolved(held.elements[0]), self.place(held.place)])
            if held.is_set:
                arrays.append([name, held.is_array, [self.resolved(value) for value in held.elements]])
        return {"exported": exported, "arrays": arrays}

    def place(self, place):
        """Converts a place from characters to bytes."""
        return place and [self.bytes[at] for at in place]

    def resolved(self, value):
        text, place = value
        word = [*(self.place(place) or (None, None)), self.values.shown(text)]
        if why := self.values.reasons(text):
            shown, cause, _ = next((one for one in why if one[1]), why[-1])
            word.append([shown, self.place(cause), sorted(set().union(*(flags for _, _, flags in why)))])
        return word

    # --- between statements

    def blanks(self):
        """Skips blanks, line continuations and comments; stores the words of `#SBATCH` lines."""
        while self.match(r"[ \t\r]+|\\\r?\n") or self.comment():
            pass

    def comment(self):
        is_line = self.at == 0 or self.text[self.at - 1] == "\n"
        if not (is_line and self.follows("```")) and not (self.peek() == "#" and (self.at == 0 or self.text[self.at - 1] in ENDS)):
            return False
        begin, line = self.at, self.match(r"[^\n]*")
        if is_line and line.startswith("#SBATCH"):
            words = line[7:].partition(" #")[0].split()
            self.directives[begin] = [[*self.place((begin, self.at)), word] for word in words]
        return True

    def lines(self):
        self.blanks()
        while self.peek() == "\n" or (self.peek() == ";" and self.peek(1) not in (";", "&")):
            self.at = self.documents.get(self.at, self.at + 1)
            self.blanks()

    def keyword(self):
        """The text up to the next blank or operator, which may be a keyword, or a single operator."""
        return re.compile(r";;&|;;|;&|[()]|[^ \t\r\n;&|()<>]*").match(self.text, self.at, self.end)[0]

    def take(self, *words):
        word = self.keyword()
        if word not in words:
            self.fail(f"expected '{words[0]}'")
        self.at += len(word)
        return word

    # --- which statements run

    def under(self, mode, walk, at=None):
        """Calls `walk` in another mode, from position `at` if given."""
        saved, self.mode = self.mode, mode
        self.at = self.at if at is None else at
        result = walk()
        self.mode = SKIP if self.has_ended else saved
        return result

    def guarded(self, begin, walk, at=None):
        """Walks statements that may or may not run, depending on the statement at `begin`."""
        at, mode = self.at if at is None else at, self.mode
        if mode != RUN:
            return walk()
        self.cause = self.first_line(begin)
        self.under(DOUBT, walk, at)
        self.under(COLLECT, walk, at)
        return None

    def first_line(self, begin):
        end = self.text.find("\n", begin)
        return begin, end if end >= 0 else len(self.text)

    def statements(self, ends, opening):
        """Walks statements up to a keyword in `ends`. Returns the status of the last one; None if unknown."""
        status, after = True, ANY
        self.lines()
        while self.at < self.end:
            if self.keyword() in ends:
                return status
            self.values.spend(1)
            begin = self.at
            status, after = self.statement(status, after)
            self.lines()
            if self.at == begin:
                self.fail("this is not allowed here")
        if ends:
            self.fail(f"'{opening}' is not closed")
        return status

    def statement(self, status, after):
        is_negated = False
        while self.keyword() in ("!", "time"):
            is_negated ^= self.peek() == "!"
            self.at += len(self.keyword())
            self.blanks()
        begin, mode, keyword = self.at, self.mode, self.keyword()
        walk = self.compound()
        if walk:
            self.under(SKIP if mode == RUN else mode, walk)
        command = Command(begin) if walk else self.simple()
        behind = self.trailing(command, after)
        end, is_elsewhere = self.at, command.is_elsewhere and command.kind != "command" or (walk is not None and command.is_elsewhere)
        if mode != RUN:
            if not walk:
                self.carry_out(command)
            return None, behind
        is_joined = after in (SUCCESS, FAILURE)
        if is_joined and status is not None and status != (after == SUCCESS):
            return status, behind
        walk = walk or (lambda: self.carry_out(command))
        self.cause = self.first_line(begin)
        if (is_joined and status is None) or is_elsewhere or keyword in LOOPS:
            own = self.guarded(begin, walk, begin)
        else:
            own = self.under(RUN, walk, begin)
        self.at = end
        return own != is_negated if own is not None and not command.is_elsewhere else None, behind

    def trailing(self, command, after):
        """Reads the redirections of a statement and the operator after it."""
        command.place = command.begin, command.begin + len(self.text[command.begin:self.at].rstrip())
        self.blanks()
        while self.redirection(command):
            self.blanks()
        command.is_elsewhere |= after == PIPE or self.text[command.begin] == "("
        if op := self.match(r"&&|\|\||\|&?"):
            command.is_elsewhere |= op in ("|", "|&")
            self.lines()
            return {"&&": SUCCESS, "||": FAILURE}.get(op, PIPE)
        command.is_elsewhere |= bool(self.match("&"))
        return ANY

    # --- compound statements

    def compound(self):
        """A function that walks the compound statement that begins here; None for a simple statement."""
        word, begin = self.keyword(), self.at
        if word in INNER:
            self.fail(f"'{word}' closes nothing that is open")
        if self.follows("(("):
            return None
        simple = {"if": self.walk_if, "case": self.walk_case, "{": self.walk_group, **dict.fromkeys(LOOPS, self.walk_loop)}.get(word)
        if simple is None and not re.compile(r"function\b|[\w.:-]+[ \t]*\([ \t]*\)", re.A).match(self.text, self.at):
            return None
        simple = simple or self.walk_function

        def walk():
            self.enter()
            self.at = begin + (len(word) if simple != self.walk_function else 0)
            status = simple(begin)
            self.depth -= 1
            return status

        return walk

    def walk_group(self, begin):
        status = self.statements(("}",), "{")
        self.take("}")
        return status if self.mode == RUN else None

    def walk_loop(self, begin):
        opening = self.text[begin:self.at]
        if opening in ("for", "select"):
            self.loop_head()
        else:
            self.statements((")",) if opening == "(" else ("do",), opening)
        if opening == "(":
            return self.take(")") and None
        self.take("do")
        self.statements(("done",), opening)
        return self.take("done") and None

    def loop_head(self):
        self.blanks()
        begin = self.at
        if self.follows("(("):
            self.bracket()
        while self.at < self.end and self.peek() not in ";\n" and not (self.text[begin] == "(" and self.keyword() == "do"):
            word = self.word()
            if word[0] == word[1]:
                self.fail("this is not allowed in a loop's words")
            self.blanks()
        if self.mode == DOUBT:
            text = self.text[begin:self.at]
            self.doubt_changes(text)
            self.doubt(re.match(r"\w*", text, re.A)[0], text)
        self.lines()

    def walk_if(self, begin):
        """Evaluates the conditions in order; from the first unknown one on, walks all branches."""
        while True:
            status = self.statements(("then",), "if")
            self.take("then")
            if status is None or self.mode != RUN:
                return self.guarded(begin, self.clauses_of_if)
            own = self.under(RUN if status else SKIP, lambda: self.statements(("elif", "else", "fi"), "if"))
            if status:
                self.under(SKIP, self.clauses_of_if)
                return own
            word = self.take("elif", "else", "fi")
            if word != "elif":
                own = self.statements(("fi",), "if") if word == "else" else True
                return own if word == "fi" else self.take("fi") and own

    def clauses_of_if(self):
        """Walks the remaining clauses, from a body or from after a body."""
        word = ""
        while word != "fi":
            self.statements(("then",) if word == "elif" else ("elif", "else", "fi"), "if")
            word = self.take("then", "elif", "else", "fi")

    def walk_case(self, begin):
        self.blanks()
        subject = self.word()
        self.lines()
        self.take("in")
        runs = self.mode == RUN
        self.doubts(subject)
        text = self.value_of(subject)[0] if runs else ""
        while True:
            self.lines()
            at = self.at
            if self.keyword() == "esac":
                self.at += 4
                return True if runs else None
            if not runs:
                self.clause()
                continue
            patterns = self.patterns()
            behind, status = self.at, self.matches(text, patterns)
            end = self.under(SKIP, self.body)
            if status is None or end not in (";;", "esac"):
                return self.guarded(begin, self.clauses, at)
            if status:
                own = self.under(RUN, lambda: self.statements((";;", "esac"), "case"), behind)
                self.under(SKIP, self.clauses, at)
                return own

    def clauses(self):
        while self.keyword() != "esac":
            self.clause()
            self.lines()
        self.at += 4

    def clause(self):
        self.doubts(*self.patterns())
        self.body()

    def body(self):
        self.statements((";;", ";&", ";;&", "esac"), "case")
        word = self.keyword()
        self.at += len(word) if word != "esac" else 0
        return word

    def patterns(self):
        self.consume("(")
        words = []
        while not words or self.consume("|"):
            self.blanks()
            words.append(self.word())
            self.blanks()
        if not self.consume(")"):
            self.fail("expected ')' after a pattern")
        return words

    def matches(self, subject, patterns):
        for pattern in patterns:
            self.doubts(pattern)
            text = self.value_of(pattern)[0]
            one = self.matches_one(text, subject, text == self.string(pattern)) if is_known(subject + text) and self.has_cases else None
            if one is None or one:
                return one
        return False

    @staticmethod
    def matches_one(pattern, text, is_bare):
        """Whether the pattern matches; None if it contains character lists or quotes."""
        return None if re.search(r"[\[\\(]" if is_bare else r"[\[\\(*?]", pattern) else fnmatch.fnmatchcase(text, pattern)

    def walk_function(self, begin):
        if self.match(r"function\b"):
            self.blanks()
        name = self.match(r"[^ \t\r\n;&|()<>]+")
        self.blanks()
        if self.consume("("):
            self.blanks()
            self.take(")")
        self.lines()
        if self.follows("((") or self.keyword() not in ("if", "case", "{", *LOOPS):
            self.fail("expected '{' after a function's name")
        body = self.at
        if self.mode == RUN:
            self.functions[name] = [body]
        elif self.mode != SKIP:
            self.functions.setdefault(name, []).append(body)
        self.under(SKIP, self.compound())
        return None

    def call(self, name):
        """Calls a function; if it may have several definitions, all of them."""
        if name in self.active:
            return
        self.active.add(name)
        at, was, self.values.is_in_function = self.at, self.values.is_in_function, True
        for body in list(self.functions[name]):
            self.at = body
            self.guarded(body, self.compound(), body)
        self.at, self.values.is_in_function = at, was
        self.active.remove(name)

    # --- simple statements

    def simple(self):
        command = Command(self.at)
        if self.follows("(("):
            command.kind = "arithmetic"
            command.words.append(self.bracket())
        elif self.keyword() == "[[":
            self.test(command)
        else:
            while self.part(command):
                pass
        return command

    def bracket(self):
        begin = self.at
        self.at += 1
        self.close(")")
        return begin, self.at

    def part(self, command):
        """Reads one part of a command: an assignment, a word or a redirection; returns false at its end."""
        self.blanks()
        if self.at >= self.end or self.peek() in "\n;|)" or (self.peek() == "&" and self.peek(1) != ">"):
            return False
        if self.redirection(command):
            return True
        if self.peek() == "(":
            self.fail("a bracket is not allowed here")
        if (command.words and self.string(command.words[0]) not in DECLARES) or not self.assignment(command):
            command.words.append(self.word())
        return True

    def test(self, command):
        """Reads the words between `[[` and `]]`; operators of the shell are ordinary words there."""
        command.kind = "test"
        self.at += 2
        while True:
            self.blanks()
            while self.consume("\n"):
                self.blanks()
            word = self.word()
            if self.string(word) == "]]":
                return
            if word[0] == word[1] and not self.match(r"&&|\|\||[<>()|]"):
                self.fail("a test must end with ']]' before this")
            command.words.append((word[0], self.at))

    def assignment(self, command):
        begin, name = self.at, self.match(r"[A-Za-z_]\w*")
        has_index = bool(name) and self.peek() == "[" and "=" in self.text[self.at:self.first_line(self.at)[1]]
        if has_index:
            self.at += 1
            self.close("]")
        appends = self.consume("+=")
        if not name or not (appends or self.consume("=")):
            self.at = begin
            return False
        value, is_array = self.at, self.peek() == "(" and not has_index
        words = self.elements() if is_array else [self.word()]
        command.assignments.append((name, has_index, appends, is_array, words, (begin, self.at), self.text[value:self.at]))
        return True

    def elements(self):
        self.at += 1
        words = []
        while self.at < self.end:
            self.blanks()
            if self.consume("\n"):
                continue
            if self.consume(")"):
                return words
            words.append(self.word())
            if words[-1][0] == words[-1][1]:
                self.fail("this is not allowed in an array")
        return self.fail("expected ')' at the end of an array")

    def redirection(self, command):
        """Reads a redirection and ignores it; `<(...)` becomes a word of the command."""
        begin = self.at
        if self.match(r"[<>](?=\()"):
            self.bracket()
            command.words.append((begin, self.at))
            return True
        op = self.match(r"&>|[0-9]*[<>]")
        if not op:
            return False
        if op[-1] == "<" and self.peek() == "<" and self.peek(1) != "<":
            self.at += 1
            self.document(begin, self.consume("-"))
            return True
        self.match(r"(<<)?>?&?\|?")
        self.blanks()
        if self.match(r"[<>](?=\()"):
            self.bracket()
        else:
            self.word()
        return True

    def document(self, begin, strips_tabs):
        """Skips a here-document. It begins after this line, or after the previous here-document of this line."""
        self.blanks()
        ending = re.sub(r"['\"\\]", "", self.string(self.word()))
        if not ending:
            self.fail("expected the word that ends the here-document")
        line = self.first_line(self.at)[1]
        if begin in self.documents:
            return
        self.documents[begin], at, is_end = None, self.documents.get(line, line + 1), False
        while at < self.end and not is_end:
            end = self.first_line(at)[1]
            text = self.text[at:end].rstrip("\r")
            is_end = (text.lstrip("\t") if strips_tabs else text) == ending
            at = end + 1
        self.documents[line] = min(at, self.end)

    # --- execution of simple statements

    def doubts(self, *words):
        for word in words if self.mode in (RUN, DOUBT) else ():
            self.doubt_changes(self.string(word))

    def carry_out(self, command):
        """Executes a simple statement. Returns its status; None if unknown."""
        if self.mode == SKIP:
            return None
        if command.kind == "arithmetic":
            return self.guarded(command.begin, lambda: self.doubts(*command.words))
        if command.kind == "test":
            self.doubts(*command.words)
            if self.mode != RUN:
                return None
            texts = [self.value_of(word)[0] for word in command.words]
            bare = [text == self.string(word) for text, word in zip(texts, command.words)]
            return self.tested(texts, bare, True) if self.has_cases and is_known("".join(texts)) else None
        return self.run_command(command)

    def run_command(self, command):
        script, words = self.string(command.place), command.words
        doubts = self.mode != COLLECT
        if doubts:
            self.doubt_changes(script)
        declares = bool(words) and self.string(words[0]) in DECLARES
        if (not words or declares) and doubts and not (command.is_elsewhere and not words):
            for assignment in command.assignments:
                self.assign(*assignment)
        fields = self.fields_of(words)
        # An assignment succeeds, unless it runs a program: then it has the program's status.
        if not words and "$(" not in script and "`" not in script:
            return True
        if not fields:
            return None
        name = fields[0][0]
        if declares:
            self.declare(fields, command.assignments)
        elif name in self.functions:
            self.call(name)
        elif name in ("true", "false", ":"):
            return name != "false"
        elif name in ("[", "test"):
            texts = [text for text, _ in fields[1:]]
            if name == "[" and (not texts or texts.pop() != "]"):
                return None
            return self.tested(texts, [False] * len(texts), False) if is_known("".join(texts)) else None
        else:
            fields = self.builtin(name, fields, script)
            if fields and self.mode != DOUBT:
                self.launch(fields, command)
        return None

    def launch(self, fields, command):
        environment = [[name, self.resolved(self.value_of(words[0]))] for name, _, _, _, words, _, _ in command.assignments if words]
        self.commands.append([*self.place(command.place), [self.resolved(field) for field in fields], environment])

    def assign(self, name, has_index, appends, is_array, words, place, script):
        self.splits_as_usual &= name != "IFS"
        has_keys = is_array and any(re.match(r"\[.*=", self.string(word), re.S) for word in words)
        values = self.fields_of(words) if is_array else [(self.value_of(words[0])[0], place)]
        is_foreign = has_index or has_keys
        # A value that begins with the variable's own value only appends to it.
        adds = appends or re.match(rf"[( \t\r\n\"]*\$({name}(?!\w)|\{{{name}(\[[@*]\])?\}})", script, re.A)
        if self.mode != RUN or is_foreign:
            self.doubt(name, script, bool(adds) and not is_foreign)
        else:
            self.values.assign(name, values, appends, is_array, place)

    def declare(self, fields, assignments):
        exports, is_foreign, names = fields[0][0] == "export", False, [assignment[0] for assignment in assignments]
        for word, _ in fields[1:]:
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
        if name in ("read", "mapfile", "readarray", "getopts", "let", "printf"):
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
                self.has_ended, self.mode = True, SKIP
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

    def tested(self, words, bare, is_double):
        """The result of a test; None if unknown.

        `[[` compares patterns and arithmetic, `[` only texts and decimal numbers. Operators of `[[` are unquoted.
        """
        def is_operator(at, op):
            return words[at] == op and (bare[at] or not is_double)

        # `||` binds weaker than `&&`. If the left part decides the result, the right part is not evaluated.
        for op in ("||", "&&") if is_double else ():
            for at in range(len(words)):
                if is_operator(at, op):
                    left = self.tested(words[:at], bare[:at], True)
                    return self.tested(words[at + 1:], bare[at + 1:], True) if left is not None and left != (op == "||") else left
        if len(words) > 1 and is_operator(0, "!"):
            if len(words) == 3 and words[1] in ("=", "==", "!="):  # in `[ ! = x ]`, `!` is a text
                return None
            rest = self.tested(words[1:], bare[1:], is_double)
            return None if rest is None else not rest
        if len(words) < 2:
            return words[0] != "" if words else None if is_double else False
        if len(words) == 2 and (is_operator(0, "-n") or is_operator(0, "-z")):
            return (words[1] == "") == (words[0] == "-z")
        if len(words) != 3 or not (bare[1] or not is_double):
            return None
        left, op, right = words
        if op in ("=", "==", "!="):
            is_same = self.matches_one(right, left, bare[2]) if is_double else left == right
            return None if is_same is None else is_same == (op != "!=")
        a, b = (self.values.evaluate(text) if is_double else int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None for text in (left, right))
        if a is None or b is None:
            return None
        return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}.get(op)


def read(text, setting):
    """The result as described in the head of this file."""
    sys.setrecursionlimit(20_000)
    try:
        return Reader(text, setting).read()
    except Malformed as error:
        at, what = error.args
        place = len(text[:at].encode(errors="surrogateescape")) if at is not None else None
        return [place, place, what]
    except RecursionError:  # functions that call each other without end
        return [None, None, "it is nested too deep"]


def main(setting, results, file):
    text = pathlib.Path(file).read_bytes().decode(errors="surrogateescape")
    found = read(text, json.loads(pathlib.Path(setting).read_text()))
    pathlib.Path(results, "commands").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
