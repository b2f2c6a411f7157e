#!/usr/bin/env python3
"""Trains adapters on a 4-bit Llama with transformers, PEFT, bitsandbytes and, if installed, Liger's kernels: the peer
of our QLoRA runs.

    qlora_peer.py [--seq 2048] [--mbs 1] [--rank 16] [--layers N] [--double] [--no-recompute] [--steps 8] [--warmup 3] [--device D]
                  [--name NAME] [--out FILE] [--time-limit S]

The sizes are those of Llama 3.1 8B, with random weights. The seven projections have adapters, all tokens are
supervised, AdamW is fused, gradients are clipped to 1.0, and each layer is recomputed. Writes tokens_per_s_gpu and
memory_gib in the form that paired_speed.py reads. --double also quantises the scales.
"""

import argparse
import faulthandler
import json
import pathlib
import statistics
import time

import bitsandbytes as bnb
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def linear_in_4_bits(rows, columns, double, device):
    linear = bnb.nn.Linear4bit(columns, rows, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4", compress_statistics=double)
    values = torch.randn(rows, columns, dtype=torch.bfloat16, device=device) * 0.02
    linear.weight = bnb.nn.Params4bit(values, requires_grad=False, quant_type="nf4", compress_statistics=double)
    return linear.to(device)


def model_of(args, device):
    config = transformers.LlamaConfig(
        vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=args.ffn, num_hidden_layers=args.layers, num_attention_heads=args.heads,
        num_key_value_heads=args.groups, max_position_embeddings=args.seq, rope_theta=500000.0, attn_implementation="sdpa", use_cache=False)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    for layer in model.model.layers:
        for owner in (layer.self_attn, layer.mlp):
            for name in PROJECTIONS:
                if hasattr(owner, name):
                    rows, columns = getattr(owner, name).weight.shape
                    setattr(owner, name, linear_in_4_bits(rows, columns, args.double, device))
    for owner in model.modules():
        for name, value in list(owner.named_parameters(recurse=False)):
            if value.is_meta:
                made = torch.ones if value.ndim == 1 else torch.randn
                setattr(owner, name, torch.nn.Parameter(made(value.shape, dtype=torch.bfloat16, device=device) * 0.02, requires_grad=False))
    model.model.rotary_emb = LlamaRotaryEmbedding(config).to(device)
    model.is_loaded_in_4bit = True
    model = get_peft_model(model, LoraConfig(r=args.rank, lora_alpha=2 * args.rank, task_type="CAUSAL_LM", target_modules=PROJECTIONS))
    if args.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return model.train()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("seq", 2048), ("mbs", 1), ("rank", 16), ("layers", 32), ("hidden", 4096), ("ffn", 14336), ("heads", 32), ("groups", 8),
                        ("vocab", 128256), ("steps", 8), ("warmup", 3), ("time-limit", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--no-recompute", dest="recompute", action="store_false")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--name", default="")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    if args.time_limit:
        faulthandler.dump_traceback_later(args.time_limit, exit=True)
    try:
        from liger_kernel.transformers import apply_liger_kernel_to_llama
        apply_liger_kernel_to_llama()
    except ImportError:
        print("without Liger's kernels")
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    model = model_of(args, device)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.98), weight_decay=0.0, fused=on_gpu)
    data = torch.randint(0, args.vocab, (4, args.mbs, args.seq), generator=torch.Generator().manual_seed(1)).to(device)
    times, losses = [], []
    for step in range(args.warmup + args.steps):
        begin = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(input_ids=data[step % 4], labels=data[step % 4]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())  # waits for the step
        times.append(time.perf_counter() - begin)
    free, total = torch.cuda.mem_get_info() if on_gpu else (0, 0)
    result = {"name": args.name, "tokens_per_s_gpu": args.mbs * args.seq / statistics.median(times[args.warmup:]),
              "memory_gib": {"device_used": (total - free) / 2**30, "peak_allocated": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0},
              "loss": losses}
    if args.out:
        args.out.write_text(json.dumps(result), encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
