#!/usr/bin/env python3
"""Which model types of transformers compute what an imported architecture computes.

    hf_alike.py [TYPE...]

For each type of causal language models that is not imported, a small model gets random weights. Each imported
architecture whose tensors have the same names and shapes under the same fields gets them, too, and its logits are
compared. Rows HF_ALIKE of runtime/checkpoint/HfFields.def name types of which all pairs that fit are the same.

Needs transformers 5.24.0 and torch.
"""

import pathlib
import re
import sys
import warnings

warnings.filterwarnings("ignore")
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TYPES

transformers.logging.set_verbosity_error()
TABLE = pathlib.Path(__file__).resolve().parents[2] / "runtime/checkpoint/HfFields.def"
SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "num_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
}
LARGEST = 2_000_000


def make(kind, fields):
    config = AutoConfig.for_model(kind, **fields)
    with torch.device("meta"):
        count = sum(each.numel() for each in AutoModelForCausalLM.from_config(config).parameters())
    if count > LARGEST:
        raise ValueError("large")
    return config, AutoModelForCausalLM.from_config(config).float().eval()


def main():
    known = re.findall(r'^HF_ARCHITECTURE\(\w+, "(\w+)"', TABLE.read_text(), re.M)
    tokens = torch.randint(0, 64, (1, 24), generator=torch.Generator().manual_seed(0))
    for kind in sys.argv[1:] or sorted(set(TYPES) - set(known)):
        try:
            config, model = make(kind, SMALL)
            for index, each in enumerate(model.parameters()):
                each.data.normal_(0, 0.3, generator=torch.Generator().manual_seed(index))
            weights = model.state_dict()
            with torch.no_grad():
                wanted = model(tokens).logits
        except Exception:
            continue
        fields = {key: value for key, value in config.to_dict().items() if key not in ("model_type", "architectures")}
        for other in known:
            try:
                _, twin = make(other, fields)
                if {name: each.shape for name, each in twin.state_dict().items()} != {name: each.shape for name, each in weights.items()}:
                    continue
                twin.load_state_dict(weights)
                with torch.no_grad():
                    far = ((twin(tokens).logits - wanted).abs().max() / wanted.abs().max()).item()
            except Exception:
                continue
            print(f"{kind} {other} {'same' if far < 1e-5 else f'differs by {far:.1e}'}", flush=True)


if __name__ == "__main__":
    main()
