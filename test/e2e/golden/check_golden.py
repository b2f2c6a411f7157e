#!/usr/bin/env python3
"""Compares a training run of shardc with golden values. Needs nothing but Python.

    check_golden.py VALUES.json METRICS.jsonl [--gradients DIR] [--precision fp32|bf16]

VALUES.json has a .npz file of the same name beside it with step 1's gradients. METRICS.jsonl is
what `--metrics` wrote: one object a step. DIR holds the gradients of step 1 as the
update finds them (`--dump=update:g.*`), reduced and unclipped. Says the largest distance of each
kind and exits with 1 if one is beyond its tolerance.
"""

import argparse
import ast
import json
import math
import pathlib
import struct
import sys
import zipfile

FORMATS = {"f32": ("f", 4), "f64": ("d", 8), "bf16": ("H", 2), "<f4": ("f", 4), "<f8": ("d", 8)}


class Mismatch(Exception):
    """Something is missing or has another shape, so there is nothing to compare."""


def unpack(data, dtype, where):
    if dtype not in FORMATS:
        raise Mismatch(f"{where}: element type '{dtype}', supported are {', '.join(FORMATS)}")
    code, width = FORMATS[dtype]
    if len(data) % width:
        raise Mismatch(f"{where}: {len(data)} bytes are not a multiple of the size of '{dtype}'")
    values = struct.unpack(f"<{len(data) // width}{code}", data)
    if dtype == "bf16":  # the upper half of a float
        values = struct.unpack(
            f"<{len(values)}f", struct.pack(f"<{len(values)}I", *(v << 16 for v in values))
        )
    return values


def read_npz(path):
    """Name -> (shape, values) of a .npz file with float arrays in C order."""
    tensors = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            data = archive.read(member)
            if data[:6] != b"\x93NUMPY" or data[6] not in (1, 2):
                raise Mismatch(f"{path}: {member} is not an array")
            start, size = (10, "<H") if data[6] == 1 else (12, "<I")
            length = struct.unpack_from(size, data, 8)[0]
            header = ast.literal_eval(data[start : start + length].decode())
            if header["fortran_order"]:
                raise Mismatch(f"{path}: {member} is in Fortran order")
            values = unpack(data[start + length :], header["descr"], f"{path}: {member}")
            tensors[member.removesuffix(".npy")] = (list(header["shape"]), values)
    return tensors


def rows_of(part):
    """Where the part's elements are in the whole tensor, as slices with the slices of the part's values: ranks may have some of the
    columns of each row."""
    begin, count = part["begin"], part["end"] - part["begin"]
    columns = part.get("columns", count)
    stride = part.get("stride", columns)
    if stride == columns:
        columns = count
    for row, first in enumerate(range(0, count, max(columns, 1))):
        length = min(columns, count - first)
        place = part["global_begin"] + row * stride
        yield slice(place, place + length), slice(begin + first, begin + first + length)


def gathered(folder, index, key_of):
    """Values of the tensors that dumped blocks, or their shards, make up; key_of(entry, part) names a part's tensor. None is an element
    that no rank has dumped."""
    sizes = {param["name"]: math.prod(param["shape"]) for param in index["params"]}
    tensors = {}
    for entry in index["tensors"]:
        values = unpack((folder / entry["file"]).read_bytes(), entry["dtype"], entry["file"])
        if len(values) != math.prod(entry["shape"]):
            raise Mismatch(f"{entry['file']}: {len(values)} elements for {entry['shape']}")
        for part in entry["parts"]:
            key = key_of(entry, part)
            if key not in tensors:
                tensors[key] = [None] * sizes[part["param"]]
            target = tensors[key]
            for there, own in rows_of(part):
                before, found = target[there], list(values[own])
                if len(before) != len(found):
                    raise Mismatch(f"{entry['file']}: {len(found)} elements at {there.start} of {key}, which has {len(target)}")
                # Replicas hold bitwise equal values.
                is_new = before.count(None) == len(before)
                if not is_new and before != found and (differ := [i for i, each in enumerate(before) if each not in (None, found[i])]):
                    raise Mismatch(f"{entry['file']}: element {there.start + differ[0]} of {key} differs")
                target[there] = found
    return tensors


def read_dump(folder):
    """Name -> (shape, values) of the parameters that dumped blocks, or their shards, make up. What is not trained has no
    gradient, so a parameter may be missing as a whole."""
    index = json.loads((folder / "index.json").read_text())
    tensors = gathered(folder, index, lambda _, part: part["param"])
    params = [param for param in index["params"] if param["name"] in tensors]
    for param in params:
        if None in (values := tensors[param["name"]]):
            raise Mismatch(f"element {values.index(None)} of '{param['name']}' was not dumped")
    return {param["name"]: (param["shape"], tensors[param["name"]]) for param in params}


def norm(values):
    return math.sqrt(math.fsum(v * v for v in values))


