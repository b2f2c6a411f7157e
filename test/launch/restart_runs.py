#!/usr/bin/env python3
"""Tests runs that restart after faults (`--restarts`). Each must reach parameters and losses bitwise equal to those of
a run without a fault, or end with a reason. Needs only Python.

    restart_runs.py CHECK [SHARDC_FOLDER]

CHECK is the property to test; see CHECKS. Runs a few combinations of layout, fault and time; all with SHARDC_LONG=1.
"""

import json
import os
import re
import signal
import subprocess
import time

import launch_runs as launch
from launch_runs import expect

WHOLE = os.environ.get("SHARDC_LONG") == "1"
STEPS = 12
ZERO_LIMIT = 20  # seconds after which ranks that restart consider rank 0 lost
TOGETHER = 4  # combinations that run at the same time
LAYOUTS = {
    "FSDP 4": [],
    "tp 2 x pp 2": ["model.num_layers=4", "model.tensor_model_parallel_size=2", "model.pipeline_model_parallel_size=2",
                    "model.share_embeddings_and_output_weights=false"],
    "cp 2": ["model.context_parallel_size=2"],
    "HSDP 2x2": ["ddp.num_distributed_optimizer_instances=2", "ddp.outer_dp_sharding_strategy=no_shard"],
}
MOMENTS = {"start": "1", "forward": "6", "collective": "6/collective", "save": "4/save", "evaluation": "4/evaluation"}
SAVES = ["checkpoint.save_interval=4", "validation.eval_interval=2", "validation.eval_iters=1"]
# The times at which faults occur: faults of processes at any of these, the others only where they can happen.
FAULTS = {kind: MOMENTS for kind in ("kill", "stop", "exit", "cut")}
FAULTS |= {"throw": ("start", "forward"), "nan": ("start", "forward"), "disk-full": ("save",)}
CELLS = [(layout, kind, moment) for layout in LAYOUTS for kind, moments in FAULTS.items() for moment in moments]
FEW = [("FSDP 4", "kill", "collective"), ("FSDP 4", "disk-full", "save"), ("tp 2 x pp 2", "throw", "forward"),
       ("cp 2", "exit", "save"), ("HSDP 2x2", "nan", "forward"), ("FSDP 4", "cut", "evaluation")]


class Job:
    """A run with a folder of saves and a file of metrics."""

    def __init__(self, place, name, settings, *options, environment=None):
        self.name, self.metrics, self.saves = name, place.metrics(name), place.folder / f"saves-{name}"
        saving = [*SAVES, f'checkpoint.save="{self.saves}"']
        plan = place.plan(*settings, *saving, steps=STEPS, timeout=launch.LIMIT)
        self.command = ["shardc-run", plan, f"--metrics={self.metrics}", *options]
        self.start = lambda: place.start(name, self.command, environment)

    def records(self):
        return [json.loads(line) for line in self.metrics.read_text().splitlines()]

    def losses(self):
        """Losses by step; of a step that ran twice, the later ones."""
        found = {(record["step"], key): record[key] for record in self.records() for key in ("loss", "grad_norm", "eval_loss")
                 if key in record}
        return dict(sorted(found.items()))

    def restarts(self):
        return [record for record in self.records() if "restart" in record]


def expect_equal(place, plain, job, *processes):
    expect(len(plain.losses()) > STEPS and job.losses() == plain.losses(), f"{job.name}: other losses", *processes)
    done = place.start("diff", ["shardc", "ckpt", "diff", plain.saves, job.saves])
    status = done.wait()
    expect(status == 0 and "nothing differs" in done.out, f"{job.name}: other parameters", done, *processes)


