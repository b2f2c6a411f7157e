#!/usr/bin/env python3
"""Tests Hugging Face folders with weights in 4 bits, as bitsandbytes stores them. Needs only Python.

    nf4_folders.py

The values of a 4-bit export, also with 8-bit scales, must be those that its tensors encode, and a second export must
have the same bytes. A run with adapters on such a folder must have the losses of a run that quantises the weights
itself, also with 8-bit scales in memory. Adapters that such a run saves give the same texts and losses after they are
merged into the folder's numbers.
"""

import array
import json
import pathlib
import random
import struct
import sys
import tempfile

import peft_folders
import peft_numbers  # peft_folders knows its folder
from peft_folders import call, draw, losses

peft_folders.HIDDEN, peft_folders.FFN = 64, 128
CONFIG = {**peft_folders.CONFIG, "hidden_size": 64, "intermediate_size": 128}
RECIPE = peft_folders.RECIPE.replace("hidden_size = 32", "hidden_size = 64").replace("ffn_hidden_size = 48", "ffn_hidden_size = 128")
TYPES = {"F32": "f", "U8": "B"}


def read(folder):
    """Name -> shape and numbers."""
    data = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, each in header.items():
        begin, end = each["data_offsets"]
        found[name] = (tuple(each["shape"]), array.array(TYPES[each["dtype"]], data[8 + size + begin:8 + size + end]))
    return found


def rounded(number):
    return struct.unpack("<f", struct.pack("<f", number))[0]


