#!/usr/bin/env python3
"""Imports every recipe function of a checkout of Megatron-Bridge, does what the import says, and checks the result.

    bridge_trial.py CHECKOUT [-o FOLDER] [--only PATTERN]

A function is imported from its file, with `shardc import bridge-python --run FILE:FUNCTION`. The import's recipe then
overlays one with the model that the import asks for, and with the GPUs in the function's name, and the paths of data
that it asks for are set. FOLDER receives the recipes and what was said. Prints how many functions had each outcome.
"""

import argparse
import ast
import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# Models by their names at Hugging Face: a recipe of this project, one and changes to it, or family, layers, width, heads, groups and
# feed-forward width.
MODELS = {
    "deepseek-ai/DeepSeek-V2-Lite": ("deepseek/deepseek_v2", {
        "num_layers": 27, "hidden_size": 2048, "num_attention_heads": 16, "ffn_hidden_size": 10944, "moe_ffn_hidden_size": 1408, "num_moe_experts": 64,
        "moe_shared_expert_intermediate_size": 2816, "moe_layer_freq": [0] + 26 * [1], "q_lora_rank": "none", "moe_router_num_groups": "none",
        "moe_router_group_topk": "none", "moe_router_topk_scaling_factor": 1.0}),
    "moonshotai/Kimi-K2-Instruct": ("deepseek/deepseek_v3", {
        "num_attention_heads": 64, "num_moe_experts": 384, "moe_layer_freq": [0] + 60 * [1], "vocab_size": 163840, "mtp_num_layers": "none",
        "moe_router_num_groups": "none", "moe_router_group_topk": "none", "moe_router_topk_scaling_factor": 2.827}),
    "deepseek-ai/DeepSeek-V2": "deepseek/deepseek_v2", "deepseek-ai/DeepSeek-V3": "deepseek/deepseek_v3",
    "moonshotai/Moonlight-16B-A3B": "deepseek/moonlight_16b_a3b", "google/gemma-2-2b": "gemma2/gemma2_2b", "google/gemma-2-9b": "gemma2/gemma2_9b",
    "google/gemma-2-27b": "gemma2/gemma2_27b", "google/gemma-3-1b-pt": "gemma3/gemma3_1b", "google/gemma-3-4b-it": "gemma3/gemma3_4b",
    "google/gemma-3-12b-it": "gemma3/gemma3_12b", "google/gemma-3-27b-it": "gemma3/gemma3_27b", "zai-org/GLM-4.5": "glm45/glm45_355b_a32b",
    "zai-org/GLM-4.5-Air": "glm45/glm45_air_106b_a12b", "openai/gpt-oss-20b": "gpt_oss/gpt_oss_20b", "openai/gpt-oss-120b": "gpt_oss/gpt_oss_120b",
    "meta-llama/Llama-2-7b-hf": "llama2/llama2_7b", "meta-llama/Meta-Llama-3-8B": "llama3/llama3_8b", "meta-llama/Meta-Llama-3-70B": "llama3/llama3_70b",
    "meta-llama/Meta-Llama-3.1-8B": "llama3/llama31_8b", "meta-llama/Meta-Llama-3.1-70B": "llama3/llama31_70b",
    "meta-llama/Meta-Llama-3.1-405B": "llama3/llama31_405b", "meta-llama/Llama-3.2-1B": ("llama", 16, 2048, 32, 8, 8192),
    "meta-llama/Llama-3.2-3B": ("llama", 28, 3072, 24, 8, 8192), "Qwen/Qwen2-0.5B": ("qwen2", 24, 896, 14, 2, 4864),
    "Qwen/Qwen2-1.5B": ("qwen2", 28, 1536, 12, 2, 8960), "Qwen/Qwen2-7B": ("qwen2", 28, 3584, 28, 4, 18944),
    "Qwen/Qwen2-72B": ("qwen2", 80, 8192, 64, 8, 29568), "Qwen/Qwen2.5-0.5B": ("qwen2", 24, 896, 14, 2, 4864),
    "Qwen/Qwen2.5-1.5B": ("qwen2", 28, 1536, 12, 2, 8960), "Qwen/Qwen2.5-7B": ("qwen2", 28, 3584, 28, 4, 18944),
    "Qwen/Qwen2.5-14B": ("qwen2", 48, 5120, 40, 8, 13824), "Qwen/Qwen2.5-32B": ("qwen2", 64, 5120, 40, 8, 27648),
    "Qwen/Qwen2.5-72B": ("qwen2", 80, 8192, 64, 8, 29568), "Qwen/Qwen3-0.6B": ("qwen3", 28, 1024, 16, 8, 3072),
    "Qwen/Qwen3-1.7B": ("qwen3", 28, 2048, 16, 8, 6144), "Qwen/Qwen3-4B": ("qwen3", 36, 2560, 32, 8, 9728), "Qwen/Qwen3-8B": "qwen3/qwen3_8b",
    "Qwen/Qwen3-14B": ("qwen3", 40, 5120, 40, 8, 17408), "Qwen/Qwen3-32B": "qwen3/qwen3_32b", "Qwen/Qwen3-30B-A3B": "qwen3_moe/qwen3_30b_a3b",
    "Qwen/Qwen3-235B-A22B": "qwen3_moe/qwen3_235b_a22b", "mistralai/Ministral-3-3B-Instruct-2512": ("mistral", 26, 3072, 32, 8, 9216),
    "mistralai/Ministral-3-8B-Instruct-2512": ("mistral", 34, 4096, 32, 8, 14336), "mistralai/Ministral-3-14B-Instruct-2512": ("mistral", 40, 5120, 32, 8, 16384),
}
PATHS = ("dataset.data_path", "dataset.train_data_path", "dataset.valid_data_path", "checkpoint.pretrained_checkpoint")


