#!/usr/bin/env python3
"""Reads random launch scripts with shell_reader.py and runs them with bash: its words are bash's, or unknown.

    random_scripts.py READER [SCRIPTS]

The seeds are fixed. The scripts hold what launch scripts do: quotes inside of words, escapes, `$'...'`, variables, arrays,
operators, arithmetic, conditions, functions, subshells; and loops and here-documents, which the reader does not evaluate. Each is also
read with parts left out and put twice, which may be malformed and nothing else.
"""

import collections
import pathlib
import random
import subprocess
import sys
import tempfile

SHOWN_MAX = 5


class Draw:
    """A script whose commands are all calls of `P`."""

    def __init__(self, seed):
        self.random, self.depth, self.calls = random.Random(seed), 0, 0

    def below(self, bound):
        return self.random.randrange(bound)

    def pick(self, *options):
        return self.random.choice(options)

    def some(self, most, one, least=0):
        return "".join(one() for _ in range(least + self.below(most)))

    def script(self):
        # What a script never sets stays visible here, and is empty for bash.
        text = "v= w= n=1 a=() b=()\n"
        text += "".join(f"{name}={self.word()}\n" for name in "vw") + "".join(f"{name}=({self.elements()})\n" for name in "ab")
        return text + self.some(5, self.statement, 1)

    def statement(self):
        kind = self.below(16)
        if kind < 2:
            return self.assignment() + "\n"
        if kind == 2:
            return self.pick(*"ab") + self.pick("[0]", "[1]", "[4]", "[2+1]", "[-1]") + self.pick("=", "+=") + self.word() + "\n"
        if kind == 3:
            return self.function()
        if kind == 4:
            return self.document()
        if kind == 5:
            return f"export v={self.word()} w={self.word()}; {self.command()}"
        if kind == 6:
            return f"u={self.word()} {self.command()}"
        if kind == 7:
            guard = self.pick("true &&", "false ||", "! false &&", "false &&", "true ||", self.condition() + " &&", self.condition() + " ||")
            return f"{guard} {self.pick(self.command(), self.assignment())}\n"
        if kind == 8:
            return self.compound()
        if kind == 9:
            return self.pick("((n += 1))", "read v <<< x", 'set -- p "q r"', "unset v", "printf -v w %s x", "let n=2", "v=$(echo 1)",
                             "w=$((n++))", "declare -i n=3", "declare -i v", "unset 'a[1]'", "[ x = x ] && v=3", "v=2 | cat", "IFS=,") + "\n"
        return self.command()

    def function(self):
        """A function, and a call of it in this shell or in another one."""
        body = self.pick("", f"local v={self.word()} w\n", "shift\n", "shift 2\n", "set -- x y\n", "[ -n \"$1\" ] && return\n")
        body += self.pick(self.assignment(), self.command(), "return") + "\n" + self.command()[:-1] + ' "$@" $1 ${2} "$#"\n'
        call = f"f {self.words()}".rstrip(" \t\\\n")
        return f"f() {{\n{body}}}\n" + self.pick(call, call, call + " | cat", call + " && n=2", call + " || n=2", f"({call}; v=2)",
                                               f"{{ {call}; }}", call + " &\nwait", f"if {self.condition()}; then {call}; fi") + "\n"

    def assignment(self):
        if self.below(2):
            return self.pick(*"vwn") + self.pick("=", "+=") + self.word()
        return self.pick(*"ab") + self.pick("=(", "+=(") + self.elements() + ")"

    def compound(self):
        """Something that guards an assignment and a command, as often as bash pleases."""
        body = self.command() + self.assignment() + "\n" + self.command()
        kind = self.below(7)
        if kind == 0:
            return (f"if {self.condition()}{self.pick('', ' && true', ' || false')}; then\n{body}" +
                    self.pick("", f"elif {self.condition()}\nthen\n{self.assignment()}\n") + f"else\n{self.command()}fi\n{self.command()}")
        if kind == 4:
            pattern = self.pick("x*", "(x|'*'", "*-*", '"$w"', "[x-z]", "x?y", '""')
            return (f"case {self.pick('$w', chr(34) + '$v' + chr(34), 'x-1')} in\n{pattern}) {self.assignment()}"
                    f"{self.pick(' ;;', ' ;;', ' ;&')}\n*) {self.assignment()} ;;\nesac\n{self.command()}")
        return [None, "for i in 1 2; do\n{}done\n", "for ((n = 0; n < 2; n++)); do\n{}done\n",
                "k=2\nwhile [ $k -gt 0 ]; do\n{}k=$((k - 1))\ndone\n", None, "{{\n{}}}\n", "(\n{})\n"][kind].format(body)

    def condition(self):
        kind = self.below(6)
        if kind == 0:
            return self.pick("[ ", "! [ ! ", "[ ! ") + self.pick("-n", "-z") + f' "{self.quoted()}" ]'
        if kind == 1:
            return f"[ {self.word()}{self.pick(' = ', ' != ', ' == ')}{self.word()} ]"
        if kind == 2:
            return (f"[[ {self.expansion(False)}{self.pick(' == ', ' != ', ' = ')}" +
                    self.pick("x*", '"x"*', "$v", "a?b", "''", "'*'", "x") +
                    self.pick("", " && -n $w", " || $n -gt 1", ' && ! -z "$v" || $w != x') + " ]]")
        if kind == 3:
            return f"[ $n {self.pick('-eq', '-lt', '-ge', '-ne')} {self.pick('1', '01', '0x1', '$n')} ]"
        if kind == 4:
            return f"[[ $n {self.pick('-le', '-gt', '-eq')} {self.pick('1', '010', 'n+1')} ]]"
        return f"[ {self.words()}]"

    def command(self):
        """`P`, and a number by which the call is found again."""
        self.calls += 1
        return f"P {self.calls} {self.words()}" + self.pick("", "", " # it's \"", " >/dev/stdout") + "\n"

    def words(self):
        return self.some(5, lambda: self.word() + self.pick(" ", " ", "  ", "\t", " \\\n "))

    def elements(self):
        return self.some(4, lambda: ("" if self.below(8) else f"[{self.pick('1', '3', '2*2')}]=") + self.word() + self.pick(" ", "\n "))

    def document(self):
        """A here-document for a shell of its own."""
        strips = self.below(2)
        tab = "\t" * strips
        text = "bash <<" + "-" * strips + self.pick("", " ") + self.pick("EOF", "'EOF'", '"EOF"', "\\EOF", "E'O'F") + "\n"
        text += self.some(3, lambda: f"{tab}true {self.plain()} '{self.pick('${#v}', '${#a[@]}', chr(92) + '$v', 'a b', ' EOF', '$((1+2))')}' "
                          f"\"{self.pick('x y', chr(39))}\"\n", 1)
        return text + (" EOF\n" if not self.below(4) and not strips else "") + tab + "EOF\n"

    def word(self):
        return self.piece(True) + self.some(4, lambda: self.piece(False))

    def plain(self):
        return self.pick("--lr", "x", "a=b", "1e-4", "/p/q.py", "a:b", "%u@h", "+x", "A,B", "model.n=2", "-", "*")

    def piece(self, is_first):
        kind = self.below(13)
        if kind == 0:
            return "'" + self.pick("", "a b", "$v", '"', "\\", "#", "a\nb", "${x}", "ä") + "'"
        if kind == 1:
            return f'"${{{self.pick(*"ab")}[@]}}"'
        if kind == 2:
            return f'"{self.quoted()}"'
        if kind == 3:
            return f"$'{self.ansi()}{self.ansi()}'"
        if kind == 4:
            return "\\" + self.pick(" ", "\\", '"', "'", "$", "a", "#", ";", "&", "\n", "(", "*", "{")
        if kind in (5, 6):
            return self.expansion(False)
        if kind == 7:
            return "x#y"
        return self.plain()

    def ansi(self):
        return self.pick("a", " ", r"\n", r"\t", r"\\", r"\'", r"\"", r"\x41", r"\x7", r"\101", r"\60", r"\u00e9", r"\U0001F600", r"\e",
                         r"\cA", r"\q", r"\?", "$v", '"', r"\a", r"\0x")

    def quoted(self):
        return self.some(4, lambda: self.expansion(True) if self.below(2) else self.pick(
            "a b", '\\"', "\\\\", "\\$v", "\\x", "'", "$ ", "$'", "\\\n", "#", "  ", "\\`", "x"))

    def argument(self, is_quoted):
        if self.depth >= 3:
            return "d"

        def one():
            kind = self.below(6)
            if kind == 0:
                return "x" if is_quoted else "'a b'"
            if kind == 1:
                return "y" if is_quoted else f'"{self.quoted()}"'
            return self.expansion(is_quoted) if kind == 2 else " " if kind == 3 else self.pick("x", "-1", "\\\\", "\\}", "a/b", "*")

        self.depth += 1
        text = self.some(4, one)
        self.depth -= 1
        return text

    def expansion(self, is_quoted):
        name, array, kind = self.pick(*"vw"), self.pick(*"ab"), self.below(13)
        if kind < 2:
            return f"${name}{self.pick('/', '-', '.', ':')}"  # or what follows is part of the name
        if kind == 2:
            return f"${{{name}}}"
        if kind == 3:
            return f"${{#{self.pick('v', 'w', 'a', 'a[@]', 'b[*]', 'a[1]')}}}"
        if kind == 4:
            return f"${{{array}[{self.pick('0', '1', '-1', '3', '1+1')}]}}"
        if kind in (5, 6):
            # What is empty beside an empty list, both in quotes, makes no word in some shells.
            return f"${{{array}[{self.pick('@', '*')}]}}" + ("x" if is_quoted else "")
        if kind == 7:
            return f"${array}{self.pick('/', '-')}"
        if kind in (8, 9):
            of = self.pick("v", "never", "a[1]", "b[0]" if is_quoted else "b[@]")
            return f"${{{of}{self.pick(':-', '-', ':+', '+')}{self.argument(is_quoted)}}}"
        if kind == 10:
            return f"${{{self.pick('v', 'fresh')}{self.pick(':=', '=')}{self.argument(is_quoted)}}}"
        return f"$(({self.pick('1', '0x1f', '010', '-7', '(2 + 3)')}{self.pick('+', ' - ', '*', ' / ', '%')}{self.pick('3', '(1+1)', '-2', '12')}))"


