"""Reads and writes the text form of a plan, by docs/plan.md section 3 alone, as lists of words that can be changed."""

import base64
import random
import re
import zlib

WORD = re.compile(r'//[^\n]*|"(?:\\.|[^"\\])*"|[%@](?:"(?:\\.|[^"\\])*"|[\w.$-]+)|[A-Za-z_][\w.$-]*'
                  r'|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|\S')
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?$")
# The clauses of a line, in their order.
CLAUSES = {
    "channel": ["group", "pair", "via", "multiprocessors", "stream"],
    "block": ["unit", "numel", "shard", "state", "sum", "as"],
    "param": [":", "stacked", "of", "split", "copies", "turns", "block", "at", "lr", "wd", "decoupled", "init"],
    "cell": ["of", "slots", ":", "rows", "in", "for", "at", "stride"],
    "class": ["frozen", "by"],
    "data": [],
    "in": ["mb", "rows", "at", "slots", "stride"],
    "out": ["mb", "droppable"],
    "op": ["of", "role", "channel", "group", "unit", "on", "acc", "else", "if", "after"],
    "run": ["mb"],
}
TABLES = {"needs", "mesh", "groups", "data", "stream", "channel", "unit", "block", "class", "param", "loc", "arenas",
          "beside"}
TAIL = {"forward", "backward", "update", "other", "recomputed", "loc"}


def words_of(text):
    return [word for word in WORD.findall(text) if not word.startswith("//")]


def lines_of(text):
    """The lines of a plan without its summary, as lists of words. The hash is left out, so that it may be changed."""
    lines = [words_of(line) for line in text.splitlines()]
    lines = [line for line in lines if line]
    for line in lines:
        if line[0] == "shardc.plan" and "hash" in line:
            del line[line.index("hash"):]
    return lines


def text_of(lines):
    return "\n".join(" ".join(line) for line in lines) + "\n"


class Op:
    """The parts of an op's line."""

    def __init__(self, words):
        at = 0
        self.results, self.operands, self.attributes, self.clauses, self.specs, self.tail = [], [], [], [], [], []
        if words[0].startswith("%"):
            at = words.index("=") + 1
            self.results = [word for word in words[:at - 1] if word != ","]
        self.name = words[at]
        at += 1
        while at < len(words) and (words[at].startswith("%") or words[at] == ","):
            if words[at] != ",":
                self.operands.append(words[at])
            at += 1
        if at < len(words) and words[at] == "{":
            end = words.index("}", at)
            at += 1
            while at < end:
                stop = at + 2
                while stop < end and not (stop + 1 < end and words[stop + 1] == "="):
                    stop += 1
                self.attributes.append((words[at], words[at + 2:stop]))
                at = stop
            at = end + 1
        depth = 0
        while at < len(words) and not (words[at] == ":" and depth == 0) and words[at] not in TAIL - {"other"}:
            depth += (words[at] in "([") - (words[at] in ")]")
            if words[at] in CLAUSES["op"] and depth == 0 and not (self.clauses and self.clauses[-1][0] in
                                                                  {"of", "unit", "role", "channel"} and
                                                                  not self.clauses[-1][1]):
                self.clauses.append((words[at], []))
            elif self.clauses:
                self.clauses[-1][1].append(words[at])
            else:
                self.clauses.append(("", [words[at]]))
            at += 1
        if at < len(words) and words[at] == ":":
            at += 1
            self.specs = [[]]
            depth = 0
            while at < len(words) and words[at] not in TAIL:
                depth += (words[at] in "([") - (words[at] in ")]")
                if words[at] == "," and depth == 0:
                    self.specs.append([])
                else:
                    self.specs[-1].append(words[at])
                at += 1
        self.tail = words[at:]

    def words(self):
        found = []
        for number, result in enumerate(self.results):
            found += ([","] if number else []) + [result]
        found += (["="] if self.results else []) + [self.name]
        for number, operand in enumerate(self.operands):
            found += ([","] if number else []) + [operand]
        if self.attributes:
            found.append("{")
            for name, value in self.attributes:
                found += [name, "=", *value]
            found.append("}")
        for name, value in self.clauses:
            found += ([name] if name else []) + value
        for number, spec in enumerate(self.specs):
            found += [",", *spec] if number else [":", *spec]
        return found + self.tail

    def type_of(self, number):
        """The words of the type of a result."""
        spec = self.specs[number] if number < len(self.specs) else []
        return " ".join(spec[:spec.index("]") + 1]) if "]" in spec else ""


