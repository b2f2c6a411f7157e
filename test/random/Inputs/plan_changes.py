"""Changes of every kind that the text form of a plan knows. Written from docs/plan.md alone.

Each change takes an Indexed plan and a generator, changes its lines, and returns what it did; None if it does not apply.
"""

from plan_text import (CLAUSES, NUMBER, Op, TABLES, clauses_of, lines_of, other_word, packed, places_of,
                       specification_of, text_of, words_of)

PREDICATES = ["first", "not_first", "last", "not_last", "mb 0 to 0", "mb 1 to 2", "mb 0 to 1 every 2 to 9"]


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


# --- ops

@change("attribute: value")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: op.attributes)
    if row is None:
        return None
    at = draw.randrange(len(op.attributes))
    name, value = op.attributes[at]
    seen = [word for word in plan.vocabulary.words.get("attribute " + name, []) if word != " ".join(value)]
    if seen and draw.random() < 0.5:
        new = draw.choice(seen).split()
    else:
        new = list(value)
        spots = [spot for spot, word in enumerate(new) if word not in "[](),"]
        if not spots:
            return None
        spot = draw.choice(spots)
        new[spot] = other_word(new[spot], [word for words in seen for word in words.split() if word not in "[](),"],
                               draw)
    op.attributes[at] = (name, new)
    return replaced(plan, row, op, f"{op.name} {name} {' '.join(value)} -> {' '.join(new)}")


@change("attribute: dropped")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: op.attributes)
    if row is None:
        return None
    name, _ = op.attributes.pop(draw.randrange(len(op.attributes)))
    return replaced(plan, row, op, f"{op.name} {name}")


@change("attribute: added")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: True)
    if row is None:
        return None
    known = plan.vocabulary.attributes
    names = known.get(op.name.split(".")[0], []) if draw.random() < 0.8 else known[draw.choice(sorted(known))]
    names = [name for name in names if name and name != "-" and name not in dict(op.attributes)]
    if not names:
        return None
    name = draw.choice(names)
    value = draw.choice(plan.vocabulary.words.get("attribute " + name, []) + ["1", "true", "2", "0.5"])
    op.attributes.append((name, value.split()))
    return replaced(plan, row, op, f"{op.name} {name} = {value}")


def other_value(plan, draw, row, name, same):
    segment = plan.places[row].segment
    values = plan.values(segment)
    wanted = next((value[1] for value in values if value[0] == name), "")
    others = [value[0] for value in values if value[0] != name and (value[1] == wanted or not same) and
              (value[2] < row or draw.random() < 0.05)]
    return draw.choice(others) if others else None


@change("operand: another of its type")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: op.operands)
    if row is None:
        return None
    at = draw.randrange(len(op.operands))
    new = other_value(plan, draw, row, op.operands[at], True)
    if new is None:
        return None
    what = f"{op.name} operand {at} {op.operands[at]} -> {new}"
    op.operands[at] = new
    return replaced(plan, row, op, what)


@change("operand: any other")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: op.operands)
    if row is None:
        return None
    at = draw.randrange(len(op.operands))
    new = other_value(plan, draw, row, op.operands[at], False)
    if new is None:
        return None
    what = f"{op.name} operand {at} {op.operands[at]} -> {new}"
    op.operands[at] = new
    return replaced(plan, row, op, what)


@change("operand: two exchanged")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: len(op.operands) > 1)
    if row is None:
        return None
    first, second = draw.sample(range(len(op.operands)), 2)
    op.operands[first], op.operands[second] = op.operands[second], op.operands[first]
    return replaced(plan, row, op, f"{op.name} operands {first} and {second}")


@change("operand: dropped")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: op.operands)
    if row is None:
        return None
    return replaced(plan, row, op, f"{op.name} {op.operands.pop(draw.randrange(len(op.operands)))}")


@change("operand: added")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: True)
    if row is None:
        return None
    values = [value[0] for value in plan.values(plan.places[row].segment) if value[2] < row]
    if not values:
        return None
    op.operands.insert(draw.randint(0, len(op.operands)), draw.choice(values))
    return replaced(plan, row, op, f"{op.name} {' '.join(op.operands)}")


@change("result: two exchanged")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: len(op.results) > 1)
    if row is None:
        return None
    first, second = draw.sample(range(len(op.results)), 2)
    if draw.random() < 0.5:
        op.results[first], op.results[second] = op.results[second], op.results[first]
    else:
        op.specs[first], op.specs[second] = op.specs[second], op.specs[first]
    return replaced(plan, row, op, f"{op.name} results {first} and {second}")


@change("result: dropped")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: op.results)
    if row is None:
        return None
    at = draw.randrange(len(op.results))
    name = op.results.pop(at)
    op.specs.pop(at)
    new = other_value(plan, draw, row, name, True)
    if new and draw.random() < 0.7:
        use_instead(plan, row, plan.places[row].segment, name, new)
    return replaced(plan, row, op, f"{op.name} {name}")


@change("op: another name")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: True)
    if row is None:
        return None
    names = list(plan.vocabulary.words["op: name"])
    if draw.random() < 0.5:
        stem = op.name.split("_")[0].split(".")[0]
        names = [name for name in names if name.split("_")[0].split(".")[0] == stem] or names
    old, op.name = op.name, draw.choice(names)
    return replaced(plan, row, op, f"{old} -> {op.name}")


