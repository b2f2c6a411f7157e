"""Reads a plan of format 2 (docs/plan.md) into `model`: format 1 with kinds of units, cells and segments, with phases,
and with tables of streams and channels.

The model omits phases of ops and kinds that only passes and predictions read.
"""

import format1
import model

# Kinds of cells that a save reads, or that the host knows. Of other cells, a run knows only the bytes.
STATE = {"weight", "master", "first_moment", "second_moment"}
PHASES = {"other", "forward", "backward", "update"}
UNIT_KINDS = {"other", "embedding", "layer", "head", "prediction"}
STREAM_KINDS = {"other", "compute", "gather", "reduce", "outer", "layer", "context", "copy", "send_forward",
                "recv_forward", "send_backward", "recv_backward"}


class Reader(format1.Reader):
    VERSION = "2"

    def read_data(self):
        self.next()

    def read_kinds(self):
        while self.peek() != "=":
            self.next()

    def read_class(self):
        """Reads a class of blocks. Plans do not print the first class, which has the job's settings."""
        name, said = self.name(), []
        if self.take("frozen"):
            said.append("frozen")
        if self.take("by"):
            said.append(f"by {self.next()}")
        self.classes[name] = " ".join(said)

    def read_block(self):
        super().read_block()
        block = self.found["blocks"][-1]
        self.take_over()
        if self.take("state"):
            block.state = self.integer()
            self.take_over()
        if self.take("sum"):
            self.take_over()
        if self.take("as"):
            block.said = self.classes[self.name()]

    def parts(self):
        said = []
        while self.peek() not in ("block", "lr", "wd", "init"):
            said.append(self.next())
        return " ".join(said)

    def take_over(self):
        """Skips the group that divides a block: places and collectives contain it too."""
        if self.take("over"):
            self.next()

    def moving_group(self):
        return self.groups[self.name()]

    def __init__(self, text):
        super().__init__(text)
        self.channels, self.level, self.copies = {}, self.words[2], 1
        self.classes = {}

    def read_needs(self):
        """Drops the number of multiprocessors for kernels of channels: it does not change what a run does."""
        super().read_needs()
        self.found["needs"].pop("multiprocessors", None)

    def read_stream(self):
        self.next()
        if self.peek() in STREAM_KINDS:
            self.next()

    def read_channel(self):
        name = self.name()
        self.expect("group")
        group, transport, stream, pair = self.groups[self.name()], "nccl", "compute", None
        if self.take("pair"):
            pair = f"{self.next()} {self.next()}"
        if self.take("via"):
            transport = self.next()
        if self.take("multiprocessors"):
            self.next()
        if self.take("stream"):
            stream = self.next()
        self.channels[name] = group, transport, stream if self.level in ("scheduled", "placed") else "compute", pair

    def clauses(self, op):
        compute, op.stream = op.stream, None
        self.listed(op)
        super().clauses(op)
        if self.take("role"):
            self.next()
            super().clauses(op)
        stream = compute
        if op.channel is not None:
            op.group, op.transport, stream, pair = self.channels[format1.text_of(op.channel)]
            if pair is not None:
                op.attributes["pair"] = pair
        if op.stream is None:
            op.stream = stream
        if moving := op.attributes.pop("coef", 0):
            op.attributes["offset"] = model.Moving(op.attributes.get("offset", 0), ((moving, op.group),))
            op.group = None

    def listed(self, op):
        """Reads the blocks of a sum of squares. Consecutive blocks with the same copies are reduced to the first one,
        unless it is the plan's first block, and the copies of the op that packs the sum."""
        blocks, copies = [], []
        while self.take("of"):
            self.expect("[")
            while not self.take("]"):
                self.take(",")
                blocks.append(self.blocks[self.name()])
            copies += [self.integer() if self.take("copies") else 1] * (len(blocks) - len(copies))
        if self.take("copies"):
            copies.append(self.integer())
        if op.kind == "step.pack" and self.copies != 1:
            op.attributes["copies"] = self.copies
        if op.kind != "sum_squares":
            return
        self.copies = copies[0] if copies else 1
        first = blocks[0] if blocks else 0
        if len(set(copies)) > 1 or blocks != [first + i for i in range(len(blocks))]:
            op.attributes["blocks"] = " ".join(f"{block}/{count}" for block, count in zip(blocks, copies))
            self.copies = 1
        elif first != 0:
            op.attributes["block"] = first

    def read_unit(self):
        super().read_unit()
        if self.peek() in UNIT_KINDS:
            self.next()

    def cell(self):
        at = len(self.cells)
        name = self.next()
        kind, of, slots = "buffer", None, ""
        if self.peek() not in (":", "slots"):
            kind = self.next()
            if self.take("of"):
                of = self.name()
        if self.take("slots"):
            slots = f"{self.next()} slots"
        self.at -= 1
        self.words[self.at] = name
        cell = super().cell()
        if self.take("stride"):
            slots += f", {self.next()} bytes apart"
        cell.slots = slots
        assert self.cells[format1.text_of(name)] == at
        if kind in format1.HOST_CELLS or kind in STATE:
            cell.kind, cell.block = kind, self.blocks[of] if of in self.blocks else None
        return cell

    def place(self, arena=None):
        place = super().place(arena)
        if self.take("slots"):
            place.slots = f"{self.next()} slots"
            self.expect("stride")
            place.slots += f", {self.next()} bytes apart{' '.join(('', *self.shift()))}"
        return place

    def shift(self):
        if not self.take("mb"):
            return ()
        sign = self.next()
        return (f"mb {sign} {self.next()}",)

    def microbatch(self):
        said = []
        while self.peek() not in ("run", "loop", "every", "}"):
            said.append(self.next())
        return f"mb {''.join(said)}"

    def predicate(self):
        word = self.next()
        if word != "mb":
            return word
        first = self.next()
        self.expect("to")
        return f"mb {first} to {self.next()}"

    def say_kinds(self, role):
        """Turns weights beside master weights into buffers."""
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

    def counted_rows(self):
        if self.take("rows"):
            self.next()

    def end_of_op(self):
        if self.peek() in PHASES:
            self.next()
        self.take("recomputed")
        super().end_of_op()


def read(text):
    return Reader(text).read()
