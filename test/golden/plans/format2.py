"""Reads the text of a plan of format 2, docs/plan.md, into `model`: format 1 with kinds of units, cells and segments, and phases.

Kinds that only passes and predictions ask for are left out of the model, and so are the phases of ops.
"""

import format1
import model

# Kinds of cells that a save reads, or that the host knows; of all others a run knows only their bytes.
STATE = {"weight", "master", "first_moment", "second_moment"}
PHASES = {"other", "forward", "backward", "update"}
UNIT_KINDS = {"other", "embedding", "layer", "head", "prediction"}


class Reader(format1.Reader):
    VERSION = "2"

    def read_data(self):
        self.next()

    def read_block(self):
        super().read_block()
        block = self.found["blocks"][-1]
        self.take_over()
        if self.take("state"):
            block.state = self.integer()
            self.take_over()

    def take_over(self):
        """The group among whose ranks a block is divided: places and collectives say it too."""
        if self.take("over"):
            self.next()

    def clauses(self, op):
        super().clauses(op)
        moving = op.attributes.pop("coef", 0)
        if moving:
            op.attributes["offset"] = model.Moving(op.attributes.get("offset", 0), ((moving, op.group),))
            op.group = None

    def moving_group(self):
        return self.groups[self.name()]

    def read_unit(self):
        super().read_unit()
        if self.peek() in UNIT_KINDS:
            self.next()

    def cell(self):
        at = len(self.cells)
        name = self.next()
        kind, of = "buffer", None
        if self.peek() != ":":
            kind = self.next()
            if self.take("of"):
                of = self.name()
        self.at -= 1
        self.words[self.at] = name
        cell = super().cell()
        assert self.cells[format1.text_of(name)] == at
        if kind in format1.HOST_CELLS or kind in STATE:
            cell.kind, cell.block = kind, self.blocks[of] if of in self.blocks else None
        return cell

    def say_kinds(self, role):
        """Weights beside master weights are buffers like others."""
        masters = {cell.block for cell in role.cells if cell.kind == "master"}
        for cell in role.cells:
            if cell.kind == "weight" and cell.block in masters:
                cell.kind, cell.block = "buffer", None

    def segment(self, role):
        name = self.next()
        if self.peek() not in ("body", "before", "{"):
            self.next()
        self.at -= 1
        self.words[self.at] = name
        return super().segment(role)

    def end_of_op(self):
        if self.peek() in PHASES:
            self.next()
        self.take("recomputed")
        super().end_of_op()


def read(text):
    return Reader(text).read()
