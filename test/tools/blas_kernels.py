"""Finds the kernel sets of BLIS that this machine can run. BLIS chooses one set per process, by BLIS_ARCH_TYPE or by
the processor."""

import functools
import os
import pathlib
import re
import subprocess
import tempfile

VARIABLE = "BLIS_ARCH_TYPE"
NUMBERS = range(40)  # of kernel sets; BLIS 0.9 has 27
TRAINS = pathlib.Path(__file__).resolve().parent.parent / "fuzz/plan/corpus/toy.plan"
PREFERRED = ("haswell", "sandybridge", "penryn", "generic")


def call(command, environment, cwd=None):
    return subprocess.run(command, env={**os.environ, **environment}, cwd=cwd, capture_output=True, text=True)


def name_of(shardc_run, environment):
    """The name of the kernel set that is used in this environment; None if BLIS ends the process."""
    said = call([shardc_run, "--version"], environment)
    found = re.search(r"BLIS [\d.]+ \((\w+)\)", said.stdout)
    return found[1] if found and said.returncode == 0 else None


@functools.cache
def can_run(shardc_run, number):
    with tempfile.TemporaryDirectory() as folder:
        return call([shardc_run, TRAINS], {VARIABLE: str(number)}, folder).returncode == 0


@functools.cache
def environments(shardc_run="shardc-run"):
    """For each preferred set that this machine can run, the environment that selects it. Some processors lack
    instructions."""
    found = {}
    for number in NUMBERS:
        environment = {VARIABLE: str(number)}
        if (name := name_of(shardc_run, environment)) in PREFERRED and can_run(shardc_run, number):
            found[name] = environment
    return {name: found[name] for name in PREFERRED if name in found}


def kinds(count=3):
    """Environments for `count` kernel sets: the processor's own, and others."""
    own = name_of("shardc-run", {})
    return [{}, *(environment for name, environment in environments().items() if name != own)][:count]
