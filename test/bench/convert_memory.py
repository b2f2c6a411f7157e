#!/usr/bin/env python3
"""Measures peak memory and time of converting a large checkpoint. Needs only Python, and five times the size on disk.

    convert_memory.py SHARDC FOLDER [--gibibytes N] [--threads T] [--limit MIB] [--record FILE HARDWARE]

Makes a Llama of N GiB in bf16 (10 by default) as an empty safetensors file, imports it, converts it to torch_dist and
back to fsdp_dtensor, and exports it. Prints time and memory of each command. With --limit, the exit status says whether
all commands stayed below this number of MiB.
"""

import argparse
import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile
import time

import record_figure

HIDDEN, FFN, HEADS, GROUPS, HEAD, VOCAB = 4096, 14336, 32, 8, 128, 128256
CONFIG = {"model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_attention_heads": HEADS,
          "num_key_value_heads": GROUPS, "head_dim": HEAD, "vocab_size": VOCAB, "tie_word_embeddings": False}


def layer(at):
    yield f"{at}.input_layernorm.weight", [HIDDEN]
    yield f"{at}.post_attention_layernorm.weight", [HIDDEN]
    for part, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
        yield f"{at}.self_attn.{part}_proj.weight", [heads * HEAD, HIDDEN]
    yield f"{at}.self_attn.o_proj.weight", [HIDDEN, HEADS * HEAD]
    for part in ("gate", "up"):
        yield f"{at}.mlp.{part}_proj.weight", [FFN, HIDDEN]
    yield f"{at}.mlp.down_proj.weight", [HIDDEN, FFN]


def ends():
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    yield "lm_head.weight", [VOCAB, HIDDEN]
    yield "model.norm.weight", [HIDDEN]


def size_of(shapes):
    return sum(2 * shape[0] * (shape[1] if len(shape) > 1 else 1) for _, shape in shapes)


def write_model(folder, target):
    """A file with a hole for the weights: all are 0, and it takes no room."""
    layers = max(1, round((target - size_of(ends())) / size_of(layer(""))))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in [*ends(), *(entry for i in range(layers) for entry in layer(f"model.layers.{i}"))]:
        end = at + size_of([(name, shape)])
        header[name], at = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}, end
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return layers, at


def measure(options, size, *command):
    """Runs a command of `ckpt`; its peak of resident memory in MiB."""
    what = " ".join(command[2:4] if command[2] != "verify" else command[2:3])
    start = time.monotonic()
    process = os.spawnv(os.P_NOWAIT, command[0], [str(word) for word in command])
    _, status, usage = os.wait4(process, 0)
    seconds = time.monotonic() - start
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{what} failed")
    peak = usage.ru_maxrss / 1024
    print(f"{what}: {seconds:.1f} s, {size / seconds / 2**20:.0f} MiB/s, peak memory {peak:.0f} MiB", flush=True)
    if options.record:
        file, hardware = options.record
        more = {"MiB/s": f"{size / seconds / 2**20:,.0f}", "peak memory, MiB": f"{peak:.0f}"}
        record_figure.record(file, case=f"`{what}`, {options.gibibytes:g} GiB", measure="s", ours=round(seconds, 1), more=more, hardware=hardware)
    return peak


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc")
    parser.add_argument("folder")
    parser.add_argument("--gibibytes", type=float, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float)
    record_figure.add_argument(parser)
    options = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="convert-", dir=options.folder))
    try:
        layers, size = write_model(work / "hub", options.gibibytes * 2**30)
        print(f"{layers} layers, {size / 2**30:.2f} GiB, {options.threads} threads")
        ckpt, threads = (options.shardc, "ckpt"), f"--threads={options.threads}"
        peaks = [
            measure(options, size, *ckpt, "import", "hf", work / "hub", work / "fsdp", "--weight-dtype=bfloat16", threads),
            measure(options, size, *ckpt, "convert", "fsdp-dtensor-to-torch-dist", work / "fsdp", work / "dist", threads)]
        shutil.rmtree(work / "fsdp")
        peaks.append(measure(options, size, *ckpt, "convert", "torch-dist-to-fsdp-dtensor", work / "dist", work / "fsdp", "--swiglu", threads))
        peaks.append(measure(options, size, *ckpt, "verify", work / "fsdp", threads))
        peaks.append(measure(options, size, *ckpt, "export", "hf", work / "fsdp", work / "out", "--config", work / "hub"))
    finally:
        shutil.rmtree(work)
    if options.limit and max(peaks) > options.limit:
        sys.exit(f"the peak of {max(peaks):.0f} MiB is above {options.limit:.0f}")


if __name__ == "__main__":
    main()
