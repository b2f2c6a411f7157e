#!/usr/bin/env python3
"""Runs small plans with one process per rank, started by several launchers, and ends them by faults. Needs only Python.

    launch_runs.py CHECK [SHARDC_FOLDER]

CHECK is the property to test; see CHECKS. Losses must be bitwise equal to those of one process. No process may remain.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

MARK = f"SHARDC_LAUNCH_TEST={uuid.uuid4().hex}"  # in the environment of every process that a check starts
WATCHDOG = 240  # seconds; matters only if an expected end does not come
LIMIT = 60  # seconds for a collective that never ends; long enough for a loaded machine
SKIPPED = 77
RANKS = 4
SHOWN, SETTINGS = (5, 15), []  # first and last lines of output that a failure shows; of every plan and recipe
GUARDS = []  # sockets that hold ports for this process
ASKED = "shardc-run: stopped before the first step; nothing was saved"
BESIDE = ()  # warnings with one of these words do not count as messages
RECIPES = pathlib.Path(__file__).resolve().parents[2] / "recipes"
RECIPE = """recipe launched extends "{base}" {{
  cluster {{ gpus_per_node = {ranks} }}
  dist {{ use_megatron_fsdp = true }}
  ddp {{ use_megatron_fsdp = true  data_parallel_sharding_strategy = {strategy} }}
  train {{ global_batch_size = 8  train_iters = {steps} }}
  logger {{ log_interval = 1 }}
}}
"""


def shown(process):
    """The first and the last lines of a process' output."""
    first, last = SHOWN
    lines = (process.out + process.err).splitlines()
    left_out = len(lines) - first - last
    if left_out > 0:
        lines[first:-last] = [f"... {left_out} lines ..."]
    return "\n".join([f"--- {process.name}", *lines])


def fail(reason, *processes):
    """Fails the check. The reason comes last, since only the last lines of a long output are reported."""
    sys.exit("\n".join([*map(shown, processes), reason]))


def expect(condition, reason, *processes):
    if not condition:
        fail(reason, *processes)


def expect_status(wanted, *processes):
    """Waits until all processes have ended, and checks their status."""
    statuses = [process.wait() for process in processes]
    expect(statuses == [wanted] * len(statuses), f"statuses {statuses}, not {wanted}", *processes)


def free_port():
    """A port that stays free until this process ends, as do the next two. Sockets that do not listen hold these ports and the
    one before. Connections and other tests cannot get them; programs that listen with SO_REUSEADDR, as ours do, still can."""
    while True:
        base = random.SystemRandom().randrange(10_000, 32_000) // 4 * 4
        held = [socket.socket() for _ in range(4)]
        try:
            for number, guard in enumerate(held):
                guard.bind(("127.0.0.1", base + number))
                guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # earlier, two tests could bind it
        except OSError:
            for guard in held:
                guard.close()
            continue
        GUARDS.extend(held)
        return base + 1


class Process:
    """A command that was started, with its output in files."""

    def __init__(self, folder, name, command, environment):
        self.name = name
        self.paths = [folder / f"{name}.out", folder / f"{name}.err"]
        with open(self.paths[0], "wb") as out, open(self.paths[1], "wb") as err:
            self.popen = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env={"SHARDC_JOB_SECRET": "the secret of the tests", **os.environ, **environment, MARK.split("=")[0]: MARK.split("=")[1]},
                start_new_session=True,
            )

    @property
    def out(self):
        return self.paths[0].read_text()

    @property
    def err(self):
        return self.paths[1].read_text()

    def wait(self):
        try:
            return self.popen.wait(timeout=WATCHDOG)
        except subprocess.TimeoutExpired:
            os.killpg(self.popen.pid, signal.SIGKILL)
            fail(f"{self.name} did not end within {WATCHDOG} s", self)

    def children(self, pid=None):
        pid = pid or self.popen.pid
        try:
            return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except FileNotFoundError:
            return []

    def await_text(self, text, count=1):
        """Waits until the output or the errors contain the text `count` times."""
        end = time.monotonic() + WATCHDOG

        def has_said():
            return self.out.count(text) + self.err.count(text) >= count

        while not has_said():
            expect(time.monotonic() < end, f"{self.name} has not said '{text}' within {WATCHDOG} s", self)
            if self.popen.poll() is not None:
                said = has_said()  # its last output may have come since
                expect(said, f"{self.name} ended with status {self.popen.poll()} before '{text}'", self)
            time.sleep(0.02)


