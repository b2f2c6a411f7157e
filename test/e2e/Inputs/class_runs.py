"""Runs a plan by hand whose blocks have several strategies, and the same training on one rank.

Losses and norms of all steps agree within 1e-5 relative; any schedule gives the same bits. A plan without the scale of
one class of blocks is refused.
"""

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import compare_runs  # noqa: E402

PASSES = ["--backward", "--shard-units", "--insert-collectives", "--build-update", "--schedule", "--place-buffers"]
TOLERANCE = 1e-5


class Plans(compare_runs.Runner):
    def __init__(self):
        super().__init__(recipe="", settings=[])

    def placed(self, name, old="", new=""):
        """The plan after the passes, with one text in place of another."""
        path = pathlib.Path(self.folder.name) / f"{name}.plan"
        self.call(["shardc-opt", *PASSES, HERE / f"{name}.plan", "-o", path])
        head, body = path.read_text().split("\n", 1)
        if old not in body:
            sys.exit(f"{name}: no '{old}' in the plan")
        path.write_text(head.split(" hash ")[0] + "\n" + body.replace(old, new))  # edited: without its hash
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
        unscaled = plans.placed("two-classes", old=" {scale = 0.5}")
        run = subprocess.run(["shardc-run", unscaled], capture_output=True, text=True, check=False, cwd=plans.folder.name)
        if run.returncode == 0 or "it is 0.5 times the sum over all ranks" not in run.stderr:
            sys.exit(f"a plan without the scale of a class is not refused: status {run.returncode}\n{run.stderr}")
        print(f"{len(found)} steps on one rank and on four agree within {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