def expect_restarted(place, plain, job, *processes, count=1):
    launch.expect_status(0, *processes)
    said = "".join(process.err for process in processes)
    expect(said.count("[restarted]") == count, f"{job.name}: not {count} restart", *processes)
    lines = job.restarts()
    expect([line["restart"] for line in lines] == list(range(1, count + 1)), f"{job.name}: metrics say {lines}", *processes)
    expect(all(line["why"] in said and line["seconds_lost"] >= 0 for line in lines), f"{job.name}: {lines}", *processes)
    expect_equal(place, plain, job, *processes)
    print(f"{job.name}: {lines[-1]['id']}, again after step {lines[-1]['step']}")


def plain_run(place, layout, settings=()):
    job = Job(place, f"plain-{layout}".replace(" ", "-"), [*LAYOUTS[layout], *settings], "--processes")
    launch.expect_status(0, job.start())
    return job


def faulted(place, layout, kind, moment):
    rank = {"start": 1, "forward": 2, "collective": 3, "save": 0, "evaluation": 1}[moment]
    settings = [*LAYOUTS[layout], *(["checkpoint.stop_on_save_error=true"] if kind == "disk-full" else [])]
    name = f"{layout}-{kind}-{moment}".replace(" ", "-")
    environment = {"SHARDC_FAULT": f"{kind}@{rank}:{MOMENTS[moment]}"}
    job = Job(place, name, settings, "--restarts=2", environment=environment)
    return job, job.start()


def check_matrix(place):
    """A fault at some time in some layout: the run must continue and reach the same end."""
    cells = CELLS if WHOLE else FEW
    plain = {layout: plain_run(place, layout) for layout in LAYOUTS}
    for first in range(0, len(cells), TOGETHER):
        some = [(layout, *faulted(place, layout, kind, moment)) for layout, kind, moment in cells[first:first + TOGETHER]]
        for layout, job, process in some:
            expect_restarted(place, plain[layout], job, process)
    launch.expect_no_orphans()


def check_two(place):
    """Two ranks are killed at once, in each layout or in one of them."""
    for layout in LAYOUTS if WHOLE else ["FSDP 4"]:
        plain = plain_run(place, layout)
        job = Job(place, f"two-{layout}".replace(" ", "-"), LAYOUTS[layout], "--restarts=2",
                  environment={"SHARDC_FAULT": "hang@3:6"}) # keeps it running until then
        process = job.start()
        process.await_text("saved step 4 to")
        # The stopped supervisor does not end a rank because of the other one.
        os.kill(process.popen.pid, signal.SIGSTOP)
        for pid in process.children()[1:3]:
            os.kill(pid, signal.SIGKILL)
        os.kill(process.popen.pid, signal.SIGCONT)
        expect_restarted(place, plain, job, process)


def check_launched(place):
    """Supervisors with different parents, as torchrun starts them: a rank dies, rank 0 dies, or one is cut off."""
    plain = plain_run(place, "FSDP 4")
    for fault in ("kill@2:6", "kill@0:6/collective", "cut@3:6", "exit@1:4/save"):
        job = Job(place, f"launched-{fault}".replace("/", "-"), [], "--restarts=2")
        everyone = {rank: {"SHARDC_FAULT": fault} for rank in range(launch.RANKS)}
        expect_restarted(place, plain, job, *place.torchrun(job.command, changes=everyone, name=job.name))
    launch.expect_no_orphans()


def launched_long(place, name, kill):
    """A launched run that would continue for long. `kill` gets its processes by rank."""
    plan = place.plan(f'checkpoint.save="{place.folder / name}"', steps=launch.LONG, timeout=launch.LIMIT)
    processes = place.torchrun(["shardc-run", plan, "--restarts=2"], name=name)
    processes[0].await_text("step 3/")
    kill(processes)
    return processes


