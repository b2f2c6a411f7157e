"""Runs a plan by hand whose blocks have several strategies, and the same training on one rank.

Losses and norms of all steps agree within 1e-5 relative; any schedule gives the same bits.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import compare_runs  # noqa: E402

PASSES = ["--backward", "--shard-units", "--insert-collectives", "--build-update", "--schedule", "--place-buffers"]
TOLERANCE = 1e-5


class Plans(compare_runs.Runner):
    def __init__(self):
        super().__init__(recipe="", settings=[])

    def placed(self, name):
        """The plan after the passes."""
        path = pathlib.Path(self.folder.name) / f"{name}.plan"
        self.call(["shardc-opt", *PASSES, HERE / f"{name}.plan", "-o", path])
        return path

    def steps(self, plan, *options):
        records = self.metrics(["shardc-run", plan, *options], cwd=self.folder.name)
        return [(record["loss"], record["grad_norm"]) for record in records]


def apart(a, b):
    return max(abs(x - y) / abs(y) for one, other in zip(a, b, strict=True) for x, y in zip(one, other))


def main():
    plans = Plans()
    for _ in plans.with_kernels([None]):
        whole = plans.steps(plans.placed("two-classes-whole"))
        classes = plans.placed("two-classes")
        found = plans.steps(classes)
        if (worst := apart(found, whole)) > TOLERANCE:
            sys.exit(f"one rank and four differ by {worst:.3e}, {TOLERANCE:.0e} is the limit:\n{whole}\n{found}")
        for seed in (1, 2):
            compare_runs.equal(f"schedule {seed}", found, plans.steps(classes, f"--seed-schedule={seed}"))
        print(f"{len(found)} steps on one rank and on four agree within {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
