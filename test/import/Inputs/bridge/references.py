# Objects that are made first; of two for one section, one is used.
from megatron.bridge.training.config import *
from megatron.core.distributed import DistributedDataParallelConfig

quick = DistributedDataParallelConfig(use_distributed_optimizer=False)
ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, bucket_size=40_000_000)
train = TrainingConfig(micro_batch_size=1, global_batch_size=8)
train.train_iters = 50
config_of_run = ConfigContainer(train=train, ddp=ddp, rng=RNGConfig(seed=5))
model_cfg = config_of_run.model
model_cfg.num_layers = 6
