# Several targets at once.
from megatron.bridge.recipes.utils.optimizer_utils import distributed_fused_adam_with_cosine_annealing

cfg.optimizer, cfg.scheduler = distributed_fused_adam_with_cosine_annealing(max_lr=2e-4, lr_warmup_iters=100)
cfg.model.num_layers, cfg.model.hidden_size = 8, 512
cfg.train.micro_batch_size = cfg.validation.eval_iters = 4
first, second = 16, 32
cfg.train.global_batch_size = second