def marked_processes():
    """{process id: name} of processes that this check has started and that still run."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if MARK.encode() in (entry / "environ").read_bytes().split(b"\0"):
                name, rest = (entry / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
                if rest.split()[0] != "Z":
                    found[int(entry.name)] = name
        except OSError:
            continue
    return found


def expect_no_orphans():
    end = time.monotonic() + 60
    while left := marked_processes():
        if time.monotonic() > end:
            fail(f"processes {left} are left")
        time.sleep(0.05)


def kill_marked(place):
    """Ends all processes of this check, since they still write into its folder. A process that is about to execute
    another program shows no environment, and so no mark; started processes are therefore also killed by their id."""
    for process in place.started:
        if process.popen.poll() is None:
            os.killpg(process.popen.pid, signal.SIGKILL)
            process.popen.wait()
    end = time.monotonic() + 60
    while (left := marked_processes()) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


class Place:
    def __init__(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.count = 0
        self.started = []

    def recipe(self, steps=12, strategy="optim_grads_params", ranks=None):
        path = self.folder / f"{strategy}-{steps}.recipe"
        base = RECIPES / "debug" / "llama_tiny.recipe"
        path.write_text(RECIPE.format(base=base, strategy=strategy, steps=steps, ranks=ranks or RANKS))
        return path

    def plan(self, *settings, timeout=None, elastic=None, **options):
        """Compiles a plan, or one for each size of `elastic`. `timeout` is in seconds, and may be shorter than recipes allow."""
        self.count += 1
        path = self.folder / f"job{self.count}.plan"
        command = ["shardc", "dump-plan", self.recipe(**options), "-o", path, *[f"--set={s}" for s in [*SETTINGS, *settings]]]
        command += [f"--elastic={elastic}"] if elastic else []
        done = subprocess.run(command, capture_output=True, text=True)
        expect(done.returncode == 0, done.stdout + done.stderr)
        if timeout is not None:
            text = re.sub(r"^(shardc\.plan .*) hash \w+$", r"\1", path.read_text(), flags=re.MULTILINE)
            option = r"(dist\.distributed_timeout_minutes = )\S+"
            expect(re.search(option, text), "the plan says no timeout")
            text = re.sub(r"^specification \{.*?^\}\n", "", text, flags=re.MULTILINE | re.DOTALL)  # which has the job
            path.write_text(re.sub(option, rf"\g<1>{timeout / 60}", text))
        return path

    def start(self, name, command, environment=None):
        self.started.append(Process(self.folder, name, command, environment or {}))
        return self.started[-1]

    def metrics(self, name="metrics"):
        return self.folder / f"{name}.jsonl"

    def losses(self, name="metrics"):
        records = [json.loads(line) for line in self.metrics(name).read_text().splitlines()]
        return [(record["loss"], record["grad_norm"]) for record in records if "loss" in record]

    def plain_losses(self, plan):
        process = self.start("plain", ["shardc-run", plan, f"--metrics={self.metrics('plain')}"])
        expect_status(0, process)
        return self.losses("plain")

    def torchrun(self, command, port=None, changes=None, address="127.0.0.1", commands=None, absent=(), name="rank"):
        """Starts processes with torchrun's environment: two nodes of two ranks. `changes` and `commands` are by rank."""
        port = port or free_port()
        processes = []
        for rank in range(RANKS):
            if rank in absent:
                continue
            environment = {
                "RANK": rank,
                "WORLD_SIZE": RANKS,
                "LOCAL_RANK": rank % 2,
                "LOCAL_WORLD_SIZE": 2,
                "GROUP_RANK": rank // 2,
                "MASTER_ADDR": address,
                "MASTER_PORT": port,
                "TORCHELASTIC_RUN_ID": "launch-test",
            }
            environment.update((changes or {}).get(rank, {}))
            text = {key: str(value) for key, value in environment.items()}
            processes.append(self.start(f"{name}{rank}", (commands or {}).get(rank, command), text))
        return processes


