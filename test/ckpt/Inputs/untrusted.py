#!/usr/bin/env python3
"""Checkpoints from an untrusted source whose folders contain more than files, or whose objects contain more than values.

    untrusted.py CHECK FORMS WORK

FORMS is a folder of checkpoints in torch_dist (torch_dist_forms.txz). CHECK is one of
    links      links, loops and pipes in the folder: refused, and nothing of what they lead to is in any output
    objects    objects that would run code are not copied on, and of unknown classes only those that are named
    inside     nothing is written into a checkpoint
    terminal   no control character of a file reaches the terminal
    nothing    a common state of nothing, and none at all
"""

import io
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile

sys.dont_write_bytecode = True
from adversarial import archive, call, metadata_bytes  # noqa: E402

SECRET = "the secret of another file"
TINY = pathlib.Path(__file__).resolve().parents[2] / "driver/Inputs/tiny.recipe"
TO_FSDP = ("convert", "torch-dist-to-fsdp-dtensor")


def expect(condition, text):
    if not condition:
        sys.exit(text)


def run(*words, status=None):
    done = subprocess.run(["shardc", *map(str, words)], capture_output=True, timeout=300)
    said = (done.stdout + done.stderr).decode(errors="backslashreplace")
    expect(status is None or done.returncode == status, f"{words}: status {done.returncode}\n{said}")
    return said


def copy(source, to):
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(source, to, symlinks=True)
    return to


def texts_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def links(forms, work):
    outside = work / "outside"
    (outside / "tree").mkdir(parents=True)
    for name in ("file", "tree/file"):
        (outside / name).write_text(SECRET)
    cases = {
        "run_config.yaml": lambda at: at.symlink_to(outside / "file"),
        "train_state.pt": lambda at: at.symlink_to("../outside/file"),
        "recipe": lambda at: at.symlink_to(outside / "tree"),
        "recipe/inner": lambda at: (at.parent.mkdir(), at.symlink_to(outside / "file")),
        "recipe/loop": lambda at: (at.parent.mkdir(), at.symlink_to(".")),
        "recipe/pipe": lambda at: (at.parent.mkdir(), os.mkfifo(at)),
        "__0_0.distcp": lambda at: (at.rename(outside / "data"), at.symlink_to(outside / "data")),
        ".metadata": lambda at: (at.rename(outside / "metadata"), at.symlink_to(outside / "metadata")),
        "metadata.json": lambda at: (at.rename(outside / "json"), at.symlink_to(outside / "json")),
        "common.pt": lambda at: at.symlink_to("common.pt"),
    }
    for name, plant in cases.items():
        folder = copy(forms / "dense", work / "c")
        plant(folder / name)
        for words in (("reshard",), TO_FSDP):
            out = work / "out"
            said = run("ckpt", *words, folder, out, status=1)
            expect("is a link" in said or "is a pipe" in said or "is a link or not a folder" in said, f"{name}: {said}")
            expect(name.split("/")[0] in said, f"{name} is not named: {said}")
            expect(not out.exists() or not texts_below(out), f"{name}: {words} left {texts_below(out)}")
    # Files beside the records are copied, links are not.
    folder = copy(forms / "dense", work / "c")
    (folder / "recipe/deep").mkdir(parents=True)
    (folder / "recipe/deep/a.recipe").write_text("mine")
    for words, out in ((("reshard",), work / "resharded"), (TO_FSDP, work / "converted")):
        run("ckpt", *words, folder, out / "iter_0000001", status=0)
        expect((out / "iter_0000001/recipe/deep/a.recipe").read_text() == "mine", f"{words} left the recipe out")
    print(f"{len(cases)} kinds refused")