def run_bash(scripts):
    """The words that bash passes to the function P in each script, by the number of the call."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "empty").mkdir()  # where no pattern finds a file
        lines = ["P() { printf '%s\\0' \"$#\" \"$@\"; }", "export -f P"]
        for i, script in enumerate(scripts):  # each in a shell of its own, so that none can end the others
            (folder / f"{i}.sh").write_text(script)
            lines += [f"bash --norc ../{i}.sh", "printf 'end\\0'"]
        (folder / "all.sh").write_text("\n".join(lines) + "\n")
        done = subprocess.run(["env", "-i", "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "bash", "--norc", "../all.sh"], cwd=folder / "empty",
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    words = iter(done.stdout.decode(errors="surrogateescape").split("\0")[:-1])
    runs = [collections.defaultdict(list)]
    for word in words:
        if word == "end":
            runs.append(collections.defaultdict(list))
        else:
            number = next(words)
            runs[-1][number].append([next(words) for _ in range(int(word) - 1)])
    return runs[:-1]


def compare(found, ran, counts):
    """Where the words of a call are known to the reader and others to bash."""
    if isinstance(found, list):
        yield f"refused: {found}"
        return
    for _, _, words, *_ in found["commands"]:
        if words[0][2] != "P":
            continue
        counts["calls"] += 1
        if any(len(word) > 3 for word in words):
            continue
        counts["known"] += 1
        got = [word[2] for word in words[2:]]
        yield from (f"bash: {words[1][2]} {other}, here: {got}" for other in ran[words[1][2]] if other != got)


def break_scripts(reader, scripts):
    """Reads each with a part left out and one put twice: anything but a result ends with an exception."""
    for seed, script in enumerate(scripts):
        draw = random.Random(seed)
        for _ in range(3):
            begin, end = sorted(draw.randrange(len(script) + 1) for _ in range(2))
            end = min(end, begin + draw.randrange(1, 9))
            script = script[:begin] + draw.choice(["", script[begin:end] * 2, "${", "$((", "<<E", "\n", "`"]) + script[end:]
        reader.read(script.encode(), {"variables": {}, "arguments": ["p"]})


def main(path, count="300"):
    sys.path.insert(0, str(pathlib.Path(path).parent))
    import shell_reader as reader
    scripts = [Draw(seed).script() for seed in range(int(count))]
    counts, wrong = collections.Counter(), []
    for seed, (script, ran) in enumerate(zip(scripts, run_bash(scripts), strict=True)):
        faults = list(compare(reader.read(script.encode(), {"variables": {}}), ran, counts))
        wrong += [f"seed {seed}:\n{script}" + "\n".join(faults)] if faults else []
    break_scripts(reader, scripts)
    enough = counts["calls"] > 2 * len(scripts) and 3 * counts["known"] > counts["calls"]
    print(*wrong[:SHOWN_MAX], f"{len(scripts)} scripts, {len(wrong)} wrong, {'enough' if enough else 'too few'} known", sep="\n")
    return f"{counts['known']} of {counts['calls']} calls are known" if wrong or not enough else None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