def settings_of(recipe):
    """The family and the settings of the model in a recipe of this project, without those of parallelism and memory."""
    text = recipe.read_text()
    below = re.search(r'extends "(.*?)"', text)
    family, settings = settings_of(recipe.parent / below[1]) if below else ("", {})
    if block := re.search(r"^  model (\w*) ?\{([^}]*)\}", text, re.M):
        family = block[1] or family
        settings.update(one for one in re.findall(r"(\w+) = (\[[^]]*\]|\S+)", block[2]) if not re.search("parallel|recompute", one[0]))
    return family, settings


def model_block(name):
    """The section of a model in a recipe; none if it is not known."""
    model = MODELS.get(name)
    if model is None:
        return None
    if isinstance(model, str):
        model = model, {}
    if len(model) == 2:
        recipe, changes = model
        family, settings = settings_of(SOURCE / "recipes" / f"{recipe}.recipe")
        settings.update(changes)
        return f"  model {family} {{ {' '.join(f'{key} = {value}' for key, value in settings.items())} }}"
    family, layers, hidden, heads, groups, width = model
    return (f"  model {family} {{ num_layers = {layers} hidden_size = {hidden} num_attention_heads = {heads} num_query_groups = {groups} "
            f"ffn_hidden_size = {width} seq_length = 4096 vocab_size = 151936 }}")


def functions_of(checkout):
    folder = checkout / "src/megatron/bridge/recipes"
    for file in sorted(folder.rglob("*.py")):
        for node in ast.parse(file.read_text()).body if "utils" not in file.parts else ():
            if isinstance(node, ast.FunctionDef) and re.fullmatch(r"[a-z]\w*_(pretrain|sft|peft)_\w*config", node.name):
                yield file, node.name


def outcome_of(file, function, folder):
    """What becomes of a function, and the message if it is refused."""
    recipe, base = folder / f"{function}.recipe", folder / f"{function}.base.recipe"
    command = ["shardc", "import", "bridge-python", f"{file}:{function}", "--run", "-o", str(recipe)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said, kind = done.stderr, re.search("_(pretrain|sft|peft)_", function)[1]
    if done.returncode == 0:
        text = recipe.read_text()
        asked = dict(re.findall(r"^//   ([\w.]+): (.*)$", text.partition("Left out")[0], re.M))
        hub = re.search(r"from_hf_pretrained\('(.*?)'", asked.get("model.num_layers", "") + asked.get("model", ""))
        block = model_block(hub[1]) if hub else ""
        if not block and asked.keys() & {"model", "model.num_layers"}:
            return kind, "the import asks for the model: " + (hub[1] if hub else asked.get("model") or asked["model.num_layers"]), said
        gpu = "b200" if re.search("gb[23]00|fp8mx|fp4", function) else "h100"
        gpus = int((re.search(r"_(\d+)gpu_", function) or (0, 8))[1])
        base.write_text(f"recipe base {{\n{block}\n  cluster {{ gpu = {gpu} nodes = {max(gpus // 8, 1)} gpus_per_node = {min(gpus, 8)} }}\n}}\n")
        sets = [f"--set={path}={path.partition('.')[2]}" for path in PATHS if path in asked]
        if "model.vocab_size" in asked and not block:
            sets.append("--set=model.vocab_size=128000")
        done = subprocess.run(["shardc", "check", str(base), "--overlay", str(recipe), *sets], capture_output=True, text=True, check=False)
        said += done.stderr
        if done.returncode == 0:
            return kind, "accepted", said
        found = re.search(r"error: .*(?<!is)\[([a-z0-9-]+)\]$", done.stderr, re.M)
        return kind, f"check refuses: {found[1] if found else done.stderr[-300:]}", said
    found = re.search(r"error: (.*\[([a-z-]+)\])", said)
    foreign = re.search(r"is for models of (.*), which recipes do not have|model has (layers of several kinds)", said)
    return kind, f"import refuses: {'models of ' + (foreign[1] or foreign[2]) if foreign else found[1] if found else said[-300:]}", said


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    folder = options.output or pathlib.Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    functions = [one for one in functions_of(options.checkout) if re.search(options.only, one[1])]
    counts = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (_, function), (kind, outcome, said) in zip(functions, pool.map(lambda one: outcome_of(*one, folder), functions)):
            (folder / f"{function}.said").write_text(said)
            counts[kind, outcome] += 1
    for (kind, outcome), count in sorted(counts.items(), key=lambda one: (one[0][0], -one[1])):
        print(f"{count:4} {kind:9}{outcome}")


if __name__ == "__main__":
    main()
