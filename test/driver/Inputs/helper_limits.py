"""Looks at the processes that render a chat template and encode a text without end: their variables, their limits, and that they end with the
command when that is killed or interrupted."""

import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ALLOWED = {"CONDA_PREFIX", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYENV_ROOT", "PYENV_VERSION", "PYTHONNOUSERSITE", "PYTHONPATH",
           "PYTHONUSERBASE", "SHARDC_TEST_PACKAGE", "TMPDIR", "VIRTUAL_ENV"}
SECONDS = 120  # until a step that must come counts as missing


def await_(step, what):
    """Waits until a step gives something, and returns it."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        found = step()
        if found:
            return found
        time.sleep(0.02)
    sys.exit(f"missing: {what}")


def text_of(path):
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""


def is_limited(helper):
    limits = text_of(f"/proc/{helper}/limits")
    memory = re.search(r"Max address space +(\d+)", limits)
    seconds = re.search(r"Max cpu time +(\d+) ", limits)
    return memory is not None and int(memory[1]) < 6 << 30 and seconds is not None and int(seconds[1]) < 90


def children_of(process):
    return [child for task in pathlib.Path(f"/proc/{process}/task").iterdir() for child in text_of(task / "children").split()]


def main():
    if importlib.util.find_spec("jinja2") is None:
        print("there is no jinja2 here, and so no chat template")
        return
    folder = pathlib.Path(sys.argv[1])
    (folder / "tok").mkdir(parents=True, exist_ok=True)
    (folder / "tok" / "tokenizer.json").write_text(json.dumps({"words": {"a": 0, "?": 1, "<end>": 2}}))
    (folder / "tok" / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    (folder / "tok" / "chat_template.jinja").write_text("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}")
    (folder / "in.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]}) + "\n")
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent / "packages"), "OUTSIDE_TOKEN": "x", "PYTHON_TOKEN": "x", "CONDA_TOKEN": "x"}
    (folder / "long.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # commands in the background of a shell ignore it
    for end in (signal.SIGKILL, signal.SIGINT):
        look_at(["sft", "in.jsonl", "--length=8", "--processes=1"], folder, environment, end)
        look_at(["tokenize", "long.jsonl", "--threads=1"], folder, {**environment, "SHARDC_TEST_PACKAGE": "endless"}, end)


def look_at(words, folder, environment, end):
    command = subprocess.Popen(["shardc", "data", *words, "--tokenizer=tok", "-o", "packs", f"--python={sys.executable}"], cwd=folder,
                               env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    helper = int(await_(lambda: children_of(command.pid), "the helper")[0])
    await_(lambda: is_limited(helper), "limits of the helper")
    names = {variable.split("=")[0] for variable in text_of(f"/proc/{helper}/environ").split("\0") if variable}
    print("other variables:", sorted(names - ALLOWED))
    os.kill(command.pid, end)
    command.wait(SECONDS)
    await_(lambda: text_of(f"/proc/{helper}/stat").split(")")[-1].split()[:1] in ([], ["Z"]), "the end of the helper")
    print("the helper ended with the command")


main()