@change("op: epilogue")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: True)
    if row is None:
        return None
    stem = op.name.split(".")[0]
    old = op.name
    ends = [".quantize", ".quantize_blocks", ".quantize_delayed", ".amax", ""]
    op.name = stem + draw.choice([end for end in ends if stem + end != old])
    return replaced(plan, row, op, f"{old} -> {op.name}")


@change("op: dropped")
def _(plan, draw):
    """Drops an op. Lines after it may use earlier values of the same types instead of its results."""
    row, op = plan.pick_op(draw, lambda op: True)
    if row is None:
        return None
    if draw.random() < 0.8:
        for result in op.results:
            new = other_value(plan, draw, row, result, True)
            if new:
                use_instead(plan, row, plan.places[row].segment, result, new)
    del plan.lines[row]
    return f"{op.name} {' '.join(op.results)}"


def use_instead(plan, row, segment, old, new):
    """Lets the lines of a segment after a line use another value."""
    for number in plan.by_segment[segment]:
        if number > row:
            plan.lines[number] = [new if word == old and at else word
                                  for at, word in enumerate(plan.lines[number])]


@change("op: bypassed")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: op.operands and op.results)
    if row is None:
        return None
    segment = plan.places[row].segment
    types = {value[0]: value[1] for value in plan.values(segment)}
    pairs = [(result, operand) for at, result in enumerate(op.results) for operand in op.operands
             if types.get(operand) == op.type_of(at)]
    if not pairs:
        return None
    result, operand = draw.choice(pairs)
    use_instead(plan, row, segment, result, operand)
    if len(op.results) == 1 and draw.random() < 0.7:
        del plan.lines[row]
    return f"{op.name}: {operand} instead of {result}"


@change("op: again")
def _(plan, draw):
    """Repeats an op; its second result takes the place of the first one, and may be computed from it."""
    row, op = plan.pick_op(draw, lambda op: op.results)
    if row is None:
        return None
    segment = plan.places[row].segment
    types = {value[0]: value[1] for value in plan.values(segment)}
    again = Op(plan.lines[row])
    names = {result: plan.fresh(result, segment) for result in op.results}
    again.results = [names[result] for result in op.results]
    chained = draw.random() < 0.7
    if chained:
        for at, operand in enumerate(again.operands):
            same = [result for number, result in enumerate(op.results) if op.type_of(number) == types.get(operand)]
            if same:
                again.operands[at] = same[0]
    for old, new in names.items():
        if draw.random() < 0.8:
            use_instead(plan, row, segment, old, new)
    plan.lines.insert(row + 1, again.words())
    return f"{op.name}{' from its own result' if chained else ''}"


@change("op: moved")
def _(plan, draw):
    row = plan.pick(draw, "op")
    if row is None:
        return None
    rows = [number for number in plan.by_segment[plan.places[row].segment] if plan.places[number].kind == "op"]
    target = draw.choice(rows) if draw.random() < 0.4 else row + draw.choice([-1, 1, -2, 2, 3])
    if target not in rows or target == row:
        return None
    words = plan.lines.pop(row)
    plan.lines.insert(target, words)
    return f"{' '.join(words)[:60]} by {target - row}"


@change("op: into another segment")
def _(plan, draw):
    row, target = plan.pick(draw, "op"), plan.pick(draw, "op")
    if row is None or plan.places[row].segment == plan.places[target].segment:
        return None
    op, segment = Op(plan.lines[row]), plan.places[target].segment
    there = [value for value in plan.values(segment) if value[2] < target]
    types = {value[0]: value[1] for value in plan.values(plan.places[row].segment)}
    for at, operand in enumerate(op.operands):
        same = [value[0] for value in there if value[1] == types.get(operand)]
        if not same:
            return None
        op.operands[at] = operand if operand in same else draw.choice(same)
    op.results = [plan.fresh(result, segment) for result in op.results]
    op.clauses = [clause for clause in op.clauses if clause[0] not in ("after", "acc", "else")]
    plan.lines.insert(target, op.words())
    return f"{' '.join(op.words())[:80]}"