def dcp(folder, content):
    """A checkpoint of one object."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    record = archive(content)
    (folder / ".metadata").write_bytes(metadata_bytes(record, False))
    (folder / "__0_0.distcp").write_bytes(record)
    return folder


def objects(forms, work):
    evil, foreign = (b"\x80\x02}X\x01\x00\x00\x00a" + call(name, "x")[2:-1] + b"s." for name in ("posix.system", "mine.Class"))
    for content, said in ((evil, "names 'posix.system', which would run code"), (foreign, "uses 'mine.Class'")):
        folder = dcp(work / "c", content)
        expect(said in run("ckpt", "reshard", folder, work / "out", status=1), f"reshard does not say {said}")
        for name, common in (("common.pt", True), ("train_state.pt", False)):
            folder = copy(forms / "dense", work / "c")
            (folder / name).write_bytes(archive(content))
            for words in (("reshard",), TO_FSDP):
                text = run("ckpt", *words, folder, work / "out", status=1)
                expect(said in text and name in text or common and said in text, f"{words} {name}: {text}")
    expect(not (work / "out").exists() or not texts_below(work / "out"), "something was left")
    folder = dcp(work / "c", foreign)
    run("ckpt", "reshard", folder, work / "kept/iter_0000001", "--keep-name", "mine.Class", status=0)
    expect(b"mine" in (work / "kept/iter_0000001/__0_0.distcp").read_bytes(), "the named class was not copied")
    print("objects are judged")


def inside(forms, work):
    folder = copy(forms / "dense", work / "root/iter_0000007")
    (work / "link").symlink_to(folder)
    before = texts_below(work / "root")
    for place in (folder, work / "link"):
        for words in (("reshard", folder, place / "recipe"), ("reshard", folder, place / "sub/deep"),
                      (*TO_FSDP, folder, place / "sub/iter_0000001"), ("export", "hf", folder, place / "hf"),
                      ("group-map", TINY, "-o", place / "maps")):
            said = run("ckpt", *words, status=1)
            expect("is inside the checkpoint '" in said and "choose a path outside it" in said, f"{words}: {said}")
    expect(texts_below(work / "root") == before, "something was written into the checkpoint")
    (work / "plain").mkdir()
    (work / "plain/metadata.json").write_text("{}")  # not what makes a checkpoint
    run("ckpt", "reshard", folder, work / "plain/sub", status=0)
    print("nothing is written inside")


def text_pickle(text):
    data = text.encode()
    return b"\x80\x02X" + struct.pack("<I", len(data)) + data + b"."


def terminal(forms, work):
    bad = "a\x1b]0;title\x07\x1b[31m\x7f\x9b2J"
    folder, other = dcp(work / "c", text_pickle(bad)), dcp(work / "d", text_pickle("plain"))
    (folder / f"__9_0{bad}.distcp").write_bytes(b"stray")
    named = work / "named"
    shutil.rmtree(named, ignore_errors=True)
    named.mkdir()
    record = archive(text_pickle("x"))
    long = metadata_bytes(record, False).replace(b"X\x01\x00\x00\x00x", b"X" + struct.pack("<I", len(bad.encode())) + bad.encode())
    long = long.replace(b"\x8c\x01x", b"\x8c" + bytes([len(bad.encode())]) + bad.encode())
    (named / ".metadata").write_bytes(long)
    (named / "__0_0.distcp").write_bytes(record)
    unknown = dcp(work / "u", b"\x80\x04\x8c" + bytes([len(bad.encode())]) + bad.encode() + b"\x8c\x01C\x93.")
    for words in (("inspect", folder), ("inspect", folder, "--json"), ("verify", folder), ("diff", folder, other),
                  ("diff", folder, other, "--json"), ("inspect", named), ("diff", named, other), ("verify", named),
                  ("verify", unknown), ("reshard", unknown, work / "out"), ("print-torch-dcp-in-json", folder)):
        done = subprocess.run(["shardc", "ckpt", *map(str, words)], capture_output=True)
        said = done.stdout + done.stderr
        for control in [*range(0x20), 0x7f]:
            expect(control in (0x09, 0x0a) or bytes([control]) not in said, f"{words}: {said}")
        expect("\x9b".encode() not in said, f"{words}: {said}")
    print("nothing reaches the terminal")


def nothing(forms, work):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, data in (("data.pkl", pickle.dumps({}, 2)), ("byteorder", b"little"), ("version", b"3\n")):
            file.writestr(f"common/{name}", data)
    for flags in ([], ["--weights-only"]):
        folder = copy(forms / "dense", work / "c")
        (folder / "common.pt").write_bytes(out.getvalue())
        run("ckpt", *TO_FSDP, folder, work / f"out{len(flags)}{''.join(flags)}/iter_0000001", *flags, status=0)
    folder = copy(forms / "dense-common-file", work / "c")
    (folder / "common.pt").unlink()
    run("ckpt", *TO_FSDP, folder, work / "none/iter_0000001", status=0)
    print("a common state of nothing is converted")


CHECKS = {check.__name__: check for check in (links, objects, inside, terminal, nothing)}

if __name__ == "__main__":
    place = pathlib.Path(sys.argv[3])
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    CHECKS[sys.argv[1]](pathlib.Path(sys.argv[2]), place)