def end_like_torchrun(processes):
    """Waits for all processes, returns statuses. Once one has failed, asks the others to end, as an agent does; they must
    succeed if they have done no step."""
    end = time.monotonic() + WATCHDOG
    while any(process.popen.poll() is None for process in processes):
        expect(time.monotonic() < end, f"not all have ended within {WATCHDOG} s", *processes)
        if any(process.popen.poll() not in (None, 0) for process in processes):
            time.sleep(1)
            for process in processes:
                if process.popen.poll() is None:
                    process.popen.send_signal(signal.SIGTERM)
                    process.popen.send_signal(signal.SIGTERM)
            return [process.wait() for process in processes]
        time.sleep(0.02)
    return [process.wait() for process in processes]


def expect_one_message(processes, words, statuses=None):
    """With the statuses of ranks that were asked to end, rank 0's reply to that does not count."""
    lines = [line for process in processes for line in process.err.splitlines() if line.strip()]
    errors = [line for line in lines if not ("warning: " in line and any(text in line for text in BESIDE))]
    if statuses:
        errors = [line for line in errors if line != ASKED]
    told = "".join(f"\n{line}" for line in errors)
    expect(len(errors) == 1, f"statuses {statuses}, and not one message but {len(errors)}:{told}", *processes)
    for word in words:
        expect(word in errors[0], f"'{word}' is not in '{errors[0]}'", *processes)
    print(errors[0])


def expect_same(name, plain, other):
    expect(len(plain) > 0 and plain == other, f"{name}: {other}\nand one process: {plain}")
    print(f"{name}: {len(plain)} steps equal to the bit")


def check_processes(place):
    """One process per rank, started by the tool itself, under each strategy."""
    for strategy in ("optim_grads_params", "optim", "no_shard"):
        plan = place.plan(strategy=strategy)
        plain = place.plain_losses(plan)
        process = place.start("processes", ["shardc-run", plan, "--processes", f"--metrics={place.metrics()}"])
        expect_status(0, process)
        expect(process.err == "", "it has written errors", process)
        expect(process.out.count("done after 12 of 12 steps") == 1, "not one summary of 12 steps", process)
        expect_same(f"processes, {strategy}", plain, place.losses())


def run_recipe(place, *settings):
    return ["shardc", "run", place.recipe(), *[f"--set={s}" for s in [*SETTINGS, *settings]]]


def check_torchrun(place, changes=None):
    """torchrun's environment, with a compiled plan, and with a recipe that sets the port."""
    plan = place.plan()
    plain = place.plain_losses(plan)
    recipe = run_recipe(place, f"dist.rendezvous_port={free_port()}")
    for name, command in (("plan", ["shardc-run", plan]), ("recipe", recipe)):
        processes = place.torchrun([*command, f"--metrics={place.metrics(name)}"], changes=changes)
        expect_status(0, *processes)
        quiet = all(p.out == "" and p.err == "" for p in processes[1:])
        expect(quiet, "ranks beside the first speak", *processes[1:])
        expect_same(f"torchrun's environment, {name}", plain, place.losses(name))


def check_ipv6(place):
    """Rank 0 listens at an IPv6 address."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError as error:
            print(f"no IPv6 here: {error}")
            sys.exit(SKIPPED)
    plan = place.plan(steps=2)
    processes = place.torchrun(["shardc-run", plan], address="::1")
    expect_status(0, *processes)


def mpirun(place, name, command, environment=None):
    """Starts the command as each rank of Open MPI's mpirun."""
    if shutil.which("mpirun") is None:
        print("there is no mpirun")
        sys.exit(SKIPPED)
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", RANKS]
    # mpirun requires ssh or a replacement even for local ranks. Mpiruns that share a user's folder fail, so each has its own.
    usual = {"MASTER_PORT": str(free_port()), "OMPI_MCA_plm_rsh_agent": "sh", "OMPI_MCA_orte_tmpdir_base": str(place.folder)}
    return place.start(name, [*start, *command], {**usual, **(environment or {})})


