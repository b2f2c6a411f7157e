# Functions that change the configuration which they get.
from megatron.bridge.training.config import ConfigContainer, TrainingConfig


def parallel(cfg, tp=1, cp=1):
    cfg.model.tensor_model_parallel_size = tp
    cfg.model.context_parallel_size = cp
    cfg.model.sequence_parallel = tp > 1


def batch(cfg: ConfigContainer, size):
    cfg.train.global_batch_size = size
    if size >= 256:
        cfg.optimizer.lr = 6e-4


def large_config() -> ConfigContainer:
    cfg = ConfigContainer(train=TrainingConfig(train_iters=1000, micro_batch_size=1))
    parallel(cfg, tp=4)
    batch(cfg, 512)
    return cfg
