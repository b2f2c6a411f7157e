# What follows a return may not happen.
def make_config(cfg, is_short=True):
    cfg.train.train_iters = 100
    cfg.train.micro_batch_size = 1
    if is_short:
        return cfg
    cfg.train.train_iters = 100_000
    cfg.train.global_batch_size = 512
    return cfg
