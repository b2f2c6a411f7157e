"""Models of the package transformers, whose parameters have Megatron-Core's names and layouts.

Parameters are cut and renamed by differentiable steps, so gradients come back under the same names.
"""

import functools

import torch
import torch.nn.functional as F
from torch.func import functional_call


def layer_types(case):
    return [
        "sliding_attention" if case.has_window(layer) else "full_attention"
        for layer in range(case.num_layers)
    ]


def latent_sizes(case):
    return {
        "q_lora_rank": case.query_rank or None,
        "kv_lora_rank": case.key_rank,
        "qk_nope_head_dim": case.plain,
        "qk_rope_head_dim": case.rotated,
        "v_head_dim": case.values,
        "first_k_dense_replace": case.num_layers,  # no experts
    }


def llama4_fields(case):
    return {
        "intermediate_size": case.ffn,
        "intermediate_size_mlp": case.dense_ffn,
        "num_local_experts": case.experts,
        "num_experts_per_tok": case.topk,
        "moe_layers": [i for i in range(case.num_layers) if case.has_experts(i)],
        "no_rope_layers": [int(case.is_rotated(i)) for i in range(case.num_layers)],
        "attention_chunk_size": case.chunk,
        "floor_scale": case.temperature[0],
        "attn_scale": case.temperature[1],
    }


def gemma_fields(case):
    return {
        "hidden_activation": case.activation,
        "layer_types": layer_types(case),
        "query_pre_attn_scalar": case.score_size,
        "attn_logit_softcapping": case.caps[0],
        "final_logit_softcapping": case.caps[1],
        "pad_token_id": None,  # or its embedding would not be trained
    }


def rotations(case, of_all):
    """Rotary parameters of each kind of layer."""
    of_windows = {"rope_type": "default", "rope_theta": case.window_base}
    return {"full_attention": of_all, "sliding_attention": of_windows}


@functools.cache
def module_of(case, dtype):
    """The model without values: each call provides some."""
    return new_module(case, dtype, "eager" if case.sinks or case.gemma else "sdpa")


def new_module(case, dtype, attention):
    import transformers

    common = {
        "vocab_size": case.padded_vocab,
        "hidden_size": case.hidden,
        "intermediate_size": case.ffn,
        "num_hidden_layers": case.num_layers,
        "num_attention_heads": case.heads,
        "num_key_value_heads": case.groups,
        "head_dim": case.rotated if case.latent else case.head,
        "max_position_embeddings": case.seq_length,
        "hidden_act": case.activation,
        "tie_word_embeddings": case.tied,
        "attention_dropout": 0.0,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": case.rotary_base,
            "partial_rotary_factor": case.rotary_share,
            **dict(case.rope),
        },
        "use_cache": False,
        "attn_implementation": attention,
        "experts_implementation": "eager",  # supports fp64
    }
    epsilon = {"rms_norm_eps": case.eps}
    # In transformers, a window includes the token itself.
    window = {"sliding_window": case.window + 1 if case.window >= 0 else None}
    kinds = {
        "llama": ("Llama", epsilon),
        "mistral": ("Mistral", {**epsilon, **window}),
        "qwen3": (
            "Qwen3",
            {
                **epsilon,
                **window,
                "use_sliding_window": case.window >= 0,
                "layer_types": layer_types(case),
            },
        ),
        "nemotron": ("Nemotron", {"norm_eps": case.eps}),
        "mixtral": (
            "Mixtral",
            {
                **epsilon,
                **window,
                "num_local_experts": case.experts,
                "num_experts_per_tok": case.topk,
            },
        ),
        "qwen3_moe": (
            "Qwen3Moe",
            {
                **epsilon,
                "moe_intermediate_size": case.ffn,
                "num_experts": case.experts,
                "num_experts_per_tok": case.topk,
                "norm_topk_prob": True,
            },
        ),
        "qwen2_moe": (
            "Qwen2Moe",
            {
                **epsilon,
                "moe_intermediate_size": case.ffn,
                "shared_expert_intermediate_size": case.shared,
                "num_experts": case.experts,
                "num_experts_per_tok": case.topk,
                "norm_topk_prob": False,
            },
        ),
        "llama4": ("Llama4Text", {**epsilon, **(llama4_fields(case) if case.temperature else {})}),
        "gpt_oss": (
            "GptOss",
            {
                **epsilon,
                **window,
                "layer_types": layer_types(case),
                "num_local_experts": case.experts or 1,  # one is a dense layer
                "num_experts_per_tok": case.topk if case.experts else 1,
                "swiglu_limit": case.clamp,
            },
        ),
        "gemma2": ("Gemma2", {**epsilon, **window, **gemma_fields(case)}),
        "gemma3": (
            "Gemma3Text",
            {**epsilon, **window, **gemma_fields(case), "rope_parameters": rotations(case, common["rope_parameters"])},
        ),
        "lfm2": (
            "Lfm2",
            {
                "norm_eps": case.eps,
                "layer_types": ["conv" if i in case.convs else "full_attention" for i in range(case.num_layers)],
                "conv_L_cache": case.taps,
                "block_auto_adjust_ff_dim": False,
                "pad_token_id": None,  # or its embedding would not be trained
            },
        ),
        "deepseek_v2": ("DeepseekV2", {**epsilon, **latent_sizes(case)}),
        "deepseek_v3": ("DeepseekV3", {**epsilon, **latent_sizes(case)}),
    }
    name, special = kinds[case.module]
    config = getattr(transformers, f"{name}Config")(**{**common, **special})
    name = name.removesuffix("Text")
    module = getattr(transformers, f"{name}ForCausalLM")(config).to(dtype).train()
    if case.adapters:
        return with_adapters(case, module, dtype)
    if case.module == "llama4":
        return module
    if case.experts and not case.has_bias and dtype == torch.float64:
        for layer in module.model.layers:
            layer.mlp.gate.forward = functools.partial(route, layer.mlp.gate)
    if case.balance:
        module.found = []  # router logits of a forward pass
        for layer in module.model.layers:
            layer.mlp.gate.register_forward_hook(lambda _, x, y: module.found.append(y[0]))
    return module


