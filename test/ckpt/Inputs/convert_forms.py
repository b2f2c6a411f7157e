#!/usr/bin/env python3
"""Converts every form of torch_dist that torch_dist_forms.py made, and compares the result with its
description.

    convert_forms.py CHECK FORMS WORK

FORMS is its folder or an archive of it, WORK a folder for results. CHECK is one of
    steps     the three steps of the guide give the expected tensors and settings, and back again
    ranks     8 ranks started by torchrun or srun give the same as one
    refusals  what cannot be converted is refused with the way out
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

RANKS = 8
LAUNCHERS = {
    "torchrun": lambda rank: {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank, "MASTER_ADDR": "localhost",
                              "MASTER_PORT": 29500},
    "srun": lambda rank: {"SLURM_PROCID": rank, "SLURM_NTASKS": RANKS, "SLURM_STEP_NUM_TASKS": RANKS,
                          "SLURM_STEP_ID": 0, "SLURM_JOB_ID": 1},
}


def expect(condition, text):
    if not condition:
        sys.exit(text)


def call(*words, status=0):
    done = subprocess.run(["shardc", "ckpt", *map(str, words)], capture_output=True, text=True)
    expect(done.returncode == status, f"{words}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def convert(source, target, options, status=0):
    return call("convert", "torch-dist-to-fsdp-dtensor", source, target, *options, status=status)


def convert_together(launcher, source, target, options):
    words = ["shardc", "ckpt", "convert", "torch-dist-to-fsdp-dtensor", source, target, *options]
    started = []
    for rank in reversed(range(RANKS)):  # the first comes last
        environment = {key: str(value) for key, value in LAUNCHERS[launcher](rank).items()}
        started.append(subprocess.Popen([str(word) for word in words], env={**os.environ, **environment},
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for process in started:
        text = process.communicate()[0]
        expect(process.returncode == 0, f"{launcher}: {text}")


def group_json(forms, name, work):
    """Runs the second step of upstream's conversion (print-torch-dcp-in-json) on a copy of the first step's folder."""
    folder = work / f"{name}.groups"
    shutil.copytree(forms / f"{name}.groups", folder)
    said = call("print-torch-dcp-in-json", folder)
    path = folder / "param_to_param_group_map.json"
    content = json.loads(path.read_text())
    expect(path.read_text() == json.dumps(content, indent=2), f"{path} is not laid out as upstream's")
    raw = {key.replace("model.module", "module.module"): value for key, value in content.items()}
    lines = [f"torch dcp content: {json.dumps(raw)}", f"Saved converted param_to_param_group_map to: {path}"]
    expect(said.splitlines() == lines, f"{said}\nis not\n{lines}")
    return path


def check_converted(name, folder, want):
    got = json.loads(call("inspect", folder, "--json"))
    expect(got["format"] == "fsdp_dtensor" and got["iteration"] == 7, f"{name}: {got['format']} {got['iteration']}")
    tensors = {key: {field: value[field] for field in ("dtype", "shape", "values")}
               for key, value in got["tensors"].items()}
    for tensor in tensors.values():
        values = tensor["values"]
        tensor["values"] = values if isinstance(values, list) else [values]
    # With each moment, the count of updates where torch's own Adam looks for it.
    counted = {key.removesuffix(".step"): tensors.pop(key)["values"] for key in list(tensors) if key.endswith(".step")}
    expect(tensors == want["tensors"], f"{name}: the tensors differ from what was expected")
    moments = {key.removesuffix(".exp_avg") for key in tensors if key.endswith(".exp_avg")}
    expect(counted.keys() <= moments, f"{name}: counts of {counted.keys() - moments}, which have no moments")
    for param, settings in want["settings"].items():
        for key in moments if "step" in settings else ():
            if key.endswith((f".{param}", f".{param}_w", f".{param}_v")):
                expect(counted.get(key) == [settings["step"]], f"{name}: {key} counts {counted.get(key)}")
    for param, settings in want["settings"].items():
        prefix = f"optimizer.param_to_group_meta.module.module.module.{param}."
        found = {field: got["objects"].get(prefix + field) for field in settings}
        expect(found == settings, f"{name}: {param} has {found}, not {settings}")
        expect(prefix + "params" not in got["objects"], f"{name}: {param} has numbers of parameters")
    expect(got["objects"]["rerun_state_machine.sharded.mode"] == "disabled", f"{name}: no rerun state")
    left = [key for key in got["objects"] if key.startswith(("rng_state", "common_state")) or "_extra_state" in key]
    expect(not left, f"{name}: {left} were copied")
    for file in ("train_state.pt",):
        expect(file in got["files"], f"{name}: no {file}")


def names_of(forms):
    return sorted(path.stem for path in forms.glob("*.json") if "error" not in json.loads(path.read_text()))


def check_steps(forms, work):
    for name in names_of(forms):
        want = json.loads((forms / f"{name}.json").read_text())
        options = [*want["options"], "--param-to-param-group-map-json", group_json(forms, name, work)]
        root = work / f"{name}.fsdp"
        said = convert(forms / name, root, options)
        expect(f"{root}/iter_0000007" in said, said)
        expect((root / "latest_checkpointed_iteration.txt").read_text() == "7", "the tracker")
        check_converted(name, root, want)
        call("verify", root)
        call("convert", "fsdp-dtensor-to-torch-dist", root, work / f"{name}.back")
        call("verify", work / f"{name}.back")
        convert(work / f"{name}.back", work / f"{name}.again", want["options"])
        call("diff", root, work / f"{name}.again", "--tensors-only")
        call("diff", work / f"{name}.back", root)  # by parameters


def check_ranks(forms, work):
    for name in ("dense", "moe"):
        options = ["--swiglu", "--param-to-param-group-map-json", group_json(forms, name, work)]
        one = work / f"{name}.one"
        convert(forms / name, one, [*options, "--threads=3"])
        for launcher in LAUNCHERS:
            target = work / f"{name}.{launcher}/iter_0000007"
            convert_together(launcher, forms / name, target, options)
            call("diff", one, target)
            call("verify", target)
            left = [entry for entry in os.listdir(target.parent) if entry.startswith(".")]
            expect(not left, f"{launcher} left {left}")
    environment = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}  # a batch script's own, outside of srun
    os.environ.update(environment)
    convert(forms / "dense", work / "batch", ["--swiglu"])


def check_refusals(forms, work):
    for path in forms.glob("*.json"):
        want = json.loads(path.read_text())
        if "error" not in want:
            continue
        said = convert(forms / path.stem, work / "refused", want["options"], status=1)
        expect(want["error"] in said, f"{path.stem}: {said}")
        expect(not (work / "refused").exists() or not os.listdir(work / "refused"), f"{path.stem} left something")
        convert(forms / path.stem, work / "weights", [*want["options"], "--weights-only"])
        call("verify", work / "weights")
    said = convert(forms / "dense", work / "weights/iter_0000007", [], status=1)
    expect("exists already" in said, said)
    said = convert(forms / "nothing", work / "x", [], status=1)
    expect("nothing" in said, said)
    incomplete = work / "map.json"
    incomplete.write_text('{"model.module.embedding.word_embeddings.weight": 0}')
    said = convert(forms / "dense", work / "x", ["--param-to-param-group-map-json", incomplete], status=1)
    expect("Missing param group for model.module.decoder.layers." in said, said)
    os.environ.update(RANK="3", WORLD_SIZE="2")
    said = convert(forms / "dense", work / "x", [], status=1)
    expect("RANK=3 and WORLD_SIZE=2" in said, said)


def main():
    check, forms, work = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    if forms.is_file():
        with tarfile.open(forms) as archive:
            archive.extractall(work / "forms")
        forms = work / "forms"
    {"steps": check_steps, "ranks": check_ranks, "refusals": check_refusals}[check](forms, work)


if __name__ == "__main__":
    main()
