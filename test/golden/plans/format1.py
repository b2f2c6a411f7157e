"""Reads a plan of format 1 (docs/plan.md) into `model`. Does not check the text: compilers print it, and verifiers
check it."""

import re

import model

TOKEN = re.compile(r'[%@]?"(?:[^"\\]|\\.)*"|//[^\n]*|-?\d[\d.]*(?:[eE][+-]?\d+)(?![\w.$-])|[%@]?[\w.$-]+|[^\s]')
ESCAPE = re.compile(r'\\(x[0-9a-fA-F]{2}|.)')
ALIASES = {"view", "pack"}  # execute nothing, so they have no place in a stream
# Attributes that are words or bools, and integer attributes. All others are floating-point numbers.
WORDS = {"decay_style", "wsd_decay_style"}
# Cells that the host knows by name. A cell of a block has this prefix in its name.
HOST_CELLS = {"feed", "eval_feed", "stop", "step"}
STATE_CELLS = {"master": "master", "w": "weight", "m": "first_moment", "v": "second_moment"}


def text_of(word):
    """The text of a string, or a name without its sigil."""
    if word[0] in "%@":
        word = word[1:]
    if word[:1] != '"':
        return word
    return ESCAPE.sub(lambda found: {"n": "\n"}.get(found[1], chr(int(found[1][1:], 16)) if found[1][0] == "x"
                                                     and len(found[1]) == 3 else found[1]), word[1:-1])


def number_of(word):
    """A bool, an integer, a floating-point number, or the word itself."""
    if word in ("true", "false"):
        return word == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


