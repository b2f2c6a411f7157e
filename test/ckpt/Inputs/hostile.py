#!/usr/bin/env python3
"""Gives folders of a stranger to every command that takes one: nothing outside of them is read or written, nothing of it
is printed, no code of theirs runs, nothing is sent, and no process remains.

    hostile.py WORK [COUNT [FIRST]]
    hostile.py WORK SEED,SEED,...

Each folder is a good one with random changes (hostile_folders.py). A watch sees every opened file outside of the folder, such
as those of the user's home. strace lists what a command and all processes that it starts open, write, execute and connect to; of
many folders, for one in 20, since it takes most of the time. SHARDC_LONG=1 tries 10,000 folders; HOSTILE_SHOW=1 prints each output.
"""

import collections
import ctypes
import functools
import glob
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

import hostile_folders as folders
from hostile_folders import SECRET

PR_SET_CHILD_SUBREAPER = 36
SECONDS, MEMORY_MIB = 120, 3000
CALLS = ("open,openat,openat2,creat,execve,execveat,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,"
         "chmod,fchmodat,chown,lchown,fchownat,truncate,mknod,mknodat,connect,bind,sendto")
TRACER = ["strace", "-f", "-ff", "-y", "-z", "-q", "-e", "signal=none", "--seccomp-bpf", "-e", "trace=" + CALLS]
PROGRAMS = re.compile(r"shardc|shardc-run|exe|bash|sh|shfmt|uname|python3?[0-9.]*")
SYSTEM = ("/usr/", "/lib", "/bin/", "/opt/", "/etc/", "/proc/", "/sys/", "/dev/null", "/dev/urandom", "/dev/random", "/dev/shm/", "/dev/tty", "/run/")
PYTHON = f"--python={sys.executable}"


