# Defaults in two stages, and variables of the run.
import os

os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
layers = os.environ.get("LAYERS", os.environ.get("MODEL_LAYERS", "16"))
cfg.model.num_layers = int(layers)
cfg.model.hidden_size = int(os.getenv("HIDDEN") or 2048)
cfg.train.global_batch_size = 32 if os.environ.get("SMALL") else 256
cfg.train.micro_batch_size = 4
cfg.checkpoint.save = f"/results/{os.environ.get('NAME', 'base')}"