# The modules that form each of our layers, in the order of their rows.
MODULES = {
    "self_attention.linear_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.linear_proj": ("self_attn.o_proj",),
    "self_attention.linear_q_proj": ("self_attn.q_proj",),
    "self_attention.linear_kv_down_proj": ("self_attn.kv_a_proj_with_mqa",),
    "self_attention.linear_kv_up_proj": ("self_attn.kv_b_proj",),
    "mlp.linear_fc1": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.linear_fc2": ("mlp.down_proj",),
    "mlp.shared_experts.linear_fc1": ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    "mlp.shared_experts.linear_fc2": ("mlp.shared_expert.down_proj",),
}
EXPERTS = {"mlp.experts.linear_fc1": "mlp.experts.gate_up_proj", "mlp.experts.linear_fc2": "mlp.experts.down_proj"}


def with_adapters(case, module, dtype):
    """Wraps the module in one of the package peft, with adapters whose names follow those of the layers."""
    import peft

    targets = [
        name for stem, parts in case.adapters if stem in MODULES
        for i, name in enumerate(MODULES[stem]) if not parts or i in parts
    ]
    experts = [EXPERTS[stem] for stem, _ in case.adapters if stem in EXPERTS]
    config = peft.LoraConfig(
        r=case.rank, lora_alpha=case.alpha, use_rslora=case.rslora, use_dora=case.dora, lora_dropout=0.0, bias="none",
        alpha_pattern=dict(case.alphas), lora_bias=case.lora_bias, modules_to_save=list(case.saved) or None,
        target_modules=targets or None, target_parameters=experts or None,
    )
    if case.experts and dtype == torch.float64:
        for layer in module.model.layers:
            layer.mlp.gate.forward = functools.partial(route, layer.mlp.gate)
    return peft.get_peft_model(module, config, autocast_adapter_dtype=False)


def rows_of_part(case, stem, part, rows):
    """The rows of a layer that belong to one of its modules."""
    if stem == "self_attention.linear_qkv":
        queries = case.heads // case.groups
        rows = rows.view(case.groups, queries + 2, case.head, -1)
        return (rows[:, :queries] if part == 0 else rows[:, queries + part - 1]).flatten(0, -2)
    return rows.chunk(len(MODULES[stem]))[part]


def adapters_of(case, p):
    """Path of a module -> its two factors, and its magnitudes and its bias or None."""
    found = {}
    for i in range(case.num_layers):
        for stem, parts in case.adapters:
            ours, theirs = f"decoder.layers.{i}.{stem}.adapter.linear", f"model.layers.{i}"
            if stem in EXPERTS:
                a = torch.cat([p[f"{ours}_in.weight{e}"] for e in range(case.experts)])
                b = [p[f"{ours}_out.weight{e}"] for e in range(case.experts)]
                # Of each row the columns of all experts, a rank's together.
                found[f"{theirs}.{EXPERTS[stem]}"] = a, torch.stack(b, -1).flatten(1), None, None
                continue
            a, b = p[f"{ours}_in.weight"], p[f"{ours}_out.weight"]
            m = p[f"{ours.removesuffix('linear')}weight_magnitude"] if case.dora else None
            bias = p[f"{ours}_out.bias"] if case.lora_bias else None
            for part, name in enumerate(MODULES[stem]):
                if parts and part not in parts:
                    continue
                own = a.chunk(len(parts))[parts.index(part)] if parts else a
                found[f"{theirs}.{name}"] = (
                    own, rows_of_part(case, stem, part, b),
                    *(None if each is None else rows_of_part(case, stem, part, each[:, None]).flatten() for each in (m, bias)),
                )
    return found