class Place:
    """What a line is, and to what it belongs."""

    def __init__(self, kind, part, role, segment):
        self.kind, self.part, self.role, self.segment = kind, part, role, segment


def places_of(lines):
    """The kind of each line, and the numbers of its plan, role and segment."""
    places, stack, part, role, segment = [], [], 0, 0, 0
    for words in lines:
        first = words[0]
        around = stack[-1] if stack else ""
        if first == "shardc.plan":
            part += 1
            kind = "head"
        elif first == "}":
            kind = "end"
        elif around in ("job", "source", "specification"):
            kind = around
        elif first in ("role", "segment", "program", "job", "source", "specification") and (
                around in ("", "role")):
            kind = {"job": "open", "program": "open", "source": "source name", "specification": "open"}.get(first, first)
            role += first == "role"
            segment += first == "segment"
        elif around == "segment":
            kind = first if first in ("in", "out") else "op"
        elif around in ("program", "steps", "every", "loop"):
            kind = first
        else:
            kind = first
        places.append(Place(kind, part, role, segment if around == "segment" or kind == "segment" else 0))
        opened = words.count("{") - words.count("}")
        if opened > 0:
            stack.append(first)
        elif opened < 0 and stack:
            stack.pop()
    return places


def clauses_of(kind, words):
    """Cuts a line before each word that begins a clause: [[head...], [clause...], ...]."""
    keys = CLAUSES.get(kind, [])
    parts, depth = [[words[0]]], 0
    for before, word in zip(words, words[1:]):
        depth += (word in "([{") - (word in ")]}")
        if word in keys and depth <= 0 and before not in keys + ["over", "by", "as"] + [words[0]]:
            parts.append([word])
        else:
            parts[-1].append(word)
    return parts


def specification_of(lines, places, part):
    """The numbers of the lines of a plan's specification, and its text."""
    rows = [number for number, place in enumerate(places) if place.kind == "specification" and place.part == part]
    packed = "".join(word.strip('"') for number in rows for word in lines[number])
    return rows, zlib.decompress(base64.b64decode(packed)).decode() if packed else ""


def packed(text):
    data = base64.b64encode(zlib.compress(text.encode())).decode()
    return [[f'"{data[at:at + 96]}"'] for at in range(0, len(data), 96)]


def other_number(word, seen, draw):
    """Another number in place of one; `seen` are numbers in such places."""
    whole = "." not in word and "e" not in word
    if seen and draw.random() < 0.4:
        return draw.choice(seen)
    if whole:
        value = int(word)
        return str(draw.choice([value + 1, value - 1, value + 16, value - 16, value * 2, value // 2, 0, 1, value + 256,
                                value - 256, value + 64, -value, value + 4, value * 3]))
    value = float(word)
    value = draw.choice([value * 2, value / 2, 0.0, 1.0, value + 1.0, value * 1.001, -value, value + 1e-6, value * 10])
    text = repr(value)
    return text if "." in text or "e" in text else text + ".0"


def other_word(word, seen, draw):
    """Another word in place of one: a number, `true` or `false`, a text, or a word that stands in such places."""
    if NUMBER.match(word):
        return other_number(word, seen, draw)
    if word in ("true", "false"):
        return "false" if word == "true" else "true"
    if word.startswith('"'):
        others = [text for text in seen if text.startswith('"')]
        if others and draw.random() < 0.5:
            return draw.choice(others)
        at = draw.randint(1, max(1, len(word) - 2))
        return draw.choice([word[:at] + draw.choice("abx0. ") + word[at:], word[:1] + word[2:], '"x"', '""'])
    if seen:
        return draw.choice(seen)
    return word + "x" if draw.random() < 0.2 else word


def draw_of(*words):
    return random.Random("/".join(str(word) for word in words))
