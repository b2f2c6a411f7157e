# A container with everything in its place.
import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training.config import *


def pretrain_config() -> ConfigContainer:
    return ConfigContainer(
        model=GPTModelProvider(
            num_layers=4, hidden_size=256, num_attention_heads=8, activation_func=torch.nn.functional.silu,
            gated_linear_unit=True, normalization="RMSNorm", params_dtype=torch.bfloat16,
        ),
        train=TrainingConfig(train_iters=20, global_batch_size=16, micro_batch_size=2),
        optimizer=OptimizerConfig(optimizer="adam", lr=1e-3, weight_decay=0.1),
        scheduler=SchedulerConfig(lr_decay_style="cosine", lr_warmup_iters=2),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=True),
        checkpoint=CheckpointConfig(save="ck", save_interval=10, ckpt_format="torch_dist"),
        rng=RNGConfig(seed=11),
        mixed_precision="bf16_mixed",
    )