def _clause(key):
    def apply(plan, draw):
        kept = draw.random() < 0.75 or key in ("of", "role")
        row, op = plan.pick_op(draw, lambda op: not kept or any(name == key for name, _ in op.clauses))
        if row is None:
            return None
        at = next((at for at, clause in enumerate(op.clauses) if clause[0] == key), None)
        seen = plan.vocabulary.clauses.get("op " + key, [])
        if key == "if":
            seen = PREDICATES
        elif key in ("channel", "group", "unit", "on"):
            seen = [plan.lines[number][1] for number in plan.by_kind.get({"on": "stream"}.get(key, key), [])]
            if key == "group":
                seen = [word for number in plan.by_kind.get("groups", []) for word in plan.lines[number]
                        if word not in "{}[]=,"]
        choice = draw.random()
        if at is not None and choice < 0.25:
            op.clauses.pop(at)
        elif at is not None:
            old = op.clauses[at][1]
            new = list(old)
            if key in ("after", "acc", "else", "of") or not seen:
                spots = [spot for spot, word in enumerate(new) if word not in "(),=[]"]
                spot = draw.choice(spots) if spots else None
                if spot is None:
                    return None
                if new[spot].startswith("%"):
                    new[spot] = other_value(plan, draw, row, new[spot], key != "after" and draw.random() < 0.7)
                    if new[spot] is None:
                        return None
                elif NUMBER.match(new[spot]):
                    new[spot] = str(max(0, int(new[spot]) + draw.choice([-1, 1])))
                elif key in ("acc", "else"):
                    new[spot] = draw.choice(["first", "not_first", "last", "not_last", "if"])
                else:
                    new[spot] = other_word(new[spot], seen, draw)
                if key == "after" and draw.random() < 0.4:
                    new = [word for word in old if word != old[spot]]
            else:
                new = draw.choice(seen).split()
            op.clauses[at] = (key, new)
        else:
            new = (draw.choice(seen) if seen else "x").split()
            if key in ("after", "acc", "else"):
                values = [value[0] for value in plan.values(plan.places[row].segment) if value[2] < row]
                if not values:
                    return None
                name = draw.choice(values)
                if key != "after":
                    types = {value[0]: value[1] for value in plan.values(plan.places[row].segment)}
                    same = [value for value in values if types[value] == op.type_of(0)]
                    name = draw.choice(same or values)
                new = {"after": [name], "else": ["(", "0", "=", name, ")"],
                       "acc": ["(", "0", "=", name, "if", draw.choice(["not_first", "first"]), ")"]}[key]
            op.clauses.append((key, new))
            op.clauses.sort(key=lambda clause: CLAUSES["op"].index(clause[0]) if clause[0] in CLAUSES["op"] else -1)
        return replaced(plan, row, op, f"{op.name} {key} {' '.join(map(str, new)) if at is None or choice >= .25 else ''}")
    return apply


for _key in CLAUSES["op"]:
    CHANGES["clause: " + _key] = _clause(_key)


def _spec(name, spot_of):
    def apply(plan, draw):
        row, op = plan.pick_op(draw, lambda op: any(spot_of(spec) for spec in op.specs))
        if row is None:
            return None
        at = draw.choice([at for at, spec in enumerate(op.specs) if spot_of(spec)])
        spec = list(op.specs[at])
        spot = draw.choice(spot_of(spec))
        others = {"dtype": plan.vocabulary.words["dtype"], "arena": ["state", "work", "sym", "host"],
                  "purpose": ["params", "grads", "master_params", "optimizer_state", "activations", "comm", "data",
                              "step", "save_staging", "save_copies"]}.get(name, [])
        if name == "address":
            others = [other.specs[0][other.specs[0].index("at") + 2] for other in
                      (Op(plan.lines[number]) for number in draw.sample(plan.by_segment[plan.places[row].segment],
                                                                       1) if plan.places[number].kind == "op")
                      if other.specs and "at" in other.specs[0]]
        old = spec[spot]
        spec[spot] = other_word(old, [word for word in others if word != old], draw)
        op.specs[at] = spec
        return replaced(plan, row, op, f"{op.name} result {at}: {old} -> {spec[spot]}")
    return apply


def _numbers(spec, start, end):
    return [spot for spot in range(start, end) if NUMBER.match(spec[spot])]


def _before_place(spec):
    return [spec.index("at") - 1] if "at" in spec and spec[spec.index("at") - 1] != "]" else []


CHANGES["type: dtype"] = _spec("dtype", lambda spec: [0])
CHANGES["type: dims"] = _spec("dims", lambda spec: _numbers(spec, 1, spec.index("]")) if "]" in spec else [])
CHANGES["purpose"] = _spec("purpose", _before_place)
CHANGES["place: arena"] = _spec("arena", lambda spec: [spec.index("at") + 1] if "at" in spec else [])
CHANGES["place: address"] = _spec("address", lambda spec: [spec.index("at") + 2] if "at" in spec else [])
CHANGES["place: slots, index"] = _spec("slots", lambda spec: _numbers(spec, spec.index("at") + 3, len(spec))
                                       if "at" in spec else [])


@change("type: rows")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: any("rows" in spec for spec in op.specs) or draw.random() < 0.05)
    if row is None or not op.specs:
        return None
    at = draw.randrange(len(op.specs))
    spec = list(op.specs[at])
    counts = [value[0] for value in plan.values(plan.places[row].segment) if value[1].startswith("i32")]
    if "rows" in spec and draw.random() < 0.3:
        spot = spec.index("rows")
        del spec[spot:spot + 2]
    elif "rows" in spec and counts:
        spec[spec.index("rows") + 1] = draw.choice(counts)
    elif counts and "]" in spec:
        spec[spec.index("]") + 1:spec.index("]") + 1] = ["rows", draw.choice(counts)]
    op.specs[at] = spec
    return replaced(plan, row, op, f"{op.name} result {at} {' '.join(spec)[:60]}")


@change("phase")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: True)
    if row is None:
        return None
    old = list(op.tail)
    if draw.random() < 0.4:
        op.tail = [word for word in op.tail if word != "recomputed"] if "recomputed" in op.tail else (
            op.tail[:1] + ["recomputed"] + op.tail[1:] if op.tail[:1] == ["backward"] else ["recomputed"] + op.tail)
    else:
        op.tail = [word for word in op.tail if word not in ("forward", "backward", "update", "other")]
        op.tail = draw.choice([["forward"], ["backward"], ["update"], ["other"], []]) + op.tail
    return replaced(plan, row, op, f"{op.name} {' '.join(old)} -> {' '.join(op.tail)}")