def adapted(case, p, state, module):
    """The state under peft's names."""
    adapters = adapters_of(case, p)
    names = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    out = {}
    for name, value in state.items():
        path = name.removesuffix(".weight").removesuffix(".bias")
        plain = f"base_model.model.{name}"
        if path in case.saved:
            out[f"base_model.model.{path}.modules_to_save.default{name.removeprefix(path)}"] = value
            plain = f"base_model.model.{path}.original_module{name.removeprefix(path)}"
        elif path in adapters and ".experts." in path: # experts have both parameters inside of both wrappers
            plain = plain.replace(".experts.", ".experts.base_layer.base_layer.")
        elif plain not in names:
            plain = f"base_model.model.{path}.base_layer{name.removeprefix(path)}"
        out[plain] = value
    for path, (a, b, m, bias) in adapters.items():
        stem = f"base_model.model.{path}"
        if ".experts." in path:
            outer = stem[: stem.rindex(".")]
            stem = next(each for each in (outer, f"{outer}.base_layer") if names[f"{each}.lora_A.default.weight"] == tuple(a.shape))
        out[f"{stem}.lora_A.default.weight"] = a
        out[f"{stem}.lora_B.default.weight"] = b
        if bias is not None:
            out[f"{stem}.lora_B.default.bias"] = bias
        if m is not None:
            out[f"{stem}.lora_magnitude_vector.default.weight"] = m
    return out


def balance(case, dtype):
    """The router losses of the last forward pass, by Megatron-Core's formulas."""
    of_all, of_sequence, of_size = case.balance
    total = 0
    for found in module_of(case, dtype).found:
        found = found.view(case.micro_batch, case.seq_length, case.experts)
        shares = found.softmax(-1)
        chosen = torch.zeros_like(shares).scatter(-1, shares.topk(case.topk, -1).indices, 1)
        for weight, parts in ((of_all, 1), (of_sequence, case.micro_batch)):
            rows = case.micro_batch * case.seq_length // parts
            load = chosen.view(parts, rows, case.experts).sum(1)
            sums = shares.view(parts, rows, case.experts).sum(1)
            total += weight * case.experts / (case.topk * rows * rows * parts) * (load * sums).sum()
        total += of_size * found.logsumexp(-1).square().mean()
    return total


def route(router, x):
    """The routers of transformers, entirely in fp64. Their own softmax is in fp32."""
    found = F.linear(x.reshape(-1, router.hidden_dim), router.weight)
    scores, chosen = found.softmax(-1).topk(router.top_k, dim=-1)
    if getattr(router, "norm_topk_prob", True):
        scores = scores / scores.sum(-1, keepdim=True)
    return found, scores, chosen


def of_experts(case, p, state, theirs, mlp):
    """Adds the router and the stacked experts of a layer."""
    state[f"{theirs}.mlp.gate.weight"] = p[f"{mlp}.router.weight"]
    for name, ours in (("gate_up_proj", "linear_fc1"), ("down_proj", "linear_fc2")):
        state[f"{theirs}.mlp.experts.{name}"] = torch.stack(
            [p[f"{mlp}.experts.{ours}.weight{e}"] for e in range(case.experts)]
        )


def of_shared_expert(case, p, state, theirs, ours):
    """Adds the shared expert, and the weight of its gate."""
    gate, up = p[f"{ours}.linear_fc1.weight"].chunk(2)
    state[f"{theirs}.shared_expert.gate_proj.weight"] = gate
    state[f"{theirs}.shared_expert.up_proj.weight"] = up
    state[f"{theirs}.shared_expert.down_proj.weight"] = p[f"{ours}.linear_fc2.weight"]
    if case.has_gate:
        state[f"{theirs}.shared_expert_gate.weight"] = p[f"{ours}.gate_weight"]


def of_llama4_experts(case, p, state, theirs, mlp):
    """Adds the router and the stacked experts of Llama 4, whose weights are transposed."""
    state[f"{theirs}.router.weight"] = p[f"{mlp}.router.weight"]
    for name, ours in (("gate_up_proj", "linear_fc1"), ("down_proj", "linear_fc2")):
        state[f"{theirs}.experts.{name}"] = torch.stack(
            [p[f"{mlp}.experts.{ours}.weight{e}"].T for e in range(case.experts)]
        )


