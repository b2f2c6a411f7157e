# A script with arguments, which starts the training itself.
import argparse

from megatron.bridge.recipes.llama import llama3_8b_pretrain_config
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--iters", type=int, default=500)
    return parser.parse_args()


def main():
    args = parse()
    cfg = llama3_8b_pretrain_config()
    cfg.model.tensor_model_parallel_size = args.tp
    cfg.train.train_iters = args.iters
    cfg.train.global_batch_size = 128
    cfg.logger.log_interval = 1
    pretrain(config=cfg, forward_step_func=forward_step)


if __name__ == "__main__":
    main()
