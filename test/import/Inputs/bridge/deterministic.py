# A function of upstream's that is not known may change anything before it.
from megatron.bridge.recipes.qwen import qwen3_8b_pretrain_config
from somewhere.tuning import apply_overrides

cfg = qwen3_8b_pretrain_config()
cfg.train.micro_batch_size = 2
cfg.model.seq_length = 4096
apply_overrides(cfg)
cfg.train.global_batch_size = 64
cfg.validate()