@change("op: loc")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: "loc" in op.tail)
    if row is None:
        return None
    op.tail[-1] = other_word(op.tail[-1], [], draw)
    return replaced(plan, row, op, f"{op.name} {' '.join(op.tail)}")


# --- boundaries of segments, and programs

def _boundary(kind):
    def apply(plan, draw):
        row = plan.pick(draw, kind)
        if row is None:
            return None
        words = list(plan.lines[row])
        choice = draw.choice(["cell", "cell", "value", "dropped", "again", "mb", "more", "place", "exchanged"])
        role = plan.places[row].role
        same = [number for number in plan.by_segment[plan.places[row].segment]
                if plan.places[number].kind == kind and number != row]
        cell_at, value_at = (3, 1) if kind == "in" else (1, 3)
        if choice == "cell":
            wanted = plan.type_of_cell(words[cell_at], role)
            cells = [plan.lines[number][1] for number in plan.by_kind["cell"] if plan.places[number].role == role]
            cells = [cell for cell in cells if cell != words[cell_at] and
                     (plan.type_of_cell(cell, role) == wanted or draw.random() < 0.1)]
            if not cells:
                return None
            words[cell_at] = draw.choice(cells)
        elif choice == "value":
            new = other_value(plan, draw, row, words[value_at], draw.random() < 0.8)
            if new is None:
                return None
            words[value_at] = new
        elif choice == "dropped":
            del plan.lines[row]
            return f"{' '.join(words)} dropped"
        elif choice == "again":
            plan.lines.insert(row, list(words))
            return f"{' '.join(words)} again"
        elif choice == "mb":
            words = words[:4] + draw.choice([["mb", "+", "1"], ["mb", "-", "1"], []]) + [
                word for at, word in enumerate(words[4:], 4) if not (word == "mb" or words[at - 1] == "mb" or
                                                                     words[at - 2] == "mb")]
        elif choice == "more":
            if kind == "out":
                words = [word for word in words if word != "droppable"] if "droppable" in words else words + ["droppable"]
            else:
                counts = [value[0] for value in plan.values(plan.places[row].segment) if value[1].startswith("i32")]
                if "rows" in words:
                    words[words.index("rows") + 1] = draw.choice(counts or ["%x"])
                elif counts:
                    words[4:4] = ["rows", draw.choice(counts)]
        elif choice == "place":
            spots = [spot for spot in range(4, len(words)) if NUMBER.match(words[spot])]
            if not spots:
                return None
            spot = draw.choice(spots)
            words[spot] = other_word(words[spot], [], draw)
        elif choice == "exchanged":
            if not same:
                return None
            other = draw.choice(same)
            there = list(plan.lines[other])
            if plan.type_of_cell(words[cell_at], role) != plan.type_of_cell(there[cell_at], role) and draw.random() < .9:
                return None
            words[cell_at], there[cell_at] = there[cell_at], words[cell_at]
            plan.lines[other] = there
        plan.lines[row] = words
        return f"{choice}: {' '.join(words)}"
    return apply


CHANGES["in"] = _boundary("in")
CHANGES["out"] = _boundary("out")


def block_end(plan, row):
    """The line that closes what a line opens."""
    depth = 0
    for number in range(row, len(plan.lines)):
        depth += plan.lines[number].count("{") - plan.lines[number].count("}")
        if depth == 0:
            return number
    return row


@change("program: count")
def _(plan, draw):
    row = plan.pick(draw, "run", "steps", "every", "loop")
    words = list(plan.lines[row])
    spots = [spot for spot, word in enumerate(words) if NUMBER.match(word)]
    if not spots:
        if words[0] != "run":
            return None
        words += draw.choice([["2"], ["0"], ["mb", "0"], ["mb", "i"], ["1"]])
    else:
        spot = draw.choice(spots)
        words[spot] = str(max(0, int(words[spot]) + draw.choice([-1, 1, 1, 2, -2])))
    plan.lines[row] = words
    return " ".join(words)


@change("program: segment")
def _(plan, draw):
    row = plan.pick(draw, "run", "start")
    words = list(plan.lines[row])
    names = [plan.lines[number][1] for number in plan.by_kind["segment"]
             if plan.places[number].role == plan.places[row].role and plan.lines[number][1] != words[1]]
    if not names:
        return None
    words[1] = draw.choice(names)
    plan.lines[row] = words
    return " ".join(words)


@change("program: dropped")
def _(plan, draw):
    row = plan.pick(draw, "run", "start", "every", "loop", "steps")
    words = plan.lines[row]
    del plan.lines[row:block_end(plan, row) + 1]
    return " ".join(words)


@change("program: again")
def _(plan, draw):
    row = plan.pick(draw, "run", "start", "every", "loop", "steps")
    end = block_end(plan, row) + 1
    words = list(plan.lines[row])
    target = draw.choice([end, end] + [plan.pick(draw, "run", "every", "loop")])
    plan.lines[target:target] = [list(line) for line in plan.lines[row:end]]
    return " ".join(words)


