LAYERS = 10
HIDDEN = 640


def tune(cfg):
    cfg.train.micro_batch_size = 8
    cfg.optimizer.clip_grad = 0.5