def woven(value):
    """Interleaves the rows of gate and up, as in gpt-oss."""
    gate, up = value.chunk(2)
    return torch.stack((gate, up), 1).flatten(0, 1)


def of_biased_experts(case, p, state, theirs, mlp):
    """Adds the router and the experts of gpt-oss, all with biases. Weights are transposed."""
    state[f"{theirs}.mlp.router.weight"] = p[f"{mlp}.router.weight"]
    state[f"{theirs}.mlp.router.bias"] = p[f"{mlp}.router.bias"]
    for name, ours, turn in (("gate_up_proj", "linear_fc1", woven), ("down_proj", "linear_fc2", lambda x: x)):
        each = [f"{mlp}.experts.{ours}.%s{e}" for e in range(case.experts)]
        weights, biases = ([turn(p[n % what]) for n in each] for what in ("weight", "bias"))
        state[f"{theirs}.mlp.experts.{name}"] = torch.stack([w.T for w in weights])
        state[f"{theirs}.mlp.experts.{name}_bias"] = torch.stack(biases)


def as_only_expert(case, p, state, theirs, mlp):
    """Adds a dense layer as a layer's only expert. Its router gives it all tokens with a weight of 1."""
    fc1, fc2, experts = f"{mlp}.linear_fc1", f"{mlp}.linear_fc2", f"{theirs}.mlp.experts"
    state[f"{experts}.gate_up_proj"] = woven(p[f"{fc1}.weight"]).T[None]
    state[f"{experts}.gate_up_proj_bias"] = woven(p[f"{fc1}.bias"])[None]
    state[f"{experts}.down_proj"] = p[f"{fc2}.weight"].T[None]
    state[f"{experts}.down_proj_bias"] = p[f"{fc2}.bias"][None]
    weight = p[f"{fc1}.weight"]
    state[f"{theirs}.mlp.router.weight"] = weight.new_zeros((1, case.hidden))
    state[f"{theirs}.mlp.router.bias"] = weight.new_zeros(1)


def add_grouped(case, p, state, theirs, ours):
    """Adds attention whose groups have several queries, one key and one value each."""
    queries = case.heads // case.groups
    qkv = p[f"{ours}.linear_qkv.weight"].view(case.groups, queries + 2, case.head, case.hidden)
    state[f"{theirs}.q_proj.weight"] = qkv[:, :queries].reshape(-1, case.hidden)
    state[f"{theirs}.k_proj.weight"] = qkv[:, queries].reshape(-1, case.hidden)
    state[f"{theirs}.v_proj.weight"] = qkv[:, queries + 1].reshape(-1, case.hidden)
    if case.has_bias or case.has_qkv_bias:
        bias = p[f"{ours}.linear_qkv.bias"].view(case.groups, queries + 2, case.head)
        state[f"{theirs}.q_proj.bias"] = bias[:, :queries].flatten()
        state[f"{theirs}.k_proj.bias"] = bias[:, queries].flatten()
        state[f"{theirs}.v_proj.bias"] = bias[:, queries + 1].flatten()
        if case.has_bias:
            state[f"{theirs}.o_proj.bias"] = p[f"{ours}.linear_proj.bias"]
    if case.sinks:
        state[f"{theirs}.sinks"] = p[f"{ours}.core_attention.softmax_offset"]


def add_latent(case, p, state, theirs, ours):
    """Adds latent attention without its output projection."""

    def rank(down, up, name):
        state[f"{theirs}.{down}.weight"] = p[f"{ours}.linear_{name}_down_proj.weight"]
        norm = p[f"{ours}.linear_{name}_up_proj.layer_norm_weight"]
        state[f"{theirs}.{name}_a_layernorm.weight"] = norm
        state[f"{theirs}.{up}.weight"] = p[f"{ours}.linear_{name}_up_proj.weight"]

    rank("kv_a_proj_with_mqa", "kv_b_proj", "kv")
    if case.query_rank:
        rank("q_a_proj", "q_b_proj", "q")
    else:
        state[f"{theirs}.q_proj.weight"] = p[f"{ours}.linear_q_proj.weight"]


# The names of LFM2's modules that differ from Llama's.
LFM2 = {
    "model.norm.": "model.embedding_norm.", ".input_layernorm.": ".operator_norm.", ".post_attention_layernorm.": ".ffn_norm.",
    ".q_norm.": ".q_layernorm.", ".k_norm.": ".k_layernorm.", ".o_proj.": ".out_proj.", ".mlp.gate_proj.": ".feed_forward.w1.",
    ".mlp.up_proj.": ".feed_forward.w3.", ".mlp.down_proj.": ".feed_forward.w2.",
}


