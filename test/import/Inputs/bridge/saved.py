import signal

import torch
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training.config import *
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.core.transformer.enums import AttnBackend


def saved_config():
    cfg = ConfigContainer(
        model=GPTModelProvider(num_layers=4, hidden_size=512, num_attention_heads=8, seq_length=2048),
        train=TrainingConfig(global_batch_size=64, micro_batch_size=2, train_iters=2000, manual_gc=True),
        checkpoint=CheckpointConfig(save="/results/saved", save_interval=100, ckpt_format="torch_dist"),
        dataset=GPTDatasetConfig(seq_length=2048, split="99,1,0"),
        mixed_precision=MixedPrecisionConfig(bf16=True, grad_reduce_in_fp32=True, params_dtype=torch.bfloat16),
    )
    cfg.dataset.blend = (["/data/a_text_document", "/data/b_text_document"], [0.25, 0.75])
    cfg.model.activation_func = torch.nn.functional.silu
    cfg.model.gated_linear_unit = True
    cfg.model.attention_backend = AttnBackend.auto
    cfg.model.params_dtype = torch.bfloat16
    cfg.model.vocab_size = 32000
    cfg.train.exit_signal = signal.SIGTERM
    cfg.train.manual_gc_eval = 100
    return cfg
