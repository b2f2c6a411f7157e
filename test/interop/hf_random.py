"""Tests random configurations of the known architectures: if the import accepts one, it must compile, and train as in
transformers.

usage: hf_random.py BIN [--count=150] [--seed=1] [--record] [NUMBER...]

Each configuration has small sizes and random values of the fields that change what a model computes. transformers makes
the model and saves it; its tensors get values that follow from their names. `shardc import hf` and `ckpt import hf` may
refuse the configuration with the id `hf-setting-refused` or `hf-not-compiled`; it then does not count. Otherwise a run
on the host trains two steps. Losses must agree with those of transformers and torch's AdamW within 1e-5 (relative); the
second loss depends on the gradients of the first step. `--record` writes the first twelve accepted ones into
test/e2e/golden/values/hf_random.json, which hf_losses.py reads without transformers. With numbers, only these cases
run. BIN is the folder of shardc and shardc-run. Exits with 77 without torch or transformers.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import hf_training
from hf_models import GOLDEN, VERSIONS, call, expect, loaded, torch, transformers
from hf_training import CASE, CONSTANT_BIAS, EAGER, TOLERANCE, YARN, dataset, hf_losses

STEPS, RECORDED = 2, 12
REFUSED = ("hf-setting-refused", "hf-not-compiled")
SIZES = {"vocab_size": 257, "max_position_embeddings": 64, "initializer_range": 0.06, "pad_token_id": None}


def rope_of(rng, kinds=("default", "linear", "yarn", "llama3")):
    base = {"rope_theta": rng.choice([10000.0, 500000.0])}
    kind = rng.choice(("default", *kinds))
    if kind == "linear":
        return {**base, "rope_type": kind, "factor": rng.choice([2.0, 4.0])}
    if kind == "llama3":
        return {**base, "rope_type": kind, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192}
    return {**YARN, **base, "factor": rng.choice([2.0, 8.0])} if kind == "yarn" else {**base, "rope_type": "default"}


def sizes_of(rng, head_dim=True):
    heads = rng.choice([2, 4])
    config = {**SIZES, "hidden_size": rng.choice([32, 48, 64]), "intermediate_size": rng.choice([40, 64]),
              "num_hidden_layers": rng.randint(1, 4), "num_attention_heads": heads, "num_key_value_heads": rng.choice([1, 2, heads]),
              "rms_norm_eps": rng.choice([1e-5, 1e-6]), "tie_word_embeddings": rng.random() < 0.4}
    if head_dim:
        config["head_dim"] = rng.choice([8, 12, 16])
    return config


def flags(rng, *names):
    return {name: rng.random() < 0.5 for name in names}


def types_of(rng, layers, one="sliding_attention"):
    return [rng.choice([one, "full_attention"]) for _ in range(layers)]


def windows(rng, config):
    return {"sliding_window": rng.choice([4, 9, 20]), "layer_types": types_of(rng, config["num_hidden_layers"])}


def experts(rng, name="num_experts", topk=(1, 2, 3)):
    return {name: rng.choice([4, 8]), "num_experts_per_tok": rng.choice(topk), "moe_intermediate_size": rng.choice([24, 40])}


def llama(rng):
    return {**sizes_of(rng), **flags(rng, "attention_bias", "mlp_bias"), "rope_parameters": rope_of(rng),
            "hidden_act": rng.choice(["silu", "gelu", "gelu_pytorch_tanh"])}


def mistral(rng):
    return {**sizes_of(rng), "sliding_window": rng.choice([None, 6]), "rope_parameters": rope_of(rng)}


def ministral(rng):
    config = sizes_of(rng)
    return {**config, **windows(rng, config), "rope_parameters": rope_of(rng)}


def qwen2(rng):
    config = sizes_of(rng, head_dim=False)
    return {**config, "use_sliding_window": True, **windows(rng, config), "rope_parameters": rope_of(rng)}


def qwen3(rng):
    config = sizes_of(rng)
    return {**config, **flags(rng, "attention_bias"), "use_sliding_window": True, **windows(rng, config), "rope_parameters": rope_of(rng)}


def nemotron(rng):
    config = sizes_of(rng)
    epsilon = config.pop("rms_norm_eps")
    return {**config, "norm_eps": epsilon, **flags(rng, "attention_bias", "mlp_bias"), "partial_rotary_factor": rng.choice([0.5, 1.0])}


def arcee(rng):
    return {**sizes_of(rng), **flags(rng, "attention_bias", "mlp_bias"), "rope_parameters": rope_of(rng)}


def seed_oss(rng):
    return {**sizes_of(rng), **flags(rng, "attention_bias", "attention_out_bias", "mlp_bias"), "rope_parameters": rope_of(rng),
            "attention_dropout": 0.0, "residual_dropout": 0.0}


def helium(rng):
    config = sizes_of(rng)
    return {**config, **flags(rng, "attention_bias", "mlp_bias"), "head_dim": config["hidden_size"] // config["num_attention_heads"],
            "rope_parameters": rope_of(rng, ("linear", "llama3"))}


def glm(rng):
    share = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": rng.choice([0.5, 1.0])}
    return {**sizes_of(rng), **flags(rng, "attention_bias"), "head_dim": 16, "rope_parameters": share}


def ernie(rng):
    return {**sizes_of(rng), **flags(rng, "use_bias"), "rope_parameters": rope_of(rng, ("linear",))}


def gemma(rng):
    return {**sizes_of(rng), **flags(rng, "attention_bias"), "rope_parameters": rope_of(rng, ("linear",))}


def gemma2(rng):
    config = sizes_of(rng)
    return {**config, **windows(rng, config), **flags(rng, "attention_bias"), "query_pre_attn_scalar": rng.choice([16, 256]),
            "attn_logit_softcapping": rng.choice([None, 2.0]), "final_logit_softcapping": rng.choice([None, 3.0])}


def gemma3(rng):
    config = sizes_of(rng)
    both = {"full_attention": rope_of(rng, ("linear",)), "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}
    return {**config, **windows(rng, config), "query_pre_attn_scalar": 256, "final_logit_softcapping": rng.choice([None, 3.0]),
            "rope_parameters": both}


def phi3(rng):
    share = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": rng.choice([0.5, 1.0])}
    return {**sizes_of(rng, head_dim=False), "sliding_window": rng.choice([None, 6]), "rope_parameters": share}


def smollm3(rng):
    config = sizes_of(rng)
    return {**config, **flags(rng, "attention_bias", "mlp_bias"), "rope_parameters": rope_of(rng),
            "no_rope_layers": [rng.randint(0, 1) for _ in range(config["num_hidden_layers"])]}


def starcoder2(rng):
    return {**sizes_of(rng), **flags(rng, "use_bias"), "sliding_window": rng.choice([None, 6]),
            "hidden_act": rng.choice(["gelu_pytorch_tanh", "gelu"]), "residual_dropout": 0.0, "embedding_dropout": 0.0}


def olmo2(rng):
    return {**sizes_of(rng, head_dim=False), **flags(rng, "attention_bias"), "rope_parameters": rope_of(rng)}


def mixtral(rng):
    return {**sizes_of(rng), "num_local_experts": rng.choice([2, 4]), "num_experts_per_tok": rng.choice([1, 2]),
            "sliding_window": rng.choice([None, 6])}


def qwen_moe(rng):
    config = {**sizes_of(rng, head_dim=False), **experts(rng), **flags(rng, "norm_topk_prob"), "decoder_sparse_step": rng.choice([1, 2])}
    dense = [layer for layer in range(config["num_hidden_layers"]) if rng.random() < 0.3]
    return {**config, "mlp_only_layers": dense}


def qwen2_moe(rng):
    return {**qwen_moe(rng), "shared_expert_intermediate_size": rng.choice([24, 40])}


def deepseek(rng):
    config = sizes_of(rng, head_dim=False)
    latent = {"q_lora_rank": rng.choice([None, 24]), "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
              "v_head_dim": rng.choice([8, 12]), "num_key_value_heads": config["num_attention_heads"]}
    return {**config, **latent, **experts(rng, "n_routed_experts", (2, 4)), "n_shared_experts": rng.choice([1, 2]),
            "first_k_dense_replace": rng.choice([0, 1]), "routed_scaling_factor": rng.choice([1.0, 1.5])}


def deepseek_v3(rng):
    groups = rng.choice([{"n_group": 1, "topk_group": 1}, {"n_group": 4, "topk_group": 2}])
    return {**deepseek(rng), **groups, "num_experts_per_tok": 4, "num_mtp_layers": 0, "n_routed_experts": 8}


def deepseek_v2(rng):
    return {**deepseek(rng), "topk_method": "greedy", "n_group": 1, "topk_group": 1}


def glm4_moe(rng):
    return {**sizes_of(rng), **experts(rng, "n_routed_experts", (2, 3)), **flags(rng, "attention_bias", "use_qk_norm"), "head_dim": 16,
            "first_k_dense_replace": rng.choice([0, 1]), "n_shared_experts": rng.choice([1, 2]), "num_mtp_layers": 0}


def gpt_oss(rng):
    config = sizes_of(rng)
    return {**config, **windows(rng, config), "num_local_experts": 4, "num_experts_per_tok": rng.choice([1, 2]), "rope_parameters": YARN}


def llama4(rng):
    config = sizes_of(rng)
    layers = range(config["num_hidden_layers"])
    return {**config, **flags(rng, "attention_bias", "use_qk_norm", "attn_temperature_tuning"), "intermediate_size": 40, "floor_scale": 5,
            "intermediate_size_mlp": 64, "num_local_experts": 4, "moe_layers": [layer for layer in layers if rng.random() < 0.5],
            "attention_chunk_size": rng.choice([None, 12]), "no_rope_layers": [rng.randint(0, 1) for _ in layers],
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}


def olmo3(rng):
    config = sizes_of(rng, head_dim=False)
    both = {"full_attention": rope_of(rng), "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}
    return {**config, **flags(rng, "attention_bias"), **windows(rng, config), "rope_parameters": both}


def olmoe(rng):
    return {**sizes_of(rng, head_dim=False), **flags(rng, "attention_bias", "norm_topk_prob"), "num_experts": rng.choice([4, 8]),
            "num_experts_per_tok": rng.choice([1, 2, 3]), "rope_parameters": rope_of(rng)}


def stablelm(rng):
    config = sizes_of(rng, head_dim=False)
    epsilon = config.pop("rms_norm_eps")
    share = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": rng.choice([0.25, 0.5, 1.0])}
    return {**config, **flags(rng, "use_qkv_bias"), "layer_norm_eps": epsilon, "rope_parameters": share}


def dots1(rng):
    config = {**sizes_of(rng), **windows(rng, sizes_of(rng))}
    config["layer_types"] = types_of(rng, config["num_hidden_layers"])
    return {**config, **flags(rng, "attention_bias"), **experts(rng, "n_routed_experts", (2, 3)), "norm_topk_prob": True,
            "first_k_dense_replace": rng.choice([0, 1]), "n_shared_experts": rng.choice([1, 2]), "routed_scaling_factor": rng.choice([1.0, 2.5])}


def glm4_moe_lite(rng):
    config = {key: value for key, value in deepseek(rng).items() if key != "first_k_dense_replace"}
    return {**config, "mlp_layer_types": [rng.choice(["dense", "sparse"]) for _ in range(config["num_hidden_layers"])]}


def mistral4(rng):
    rope = {**YARN, "factor": rng.choice([2.0, 8.0]), "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.0}
    return {**deepseek(rng), **flags(rng, "norm_topk_prob"), "rope_parameters": rope}


def minimax_m2(rng):
    share = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": rng.choice([0.5, 1.0])}
    return {**sizes_of(rng), "head_dim": 16, "num_local_experts": rng.choice([4, 8]), "num_experts_per_tok": rng.choice([2, 3]),
            "rope_parameters": share}


def granite(rng):
    return {**sizes_of(rng), **flags(rng, "attention_bias", "mlp_bias"), **multipliers(rng), "rope_parameters": rope_of(rng)}


def granitemoe(rng):
    return {**sizes_of(rng), **flags(rng, "attention_bias"), **multipliers(rng), "num_local_experts": rng.choice([4, 8]),
            "num_experts_per_tok": rng.choice([1, 2, 3])}


def multipliers(rng):
    return {"embedding_multiplier": rng.choice([1.0, 12.0]), "residual_multiplier": rng.choice([1.0, 0.22]),
            "attention_multiplier": rng.choice([0.1, 0.25]), "logits_scaling": rng.choice([1.0, 6.0])}


def hunyuan(rng):
    rope = rng.choice([rope_of(rng), {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 10000.0}])
    return {**sizes_of(rng), **flags(rng, "attention_bias"), "rope_parameters": rope}


def exaone4(rng):
    config = sizes_of(rng)
    plain = {"sliding_window": None, "layer_types": ["full_attention"] * config["num_hidden_layers"]}
    return {**config, **rng.choice([plain, windows(rng, config)]), "rope_parameters": rope_of(rng)}


def gpt2(rng):
    return {"n_embd": rng.choice([32, 48]), "n_layer": rng.randint(1, 3), "n_head": rng.choice([2, 4]), "vocab_size": 257,
            "n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.06,
            "activation_function": rng.choice(["gelu_new", "gelu", "relu"]), "n_inner": rng.choice([None, 40])}


KINDS = {"llama": llama, "mistral": mistral, "ministral": ministral, "qwen2": qwen2, "qwen3": qwen3, "nemotron": nemotron, "arcee": arcee,
         "seed_oss": seed_oss, "helium": helium, "glm": glm, "glm4": glm, "ernie4_5": ernie, "gemma": gemma, "gemma2": gemma2,
         "gemma3_text": gemma3, "phi3": phi3, "smollm3": smollm3, "starcoder2": starcoder2, "olmo2": olmo2, "mixtral": mixtral,
         "qwen2_moe": qwen2_moe, "qwen3_moe": qwen_moe, "deepseek_v2": deepseek_v2, "deepseek_v3": deepseek_v3, "glm4_moe": glm4_moe,
         "gpt_oss": gpt_oss, "llama4_text": llama4, "gpt2": gpt2, "olmo3": olmo3, "olmoe": olmoe, "stablelm": stablelm, "dots1": dots1,
         "glm4_moe_lite": glm4_moe_lite, "mistral4": mistral4, "minimax_m2": minimax_m2, "granite": granite, "granitemoe": granitemoe,
         "hunyuan_v1_dense": hunyuan, "exaone4": exaone4}


def case_of(seed, number):
    """A case. Architectures take turns, so that each occurs."""
    rng = random.Random(f"{seed}.{number}")
    kind = list(KINDS)[number % len(KINDS)]
    return kind, KINDS[kind](rng)


def refusal(binaries, folder, work):
    """The message of an import that refuses the model, or None."""
    for words in (("import", "hf", folder, "-o", work / "imported.recipe"), ("ckpt", "import", "hf", folder, work / "weights")):
        done = subprocess.run([str(word) for word in (binaries / "shardc", *words)], capture_output=True, text=True)
        if done.returncode == 0:
            continue
        expect(done.returncode == 1 and any(f"[{one}]" in done.stderr for one in REFUSED), f"{words}: {done.returncode}\n{done.stderr}")
        return next(line for line in done.stderr.splitlines() if "error: " in line)
    return None


def theirs_of(folder):
    """The losses of the steps in transformers."""
    order = dataset.SampleOrder(dataset.documents(), (STEPS + 1) * CASE.global_batch, CASE.seq_length, CASE.data_seed)
    model = loaded(folder, **EAGER).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=hf_training.LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        losses.append(hf_training.step_loss(model, order, step, backward=True))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def check(binaries, work, kind, config):
    """The case in the form that hf_losses.py reads; None if the import refuses it."""
    work.mkdir()
    shapes = hf_training.make(work / "made", kind, config)
    if said := refusal(binaries, work / "made", work):
        print(f"{work.name}: {kind} refused: {said[said.index('error: '):][:200]}", flush=True)
        return None
    settings = CONSTANT_BIAS if kind in ("deepseek_v3", "glm4_moe", "dots1", "glm4_moe_lite", "minimax_m2") else []
    hf_losses.write_recipe(work, GOLDEN, STEPS)
    ours, theirs = hf_losses.losses_of(binaries / "shardc", work, settings, STEPS), theirs_of(work / "made")
    worst = hf_training.apart(ours, theirs)
    print(f"{work.name}: {kind}, {STEPS} losses {worst:.1e} apart", flush=True)
    expect(worst <= TOLERANCE, f"{work.name}: {config}\n{ours}\n{theirs}")
    made = json.loads((work / "made" / "config.json").read_text())
    return {"config": made, "settings": settings, "shapes": shapes, "losses": theirs}


def main():
    options = dict(word[2:].split("=") for word in sys.argv[1:] if word.startswith("--") and "=" in word)
    binaries, *only = [word for word in sys.argv[1:] if not word.startswith("--")]
    binaries, seed, count = pathlib.Path(binaries).resolve(), options.get("seed", "1"), int(options.get("count", "150"))
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    made, number, refused = {}, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for number in map(int, only) if only else range(10 * count):
            if len(made) == count:
                break
            case = check(binaries, pathlib.Path(folder) / str(number), *case_of(seed, number))
            if case:
                made[str(number)] = case
            refused += case is None
            subprocess.run(["rm", "-rf", str(pathlib.Path(folder) / str(number))], check=True)
    if "--record" in sys.argv:
        kept = list(made.items())[:: max(1, len(made) // RECORDED)][:RECORDED]
        hf_training.write_values("hf_random.json", "test/interop/hf_random.py --record", dict(kept))
    print(f"{VERSIONS}: {len(made)} configurations are equal, {refused} were refused")


if __name__ == "__main__":
    main()