def check_supervisors(place):
    """A supervisor is killed with its rank: the run must end with a reason, here and under each launcher."""
    saves = place.folder / "plain"
    for interval, left in (([], f"'{saves}' has no complete checkpoint"),
                           (["checkpoint.save_interval=2"], rf"a run can resume after step \d+ from '{saves}'")):
        plan = place.plan(f'checkpoint.save="{saves}"', *interval, steps=launch.LONG)
        process = place.start("run", ["shardc-run", plan, "--restarts=2"])
        process.await_text("step 6/")
        os.kill(process.popen.pid, signal.SIGKILL)
        launch.expect_no_orphans()
        expect(re.search(rf"and {left} \[run-killed\]", process.err), f"it does not say '{left}'", process)
    if not WHOLE:
        return
    first = launched_long(place, "first", lambda processes: processes[0].popen.kill())
    other = launched_long(place, "other", lambda processes: processes[2].popen.kill())
    statuses = [process.wait() for process in [*first, *other]]
    expect(0 not in statuses, f"statuses {statuses}", *first, *other)
    expect(statuses[1:4] == [3] * 3, f"statuses {statuses[1:4]} without rank 0", *first)
    expect(any("[rank-0-gone]" in process.err for process in first), "no word of rank 0", *first)
    expect("[restarted]" in other[0].err and "rank 2 of 4 did not reach" in other[0].err, "no word of rank 2", *other)