class Reader:
    VERSION = "1"

    def __init__(self, text):
        self.words = [word for word in TOKEN.findall(text) if not word.startswith("//")] + [""]  # an end mark
        self.at = 0
        self.units, self.blocks, self.axes, self.groups = {}, {}, [], {}
        self.plan = None
        self.found = {"needs": {}, "job": {}, "blocks": [], "params": [], "roles": []}

    def peek(self):
        return self.words[self.at]

    def next(self):
        self.at += 1
        return self.words[self.at - 1]

    def take(self, word):
        if self.words[self.at] != word:  # the most expensive part
            return False
        self.at += 1
        return True

    def expect(self, word):
        if not self.take(word):
            raise ValueError(f"expected '{word}', found '{self.peek()}' behind '{' '.join(self.words[self.at - 12:self.at])}'")

    def integer(self):
        return int(self.next())

    def name(self):
        return text_of(self.next())

    def read(self):
        self.expect("shardc.plan")
        self.expect(self.VERSION)
        level = self.next()
        self.next()
        if self.take("hash"):
            self.next()
        while self.peek():
            getattr(self, "read_" + self.next())()
        return model.Plan(level=level, mesh=model.Mesh(tuple(self.axes)), **self.found)

    def read_needs(self):
        self.expect("{")
        while not self.take("}"):
            key = self.next()
            self.expect("=")
            self.found["needs"][key] = self.name()

    def read_job(self):
        self.expect("{")
        while not self.take("}"):
            key = self.next()
            self.expect("=")
            if not self.take("["):
                word = self.next()
                self.found["job"][key] = text_of(word) if word[0] == '"' else number_of(word)
                continue
            items = self.found["job"][key] = []
            while not self.take("]"):
                self.take(",")
                items.append(self.name())

    def read_mesh(self):
        self.expect("{")
        while not self.take("}"):
            name = self.name()
            self.expect("=")
            self.axes.append((name, self.integer()))

    def read_groups(self):
        self.expect("{")
        while not self.take("}"):
            name = self.name()
            self.read_kinds()
            self.expect("=")
            self.expect("[")
            axes = []
            while not self.take("]"):
                self.take(",")
                axes.append(self.name())
            self.groups[name] = tuple(axes)

    def read_kinds(self):
        """The kinds of a group, after its name: none in this format."""

    def read_unit(self):
        self.units[self.name()] = len(self.units)

    def read_block(self):
        self.blocks[self.name()] = len(self.blocks)
        unit = self.units[self.name()] if self.take("unit") else None
        self.expect("numel")
        numel = self.integer()
        self.expect("shard")
        self.found["blocks"].append(model.Block(unit, numel, self.integer()))

    def read_param(self):
        name = self.name()
        self.expect(":")
        param = model.Param(name, self.type(), None, 0, 1.0, 1.0, "")
        param.parts = self.parts()
        if self.take("block"):
            param.block = self.blocks[self.name()]
            self.expect("at")
            param.offset = self.integer()
        if self.take("lr"):
            param.lr = float(self.next())
        if self.take("wd"):
            param.wd = float(self.next())
        self.expect("init")
        param.init = self.next()
        if param.init not in ("zeros", "ones"):
            param.init += f" {float(self.next())!r}"
        self.found["params"].append(param)

    def parts(self):
        """The rank's parts of a parameter; always all of it in this format."""
        return ""

    def read_loc(self):
        self.at += 4  # index, file, line, column

    def read_specification(self):
        self.expect("{")
        while not self.take("}"):
            self.at += 1

    def read_source(self):
        self.at += 2  # kind, name
        self.read_specification()  # both are texts in pieces, which do not count

    def type(self):
        dtype = self.next()
        self.expect("[")
        shape = [self.integer()]
        while self.take(","):
            shape.append(self.integer())
        self.expect("]")
        return model.Type(dtype, tuple(shape))

    def place(self, arena=None):
        """Reads `work 16 + 4*dp`. The arena may be missing if `arena` is given."""
        if arena is None or not self.peek()[0].isdigit() and self.peek()[0] != "-":
            arena = self.next()
        offset, sign = self.integer(), 0
        if self.take("+"):
            sign = 1
        elif self.take("-"):
            sign = -1
        if sign == 0:
            return model.Place(arena, model.Moving(offset))
        coefficient = sign * self.integer()
        self.expect("*")
        return model.Place(arena, model.Moving(offset, ((coefficient, self.moving_group()),)))

    def moving_group(self):
        """Reads the axes of the group whose index a coefficient multiplies."""
        self.expect("dp")
        return ("dp",)

    def read_role(self):
        self.at += 2  # name, what distinguishes it
        role = model.Role([], {}, [], [], [])
        self.cells, self.segments = {}, {}
        if self.take("where"):
            self.expect("{")
            while not self.take("}"):
                axis = self.name()
                self.expect("=")
                first = self.integer()
                self.expect("to")
                role.where.append((axis, first, self.integer()))
        self.expect("{")
        while not self.take("}"):
            word = self.next()
            if word == "arenas":
                self.expect("{")
                while not self.take("}"):
                    arena = self.next()
                    self.expect("=")
                    role.arenas[arena] = self.integer()
            elif word == "beside":  # predicted, not executed
                self.expect("{")
                while not self.take("}"):
                    self.next()
            elif word == "cell":
                role.cells.append(self.cell())
            elif word == "segment":
                role.segments.append(self.segment(role))
            elif word == "program":
                self.expect("{")
                role.program = self.program()
            else:
                raise ValueError(f"unknown word '{word}' in a role")
        self.say_kinds(role)
        self.found["roles"].append(role)

    def cell(self):
        self.cells[self.name()] = len(self.cells)
        self.expect(":")
        cell = model.Cell("buffer", None, self.type(), None, None)
        self.expect("in")
        cell.arena = self.next()
        self.expect("for")
        cell.purpose = self.next()
        if self.take("at"):
            cell.place = self.place(cell.arena)
        return cell

    def say_kinds(self, role):
        """Sets kinds of cells. In this format, only names that the host knows imply a kind. Weights beside master
        weights are buffers."""
        for name, index in self.cells.items():
            cell = role.cells[index]
            prefix, _, block = name.partition(".")
            if name in HOST_CELLS:
                cell.kind = name
            elif prefix in STATE_CELLS and block in self.blocks and not (prefix == "w" and f"master.{block}" in self.cells):
                cell.kind, cell.block = STATE_CELLS[prefix], self.blocks[block]

    def program(self):
        nodes = []
        while not self.take("}"):
            node = model.Node(self.next(), None, 1, [])
            if node.kind in ("start", "run"):
                node.segment = self.segments[self.name()]
                if self.peek().isdigit():
                    node.count = self.integer()
                elif self.take("mb"):
                    node.count = self.microbatch()
            else:
                node.count = self.integer()
                self.expect("{")
                node.children = self.program()
            nodes.append(node)
        return nodes

    def segment(self, role):
        index = len(self.segments)
        self.segments[self.name()] = index
        segment = model.Segment(self.take("body"), None, [], [], [])
        if self.take("before"):
            segment.before = self.segments[self.name()]
        self.values, self.makers = {}, {}
        self.expect("{")
        while not self.take("}"):
            if self.take("in"):
                segment.ins.append(self.boundary_in(role))
            elif self.take("out"):
                cell = self.cells[self.name()]
                self.expect("=")
                value, shift = self.values[self.next()], self.shift()
                segment.outs.append((value, cell, self.take("droppable"), *shift))
            else:
                segment.ops.append(self.op(segment))
        return segment

    def boundary_in(self, role):
        name = self.next()
        self.expect("=")
        index = self.cells[self.name()]
        cell = role.cells[index]
        shift = self.shift()
        value = model.Value(cell.type, cell.purpose)
        if self.take(":"):
            value.type, value.purpose = self.type(), self.next()
        if self.take("at"):
            value.place = self.place()
        self.values[name] = value
        return (value, index, *shift)

    def shift(self):
        """The microbatch of a cell's content relative to the current one, if they differ; never in this format."""
        return ()

    def microbatch(self):
        raise ValueError("runs name no microbatches in this format")

    def predicate(self):
        return self.next()

    def counted_rows(self):
        """The counts of a result's valid rows; never in this format."""

    def op(self, segment):
        names = []
        while self.peek()[0] == "%":
            names.append(self.next())
            self.take(",")
        if names:
            self.expect("=")
        op = model.Op(self.next(), [], [], {})
        while self.peek()[0] == "%":
            op.operands.append(self.values[self.next()])
            if not self.take(","):
                break
        if self.take("{"):
            self.attributes(op)
        self.clauses(op)
        while self.take("after") or (op.waits and self.take(",")):
            op.waits.append(segment.ops[self.integer()] if self.take("#") else self.makers[self.next()])
        for index, name in enumerate(names):
            self.expect("," if index else ":")
            type_ = self.type()
            self.counted_rows()
            value = model.Value(type_, self.next())
            if self.take("at"):
                value.place = self.place()
            op.results.append(value)
            self.values[name], self.makers[name] = value, op
        self.end_of_op()
        return op

    def end_of_op(self):
        if self.take("loc"):
            self.at += 1

    def attributes(self, op):
        while not self.take("}"):
            key = self.next()
            self.expect("=")
            word = self.next()
            op.attributes[key] = word if key in WORDS else number_of(word)
        moving = op.attributes.pop("coef_dp", 0)
        if moving:
            op.attributes["offset"] = model.Moving(op.attributes.get("offset", 0), ((moving, ("dp",)),))

    def clauses(self, op):
        while True:
            word = self.peek()
            if word in ("acc", "else"):
                self.at += 1
                self.expect("(")
                result = self.integer()
                self.expect("=")
                value = self.values[self.next()]
                op.ties.append(model.Tie(word, result, value, self.predicate() if self.take("if") else "always"))
                self.expect(")")
            elif word == "group":
                self.at += 1
                op.group = self.groups[self.name()]
            elif word == "unit":
                self.at += 1
                op.unit = self.units[self.name()]
            elif word == "if":
                self.at += 1
                op.predicate = self.predicate()
            elif word in ("channel", "via", "on"):
                self.at += 1
                setattr(op, {"via": "transport", "on": "stream"}.get(word, word), self.next())
            else:
                return


def read(text):
    return Reader(text).read()
