# Values that are changed where they are.
cfg.train.train_iters = 100
cfg.train.train_iters += 50
cfg.model.moe_layer_freq = [1, 1, 1, 1]
cfg.model.moe_layer_freq[0] = 0
cfg.model.window_size = [128, 0]
cfg.rng.seed = 3
del cfg.rng.seed
cfg.optimizer.lr = 1e-3
try:
    cfg.optimizer.lr = float("nope")
except ValueError:
    cfg.optimizer.lr = 5e-4