@change("program: order")
def _(plan, draw):
    row = plan.pick(draw, "run", "every", "loop")
    end = block_end(plan, row) + 1
    if end >= len(plan.lines) or plan.places[end].kind not in ("run", "every", "loop", "steps"):
        return None
    other = block_end(plan, end) + 1
    what = " ".join(plan.lines[row])
    plan.lines[row:other] = plan.lines[end:other] + plan.lines[row:end]
    return what


@change("program: wrapped")
def _(plan, draw):
    row = plan.pick(draw, "run", "every", "loop")
    end = block_end(plan, row) + 1
    around = draw.choice([["loop", "1"], ["loop", "2"], ["every", "1"], ["every", "2"]])
    what = " ".join(around + plan.lines[row])
    plan.lines[end:end] = [["}"]]
    plan.lines[row:row] = [around + ["{"]]
    return what


@change("program: added")
def _(plan, draw):
    row = plan.pick(draw, "run")
    names = [plan.lines[number][1] for number in plan.by_kind["segment"]
             if plan.places[number].role == plan.places[row].role]
    words = ["run", draw.choice(names)] + draw.choice([[], [], ["2"], ["mb", "0"]])
    plan.lines.insert(row + draw.randint(0, 1), words)
    return " ".join(words)


@change("segment")
def _(plan, draw):
    row = plan.pick(draw, "segment")
    words = list(plan.lines[row])
    choice = draw.choice(["kind", "body", "before", "dropped", "order", "name"])
    end = block_end(plan, row) + 1
    if choice == "kind":
        words[2] = draw.choice(["train", "forward", "backward", "steady", "eval", "init", "prologue", "begin", "update",
                                "stage", "snapshot", "other"])
    elif choice == "body":
        words = [word for word in words if word != "body"] if "body" in words else words[:-1] + ["body", "{"]
    elif choice == "before":
        name = plan.lines[plan.pick(draw, "segment")][1]
        words = words[:words.index("before")] + ["{"] if "before" in words and draw.random() < 0.5 else (
            words[:-1] + ["before", name, "{"] if "before" not in words else
            words[:words.index("before")] + ["before", name, "{"])
    elif choice == "name":
        words[1] = plan.lines[plan.pick(draw, "segment")][1] if draw.random() < 0.7 else words[1] + "x"
    elif choice == "dropped":
        del plan.lines[row:end]
        return f"dropped {' '.join(words)}"
    elif plan.places[end].kind == "segment":
        other = block_end(plan, end) + 1
        plan.lines[row:other] = plan.lines[end:other] + plan.lines[row:end]
        return f"order {' '.join(words)}"
    plan.lines[row] = words
    return f"{choice}: {' '.join(words)}"


# --- tables

def _table_word(label):
    kind = label.split(":")[0]

    def apply(plan, draw):
        sites = [(number, at) for number in plan.by_kind.get(kind, [])
                 for found, at in labels_of(kind, plan.lines[number]) if found == label]
        if not sites:
            return None
        row, at = draw.choice(sites)
        words = list(plan.lines[row])
        own = [plan.lines[number][spot] for number, spot in sites if plan.lines[number][spot] != words[at]]
        seen = own if own and draw.random() < 0.7 else [
            word for word in plan.vocabulary.words.get(label, []) if word != words[at]]
        if label.split(": ")[-1] in ("over", "sum", "copies", "split", "group", "state") and draw.random() < 0.7:
            groups = [word for number in plan.by_kind.get("groups", []) for spot, word in
                      enumerate(plan.lines[number]) if spot > 1 and (plan.lines[number][spot - 1] in ("{", "]"))]
            seen = [word for word in groups if word not in ("}", words[at])] or seen
        old, words[at] = words[at], other_word(words[at], seen, draw)
        plan.lines[row] = words
        return f"{' '.join(words[:3])[:60]} ...: {old} -> {words[at]}"
    return apply


LABELS = [f"{kind}: {label}" for kind, labels in {
    "needs": ["backend", "gpu", "device_bytes"], "stream": ["name", "kind"],
    "channel": ["name", "group", "pair", "via", "multiprocessors", "stream"], "unit": ["name", "kind"],
    "block": ["name", "unit", "numel", "shard", "over", "state", "sum", "as"],
    "param": ["name", ":", "dims", "stacked", "row", "of", "split", "over", "parts", "copies", "turns", "block", "at",
              "lr", "wd", "decoupled", "init"],
    "cell": ["name", "kind", "of", ":", "dims", "rows", "in", "for", "at", "slots", "stride"],
    "class": ["name", "frozen", "by"], "loc": ["name", "kind"], "arenas": ["state", "work", "sym", "host"],
    "beside": ["communicators", "landings", "workspaces"], "data": ["name"],
}.items() for label in labels] + ["mesh", "groups"]
for _label in LABELS:
    CHANGES["table " + _label] = _table_word(_label)