def renamed(name):
    for ours, theirs in LFM2.items():
        name = name.replace(ours, theirs)
    return name


def state_of(case, p):
    """{name in transformers: tensor}."""
    state = with_names_of_llama(case, p)
    return {renamed(name): value for name, value in state.items()} if case.module == "lfm2" else state


def add_conv(p, state, theirs, ours):
    """Adds a short convolution."""
    for name in ("in_proj", "out_proj"):
        state[f"{theirs}.{name}.weight"] = p[f"{ours}.{name}.weight"]
    state[f"{theirs}.conv.weight"] = p[f"{ours}.conv.weight"][:, None]


def with_names_of_llama(case, p):
    state = {"model.embed_tokens.weight": p["embedding.word_embeddings.weight"]}
    state["lm_head.weight"] = p[
        "embedding.word_embeddings.weight" if case.tied else "output_layer.weight"
    ]

    def norm(theirs, ours):
        state[f"{theirs}.weight"] = p[f"{ours}weight"]
        if case.layer_norm:
            state[f"{theirs}.bias"] = p[f"{ours}bias"]

    norm("model.norm", "decoder.final_layernorm.")
    for i in range(case.num_layers):
        theirs, ours = f"model.layers.{i}", f"decoder.layers.{i}"
        attention, mlp = f"{ours}.self_attention", f"{ours}.mlp"
        before = f"{ours}.pre_mlp_layernorm." if case.has_experts(i) else f"{mlp}.linear_fc1.layer_norm_"
        norm(f"{theirs}.{'pre_feedforward' if case.gemma else 'post_attention'}_layernorm", before)
        if case.gemma:
            norm(f"{theirs}.post_attention_layernorm", f"{ours}.post_self_attn_layernorm.")
            norm(f"{theirs}.post_feedforward_layernorm", f"{ours}.post_mlp_layernorm.")
        if case.latent:
            norm(f"{theirs}.input_layernorm", f"{ours}.input_layernorm.")
            add_latent(case, p, state, f"{theirs}.self_attn", attention)
        elif i in case.convs:
            norm(f"{theirs}.input_layernorm", f"{ours}.short_conv.in_proj.layer_norm_")
            add_conv(p, state, f"{theirs}.conv", f"{ours}.short_conv")
        else:
            norm(f"{theirs}.input_layernorm", f"{attention}.linear_qkv.layer_norm_")
            add_grouped(case, p, state, f"{theirs}.self_attn", attention)
        if i not in case.convs:
            state[f"{theirs}.self_attn.o_proj.weight"] = p[f"{attention}.linear_proj.weight"]
        if case.qk_norm and i not in case.convs:
            norm(f"{theirs}.self_attn.q_norm", f"{attention}.q_layernorm.")
            norm(f"{theirs}.self_attn.k_norm", f"{attention}.k_layernorm.")
        block = "feed_forward" if case.module == "llama4" else "mlp"
        if case.has_experts(i):
            if case.module == "llama4":
                of_llama4_experts(case, p, state, f"{theirs}.{block}", mlp)
            else:
                (of_biased_experts if case.has_bias else of_experts)(case, p, state, theirs, mlp)
            if case.shared:
                of_shared_expert(case, p, state, f"{theirs}.{block}", f"{mlp}.shared_experts")
            continue
        if case.module == "gpt_oss":
            as_only_expert(case, p, state, theirs, mlp)
            continue
        fc1 = p[f"{mlp}.linear_fc1.weight"]
        if case.gated:
            gate, up = fc1.chunk(2)
            state[f"{theirs}.{block}.gate_proj.weight"] = gate
            state[f"{theirs}.{block}.up_proj.weight"] = up
        else:
            state[f"{theirs}.{block}.up_proj.weight"] = fc1
        state[f"{theirs}.{block}.down_proj.weight"] = p[f"{mlp}.linear_fc2.weight"]
    return state


def logits(case, p, dtype, tokens, module=None):
    module = module or module_of(case, dtype)
    if case.balance:
        module.found.clear()
    state = state_of(case, p)
    if case.adapters:
        state = adapted(case, p, state, module)
    missing = {name for name, _ in module.named_parameters()} - set(state)
    assert not missing and len(state) == len(module.state_dict()), (missing, case.name)
    return functional_call(module, state, kwargs={"input_ids": torch.as_tensor(tokens)}).logits
