#!/usr/bin/env python3
"""Writes a file as torch.save does, with arguments of Megatron-LM as checkpoints store them. Needs only Python.

    make_common.py FILE
"""

import argparse
import enum
import pickle
import sys
import types
import zipfile


def enumeration(module, name, members):
    """A class that pickles as Megatron's own."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    made = enum.Enum(name, members, module=module)
    setattr(sys.modules[module], name, made)
    return made


AttnBackend = enumeration("megatron.core.transformer.enums", "AttnBackend", {"flash": 1, "fused": 2})


ARGS = argparse.Namespace(
    num_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    group_query_attention=True,
    num_query_groups=2,
    ffn_hidden_size=160,
    seq_length=128,
    max_position_embeddings=128,
    padded_vocab_size=1024,
    vocab_size=None,
    swiglu=True,
    add_bias_linear=False,
    untie_embeddings_and_output_weights=True,
    attention_backend=AttnBackend.fused,
    bf16=True,
    fp16=False,
    use_megatron_fsdp=True,
    use_distributed_optimizer=True,
    data_parallel_sharding_strategy="optim_grads_params",
    gradient_accumulation_fusion=False,
    check_for_nan_in_loss_and_grad=False,
    ckpt_format="fsdp_dtensor",
    no_save_optim=None,
    lr=3e-4,
    clip_grad=1.0,
    moe_layer_freq=1,
    micro_batch_size=1,
    global_batch_size=8,
    train_iters=10,
    world_size=8,
    rank=0,
    retro_something=None,
    adlr_autoresume_interval=1000,
)


def main():
    with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"args": ARGS, "iteration": 10}, protocol=2))
        archive.writestr("archive/version", "3\n")


if __name__ == "__main__":
    main()
