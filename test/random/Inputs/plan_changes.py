"""Changes of every kind that the text form of a plan knows, by name. Written from docs/plan.md alone."""

import plan_ops
import plan_tables
from plan_index import CHANGES, Indexed, Vocabulary, change
from plan_text import Op, other_word

__all__ = ["CHANGES", "Indexed", "Vocabulary", "plan_ops", "plan_tables"]

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
