#!/usr/bin/env python3
"""Tests runs that continue with fewer or other ranks (`--elastic`, `--spares`): machines that are lost, machines that
return, and spares. The losses of each step and the final parameters must be those of a run without a fault, bitwise
equal if the number of ranks stays the same. Needs only Python.

    elastic_runs.py CHECK [SHARDC_FOLDER]

CHECK is the property to test; see CHECKS. A machine is a group of processes, started with torchrun's variables.
"""

import array
import json
import os
import shutil
import signal
import subprocess
import sys

import launch_runs as launch
from launch_runs import expect

BATCH = 24  # a multiple of the micro batch of 2 and of each number of ranks
SIZES = "4,3,2"
STEPS = 12
EVERY = 4  # steps between saves
PER_MACHINE = 2
TOLERANCE = 1e-5
LIST = [f"train.global_batch_size={BATCH}", "train.micro_batch_size=2"]


class Run:
    """A run with several places, a folder of saves and a file of metrics."""

    def __init__(self, place, name, *options, elastic=SIZES, spares=0, steps=STEPS, settings=(), wait=launch.LIMIT):
        self.place, self.name, self.spares = place, name, spares
        self.metrics, self.saves = place.metrics(name), place.folder / f"saves-{name}"
        saving = [f'checkpoint.save="{self.saves}"', f"checkpoint.save_interval={EVERY}"]
        plan = place.plan(*LIST, *saving, *settings, steps=steps, timeout=wait, elastic=elastic)
        asked = [f"--elastic={elastic}"] if elastic else []
        self.command = ["shardc-run", plan, f"--metrics={self.metrics}", *asked, *options]
        if spares:
            self.command.append(f"--spares={spares}")
        self.port, self.processes = launch.free_port(), {}

    def start(self, number, **environment):
        """Starts the supervisor of a place."""
        known = {"RANK": number, "WORLD_SIZE": launch.RANKS + self.spares, "LOCAL_RANK": number % PER_MACHINE,
                 "LOCAL_WORLD_SIZE": PER_MACHINE, "GROUP_RANK": number // PER_MACHINE, "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": self.port, "TORCHELASTIC_RUN_ID": "elastic-test", **environment}
        text = {key: str(value) for key, value in known.items()}
        name = f"{self.name}-{number}-{len(self.place.started)}"
        self.processes[number] = self.place.start(name, self.command, text)

    def start_all(self, **environment):
        for number in range(launch.RANKS + self.spares):
            self.start(number, **environment)

    def start_here(self, **environment):
        """Starts all places on this machine with one process."""
        self.processes[0] = self.place.start(self.name, self.command, environment)

    def lose(self, *numbers):
        """Kills machines with everything on them: supervisors and ranks."""
        for number in numbers:
            os.killpg(self.processes[number].popen.pid, signal.SIGKILL)
            self.processes[number].popen.wait()

    @property
    def first(self):
        return self.processes[0]

    def records(self):
        return [json.loads(line) for line in self.metrics.read_text().splitlines()]

    def losses(self):
        """The loss of each step; of a step that ran twice, the later one."""
        return dict(sorted((record["step"], record["loss"]) for record in self.records() if "loss" in record))

    def sizes(self):
        """Each change of size: (ranks before, ranks after, step after which it happened)."""
        return [(record["ranks_before"], record["ranks"], record["step"]) for record in self.records() if "ranks" in record]


def plain_run(place):
    """Starts a run without a fault. Comparisons wait for its end."""
    run = Run(place, "plain", "--processes", elastic=None)
    run.start_here()
    return run


def most_apart(place, plain, run):
    """The largest difference between two saves in any element."""
    done = place.start(f"diff-{run.name}", ["shardc", "ckpt", "diff", "--tensors-only", "--json", plain.saves, run.saves])
    expect(done.wait() in (0, 1), "no comparison", done)
    return json.loads(done.out)["max_abs_difference"]


def expect_end(place, plain, run, isEqual):
    """Expects the losses and parameters of a run without a fault: bitwise, or within the tolerance if a step's sums
    were added over other ranks."""
    launch.expect_status(0, plain.first, *run.processes.values())
    losses, wanted = run.losses(), plain.losses()
    expect(list(losses) == list(wanted), f"{run.name}: steps {list(losses)}", run.first)
    apart = max(abs(losses[step] - wanted[step]) for step in wanted)
    most = most_apart(place, plain, run)
    limit = 0 if isEqual else TOLERANCE
    expect(apart <= limit and most <= limit, f"{run.name}: losses differ by {apart}, parameters by {most}", run.first)
    print(f"{run.name}: {run.sizes()}; losses within {apart:.2g}, parameters within {most:.2g}")


def check_lost(place):
    """One of two machines is lost during training. The other one continues from the state in memory, half of which it
    kept for the lost machine. When the machine returns, it takes part from the next save on."""
    plain = plain_run(place)
    dumps = ["--dump=micro:samples", f"--dump-dir={place.folder}/ids", "--dump-step=6"]
    run = Run(place, "lost", "--restarts=9", *dumps, settings=["checkpoint.in_memory_interval=5"])
    run.start(0, SHARDC_FAULT="await-places@0:1/kept/again")  # keeps the second attempt running until they are back
    for number in (1, 2, 3):
        run.start(number, SHARDC_FAULT="hang@3:7/kept/again")  # keeps the first attempt running until they are lost
    run.first.await_text("step 6/")  # waits until the state after step 5 is stored
    run.lose(2, 3)
    run.first.await_text("[size-changed]")
    run.start(2)
    run.start(3)
    expect_end(place, plain, run, isEqual=False)
    expect(run.sizes() == [(4, 2, 4), (2, 4, 8)], f"sizes {run.sizes()}", run.first)
    expect("resuming after step 5 from memory, the state of 4 ranks" in run.first.out, "not from memory", run.first)
    # Each of the two ranks must have processed half of step 6's samples.
    ids = array.array("q")
    for path in (place.folder / "ids").glob("*.rank[01].bin"):
        ids.frombytes(path.read_bytes())
    expect(sorted(ids) == list(range(5 * BATCH, 6 * BATCH)), f"step 6 takes the samples {sorted(ids)}", run.first)
    launch.expect_no_orphans()


def check_spare(place):
    """A spare takes the place of a lost rank without a change of size. A spare that a run does not need ends with the
    run."""
    plain = plain_run(place)
    run, unused = (Run(place, name, "--restarts=3", spares=1) for name in ("spare", "unused"))
    run.start_all(SHARDC_FAULT="hang@3:6")
    unused.start_all(SHARDC_FAULT="kill@2:6")
    run.first.await_text("saved step 4 to")
    run.lose(2)
    run.processes.pop(2)
    expect_end(place, plain, run, isEqual=True)
    expect(run.sizes() == [(4, 4, 4)] and "[places-changed]" in run.first.err, f"sizes {run.sizes()}", run.first)
    expect_end(place, plain, unused, isEqual=True)
    launch.expect_no_orphans()


def check_left_out(place):
    """On one machine, a place whose rank fails repeatedly is left out, and fewer ranks continue."""
    plain = plain_run(place)
    run = Run(place, "left-out", "--restarts=3")
    run.start_here(SHARDC_FAULT="kill@3:2/again")
    expect_end(place, plain, run, isEqual=False)
    said = run.first.err
    expect(run.sizes() == [(4, 3, 0)] and said.count("[restarted]") == 2, f"sizes {run.sizes()}", run.first)
    expect("process 3 of the launcher gets no rank from now on" in said and "[place-left-out]" in said, "place 3 is not left out", run.first)


def check_asked(place):
    """SIGTERM must end ranks and spares."""
    run = Run(place, "asked", "--restarts=3", spares=1, steps=launch.LONG)
    run.start_all()
    run.first.await_text("step 3/")
    for process in run.processes.values():
        process.popen.send_signal(signal.SIGTERM)
    launch.expect_status(0, *run.processes.values())
    launch.expect_no_orphans()


def check_few(place):
    """With too few places, the run must end with a reason."""
    run = Run(place, "few", "--restarts=3", elastic="4,3")
    run.start_all(SHARDC_FAULT="hang@3:6")
    run.first.await_text("saved step 4 to")
    run.lose(2, 3)
    launch.expect_status(1, run.first, run.processes[1])
    expect("rank 2, 3 of 4 did not reach" in run.first.err and "[ranks-missing]" in run.first.err, "no reason", run.first)
    launch.expect_no_orphans()


class Networks:
    """Machines as network namespaces with one address each, on one bridge."""

    def __init__(self, names):
        self.names, self.mark = names, f"s{os.getpid()}"

    def begin(self):
        names = self.names
        self.called("ip", "netns", "add", self.of("hub"))
        self.inside("hub", "ip", "link", "add", "bridge", "type", "bridge")
        self.inside("hub", "ip", "link", "set", "bridge", "up")
        for number, name in enumerate(names, 1):
            self.called("ip", "netns", "add", self.of(name))
            self.inside("hub", "ip", "link", "add", "name", name, "type", "veth", "peer", "name", "out", "netns", self.of(name))
            self.inside("hub", "ip", "link", "set", "dev", name, "master", "bridge", "up")
            self.inside(name, "ip", "address", "add", f"10.91.7.{number}/24", "dev", "out")
            for device in ("out", "lo"):
                self.inside(name, "ip", "link", "set", device, "up")

    def of(self, name):
        return f"{self.mark}-{name}"

    def called(self, *command):
        done = subprocess.run(command, capture_output=True, text=True)
        expect(done.returncode == 0, f"{' '.join(command)}: {done.stderr}")

    def inside(self, name, *command):
        self.called("ip", "netns", "exec", self.of(name), *command)

    def cut(self, name):
        """Cuts a machine off: nothing reaches it or comes from it any more, without notice."""
        self.inside("hub", "ip", "link", "set", "dev", name, "down")

    def end(self):
        for name in ("hub", *self.names):
            subprocess.run(["ip", "netns", "del", self.of(name)], capture_output=True)


def need_namespaces():
    probe = f"s{os.getpid()}-probe"
    made = shutil.which("ip") and subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if not made or made.returncode != 0:
        print("network namespaces cannot be made here: " + (made.stderr.strip() if made else "there is no ip"))
        sys.exit(launch.SKIPPED)
    subprocess.run(["ip", "netns", "del", probe])


def check_cut_off(place):
    """Of two machines with their own networks, one is cut off without notice. A third one, a spare, takes its place
    with the state that the first one has stored in memory. The machine that was cut off must end by itself."""
    need_namespaces()
    plain = plain_run(place)
    networks = Networks(["a", "b", "c"])
    try:
        networks.begin()
        run = Run(place, "cut-off", "--restarts=3", spares=2, elastic=None, settings=["checkpoint.in_memory_interval=5"])
        run.command[:0] = ["ip", "netns", "exec"]
        whole = run.command
        for number in range(launch.RANKS + run.spares):
            run.command = [*whole[:3], networks.of("abc"[number // PER_MACHINE]), *whole[3:]]
            run.start(number, SHARDC_FAULT="hang@3:7/kept", MASTER_ADDR="10.91.7.1")
        run.first.await_text("step 6/")
        networks.cut("b")
        left = [run.processes.pop(number) for number in (2, 3)]
        expect_end(place, plain, run, isEqual=True)
        expect(run.sizes() == [(4, 4, 4)] and "[places-changed]" in run.first.err, f"sizes {run.sizes()}", run.first)
        expect("resuming after step 5 from memory, rank 2 from the copy of rank 0, rank 3 from the copy of rank 1" in run.first.out,
               "not from memory", run.first)
        statuses = [process.wait() for process in left]
        expect(0 not in statuses, f"statuses {statuses} of what was cut off", *left)
        launch.expect_no_orphans()
    finally:
        networks.end()


def check_wrong(place):
    """The compiler or the run must refuse impossible options before anything starts."""
    saves = f'checkpoint.save="{place.folder}/wrong"'
    recipe = ["shardc", "run", place.recipe(), f"--set={saves}", *[f"--set={setting}" for setting in LIST]]
    sized, plain = place.plan(*LIST, saves, elastic=SIZES), place.plan(*LIST, saves)
    odd = ["--set=train.global_batch_size=8"]
    for command, status, words in (
        ([*recipe, "--restarts=1", "--elastic=4,x"], 2, "--elastic is '4,x'; it takes numbers of ranks"),
        ([*recipe, "--restarts=1", "--elastic=3,4"], 2, "largest first, as 8,6,4"),
        ([*recipe, "--restarts=1", "--elastic=8,4"], 1, "begins with 8 ranks, but the recipe has 4"),
        ([*recipe, "--restarts=1", "--elastic=8,4"], 1, "[elastic-first-size]"),
        ([*recipe, *odd, "--restarts=1", "--elastic=4,3"], 1, "there is no plan for 3 ranks, a size of '--elastic': "),
        ([*recipe, *odd, "--restarts=1", "--elastic=4,3"], 1, "the nearest sizes for which there is one: 2, 4 [elastic-no-plan]"),
        ([*recipe, "--set=dataset.dataloader_type=cyclic", "--restarts=1", "--elastic=4,2"], 1, "[elastic-cyclic]"),
        ([*recipe, "--restarts=1", "--spares=10000"], 2, "'--spares' needs a whole number of 0 to 1024; found '10000'"),
        ([*recipe, "--elastic=4,2"], 1, "--elastic and --spares need --restarts=N with N above 0 [elastic-needs-restarts]"),
        (["shardc-run", sized], 1, "the plans are for 4,3,2 ranks, and --elastic is not given"),
        (["shardc-run", plain, "--restarts=1", "--elastic=4,3"], 1, "the plans are for 4 ranks, and --elastic is 4,3"),
        (["shardc-run", plain, "--restarts=1", "--elastic=4,3"], 1, "[elastic-sizes-differ]"),
        (["shardc", "dump-plan", place.recipe(), "--elastic=4,2", "--emit=json"], 2, "'--elastic' writes whole plans as text"),
    ):
        process = place.start("run", command)
        launch.expect_status(status, process)
        expect(words in process.err, f"'{words}' is not said", process)
    run = Run(place, "places", "--restarts=1", spares=1)
    several = place.torchrun(run.command, name="places")
    launch.expect_one_message(several, ["torchrun has started 4 processes; 4 ranks and 1 spares (--spares) need 5",
                                        "[other-number-of-places]"], launch.end_like_torchrun(several))
    under = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": str(launch.free_port()), "OMPI_COMM_WORLD_LOCAL_SIZE": "5", "SHARDC_JOB_SECRET": "of this test alone"}
    process = place.start("mpirun", run.command, under)
    launch.expect_status(1, process)
    expect("[elastic-under-mpirun]" in process.err, "mpirun is not refused", process)


CHECKS = {"lost": check_lost, "spare": check_spare, "left-out": check_left_out, "asked": check_asked, "few": check_few, "cut-off": check_cut_off, "wrong": check_wrong}


if __name__ == "__main__":
    launch.run_check(CHECKS)
