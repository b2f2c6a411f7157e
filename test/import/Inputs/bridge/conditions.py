# Conditions on values that the text shows, and on one that it does not.
cfg.model.seq_length = 8192
cfg.train.micro_batch_size = 4
cfg.model.recompute_granularity = None
if cfg.model.seq_length > 40000:
    cfg.train.micro_batch_size = 1
    cfg.model.recompute_granularity = "full"
elif cfg.model.seq_length >= 8192 and not cfg.train.micro_batch_size == 1:
    cfg.optimizer.lr = 1e-4
else:
    cfg.optimizer.lr = 2e-4
if cfg.model.context_parallel_size > 1:
    cfg.train.global_batch_size = 128
    cfg.rng.seed = 7
