#!/usr/bin/env python3
"""Records plans and losses, and compares new ones with the record. README.md explains what is compared.

    record.py record plans|losses BIN     writes plans.json or losses.json anew from the programs in the folder BIN
    record.py check plans|losses BIN      compiles (and runs) everything again; exits with 1 if anything differs
    record.py dump RECIPE BIN             prints the canonical lines of a recipe's plan
    record.py dump PLAN                   prints the canonical lines of the text of a plan

RECIPE is a name of plans.json, as `llama3/llama3_8b_fsdp.recipe` or `small/optim-3`. Needs only Python.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import sys

import canonical
import copies
import recorded

HERE = pathlib.Path(__file__).resolve().parent
JOBS = 2
SECTIONS_SHOWN = 6
# And the sources, which come last. Settings of the job show in what is compared, and each new one has a line in every plan.
NOT_COMPARED = re.compile(r"^(//|loc ).*\n|^job \{\n(  .*\n)*\}\n|\bhash \w+$| loc \d+$", re.MULTILINE)


def load(name):
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def store(name, what):
    path = HERE / name
    written = path.with_suffix(".tmp")
    written.write_text(json.dumps(what, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    written.replace(path)


def digest(text, kept):
    """The digest of a plan's text, without comments, settings and recipe lines, and of `kept`, its entry in plans.json."""
    return hashlib.sha256((NOT_COMPARED.sub("", text.partition("\nsource ")[0]) + json.dumps(kept, sort_keys=True)).encode()).hexdigest()


def compiled(case):
    """What plans.json stores of a plan, and the digest of both. If the digest is unchanged, the text is not parsed,
    which takes ten times as long as compiling."""
    bin_, name, recipe, options, defaults, was, digested = case
    text = recorded.compile_plan(bin_, recipe, options)
    if was and digested and digest(text, was) == digested:
        return name, was, digested
    plan = canonical.read(text)
    whole, sections = canonical.hashes(canonical.sections_of(plan, defaults))
    kept = {"sha256": whole, "sections": sections, "ops": canonical.kinds_of(plan)}
    return name, kept, digest(text, kept)


def all_plans(bin_, defaults, was, digests):
    """What plans.json keeps, and digests, by name of the plan."""
    cases = [(bin_, *case, defaults, was.get(case[0]), digests.get(case[0])) for case in recorded.cases(bin_)]
    with concurrent.futures.ProcessPoolExecutor(JOBS) as pool:
        found = list(pool.map(compiled, cases))
    return {name: kept for name, kept, _ in found}, {name: digested for name, _, digested in found}


def differences(name, was, found, exceptions):
    """The differences between a plan and its record, one line each."""
    out, excepted = [], False
    for section in {**was["sections"], **found["sections"]}:
        before, after = was["sections"].get(section), found["sections"].get(section)
        if before == after:
            continue
        exception = exceptions.get(name, {}).get(section)
        if exception and exception["sha256"] == after and exception["reason"]:
            excepted = True
        else:
            out.append(f"{name}: {section} " + ("is new" if before is None else "is gone" if after is None else "differs"))
    counts = [f"{kind} {was['ops'].get(kind, 0)} -> {found['ops'].get(kind, 0)}" for kind in sorted({**was["ops"], **found["ops"]})
              if was["ops"].get(kind, 0) != found["ops"].get(kind, 0)]
    if counts and not excepted:
        out.append(f"{name}: numbers of ops: {', '.join(counts)}")
    if not out and not excepted and was["sha256"] != found["sha256"]:
        out.append(f"{name}: the order of the sections differs")
    return out


def compare_plans(was, found, exceptions):
    """All differences. An exception that matches no difference counts as a difference."""
    out = []
    for name in {**was, **found}:
        if name not in found:
            out.append(f"{name}: does not compile any more")
        elif name not in was:
            out.append(f"{name}: compiles and is not recorded")
        else:
            every = differences(name, was[name], found[name], exceptions)
            out += every[:SECTIONS_SHOWN] + ([f"{name}: and {len(every) - SECTIONS_SHOWN} more"] if len(every) > SECTIONS_SHOWN else [])
    for name, sections in exceptions.items():
        for section, exception in sections.items():
            if found.get(name, {}).get("sections", {}).get(section) != exception["sha256"]:
                out.append(f"{name}: {section} is not what exceptions.json says")
            elif was.get(name, {}).get("sections", {}).get(section) == exception["sha256"]:
                out.append(f"{name}: {section} is as recorded; take it off exceptions.json")
    return out


def record_plans(bin_):
    defaults = recorded.attribute_defaults()
    plans, digests = all_plans(bin_, defaults, {}, {})
    store("plans.json", {"attribute_defaults": defaults, "plans": plans})
    store("texts.json", digests)
    return f"{len(plans)} plans recorded"


def check_plans(bin_):
    was = load("plans.json")
    now = recorded.attribute_defaults()
    found = [f"attribute {key}: its default was {default!r} and is {now.get(key)!r}, which plans do not say"
             for key, default in was["attribute_defaults"].items() if now.get(key) != default]
    plans, _ = all_plans(bin_, was["attribute_defaults"], was["plans"], load("texts.json"))
    found += compare_plans(was["plans"], plans, load("exceptions.json"))
    if found:
        sys.exit("\n".join([*found, "record.py dump prints the lines of a plan, for a comparison of two builds"]))
    return f"{len(plans)} plans are as recorded, with {sum(each for plan in plans.values() for each in plan['ops'].values())} ops"


def record_losses(bin_):
    found, _ = copies.all_losses(bin_, JOBS)
    store("losses.json", {"arithmetic": copies.arithmetic(bin_), "losses": found})
    return f"losses of {len(found)} recipes recorded"


def check_losses(bin_):
    was = load("losses.json")
    same = was["arithmetic"] == copies.arithmetic(bin_)
    found, names = copies.all_losses(bin_, JOBS, os.environ.get("SHARDC_LONG") == "1")
    wrong = copies.compare(was["losses"], found, names, bitwise=same)
    if wrong:
        sys.exit("\n".join(wrong))
    how = "to the bit" if same else f"nearly: recorded with {was['arithmetic']}, here it is {copies.arithmetic(bin_)}"
    return f"{sum(map(len, found.values()))} losses of {len(found)} of {len(names)} recipes are as recorded, {how}"


def dump(name, bin_=None):
    if bin_ is None:
        text = pathlib.Path(name).read_text(encoding="utf-8")
    else:
        recipe, options = {each[0]: each[1:] for each in recorded.cases(bin_)}[name]
        text = recorded.compile_plan(bin_, recipe, options)
    sections = canonical.sections_of(canonical.read(text), load("plans.json")["attribute_defaults"])
    return "\n".join(line for section, lines in sections.items() for line in (f"[{section}]", *lines))


def main(words):
    calls = {("record", "plans"): record_plans, ("record", "losses"): record_losses, ("check", "plans"): check_plans,
             ("check", "losses"): check_losses}
    if len(words) == 3 and tuple(words[:2]) in calls:
        return print(calls[tuple(words[:2])](words[2]))
    if len(words) in (2, 3) and words[0] == "dump":
        return print(dump(*words[1:]))
    sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