def check_mpirun(place, wrapper=()):
    """Losses under Open MPI's mpirun, possibly with a wrapper for each rank, equal those of a plain start."""
    plan = place.plan()
    plain = place.plain_losses(plan)
    for name, command in (("plan", ["shardc-run", plan]), ("recipe", run_recipe(place))):
        process = mpirun(place, "mpirun", [*wrapper, *command, f"--metrics={place.metrics(name)}"])
        expect_status(0, process)
        expect(process.out.count("done after") == 1, "not one summary", process)
        expect_same(f"mpirun, {name}", plain, place.losses(name))


def merged(changes, more):
    """Merges two dictionaries of changed variables by rank."""
    return {rank: {**(changes or {}).get(rank, {}), **more.get(rank, {})} for rank in range(RANKS)}


def check_wrong(place, base=None):
    """A wrong rank, world size or plan must give one message. `base` has variables for every launch."""
    plan = place.plan(steps=4)
    other = place.plan("optimizer.lr=1e-5", steps=4)
    run = ["shardc-run", plan]
    cases = [
        ({3: {"RANK": 7}}, ["RANK is '7'; it must be a number from 0 to 3 [launcher-environment]"]),
        ({3: {"RANK": 1}}, ["two processes were started as rank 1", "[ranks-disagree]"]),
        ({2: {"RANK": "two"}}, ["RANK is 'two'", "[launcher-environment]"]),
        ({2: {"WORLD_SIZE": 5}}, ["rank 2", "one of 5 ranks, rank 0 as one of 4"]),
        ({r: {"WORLD_SIZE": 3} for r in range(3)} | {3: {"WORLD_SIZE": 3, "RANK": 2}}, ["3 ranks; the plan has 4 [other-number-of-ranks]"]),
    ]
    cases.append(({}, ["rank 2", "has another plan than rank 0", "[other-plan]"]))
    for changes, words in cases:
        commands = {} if changes else {2: ["shardc-run", other]}
        processes = place.torchrun(run, changes=merged(base, changes), commands=commands)
        statuses = end_like_torchrun(processes)
        expect(any(statuses), f"{words}: statuses {statuses}", *processes)
        expect_one_message(processes, words, statuses)
        expect_no_orphans()


def check_wrong_address(place, base=None):
    """A wrong master address, or a port in use, must give one message. `base` has variables for every launch."""
    plan = place.plan(steps=4)
    for address in ("192.0.2.1", "no.such.host.invalid"):
        processes = place.torchrun(["shardc-run", plan], address=address, changes=base)
        statuses = end_like_torchrun(processes)
        expect(any(statuses), f"{address}: statuses {statuses}", *processes)
        expect_one_message(processes, [address, "MASTER_ADDR must be an address of the machine", "[cannot-listen]"], statuses)
    port = free_port()
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port + 1))
        held.listen()
        processes = place.torchrun(["shardc-run", plan], port=port, changes=base)
        statuses = end_like_torchrun(processes)
    expect_one_message(processes, [f"127.0.0.1:{port + 1}", "in use", "dist.rendezvous_port"], statuses)


def check_late(place):
    """A rank uses another port, or never starts: one message after the time limit."""
    plan = place.plan(steps=4, timeout=LIMIT)
    elsewhere = {2: {"MASTER_PORT": free_port() + 1}}
    lost = place.torchrun(["shardc-run", plan], changes=elsewhere)
    short = place.torchrun(["shardc-run", plan], absent=[1, 2], name="short")
    statuses = end_like_torchrun(lost)
    expect_one_message(lost, [f"rank 2: no answer from rank 0 within {LIMIT} s", "is MASTER_ADDR right", "[no-answer-from-rank-0]"], statuses)
    statuses = end_like_torchrun(short)
    expect_one_message(short, ["rank 1, 2 of 4 did not reach 127.0.0.1", "[ranks-missing]"], statuses)


LONG = 100_000  # steps: more than any check waits for
FORMS = (("one process", []), ("processes", ["--processes"]))


def start_long(place, options=(), settings=(), timeout=None, environment=None):
    """A run that has done its first steps and would continue for long."""
    plan = place.plan(*settings, steps=LONG, timeout=timeout)
    process = place.start("run", ["shardc-run", plan, *options], environment)
    process.await_text("step 10/")
    return process


