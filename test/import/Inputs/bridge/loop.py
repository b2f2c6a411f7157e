# Settings from a table.
from megatron.bridge.recipes.gpt import vanilla_gpt_pretrain_config

SIZES = {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12}


def main_config():
    cfg = vanilla_gpt_pretrain_config()
    for name, value in SIZES.items():
        setattr(cfg.model, name, value)
    batch = 1
    while batch < 48:
        batch *= 2
    cfg.train.global_batch_size = batch
    cfg.train.micro_batch_size = 2
    return cfg
