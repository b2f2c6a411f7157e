"""Changes of boundaries, programs, tables, the job, sources and the specification."""

from plan_index import CHANGES, Indexed, change, labels_of
from plan_ops import other_value
from plan_text import (CLAUSES, NUMBER, clauses_of, lines_of, other_word, packed, specification_of, words_of)


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


def groups_of(plan):
    """The names of groups, and the bracket behind them."""
    return [word for number in plan.by_kind.get("groups", []) for spot, word in enumerate(plan.lines[number])
            if spot > 1 and plan.lines[number][spot - 1] in ("{", "]")]


def axes_of(plan):
    return [word for number in plan.by_kind.get("mesh", []) for word in plan.lines[number]
            if word not in "{}=" and not NUMBER.match(word) and word != "mesh"]


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
            seen = [word for word in groups_of(plan) if word not in ("}", words[at])] or seen
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
                groups = groups_of(plan)
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
        words[-1:-1] = ["extra", "=", "[", draw.choice(axes_of(plan) or ["dp"]), "]"]
    plan.lines[row] = words
    return " ".join(words)


@change("groups: axes")
def _(plan, draw):
    row = plan.pick(draw, "groups")
    words, axes = list(plan.lines[row]), axes_of(plan)
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