def check_rank_zero(place):
    """Only the supervisor of rank 0 is killed, on the machine with all ranks: another rank must report it once
    (rank0-gone.sh)."""
    machine = {rank: {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": launch.RANKS, "GROUP_RANK": 0} for rank in range(launch.RANKS)}
    for name, options in (("fixed", {}), ("elastic", {"elastic": "4,2"})):
        plan = place.plan(f'checkpoint.save="{place.folder}/{name}"', steps=launch.LONG, timeout=ZERO_LIMIT, **options)
        command = ["shardc-run", plan, "--restarts=3", *(f"--{key}={value}" for key, value in options.items())]
        processes = place.torchrun(command, changes=machine, name=name)
        processes[0].await_text("step 3/")
        processes[0].popen.kill()
        statuses = [process.wait() for process in processes]
        expect(statuses == [-9, 3, 3, 3], f"statuses {statuses}", *processes)
        launch.expect_one_message(processes[1:], ["rank 0's supervisor, which starts the ranks again, has not answered", "[rank-0-gone]"])
    launch.expect_no_orphans()


def check_again(place):
    """A fault that recurs at the same step ends the run, and so does one fault more than the allowed restarts."""
    saves = f'checkpoint.save="{place.folder}/again"'
    process = place.start("run", ["shardc-run", place.plan(saves, "optimizer.lr=1e30", "checkpoint.save_interval=4"), "--restarts=5"])
    launch.expect_status(3, process)
    expect(process.err.count("[restarted]") == 1, "not one restart", process)
    expect("the same fault occurred again after step " in process.err and "[fault-came-back]" in process.err, "no reason", process)
    expect("[not-finite]" in process.err, "no fault", process)
    process = place.start("run", ["shardc-run", place.plan(saves, steps=launch.LONG), "--restarts=1"])
    process.await_text("a restart begins where this run begins [restarts-from-begin]")
    process.await_text("step 3/")
    os.kill(process.children()[1], signal.SIGKILL)
    process.await_text("[restarted]")
    before = process.out.count("step 1/")
    process.await_text("step 1/", count=before + 1)
    step = max(map(int, re.findall(r"step (\d+)/", process.out))) + 100 # not the step of the fault before
    process.await_text(f"step {step}/")
    os.kill(process.children()[1], signal.SIGKILL)
    launch.expect_status(3, process)
    expect("all 1 restarts (--restarts) are used [restarts-used-up]" in process.err, "no reason", process)
    launch.expect_no_orphans()


def check_asked(place):
    """SIGTERM in a pause between two attempts must end the run."""
    plan = place.plan(f'checkpoint.save="{place.folder}/asked"', "checkpoint.save_interval=4", steps=launch.LONG)
    process = place.start("run", ["shardc-run", plan, "--restarts=9"])
    process.await_text("step 3/")
    os.kill(process.children()[1], signal.SIGKILL)
    process.await_text("[restarted]")
    process.popen.send_signal(signal.SIGTERM)
    launch.expect_status(0, process)
    expect(process.err.count("[restarted]") == 1, "it went on", process)


RECORDER = """#!/bin/bash
printf '%s\\n' "$(basename "$0")" "$@" > "$RECORDS/$(basename "$0")"
exit "${STATUS:-0}"
"""


def called(place, script, status=0, **environment):
    """Runs a script of recipes/slurm. Returns its status, and {program: words} of its calls of srun, scontrol and
    torchrun."""
    tools, records = place.folder / "tools", place.folder / "records"
    for folder in (tools, records):
        folder.mkdir(exist_ok=True)
    for name in ("srun", "scontrol", "torchrun"):
        (tools / name).write_text(RECORDER)
        (tools / name).chmod(0o755)
        (records / name).unlink(missing_ok=True)
    changed = {**os.environ, **environment, "STATUS": str(status), "RECORDS": str(records), "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", launch.RECIPES / "slurm" / script, "tiny.recipe", "train.train_iters=20"], cwd=place.folder,
                          capture_output=True, text=True, env=changed)
    return done.returncode, {path.name: path.read_text().splitlines()[1:] for path in records.iterdir()}


def check_scripts(place):
    """The scripts must restart ranks in one of the two ways, load what they save, and let Slurm restart the job only
    after failures."""
    allocation = {"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "8", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "tiny"}
    both = [f'--set=checkpoint.{way}="checkpoints/tiny"' for way in ("save", "load")]
    for status, start, again in ((0, 0, False), (1, 0, False), (3, 0, True), (137, 2, True), (3, 3, False)):
        ended, words = called(place, "requeue.sbatch", status, **allocation, SLURM_RESTART_COUNT=str(start))
        expect(ended == status and ("scontrol" in words) == again, f"status {status} at start {start}: {ended}, {words}")
        expect(not again or words["scontrol"] == ["requeue", "7"], f"{words}")
        run = words["srun"]
        expect(run[:4] == ["--kill-on-bad-exit=1", "shardc", "run", "tiny.recipe"] and "--restarts=5" in run, f"{run}")
        expect(all(word in run for word in [*both, "--set=train.train_iters=20"]), f"{run}")
    ended, words = called(place, "requeue.sbatch", **{**allocation, "SLURM_JOB_NUM_NODES": "3", "SLURMD_NODENAME": "n1"}, ELASTIC="16,8", SPARE_NODES="1")
    run = words["srun"]
    expect(run[:2] == ["--no-kill", "--kill-on-bad-exit=0"] and "--set=cluster.nodes=2" in run, f"{run}")
    expect("--elastic=16,8" in run and "--spares=8" in run, f"{run}")
    ended, words = called(place, "restarts_torchrun.sh", JOB="x", GPUS="2")
    run = words["torchrun"]
    expect(ended == 0 and "--max-restarts=5" in run and not any(word.startswith("--restarts") for word in run), f"{run}")
    expect('--set=checkpoint.load="checkpoints"' in run and "--nproc-per-node=2" in run, f"{run}")


FAILS_FIRST = """#!/bin/bash
if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then export SHARDC_FAULT={fault}; fi
exec shardc "$@"
"""
FOR_HOST = ["cluster.gpu=host", "checkpoint.save_interval=4"]


class Batch:
    """A job with recipes/slurm/requeue.sbatch, whose first start has a fault."""

    def __init__(self, place, slurm, name, fault, *options, settings=(), **environment):
        self.slurm, self.saves, self.said = slurm, place.folder / f"saves-{name}", place.folder / f"{name}.txt"
        program = place.folder / f"{name}-fails-first"
        program.write_text(FAILS_FIRST.format(fault=fault))
        program.chmod(0o755)
        batch = ["sbatch", "--wait", f"--job-name={name}", "--cpus-per-task=1", "--gpus-per-node=0", "--overcommit", "--oversubscribe",
                 "--export=ALL", f"--chdir={place.folder}", f"--output={self.said}", *options]
        self.process = place.start(name, [*batch, launch.RECIPES / "slurm" / "requeue.sbatch", place.recipe(), *FOR_HOST, *settings],
                                   {**slurm.environment, "SHARDC": str(program), "CHECKPOINTS": str(self.saves), **environment})

    def text(self):
        return self.said.read_text() if self.said.exists() else ""

    def await_text(self, words):
        end = time.monotonic() + launch.WATCHDOG
        while words not in self.text():
            expect(time.monotonic() < end and self.process.popen.poll() is None, f"'{words}' is not said:\n{self.text()}", *self.slurm.daemons,
                   self.process)
            time.sleep(0.1)


def expect_batch_ends(place, plain, batch, *said):
    """Makes a Slurm job that waits for its restart start at once. The job must print all of `said`, and reach the
    parameters of the plain run."""
    slurm = batch.slurm
    while batch.process.popen.poll() is None:
        for line in slurm.run_here(["squeue", "-h", "-o", "%i %r"]).stdout.splitlines():
            if line.endswith("BeginTime"):  # it would wait for two minutes
                slurm.run_here(["scontrol", "update", f"JobId={line.split()[0]}", "StartTime=now"])
        time.sleep(0.2)
    status, text = batch.process.wait(), batch.text()
    expect(status == 0, f"sbatch ended with {status}:\n{text}", *slurm.daemons, batch.process)
    for words in (*said, "done after 12 of 12 steps"):
        expect(words in text, f"'{words}' is not said:\n{text}")
    launch.expect_status(0, plain)
    done = place.start("diff", ["shardc", "ckpt", "diff", place.folder / "plain", batch.saves])
    expect(done.wait() == 0 and "nothing differs" in done.out, f"other parameters:\n{text}", done)


def plain_recipe(place):
    return place.start("plain", ["shardc", "run", place.recipe(), *[f"--set={setting}" for setting in FOR_HOST],
                                 f'--set=checkpoint.save="{place.folder}/plain"'])


def check_requeue(place):
    """The script under a Slurm of this machine: Slurm restarts the job after a run that has used up its restarts. The
    new run must continue from its newest save to the parameters of a run without a fault."""
    plain, slurm = plain_recipe(place), launch.Slurm(place)
    try:
        batch = Batch(place, slurm, "requeued", "kill@2:6/again", "--nodes=1", f"--ntasks-per-node={launch.RANKS}", RESTARTS="1")
        expect_batch_ends(place, plain, batch, "[restarted]", "all 1 restarts (--restarts) are used [restarts-used-up]",
                          "start 0 ended with status ", "; the job is started again", "continuing after step ")
    finally:
        slurm.end()


def check_lost_node(place):
    """One of three Slurm nodes is lost with everything on it. A job with the third node as a spare continues there, in
    the same start. Slurm restarts a job without a spare on the remaining nodes. Both jobs wait before that, so that
    neither ends too early."""
    plain, slurm = plain_recipe(place), launch.Slurm(place, ["n1", "n2", "n3"])
    try:
        usual = {"MASTER_ADDR": "127.0.0.1"}  # only Slurm knows the nodes' names
        spare = Batch(place, slurm, "spare", "hang@3:6", "--nodes=3", "--no-kill", "--ntasks-per-node=2", **usual, SPARE_NODES="1")
        again = Batch(place, slurm, "again", "hang@3:6", "--nodes=2", "--ntasks-per-node=2", **usual)
        for batch in (spare, again):
            batch.await_text("saved step 4 to")
        slurm.lose("n2")
        expect_batch_ends(place, plain, spare, "[restarted]", "processes 2, 3 are missing, processes 4, 5 have connected", "[places-changed]")
        expect("start 0 ended" not in spare.text(), f"the job with a spare was started again:\n{spare.text()}")
        expect_batch_ends(place, plain, again, "continuing after step 4")
    finally:
        slurm.end()


def check_asked_batch(place):
    """SIGTERM to all processes of a job with a spare, as Slurm sends it before the end of an allocation: the run must
    save and succeed."""
    slurm = launch.Slurm(place, ["n1", "n2", "n3"])
    try:
        batch = Batch(place, slurm, "asked", f"hang@0:{launch.LONG}", "--nodes=3", "--no-kill", "--ntasks-per-node=2", SPARE_NODES="1",
                      MASTER_ADDR="127.0.0.1", settings=[f"train.train_iters={launch.LONG}", "checkpoint.save_interval=1000"])
        batch.await_text("step 3/")
        slurm.run_here(["scancel", "--signal=TERM", slurm.run_here(["squeue", "-h", "-o", "%i"]).stdout.strip()])
        expect(batch.process.wait() == 0, f"the job has failed:\n{batch.text()}", *slurm.daemons, batch.process)
        expect("ending after this step" in batch.text() and "saved step " in batch.text(), f"nothing is saved:\n{batch.text()}")
    finally:
        slurm.end()


def check_lost_first(place):
    """The node of rank 0 and of the script is lost with everything on it: Slurm must restart the job, with the spare
    node."""
    plain, slurm = plain_recipe(place), launch.Slurm(place, ["n1", "n2", "n3", "n4"])
    try:
        batch = Batch(place, slurm, "first", "hang@3:6", "--nodes=3", "--no-kill", "--ntasks-per-node=2", MASTER_ADDR="127.0.0.1",
                      SPARE_NODES="1")
        batch.await_text("saved step 4 to")
        slurm.lose("n1")
        expect_batch_ends(place, plain, batch, "continuing after step 4")
    finally:
        slurm.end()


def check_wrong(place):
    """A run that cannot be restarted must be refused before anything starts."""
    saves = f'checkpoint.save="{place.folder}/wrong"'
    saving, plain = place.plan(saves, steps=2), place.plan(steps=2)
    evaluating = place.plan(saves, "validation.skip_train=true", "validation.eval_interval=1", "validation.eval_iters=1", steps=2)
    for plan, options, status, words in (
        (saving, ["--restarts=three"], 2, "--restarts"),
        (saving, ["--restarts=-1"], 2, "--restarts"),
        (saving, ["--restarts=1", "--simulate-ranks=4"], 2, "--simulate-ranks"),
        (plain, ["--restarts=3"], 1, "--restarts=3 needs checkpoints of this run, but 'checkpoint.save' is not set"),
        (plain, ["--restarts=3"], 1, "[restarts-need-saves]"),
        (evaluating, ["--restarts=3"], 1, "[restarts-of-evaluation]"),
    ):
        process = place.start("run", ["shardc-run", plan, *options])
        launch.expect_status(status, process)
        expect(words in process.err, f"'{words}' is not said", process)
    own = {rank: {"TORCHELASTIC_MAX_RESTARTS": "2"} for rank in range(launch.RANKS)}
    processes = place.torchrun(["shardc-run", saving, "--restarts=3"], changes=own)
    statuses = launch.end_like_torchrun(processes)
    launch.expect_one_message(processes, ["torchrun was started with --max-restarts=2", "[restarts-twice]"], statuses)


CHECKS = {"matrix": check_matrix, "two": check_two, "launched": check_launched, "supervisors": check_supervisors,
          "rank-zero": check_rank_zero,
          "again": check_again, "asked": check_asked, "scripts": check_scripts, "requeue": check_requeue,
          "lost-node": check_lost_node, "lost-first": check_lost_first, "asked-batch": check_asked_batch, "wrong": check_wrong}


if __name__ == "__main__":
    launch.run_check(CHECKS)