def expect_end(process, status, words):
    got = process.wait()
    expect(got == status, f"status {got}, not {status}", process)
    expect_one_message([process], words, [got])
    expect_no_orphans()


def check_killed(place):
    """kill -9 of a rank, of the first rank, of a rank of a launched job, and of the process that started the ranks."""
    for rank in (2, 0):
        process = start_long(place, ["--processes"])
        os.kill(process.children()[rank], signal.SIGKILL)
        # The first process to notice reports it: the parent, or a rank that waits.
        expect_end(process, 3, [f"rank {rank} (process", "recipe:"])
        said = "was ended by signal 9 (Killed)" in process.err or "ended without a message" in process.err
        expect(said, "it does not say how the rank ended", process)
    plan = place.plan(steps=LONG)
    processes = place.torchrun(["shardc-run", plan])
    processes[0].await_text("step 3/")
    os.kill(processes[2].children()[0], signal.SIGKILL)
    expect_status(3, *processes)
    expect_one_message(processes, ["rank 2 (process", "ended without a message", "recipe:"])
    expect_no_orphans()
    processes = place.torchrun(["shardc-run", plan])
    processes[0].await_text("step 3/")
    processes[0].popen.kill()
    statuses = [process.wait() for process in processes]
    expect(statuses == [-9, 3, 3, 3], f"statuses {statuses}", *processes)
    expect_one_message(processes, ["rank 0's process at 127.0.0.1:", "has ended without a message [rank-0-gone]"])
    process = start_long(place, ["--processes"])
    process.popen.kill()
    process.wait()
    expect_no_orphans()  # one of them reports it
    expect_one_message([process], [f"process {process.popen.pid}, which started the ranks", "was killed", "nothing was saved, since 'checkpoint.save' is not set [run-killed]"])


def minds_signals(process):
    """Whether the process catches or blocks SIGTERM. No program does before its main function begins."""
    try:
        status = pathlib.Path(f"/proc/{process.popen.pid}/status").read_text()
    except FileNotFoundError:
        return True
    return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in re.findall(r"^Sig(?:Blk|Cgt):\s*(\w+)", status, re.M))


def await_main(*processes):
    end = time.monotonic() + WATCHDOG
    for process in processes:
        while not minds_signals(process):
            expect(time.monotonic() < end, f"{process.name} has not begun within {WATCHDOG} s", process)
            time.sleep(0.001)


def check_early(place):
    """SIGTERM at any time before the first step: status 0 and one line, whether the run ends there or after that step."""
    commands = {"recipe": run_recipe(place, f"train.train_iters={LONG}"), "plan": ["shardc-run", place.plan(steps=LONG)]}
    forms = [(f"{name} {' '.join(options)}", [*command, *options]) for name, command in commands.items() for _, options in FORMS]
    for delay in (0, 0.01, 0.03, 0.1, 0.3, 1):
        for name, command in forms:
            process = place.start("run", command)
            await_main(process)
            time.sleep(delay)
            process.popen.send_signal(signal.SIGTERM)
            expect_status(0, process)
            expect_ended_early(name, process)
        processes = place.torchrun(commands["plan"])
        await_main(*processes)
        time.sleep(delay)
        for process in processes:
            process.popen.send_signal(signal.SIGTERM)
        print(f"torchrun's environment, {delay} s")
        expect_status(0, *processes)
        expect_ended_early("torchrun's environment", *processes)
        expect_no_orphans()


def expect_ended_early(name, *processes):
    lines = [line for process in processes for line in process.err.splitlines() if ": remark: " not in line and line.strip()]
    said = [line for line in lines if "stopped before the first step" in line or "ending after this step" in line]
    expect(len(said) == 1 and lines == said, f"{name}: it says {lines}", *processes)


