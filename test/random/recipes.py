"""Random recipes over all options. docs/options.md tells the values of each option, and this file lists those to draw
often.

    draw(seed) -> Recipe: the text, and what it sets, with the ids of the faults that were put in on purpose
"""

import os
import random
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def parse_value(text, kind):
    """The Python value of a default, or of a cell in a family's row."""
    text = text.strip()
    if kind in ("strings", "ints", "floats", "enums"):
        inner = text.strip("[]").strip()
        return [parse_value(part, kind[:-1]) for part in inner.split(",")] if inner else []
    if text in ("true", "false"):
        return text == "true"
    if text == "none" and kind != "enum":
        return None
    if kind in ("int", "size", "duration"):
        return int(text.replace("_", "")) if re.fullmatch(r"-?[\d_]+", text) else text
    if kind == "float":
        return float(text)
    return text


# The value that plans have of an option while it is unset, as text.
with open(os.path.join(ROOT, "runtime", "plan", "Job.def"), encoding="utf-8") as fields:
    UNSET = {section + "." + (name or re.sub("[A-Z]", lambda upper: "_" + upper.group().lower(), member)): value
             for section, member, value, name in
             re.findall(r'JOB_UNSET\((\w+), \w+, (\w+),\s*([\d.]+),\s*\w+(?:\([^)]*\))?(?:,\s*"([\w.]+)")?\)', fields.read())}


class Option:
    def __init__(self, path, takes, default, status, effect=""):
        self.path, self.takes, self.status = path, takes, status
        self.unset = UNSET.get(path)
        needs = re.match(r"only with ([^;]*)", effect)
        # Lists of settings; it needs one of each.
        self.needs = [re.findall(r"'([^']*)'", part) for part in needs.group(1).split(", and ")] if needs else []
        seen = re.search(r"shows only ([^;]*)", effect)
        self.seen = seen.group(1) if seen else ""  # where its effect shows, if not in any run
        head, _, self.limit = takes.partition("; ")
        self.words = re.findall(r"'([^']*)'", head)
        self.kind = next(kind for start, kind in [
            ("true or false", "bool"), ("an integer", "int"), ("a number", "float"), ("a string", "string"),
            ("one of", "enum"), ("a list of integers", "ints"), ("a list of numbers", "floats"),
            ("a list of strings", "strings"), ("a list of", "enums"), ("a size", "size"), ("a duration", "duration"),
            ("paths", "strings"), ("", "string")] if head.startswith(start))
        self.default = None if default == "-" else parse_value(default, self.kind)

    def bounds(self):
        limit = self.limit
        if limit.startswith("at least"):
            return float(limit.split()[-1]), None
        match = re.match(r"from (\S+) to (below )?(\S+)", limit)
        if match:
            high = float(match.group(3))
            return float(match.group(1)), high - 0.01 if match.group(2) else high
        return (0.001, None) if limit.startswith("above 0") else (None, None)


