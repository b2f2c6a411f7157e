#!/usr/bin/env python3
"""Reads small launch scripts with shell_reader.py and compares the words of the last command.

    shell_cases.py READER
"""

import pathlib
import sys

# A script, and the words of its last command between bars; `?` behind those that are not known.
CASES = [
    # Words are expanded as the shell does.
    ("A=1; p $A \"$A b\" '$A' \\$A", "p|1|1 b|$A|$A"),
    ("A=(1 '2 3'); p ${A[@]} \"${A[@]}\" ${A[1]}", "p|1|2|3|1|2 3|${A[1]}?"),
    ('A=(); p "${A[@]}" x ""', "p|x|"),
    ("A=; p ${A:-x y} \"${A:-x y}\" ${A-z} ${C-'p q'}s", "p|x|y|x y|p qs"),
    ('A="x y"; p ${B:-d} ${A:+e} ${B:=f} $B ${1:-one}', "p|${B:-d}?|${A:+e}?|${B:=f}?|$B?|one"),
    ("A=3; p $((A * (2 + $A) % 4)) $((1/0))", "p|3|$((1/0))?"),
    ("p $UNSET $(date +%F) $GIVEN", "p|$UNSET?|$(date +%F)?|g"),
    ("A=1; A+=2; L=(a); L+=(b c); p $A ${L[*]}", "p|12|a|b|c"),
    ("p a\\\n  b # c\n", "p|a|b"),
    ("A=(--f [0]*3+[1]*2 '([0]*2)'); p ${A[@]}", "p|--f|[0]*3+[1]*2|([0]*2)"),
    ("A='1+2'; p $(($A*2)) $((A*2))", "p|$(($A*2))?|$((A*2))?"),
    ("p [0]*3+[1]*2 --x=[1]*2 *.bin ~/x {a,b}", "p|[0]*3+[1]*2|--x=[1]*2|*.bin?|~/x?|{a,b}?"),
    ('A="--x $B y"; p $A', "p|--x|$B?|y"),
    # What something guards is unknown.
    ("X=1\nif [ -d $X ]; then X=2; fi; p $X ${X:-3}", "p|$X?|${X:-3}?"),
    ("X=1; if [ $X = 1 ] && q; then X=2; fi; p $X", "p|$X?"),
    ("X=1; case $X in [0-2]) X=2;; esac; p $X", "p|$X?"),
    ("X=1; if [ $((X++)) = 1 ]; then Y=2; fi; p $X $Y", "p|$X?|$Y?"),
    ("X=1; for i in 1 2; do p $X $i; X=$i; done", "p|$X?|$i?"),
    ("f() { X=2; }\nX=1; f; p $X", "p|2"), ("f() { X=2; }\nX=1; if q; then f; fi; p $X", "p|$X?"),
    ("X=1; [ -f y ] && X=2; p $X", "p|$X?"),
    ("X=1; [ 1 -ef 2 ] && X=2; p $X", "p|$X?"),
    ("X=1; ((X++)); p $X", "p|$X?"),
    ("X=1; ((X < 2)); p $X", "p|1"),
    ("X=1; read X; p $X", "p|$X?"),
    ("X=1; source y; p $X ${Y:-2}", "p|$X?|${Y:-2}?"),
    ('X=(a b); if q; then X+=(--c); fi; p "${X[@]}"', "p|a|b|$X?"),
    ('X=a; if q; then X="$X --c"; fi; p $X', "p|a|$X?"),
    ("declare -A M=([a]=1); p ${M[a]}", "p|${M[a]}?"),
    ("declare -i n=1; n=2+3; p $n", "p|$n?"),
    ("X=1; unset -f X; p $X", "p|1"),
    ("A=(a b); unset 'A[1]'; p ${A[@]}", "p|$A?"),
    ('f() { local IFS=,; }\nX=a,b; f; p $X "$X"', "p|a,b|a,b"),
    ("IFS=,; X='a b'; p $X", "p|a b?"),
    ("set -- a b; p $1 $#", "p|a|2"),
    ("C='p --x 1'; eval $C", "p|--x|1"),
    ("f() { p $X $1; X=2; }\nX=1; f; f() { q; }\nX=3", "p|1"),
    ("A=(a b); A[1]=c; p ${A[0]}", "p|${A[0]}?"),
    ("p before; exit; p late", "p|before"),
    # Also what known conditions guard, and what follows them is read on.
    ("X=1\nif [ $X = 1 ]; then X=2; else X=3; fi; p $X", "p|$X?"),
    ('X=1; if [ -z "$X" ]; then Y=2; elif [[ $X -lt 2 ]]; then\nY=4; fi; p $X $Y', "p|1|$Y?"),
    ('X=b1; case $X in a*|c) X=2;; b?) X=3;; *) X=4;; esac; p $X', "p|$X?"),
    ('X=; [ -n "$X" ] && X=2 || X=3; p $X', "p|$X?"),
    ("X=1; ! [[ $X -gt 0 ]] || X=2; p $X", "p|$X?"),
    ("X=1; if [ $X = 1 ]; then p before; exit 0; else p other; fi; p late", "p|late"),
    ("X=1; if [ $X = 2 ]; then f() { X=5; }; fi; p $X", "p|$X?"),
    ("X=1; if [ $X = 2 ]; then echo $X; exit 1; fi; cd y || exit 1; mkdir -p z && q; p $X", "p|1"),
    # What one statement of a script sets beyond assignments is unknown everywhere.
    ("X=1; p $X; ((X++))", "p|$X?"),
    ("p $1; set -euo pipefail; f() { shift; }", "p|$1?"),
    # Text that is appended may continue the last word. Only further words leave those before as they are.
    ('X=a; if q; then X="$X"b; fi; p $X', "p|$X?"),
    ('X=a; if q; then X+=" --c"; fi; p $X', "p|a|$X?"),
    ('X=(a); if q; then X+=" --c"; fi; p ${X[@]}', "p|$X?"),
    ("X='*.bin'; p $X \"$X\"", "p|*.bin?|*.bin"),
    # Builtins behind variables of their own, and statements whose text decides what they set.
    ("A=1 B=2; IFS=, read -r A C <<< x; p $A $B ${C:-3}", "p|$A?|2|${C:-3}?"),
    ("X=1; export $(cat y); p $X ${Y:-2}", "p|$X?|${Y:-2}?"),
    ("source y; X+=b; PATH+=:x; p $X $PATH", "p|$Xb?|$PATH:x?"),
    ('C="p --x"; eval "$C 1; q"; p ${X:-2}', "p|${X:-2}?"),
    # Functions, subshells and pipes that certainly run.
    ('f() { local n=$1; shift; X=$n; p "$@" $# ${2-none}; }\nf a "b c" d', "p|b c|d|2|d"),
    ('f() { "$@"; }\nf p --x 1 | tee log', "p|--x|1"),
    ('f() { p "$@" $1 $2 $#; }\nf $(q) b', "p|$(q)?|b|$1?|$2?|$#?"),
    ("f() { local X=2; g; }\ng() { p $X; }\nX=1; f; p $X", "p|1"),
    ("f() { [ -z $1 ] && return; X=2; return; X=3; }\nX=1; f; p $X", "p|2"),
    ("f() { X=2; f; }\nX=1; f; p $X", "p|$X?"),
    ("f() { X=2; exit; }\nX=1; (f); p $X; f; p late", "p|1"),
    ("X=1; (export X=2; p $X)", "p|2"), ("X=1; { X=2; p $X; } | tee log; p $X", "p|1"),
    ("X=1; f() { X=2; }\nf & p $X; f || q; p $X", "p|2"),
    ('while q; do shift; done; p "$@"', "p|$@?"), ('f() { while q; do shift; done; p "$@"; }\nf --x', "p|$@?"),
    # A comment ends with its line, although shfmt continues the command; a redirection alone; the end of a script.
    ("p --x 1 \\\n  # --z 3 \\\n  --y 2", "--y|2"), ("> log\n<<'X'\nx\nX\n{ 2>err; }\np 1", "p|1"), ("exec 2>log; exec p 1; p late", "p|1"),
    # IFS, programs and builtins that change what the text shows.
    ('A=(a b); IFS=,; p "${A[*]}" "${A[@]}"', "p|${A[*]}?|a|b"), ('f() { local IFS=-; p "$*"; }\nf a b', "p|$*?"), ("echo 1 | xargs p --x", "xargs|p|--x|the input of xargs?"),
    ('f() { printf -v "$1" %s 2; }\nX=1; f X; p $X', "p|$X?"), ('X=1; read -r "$V" <<< 5; p $X', "p|$X?"), ('X=1; let "$1=7"; p $X', "p|$X?"),
    ('X=1; read -r Y <<< "$Z"; p $X', "p|1"), ("f() { p 1; }\nunset -f f; f x", "f|x"),
    ("bash -s -- 5 <<'E'\np --lr ${1:-1}\nE", "p|--lr|5"),
    # Files that are given.
    ("X=1; source /$D/vars.env; p $X $Y", "p|2|b|c"), ("export V=1; . vars.env; other; Y=3; X=; p $Y $X", "p|3"),
    ("source broken.env", None), ("source a/vars.env; X=1; p $X", "p|1"), ("X=1; source a/other.env; p $X", "p|$X?"), ("source vars.env a; p $X", "p|$X?"),
]
FILES = {"b/other.env": "X=3", "other.env": "X=3", "vars.env": "X=2\nY='b c'\nother() { p $Y; }\nreturn\nX=3", "broken.env": "X='"}
MALFORMED = ["'a", "if x; then", "p $(", "A=(1", ")", "case x in a", "{ f()\n}\n{ p; }",
             "if x; then y; done", "for i in (; do x; done", "[[ a ; b ]]", "x <<", "A=(a;b)", "A=(a (b))", "(a)#b", "declare -n r=X; r=2; p $X", "f() { local -n r=$1; r+=(c); }\nf X", "x \U000f0000", "{ " * 200, "x=" + "$((" * 200]