def commands(kind, out):
    """The commands that take a folder of this kind, run in it. What they may write is below `out`, or in the words after None."""
    model = [["ckpt", "import", "hf", "@", out], ["import", "hf", "@", "-o", out], ["generate", "@", "--tokenizer=none", "1 2", "--tokens=2", "--backend=host"],
             ["generate", "@", "a b", "--chat", PYTHON, "--tokens=2", "--backend=host"], ["ckpt", "inspect", "@"], ["ckpt", "verify", "@"],
             ["data", "tokenize", "../data/text.jsonl", "-o", out, "--tokenizer=@", PYTHON], ["data", "sft", "../data/rows.jsonl", "-o", out, "--tokenizer=@", "--length=16", PYTHON],
             ["ckpt", "export", "hf", "../imported", out, "--config=@"], ["ckpt", "merge", "../adapters", "@", out], ["ckpt", "import", "peft", "../peft", out, "--config=@"],
             ["data", "reference", "../data/pairs", "--model=@", None, "../data"], ["generate", "../adapters", "1 2", "--base=@", "--tokenizer=none", "--tokens=2", "--backend=host"],
             ["run", "../recipes/main.recipe", "--set", "checkpoint.pretrained_checkpoint=@", "--set", "checkpoint.save=none"]]
    if kind in ("hf", "hub"):
        return model
    if kind == "peft":
        return [["ckpt", "import", "peft", "@", out, "--config=../hf"], ["ckpt", "inspect", "@"], ["generate", "@", "1 2", "--base=../hf", "--tokenizer=none", "--backend=host"],
                ["ckpt", "merge", "@", "../hf", out], ["import", "hf", "@", "-o", out]]
    if kind in ("run", "imported", "adapters", "dist"):
        more = {"adapters": [["ckpt", "export", "peft", "@", out], ["ckpt", "merge", "@", "../hf", out], ["generate", "@", "1 2", "--base=../hf", "--tokenizer=none", "--backend=host"]],
                "dist": [["ckpt", "convert", "torch-dist-to-fsdp-dtensor", "@", out]],
                "run": [["ckpt", "convert", "fsdp-dtensor-to-torch-dist", "@", out],
                        ["run", "../recipes/main.recipe", "--set", "checkpoint.save=@", "--set", "checkpoint.load=@", "--set", "train.train_iters=3", None, "."]]}
        return [["ckpt", "inspect", "@"], ["ckpt", "inspect", "@/iter_0000001", "--json"], ["ckpt", "verify", "@"], ["ckpt", "diff", "@", f"../{kind}"], ["ckpt", "list", "@"],
                ["ckpt", "export", "hf", "@", out], ["ckpt", "reshard", "@", out], ["import", "megatron-args", "@", "-o", out], ["ckpt", "print-torch-dcp-in-json", "@", None, "."],
                ["generate", "@", "1 2", "--tokenizer=none", "--tokens=2", "--backend=host"], *more.get(kind, [])]
    if kind == "recipes":
        main = "@/main.recipe"
        return [["check", main], ["check", main, "--overlay", "over.recipe"], ["check", "--fix", main, None, "main.recipe"], ["dump-plan", main, "-o", out], ["fmt", "--check", main],
                ["fmt", main, None, "main.recipe"], ["explain", main, "model"], ["report", main, "-o", out, "--seconds=0"], ["recipes", "@"], ["fit", main, "--seconds=1"],
                ["shrink", main, "--ranks=1", "-o", out], ["export", "megatron-args", main, "-o", out], ["tune", main, "--most=2", "-o", out], ["ckpt", "group-map", main, "-o", out],
                ["run", main, "--set", f"checkpoint.save={out}", None, "events"], ["generate", "../run", "1 2", "--tokenizer=none", "--backend=host", "--set", "train.seed=1"], ["lsp"]]
    if kind == "plans":
        return [["run", "@/main.plan", None, "saved"], ["report", "@/main.plan", "--metrics", "metrics.jsonl", "--trace", "trace.json", "-o", out, "--seconds=0"],
                ["report", "@/main.plan", "-o", out, "--seconds=0"]]
    if kind == "data":
        tok = ["--tokenizer=@/tok", PYTHON]
        return [["data", "build", "@/text.jsonl", out], ["data", "build", "@", out], ["data", "tokenize", "@/text.jsonl", "@/packed.jsonl.gz", "-o", out, *tok],
                ["data", "sft", "@/rows.jsonl", "-o", out, "--length=16", *tok], ["data", "preference", "@/pairs.jsonl", "-o", out, "--length=16", *tok],
                ["data", "pack", "@/packs.npy", "@/arrays.npy", "-o", out, "--length=8"], ["data", "pack", "@/packs", "-o", out], ["data", "show", "@/packs", PYTHON],
                ["data", "show", "@/packs", *tok], ["data", "show", "@/pairs", "--tokenizer=none"], ["data", "reference", "@/pairs", "--model=../hf", None, "."],
                ["run", "../recipes/main.recipe", "--set", "dataset.kind=blended", "--set", "dataset.data_path=@/indexed", "--set", "checkpoint.save=none"],
                ["run", "../recipes/main.recipe", "--set", "dataset.kind=packed", "--set", "dataset.train_data_path=@/packs", "--set", "checkpoint.save=none", "--set", "model.seq_length=16"]]
    return [["import", "megatron-args", "@/main.sh", "-o", out], ["import", "megatron-args", "@/large.sh"], ["import", "bridge-yaml", "@/main.yaml", "-o", out],
            ["import", "bridge-overrides", "@/main.overrides"], ["import", "bridge-python", "@/main.py"], ["import", "bridge-python", "@/main.py", "--run"],
            ["import", "megatron-args", "@/main.sh", "--with", "more.sh", "--run", "-o", out]]


KINDS = {"hf": 6, "hub": 3, "peft": 2, "run": 4, "imported": 2, "adapters": 2, "dist": 2, "recipes": 5, "plans": 2, "data": 5, "launches": 3}


def texts_of(folder):
    """The contents of the small files that a command wrote."""
    paths = [folder] if folder.is_file() else folder.rglob("*") if folder.is_dir() else []
    return [path.read_bytes() for path in paths if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 24]


