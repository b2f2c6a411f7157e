from megatron.bridge.training.config import GPTDatasetConfig

sizes = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "vocab_size": 256}
for name in sizes:
    setattr(cfg.model, name, sizes[name])
cfg.dataset = GPTDatasetConfig(blend=None, blend_per_split=[(["/data/train"], None), (["/data/valid"], None), None], seq_length=32)
cfg.train.micro_batch_size = 1
cfg.train.global_batch_size, cfg.train.train_iters = 8, 10
