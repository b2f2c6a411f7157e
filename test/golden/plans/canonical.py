"""The canonical form of a plan: one line per fact, in sections, without names or syntax of a format.

README.md explains the lines. Two plans have the same lines if every rank executes them alike over the same bytes.
"""

import hashlib
import math
import re

import format1
import format2
import model

READERS = {"1": format1.read, "2": format2.read}
VERSION = re.compile(r"shardc\.plan\s+(\d+)\s")
ARENAS = ("state", "work", "sym", "host")


def read(text):
    """Reads a plan from text of any known format."""
    found = VERSION.match(text)
    if not found:
        raise ValueError("not a plan: the text does not begin with 'shardc.plan' and a version")
    if found[1] not in READERS:
        raise ValueError(f"no reader for format {found[1]} of plans; there are readers for {', '.join(READERS)}")
    return READERS[found[1]](text)


def hash_of(lines):
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def hashes(sections):
    """The hash of the whole, and of each section."""
    whole = [line for name, lines in sections.items() for line in (f"[{name}]", *lines)]
    return hash_of(whole), {name: hash_of(lines) for name, lines in sections.items()}


def number(value):
    """Text that reads back as the same number, and shows whether it is a bool, an integer or a float."""
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, (int, float)) else str(value)


def ranks_of(members):
    """`first+stride*count`, or a list of the ranks if they are not evenly spaced."""
    strides = {after - before for before, after in zip(members, members[1:])}
    if len(strides) > 1:
        return ",".join(map(str, members))
    return f"{members[0]}+{strides.pop() if strides else 1}*{len(members)}"


class RoleWriter:
    """Writes the sections of one role. If a number or a group differs between ranks, it has the values of the first,
    the second and the last rank."""

    def __init__(self, plan, role, attribute_defaults):
        self.plan, self.role, self.defaults = plan, role, attribute_defaults
        self.ranks = role.ranks(plan.mesh)
        self.cells = self.number_cells()
        self.segments = self.number_segments()
        self.streams, self.channels, self.moved = {}, {}, {}

    def each(self, of_rank):
        """The value on each rank of the role; written once if it is the same on all."""
        found = [of_rank(rank) for rank in self.ranks]
        return str(found[0]) if len(set(found)) == 1 else "/".join(map(str, found))

    def moving(self, value):
        if not value.terms:
            return str(value.base)
        if value not in self.moved:
            self.moved[value] = self.each(lambda rank: value.at(self.plan.mesh, rank))
        return self.moved[value]

    def type(self, of):
        return f"{of.dtype}[{','.join(map(str, of.shape))}]"

    def place(self, of):
        if of is None:
            return "nowhere"
        return f"{of.arena} {self.moving(of.offset)}{' of ' if of.slots else ''}{of.slots}"

    def members(self, group):
        if group not in self.moved:
            self.moved[group] = self.each(lambda rank: ranks_of(self.plan.mesh.members(group, rank)))
        return self.moved[group]

    def number_cells(self):
        """New numbers of cells, by index: cells in the order of their bytes."""
        def key(index):
            cell = self.role.cells[index]
            offset = cell.place.offset.base if cell.place else -1
            return (ARENAS.index(cell.place.arena if cell.place else cell.arena), offset, cell.kind, -1 if cell.block is None
                    else cell.block, self.type(cell.type), index)
        return {index: number for number, index in enumerate(sorted(range(len(self.role.cells)), key=key))}

    def number_segments(self):
        """New numbers of segments, by index: first in the order of the program, then background segments, then
        others."""
        order = {}

        def visit(nodes):
            for node in nodes:
                if node.segment is not None:
                    order.setdefault(node.segment, len(order))
                visit(node.children)
        visit(self.role.program)
        for index in range(len(self.role.segments)):
            order.setdefault(index, len(order))
        return order

    def sections(self):
        """Yields (name, lines), from arenas to segments."""
        yield "arenas", self.arenas()
        yield "state", self.state()
        yield "program", list(self.program(self.role.program, 0))
        for index in sorted(self.segments, key=self.segments.get):
            name = f"segment {self.segments[index]}"
            ops, labels = self.segment(self.role.segments[index])
            yield name, ops
            yield f"{name} labels", labels

    def places(self):
        for cell in self.role.cells:
            yield cell.place
        for segment in self.role.segments:
            for op in segment.ops:
                for result in op.results:
                    yield result.place

    def arenas(self):
        """The size of each arena, and the largest number that divides all offsets in it."""
        steps = dict.fromkeys(ARENAS, 0)
        for place in self.places():
            if place is not None:
                terms = (coefficient for coefficient, _ in place.offset.terms)
                steps[place.arena] = math.gcd(steps[place.arena], place.offset.base, *terms)
        return [f"{arena} {self.role.arenas.get(arena, 0)} bytes, offsets are multiples of {steps[arena]}" for arena in ARENAS]

    def state(self):
        blocks = self.blocks_of_cells()
        lines = {}
        for index, number_ in self.cells.items():
            cell = self.role.cells[index]
            found = blocks[index] if cell.kind == "buffer" else {cell.block} - {None}
            lines[number_] = (f"cell {number_} {cell.kind} of blocks {sorted(found)}: {self.type(cell.type)} in {cell.arena} at "
                              f"{self.place(cell.place)}{' in ' if cell.slots else ''}{cell.slots}")
        return [lines[number_] for number_ in sorted(lines)]

    def blocks_of_cells(self):
        """For each cell, the blocks named by ops that produce or read its contents."""
        found = [set() for _ in self.role.cells]
        for segment in self.role.segments:
            named = {}
            for op in segment.ops:
                if op.attributes.get("block", -1) >= 0:
                    for value in (*op.operands, *op.results):
                        named.setdefault(id(value), set()).add(op.attributes["block"])
            for value, cell, *_ in (*segment.ins, *segment.outs):
                found[cell] |= named.get(id(value), set())
        return found

    def program(self, nodes, depth):
        for node in nodes:
            what = f" segment {self.segments[node.segment]}" if node.segment is not None else ""
            yield f"{'  ' * depth}{node.kind}{what} {node.count}"
            yield from self.program(node.children, depth + 1)

    def segment(self, segment):
        """Lines that describe what is executed, and lines with the names that summaries use."""
        values, positions, lengths = {}, {}, {}

        def value(of):
            return f"v{values[id(of)]}"

        def define(of):
            values[id(of)] = len(values)
            return f"v{values[id(of)]} {self.type(of.type)} {self.place(of.place)}"
        before = f" before segment {self.segments[segment.before]}" if segment.before is not None else ""
        ops, labels = [f"{'body' if segment.body else 'once'}{before}"], []
        for live, cell, *shift in sorted(segment.ins, key=lambda each: self.cells[each[1]]):
            ops.append(f"in cell {' '.join((str(self.cells[cell]), *shift))} -> {define(live)}")
            labels.append(f"in cell {self.cells[cell]} {live.purpose}")
        for op in segment.ops:
            ops.append(self.op(op, value, define, positions, lengths))
            labels.append(f"{op.kind} unit {op.unit} {' '.join(result.purpose for result in op.results)}")
        for left, cell, droppable, *shift in sorted(segment.outs, key=lambda each: self.cells[each[1]]):
            ops.append(f"out cell {' '.join((str(self.cells[cell]), *shift))} <- {value(left)}{' droppable' if droppable else ''}")
        return ops, labels

    def op(self, op, value, define, positions, lengths):
        parts = [f"{op.kind} {' '.join(map(value, op.operands))}"]
        if op.kind not in format1.ALIASES:
            stream = self.streams.setdefault(op.stream, len(self.streams))
            positions[id(op)] = f"{stream}.{lengths.setdefault(stream, 0)}"
            lengths[stream] += 1
            parts.append(f"stream {positions[id(op)]}")
        if op.predicate != "always":
            parts.append(f"if {op.predicate}")
        if op.waits:
            parts.append("after " + " ".join(sorted(positions[id(each)] for each in op.waits)))
        if op.group is not None:
            channel = None if op.channel is None else self.channels.setdefault(op.channel, len(self.channels))
            parts.append(f"ranks {self.members(op.group)} channel {channel} via {op.transport}")
        for tie in sorted(op.ties, key=lambda each: (each.result, each.kind)):
            parts.append(f"{tie.kind} {tie.result} = {value(tie.value)} if {tie.predicate}")
        said = self.attributes(op)
        if said:
            parts.append(said)
        parts += [define(result) for result in op.results]
        return " | ".join(parts)

    def attributes(self, op):
        said = []
        for key, setting in sorted(op.attributes.items()):
            if isinstance(setting, model.Moving):
                said.append(f"{key}={self.moving(setting)}")
            elif setting != self.defaults.get(key):
                said.append(f"{key}={number(setting)}")
        return " ".join(said)


