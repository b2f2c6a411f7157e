#!/usr/bin/env python3
"""Compares training on pairs of answers with TRL: losses and metrics of small models of Hugging Face on the same pairs.

usage: preference_training.py BIN [CASE...]

Each case is a small model in fp32 whose values follow from its names, as in hf_training.py, possibly with an adapter of
PEFT whose second factors are zeros. TRL's DPOTrainer, ORPOTrainer or CPOTrainer (of SimPO) reads one pair at a time and accumulates the
gradients of a global batch; shardc trains on packs of two pairs. Losses of six steps must agree within 1e-5 (relative).
BIN is the folder of shardc and shardc-run. `--record` writes test/e2e/golden/values/preference_training.json, from
which preference_losses.py tests without TRL. Exits with 77 without torch, transformers, peft or TRL.
"""

import json
import os
import pathlib
import sys
import tempfile

from hf_models import VERSIONS, loaded, torch, transformers
from hf_training import EAGER, FAMILIES, make, write_values

import preference_losses as pairs

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
try:
    import datasets
    import peft
    import tokenizers
    import trl
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

NO_LOSS = ["model.moe_aux_loss_coeff=[0.0]"]
# {name: (family, loss, whether adapters are trained, settings of both sides, layouts in addition to one rank)}.
CASES = {
    "dpo": ("llama3", "sigmoid", False, {}, []),
    "dpo_lora": ("llama3", "sigmoid", True, {"beta": 0.5},
                 [["cluster.gpus_per_node=2", "train.micro_batch_size=1"],
                  ["cluster.gpus_per_node=2", "model.tensor_model_parallel_size=2", "checkpoint.convert_on_load=true"]]),
    "dpo_norm": ("qwen3", "sigmoid_norm", False, {"beta": 2.0}, []),
    "ipo": ("gemma3", "ipo", False, {}, []),
    "robust": ("llama3", "robust", False, {"label_smoothing": 0.2}, []),
    "dpo_experts": ("mixtral", "sigmoid", False, {}, [["cluster.gpus_per_node=2", "model.expert_model_parallel_size=2"]]),
    "orpo": ("llama3", "orpo", False, {}, [["cluster.gpus_per_node=2", "model.tensor_model_parallel_size=2"]]),
    "hinge": ("llama3", "hinge", False, {"beta": 0.3}, []),
    "simpo": ("llama3", "simpo", False, {"beta": 2.0, "simpo_gamma": 1.4}, [["cluster.gpus_per_node=2", "model.tensor_model_parallel_size=2"]]),
    "simpo_lora": ("qwen3", "simpo", True, {"beta": 2.5, "label_smoothing": 0.1}, []),
    "orpo_lora": ("llama3", "orpo", True, {}, []),
}


def word(token):
    return f"w{token:03}"  # none is a part of another, since special tokens are found anywhere


def words(tokens):
    return "".join(f" {word(token)}" for token in tokens)


def tokenizer_of():
    """A tokenizer with one word per token. The last token is the end token."""
    vocabulary = {word(token): token for token in range(257)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=word(0)))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=word(pairs.END), pad_token=word(0), unk_token=word(0))


def data(loss):
    """The pairs for TRL. ORPO's trainer adds the end token; DPO's does not if the text has it."""
    rows = [{"prompt": words(prompt), "chosen": words(chosen[:-1]), "rejected": words(rejected[:-1])} for prompt, chosen, rejected in pairs.pairs()]
    if loss not in ("orpo", "simpo"):
        end = words([pairs.END])
        rows = [{**row, "chosen": row["chosen"] + end, "rejected": row["rejected"] + end} for row in rows]
    return datasets.Dataset.from_list(rows)


def watched(trainer_class):
    """A trainer that records the loss of each microbatch and reads the data in order."""
    class Watched(trainer_class):
        def __init__(self, *args, **kwargs):
            self.found = []
            super().__init__(*args, **kwargs)

        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            self.found.append((loss[0] if isinstance(loss, tuple) else loss).item())
            return loss
    return Watched


def train(work, loss, lora, options):
    """The losses of the steps, and TRL's metrics."""
    of_step = pairs.BATCH * pairs.PAIRS
    settings = {"output_dir": str(work / "trl"), "per_device_train_batch_size": 1, "gradient_accumulation_steps": of_step,
                "max_steps": pairs.STEPS, "learning_rate": 1e-3, "lr_scheduler_type": "constant", "warmup_steps": 0, "weight_decay": 0.0,
                "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_epsilon": 1e-8, "max_grad_norm": 0.0, "optim": "adamw_torch", "bf16": False,
                "use_cpu": True, "report_to": [], "save_strategy": "no", "logging_steps": 1, "gradient_checkpointing": False,
                "disable_tqdm": True, "beta": 0.1, **options}
    model = loaded(work / "made", **EAGER)
    if hasattr(model.config, "router_aux_loss_coef"):
        model.config.router_aux_loss_coef = 0.0  # or TRL adds the router losses
    if lora:
        model = peft.PeftModel.from_pretrained(model, work / "adapter", is_trainable=True)
    more = {"train_dataset": data(loss), "processing_class": tokenizer_of()}
    if loss == "orpo":
        trainer = watched(ORPOTrainer)(model=model, args=ORPOConfig(max_length=pairs.LENGTH, **settings), **more)
    elif loss == "simpo":
        args = CPOConfig(max_length=pairs.LENGTH, loss_type=loss, cpo_alpha=0.0, **settings)
        trainer = watched(CPOTrainer)(model=model, args=args, **more)
    else:
        reference = {} if lora else {"ref_model": loaded(work / "made", **EAGER)}
        trainer = watched(trl.DPOTrainer)(model=model, args=trl.DPOConfig(max_length=None, loss_type=[loss], **settings), **reference, **more)
    trainer.train()
    assert len(trainer.found) == pairs.STEPS * of_step, len(trainer.found)
    losses = [sum(trainer.found[i:i + of_step]) / of_step for i in range(0, len(trainer.found), of_step)]
    logs = [log for log in trainer.state.log_history if "rewards/chosen" in log]
    return losses, {metric: [log[metric] for log in logs] for metric in pairs.METRICS}


def check(binaries, work, name, is_first):
    family, loss, lora, options, layouts = CASES[name]
    kind, config, settings = FAMILIES[family]
    work.mkdir()
    shapes = make(work / "made", kind, config)
    settings = settings + [f"preference.{key}={value}" for key, value in options.items()] + (NO_LOSS if family == "mixtral" else [])
    case = {"config": json.loads((work / "made/config.json").read_text()), "settings": settings, "shapes": shapes, "loss": loss, "lora": lora,
            "layouts": layouts}
    pairs.prepare(binaries / "shardc", work, case, shapes)
    case["losses"], case["metrics"] = train(work, loss, lora, options)
    pairs.check(binaries / "shardc", work, name, case, is_first)
    return case


def main():
    names = [word for word in sys.argv[2:] if not word.startswith("--")]
    print(f"{VERSIONS}, peft {peft.__version__}, trl {trl.__version__}")
    torch.set_num_threads(1)  # the models are small
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    cases = {}
    with tempfile.TemporaryDirectory() as place:
        for name in names or CASES:
            cases[name] = check(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(place) / name, name, name == next(iter(CASES)))
    if "--record" in sys.argv:
        write_values("preference_training.json", f"test/interop/preference_training.py --record, trl {trl.__version__}", cases)


main()
