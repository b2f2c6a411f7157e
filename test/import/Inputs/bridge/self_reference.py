# Values that follow from others.
accumulation = 4
cfg.train.micro_batch_size = 2
cfg.train.global_batch_size = cfg.train.micro_batch_size * accumulation * 8
cfg.model.seq_length = 4096
cfg.dataset.seq_length = cfg.model.seq_length
cfg.validation.eval_iters = cfg.train.global_batch_size // 8
warmup = 500
cfg.scheduler.lr_warmup_iters = warmup
