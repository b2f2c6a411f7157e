#!/usr/bin/env python3
"""Makes what docs/fine-tuning.md begins with: a tiny model with random weights, a tokenizer, and some conversations.

    first_tuning.py FOLDER            makes them
    first_tuning.py --check BIN       makes them in a temporary folder and runs the page's commands there; the loss must fall

Needs torch, transformers and jinja2; without them --check ends with 77, skipped.
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from hf_models import call, expect, made

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
HOST = """// One rank of the host, and steps that a tiny model needs.
recipe host {
  cluster { gpu = host  nodes = 1  gpus_per_node = 1 }
  model { seq_length = 64 }
  dataset { data_path = ["chat"] }
  checkpoint { pretrained_checkpoint = "weights"  finetune = true }
  train { micro_batch_size = 2  global_batch_size = 8  train_iters = 30 }
  optimizer { lr = 3e-3 }
  scheduler { lr_warmup_iters = 2 }
}
"""


def make(folder):
    vocabulary = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    model = made("llama", {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
                           "num_key_value_heads": 2, "vocab_size": len(vocabulary) + len(SPECIAL), "max_position_embeddings": 128})
    model.save_pretrained(folder / "model")
    tokenizer.save(str(folder / "model/tokenizer.json"))
    (folder / "model/tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE}))
    names = ["Ada", "Ben", "Cy", "Di"]
    rows = [[{"role": "user", "content": f"I am {names[i % 4]}. Hi!"}, {"role": "assistant", "content": "Hello!"}] for i in range(64)]
    (folder / "chat.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    (folder / "host.recipe").write_text(HOST)


def check_short(binaries, page, folder):
    """The commands of "In short" on the tiny model. The run is killed, and the same command continues it."""
    text = page.split("## In short")[1].split("\n## ")[0].replace("\\\n", " ")
    for path in ("models/Llama-3.1-8B-Instruct", "models/Llama-3.1-8B"):
        text = text.replace(path, "model")
    commands = re.findall(r"^    (shardc .*)$", text.replace("4096", "64").replace("save_interval=100", "save_interval=2"), re.MULTILINE)
    expect(len(commands) == 4 and " run " in commands[-1], f"the page has other commands: {commands}")
    for command in commands[:-1]:
        words = shlex.split(command) + ([f"--python={sys.executable}"] if " data " in command else [])
        call(binaries / words[0], *words[1:], cwd=folder)
    words = [binaries / "shardc", *shlex.split(commands[-1])[1:], "--set=train.global_batch_size=8", "--set=train.train_iters=6"]
    killed = subprocess.run(words, cwd=folder, env={**os.environ, "SHARDC_FAULT": "kill@0:5"}, capture_output=True, text=True, check=False)
    expect(killed.returncode != 0, f"the run was not killed: {killed.stdout}{killed.stderr}")
    said = call(*words, cwd=folder)
    expect("continuing after step 4" in said and "done after" in said, said)


def check(binaries):
    with tempfile.TemporaryDirectory() as folder:
        make(pathlib.Path(folder))
        page = (pathlib.Path(__file__).resolve().parents[2] / "docs/fine-tuning.md").read_text()
        check_short(binaries, page, folder)
        commands = re.findall(r"^    (shardc .*)$", page.split("## A run of seconds")[1].split("\n## ")[0], re.MULTILINE)
        expect(len(commands) == 12, f"the page has other commands: {commands}")
        for command in commands:
            words = shlex.split(command) + [f"--metrics={overlay}.jsonl" for overlay in re.findall(r"overlays/(\w+).recipe --overlay host", command)]
            words += [f"--python={sys.executable}"] if " data " in command or " generate " in command else []
            said = call(binaries / words[0], *words[1:], cwd=folder)
            expect(" generate " not in command or said.strip(), f"{command} says nothing")
        for overlay, least in ("sft", 2), ("lora", 5), ("dora", 5), ("qlora", 5):
            lines = pathlib.Path(folder, f"{overlay}.jsonl").read_text().splitlines()
            losses = [json.loads(line)["loss"] for line in lines if '"loss"' in line]
            expect(losses[0] > 5 and losses[-1] < min(least, losses[0] - 0.3), f"{overlay}: losses {losses}")
            print(f"{overlay}: loss {losses[0]:.2f} to {losses[-1]:.2f}")
        expect(pathlib.Path(folder, "tuned/model.safetensors").exists(), "no model comes of the adapters")


if sys.argv[1] == "--check":
    check(pathlib.Path(sys.argv[2]).resolve())
else:
    os.makedirs(sys.argv[1], exist_ok=True)
    make(pathlib.Path(sys.argv[1]))
