"""Rows of tests over several axes, in which each pair of values occurs that a valid row can have. Needs only Python."""

import itertools

SAMPLE = 200  # rows to choose the next one from
FEW = 2 * SAMPLE  # drawn rows to choose some from


def pairs_of(row):
    return set(itertools.combinations(sorted(row.items()), 2))


def pairwise(axes, is_valid, draw):
    """`axes`: name -> values; `is_valid` says whether no rule refuses a row; `draw` is a random.Random."""
    rows = [dict(zip(axes, values)) for values in itertools.product(*axes.values())]
    yield from covering([row for row in rows if is_valid(row)], draw)


def table(axes, is_valid, draw, some=None, drawn=None):
    """Rows that cover each pair of values of all valid rows, or of `drawn` random ones if there are too many.
    With `some`, only the first of those that cover a few random rows: examining all takes longer than training some."""
    if some is not None:
        return list(itertools.islice(sampled(axes, is_valid, draw, FEW), some))
    return list(sampled(axes, is_valid, draw, drawn) if drawn else pairwise(axes, is_valid, draw))


def sampled(axes, is_valid, draw, count):
    """Rows that cover each pair of values of `count` random rows."""
    rows = []
    while len(rows) < count:
        row = {axis: draw.choice(values) for axis, values in axes.items()}
        if is_valid(row):
            rows.append(row)
    yield from covering(rows, draw)


def covering(rows, draw):
    """Those of the rows, in the order in which they are chosen, that have each pair of values that any of them has."""
    left = set().union(*map(pairs_of, rows))
    while left:
        row = max(draw.sample(rows, min(SAMPLE, len(rows))), key=lambda each: len(pairs_of(each) & left))
        if new := pairs_of(row) & left:
            left -= new
            yield row


def name_of(row):
    return ", ".join(f"{axis} {value}" for axis, value in row.items())