def sections_of(plan, attribute_defaults):
    """Lines by section. An attribute at its default in this table equals one that is not written."""
    mesh = plan.mesh
    units = {}
    for block in plan.blocks:
        units.setdefault(block.unit, len(units))
    out = {
        "needs": [f"level {plan.level}", *(f"{key} {setting}" for key, setting in sorted(plan.needs.items()))],
        "blocks": [f"block {index} unit {units[block.unit]} numel {block.numel} shard {block.shard}"
                   + ("" if block.state is None else f" state {block.state}") + ' ' * bool(block.said) + block.said
                   for index, block in enumerate(plan.blocks)],
        "parameters": [f"{each.name} {each.type.dtype}[{','.join(map(str, each.type.shape))}]{' ' * bool(each.parts)}{each.parts} block {each.block} at {each.offset} "
                       f"lr {each.lr!r} wd {each.wd!r} init {each.init}" for each in plan.params],
        "roles": [f"{mesh.world()} ranks"],
    }
    for index, role in enumerate(plan.roles):
        writer = RoleWriter(plan, role, attribute_defaults)
        bounds = " ".join(f"{axis} {first} to {last}" for axis, first, last in role.where)
        out["roles"].append(f"role {index}: first, second and last rank {writer.ranks} {bounds}".rstrip())
        prefix = f"role {index} " if len(plan.roles) > 1 else ""
        out.update((prefix + name, lines) for name, lines in writer.sections())
    return out


def kinds_of(plan):
    """The number of ops of each kind."""
    counts = {}
    for role in plan.roles:
        for segment in role.segments:
            for op in segment.ops:
                counts[op.kind] = counts.get(op.kind, 0) + 1
    return dict(sorted(counts.items()))
