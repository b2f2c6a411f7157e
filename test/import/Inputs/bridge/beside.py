# Constants from a module beside it.
from shared_sizes import LAYERS, HIDDEN, tune

cfg.model.num_layers = LAYERS
cfg.model.hidden_size = HIDDEN
cfg.train.micro_batch_size = 2
tune(cfg)
cfg.train.global_batch_size = 16