class Comparison:
    """Collects distances, and those that exceed their tolerance."""

    def __init__(self):
        self.widest = {}
        self.failures = []

    def add(self, kind, where, distance, tolerance, text):
        if not distance <= self.widest.get(kind, (-1.0,))[0]:
            self.widest[kind] = (distance, where)
        # A NaN is not below any tolerance.
        if not distance <= tolerance:
            self.failures.append(
                f"{kind} of {where}: {text}, off by {distance:.3e}, allowed {tolerance:.3e}"
            )

    def report(self):
        for kind, (distance, where) in self.widest.items():
            print(f"{kind}: largest distance {distance:.3e} ({where})")
        for failure in self.failures:
            print(failure, file=sys.stderr)
        return 1 if self.failures else 0


def compare_steps(golden, metrics, tolerance, comparison):
    """Losses, norms and learning rates; the first object is the first step."""
    count = golden["compared_steps"]
    if len(metrics) < count:
        raise Mismatch(f"the metrics hold {len(metrics)} steps, {count} are compared")
    for i, row in enumerate(metrics[:count]):
        if row["step"] != metrics[0]["step"] + i:
            raise Mismatch(f"step {row['step']} follows step {metrics[i - 1]['step']}")
        where = f"step {row['step']}"
        for key in ("loss", "grad_norm"):
            expected = golden[key][i]
            distance = abs(row[key] - expected) / abs(expected)
            comparison.add(
                key, where, distance, tolerance[key], f"{row[key]!r} instead of {expected!r}"
            )
        for k, expected in enumerate(golden["further"][i] if "further" in golden else [], 1):
            key = f"mtp_{k} loss"
            if key not in row:
                raise Mismatch(f"{where}: the metrics have no '{key}'")
            distance = abs(row[key] - expected) / abs(expected)
            comparison.add(
                key, where, distance, tolerance["loss"], f"{row[key]!r} instead of {expected!r}"
            )
        expected = golden["lr"][i]
        distance = abs(row["lr"] - expected) / max(golden["lr"])
        comparison.add("lr", where, distance, 1e-6, f"{row['lr']!r} instead of {expected!r}")


def compare_gradients(expected, found, tolerance, comparison):
    """Each parameter's gradient, with an allowance for rounding, relative to the model's gradient, where it is nearly zero."""
    if missing := sorted(set(expected) - set(found)):
        raise Mismatch(f"no gradient of '{missing[0]}' and {len(missing) - 1} others")
    if surplus := sorted(set(found) - set(expected)):
        raise Mismatch(f"gradient of '{surplus[0]}', which the model does not have")
    whole = norm([norm(values) for _, values in expected.values()])
    for name, (shape, values) in expected.items():
        found_shape, found_values = found[name]
        if found_shape != shape:
            raise Mismatch(f"gradient of '{name}' has shape {found_shape}, not {shape}")
        size = norm(values)
        allowed = tolerance["gradient"] * size + tolerance["gradient_of_model"] * whole
        distance = norm([a - b for a, b in zip(values, found_values)])
        comparison.add(
            "gradient",
            name,
            distance / allowed,
            1.0,
            f"norm {norm(found_values):.6e} instead of {size:.6e}",
        )


def compare_weights(expected, found, tolerance, comparison):
    """Norms of weights after the last step, and sums, which may differ by no more than weights of such a distance can."""
    if missing := sorted(set(expected) - set(found)):
        raise Mismatch(f"no weights of '{missing[0]}' and {len(missing) - 1} others")
    for name, of in expected.items():
        values = found[name][1]
        own = {"norm": norm(values), "sum": math.fsum(values)}
        for kind, scale in (("norm", of["norm"]), ("sum", of["norm"] * math.sqrt(len(values)))):
            comparison.add(f"{kind} of weights", name, abs(own[kind] - of[kind]) / scale, tolerance, f"{own[kind]!r} instead of {of[kind]!r}")


def compare(values_path, metrics_path, gradients, precision, weights=None):
    """Compares and reports; the exit status."""
    golden = json.loads(values_path.read_text())
    tolerance = dict(golden["tolerance"])
    if precision == "bf16":
        tolerance.update(golden["bf16"]["tolerance"])
    metrics = [json.loads(line) for line in metrics_path.read_text().splitlines()]
    comparison = Comparison()
    try:
        compare_steps(golden, [row for row in metrics if "loss" in row], tolerance, comparison)
        if gradients:
            expected = read_npz(values_path.with_suffix(".npz"))
            found = read_dump(gradients)
            # Averaging over tokens is left to the update; until then gradients are sums.
            scale = 1 / golden["tokens"][0] if golden["per_token"] else 1
            found = {name: (shape, [scale * v for v in g]) for name, (shape, g) in found.items()}
            compare_gradients(expected, found, tolerance, comparison)
        if weights:
            compare_weights(golden["final_parameters"], read_dump(weights), tolerance["loss"], comparison)
    except Mismatch as mismatch:
        print(mismatch, file=sys.stderr)
        return 1
    return comparison.report()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("values", type=pathlib.Path)
    parser.add_argument("metrics", type=pathlib.Path)
    parser.add_argument("--gradients", type=pathlib.Path)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    args = parser.parse_args()
    return compare(args.values, args.metrics, args.gradients, args.precision)


if __name__ == "__main__":
    sys.exit(main())