def check_stopped(place):
    """SIGSTOP of a rank: the time limit of collectives must end the run, including the stopped rank."""
    plan = place.plan(steps=LONG, timeout=LIMIT)
    run = place.start("run", ["shardc-run", plan, "--processes"])
    nodes = place.torchrun(["shardc-run", plan])
    for process in (run, nodes[0]):
        process.await_text("step 3/")
    for pid in (run.children()[2], nodes[1].popen.pid, nodes[1].children()[0]):
        os.kill(pid, signal.SIGSTOP)
    # Ranks that already have the stopped rank's data may wait elsewhere, but at least one waits for it.
    words = ["rank 2 fell behind: rank", " for it in '", "recipe:", "distributed_timeout_minutes) has expired; rank ", "[rank-stuck]"]
    status = run.wait()
    expect(status == 3, f"status {status}", run)
    expect_one_message([run], words, [status])
    statuses = [process.wait() for process in nodes]
    expect(0 not in statuses, f"statuses {statuses}", *nodes)
    expect_one_message(nodes, ["rank 1 fell behind: rank", " for it in '", "recipe:"])


def check_data(place):
    """A data file that shrinks while it is read."""
    for name, options in FORMS:
        text = place.folder / "text"
        text.mkdir(exist_ok=True)
        (text / "a.txt").write_bytes(b"All that is read may change. " * 40_000)
        settings = ["dataset.kind=text", f'dataset.data_path=["{text}"]', "dataset.split=\"1,0,0\""]
        process = start_long(place, options, settings)
        os.truncate(text / "a.txt", 100)
        expect_end(process, 3, ["a.txt", "[data-changed]"])
        print(name)


def check_disk(place):
    """If the disk for metrics is full, this is reported once, and training continues."""
    plan = place.plan(steps=4)
    for _, options in FORMS:
        process = place.start("run", ["shardc-run", plan, "--metrics=/dev/full", *options])
        expect_status(3, process)
        expect("ended with errors after 4 of 4 steps" in process.out, "training did not continue", process)
        expect_one_message([process], ["cannot write metrics to '/dev/full': No space left on device", "[metrics-lost]"])
        expect_no_orphans()


def check_signals(place):
    """SIGTERM, or any number of SIGHUPs, saves after a step on which all ranks agree. The signal goes to the parent, or
    to all processes."""
    for _, options in FORMS:
        for kill, number, times in ((os.kill, signal.SIGTERM, 1), (os.killpg, signal.SIGTERM, 1), (os.killpg, signal.SIGHUP, 2)):
            saves = place.folder / f"saves{place.count}"
            process = start_long(place, options, [f'checkpoint.save="{saves}"'])
            for _ in range(times):
                kill(process.popen.pid, number)
            expect_status(0, process)
            expect(process.out.count("stopped after") == 1, "not one summary", process)
            words = f"saved step {(saves / 'latest_checkpointed_iteration.txt').read_text()} to"
            expect(words in process.out, f"it does not say '{words}'", process)
            expect_one_message([process], ["ending after this step"])
        expect_no_orphans()


SLURM_CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
FirstJobId={job}
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdTimeout={lost}
ProctrackType=proctrack/pgid
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MessageTimeout=100
TCPTimeout=60
ReturnToService=2
SchedulerType=sched/builtin
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
SLURM_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 State=UNKNOWN\n"


def free_job():
    """The number of a Slurm job from which ranks derive a free port, as do those of the next job."""
    while True:
        job, rest = divmod(free_port() - 15001, 2)
        if 0 < job < 8000 and rest == 0:
            return job


