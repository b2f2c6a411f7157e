# A model class of one's own.
from dataclasses import dataclass, field

import torch.nn.functional as F
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training.config import ConfigContainer, TrainingConfig


@dataclass
class SmallModel(GPTModelProvider):
    num_layers: int = 3
    hidden_size: int = 192
    num_attention_heads: int = 3
    activation_func: object = F.silu
    gated_linear_unit: bool = True


def small_config():
    cfg = ConfigContainer(model=SmallModel(hidden_size=384), train=TrainingConfig(train_iters=5))
    cfg.model.num_attention_heads = 6
    return cfg
