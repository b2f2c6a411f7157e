"""A plan with what changes look up in it, and the words that the plans of all jobs have in each place."""

from plan_text import CLAUSES, NUMBER, TABLES, Op, clauses_of, places_of, text_of


class Vocabulary:
    """Words of the plans of all jobs, by their places; ops and fields of the pages of docs/."""

    def __init__(self):
        self.words, self.clauses, self.attributes, self.fields, self.lines = {}, {}, {}, {}, {}

    def add(self, lines):
        for words, place in zip(lines, places_of(lines)):
            if place.kind == "op":
                op = Op(words)
                self._note("op: name", [op.name])
                for name, value in op.attributes:
                    self._note("attribute " + name, [" ".join(value)])
                    self._put(self.attributes, op.name, name)
                for name, value in op.clauses:
                    self._put(self.clauses, "op " + name, " ".join(value))
                for spec in op.specs:
                    self._note("dtype", spec[:1])
            elif place.kind == "job":
                self._put(self.fields, words[0], " ".join(words[2:]))
            elif place.kind in CLAUSES:
                for clause in clauses_of(place.kind, words)[1:]:
                    self._put(self.clauses, place.kind + " " + clause[0], " ".join(clause[1:]))
            if place.kind in TABLES or place.kind in ("cell", "segment", "in", "out"):
                for label, at in labels_of(place.kind, words):
                    self._note(label, [words[at]])

    def _note(self, label, words):
        for word in words:
            self._put(self.words, label, word)

    @staticmethod
    def _put(table, key, value):
        found = table.setdefault(key, [])
        if value not in found and len(found) < 200:
            found.append(value)

    def read_pages(self, folder):
        """Attributes of ops (ops.md), and fields of the job with a value that differs from the default (job.md)."""
        name = ""
        for line in (folder / "ops.md").read_text().splitlines():
            if line.startswith("## "):
                name = line[3:].strip().strip("`")
            elif line.startswith("- attributes:") and name:
                for word in line.split(":", 1)[1].replace("`", "").split(","):
                    self._put(self.attributes, name, word.strip().rstrip("~!?"))
        for line in (folder / "job.md").read_text().splitlines():
            cells = [cell.strip() for cell in line.replace("\\|", " ").strip("|").split("|")]
            if len(cells) == 4 and cells[0].startswith("`"):
                self.fields.setdefault(cells[0].strip("`"), [])
                for value in self._values(cells[1], cells[2]):
                    self._put(self.fields, cells[0].strip("`"), value)

    @staticmethod
    def _values(takes, default):
        if takes.startswith("a word in quotes:"):
            return [f'"{word.strip()}"' for word in takes.split(":", 1)[1].split(",")]
        if takes.startswith("a list of words in quotes:"):
            return [f'["{word.strip()}"]' for word in takes.split(":", 1)[1].split(",")]
        if takes.startswith("a whole number"):
            return ["1", "2", "3", "16"]
        if takes.startswith("a number"):
            return ["0.5", "1.0", "2.0", "0.001"]
        if takes.startswith("true"):
            return ["false" if default == "true" else "true"]
        return ['["x"]', '["1"]', "[]"] if takes.startswith("a list") else ['"x"', '""']


def labels_of(kind, words):
    """What each word of a line of a table is that may be replaced: [(label, its place)]."""
    found, key = [], ""
    for at, word in enumerate(words[1:], 1):
        if word in "{}[](),:=*+-":
            continue
        if at + 1 < len(words) and words[at + 1] == "=" and kind not in ("out", "in"):
            key = word
            continue
        if word in CLAUSES.get(kind, []) + ["over", "by", "parts", "to", "row"] and at > 1:
            key = word
            if word in ("frozen", "decoupled", "droppable"):
                found.append((f"{kind}: {key}", at))
            continue
        label = key or ("name" if at == 1 else "kind")
        if kind in ("mesh", "groups", "needs", "beside", "arenas"):
            label = "" if kind in ("mesh", "groups") else key
        if label in (":", "of") and NUMBER.match(word):
            label = "dims"
        found.append((f"{kind}: {label}".rstrip(": "), at))
    return found


class Indexed:
    """A plan as lines, with what changes look up in it."""

    def __init__(self, lines, vocabulary):
        self.lines, self.vocabulary, self.focus = [list(line) for line in lines], vocabulary, None
        self.read()

    def read(self):
        self.places = places_of(self.lines)
        self.by_kind, self.by_segment = {}, {}
        for number, place in enumerate(self.places):
            self.by_kind.setdefault(place.kind, []).append(number)
            if place.segment:
                self.by_segment.setdefault(place.segment, []).append(number)

    def pick(self, draw, *kinds):
        rows = [number for kind in kinds for number in self.by_kind.get(kind, [])]
        return draw.choice(rows) if rows else None

    def pick_op(self, draw, wanted):
        """An op for which `wanted` holds, with its line. Kinds of ops are drawn first, so that rare ones are reached."""
        rows = self.focus if self.focus is not None else self.by_kind.get("op", [])
        if not rows:
            return None, None
        if draw.random() < 0.6:
            names = {}
            for row in rows:
                words = self.lines[row]
                names.setdefault(words[words.index("=") + 1] if "=" in words and words[0][0] == "%" else words[0],
                                 []).append(row)
            for _ in range(12):
                row = draw.choice(names[draw.choice(sorted(names))])
                op = Op(self.lines[row])
                if wanted(op):
                    return row, op
        for _ in range(40):
            row = draw.choice(rows)
            op = Op(self.lines[row])
            if wanted(op):
                return row, op
        return None, None

    def values(self, segment):
        """The values of a segment in their order: name, type, line."""
        found = []
        for number in self.by_segment.get(segment, []):
            words, kind = self.lines[number], self.places[number].kind
            if kind == "op":
                op = Op(words)
                found += [(name, op.type_of(at), number) for at, name in enumerate(op.results)]
            elif kind == "in":
                found.append((words[1], self.type_of_cell(words[3], self.places[number].role), number))
        return found

    def type_of_cell(self, cell, role):
        for number in self.by_kind.get("cell", []):
            words = self.lines[number]
            if words[1] == cell and self.places[number].role == role:
                at = words.index(":")
                return " ".join(words[at + 1:words.index("]", at) + 1])
        return ""

    def fresh(self, name, segment):
        taken = {value[0] for value in self.values(segment)}
        number = 2
        while f"{name}.x{number}" in taken:
            number += 1
        return f"{name}.x{number}"

    def text(self):
        return text_of(self.lines)


CHANGES = {}


def change(name):
    def add(function):
        CHANGES[name] = function
        return function
    return add


def replaced(plan, row, op, what):
    plan.lines[row] = op.words()
    return what
