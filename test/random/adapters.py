"""The oracle's rules on adapters: which recipes with adapters the compiler must refuse."""

PATHS = {
    "linear_qkv": "self_attention.linear_qkv self_attn.qkv_proj attn.c_attn", "q": "self_attention.linear_q self_attn.q_proj",
    "k": "self_attention.linear_k self_attn.k_proj", "v": "self_attention.linear_v self_attn.v_proj",
    "latent_q": "self_attention.linear_q_proj self_attn.q_proj", "q_down": "self_attention.linear_q_down_proj self_attn.q_a_proj",
    "q_up": "self_attention.linear_q_up_proj self_attn.q_b_proj",
    "kv_down": "self_attention.linear_kv_down_proj self_attn.kv_a_proj_with_mqa",
    "kv_up": "self_attention.linear_kv_up_proj self_attn.kv_b_proj", "proj": "self_attention.linear_proj self_attn.o_proj",
    "fc1": "mlp.linear_fc1 mlp.gate_up_proj mlp.c_fc", "gate": "mlp.linear_fc1_gate mlp.gate_proj",
    "up": "mlp.linear_fc1_up mlp.up_proj", "fc2": "mlp.linear_fc2 mlp.down_proj",
    "experts.fc1": "mlp.experts.linear_fc1 mlp.experts.gate_up_proj", "experts.fc2": "mlp.experts.linear_fc2 mlp.experts.down_proj",
    "shared.fc1": "mlp.shared_experts.linear_fc1 mlp.shared_experts.gate_up_proj",
    "shared.gate": "mlp.shared_experts.linear_fc1_gate mlp.shared_experts.gate_proj mlp.shared_expert.gate_proj",
    "shared.up": "mlp.shared_experts.linear_fc1_up mlp.shared_experts.up_proj mlp.shared_expert.up_proj",
    "shared.fc2": "mlp.shared_experts.linear_fc2 mlp.shared_experts.down_proj mlp.shared_expert.down_proj",
}
PARTS = {"linear_qkv": "qkv", "fc1": ("gate", "up"), "shared.fc1": ("shared.gate", "shared.up")}
KINDS = "embedding positions head qkv latent projection feed_forward experts shared_experts shared_gate router prediction norm " \
    "qk_norm bias sink adapter_in adapter_out magnitude".split()
ALIASES = {"embed_tokens": "embedding", "word_embeddings": "embedding", "wte": "embedding", "lm_head": "head", "output_layer": "head"}


def is_gated(f):
    return f.on("model.gated_linear_unit")


def layers_of(f):
    """The model's linear layers, and the parts of each."""
    if f.on("model.multi_latent_attention"):
        low = ["q_down", "q_up"] if f.has("model.q_lora_rank") else ["latent_q"]
        found = [*low, "kv_down", "kv_up", "proj"]
    else:
        found = ["linear_qkv", *"qkv", "proj"]
    gate = is_gated(f)
    experts = f.has("model.num_moe_experts")
    if not experts or f["model.moe_layer_freq"]:
        found += ["fc1", *(["gate", "up"] if gate else []), "fc2"]
    if experts:
        found += ["experts.fc1", "experts.fc2"]
        if f.has("model.moe_shared_expert_intermediate_size"):
            found += ["shared.fc1", *(["shared.gate", "shared.up"] if gate else []), "shared.fc2"]
    return found


def names(layer, entry):
    """Whether an entry without a wildcard names the layer."""
    return any(f".{path}".endswith(f".{entry}") for path in PATHS[layer].split())


def chosen(f):
    """The layers that get adapters; None if an entry matches no layer."""
    there = layers_of(f)
    if not f.has("peft.targets"):
        return [each for each in there if each in ("linear_qkv", "latent_q", "q_down", "q_up", "kv_down", "kv_up", "proj", "fc1", "fc2",
                                                   "experts.fc1", "experts.fc2", "shared.fc1", "shared.fc2")]
    found = set()
    for entry in f["peft.targets"]:
        if entry == "all-linear":
            found |= {each for each in there if not each.startswith("experts.") and
                      not (each in PARTS and PARTS[each][0] in there)}
            continue
        named = {each for each in there if names(each, entry)}
        if not named:
            return []
        found |= named
    if any(whole in found and found & set(parts) for whole, parts in PARTS.items()):
        return []
    return sorted(found)


def has(f):
    return f.has("peft.scheme")


def saved_is_wrong(f):
    words = [ALIASES.get(each, each) for each in f["peft.modules_to_save"] or []]
    tied = f.on("model.share_embeddings_and_output_weights")
    return any(each not in KINDS or (each == "head" and tied) for each in words)


def is_rehearsal(f):
    return f["dataset.kind"] == "synthetic" or f["cluster.gpu"] == "host"


def rows_of_blocks(f):
    """The numbers of elements in a row on each rank, for weights that are stored in 4 bits."""
    latent, experts = f.on("model.multi_latent_attention"), f.has("model.num_moe_experts")
    heads, ranks = f.num("model.num_attention_heads", 1), f.tp
    parts = [heads * f.num("model.v_head_dim" if latent else "model.kv_channels", 1)]
    if not experts or f["model.moe_layer_freq"]:
        parts.append(f.num("model.ffn_hidden_size", 4 * f.num("model.hidden_size", 1)))
    if experts and f.has("model.moe_shared_expert_intermediate_size"):
        parts.append(f["model.moe_shared_expert_intermediate_size"])
    whole = [f.num("model.hidden_size", 1)]
    whole += [f["model.kv_lora_rank"]] * latent + [f["model.q_lora_rank"]] * (latent and f.has("model.q_lora_rank"))
    return whole + [part // ranks if part % ranks == 0 else 0 for part in parts]


RULES = {
    "peft-without-scheme": lambda f: not has(f) and any(
        f.has(path) and f.is_written(path) for path in f.value if path.startswith("peft.")),
    "peft-needs-checkpoint": lambda f: has(f) and not f.has("checkpoint.pretrained_checkpoint") and not is_rehearsal(f),  # V24
    "peft-targets": lambda f: has(f) and f.has("model.num_layers") and not chosen(f),
    "peft-modules-to-save": lambda f: has(f) and saved_is_wrong(f),
    "peft-freeze": lambda f: has(f) and f.has("model.freeze"),
    "peft-init": lambda f: has(f) and f["peft.init"] not in ("xavier", "normal"),
    "peft-dora": lambda f: f["peft.scheme"] == "dora" and any(each.startswith("experts.") for each in chosen(f)),
    "peft-fp8": lambda f: has(f) and f.has("peft.quantize") and f.has("model.fp8"),
    "peft-fp8-gather": lambda f: has(f) and f.has("model.fp8") and f.on("ddp.fp8_param_gather"),
    "peft-dropout": lambda f: has(f) and f["peft.dropout"] > 0 and (f["peft.scheme"] == "dora" or any(
        each.startswith("experts.") or (f.tp > 1 and each.split(".")[-1] in ("proj", "fc2")) for each in chosen(f))),
    "peft-quantize": lambda f: has(f) and f.has("peft.quantize") and f.has("model.num_layers") and any(
        row == 0 or row % 64 for row in rows_of_blocks(f)),
    "peft-key-groups": lambda f: has(f) and f.tp > f["model.num_query_groups"] and bool({*"qkv"} & set(chosen(f))),
}
