# In the form of Megatron-Bridge's own recipes.
import torch

from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.recipes.utils.environment_utils import COMMON_RECIPE_ENV_VARS
from megatron.bridge.recipes.utils.tokenizer_utils import DEFAULT_NULL_TOKENIZER_VOCAB_SIZE
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.mixed_precision import bf16_mixed


def small_pretrain_8gpu_config() -> ConfigContainer:
    """Return a configuration.

    cfg.train.train_iters = 1 is not meant here.
    """
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("some/model-1B").get_model_config()
    cfg.tokenizer.tokenizer_type = "NullTokenizer"
    cfg.tokenizer.tokenizer_model = None
    cfg.tokenizer.vocab_size = DEFAULT_NULL_TOKENIZER_VOCAB_SIZE
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.context_parallel_size = 2
    cfg.model.seq_length = 8192
    cfg.dataset.seq_length = 8192
    cfg.dataset.blend = None
    cfg.train.train_iters = 1_000
    cfg.scheduler.lr_warmup_iters = 200
    cfg.mixed_precision = bf16_mixed()
    cfg.mixed_precision.grad_reduce_in_fp32 = False
    cfg.optimizer.exp_avg_dtype = torch.float32
    if cfg.model.context_parallel_size > 1:
        cfg.model.calculate_per_token_loss = True
    cfg.env_vars = {**COMMON_RECIPE_ENV_VARS, "CUDA_DEVICE_MAX_CONNECTIONS": 1}
    return cfg
