#!/usr/bin/env python3
"""Starts fine-tuning runs as docs/fine-tuning.md does, in the current folder, and expects that they train what they were told.

    tuned_runs.py SOURCE

Two tiny models in Hugging Face's form differ in one tensor. Packs of rows and of pairs are written here.
"""

import json
import os
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(SOURCE / "test/docs/Inputs")]
import sft_losses
import tiny_llama

HOST = """recipe host {
  cluster { gpu = host  nodes = 1  gpus_per_node = 1 }
  model { seq_length = 32 }
  dataset { dataloader_type = single }
  train { micro_batch_size = 2  global_batch_size = 4  train_iters = 6 }
  optimizer { lr = 3e-3 }
  scheduler { lr_warmup_iters = 0 }
}
"""
RUN = ["shardc", "run", "model.recipe", "--overlay", "shardc:overlays/sft.recipe", "--overlay", "host.recipe"]
LORA = ["--overlay", "shardc:overlays/lora.recipe", "--overlay", "host.recipe"]


def sets(**options):
    return [f"--set={name.replace('__', '.')}={value}" for name, value in options.items()]


def expect(what, why):
    if not what:
        sys.exit(why)


def call(*command, status=0, fault=None, says=""):
    environment = {**os.environ, **({"SHARDC_FAULT": fault} if fault else {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    text = done.stdout + done.stderr
    is_right = done.returncode == status if status is not None else done.returncode != 0
    expect(is_right and says in text, f"{command}\nstatus {done.returncode}, without '{says}'\n{text}")
    return text


def losses(*command, **expected):
    """The losses of all steps in the file of metrics, which a run that continues appends to."""
    call(*command, "--metrics=m.jsonl", **expected)
    lines = map(json.loads, pathlib.Path("m.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def make():
    for name in ("one", "two"):
        sys.argv[1] = name
        tiny_llama.main()
    path = pathlib.Path("two/model.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x80  # the sign of the last number of lm_head
    path.write_bytes(data)
    pathlib.Path("host.recipe").write_text(HOST)
    call("shardc", "import", "hf", "one", "-o", "model.recipe")
    sft_losses.write_packs("packs", sft_losses.packs(4)[1:])
    rows = sft_losses.rows()
    pairs = [([*prompt, *answer], [0] * len(prompt) + [1] * len(answer))
             for number in range(32) for prompt in [rows[number][0]] for answer in ([number + 1, 7], [number + 2, 9, 3])]
    sft_losses.write_packs("pairs", [pairs[i:i + 2] for i in range(0, len(pairs), 2)])
    manifest = pathlib.Path("pairs.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "pairs": True}))


def check_starts():
    """From the folder, from its import in the format of another strategy, and from saves without FSDP: the same losses."""
    call("shardc", "ckpt", "import", "hf", "one", "weights")
    call("shardc", "ckpt", "convert", "fsdp-dtensor-to-torch-dist", "weights", "dist")
    starts = {folder: losses(*RUN, *sets(dataset__data_path="packs", checkpoint__pretrained_checkpoint=folder))
              for folder in ("one", "weights", "dist")}
    expect(len(starts["one"]) == 6 and starts["one"] == starts["weights"] == starts["dist"], starts)
    sharded = losses(*RUN, *sets(dataset__data_path="packs", checkpoint__pretrained_checkpoint="one",
                                 dist__use_megatron_fsdp="true", ddp__use_megatron_fsdp="true"))
    expect(all(abs(sharded[step] - loss) < 1e-5 for step, loss in starts["one"].items()), f"{sharded} {starts}")
    return starts["one"]


def check_kill(whole):
    """The same command after a kill; chats/resume.sh is the one with 'finetune'."""
    for finetune in ("false", "true"):
        command = [*RUN, *sets(dataset__data_path="packs", checkpoint__pretrained_checkpoint="one", checkpoint__finetune=finetune,
                               checkpoint__save="tuned-" + finetune, checkpoint__load="tuned-" + finetune, checkpoint__save_interval=2)]
        losses(*command, fault="kill@0:4", status=None)
        again = losses(*command, says="continuing after step 2")
        expect(again == whole, f"{again}\n{whole}")
    call(*RUN, *sets(dataset__data_path="packs", checkpoint__pretrained_checkpoint="one", checkpoint__finetune="true",
                     checkpoint__save="tuned-true"), status=None, says="'checkpoint.load' to the folder and leave 'checkpoint.finetune' out")


def check_damage():
    """chats/pack_damage.sh: a flipped bit in the tokens, and zeros in the masks."""
    command = [*RUN, *sets(dataset__data_path="packs", checkpoint__pretrained_checkpoint="one")]
    for name, at, damage in (("packs.bin", 101, b"\x01"), ("packs.mask.bin", 120, bytes(64))):
        path = pathlib.Path(name)
        whole = path.read_bytes()
        path.write_bytes(whole[:at] + damage + whole[at + len(damage):])
        expect(path.read_bytes() != whole, "no damage")
        call(*command, status=None, says="[data-damaged]")
        call("shardc", "data", "show", "packs", "--tokenizer=none", status=1, says="do not have the SHA-256 that 'packs.json' states")
        path.write_bytes(whole)


def check_adapters():
    """Adapters that continue open the base that their checkpoint names."""
    of = sets(dataset__data_path="packs", train__train_iters=6, peft__rank=4)
    base = sets(checkpoint__pretrained_checkpoint="one")
    whole = losses(*RUN, *LORA, *of, *base)
    saved = sets(checkpoint__save="ad", checkpoint__load="ad", checkpoint__save_interval=3)
    losses(*RUN, *LORA, *of, *base, *saved, *sets(train__exit_interval=3))
    expect(losses(*RUN, *LORA, *of, *saved) == whole, "adapters without their base train otherwise")
    os.rename("one", "elsewhere")
    call(*RUN, *LORA, *of, *sets(checkpoint__load="ad"), status=None, says="one', which cannot be opened")
    os.rename("elsewhere", "one")


def check_reference():
    """doors/dpo-other-reference: the log-probabilities of another model than the one with which training begins."""
    run = ["shardc", "run", "model.recipe", "--overlay", "shardc:overlays/dpo.recipe", "--overlay", "host.recipe",
           *sets(dataset__data_path="pairs")]
    call("shardc", "data", "reference", "pairs", "--model=one")
    for folder in ("one", "weights"):
        first = losses(*run, *sets(checkpoint__pretrained_checkpoint=folder))[1]
        expect(abs(first - 0.6931) < 1e-3, f"{folder}: {first}")
    other = sets(checkpoint__pretrained_checkpoint="two")
    call(*run, *other, status=None, says="is by the model 'one', and training begins with another one: 'output_layer.weight' differs")
    call(*run, *other, "--any-reference")
    # Adapters of supervised fine-tuning, with which training begins, and a reference of the base alone.
    begun = [*LORA, *sets(checkpoint__pretrained_checkpoint="one", peft__rank=4, checkpoint__load="ad", checkpoint__finetune="true")]
    call(*run, *begun, status=None, says="and training begins with another one")
    call("shardc", "data", "reference", "pairs", "--model=ad")
    first = losses(*run, *begun)[1]
    expect(abs(first - 0.6931) < 1e-3, f"adapters: {first}")


make()
check_kill(check_starts())
check_damage()
check_adapters()
check_reference()