HUGE = "9" * 5000
CASES += [(f"p ${{{HUGE}}} $(({HUGE}))", f"p|${{{HUGE[:198]}?|$(({HUGE[:197]}?"), (f"X=1; [ {HUGE} -gt 1 ] && X=2; p $X", "p|$X?"),
          ("".join(f"f{i}() {{ f{i + 1}; }}\n" for i in range(5000)) + "f0", "f5000")]
# What an unknown part may hold is said with the line that decides.
UNKNOWN = "A=(--lr 1)\nif q; then B='--bf16'; A+=(--save x $B); fi\np ${A[@]}"
PASSED = 'A=(--lr 1)\nadd() { A+=("$@"); }\nif q; then add --lr 2; fi\np "${A[@]}"'


def last_command(reader, script):
    found = reader.read(script.encode(), {"variables": {"GIVEN": "g"}, "files": FILES})
    if isinstance(found, list):
        return None
    words = found["commands"][-1][2] if found["commands"] else []
    return "|".join(word[2] + ("?" if len(word) > 3 else "") for word in words)


def main(path):
    sys.path.insert(0, str(pathlib.Path(path).parent))
    import shell_reader as reader
    wrong = []
    for script, words in [*CASES, *((script, None) for script in MALFORMED)]:
        found = last_command(reader, script)
        if found != words:
            wrong.append(f"{script!r}: {found} instead of {words}")
    word = reader.read(UNKNOWN.encode(), {"variables": {}})["commands"][-1][2][-1]
    if word[3] != ["$A", (11, 54), ["--bf16", "--save"]]:
        wrong.append(f"an unknown part: {word}")
    word = reader.read(PASSED.encode(), {"variables": {}})["commands"][-1][2][-1]
    if word[3] != ["$A", (32, 57), ["--lr"]]:
        wrong.append(f"what a function receives: {word}")
    if "too large" not in str(reader.read(b"A=x\n" + b"A=$A$A\n" * 40, {"variables": {}})):
        wrong.append("a variable that grows without end")
    place = reader.read("A=ä\np '".encode(), {"variables": {}})
    if place[:2] != [7, 7]:
        wrong.append(f"a place in bytes: {place}")
    print(*wrong, f"{len(CASES) + len(MALFORMED)} scripts, {len(wrong)} wrong", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
