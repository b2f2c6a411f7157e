#!/usr/bin/env python3
"""Compares QLoRA with bitsandbytes and PEFT: losses of adapters on a model in 4 bits whose scales are in 8 bits (double quantisation).

usage: qlora_training.py BIN

A small Llama in fp32 whose values follow from its names, as in hf_training.py. In transformers, its projections have the numbers that
bitsandbytes opens, with the map of values of its code for GPUs and a mean that is rounded once, as in bitsandbytes_folders.py. PEFT trains
the adapters with which the run of shardc begins. The run takes the model, and a folder in 4 bits that `ckpt export hf` made of it. Losses
of ten steps must agree within 1e-5 (relative), and those of both runs to the bit. Exits with 77 without torch, transformers, PEFT or
bitsandbytes.
"""

import pathlib
import shutil
import sys
import tempfile

from hf_models import call, expect, loaded, torch, transformers

try:
    import bitsandbytes.functional as bnb
    from peft import PeftModel
except ImportError as missing:
    print(missing)
    sys.exit(77)

from hf_training import CASE, EAGER, LR, SIZES, STEPS, TOLERANCE, apart, dataset, hf_losses, make, step_loss, GOLDEN

SIZES = {**SIZES, "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 2}
TARGETS = '["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]'
PEFT = ["peft.scheme=lora", "peft.rank=4", "peft.alpha=8", f"peft.targets={TARGETS}", "peft.quantize=nf4_double",
        "checkpoint.load=none", "checkpoint.finetune=false"]


def opened(weight):
    """The numbers of a weight in 4 bits."""
    codes, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    offset = state.absmax.double().mean().float()
    values = bnb.create_dynamic_map()
    scales = []
    for group in (state.absmax - offset).split(256):
        largest = group.abs().max()
        code = torch.bucketize(group * (1 / largest), (values[:-1] + values[1:]) / 2)
        scales.append(values[code] * largest + offset)
    state.absmax = torch.cat(scales)
    return bnb.dequantize_4bit(codes, state)


def peer(base, adapters):
    model = loaded(base, **EAGER)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "_proj." in name:
                value.copy_(opened(value))
    return PeftModel.from_pretrained(model, adapters, is_trainable=True)


def train(model):
    order = dataset.SampleOrder(dataset.documents(), (STEPS + 1) * CASE.global_batch, CASE.seq_length, CASE.data_seed)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=LR, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        losses.append(step_loss(model.train(), order, step, backward=True))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def main():
    binaries = pathlib.Path(sys.argv[1]).resolve()
    shardc = binaries / "shardc"
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as place:
        work = pathlib.Path(place)
        make(work / "made", "llama", SIZES)
        call(shardc, "import", "hf", work / "made", "-o", work / "imported.recipe")
        call(shardc, "ckpt", "import", "hf", work / "made", work / "weights")
        call(shardc, "ckpt", "export", "hf", work / "weights", work / "packed", "--pack=nf4_double", "--weight-dtype=float32")
        hf_losses.write_recipe(work, GOLDEN, STEPS)

        def losses(base, *settings, steps=STEPS):
            shutil.rmtree(work / "saved", ignore_errors=True)
            return hf_losses.losses_of(shardc, work, [*PEFT, f'checkpoint.pretrained_checkpoint="{work / base}"', *settings], steps)

        losses("made", "optimizer.lr=0", "optimizer.min_lr=0", steps=1)
        call(shardc, "ckpt", "export", "peft", work / "saved", work / "adapters")
        theirs = train(peer(work / "made", work / "adapters"))
        ours = losses("made")
        packed = losses("packed")
        worst = apart(ours, theirs)
        print(f"first losses {ours[0]:.7f} and {theirs[0]:.7f}; {STEPS} losses {worst:.1e} apart")
        expect(worst <= TOLERANCE, f"{ours}\n{theirs}")
        expect(packed == ours, f"of a folder in 4 bits: {packed}\n{ours}")
        plain = losses("made", "peft.quantize=nf4", steps=1)
        expect(apart(plain, ours[:1]) > 1e-7, f"scales in fp32 have the same losses: {plain}")


main()