class Slurm:
    """A Slurm of this machine with its own key, configuration and ports, which ends with the check. Several nodes have
    process ids of their own, as machines do, and losing a node kills everything on it."""

    def __init__(self, place, nodes=("localhost",)):
        self.place, self.folder, self.daemons, self.nodes, self.environment = place, place.folder / "slurm", [], {}, {}
        for program in ("munged", "slurmctld", "slurmd", "srun", "sinfo"):
            if shutil.which(program) is None:
                self.skip(f"there is no {program}")
        for name in ("state", *[f"spool-{node}" for node in nodes]):
            (self.folder / name).mkdir(parents=True)
        os.chmod(self.folder, 0o755)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
        host = socket.gethostname().split(".")[0]
        conf = self.folder / "slurm.conf"
        text = SLURM_CONF.format(host=host, user=user, folder=self.folder, controller=free_port(), job=free_job(), lost=LIMIT)
        conf.write_text(text + "".join(SLURM_NODE.format(name=node, host=host, port=free_port()) for node in nodes))
        self.environment["SLURM_CONF"] = str(conf)
        munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket"]
        munge += [f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log"]
        munge += [f"--seed-file={self.folder}/munge.seed"]
        for command in (munge, ["slurmctld", "-D", "-f", conf]):
            self.daemons.append(place.start(command[0], command, self.environment))
        # The first process of a node reaps orphans, since slurmd does not.
        apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", '"$@" & wait', "bash"]
        self.nodes = {node: place.start(f"slurmd-{node}", [*(apart if len(nodes) > 1 else []), "slurmd", "-D", "-N", node, "-f", conf],
                                        self.environment)
                      for node in nodes}
        self.daemons += self.nodes.values()
        self.await_nodes()

    def lose(self, node):
        """Kills a node with everything on it, without notice."""
        lost = self.nodes.pop(node)
        self.daemons.remove(lost)
        lost.popen.kill()
        lost.popen.wait()

    def await_nodes(self):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for daemon in self.daemons:
                if daemon.popen.poll() is not None:
                    self.skip(f"{daemon.name} does not start; a container without cgroups does not let it: {daemon.out}{daemon.err}")
            if self.run_here(["sinfo", "-h", "-N", "-o", "%T"]).stdout.split() == ["idle"] * len(self.nodes):
                return
            time.sleep(0.1)
        self.skip("the nodes do not become idle")

    def await_end_of_jobs(self):
        """Waits for slurmstepd. It outlives its job until it has reported the end, or for minutes if nobody listens any more."""
        end = time.monotonic() + 60
        while time.monotonic() < end and all(daemon.popen.poll() is None for daemon in self.daemons):
            steppers = [name for name in marked_processes().values() if name == "slurmstepd"]
            if not steppers and not self.run_here(["squeue", "-h"]).stdout.strip():
                return
            time.sleep(0.1)

    def run_here(self, command):
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **self.environment})

    def end(self):
        if self.daemons:
            self.await_end_of_jobs()
        for node in list(self.nodes) if len(self.nodes) > 1 else []:
            self.lose(node)
        for daemon in reversed(self.daemons):
            daemon.popen.terminate()
        for daemon in self.daemons:
            daemon.wait()

    def skip(self, reason):
        self.end()
        print(" ".join(reason.split()))  # one line, which is listed after the tests
        sys.exit(SKIPPED)


def check_srun(place):
    """srun on a Slurm of this machine, which starts and ends with the check."""
    plan = place.plan()
    plain = place.plain_losses(plan)
    slurm = Slurm(place)
    try:
        srun = ["srun", "-n", RANKS, "--overcommit", "--kill-on-bad-exit=1", "--export=ALL"]
        for name, command in (("plan", ["shardc-run", plan]), ("recipe", ["shardc", "run", place.recipe()])):
            command = [*srun, *command, f"--metrics={place.metrics(name)}"]
            process = place.start("srun", command, slurm.environment)
            status = process.wait()
            expect(status == 0, f"srun ended with {status}", *slurm.daemons, process)
            expect(process.out.count("done after") == 1, "not one summary", *slurm.daemons, process)
            expect_same(f"srun, {name}", plain, place.losses(name))
    finally:
        slurm.end()


def check_convert(place):
    """One rank, eight ranks of srun, and the batch script must convert a checkpoint to the same tensors."""
    saved, plain = place.folder / "saved", place.folder / "plain"
    settings = [f'--set=checkpoint.save="{saved}"', "--set=train.train_iters=2"]
    convert = ["shardc", "ckpt", "convert", "torch-dist-to-fsdp-dtensor", "--swiglu"]
    run = ["shardc", "run", RECIPES / "debug" / "llama_tiny.recipe", *settings]
    slurm = Slurm(place)

    def end_well(command):
        process = place.start(command[0], command, slurm.environment)
        status = process.wait()
        expect(status == 0, f"{command[0]} ended with {status}", *slurm.daemons, process)

    try:
        for command in (run, [*convert, saved, plain]):
            end_well(command)
        for ranks in (1, 8):
            target = place.folder / f"of{ranks}"
            srun = ["srun", "-n", ranks, "--overcommit", "--kill-on-bad-exit=1", "--export=ALL"]
            end_well([*srun, *convert, "--threads=1", saved, target])
            files = len(list((target / "iter_0000002").glob("__*_0.distcp")))
            expect(files > 1 if ranks > 1 else files == 1, f"{ranks} ranks wrote {files} files")
        script = RECIPES / "slurm" / "convert_checkpoint.sbatch"
        batch = ["sbatch", "--wait", "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=2", "--export=ALL"]
        batch += [f"--chdir={place.folder}", f"--output={place.folder}/batch.txt"]
        end_well([*batch, script, saved, place.folder / "batch", "--swiglu"])
        for name in ("of1", "of8", "batch"):
            for command in (["diff", plain, place.folder / name], ["verify", place.folder / name]):
                end_well(["shardc", "ckpt", *command])
    finally:
        slurm.end()
    print("1 and 8 ranks of srun, and the batch script, give the same tensors")


