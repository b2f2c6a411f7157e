#!/usr/bin/env python3
"""Gives folders of a stranger to every command that takes one: nothing outside of them is read or written, nothing of it
is printed, and no process remains.

    hostile.py WORK RECIPE [COUNT]

Each folder is a good one with random changes: links out of it, pipes, folders in the place of files, names with control
characters, sizes, and modes. A preloaded tracer lists the files that a command and its children open.
"""

import ctypes
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys

SECRET = "outside-3e1f8a-secret"
PR_SET_CHILD_SUBREAPER = 36
SECONDS = 60


def run(*command, **rest):
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **rest)


def make_hf(folder):
    """A model of one layer with the files that belong to it."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
              "intermediate_size": 16, "vocab_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
              "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu", "rope_theta": 10000.0}
    at = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [16, 8], "lm_head.weight": [16, 8], "model.norm.weight": [8], at + "input_layernorm.weight": [8],
              at + "post_attention_layernorm.weight": [8], **{at + f"self_attn.{part}_proj.weight": [8, 8] for part in "qkvo"},
              at + "mlp.gate_proj.weight": [16, 8], at + "mlp.up_proj.weight": [16, 8], at + "mlp.down_proj.weight": [8, 16]}
    header, place = {}, 0
    for name, shape in sorted(shapes.items()):
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(place))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(header, "model.safetensors")}))
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}))
    for name in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        (folder / name).write_text("{}")
    (folder / "vocab.txt").write_text("a\n")


def make_good(work, recipe):
    """A good folder of each kind, by name."""
    good = work / "good"
    good.mkdir()
    make_hf(good / "hf")
    done = [run("shardc", "run", recipe, "--set", f"checkpoint.save={good / 'run'}", "--set", "train.train_iters=2", "--set",
                "checkpoint.save_interval=1"),
            run("shardc", "ckpt", "import", "hf", good / "hf", good / "imported")]
    for each in done:
        if each.returncode != 0:
            sys.exit(each.stdout)
    (good / "recipes").mkdir()
    shutil.copy(recipe, good / "recipes" / "base.recipe")
    (good / "recipes" / "main.recipe").write_text('recipe main extends "base.recipe" {}\n')
    return good


def commands(kind, folder, out, recipe):
    """The commands that take a folder of this kind."""
    if kind == "hf":
        return [["ckpt", "import", "hf", folder, out], ["import", "hf", folder, "-o", out], ["generate", folder, "--tokenizer=none", "--prompt=1 2"],
                ["ckpt", "inspect", folder], ["data", "tokenize", recipe, "-o", out, f"--tokenizer={folder}"],
                ["ckpt", "export", "hf", folder.parent / "imported", out, f"--config={folder}"]]
    if kind in ("run", "imported"):
        last = folder / "iter_0000002" if (folder / "iter_0000002").is_dir() else folder
        return [["ckpt", "inspect", last], ["ckpt", "verify", folder], ["ckpt", "diff", last, last], ["ckpt", "list", folder],
                ["ckpt", "export", "hf", folder, out], ["ckpt", "reshard", folder, out], ["import", "megatron-args", folder, "-o", out],
                ["generate", folder, "--tokenizer=none", "--prompt=1 2"],
                ["run", recipe, "--set", f"checkpoint.save={folder}", "--set", f"checkpoint.load={folder}", "--set", "train.train_iters=3"]]
    main = folder / "main.recipe"
    return [["check", main], ["dump-plan", main, "-o", out], ["fmt", "--check", main], ["explain", main, "model"], ["report", main, "-o", out],
            ["run", main, "--set", "train.train_iters=1"]]


def damage(draw, folder, outside):
    """Changes a random file, or adds one with a name that programs use."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if not files:
        return
    path = draw.choice(files)
    added = ["latest_checkpointed_iteration.txt.tmp", "latest_train_state.pt.tmp", ".shardc_lock", "x\x1b]0;title\x07.json", "chat_template.jinja",
             "added_tokens.json", ".iter_0000003.saving", "merges.txt", "model.safetensors", "command.txt", ".metadata"]
    if draw.random() < 0.4:
        path = folder / draw.choice(added)
        if path.exists() or path.is_symlink():
            return
    elif draw.random() < 0.9:
        path.unlink()
    how = draw.randrange(9)
    if not path.parent.is_dir() or (how != 6 and (path.exists() or path.is_symlink())):
        how = 7
    targets = [outside / "secret", outside / "secret.json", outside, "/proc/self/environ", "/dev/zero", "../../../outside/secret", path.name, "nowhere"]
    if how < 5:
        path.symlink_to(draw.choice(targets))
    elif how == 5:
        os.mkfifo(path)
    elif how == 6 and path.is_file():
        path.chmod(draw.choice((0, 0o777, 0o4755)))
    elif how == 7 and path.is_file():
        with open(path, "r+b") as file:
            file.truncate(draw.choice((0, 7, 1 << 40)))
    elif how == 8:
        path.mkdir()