def _table_line(kind):
    def apply(plan, draw):
        row = plan.pick(draw, kind)
        if row is None:
            return None
        words = list(plan.lines[row])
        choice = draw.choice(["dropped", "again"] + 2 * ["order", "clause dropped"] + 3 * ["clause added"])
        if choice == "dropped":
            del plan.lines[row]
        elif choice == "again":
            plan.lines.insert(row, words)
        elif choice == "order":
            other = plan.pick(draw, kind)
            if other == row or plan.places[other].role != plan.places[row].role:
                return None
            plan.lines[row], plan.lines[other] = plan.lines[other], plan.lines[row]
        else:
            clauses = clauses_of(kind, words)
            if choice == "clause dropped":
                if len(clauses) < 2:
                    return None
                clauses.pop(draw.randrange(1, len(clauses)))
            else:
                keys = [key for key in CLAUSES.get(kind, []) if key != ":"]
                if not keys:
                    return None
                key = draw.choice(keys)
                seen = plan.vocabulary.clauses.get(f"{kind} {key}", []) or ["2"]
                clause = [key] + ([] if key in ("frozen", "decoupled") else draw.choice(seen).split())
                groups = [word for number in plan.by_kind.get("groups", []) for spot, word in
                          enumerate(plan.lines[number]) if spot > 1 and (plan.lines[number][spot - 1] in ("{", "]"))]
                clause = [draw.choice(groups) if before in ("over", "sum", "group") and groups else word
                          for before, word in zip([""] + clause, clause)]
                clauses = [clauses[0]] + [other for other in clauses[1:] if other[0] != key or key == "split"] + [clause]
                order = CLAUSES[kind]
                clauses[1:] = sorted(clauses[1:], key=lambda other: order.index(other[0]))
            plan.lines[row] = [word for clause in clauses for word in clause]
        return f"{choice}: {' '.join(plan.lines[row] if 'clause' in choice else words)[:120]}"
    return apply


for _kind in ("stream", "channel", "unit", "block", "param", "class", "cell", "data", "loc", "arenas", "beside", "needs"):
    CHANGES["line " + _kind] = _table_line(_kind)


@change("groups: kinds")
def _(plan, draw):
    row = plan.pick(draw, "groups")
    words = list(plan.lines[row])
    kinds = ["outer", "context", "tensor", "stages", "expert", "expert_tensor", "expert_data"]
    spots = [at for at, word in enumerate(words) if word in kinds]
    choice = draw.random()
    if spots and choice < 0.4:
        words[draw.choice(spots)] = draw.choice(kinds)
    elif spots and choice < 0.6:
        del words[draw.choice(spots)]
    elif choice < 0.85:
        at = draw.choice([at for at, word in enumerate(words) if word == "=" ])
        words[at:at] = [draw.choice(kinds)]
    else:
        axes = [word for number in plan.by_kind.get("mesh", []) for word in plan.lines[number]
                if word not in "{}=" and not NUMBER.match(word) and word != "mesh"]
        words[-1:-1] = ["extra", "=", "[", draw.choice(axes or ["dp"]), "]"]
    plan.lines[row] = words
    return " ".join(words)


@change("groups: axes")
def _(plan, draw):
    row = plan.pick(draw, "groups")
    words = list(plan.lines[row])
    axes = [word for number in plan.by_kind.get("mesh", []) for word in plan.lines[number]
            if word not in "{}=" and not NUMBER.match(word) and word != "mesh"]
    inside, spots = False, []
    for at, word in enumerate(words):
        inside = word == "[" or (inside and word != "]")
        if inside and word not in "[,":
            spots.append(at)
    if not spots or not axes:
        return None
    at = draw.choice(spots)
    if draw.random() < 0.5:
        words[at] = draw.choice(axes)
    elif draw.random() < 0.5:
        words[at:at + 1] = [words[at], ",", draw.choice(axes)]
    else:
        words[at:at + 1] = []
    plan.lines[row] = words
    return " ".join(words)


@change("mesh: order")
def _(plan, draw):
    row = plan.pick(draw, "mesh")
    words = list(plan.lines[row])
    spots = [at for at, word in enumerate(words) if word == "="]
    if len(spots) < 2:
        return None
    first, second = draw.sample(spots, 2)
    words[first - 1], words[second - 1] = words[second - 1], words[first - 1]
    if draw.random() < 0.5:
        words[first + 1], words[second + 1] = words[second + 1], words[first + 1]
    plan.lines[row] = words
    return " ".join(words)


@change("role")
def _(plan, draw):
    row = plan.pick(draw, "role")
    words = list(plan.lines[row])
    spots = [at for at in range(1, len(words)) if words[at] not in "{}=,"]
    at = draw.choice(spots)
    old, words[at] = words[at], other_word(words[at], ["head", "all", "dp", "pp", "0", "1"], draw)
    plan.lines[row] = words
    return f"{old} -> {words[at]}"


@change("head")
def _(plan, draw):
    row = plan.pick(draw, "head")
    words = list(plan.lines[row])
    at = draw.randrange(1, len(words))
    words[at] = other_word(words[at], ["placed", "scheduled", "sharded", "logical"], draw)
    plan.lines[row] = words
    return " ".join(words)


# --- the job

def whole(plan, row):
    """A line of the job, with the lines that follow it if it is longer."""
    return plan.lines[row][0]