class Watch:
    """Sees each file of a folder and its subfolders that any process opens, reads, writes, adds or removes."""

    OPENED, WRITTEN = 0x20 | 0x1, 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200  # IN_OPEN, IN_ACCESS; IN_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED_*, _CREATE, _DELETE
    FOLDER = 0x40000000  # IN_ISDIR

    def __init__(self, folder):
        self.libc = ctypes.CDLL(None)
        self.fd = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.names = {self.libc.inotify_add_watch(self.fd, os.fsencode(path), self.OPENED | self.WRITTEN): path
                      for path in [folder, *folder.rglob("*")] if path.is_dir() and not path.is_symlink()}
        assert self.fd >= 0 and -1 not in self.names, "no watch"

    def close(self):
        os.close(self.fd)

    def seen(self):
        """{(what, path)} since the last call."""
        events = set()
        while True:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return events
            while data:
                watch, mask, _, length = struct.unpack_from("iIII", data)
                name = data[16:16 + length].rstrip(b"\0")
                data = data[16 + length:]
                if watch in self.names and not (mask & self.FOLDER and mask & self.OPENED):
                    events.add(("write" if mask & self.WRITTEN else "read", str(self.names[watch] / os.fsdecode(name))))


def end_children(seconds=60):
    """Waits until what a command has left, which this process adopts, has ended: killed processes take a moment. Ends the others,
    and returns their names."""
    names, end = [], time.monotonic() + seconds
    while children := pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in map(int, children):
            try:
                if os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() > end:
                    names.append(pathlib.Path(f"/proc/{child}/comm").read_text().strip())
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
            except OSError:
                continue
        time.sleep(0.005)
    return names


def plain(text):
    """A path as strace writes it."""
    return os.fsdecode(text.encode("latin-1", "replace").decode("unicode_escape").encode("latin-1", "replace"))


PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<((?:[^<>"\\]|\\.)*)>, )?"((?:[^"\\]|\\.)*)"')
OPENED = re.compile(r"= \d+<(.*?)(?: \(deleted\))?>$")


def events_of(traces):
    """Yields (what, path) of each trace: read, write, execute, send, or end with a signal."""
    for trace in traces:
        for line in trace.read_text(errors="surrogateescape").splitlines():
            name = line.split("(", 1)[0]
            if line.startswith("+++ killed by"):
                if line.split()[3] in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS"):
                    yield "end", line.strip("+ ")
            elif name in ("open", "openat", "openat2", "creat"):
                found = OPENED.search(line)
                if found and "O_PATH" not in line:
                    is_written = name == "creat" or re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", line) is not None
                    yield "write" if is_written else "read", plain(found[1])
            elif name in ("connect", "bind", "sendto"):
                yield "send", line
            elif name in ("execve", "execveat"):
                yield "execute", plain(PATH.search(line)[2])
            else:
                for folder, path in PATH.findall(line):
                    yield "write", os.path.normpath(os.path.join(plain(folder), plain(path)))


class Trial:
    """One folder and one command."""

    def __init__(self, work, good, seed):
        draw = random.Random(seed)
        self.work, self.place, self.seed = work, work / "place", seed
        if self.place.exists() and os.geteuid() != 0:
            os.system(f"chmod -R u+rwX '{self.place}' 2>/dev/null")
        shutil.rmtree(self.place, ignore_errors=True)
        self.kind = draw.choices(list(KINDS), KINDS.values())[0]
        self.out = self.place / "out"
        words = draw.choice(commands(self.kind, str(self.out)))
        needed = {word.split("../", 1)[1].split("/")[0] for word in words if word and "../" in word}
        for name in {self.kind, *needed} - {""}:
            shutil.copytree(good / name, self.place / name, symlinks=True)
        folder = self.folder = self.place / self.kind
        if self.kind == "hub":
            folder = self.folder = folder / "models--a--b" / "snapshots" / "1"
            folders.damage(draw, self.place, draw.choice((folder, folder, folder.parent.parent / "blobs")), work / "outside")
        for _ in range(draw.randint(1, 3)):
            folders.damage(draw, self.place, folder, work / "outside")
        at = words.index(None) if None in words else len(words)
        up = os.path.relpath(self.place, self.folder)
        name = draw.choice((str(self.folder), ".", "./", f"{up}/{self.folder.relative_to(self.place)}"))
        self.words = [word.replace("@/", name.rstrip("/") + "/").replace("@", name).replace("../", up + "/", word.startswith("../")) for word in words[:at]]
        # A file that the command names may be a link, and so may the files of a prefix.
        self.named = {os.path.realpath(path) for word in words[:at] if "@/" in word or "." in word[1:-1]
                      for path in glob.glob(glob.escape(str(self.folder / word.split("@/")[-1])) + "*")}
        self.written = [os.path.normpath(self.folder / (word.replace("..", up, 1))) for word in words[at + 1:]]
        self.input = lsp_messages(self.folder) if words == ["lsp"] else b""

    def run(self, environment, watch, is_traced):
        """Returns the problems, the exit status, and the output."""
        traces = self.work / "traces"
        shutil.rmtree(traces, ignore_errors=True)
        traces.mkdir()
        watch.seen()
        process = subprocess.Popen([*([*TRACER, "-o", traces / "t"] if is_traced else []), "shardc", *self.words], env=environment, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
        try:
            output = process.communicate(self.input, timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            return [f"does not end, or leaves processes: {end_children(0)}"], None, ""
        text = output.decode(errors="replace")
        problems = [f"leaves processes: {names}" for names in [end_children()] if names]
        if process.returncode < 0 or process.returncode >= 126:
            problems.append(f"status {process.returncode}")
        if not self.names_secret() and (SECRET in text or any(SECRET.encode() in part for part in texts_of(self.out))):
            problems.append("what is outside reached the output")
        if re.search("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f]", text) and self.words[0] != "lsp":
            problems.append("a control character reached the terminal")
        if any(path.name == "owned" for path in self.place.rglob("owned")):
            problems.append("code of the folder has run")
        problems += [f"{what}s {path}" for what, path in sorted(watch.seen()) if what == "write" or self.kind not in ("recipes", "plans") and not self.is_named(path)]
        is_sandboxed = "--run" in self.words  # paths are those of another root
        events = [event for event in events_of(traces.iterdir()) if not is_sandboxed or event[0] in ("execute", "end")]
        problems += sorted({problem for what, path in events if (problem := self.problem_of(what, path, is_sandboxed))})
        return problems, process.returncode, text

    def names_secret(self):
        """Whether the command runs a script with a file that is a link to a secret: what the user names may be a link."""
        return "--run" in self.words and any(SECRET.encode() in part for path in self.named if not path.startswith(str(self.place))
                                             for part in texts_of(pathlib.Path(path)))

    def is_named(self, path):
        return any(path == named or path.startswith(named + "/") for named in self.named)

    def may_write(self, path):
        """Whether a path is what the command may write, below it, or a temporary name beside it."""
        folder, name = os.path.split(path)
        return re.match(r"\.?out([./]|$)", os.path.relpath(path, self.place)) is not None or any(
            path == each or path.startswith((each + "/", each + ".tmp")) or (folder == os.path.dirname(each) and name.startswith(f".{os.path.basename(each)}."))
            for each in self.written)

    def problem_of(self, what, path, is_sandboxed):
        if what == "end":
            return None if is_sandboxed else path
        if what == "send":
            return None if re.search(r'AF_UNIX|AF_NETLINK|inet_addr\("127\.|"::1"|NULL, 0\)', path) else f"sends: {path}"
        if what == "execute":
            return None if PROGRAMS.fullmatch(pathlib.Path(path).name) and str(self.place) not in path or is_sandboxed else f"executes {path}"
        if what == "write":
            path = os.path.normpath(self.folder / path)
            known = ("/dev/null", "/dev/tty", "/dev/shm/shardc", str(self.work / "tmp"), "/proc/")
            return None if self.may_write(path) or path.startswith(known) else f"writes {path}"
        if path == "/dev/zero" or re.match(r"/proc/[^/]*/(environ|mem|root|cwd|fd)", path):
            return f"reads {path}"
        if self.is_named(path) or self.kind in ("recipes", "plans") and path.startswith(str(self.work / "outside")):
            return None  # a recipe names its bases and data, so they may be read
        known = (str(self.place), str(self.work / "tmp"), str(self.work / "outside" / "home" / ".local"), str(folders.HERE.parent.parent), *roots())
        return None if (path + "/").startswith((*SYSTEM, *known)) else f"reads {path}"


@functools.cache
def roots():
    """The programs, their library and Python."""
    program = pathlib.Path(shutil.which("shardc")).resolve()
    return {str(program.parent.parent), str(folders.HERE.parents[2]), sys.prefix, sys.base_prefix}


def lsp_messages(folder):
    """An editor that opens the recipes of a folder."""
    def message(method, params, **rest):
        text = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **rest})
        return f"Content-Length: {len(text.encode())}\r\n\r\n{text}".encode()

    opened = b""
    for path in sorted(folder.glob("*.recipe")):
        if path.is_file() and path.stat().st_size < 1 << 20 and os.access(path, os.R_OK):
            opened += message("textDocument/didOpen", {"textDocument": {"uri": path.as_uri(), "languageId": "recipe", "version": 1, "text": path.read_text(errors="replace")}})
    return (message("initialize", {"processId": None, "rootUri": folder.as_uri(), "capabilities": {}}, id=1) + message("initialized", {}) + opened +
            message("shutdown", None, id=2) + message("exit", None))


def make_outside(outside, good):
    """What must not be read: secrets, the user's home, and files as good as those of the folders."""
    outside.mkdir()
    (outside / "secret").write_text(SECRET + "\n")
    (outside / "secret.json").write_text(json.dumps({"secret": SECRET}))
    (outside / "home" / ".ssh").mkdir(parents=True)
    for name in (".ssh/id_rsa", ".netrc", ".bashrc"):
        (outside / "home" / name).write_text(SECRET + "\n")
    shutil.copytree(good, outside / "mirror", symlinks=True)
    for name in ("chat_template.jinja", "vocab.txt"):
        (outside / "mirror" / "hf" / name).write_text(SECRET)
    (outside / "mirror" / "launches" / "more.sh").write_text(f"ARGS='--hidden-size {SECRET}'\n")


def main():
    work = pathlib.Path(sys.argv[1])
    counts = [int(word) for word in sys.argv[2].split(",")] if len(sys.argv) > 2 else [10000 if os.environ.get("SHARDC_LONG") == "1" else 60]
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    seeds = counts if len(counts) > 1 else range(first, first + counts[0])
    count = len(seeds)
    if shutil.which("strace") is None:
        sys.exit("strace is missing; ./dev install test installs it")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    work = work.resolve()
    (work / "tmp").mkdir()
    outside = work / "outside"
    environment = {**os.environ, "HOME": str(outside / "home"), "TMPDIR": str(work / "tmp"), "PYTHONPATH": f"{folders.DRIVER / 'packages'}:", "PYTHONDONTWRITEBYTECODE": "1"}
    good = folders.make_good(work, environment)
    make_outside(outside, good)
    environment |= {"OUTSIDE_TOKEN": SECRET, "HF_TOKEN": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET}
    watch, every = Watch(outside), 20 if count >= 1000 else 1
    stopped, failures, begun = [], collections.defaultdict(list), time.monotonic()
    tried, accepted = collections.Counter(), collections.Counter()
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    for seed in seeds:
        if stopped:
            break
        trial = Trial(work, good, seed)
        name = " ".join(word for word in trial.words[:3] if re.fullmatch("[a-z-]+", word))
        problems, status, output = trial.run(environment, watch, seed % every == 0)
        if any(problem.startswith("write") for problem in problems):
            watch.close()
            shutil.rmtree(outside)
            make_outside(outside, good)
            watch = Watch(outside)
        tried[name] += 1
        accepted[name] += status == 0
        if os.environ.get("HOSTILE_SHOW"):
            print(f"--- {seed} {trial.kind}: {trial.words}: {status}\n{output[:600]}")
        for problem in problems:
            print(f"seed {seed}, {trial.kind}: shardc {' '.join(trial.words)}: {problem}\n{output[-400:]}", flush=True)
            failures[problem.split(":")[0]].append(seed)
    if count >= 1000:
        for name, number in sorted(tried.items()):
            print(f"{name}: {number} folders, {accepted[name]} accepted")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
        print(f"{time.monotonic() - begun:.0f} s; at most {peak} MiB in a process; {-(-count // every)} folders traced")
        if peak > MEMORY_MIB:
            failures["memory"].append(peak)
    total = sum(map(len, failures.values()))
    print(f"{sum(tried.values())} folders, {sum(accepted.values())} accepted, {total} failures")
    sys.exit(bool(total) or accepted.total() in (0, tried.total()))


if __name__ == "__main__":
    main()