def state_of(folder):
    return {str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in sorted(folder.rglob("*"))}


def texts_of(folder):
    """The contents of the small files that a command wrote."""
    paths = [folder] if folder.is_file() else folder.rglob("*") if folder.is_dir() else []
    return [path.read_bytes() for path in paths if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 24]


def remaining():
    """Ends the children that are left and returns how many there are. This process adopts those of the commands."""
    count = 0
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid() and fields[0] != "Z":
                os.kill(int(entry.name), signal.SIGKILL)
                count += 1
    while True:
        try:
            os.waitpid(-1, os.WNOHANG) == (0, 0) and os.waitpid(-1, 0)
        except ChildProcessError:
            return count


def main():
    work, recipe = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 10000 if os.environ.get("SHARDC_LONG") == "1" else 40
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    work = work.resolve()
    outside, tracer, opens = work / "outside", work / "opens.so", work / "opens"
    outside.mkdir()
    (outside / "secret").write_text(SECRET + "\n")
    (outside / "secret.json").write_text(json.dumps({"secret": SECRET}))
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", tracer, pathlib.Path(__file__).parent / "Opens.c", "-ldl"], check=True)
    good = make_good(work, recipe)
    before, failures, tried, accepted = state_of(outside), [], 0, 0
    environment = {**os.environ, "LD_PRELOAD": str(tracer), "OPENS": str(opens), "OUTSIDE_TOKEN": SECRET}
    for seed in range(count):
        draw = random.Random(seed)
        place = work / "place"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(good, place)
        kind = draw.choice(("hf", "run", "imported", "recipes"))
        for _ in range(draw.randint(1, 3)):
            damage(draw, place / kind, outside)
        out = place / "out"
        command = draw.choice(commands(kind, place / kind, out, recipe))
        opens.write_text("")
        try:
            done = run("shardc", *command, env=environment, timeout=SECONDS, stdin=subprocess.DEVNULL, cwd=place)
        except subprocess.TimeoutExpired:
            failures.append(f"seed {seed}: {command} does not end")
            continue
        tried, accepted = tried + 1, accepted + (done.returncode == 0)
        touched = [line for line in opens.read_text(errors="replace").splitlines() if line[2:].startswith(str(outside)) or line[2:] == "/dev/zero"]
        if kind == "recipes":  # a recipe names its bases, so they may be read
            touched = [line for line in touched if line[0] == "w"]
        problems = [f"opened {line}" for line in touched]
        if done.returncode < 0 or done.returncode >= 128:
            problems.append(f"status {done.returncode}")
        if SECRET in done.stdout or any(SECRET.encode() in text for text in texts_of(out)):
            problems.append("what is outside reached the output")
        if any(ord(char) < 32 and char not in "\n\t\r" for char in done.stdout):
            problems.append("a control character reached the terminal")
        if state_of(outside) != before:
            problems.append("something outside has changed")
        if remaining():
            problems.append("a process remains")
        failures += [f"seed {seed}: shardc {' '.join(map(str, command))}: {problem}\n{done.stdout[-600:]}" for problem in problems]
    print(*failures, sep="\n")
    print(f"{tried} folders, {accepted} accepted, {len(failures)} failures")
    sys.exit(bool(failures) or tried == 0 or accepted == tried)


if __name__ == "__main__":
    main()
