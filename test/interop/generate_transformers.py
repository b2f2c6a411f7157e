"""Compares greedy continuations of Hugging Face's models by `shardc generate` with those of transformers.

usage: generate_transformers.py BIN [FAMILY...]

Each family is a small model in fp32 whose values follow from its names, as in hf_training.py. transformers' `generate`,
without sampling, adds tokens to a prompt with its own cache of keys and values; `shardc generate` must add the same
tokens. The two best scores of each step differ by more than 1e-4, so rounding cannot change the result. The
log-probability of these tokens by `shardc score` must be that of transformers. BIN is the folder of shardc. `--record` writes prompts and tokens with the versions into test/e2e/golden/values/generate.json, from
which test/e2e/Inputs/generate_tokens.py tests without transformers. Exits with 77 without torch or transformers.
"""

import pathlib
import sys
import tempfile

from hf_models import VERSIONS, expect, loaded, torch, transformers
from hf_training import EAGER, FAMILIES, make, write_values

import generate_tokens

NAMES = ["llama3", "gpt2", "llama31", "qwen2", "qwen3", "qwen3_windows", "phi3", "gemma2", "gemma3", "mixtral", "qwen3_moe", "qwen2_moe",
         "deepseek_v3", "llama4", "gpt_oss", "glm4", "olmo2", "starcoder2", "olmo3", "minimax_m2", "hunyuan", "exaone4_windows",
         "lfm2", "qwen3_next", "nemotron_h", "nemotron_h_experts", "granite4_documents", "bamba"]
APART = 1e-4


def continued(model, tokens):
    made = model.generate(torch.tensor([tokens]), max_new_tokens=generate_tokens.COUNT, do_sample=False, num_beams=1, pad_token_id=0,
                          output_scores=True, return_dict_in_generate=True)
    for scores in made.scores:
        best = scores[0].topk(2).values
        expect(best[0] - best[1] > APART, f"two tokens are equally likely: {best}")
    added = made.sequences[0, len(tokens):].tolist()
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    return added[:-1] if added[-1] in ends else added


def log_probability(model, tokens, added):
    with torch.no_grad():
        scores = model(torch.tensor([tokens + added])).logits[0, len(tokens) - 1:-1].double().log_softmax(-1)
    return scores[torch.arange(len(added)), torch.tensor(added)].sum().item()


def check(binaries, work, name, number):
    kind, config, _ = FAMILIES[name]
    work.mkdir()
    make(work / "made", kind, config)
    tokens = generate_tokens.prompt(number)
    model = loaded(work / "made", **EAGER).eval()
    theirs = continued(model, tokens)
    ours = generate_tokens.generate(binaries / "shardc", work / "made", tokens)
    expect(ours == theirs, f"{name}: {ours}, transformers has {theirs}")
    chance = log_probability(model, tokens, theirs)
    generate_tokens.expect_score(binaries / "shardc", work / "made", tokens, theirs, chance)
    print(f"{name}: {len(theirs)} tokens")
    return {"prompt": tokens, "tokens": theirs, "log_probability": round(chance, 7)}


def main():
    words = [word for word in sys.argv[1:] if word != "--record"]
    binaries = pathlib.Path(words[0]).resolve()
    torch.set_num_threads(1)  # the models are small
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    cases = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in words[1:] or NAMES:
            cases[name] = check(binaries, pathlib.Path(folder) / name, name, NAMES.index(name))
    if "--record" in sys.argv:
        write_values("generate.json", "test/interop/generate_transformers.py --record", cases)
    print(f"{VERSIONS}: all equal")


if __name__ == "__main__":
    main()