def read_tables():
    """The options by path, and the options that each model family sets."""
    options, families, part, section = {}, {}, None, None
    with open(os.path.join(ROOT, "docs", "options.md"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("## "):
                part = section = line[3:].strip()
            if line.startswith("### "):
                section = line[4:].strip()
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
            if not line.startswith("| `"):
                continue
            name = cells[1].strip("`")
            if section == "Model families":
                families[name] = re.findall(r"`(\w+) = ([^`]*)`", cells[2])
            elif section != "Other names":
                kind = name == section and section in ("model", "mixed_precision")  # the section's own word
                path = name if kind else f"{section}.{name}"
                options[path] = Option(path, cells[2], cells[3], part, cells[6])
    return options, families


OPTIONS, FAMILIES = read_tables()

SIZES = [1, 1, 1, 2, 2, 3, 4]
# Values on which rules depend. Other options are drawn by type alone.
DOMAINS = {
    "model": ["gpt", "gpt", "gpt", "llama", "llama", "qwen3", "nemotron", "phi3", "glm4", "olmo2", "gemma2",
              "gemma3", "llama4", "starcoder2", "smollm3", "olmo3", "stablelm", "granite", "hunyuan", "exaone4", "lfm2"],
    "model.num_layers": [1, 2, 3, 4], "model.hidden_size": [32, 48, 64, 66], "model.num_attention_heads": [2, 4, 6],
    "model.num_query_groups": [1, 2, 3, 4], "model.kv_channels": [7, 8, 16], "model.ffn_hidden_size": [64, 66, 96],
    "model.attention_chunk_size": [5, 8, 16], "model.no_rope_freq": [[1], [2], [0, 1], [2, 0]],
    "model.short_conv_freq": [[1], [2], [3], [0, 1], [1, 1], [2, 0]], "model.short_conv_kernel_dim": [1, 3, 4, 9],
    "model.hybrid_layer_pattern": ["M", "M-", "M*-", "*E", "MM-*", "M|*", "-G"], "model.mamba_num_groups": [1, 2, 3, 4],
    "model.mamba_num_heads": [2, 4, 6], "model.mamba_head_dim": [4, 8], "model.mamba_state_dim": [4, 8],
    "model.linear_attention_freq": [[1], [2], [0, 1], [1, 1], [2, 0]], "model.linear_conv_kernel_dim": [1, 3, 4, 9],
    "model.linear_num_key_heads": [1, 2, 3, 4], "model.linear_num_value_heads": [2, 4, 6, 8],
    "model.linear_key_head_dim": [4, 7, 8], "model.linear_value_head_dim": [4, 8, 12],
    "model.window_attn_skip_freq": [[1], [2], [3], [1, 0], [1, 0, 1], [0]],
    "model.seq_length": [16, 32, 48, 30], "model.max_position_embeddings": [16, 32, 64],
    "model.vocab_size": [100, 128, 257, 1000], "model.tensor_model_parallel_size": SIZES,
    "model.pipeline_model_parallel_size": SIZES, "model.context_parallel_size": SIZES,
    "model.expert_model_parallel_size": SIZES, "model.expert_tensor_parallel_size": [1, 2],
    "model.pipeline_placement": ["looped", "v", "0,1", "0, 1,1,0", "0,0", "1;0"],
    "model.virtual_pipeline_model_parallel_size": [1, 2], "model.microbatch_group_size_per_vp_stage": [1, 2, 4],
    "model.num_layers_in_first_pipeline_stage": [1, 2],
    "model.num_layers_in_last_pipeline_stage": [1, 2], "model.num_moe_experts": [2, 3, 4],
    "model.moe_router_num_groups": [1, 2, 3], "model.moe_router_group_topk": [1, 2, 4],
    "model.moe_router_topk": [1, 2, 3, 8], "model.moe_ffn_hidden_size": [32, 33],
    "model.moe_shared_expert_intermediate_size": [32, 33], "model.cpu_offloading_num_layers": [0, 1, 2, 9],
    "model.recompute_num_layers": [1, 2, 9], "model.mtp_num_layers": [1, 2], "cluster.nodes": [1, 2, 3],
    "model.loss_chunk_rows": [8, 16, 20, 64],
    "cluster.gpus_per_node": [1, 2, 4, 6], "train.micro_batch_size": [1, 2, 3],
    "train.global_batch_size": [1, 2, 4, 6, 8, 12], "train.train_iters": [1, 2, 10], "train.train_samples": [8, 100],
    "train.rampup_batch_size": [[2, 2, 16], [1, 1, 20], [4, 4, 8], [2, 3, 40], [2], [8, 4, 0]],
    "train.step_batch_size_schedule": ["0:2 64:4", "0:4, 0.1K:2 1B:8", "0:1", "64:2", "0:2 1:4", "0:2 4"],
    "train.num_epochs": [1], "ddp.num_distributed_optimizer_instances": [1, 2, 2, 4], "ddp.num_buckets": [0, 1, 4],
    "ddp.megatron_fsdp_version": [1, 1, 1, 2, 3], "scheduler.lr_warmup_iters": [0, 1, 5, 20],
    "scheduler.lr_decay_iters": [5, 10], "scheduler.max_steps": [1, 10, 100],
    "scheduler.lr_warmup_fraction": [0.0, 0.1], "scheduler.lr_warmup_samples": [0, 4],
    "scheduler.lr_decay_samples": [10, 100], "scheduler.lr_wsd_decay_iters": [1, 2],
    "scheduler.lr_wsd_decay_samples": [1, 2], "optimizer.lr": [1e-3, 1e-4], "optimizer.min_lr": [0.0, 1e-5, 1e-2],
    "optimizer.clip_grad": [0.0, 1.0], "validation.eval_global_batch_size": [2, 4, 6],
    "validation.eval_micro_batch_size": [1, 2, 3], "dist.eval_context_parallel_size": [1, 2],
    "dataset.seq_length": [16, 32, 1024], "dataset.eod_token": [0, 3], "checkpoint.ckpt_step": [0, 5],
    "env.CUDA_DEVICE_MAX_CONNECTIONS": ["1", "8", "32"], "env.NVTE_CPU_OFFLOAD_V1": ["0", "1"],
    "env.PYTORCH_CUDA_ALLOC_CONF": ["expandable_segments:True", "max_split_size_mb:64"],
    "env.NCCL_ALGO": ["Ring", "Tree", "NVLS", "^NVLS"], "model.rotary_percent": [0.5, 1.0, 0.1],
    "model.hierarchical_context_parallel_sizes": [[1, 2], [2, 2], [2, 1]],
    "dist.high_priority_stream_groups": [[], ["dp_cp"]],
    "ddp.param_name_patterns_for_fp32_local_accumulation": [[], ["router"]],
    "dataset.data_path": [["a.txt"], ["a_text_document"]], "dataset.blend": [["a.txt"], [0.5, "a", 0.5, "b"]],
    "dataset.train_data_path": [["a.txt"]], "model.tensor_parallel_num_weight_shards": [1, 2],
    "model.expert_tensor_parallel_num_weight_shards": [1, 2], "cluster.gpu": ["h100", "a100", "b200", "host", "h200"],
    "dataset.split": ["969,30,1", "1,0,0"], "model.cp_comm_type": [["p2p"], ["a2a+p2p"]], "cluster.memory": ["80GiB"],
    "model.qk_head_dim": [4, 8, 12], "model.qk_pos_emb_head_dim": [2, 4, 8, 5], "model.v_head_dim": [4, 8, 10],
    "model.q_lora_rank": [8, 12], "model.kv_lora_rank": [8, 12], "model.yarn_rotary_scaling_factor": [1.0, 4.0, 32.0],
    "model.rotary_scaling_factor": [1.0, 4.0, 40.0], "model.seq_len_interpolation_factor": [0.5, 2.0],
    "model.recompute_modules": [["core_attn"], ["moe_act"], ["mla_up_proj", "moe"], ["shared_experts"]],
    "peft.targets": [["linear_qkv"], ["q_proj", "v_proj"], ["all-linear"], ["linear_fc1", "up_proj"], ["linear_proj", "linear_fc2"]],
    "peft.exclude": [[]],
    "peft.modules_to_save": [["embed_tokens"], ["lm_head"], ["norm"], ["wq"]],
    "model.freeze": [["embedding"], ["layers.0"], ["layers.0-1.norm", "head"], ["layers", "qkv"], ["layers.7"], ["base"], ["mtp", "base.norm"]],
    "model.recompute_layers": [["full", "none"], ["2*core_attn+mlp"], ["2*full", "moe"], ["4*none"], ["two*full"]],
}
# Options that are drawn more often, since most rules are about them.
RULED = sorted(set(DOMAINS) | {
    path for path, option in OPTIONS.items() if option.kind in ("bool", "enum") and path.split(".")[0] in
    ("dist", "ddp", "checkpoint", "optimizer", "mixed_precision") or path in (
        "model.sequence_parallel", "model.recompute_granularity", "model.recompute_method", "model.cuda_graph_impl",
        "model.cpu_offloading", "model.fine_grained_activation_offloading", "model.transformer_impl", "model.fp8",
        "model.deterministic_mode", "model.cross_entropy_loss_fusion", "model.gradient_accumulation_fusion",
        "model.overlap_moe_expert_parallel_comm", "model.delay_wgrad_compute", "model.hybrid_context_parallel",
        "model.moe_token_dispatcher_type", "model.bf16", "model.fp16", "model.calculate_per_token_loss",
        "model.init_model_with_meta_device", "model.share_embeddings_and_output_weights", "dataset.kind",
        "model.overlap_dispatch_backward_with_experts_wgrad", "model.restore_modelopt_state", "dataset.tokenizer",
        "model.defer_embedding_wgrad_compute", "model.moe_paged_stash", "model.should_pad_vocab", "dataset.blend",
        "model.position_embedding_type", "rerun_state_machine.check_for_nan_in_loss", "scheduler.lr_decay_style",
        "model.fp4", "model.fp8_recipe", "model.tp_comm_overlap", "rng.data_parallel_random_init",
        "dataset.dataloader_type", "model.moe_single_grouped_weight", "model.cross_entropy_fusion_impl")})
CONTEXTS = [
    ("dist.use_megatron_fsdp", True, 0.45), ("ddp.use_megatron_fsdp", True, 0.12), ("dist.use_torch_fsdp2", True, 0.1),
    ("ddp.use_distributed_optimizer", True, 0.15), ("mixed_precision", "bf16_mixed", 0.3),
    ("model.num_moe_experts", 4, 0.12), ("cluster.gpu", "h100", 0.15), ("cluster.gpus_per_node", 4, 0.2)]
PRESETS = ["bf16_mixed", "bf16_mixed", "fp16_mixed", "bf16_with_fp8_delayed_scaling_mixed", "bf16_with_mxfp8_mixed",
           "bf16_with_fp8_current_scaling_mixed", "bf16_with_fp8_subchannel_scaling_mixed", "bf16_with_nvfp4_mixed"]
# Not drawn: paths of data that do not exist, and words that make sense only for a certain path.
NEVER = {"model.pipeline_model_parallel_layout", "model.pipeline_schedule_csv", "cluster.rates"}


def value_of(option, random_):
    """A value that the option accepts."""
    if option.path == "mixed_precision":
        return random_.choice(PRESETS)
    if option.path in DOMAINS:
        return random_.choice(DOMAINS[option.path])
    low, high = option.bounds()
    if option.kind == "bool":
        return random_.random() < 0.5
    if option.kind == "int":
        return random_.randint(int(low or 0), int(high if high is not None else (low or 0) + 3))
    if option.kind == "float":
        return round(random_.uniform(low or 0, high if high is not None else 2), 3) or (low or 0)
    if option.kind == "enum":
        return random_.choice(option.words)
    if option.kind == "enums":
        return [random_.choice(option.words)]
    if option.kind == "ints":
        return [random_.randint(1, 3) for _ in range(2)]
    if option.kind == "floats":
        return [0.5]
    if option.kind == "strings":
        return ["a", "b"]
    return {"size": "80GiB", "duration": 5}.get(option.kind, "text")


def write(option, value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(write(option, item) for item in value) + "]"
    if isinstance(value, str) and option.kind != "size":
        return f'"{value}"'
    return str(value)


class Recipe:
    def __init__(self):
        self.written = {}   # path: value
        self.faults = set()  # ids of messages about values that an option does not accept
        self.text = ""


def fault(option, random_):
    """A value that the option does not accept, and the id of the message about it."""
    low, high = option.bounds()
    if option.kind == "enum":
        return '"no_such_word"', {"unknown-enumerator"}
    if option.kind in ("int", "float") and low is not None:
        return str(int(low) - 2), {"value-out-of-range"}
    if option.kind in ("int", "float") and high is not None:
        return str(int(high) + 2), {"value-out-of-range"}
    if option.kind in ("bool", "int", "float", "ints", "floats"):
        return '"text"', {"wrong-type"}
    return None, set()


def draw(seed):
    random_ = random.Random(seed)
    out = Recipe()
    for path, value, chance in CONTEXTS:
        if random_.random() < chance:
            out.written[path] = value
    if random_.random() < 0.4:
        for path in ("model.num_layers", "model.hidden_size", "model.num_attention_heads"):
            out.written[path] = random_.choice(DOMAINS[path][:2] if random_.random() < 0.8 else DOMAINS[path])
    everything = sorted(set(OPTIONS) - NEVER)
    for pool, most in ((RULED, 7), (everything, 4)):
        for _ in range(random_.randint(0, most)):
            path = random_.choice(pool)
            out.written[path] = value_of(OPTIONS[path], random_)
    lines = [f"  {path} = {write(OPTIONS[path], value)}" for path, value in out.written.items()]
    if random_.random() < 0.08:
        path = random_.choice(sorted(set(everything) - set(out.written)))
        text, ids = fault(OPTIONS[path], random_)
        if text:
            lines.append(f"  {path} = {text}")
            out.faults |= ids
    if random_.random() < 0.04:
        lines.append("  train.no_such_option_at_all = 1")
        out.faults.add("unknown-option")
    random_.shuffle(lines)
    out.text = "recipe r%d {\n%s\n}\n" % (seed, "\n".join(lines))
    return out
