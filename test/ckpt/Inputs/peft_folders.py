#!/usr/bin/env python3
"""Imports and merges the folders that PEFT has written (test/interop/peft_folders.py), and folders with faults.

    peft_folders.py RECIPE

peft_folders.json has what PEFT wrote without the numbers, which follow from the tensors' names, and projections of the
weights into which PEFT merged the adapters. The recipe that an import prints selects all that the folder has: a run with
it begins, or its import says why no run does.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import peft_numbers

HERE = pathlib.Path(__file__).resolve().parent
ALONE = "rows of some tokens, which no recipe does"


def call(*command, fails=False):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if (done.returncode != 0) != fails or done.returncode < 0:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def make(case, folder):
    """The base and the adapters of a golden case."""
    (folder / "base").mkdir()
    (folder / "adapter").mkdir()
    (folder / "base/config.json").write_text(json.dumps(case["base"]))
    peft_numbers.make(folder / "base/model.safetensors", case["shapes"])
    (folder / "adapter/adapter_config.json").write_text(json.dumps(case["adapter"]))
    peft_numbers.make(folder / "adapter/adapter_model.safetensors", case["tensors"])
    if case["adapter"]["ensure_weight_tying"] and "refused" not in case:
        tensors = peft_numbers.read(folder / "adapter/adapter_model.safetensors")
        tensors["base_model.model.lm_head.weight"] = tensors["base_model.model.model.embed_tokens.weight"]
        peft_numbers.write(folder / "adapter/adapter_model.safetensors", tensors)


def check_merged(name, case, folder):
    call("shardc", "ckpt", "merge", folder / "a", folder / "base", folder / "m")
    call("shardc", "ckpt", "export", "hf", folder / "m", folder / "hf", "--config", folder / "base")
    found = peft_numbers.read(folder / "hf/model.safetensors")
    said = json.loads((folder / "hf/config.json").read_text())
    is_tied = said.get("tie_word_embeddings", case["base"].get("tie_word_embeddings"))
    wanted = {each: sums for each, sums in case["merged"].items() if each != "lm_head.weight" or not is_tied}
    if {each.removeprefix("transformer.") for each in wanted} != {each.removeprefix("transformer.") for each in found}:
        sys.exit(f"{name}: {set(wanted) ^ set(found)}")
    plain = {each.removeprefix("transformer."): values for each, (_, values) in found.items()}
    for each, sums in wanted.items():
        own = peft_numbers.projections(plain[each.removeprefix("transformer.")])
        if max(abs(a - b) for a, b in zip(own, sums)) > 1e-4:
            sys.exit(f"{name}: {each} has {own}, PEFT {sums}")


def check_again(name, folder):
    """The exported adapters are imported as they were: no table that the folder trains is lost, also of a tied base."""
    call("shardc", "ckpt", "export", "peft", folder / "a", folder / "out", "--config", folder / "base")
    call("shardc", "ckpt", "import", "peft", folder / "out", folder / "b", "--config", folder / "base")
    call("shardc", "ckpt", "merge", folder / "b", folder / "base", folder / "n")
    call("shardc", "ckpt", "export", "hf", folder / "n", folder / "hf2", "--config", folder / "base")
    first, second = (peft_numbers.read(folder / each / "model.safetensors") for each in ("hf", "hf2"))
    for each, (shape, values) in first.items():
        if shape != second.get(each, [None])[0] or max(abs(a - b) for a, b in zip(values, second[each][1])) > 1e-6:
            sys.exit(f"{name}: {each} is another one after an export")


def check_printed(name, case, folder, text):
    """A run with the printed recipe begins, and refuses to leave out a part."""
    printed = text[text.index("  peft ") :]
    more = "".join(re.findall(r"^  model\.\S+ = \S+\n", printed, re.M))
    (folder / "printed.recipe").write_text("recipe printed {\n" + printed[: printed.index("}") + 1] + "\n" + more + "}\n")
    call("shardc", "import", "hf", folder / "base", "-o", folder / "base.recipe")
    (folder / "host.recipe").write_text(
        "recipe host { cluster { gpu = host nodes = 1 gpus_per_node = 1 } dataset synthetic {} optimizer adam { lr = 1e-3 }\n"
        "train { micro_batch_size = 1 global_batch_size = 1 train_iters = 1 } model { seq_length = 8 } }\n")
    settings = [f"--overlay={folder}/{each}.recipe" for each in ("host", "printed")]
    settings += [f"--set=checkpoint.pretrained_checkpoint={folder}/base", f"--set=checkpoint.load={folder}/a", "--set=checkpoint.finetune=true",
                 "--set=checkpoint.convert_on_load=true", "--set=dataset.kind=synthetic", f"--set=checkpoint.save={folder}/trained"]
    said = call("shardc", "run", folder / "base.recipe", *settings)
    if "step 1/1" not in said or "loaded-in-part" in said:
        sys.exit(f"{name}: {said}")
    # Zeros that fill ranks are not trained, and everything else is.
    call("shardc", "ckpt", "export", "peft", folder / "trained", folder / "again", "--config", folder / "base")
    found = peft_numbers.read(folder / "again/adapter_model.safetensors")
    more = {each for each in set(found) - set(case["tensors"]) if not each.endswith("e_score_correction_bias") and each != "base_model.model.lm_head.weight"}
    more -= {each.replace(".lora_A.weight", ".weight") for each in case["tensors"]}  # adapters that are added to the base's weights
    if more and not case["adapter"]["trainable_token_indices"]:
        sys.exit(f"{name}: a run also trains {sorted(more)}")
    said = json.loads((folder / "again/adapter_config.json").read_text())["base_model_name_or_path"]
    if said not in (str(folder / "base"), case["adapter"]["base_model_name_or_path"]):
        sys.exit(f"{name}: the base is called '{said}'")
    for each, shape in case["tensors"].items():
        if each.endswith(".lora_A.weight") and ".experts." not in each and each.replace(".lora_A.weight", ".weight") not in found:
            (rows, columns), values = found[each]
            trained = sum(any(values[row * columns : (row + 1) * columns]) for row in range(rows))
            if trained != shape[0]:
                sys.exit(f"{name}: {trained} rows of {each} are trained, of a rank of {shape[0]}")


def main():
    golden = json.loads((HERE / "peft_folders.json").read_text())
    runs, reported = set(sys.argv[1:]), set()
    for name, case in golden["cases"].items():
        with tempfile.TemporaryDirectory() as at:
            folder = pathlib.Path(at)
            make(case, folder)
            refused = case.get("refused")
            text = call("shardc", "ckpt", "import", "peft", folder / "adapter", folder / "a", "--config", folder / "base", fails=bool(refused))
            if refused and refused not in text:
                sys.exit(f"{name}: {text}")
            if refused:
                continue
            # What no recipe trains is reported.
            said = set(re.findall(r"\[(adapter-[a-z-]+)\]", text))
            if (ALONE in text) != ("adapter-not-in-recipe" in said):
                sys.exit(f"{name}: {text}")
            reported |= said
            check_merged(name, case, folder)
            if name.startswith("tied"):
                check_again(name, folder)
            if name in runs:
                check_printed(name, case, folder, text)
    if reported != {"adapter-not-in-recipe", "adapter-only-stored", "adapter-folded"}:
        sys.exit(f"{sorted(reported)} are reported")
    print(f"{len(golden['cases'])} folders as PEFT reads them")


if __name__ == "__main__":
    main()
