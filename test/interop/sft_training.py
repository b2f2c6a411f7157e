#!/usr/bin/env python3
"""Compares fine-tuning on packs with transformers: losses of models of Hugging Face on the same rows.

usage: sft_training.py BIN [FAMILY...]

Each family is a small model in fp32 whose values follow from its names, as in hf_training.py. transformers reads each
row by itself, without padding, divides the loss sum of a global batch by the number of its tokens that count, and uses
torch's AdamW. shardc trains on packs of four rows, and on a pack for each row. Losses of ten steps, and the first
step's gradients, must agree within 1e-5 (relative). If TRL is installed, the first batch is also compared with TRL's
collator: the rows of each pack in one row, without padding, with positions that restart. BIN is the folder of shardc
and shardc-run. `--record` writes configurations, shapes, losses and sketches of gradients into
test/e2e/golden/values/sft_training.json, from which sft_losses.py tests without transformers. Exits with 77 without
torch or transformers.
"""

import json
import pathlib
import sys
import tempfile

from hf_models import VERSIONS, expect, loaded, torch, transformers
from hf_training import EAGER, FAMILIES, make, write_values

import sft_losses

NAMES = ["llama3", "gpt2", "qwen3", "phi3", "gemma3", "mixtral"]


def row_loss(model, row):
    """The sum of losses over the tokens that count, and their number."""
    tokens, masks = (torch.tensor(part) for part in row)
    logits = model(tokens[None, :-1]).logits[0]
    each = torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none")
    return (each * masks[1:]).sum(), int(masks[1:].sum())


def gradients(model, folder):
    """Sketches by the names that transformers gives tensors in files."""
    weights = [parameter.data for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data = parameter.grad
    model.save_pretrained(folder)
    for parameter, data in zip(model.parameters(), weights, strict=True):
        parameter.data = data
    return {name: sft_losses.sketch(name, memoryview(data).cast("f")) for name, (_, data) in sft_losses.tensors_of(folder).items()}


def train(model, folder):
    """The losses, and sketches of the first step's gradients, which transformers writes into the folder."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    rows, size = sft_losses.rows(), sft_losses.BATCH * sft_losses.ROWS
    losses, first = [], None
    for step in range(sft_losses.STEPS):
        found = [row_loss(model, row) for row in rows[step * size:(step + 1) * size]]
        loss = sum(part for part, _ in found) / sum(number for _, number in found)
        loss.backward()
        first = first or gradients(model, folder)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, first


def trl_loss(model):
    """The loss of the first global batch with TRL's collator and the model's own loss; None without TRL."""
    try:
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling
    except ImportError as error:
        print(f"without TRL: {error}")
        return None
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    examples = [{"input_ids": tokens, "labels": [token if mask else -100 for token, mask in zip(tokens, masks)]}
                for tokens, masks in sft_losses.rows()[:sft_losses.BATCH * sft_losses.ROWS]]
    batch = collator(examples)
    expect("attention_mask" not in batch and batch["position_ids"].tolist()[0].count(0) == len(examples), "TRL's batch is not flat")
    supervised = int((batch["labels"][:, 1:] != -100).sum())
    with torch.no_grad():
        kept = {name: batch[name] for name in ("input_ids", "labels", "position_ids")}
        return model.eval()(**kept, num_items_in_batch=supervised, use_cache=False).loss.item()


def check(binaries, work, name):
    kind, config, settings = FAMILIES[name]
    work.mkdir()
    shapes = make(work / "made", kind, config)
    theirs, first = train(loaded(work / "made", **EAGER), work / "gradients")
    case = {"config": json.loads((work / "made/config.json").read_text()), "settings": settings, "shapes": shapes, "losses": theirs,
            "gradients": first}
    sft_losses.imported(binaries / "shardc", work)
    sft_losses.check(binaries / "shardc", work, name, case, name == NAMES[0])
    if name != "gpt2":  # gpt2 has no attention that reads positions
        flat = trl_loss(loaded(work / "made", **EAGER))
        expect(flat is None or abs(flat - theirs[0]) <= 1e-5 * theirs[0], f"{name}: TRL's first loss is {flat}, not {theirs[0]}")
        print(f"{name}: TRL's first loss {flat}, transformers' {theirs[0]}")
    return case


def main():
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    print(VERSIONS)
    torch.set_num_threads(1)  # the models are small
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    cases = {}
    with tempfile.TemporaryDirectory() as place:
        for name in words[1:] or NAMES:
            cases[name] = check(pathlib.Path(words[0]), pathlib.Path(place) / name, name)
    if "--record" in sys.argv:
        write_values("sft_training.json", "test/interop/sft_training.py --record", cases)


main()