@change("job: value")
def _(plan, draw):
    row = plan.pick(draw, "job")
    words = list(plan.lines[row])
    spots = [at for at in range(2, len(words)) if words[at] not in "[],"]
    seen = [word for word in plan.vocabulary.fields.get(words[0], []) if word != " ".join(words[2:])]
    if seen and (draw.random() < 0.5 or not spots):
        words[2:] = words_of(draw.choice(seen))
    elif spots:
        at = draw.choice(spots)
        words[at] = other_word(words[at], [], draw)
    else:
        words[2:] = ["[", '"x"', "]"]
    old, plan.lines[row] = plan.lines[row], words
    return f"{' '.join(old)} -> {' '.join(words[2:])}"


@change("job: dropped")
def _(plan, draw):
    row = plan.pick(draw, "job")
    return " ".join(plan.lines.pop(row))


@change("job: added")
def _(plan, draw):
    row = plan.pick(draw, "job")
    there = {plan.lines[number][0] for number in plan.by_kind["job"]}
    names = [name for name in sorted(plan.vocabulary.fields) if name not in there and plan.vocabulary.fields[name]]
    if draw.random() < 0.1:
        words = [draw.choice(["env.NCCL_DEBUG", "env.OMP_NUM_THREADS", "env.CUDA_DEVICE_MAX_CONNECTIONS"]), "=", '"1"']
    else:
        name = draw.choice(names)
        words = [name, "=", *words_of(draw.choice(plan.vocabulary.fields[name]))]
    plan.lines.insert(row, words)
    return " ".join(words)


# --- sources and the specification

@change("source")
def _(plan, draw):
    row = plan.pick(draw, "source", "source name")
    words = list(plan.lines[row])
    if plan.places[row].kind == "source":
        words[0] = other_word(words[0], [], draw)
        if draw.random() < 0.3:
            del plan.lines[row]
            return "a piece dropped"
    elif draw.random() < 0.5:
        words[1] = draw.choice(["base", "recipe", "overlay", "setting"])
    else:
        words[2] = other_word(words[2], [], draw)
    plan.lines[row] = words
    return " ".join(words)


@change("specification")
def _(plan, draw):
    """Changes one word of the text of the specification, and packs it again."""
    row = plan.pick(draw, "specification")
    if row is None:
        return None
    part = plan.places[row].part
    rows, text = specification_of(plan.lines, plan.places, part)
    inner = Indexed(lines_of(text), plan.vocabulary)
    name = draw.choice([name for name in CHANGES if name not in ("specification", "source", "head", "place: address",
                                                                 "place: arena", "place: slots, index")])
    try:
        what = CHANGES[name](inner, draw)
    except (IndexError, KeyError, ValueError, TypeError):
        return None
    if what is None:
        return None
    plan.lines[rows[0]:rows[-1] + 1] = packed(inner.text())
    return f"{name}: {what}"


# --- the same change in many places

@change("everywhere: address")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: any("at" in spec for spec in op.specs))
    if row is None:
        return None
    spec = draw.choice([spec for spec in op.specs if "at" in spec])
    old = spec[spec.index("at"):spec.index("at") + 3]
    role = plan.places[row].role
    others = [words[at + 2] for number, words in enumerate(plan.lines) if plan.places[number].role == role
              for at in range(len(words) - 2) if words[at:at + 2] == old[:2] and words[at + 2] != old[2]]
    new = old[:2] + [draw.choice(others) if others and draw.random() < 0.5 else other_word(old[2], [], draw)]
    for number, words in enumerate(plan.lines):
        if plan.places[number].role == role:
            plan.lines[number] = [new[2] if at > 1 and words[at - 2:at + 1] == old else word
                                  for at, word in enumerate(words)]
    return f"{' '.join(old)} -> {new[2]}"


@change("everywhere: attribute")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: op.attributes)
    if row is None:
        return None
    name, value = draw.choice(op.attributes)
    spots = [spot for spot, word in enumerate(value) if word not in "[](),"]
    if not spots:
        return None
    new = list(value)
    spot = draw.choice(spots)
    new[spot] = other_word(new[spot], [], draw)
    one = draw.random() < 0.5
    for number in plan.by_kind["op"]:
        other = Op(plan.lines[number])
        if (other.name == op.name or not one) and (name, value) in other.attributes:
            other.attributes[other.attributes.index((name, value))] = (name, new)
            plan.lines[number] = other.words()
    return f"{op.name if one else 'all'} {name} {' '.join(value)} -> {' '.join(new)}"


@change("everywhere: op")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: True)
    if row is None:
        return None
    stem = op.name.split("_")[0].split(".")[0]
    names = [name for name in plan.vocabulary.words["op: name"]
             if name.split("_")[0].split(".")[0] == stem and name != op.name]
    if not names:
        return None
    new = draw.choice(names)
    for number in plan.by_kind["op"]:
        other = Op(plan.lines[number])
        if other.name == op.name:
            other.name = new
            plan.lines[number] = other.words()
    return f"{op.name} -> {new}"


@change("everywhere: names exchanged")
def _(plan, draw):
    """Exchanges two names of a table in all lines but those of the table itself."""
    kind = draw.choice(["block", "unit", "channel", "cell", "class", "stream"])
    first, second = plan.pick(draw, kind), plan.pick(draw, kind)
    if first is None or first == second:
        return None
    names = plan.lines[first][1], plan.lines[second][1]
    table = draw.random() < 0.7
    for number, words in enumerate(plan.lines):
        if plan.places[number].kind != kind or not table:
            plan.lines[number] = [names[1] if word == names[0] else names[0] if word == names[1] else word
                                  for word in words]
    return f"{kind} {' and '.join(names)}"


