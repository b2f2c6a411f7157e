"""Changes of ops. Each takes an Indexed plan and a generator, and returns what it did; None if it does not apply."""

from plan_index import CHANGES, change, replaced
from plan_text import CLAUSES, NUMBER, Op, other_word

PREDICATES = ["first", "not_first", "last", "not_last", "mb 0 to 0", "mb 1 to 2", "mb 0 to 1 every 2 to 9"]


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
