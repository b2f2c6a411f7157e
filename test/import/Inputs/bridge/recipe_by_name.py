# What a recipe function of Megatron-Bridge's returns, with changes, as in its guide.
from megatron.bridge.recipes.gpt import gpt3_175b_pretrain_config
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain

if __name__ == "__main__":
    cfg = gpt3_175b_pretrain_config()
    cfg.train.train_iters = 10
    cfg.model.tensor_model_parallel_size = 8
    pretrain(cfg, forward_step)