RECORDER = """#!/bin/bash
printf '%s\\n' "$(basename "$0")" "$@" > "$RECORD"
"""


def expanded(place, script, arguments, environment):
    """The words with which the script calls srun."""
    tools = place.folder / "tools"
    tools.mkdir(exist_ok=True)
    record = place.folder / "record"
    for name, text in (("srun", RECORDER), ("scontrol", "#!/bin/bash\nfor ((n = 1; n <= 20000; n++)); do echo n$n; done\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    changed = {**os.environ, **environment, "RECORD": str(record), "PATH": f"{tools}:{os.environ['PATH']}"}
    command = ["bash", script, *arguments]
    done = subprocess.run(command, cwd=RECIPES.parent, capture_output=True, text=True, env=changed)
    expect(done.returncode == 0, f"{script}: {done.stdout}{done.stderr}")
    return record.read_text().splitlines()


def check_slurm_scripts(place):
    """The Slurm scripts must pass to srun a run whose recipe has no errors for that many nodes."""
    allocation = {"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "8", "SLURM_JOB_ID": "7"}
    allocation |= {"SLURM_JOB_NAME": "job", "SLURM_JOB_NODELIST": "n[1-2]"}
    for name in ("train", "train_torchrun"):
        script = RECIPES / "slurm" / f"{name}.sbatch"
        words = expanded(place, script, ["shardc:llama3/llama3_8b_fsdp.recipe", "train.train_iters=20"], allocation)
        expect(words[:2] == ["srun", "--kill-on-bad-exit=1"], f"{name}: {words}")
        run = words[words.index("shardc"):]
        expect("--set=cluster.nodes=2" in run and "--set=cluster.gpus_per_node=8" in run, f"{name}: {run}")
        expect("--set=train.train_iters=20" in run, f"{name}: {run}")
        expect(run[-1] == "--metrics=job-7.jsonl", f"{name}: {run}")
        expect(("--rdzv-endpoint=n1:29500" in words) == ("torchrun" in name), f"{name}: {words}")
        command = ["shardc", "check", *run[2:-1]]
        done = subprocess.run(command, cwd=RECIPES.parent, capture_output=True, text=True)
        expect(done.returncode == 0, f"{name}: {done.stdout}{done.stderr}")
        print(" ".join(words))


CHECKS = {
    "processes": check_processes,
    "torchrun": check_torchrun,
    "ipv6": check_ipv6,
    "mpirun": check_mpirun,
    "wrong": check_wrong,
    "wrong-address": check_wrong_address,
    "late": check_late,
    "killed": check_killed,
    "stopped": check_stopped,
    "data": check_data,
    "disk": check_disk,
    "signals": check_signals,
    "early": check_early,
    "srun": check_srun,
    "convert": check_convert,
    "slurm-scripts": check_slurm_scripts,
}


def run_check(checks):
    """Runs the check that the command line names: CHECK [SHARDC_FOLDER]. Ends all processes that it started."""
    if len(sys.argv) > 2:
        os.environ["PATH"] = os.path.abspath(sys.argv[2]) + os.pathsep + os.environ["PATH"]
    for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "PMIX_"))]:
        del os.environ[name]
    sys.stdout.reconfigure(line_buffering=True)  # prints a check's output before its reason to fail
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))
    place = Place()
    try:
        checks[sys.argv[1]](place)
        expect_no_orphans()
    finally:
        kill_marked(place)  # processes of a check that failed or was asked to end


if __name__ == "__main__":
    run_check(CHECKS)
