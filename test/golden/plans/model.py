"""A plan without the syntax of its text: readers of all formats produce it, and `canonical` writes it.

A reader fills these classes from the text. They contain names only where these are a contract outside of the plan:
names of parameters, and kinds of ops, attributes and cells.
"""

import dataclasses
import itertools
import math


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Axes of ranks, as (name, size). Neighbouring ranks differ in the last one."""

    axes: tuple

    def world(self):
        return math.prod(size for _, size in self.axes)

    def coordinates(self, rank):
        found = {}
        for name, size in reversed(self.axes):
            found[name] = rank % size
            rank //= size
        return found

    def rank(self, coordinates):
        rank = 0
        for name, size in self.axes:
            rank = rank * size + coordinates[name]
        return rank

    def index(self, group, rank):
        """The rank's index in its group, given as a list of axes of which the last one moves fastest."""
        sizes, at, index = dict(self.axes), self.coordinates(rank), 0
        for axis in group:
            index = index * sizes[axis] + at[axis]
        return index

    def members(self, group, rank):
        """The ranks that differ from this rank only in the group's axes, in the group's order."""
        sizes, at = dict(self.axes), self.coordinates(rank)
        return [self.rank({**at, **dict(zip(group, moved))})
                for moved in itertools.product(*(range(sizes[axis]) for axis in group))]


@dataclasses.dataclass(frozen=True)
class Moving:
    """A number that may differ between ranks: base + the sum of coefficient * index(group)."""

    base: int
    terms: tuple = ()  # of (coefficient, axes of the group)

    def at(self, mesh, rank):
        return self.base + sum(coefficient * mesh.index(group, rank) for coefficient, group in self.terms)


@dataclasses.dataclass
class Place:
    arena: str
    offset: Moving
    slots: str = ""  # of a ring: its slots, and which of them


@dataclasses.dataclass
class Type:
    dtype: str
    shape: tuple


@dataclasses.dataclass
class Value:
    type: Type
    purpose: str
    place: Place = None


@dataclasses.dataclass
class Cell:
    """A cell. `kind` and `block` tell how the host, saves and loads use it. Only ops use a "buffer"."""

    kind: str
    block: int
    type: Type
    arena: str
    purpose: str
    place: Place = None
    slots: str = ""  # of a ring


@dataclasses.dataclass
class Tie:
    kind: str  # acc or else
    result: int
    value: Value
    predicate: str


@dataclasses.dataclass
class Op:
    kind: str
    operands: list
    results: list
    attributes: dict  # without those at their defaults; numbers that move are `Moving`
    stream: str = "compute"
    predicate: str = "always"
    group: tuple = None  # axes, of a collective
    channel: str = None
    transport: str = "nccl"
    unit: int = None
    ties: list = dataclasses.field(default_factory=list)
    waits: list = dataclasses.field(default_factory=list)  # ops


@dataclasses.dataclass
class Segment:
    body: bool
    before: int  # index of a segment, of a background segment only
    ins: list  # of (value, index of a cell), and of which other microbatch
    ops: list
    outs: list  # of (value, index of a cell, droppable), and of which other microbatch


@dataclasses.dataclass
class Node:
    """A node of a program: starts or runs a segment `count` times; or steps, every or loop with `children`."""

    kind: str
    segment: int
    count: int  # or the microbatch that a run processes
    children: list


@dataclasses.dataclass
class Role:
    where: list  # of (axis, first, last); every rank if empty
    arenas: dict
    cells: list
    segments: list
    program: list

    def ranks(self, mesh):
        """The first rank of the role, the next one and the last one, if it has several."""
        bounds = {axis: (first, last) for axis, first, last in self.where}
        ranges = [range(bounds[name][0], bounds[name][1] + 1) if name in bounds else range(size)
                  for name, size in mesh.axes]
        count = math.prod(len(each) for each in ranges)
        found = []
        for number in sorted({0, min(1, count - 1), count - 1}):
            at = {}
            for (name, _), each in zip(reversed(mesh.axes), reversed(ranges)):
                at[name] = each[number % len(each)]
                number //= len(each)
            found.append(mesh.rank(at))
        return found


@dataclasses.dataclass
class Block:
    unit: int
    numel: int
    shard: int
    state: int = None  # elements of a rank's part of the state, if smaller than a shard
    said: str = ""  # settings of its class, if not the job's


@dataclasses.dataclass
class Param:
    name: str
    type: Type
    block: int
    offset: int
    lr: float
    wd: float
    init: str
    parts: str = ""  # the rank's parts, if not all


@dataclasses.dataclass
class Plan:
    level: str
    needs: dict
    job: dict
    mesh: Mesh
    blocks: list
    params: list
    roles: list
