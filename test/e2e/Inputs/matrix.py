"""Rows of tests over several axes, in which each pair of values occurs that a valid row can have. Needs only Python."""

import itertools

SAMPLE = 200  # rows to choose the next one from


def pairs_of(row):
    return set(itertools.combinations(sorted(row.items()), 2))


def pairwise(axes, is_valid, draw):
    """`axes`: name -> values; `is_valid` says whether no rule refuses a row; `draw` is a random.Random."""
    rows = [dict(zip(axes, values)) for values in itertools.product(*axes.values())]
    rows = [row for row in rows if is_valid(row)]
    left = set().union(*map(pairs_of, rows))
    while left:
        row = max(draw.sample(rows, min(SAMPLE, len(rows))), key=lambda each: len(pairs_of(each) & left))
        if new := pairs_of(row) & left:
            left -= new
            yield row


def name_of(row):
    return ", ".join(f"{axis} {value}" for axis, value in row.items())
