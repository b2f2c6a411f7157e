import signal

import torch

cfg.train.micro_batch_size = 1
cfg.train.global_batch_size = 8
cfg.train.exit_signal = signal.SIGUSR1
for name, value in dict(num_layers=2, hidden_size=64, num_attention_heads=4, window_size=(64, 0)).items():
    setattr(cfg.model, name, value)
cfg.model.params_dtype = torch.bfloat16
cfg.validation.eval_iters = 4
cfg.optimizer.lr, cfg.optimizer.clip_grad = 1e-3, 1