@change("everywhere: type")
def _(plan, draw):
    row, op = plan.pick_op(draw, lambda op: op.specs)
    if row is None:
        return None
    old = op.specs[0][0]
    new = draw.choice([word for word in ["f32", "bf16", "f16", "f64"] if word != old])
    name = op.results[0]
    for number in plan.by_segment[plan.places[row].segment]:
        if plan.places[number].kind == "op" and name in plan.lines[number]:
            other = Op(plan.lines[number])
            other.specs = [[new] + spec[1:] if spec[0] == old else spec for spec in other.specs]
            plan.lines[number] = other.words()
    return f"{name} {old} -> {new}"


@change("everywhere: addresses exchanged")
def _(plan, draw):
    """Exchanges the addresses of two values of an arena in all lines of a role."""
    row, op = plan.pick_op(draw, lambda op: any("at" in spec for spec in op.specs))
    if row is None:
        return None
    spec = draw.choice([spec for spec in op.specs if "at" in spec])
    first, role = spec[spec.index("at"):spec.index("at") + 3], plan.places[row].role
    others = [words[at:at + 3] for number, words in enumerate(plan.lines) if plan.places[number].role == role
              for at in range(len(words) - 2) if words[at:at + 2] == first[:2] and words[at:at + 3] != first]
    if not others:
        return None
    second = draw.choice(others)
    for number, words in enumerate(plan.lines):
        if plan.places[number].role == role:
            plan.lines[number] = [second[2] if words[max(0, at - 2):at + 1] == first else
                                  first[2] if words[max(0, at - 2):at + 1] == second else word
                                  for at, word in enumerate(words)]
    return f"{' '.join(first)} and {second[2]}"


@change("everywhere: renamed")
def _(plan, draw):
    """Gives a name that is for people another text in all places: nothing may depend on it."""
    kind = draw.choice(["unit", "channel", "stream", "cell", "segment", "value", "role", "block", "class"])
    if kind == "value":
        row, op = plan.pick_op(draw, lambda op: op.results)
        old = op.results[0]
        rows = plan.by_segment[plan.places[row].segment]
    else:
        row = plan.pick(draw, kind)
        if row is None:
            return None
        old = plan.lines[row][1]
        rows = range(len(plan.lines))
    new = old + draw.choice(["x", ".all", "2", ".embedding"])
    for number in rows:
        if plan.places[number].kind not in ("source", "source name", "specification", "job"):
            plan.lines[number] = [new if word == old and (at or kind == "value") else word
                                  for at, word in enumerate(plan.lines[number])]
    return f"{kind} {old} -> {new}"


# --- changes of ops in certain parts of a plan

TALLIES = {"router_losses", "expert_load", "prediction_losses", "preference_sums", "expert_bias", "amax_history",
           "amax_seen", "gradient_squares"}


def tallied(plan):
    """The lines of the ops from which the figures follow that the host reads."""
    cells = {(plan.places[number].role, plan.lines[number][1]) for number in plan.by_kind.get("cell", [])
             if plan.lines[number][2] in TALLIES}
    found = []
    for rows in plan.by_segment.values():
        wanted = {plan.lines[number][3] for number in rows if plan.places[number].kind == "out" and
                  (plan.places[number].role, plan.lines[number][1]) in cells}
        wanted |= {plan.lines[number][1] for number in rows if plan.places[number].kind == "in" and
                   (plan.places[number].role, plan.lines[number][3]) in cells}
        depth = 0
        for number in reversed(rows):
            if plan.places[number].kind == "op":
                op = Op(plan.lines[number])
                if wanted & set(op.results) or wanted & set(op.operands):
                    found.append(number)
                    if depth < 12:
                        wanted |= set(op.operands)
                        depth += 1
    return found


def inside(*kinds):
    def rows(plan):
        found = []
        for numbers in plan.by_segment.values():
            if len(plan.lines[numbers[0]]) > 2 and plan.lines[numbers[0]][2] in kinds:
                found += [number for number in numbers if plan.places[number].kind == "op"]
        return found
    return rows


PARTS = {"tally": tallied, "evaluation": inside("eval"), "update": inside("update"), "start": inside("init"),
         "begin": inside("prologue", "begin"), "save": inside("stage", "snapshot")}
OF_OPS = ["attribute: value", "attribute: added", "attribute: dropped", "operand: another of its type",
          "operand: two exchanged", "op: bypassed", "op: again", "op: dropped", "op: another name", "op: moved",
          "clause: acc", "clause: else", "clause: if", "clause: of", "clause: group", "clause: channel", "clause: after",
          "result: two exchanged", "everywhere: op", "everywhere: type"]


def _part(part):
    def apply(plan, draw):
        plan.focus = PARTS[part](plan)
        name = draw.choice(OF_OPS)
        try:
            what = CHANGES[name](plan, draw) if plan.focus else None
        finally:
            plan.focus = None
        return what and f"{name}: {what}"
    return apply


for _name in PARTS:
    CHANGES["part: " + _name] = _part(_name)
