#!/usr/bin/env python3
"""Runs `shardc data tokenize` that is ended by force in the middle, and that meets a full disk.

    data_tokenize.py resume|full FOLDER TOKENIZER
"""

import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import time

WORDS = ["a", "b", "c", "?"]


def write_corpus(folder):
    rng = random.Random(3)
    for name in ("one.jsonl", "two.jsonl"):
        with open(folder / name, "w", encoding="utf-8") as out:
            for _ in range(40000):
                out.write('{"text": "%s"}\n' % " ".join(rng.choices(WORDS, k=rng.randrange(0, 12))))
    return [str(folder / "one.jsonl"), str(folder / "two.jsonl")]


def command(inputs, tokenizer, prefix, *more, tokens="20000"):
    return ["shardc", "data", "tokenize", "--tokenizer", tokenizer, *inputs, "-o", str(prefix), "--threads=2", f"--python={sys.executable}",
            f"--shard-tokens={tokens}", *more]


def outputs(prefix):
    return [pathlib.Path(f"{prefix}{suffix}") for suffix in (".bin", ".idx", ".json")]


def resume(folder, tokenizer):
    inputs = write_corpus(folder)
    whole, killed = folder / "whole", folder / "killed"
    subprocess.run(command(inputs, tokenizer, whole), check=True, stdout=subprocess.DEVNULL)
    parts = folder / "killed.parts"
    kills = 0
    for wanted in (1, 3, 5, 100):  # complete shards before each kill; the last one runs to its end
        run = subprocess.Popen(command(inputs, tokenizer, killed), env={**os.environ, "SHARDC_TEST_PACKAGE": "slow"},
                               stdout=subprocess.PIPE, text=True)
        while run.poll() is None and len(list(parts.glob("0*.json"))) < wanted:
            time.sleep(0.005)
        if run.poll() is None:
            run.send_signal(signal.SIGKILL)
            kills += 1
            assert not any(path.exists() for path in outputs(killed)), "a final name before the end"
        text = run.communicate()[0]
        if kills == 1 and wanted == 1:
            refused = subprocess.run(command(inputs, tokenizer, killed, "--no-append-eod"), capture_output=True, text=True, check=False)
            assert refused.returncode == 1 and "delete that folder" in refused.stderr, refused
            assert list(parts.glob("0*.json")), "what is refused stays"
    assert kills == 3 and "continued after" in text, (kills, text)
    for left, right in zip(outputs(whole), outputs(killed)):
        assert left.read_bytes() == right.read_bytes(), f"{right} differs"
    left_over = sorted(path.name for path in folder.iterdir() if path.name.startswith("killed"))
    assert left_over == ["killed.bin", "killed.idx", "killed.json"], left_over
    print("killed 3 times, the same bytes")


def full(folder, tokenizer):
    inputs = write_corpus(folder)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    for tokens, what in (("1000000", "full.parts"), ("20000", "full/full.")):  # while a shard is written, and the dataset
        done = subprocess.run(command(inputs, tokenizer, folder / "full", tokens=tokens), preexec_fn=limit,
                              capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 3, done
        assert "File too large" in done.stderr and what in done.stderr, done.stderr
        assert not any(path.exists() for path in outputs(folder / "full")), "a final name"
    done = subprocess.run(command(inputs, tokenizer, folder / "full"), capture_output=True, text=True, check=True)
    assert "continued after" in done.stdout, done.stdout
    print("refused twice, then continued")


def main():
    folder = pathlib.Path(sys.argv[2])
    {"resume": resume, "full": full}[sys.argv[1]](folder, sys.argv[3])


if __name__ == "__main__":
    main()