def opened(tensors):
    """The tensors with numbers in place of codes, by bitsandbytes' rules."""
    found = {}
    for name, (shape, codes) in tensors.items():
        beside = {key.removeprefix(f"{name}."): value for key, (_, value) in tensors.items() if key.startswith(f"{name}.")}
        if not beside:
            if not any(name.startswith(f"{other}.") for other in tensors):
                found[name] = shape, codes
            continue
        state = json.loads(bytes(beside["quant_state.bitsandbytes__nf4"]))
        scales = beside["absmax"]
        if "nested_absmax" in beside:
            groups, values = beside["nested_absmax"], beside["nested_quant_map"]
            scales = [rounded(rounded(values[code] * groups[i // state["nested_blocksize"]]) + state["nested_offset"])
                      for i, code in enumerate(scales)]
        table, block = beside["quant_map"], state["blocksize"]
        numbers = (table[two >> 4 if half == 0 else two & 15] * scales[(2 * i + half) // block] for i, two in enumerate(codes) for half in (0, 1))
        found[name] = tuple(state["shape"]), array.array("f", numbers)
    return found


def bytes_of(folder):
    return (folder / "model.safetensors").read_bytes()


def check_nested(rng, folder):
    """Scales in 8 bits are those of the folder, which a run on the base itself makes too."""
    peft_folders.HIDDEN, peft_folders.FFN, peft_folders.LAYERS = 512, 512, 1
    base = folder / "wide"
    base.mkdir()
    peft_numbers.write(base / "model.safetensors", {each: draw(rng, shape, 0.1) for each, shape in peft_folders.shapes().items()})
    (base / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 1}))
    call("shardc", "ckpt", "import", "hf", base, folder / "wide.saved")
    call("shardc", "ckpt", "export", "hf", folder / "wide.saved", folder / "packed", "--pack=nf4_double")
    recipe = folder / "wide.recipe"
    recipe.write_text(peft_folders.RECIPE)
    sizes = ["model.hidden_size=512", "model.ffn_hidden_size=512", "model.num_layers=1", "peft.scheme=lora", "peft.rank=4"]
    found = {(each, quantize): losses(folder, recipe, *sizes, f"peft.quantize={quantize}", f'checkpoint.pretrained_checkpoint="{folder / each}"')
             for each in ("wide", "wide.saved", "packed") for quantize in ("nf4", "nf4_double")}
    expected = found["wide", "nf4_double"]
    if any(found[each] != expected for each in (("wide.saved", "nf4_double"), ("packed", "nf4_double"), ("packed", "nf4"))) or \
            found["wide", "nf4"] == expected:
        sys.exit(f"losses are {found}")
    print("nf4_double: the scales in memory are those of the folder")
    check_merged(folder, recipe, sizes)


def check_merged(folder, recipe, sizes):
    """The adapters of a run with 8-bit scales, beside the model that has them added to the numbers of these records."""
    start = [*sizes[:3], "checkpoint.finetune=true"]
    adapted = [*start, *sizes[3:], "peft.quantize=nf4_double", f'checkpoint.pretrained_checkpoint="{folder / "wide"}"']
    tuned, merged = folder / "tuned", folder / "merged"
    losses(folder, recipe, *adapted, "optimizer.lr=0.02", "train.train_iters=4", f'checkpoint.save="{tuned}"', "checkpoint.save_interval=4")
    call("shardc", "ckpt", "merge", tuned, folder / "packed", merged, "--weight-dtype=float32")
    texts = [call("shardc", "generate", each, "3 1 4 1 5", "--tokens=12", "--tokenizer=none")
             for each in (tuned, merged)]
    if texts[0] != texts[1]:
        sys.exit(f"adapters say {texts[0]}, the merged model {texts[1]}")
    beside = losses(folder, recipe, *adapted, f'checkpoint.load="{tuned}"')
    whole = losses(folder, recipe, *start, f'checkpoint.pretrained_checkpoint="{merged}"', "checkpoint.convert_on_load=true")
    if abs(beside[0] / whole[0] - 1) > 1e-5:
        sys.exit(f"the loss of adapters is {beside}, of the merged model {whole}")
    print("nf4_double: adapters are merged into the numbers of the folder")


def main():
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        base = folder / "base"
        base.mkdir()
        weights = {each: draw(rng, shape, 0.1) for each, shape in peft_folders.shapes().items()}
        peft_numbers.write(base / "model.safetensors", weights)
        (base / "config.json").write_text(json.dumps(CONFIG))
        call("shardc", "ckpt", "import", "hf", base, folder / "saved")
        recipe = folder / "a.recipe"
        recipe.write_text(RECIPE)
        peft = ["peft.scheme=lora", "peft.rank=4", "peft.alpha=8", "peft.quantize=nf4"]
        plain = losses(folder, recipe, *peft, f'checkpoint.pretrained_checkpoint="{base}"')
        for pack in ("nf4", "nf4_double"):
            call("shardc", "ckpt", "export", "hf", folder / "saved", folder / pack, f"--pack={pack}")
            said = json.loads((folder / pack / "config.json").read_text())["quantization_config"]
            if said["bnb_4bit_use_double_quant"] != (pack == "nf4_double"):
                sys.exit(f"{pack}: config.json says {said}")
            tensors = read(folder / pack)
            wanted = opened(tensors)
            packed = {each for each in weights if "_proj" in each}
            if {each for each in tensors if f"{each}.absmax" in tensors} != packed or set(wanted) != set(weights):
                sys.exit(f"{pack}: the tensors are {sorted(tensors)}")
            worst = max(abs(x - y) for each in packed for x, y in zip(wanted[each][1], weights[each][1]))
            if worst > 0.08:
                sys.exit(f"{pack}: numbers are apart by {worst}")
            call("shardc", "ckpt", "import", "hf", folder / pack, folder / f"{pack}.saved")
            call("shardc", "ckpt", "export", "hf", folder / f"{pack}.saved", folder / f"{pack}.plain", "--weight-dtype=float32")
            if read(folder / f"{pack}.plain") != wanted:
                sys.exit(f"{pack}: an import has other numbers")
            print(f"{pack}: imported to the bit")
            if pack == "nf4":
                call("shardc", "ckpt", "export", "hf", folder / f"{pack}.saved", folder / f"{pack}.back", f"--pack={pack}")
                if bytes_of(folder / f"{pack}.back") != bytes_of(folder / pack):
                    sys.exit(f"{pack}: the folder that comes back is another")
                print(f"{pack}: back to the bit")
            found = losses(folder, recipe, *peft, f'checkpoint.pretrained_checkpoint="{folder / pack}"')
            if pack == "nf4" and found != plain:
                sys.exit(f"{pack}: losses are {found}, of a run that quantises by itself {plain}")
            if abs(found[0] / plain[0] - 1) > 1e-3:
                sys.exit(f"{pack}: losses are {found}, of a run that quantises by itself {plain}")
            print(f"{pack}: trains adapters")
        check_nested(rng, folder)


if __name__ == "__main__":
    main()
