# Straight lines, as in a guide.
from megatron.bridge.training.config import ConfigContainer

cfg.model.num_layers = 24
cfg.model.hidden_size = 1_024
cfg.model.num_attention_heads = 16
cfg.model.seq_length = 2048
cfg.train.micro_batch_size = 2
cfg.train.global_batch_size = 64
cfg.optimizer.lr = 3e-4
cfg.checkpoint.save = "/checkpoints/plain"
