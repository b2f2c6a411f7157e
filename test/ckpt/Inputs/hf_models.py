#!/usr/bin/env python3
"""Makes small models in Hugging Face's form, imports and exports them, and compares every byte.

    hf_models.py WORK
"""

import hashlib
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys

import hf_hybrids
import mxfp4_model

HIDDEN, HEADS, GROUPS, HEAD, FFN, VOCAB, LAYERS, EXPERTS = 8, 4, 2, 2, 12, 10, 2, 3
BASE = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": HEAD,
        "intermediate_size": FFN, "vocab_size": VOCAB, "num_hidden_layers": LAYERS, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "pad_token_id": None}


def ends():
    return {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN], "lm_head.weight": [VOCAB, HIDDEN]}


def attention(at, bias=False, norms=False):
    rows = {"q": HEADS * HEAD, "k": GROUPS * HEAD, "v": GROUPS * HEAD}
    tensors = {f"{at}.self_attn.{part}_proj.weight": [n, HIDDEN] for part, n in rows.items()}
    tensors[f"{at}.self_attn.o_proj.weight"] = [HIDDEN, HEADS * HEAD]
    tensors[f"{at}.input_layernorm.weight"] = tensors[f"{at}.post_attention_layernorm.weight"] = [HIDDEN]
    if bias:
        tensors.update({f"{at}.self_attn.{part}_proj.bias": [n] for part, n in rows.items()})
    if norms:
        tensors.update({f"{at}.self_attn.{part}_norm.weight": [HEAD] for part in "qk"})
    return tensors


def mlp(at, rows=FFN, names=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = names
    return {f"{at}.{gate}.weight": [rows, HIDDEN], f"{at}.{up}.weight": [rows, HIDDEN], f"{at}.{down}.weight": [HIDDEN, rows]}


def dense(**attention_kind):
    tensors = ends()
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        tensors.update(attention(at, **attention_kind) | mlp(f"{at}.mlp"))
    return tensors


def mixtral():
    tensors = ends()
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        tensors.update(attention(at))
        tensors[f"{at}.block_sparse_moe.gate.weight"] = [EXPERTS, HIDDEN]
        for expert in range(EXPERTS):
            tensors.update(mlp(f"{at}.block_sparse_moe.experts.{expert}", names=("w1", "w3", "w2")))
    return tensors


def deepseek():
    """One dense layer, one with experts; low-rank queries; nope 2, rope 2, value 2."""
    tensors = ends()
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        tensors[f"{at}.input_layernorm.weight"] = tensors[f"{at}.post_attention_layernorm.weight"] = [HIDDEN]
        tensors |= {f"{at}.self_attn.q_a_proj.weight": [6, HIDDEN], f"{at}.self_attn.q_a_layernorm.weight": [6],
                    f"{at}.self_attn.q_b_proj.weight": [HEADS * 4, 6], f"{at}.self_attn.kv_a_proj_with_mqa.weight": [6, HIDDEN],
                    f"{at}.self_attn.kv_a_layernorm.weight": [4], f"{at}.self_attn.kv_b_proj.weight": [HEADS * 4, 4],
                    f"{at}.self_attn.o_proj.weight": [HIDDEN, HEADS * 2]}
        if layer == 0:
            tensors |= mlp(f"{at}.mlp")
            continue
        tensors[f"{at}.mlp.gate.weight"] = [EXPERTS, HIDDEN]
        tensors |= mlp(f"{at}.mlp.shared_experts", rows=4)
        for expert in range(EXPERTS):
            tensors |= mlp(f"{at}.mlp.experts.{expert}", rows=4)
    return tensors


def gpt_oss():
    """Experts in one tensor, transposed, gates and values taking turns; biases and sinks."""
    tensors = ends()
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        tensors |= attention(at, bias=True)
        tensors |= {f"{at}.self_attn.o_proj.bias": [HIDDEN], f"{at}.self_attn.sinks": [HEADS],
                    f"{at}.mlp.router.weight": [EXPERTS, HIDDEN], f"{at}.mlp.router.bias": [EXPERTS],
                    f"{at}.mlp.experts.gate_up_proj": [EXPERTS, HIDDEN, 2 * FFN], f"{at}.mlp.experts.gate_up_proj_bias": [EXPERTS, 2 * FFN],
                    f"{at}.mlp.experts.down_proj": [EXPERTS, FFN, HIDDEN], f"{at}.mlp.experts.down_proj_bias": [EXPERTS, HIDDEN]}
    return tensors


def nemotron():
    """Norms with biases, layers without gates."""
    tensors = {name: shape for name, shape in dense().items() if "gate_proj" not in name}
    return tensors | {name.replace(".weight", ".bias"): shape for name, shape in tensors.items() if "norm" in name}


def starcoder2():
    """Norms and all linear layers with biases, layers without gates."""
    tensors = {name.replace("up_proj", "c_fc").replace("down_proj", "c_proj"): shape for name, shape in dense().items() if "gate_proj" not in name}
    return tensors | {name.replace(".weight", ".bias"): shape[:1] for name, shape in tensors.items() if "layers" in name or "norm" in name}


def smollm3():
    """All linear layers with biases."""
    return dense() | {name.replace(".weight", ".bias"): shape[:1] for name, shape in dense().items() if "_proj" in name}


def phi3():
    """Queries, keys and values in one tensor, gate and up in another."""
    tensors = {name: shape for name, shape in dense().items() if not any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate_", "up_"))}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        tensors |= {f"{at}.self_attn.qkv_proj.weight": [(HEADS + 2 * GROUPS) * HEAD, HIDDEN], f"{at}.mlp.gate_up_proj.weight": [2 * FFN, HIDDEN]}
    return tensors


def biased(shapes, *parts):
    """With biases in these linear layers."""
    return shapes | {name.replace(".weight", ".bias"): shape[:1] for name, shape in shapes.items() if any(part in name for part in parts)}


def glm():
    """Gate and up projection in one tensor."""
    tensors = {name: shape for name, shape in dense(bias=True).items() if "gate_" not in name and "up_" not in name}
    return tensors | {f"model.layers.{layer}.mlp.gate_up_proj.weight": [2 * FFN, HIDDEN] for layer in range(LAYERS)}


def glm4():
    """Norms behind attention and behind the feed-forward layer too."""
    tensors = {name: shape for name, shape in dense(bias=True).items() if "gate_" not in name and "up_" not in name}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        tensors |= {f"{at}.mlp.gate_up_proj.weight": [2 * FFN, HIDDEN], f"{at}.post_self_attn_layernorm.weight": [HIDDEN],
                    f"{at}.post_mlp_layernorm.weight": [HIDDEN]}
    return tensors


def olmo2():
    """Norms behind layers only, and of all heads together."""
    tensors = {name.replace("input_layernorm", "post_feedforward_layernorm"): shape for name, shape in dense().items()}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.self_attn"
        tensors |= {f"{at}.q_norm.weight": [HEADS * HEAD], f"{at}.k_norm.weight": [GROUPS * HEAD]}
    return tensors


def glm4_moe():
    """One dense layer, one with experts, a bias on these and a shared one; norms of queries and keys."""
    tensors = dense(bias=True, norms=True)
    at = f"model.layers.{LAYERS - 1}.mlp"
    tensors = {name: shape for name, shape in tensors.items() if not name.startswith(at)}
    tensors |= {f"{at}.gate.weight": [EXPERTS, HIDDEN]} | mlp(f"{at}.shared_experts", rows=4)
    for expert in range(EXPERTS):
        tensors |= mlp(f"{at}.experts.{expert}", rows=4)
    return tensors


def llama4():
    """One dense layer, and one with a shared expert and routed experts in one transposed tensor."""
    tensors = {name.replace(".mlp.", ".feed_forward."): shape for name, shape in dense().items()}
    at = f"model.layers.{LAYERS - 1}.feed_forward"
    tensors = {name: shape for name, shape in tensors.items() if not name.startswith(at)}
    return tensors | mlp(f"{at}.shared_expert", rows=4) | {
        f"{at}.router.weight": [EXPERTS, HIDDEN], f"{at}.experts.gate_up_proj": [EXPERTS, HIDDEN, 8],
        f"{at}.experts.down_proj": [EXPERTS, 4, HIDDEN]}


def qwen2_moe():
    tensors = {name: shape for name, shape in dense(bias=True).items() if ".mlp." not in name}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.mlp"
        tensors |= {f"{at}.gate.weight": [EXPERTS, HIDDEN], f"{at}.shared_expert_gate.weight": [1, HIDDEN]} | mlp(f"{at}.shared_expert", rows=6)
        for expert in range(EXPERTS):
            tensors |= mlp(f"{at}.experts.{expert}", rows=4)
    return tensors


def with_predictor(shapes):
    """A further layer, as the last one, that predicts a token; embeddings and head are there again."""
    last, at = f"model.layers.{LAYERS - 1}.", f"model.layers.{LAYERS}."
    own = {"enorm.weight": [HIDDEN], "hnorm.weight": [HIDDEN], "eh_proj.weight": [HIDDEN, 2 * HIDDEN], "shared_head.norm.weight": [HIDDEN],
           "embed_tokens.weight": [VOCAB, HIDDEN], "shared_head.head.weight": [VOCAB, HIDDEN]}
    return shapes | {name.replace(last, at): shape for name, shape in shapes.items() if name.startswith(last)} | {
        at + name: shape for name, shape in own.items()}


def gemma(norms):
    """Norms before and behind attention and the feed-forward layer."""
    tensors = dense(norms=norms)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        tensors |= {f"{at}.{place}_feedforward_layernorm.weight": [HIDDEN] for place in ("pre", "post")}
    return {name: shape for name, shape in tensors.items() if name != "lm_head.weight"}


LATENT = {"n_routed_experts": EXPERTS, "moe_intermediate_size": 4, "n_shared_experts": 1, "q_lora_rank": 6, "kv_lora_rank": 4,
          "num_experts_per_tok": 2, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2, "v_head_dim": 2}


def olmoe():
    """Experts, and norms of all heads together."""
    tensors = {name: shape for name, shape in dense().items() if ".mlp." not in name}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.mlp"
        tensors[f"{at}.gate.weight"] = [EXPERTS, HIDDEN]
        for expert in range(EXPERTS):
            tensors |= mlp(f"{at}.experts.{expert}")
    return tensors | {name: shape for name, shape in olmo2().items() if "q_norm" in name or "k_norm" in name}


def exaone4():
    """Norms behind layers only, and of each head."""
    return {name.replace("input_layernorm", "post_feedforward_layernorm"): shape for name, shape in dense(norms=True).items()}


def minimax():
    """Experts with Mixtral's names, and norms of all heads together."""
    return mixtral() | {name: shape for name, shape in olmo2().items() if "q_norm" in name or "k_norm" in name}


def granitemoe():
    """The experts of a layer in one tensor."""
    tensors = {name: shape for name, shape in dense().items() if ".mlp." not in name}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.block_sparse_moe"
        tensors |= {f"{at}.router.layer.weight": [EXPERTS, HIDDEN], f"{at}.input_linear.weight": [EXPERTS, 2 * FFN, HIDDEN],
                    f"{at}.output_linear.weight": [EXPERTS, HIDDEN, FFN]}
    return tensors


def mistral4():
    """Latent attention; the experts of a layer in one tensor, and a shared one."""
    tensors = {name: shape for name, shape in deepseek().items() if ".mlp." not in name}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.mlp"
        tensors |= {f"{at}.gate.weight": [EXPERTS, HIDDEN], f"{at}.experts.gate_up_proj": [EXPERTS, 8, HIDDEN],
                    f"{at}.experts.down_proj": [EXPERTS, HIDDEN, 4]} | mlp(f"{at}.shared_experts", rows=4)
    return tensors


def gpt2():
    tensors = {"wte.weight": [VOCAB, HIDDEN], "wpe.weight": [16, HIDDEN], "ln_f.weight": [HIDDEN], "ln_f.bias": [HIDDEN]}
    for layer in range(LAYERS):
        at = f"h.{layer}"
        for kind in ("weight", "bias"):
            tensors[f"{at}.ln_1.{kind}"] = tensors[f"{at}.ln_2.{kind}"] = [HIDDEN]
        for name, rows, columns in (("attn.c_attn", HIDDEN, 3 * HIDDEN), ("attn.c_proj", HIDDEN, HIDDEN),
                                    ("mlp.c_fc", HIDDEN, 4 * HIDDEN), ("mlp.c_proj", 4 * HIDDEN, HIDDEN)):
            tensors[f"{at}.{name}.weight"], tensors[f"{at}.{name}.bias"] = [rows, columns], [columns]
    return tensors


MODELS = {
    "llama": ({}, dense()),
    "mistral": ({}, dense()),
    "qwen2": ({}, dense(bias=True)),
    "qwen3": ({}, dense(norms=True)),
    "mixtral": ({"num_local_experts": EXPERTS}, mixtral()),
    "deepseek_v3": ({"n_routed_experts": EXPERTS, "moe_intermediate_size": 4, "n_shared_experts": 1,
                     "first_k_dense_replace": 1, "q_lora_rank": 6, "kv_lora_rank": 4, "num_experts_per_tok": 2,
                     "n_group": 1, "topk_group": 1, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2, "v_head_dim": 2,
                     "num_nextn_predict_layers": 1}, deepseek()),  # transformers saves no multi-token prediction layer
    "deepseek_v2": ({"n_routed_experts": EXPERTS, "moe_intermediate_size": 4, "n_shared_experts": 1, "first_k_dense_replace": 1,
                     "q_lora_rank": 6, "kv_lora_rank": 4, "num_experts_per_tok": 2}, deepseek()),
    "nemotron": ({}, nemotron()),
    "gpt_oss": ({"num_local_experts": EXPERTS}, gpt_oss()),
    "phi3": ({}, phi3()),
    "glm4": ({}, glm4()),
    "olmo2": ({}, olmo2()),
    "glm4_moe": ({"n_routed_experts": EXPERTS, "moe_intermediate_size": 4, "num_nextn_predict_layers": 1, "use_qk_norm": True,
                  "attention_bias": True, "num_experts_per_tok": 2}, glm4_moe()),
    "gemma2": ({"tie_word_embeddings": True}, gemma(norms=False)),
    "gemma3_text": ({"tie_word_embeddings": True}, gemma(norms=True)),
    "llama4_text": ({"num_local_experts": EXPERTS, "intermediate_size": 4, "intermediate_size_mlp": FFN, "moe_layers": [LAYERS - 1],
                     "no_rope_layer_interval": 2}, llama4()),
    "qwen2_moe": ({"num_experts": EXPERTS, "moe_intermediate_size": 4, "shared_expert_intermediate_size": 6}, qwen2_moe()),
    "starcoder2": ({"residual_dropout": 0.1, "embedding_dropout": 0.1}, starcoder2()),
    "smollm3": ({"no_rope_layers": [0, 1], "attention_bias": True, "mlp_bias": True}, smollm3()),
    "seed_oss": ({"attention_out_bias": True, "attention_dropout": 0.0}, biased(dense(bias=True), "o_proj")),
    "gemma": ({"tie_word_embeddings": True}, {name: shape for name, shape in dense().items() if name != "lm_head.weight"}),
    "ernie4_5": ({"use_bias": True}, biased(dense(), "_proj")),
    "arcee": ({"mlp_bias": True}, biased({name: shape for name, shape in dense().items() if "gate_proj" not in name}, "mlp.")),
    "helium": ({"attention_bias": True}, dense(bias=True)),
    "glm": ({}, glm()),
    "ministral": ({"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}, dense()),
    "olmo3": ({"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 20000.0, "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "attention_factor": 1.2079441541679836, "original_max_position_embeddings": 64}}, olmo2()),
    "olmoe": ({"num_experts": EXPERTS, "num_experts_per_tok": 2, "head_dim": None}, olmoe()),
    "stablelm": ({"use_qkv_bias": True, "partial_rotary_factor": 1.0, "head_dim": None}, biased(dense(bias=True), "norm")),
    "dots1": ({"n_routed_experts": EXPERTS, "moe_intermediate_size": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "num_experts_per_tok": 2,
               "norm_topk_prob": True, "sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"], "attention_bias": True},
              biased(glm4_moe(), "self_attn.o_proj")),
    "glm4_moe_lite": ({**LATENT, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1}, deepseek()),
    "mistral4": ({**LATENT, "rope_parameters": {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.0,
                                                "original_max_position_embeddings": 64}}, mistral4()),
    "minimax_m2": ({"num_local_experts": EXPERTS, "rotary_dim": 2, "num_experts_per_tok": 2}, minimax()),
    "granite": ({"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22, "attention_multiplier": 0.5, "attention_bias": True},
                biased(dense(), "self_attn")),
    "granitemoe": ({"num_local_experts": EXPERTS, "logits_scaling": 6.0}, granitemoe()),
    "hunyuan_v1_dense": ({"attention_bias": True}, biased({
        name.replace("q_norm", "query_layernorm").replace("k_norm", "key_layernorm"): shape for name, shape in dense(norms=True).items()},
        "q_proj", "k_proj", "v_proj", "o_proj")),
    "exaone4": ({"sliding_window": 4, "sliding_window_pattern": "LG", "layer_types": ["sliding_attention", "full_attention"]}, exaone4()),
    "qwen3_next": ({"num_experts": EXPERTS, **hf_hybrids.QWEN3_NEXT}, hf_hybrids.qwen3_next(dense(norms=True))),
    "nemotron_h": (hf_hybrids.NEMOTRON_H, hf_hybrids.nemotron_h(dense())),
    "granitemoehybrid": (hf_hybrids.GRANITE, hf_hybrids.granite(dense())), "bamba": (hf_hybrids.BAMBA, hf_hybrids.bamba(biased(dense(), "self_attn"))),
    "lfm2": ({"full_attn_idxs": [0], "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True}, hf_hybrids.lfm2(dense(norms=True))),
    "gpt2": ({"n_layer": LAYERS, "n_embd": HIDDEN, "n_head": HEADS, "tie_word_embeddings": True}, gpt2()),
}


# What a multi-token prediction layer has again.
AGAIN = {f"model.layers.{LAYERS}.embed_tokens.weight": "model.embed_tokens.weight",
         f"model.layers.{LAYERS}.shared_head.head.weight": "lm_head.weight"}


def write_model(folder, kind, config, shapes, again=AGAIN, values=None):
    """The given bf16 values, or random ones without NaN."""
    folder.mkdir(parents=True)
    base = {"vocab_size": VOCAB, "torch_dtype": "bfloat16"} if kind == "gpt2" else BASE
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **base, **config}))
    (folder / "tokenizer.json").write_text('{"of": "a tokenizer"}')
    header, data, rng = {"__metadata__": {"format": "pt"}}, b"", random.Random(kind)
    for name, shape in shapes.items():
        count = 1
        for extent in shape:
            count *= extent
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + 2 * count]}
        begin = header[again[name]]["data_offsets"][0] if name in again else None
        made = values[name] if values else b"".join(struct.pack("<H", rng.randrange(0x3c00, 0x4200)) for _ in range(count))
        data += made if begin is None else data[begin:begin + 2 * count]
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_model(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = (8 + size + offset for offset in entry["data_offsets"])
                tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return tensors


def expect(condition, text):
    if not condition:
        sys.exit(text)


def call(*words, status=0):
    done = subprocess.run(["shardc", "ckpt", *map(str, words)], capture_output=True, text=True)
    expect(done.returncode == status, f"{words}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def check(work, name, config, shapes, kind=None):
    source, out = work / name, work / f"{name}.out"
    write_model(source, kind or name, config, shapes)
    kind = name
    said = call("import", "hf", source, work / f"{kind}.ckpt")
    expect("warning" not in said, f"{kind}: {said}")
    call("verify", work / f"{kind}.ckpt")
    said = call("export", "hf", work / f"{kind}.ckpt", out, "--config", source)
    expect("(bfloat16" in said, f"{kind}: {said}")
    want, got = read_model(source), read_model(out)
    for extra in [extra for extra in got.keys() - want.keys() if extra.endswith("e_score_correction_bias")]:
        expect(not any(got[extra][2]), f"{kind}: {extra} is not zero")  # transformers adds a zero bias
        want[extra] = got[extra]
    expect(want.keys() == got.keys(), f"{kind}: {sorted(want.keys() ^ got.keys())[:5]} are on one side only")
    for name, value in want.items():
        expect(got[name] == value, f"{kind}: {name} differs: {got[name][:2]} and {value[:2]}")
    call("convert", "fsdp-dtensor-to-torch-dist", work / f"{kind}.ckpt", work / f"{kind}.dist")
    call("export", "hf", work / f"{kind}.dist", work / f"{kind}.dist-out", "--config", source)
    expect(read_model(work / f"{kind}.dist-out") == got, f"{kind}: from torch_dist the model differs")
    said = call("export", "hf", work / f"{kind}.ckpt", work / f"{kind}.kept")
    expect("no tokenizer" not in said and read_model(work / f"{kind}.kept") == got, f"{kind}: {said}")
    expect((work / f"{kind}.kept" / "tokenizer.json").exists(), f"{kind}: no tokenizer was kept")
    for file in ("config.json", "tokenizer.json"):
        expect((out / file).read_bytes() == (source / file).read_bytes(), f"{kind}: {file} was not copied")


def check_details(work):
    source = work / "llama"
    inspected = json.loads(call("inspect", work / "llama.ckpt", "--json"))
    embedding = inspected["tensors"]["model.module.embedding.word_embeddings.weight"]
    expect(embedding["shape"] == [128, HIDDEN] and embedding["dtype"] == "float32", f"{embedding}")
    call("import", "hf", source, work / "narrow", "--weight-dtype=bfloat16", "--vocab-divisor=4")
    narrow = json.loads(call("inspect", work / "narrow", "--json"))["tensors"]
    embedding = narrow["model.module.embedding.word_embeddings.weight"]
    expect(embedding["shape"] == [12, HIDDEN] and embedding["dtype"] == "bfloat16", f"{embedding}")
    call("export", "hf", work / "narrow", work / "wide", "--config", source, "--weight-dtype=float32", "--shard-size=1")
    expect(read_model(work / "wide")["lm_head.weight"][:2] == ("F32", [VOCAB, HIDDEN]), "the type of an export")
    said = call("export", "hf", work / "narrow", work / "wide", "--config", source, status=1)
    expect("exists already" in said, said)
    said = call("export", "hf", work / "narrow", work / "other", "--config", work / "mixtral", status=1)
    expect("does not contain" in said and "mlp.router.weight" in said and not (work / "other").exists(), said)
    said = call("import", "hf", work / "narrow", work / "none", status=1)
    expect("config.json" in said, said)
    lacking = work / "lacking"
    write_model(lacking, "llama", {}, {name: shape for name, shape in dense().items() if "k_proj" not in name})
    said = call("import", "hf", lacking, work / "none", status=1)
    expect("does not contain 2 tensors" in said or "model.layers.0.self_attn.k_proj.weight" in said, said)
    extra = work / "extra"
    write_model(extra, "llama", {}, {**dense(), "model.layers.0.self_attn.sinks": [4]})
    said = call("import", "hf", extra, work / "extra.ckpt")
    expect("the model has no parameters for 1 tensors, which are left out: [tensors-left-out]\n  model.layers.0.self_attn.sinks" in said, said)
    unknown = work / "unknown"
    write_model(unknown, "mamba", {}, {"x": [2]})
    said = call("import", "hf", unknown, work / "none", status=1)
    expect('has the model type "mamba"; supported are gpt2, llama, ' in said and "[hf-architecture-unknown]" in said, said)


def check_smaller(work):
    """Sizes smaller than the model's would cut weights: surplus weights are refused, in both directions."""
    first = "model.layers.0."
    cases = [
        ("num_key_value_heads", 1, f"'{first}self_attn.k_proj.weight' is 4 x 8; the sizes in config.json need 2 x 8",
         "'decoder.layers.0.self_attention.linear_qkv.weight' is [16, 8]; the sizes in config.json need [12, 8]"),
        ("head_dim", 1, f"'{first}self_attn.k_proj.weight' is 4 x 8; the sizes in config.json need 2 x 8",
         "'decoder.layers.0.self_attention.linear_qkv.weight' is [16, 8]; the sizes in config.json need [8, 8]"),
        ("intermediate_size", 10, f"'{first}mlp.gate_proj.weight' is 12 x 8; the sizes in config.json need 10 x 8",
         "'decoder.layers.0.mlp.linear_fc1.weight' is [24, 8]; the sizes in config.json need [20, 8]"),
        ("hidden_size", 4, "'model.embed_tokens.weight' is [10, 8]; the hidden size in config.json is 4",
         "'embedding.word_embeddings.weight' is [128, 8]; the hidden size in config.json is 4"),
        ("num_hidden_layers", 1, "the model has no parameters for 9 tensors, which are left out: [tensors-left-out]\n  model.layers.1.",
         "has no place for 6 parameters of the checkpoint"),
        ("tie_word_embeddings", True, "'lm_head.weight' has other values than 'model.embed_tokens.weight', with which config.json ties it",
         "the model has 'tie_word_embeddings' false [hf-untied]"),
    ]
    for field, value, imported, exported in cases:
        source = work / f"{field}.small"
        write_model(source, "llama", {field: value}, dense())
        said = call("import", "hf", source, work / f"{field}.ckpt", status=0 if "left out" in imported else 1)
        expect(imported in said, f"{field}: {said}")
        said = call("export", "hf", work / "llama.ckpt", work / f"{field}.out", "--config", source, status=0 if "hf-untied" in exported else 1)
        expect(exported in said and (work / f"{field}.out").exists() == ("hf-untied" in exported), f"{field}: {said}")


def check_bounds(work):
    """Sizes that no model has neither crash nor fill the memory."""
    for kind, field, value, needed in (
            ("llama", "head_dim", 0, "1 to 65536"), ("llama", "num_attention_heads", 2**32, "1 to 65536"),
            ("llama", "num_key_value_heads", -1, "1 to 65536"), ("llama", "num_hidden_layers", -2**63, "1 to 10000"),
            ("deepseek_v3", "num_nextn_predict_layers", 4_000_000_000, "0 to 1000"),
            ("deepseek_v3", "n_shared_experts", 2**62, "0 to 2147483648")):
        config, shapes = MODELS[kind]
        source = work / f"{kind}.{field}"
        write_model(source, kind, {**config, field: value}, shapes)
        said = call("import", "hf", source, work / "none", status=1)
        expect(f"{needed} is needed" in said and "config.json': " in said, f"{field}: {said}")
    many = {"num_hidden_layers": 10_000, "num_local_experts": 60_000}
    write_model(work / "many", "mixtral", many, mixtral())
    said = call("import", "hf", work / "many", work / "none", status=1)
    expect("10000 layers of 60000 experts and 2 key/value heads; the limit of either is 262144" in said, said)
    for divisor in (2**62, 2**63 - 1, 2**20 + 1):
        said = call("import", "hf", work / "llama", work / "none", f"--vocab-divisor={divisor}", status=1)
        expect(f"padded to a multiple of {divisor}; it must be from 1 to 1048576" in said, said)
    expect(not (work / "none").exists(), "something was made")


def import_recipe(work, folder):
    done = subprocess.run(["shardc", "import", "megatron-args", folder, "-o", work / "imported.recipe"], capture_output=True, text=True)
    expect(done.returncode == 0 and "no-counterpart" not in done.stderr, done.stdout + done.stderr)
    return (work / "imported.recipe").read_text()


def expect_lines(name, text, lines):
    for line in lines:
        expect(f"\n    {line}\n" in text, f"{name}: no '{line}' in\n{text}")


def check_arguments(work):
    """What of config.json changes numbers is kept, and becomes a recipe."""
    wanted = {
        "llama": ["num_query_groups = 2", "kv_channels = 2", "normalization = RMSNorm", "layernorm_epsilon = 1e-06",
                  "activation_func = silu", "gated_linear_unit = true", "add_bias_linear = false", "position_embedding_type = rope",
                  "share_embeddings_and_output_weights = false"],
        "qwen2": ["add_qkv_bias = true"],
        "qwen3": ["qk_layernorm = true"],
        "mixtral": ["rotary_base = 1000000.0", "num_moe_experts = 3"],
        "gpt2": ["ffn_hidden_size = 32", "bias_activation_fusion = true", "vocab_size = 10"],
        "deepseek_v3": ["multi_latent_attention = true", "moe_router_score_function = sigmoid", "kv_lora_rank = 4",
                        "qk_layernorm = true", "rope_type = rope"],
        "glm4": ["post_self_attn_layernorm = true", "post_mlp_layernorm = true", "rotary_percent = 0.5", "rotary_interleaved = true",
                 "add_qkv_bias = true"],
        "olmo2": ["pre_layernorm = false", "post_self_attn_layernorm = true", "qk_layernorm_full_width = true"],
        "glm4_moe": ["moe_router_score_function = sigmoid", "moe_router_enable_expert_bias = true", "moe_layer_freq = [0, 1]",
                     "moe_shared_expert_intermediate_size = 4", "rotary_percent = 0.5", "qk_layernorm = true", "add_qkv_bias = true"],
        "gemma2": ["scale_embeddings = true", "attn_logit_softcapping = 50.0", "final_logit_softcapping = 30.0", "softmax_scale = 0.0625",
                   "window_size = [4095, 0]", "window_attn_skip_freq = [2]", "layernorm_zero_centered_gamma = true",
                   "bias_activation_fusion = true"],
        "gemma3_text": ["window_rotary_base = 10000.0", "rotary_base = 1000000.0", "window_attn_skip_freq = [6]", "qk_layernorm = true"],
    }
    wanted |= {
        "llama4_text": ["attention_chunk_size = 8192", "no_rope_freq = [2]", "qk_l2_norm = true", "attn_temperature_tuning = true",
                        "rotary_interleaved = true", "rotary_base = 500000.0", "moe_layer_freq = [0, 1]", "ffn_hidden_size = 12",
                        "moe_ffn_hidden_size = 4", "moe_shared_expert_intermediate_size = 4", "moe_apply_probs_on_input = true",
                        "moe_router_score_function = sigmoid", "moe_router_topk = 1"],
        "qwen2_moe": ["moe_shared_expert_gate = true", "moe_shared_expert_intermediate_size = 6", "moe_router_pre_softmax = true",
                      "add_qkv_bias = true"],
        "starcoder2": ["position_embedding_type = rope", "bias_activation_fusion = true", "init_method_std = 0.018042"],
        "smollm3": ["no_rope_freq = [1, 0]", "rotary_base = 2000000.0"],
        "seed_oss": ["add_qkv_bias = true", "add_attn_proj_bias = true", "embedding_dropout = 0.0"],
        "gemma": ["scale_embeddings = true", "layernorm_zero_centered_gamma = true", "bias_activation_fusion = true"],
        "ernie4_5": ["rotary_interleaved = true", "rotary_base = 500000.0"],
        "arcee": ["activation_func = squared_relu", "add_mlp_bias = true", "normalization = RMSNorm"],
        "helium": ["rotary_interleaved = true", "rotary_base = 100000.0", "layernorm_epsilon = 1e-08", "add_qkv_bias = true"],
        "glm": ["rotary_percent = 0.5", "rotary_interleaved = true", "add_qkv_bias = true"],
        "ministral": ["window_size = [3, 0]", "window_attn_skip_freq = [2]"],
        "olmo3": ["window_size = [3, 0]", "window_attn_skip_freq = [2]", "rotary_base = 20000.0", "window_rotary_base = 500000.0",
                  "position_embedding_type = yarn", "yarn_rotary_scaling_factor = 8.0"],
        "olmoe": ["moe_router_pre_softmax = true", "qk_layernorm_full_width = true"],
        "stablelm": ["add_qkv_bias = true", "gated_linear_unit = true"],
        "dots1": ["moe_router_score_function = sigmoid", "moe_layer_freq = [0, 1]", "qk_layernorm = true", "window_attn_skip_freq = [0, 1]"],
        "glm4_moe_lite": ["moe_layer_freq = [0, 1]", "latent_layernorm_epsilon = 1e-06",
                          "moe_router_topk_scaling_factor = 1.8"],
        "mistral4": ["rotary_scaling_factor = 4.0", "q_lora_rank = 6"],
        "minimax_m2": ["moe_router_enable_expert_bias = true", "qk_layernorm_full_width = true", "rotary_base = 5000000.0"],
        "granite": ["embedding_multiplier = 12.0", "residual_multiplier = 0.22", "softmax_scale = 0.5", "logits_multiplier = 0.125"],
        "granitemoe": ["logits_multiplier = 0.16666666666666666", "softmax_scale = 1.0", "num_moe_experts = 3"],
        "hunyuan_v1_dense": ["qk_layernorm_after_rotation = true"], **hf_hybrids.WANTED,
        "exaone4": ["pre_layernorm = false", "window_attn_skip_freq = [2]", "no_rope_freq = [2]", "qk_layernorm = true"]}
    for kind, lines in wanted.items():
        text = import_recipe(work, work / f"{kind}.ckpt")
        expect_lines(kind, text, lines)
        expect("mtp_num_layers" not in text, f"{kind}: {text}")
    changed = {
        "theta": ({"rope_theta": 500000.0, "rms_norm_eps": 1e-5, "hidden_act": "gelu_pytorch_tanh"},
                  ["rotary_base = 500000.0", "bias_activation_fusion = true"]),
        "llama3": ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                     "original_max_position_embeddings": 8192}}, ["rope_scaling = true", "rope_scaling_factor = 8.0"]),
        "parameters": ({"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}, ["rotary_base = 20000.0"]),
        "linear": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["seq_len_interpolation_factor = 2.0"]),
        "yarn": ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
                 ["position_embedding_type = yarn", "yarn_rotary_scaling_factor = 4.0", "yarn_original_max_position_embeddings = 64"]),
        "unrounded": ({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": False, "mscale": 0.5, "mscale_all_dim": 2.0}},
                      ["yarn_correction_range_round_to_int = false", "yarn_mscale = 0.5", "yarn_mscale_all_dim = 2.0"]),
        "tied": ({"tie_word_embeddings": True}, []),  # as recipes are
    }
    for name, (config, lines) in changed.items():
        write_model(work / name, "llama", config, {key: shape for key, shape in dense().items()
                                                   if not config.get("tie_word_embeddings") or key != "lm_head.weight"})
        call("import", "hf", work / name, work / f"{name}.ckpt")
        text = import_recipe(work, work / f"{name}.ckpt")
        expect_lines(name, text, lines)
    expect("share_embeddings_and_output_weights" not in text, text)
    yarn = {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5, "original_max_position_embeddings": 64}
    kind, (sizes, shapes) = "deepseek_v3", MODELS["deepseek_v3"]
    write_model(work / "latent", kind, {**sizes, "rope_scaling": yarn}, shapes)
    call("import", "hf", work / "latent", work / "latent.ckpt")
    latent = import_recipe(work, work / "latent.ckpt")
    expect_lines(kind, latent, ["rope_type = yarn", "rotary_scaling_factor = 4.0", "mscale_all_dim = 0.5",
                                "original_max_position_embeddings = 64"])
    expect("num_query_groups" not in latent, latent)
    for setting, said in (({"rope_scaling": {**yarn, "truncate": False}}, "rope_scaling.truncate is false"),
                          ({"rope_interleave": False}, "rope_interleave is false")):
        write_model(work / "turned", kind, {**sizes, **setting}, shapes)
        expect(said in call("import", "hf", work / "turned", work / "none", status=1), said)
        shutil.rmtree(work / "turned")
    for kind, needed in (("phi3", "default"), ("glm4", "one of default, llama3, linear")):  # which turn parts of heads
        write_model(work / "turned", kind, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, MODELS[kind][1])
        said = call("import", "hf", work / "turned", work / "none", status=1)
        expect('rope_scaling.rope_type is "yarn"' in said and needed in said, said)
        shutil.rmtree(work / "turned")
    tied, tensors = MODELS["gpt2"]
    write_model(work / "untied", "gpt2", {**tied, "tie_word_embeddings": False}, {**tensors, "lm_head.weight": [VOCAB, HIDDEN]})
    said = call("import", "hf", work / "untied", work / "none", status=1)
    expect("tie_word_embeddings is false, which recipes cannot express; true (whether" in said, said)
    write_model(work / "window", "mistral", {"sliding_window": 4}, dense())
    call("import", "hf", work / "window", work / "window.ckpt")
    expect_lines("mistral", import_recipe(work, work / "window.ckpt"), ["window_size = [3, 0]"])
    biases = {f"model.layers.{layer}.{name}.bias": [rows] for layer in range(LAYERS) for name, rows in (
        ("self_attn.q_proj", HEADS * HEAD), ("self_attn.k_proj", GROUPS * HEAD), ("self_attn.v_proj", GROUPS * HEAD),
        ("self_attn.o_proj", HIDDEN), ("mlp.gate_proj", FFN), ("mlp.up_proj", FFN), ("mlp.down_proj", HIDDEN))}
    check(work, "biased", {"attention_bias": True, "mlp_bias": True}, dense() | biases, kind="llama")
    expect("add_bias_linear" not in import_recipe(work, work / "biased.ckpt"), "biases in all layers are a recipe's default")
    parts = {"attention": ["add_qkv_bias = true", "add_attn_proj_bias = true"], "mlp": ["add_mlp_bias = true"]}
    for part, lines in parts.items():
        own = {name: shape for name, shape in biases.items() if ("mlp" in name) == (part == "mlp")}
        check(work, f"biased.{part}", {f"{part}_bias": True}, dense() | own, kind="llama")
        expect_lines(part, import_recipe(work, work / f"biased.{part}.ckpt"), ["add_bias_linear = false", *lines])
    check(work, "windows", {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1}, dense(bias=True), kind="qwen2")
    expect_lines("windows", import_recipe(work, work / "windows.ckpt"), ["window_size = [3, 0]", "window_attn_skip_freq = [0, 1]"])


def check_predictors(work):
    """Multi-token prediction layers are kept, and named in the recipe; their copies need to be copies."""
    for kind, whole in (("deepseek_v3", {}), ("glm4_moe", {"partial_rotary_factor": 1.0})):  # half of two elements is odd
        config, shapes = {**MODELS[kind][0], **whole}, MODELS[kind][1]
        check(work, f"{kind}.further", config, with_predictor(shapes), kind=kind)
        expect_lines(kind, import_recipe(work, work / f"{kind}.further.ckpt"), ["mtp_num_layers = 1"])
        write_model(work / f"{kind}.none", kind, config, shapes)
        for folder, count in ((f"{kind}.further", 1), (f"{kind}.none", 0)):
            done = subprocess.run(["shardc", "import", "hf", work / folder], capture_output=True, text=True)
            expect(done.returncode == 0 and done.stdout.count("mtp_num_layers = 1") == count, done.stdout + done.stderr)
    write_model(work / "own", kind, config, with_predictor(shapes), again={})
    said = call("import", "hf", work / "own", work / "none", status=1)
    expect(f"'model.layers.{LAYERS}.embed_tokens.weight' has other values than 'model.embed_tokens.weight'" in said, said)


def check_beside(work):
    """Tokenizers and templates are carried; an adapter is refused, and tables of other weights are left."""
    source, names = work / "beside", ["tokenizer.model", "spiece.model", "vocab.txt", "merges.txt", "tekken.json", "chat_template.jinja",
                                      "special_tokens_map.json", "added_tokens.json", "qwen.tiktoken", "generation_config.json"]
    write_model(source, "llama", {}, dense())
    for name in names:
        (source / name).write_text(f"of {name}")
    for name in ("pytorch_model.bin.index.json", "adapter.txt", "README.md"):
        (source / name).write_text("{}")
    call("import", "hf", source, work / "beside.ckpt")
    call("export", "hf", work / "beside.ckpt", work / "beside.out")
    got = {path.name: path.read_text() for path in (work / "beside.out").iterdir() if path.suffix != ".safetensors"}
    expect(got.keys() == {*names, "config.json", "tokenizer.json"}, f"{sorted(got)}")
    expect(all(got[name] == f"of {name}" for name in names), "other contents")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (source / name).write_text("{}")
        said = call("import", "hf", source, work / "none", status=1)
        expect(f"beside' has an adapter ('{name}')" in said and "[hf-adapter]" in said, said)
        (source / name).unlink()


def check_packed(work):
    """mxfp4 is unpacked to the bits that transformers has; other formats are named."""
    source, out = work / "packed", work / "packed.out"
    mxfp4_model.write(source)
    said = call("import", "hf", source, work / "packed.ckpt", "--weight-dtype=bfloat16")
    expect("left-out" not in said, said)
    call("export", "hf", work / "packed.ckpt", out)
    config, tensors = json.loads((out / "config.json").read_text()), read_model(out)
    expect("quantization_config" not in config and config["model_type"] == "gpt_oss", f"{config}")
    golden = json.loads((pathlib.Path(__file__).parent / "mxfp4.json").read_text())["tensors"]
    for name, one in golden.items():
        kind, shape, data = tensors[name]
        expect([kind, shape] == ["BF16", one["shape"]] and hashlib.sha256(data).hexdigest() == one["sha256"], f"{name}: {kind} {shape}")
    lost = "model.layers.0.mlp.experts.down_proj_scales"
    mxfp4_model.write(work / "packed.lacking", leave_out=(lost,))
    said = call("import", "hf", work / "packed.lacking", work / "none", status=1)
    expect(f"'{lost}'" in said and "[tensors-missing]" in said, said)
    write_model(work / "packed.awq", "llama", {"quantization_config": {"quant_method": "awq", "bits": 4}}, dense())
    said = call("import", "hf", work / "packed.awq", work / "none", status=1)
    expect('packs the weights as "awq"' in said and "[hf-weights-packed]" in said, said)


def check_parts(work):
    """The text model of a model for text and images: its tensors under three prefixes, and the names of those that are
    left out."""
    vision = {"vision_tower.patch.weight": [4, 4], "multi_modal_projector.linear.weight": [HIDDEN, 4]}
    text = {**BASE, "model_type": "mistral", "sliding_window": None, "tie_word_embeddings": None}
    config = {"text_config": text, "tie_word_embeddings": None, "vision_config": {"model_type": "pixtral"}, "image_token_index": 7}
    for root, names in (("language_model.model.", "language_model.lm_head."), ("model.language_model.", "lm_head.")):
        source, out = work / f"parts.{root[:5]}", work / f"parts.{root[:5]}.out"
        shapes = {name.replace("model.", root, 1).replace("lm_head.", names): shape for name, shape in dense().items()}
        write_model(source, "mistral3", config, shapes | vision)
        said = call("import", "hf", source, work / f"{out.stem}.ckpt")
        expect("for 2 tensors, which are left out: [tensors-left-out]\n  multi_modal_projector.linear.weight\n  vision_tower" in said, said)
        expect("is a 'mistral3', of which the text model is imported; the other parts are left out: 'image_token_index', " in said, said)
        call("export", "hf", work / f"{out.stem}.ckpt", out)
        made, tensors = json.loads((out / "config.json").read_text()), read_model(out)
        expect(made["architectures"] == ["MistralForCausalLM"] and made["model_type"] == "mistral", f"{made}")
        expect(made["tie_word_embeddings"] is False and "vision_config" not in made, f"{made}")  # as the head says
        before = read_model(source)
        for name in dense():
            expect(tensors[name] == before[name.replace("model.", root, 1).replace("lm_head.", names)], f"{root}{name} differs")


def check_stacked(work):
    """Experts of qwen3_vl_moe in one tensor, in either of the two layouts: as from tensors of their own."""
    names = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
    experts = {"num_experts": EXPERTS, "moe_intermediate_size": 6, "mlp_only_layers": [0]}
    at = f"model.layers.{LAYERS - 1}.mlp"
    shapes = {name: shape for name, shape in dense(norms=True).items() if not name.startswith(at)}
    shapes[f"{at}.gate.weight"] = [EXPERTS, HIDDEN]
    own = {name: shape for expert in range(EXPERTS) for name, shape in mlp(f"{at}.experts.{expert}", rows=6).items()}
    write_model(work / "stacked.own", "qwen3_moe", experts, shapes | own)
    want = read_model(work / "stacked.own")
    for turned in (False, True):
        source, out = work / f"stacked.{turned}", work / f"stacked.{turned}.out"
        rows = {"gate_up_proj": 12, "down_proj": HIDDEN}
        columns = {"gate_up_proj": HIDDEN, "down_proj": 6}
        stacks = {f"{at}.experts.{name}": [EXPERTS, *([columns[name], rows[name]] if turned else [rows[name], columns[name]])] for name in names}
        fill = dict(want)
        for name, parts in names.items():
            stacked = b""
            for expert in range(EXPERTS):
                data = b"".join(want[f"{at}.experts.{expert}.{part}.weight"][2] for part in parts)
                cells = [data[i:i + 2] for i in range(0, len(data), 2)]
                width, height = columns[name], rows[name]
                stacked += b"".join(cells[row * width + column] for column in range(width) for row in range(height)) if turned else data
            fill[f"{at}.experts.{name}"] = ("BF16", stacks[f"{at}.experts.{name}"], stacked)
        text = {**BASE, **experts, "model_type": "qwen3_vl_moe_text", "norm_topk_prob": False, "tie_word_embeddings": None,
                "rope_scaling": {"rope_type": "default", "mrope_section": [1, 0, 0], "mrope_interleaved": True}}
        outside = {"text_config": text, "tie_word_embeddings": False, "vision_config": {"model_type": "qwen3_vl_moe"}}
        inner = {name: name.replace("model.", "model.language_model.", 1) for name in shapes | stacks}
        write_model(source, "qwen3_vl_moe", outside, {inner[name]: shape for name, shape in (shapes | stacks).items()},
                    values={inner[name]: fill[name][2] for name in shapes | stacks})
        call("import", "hf", source, work / f"stacked.{turned}.ckpt")
        call("export", "hf", work / f"stacked.{turned}.ckpt", out)
        expect(read_model(out) == want, f"stacked, {turned}: other tensors")
        made = json.loads((out / "config.json").read_text())
        expect(made["architectures"] == ["Qwen3MoeForCausalLM"] and made["norm_topk_prob"] is True, f"{made}")


def check_refused_settings(work):
    """What no recipe computes is not imported."""
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 4096}
    cases = [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, {}, 'rope_scaling.rope_type is "dynamic"'),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, {}, 'rope_scaling.type is "longrope"'),
        ({"rope_scaling": llama3}, {}, "rope_scaling.original_max_position_embeddings is 4096, which recipes cannot express; 8192"),
        ({"rope_scaling": "llama3"}, {}, 'rope_scaling is "llama3"'),
        ({"rope_theta": "big"}, {}, 'rope_theta is "big"'),
        ({"hidden_act": "mish"}, {}, 'hidden_act is "mish"'),
        ({"max_position_embeddings": 1e300}, {}, "max_position_embeddings is 1e+300"),
    ]
    for number, (config, tensors, said) in enumerate(cases):
        write_model(work / f"refused{number}", "llama", config, dense() | tensors)
        got = call("import", "hf", work / f"refused{number}", work / "none", status=1)
        expect(said in got and "[hf-setting-refused]" in got, f"{config}: {got}")
    windows = {"sliding_window": 4, "use_sliding_window": True}
    for kind, config, tensors, said in (
            ("qwen2", {**windows, "layer_types": ["chunked_attention"] * 2}, dense(bias=True), "a list of 2 layers of 'full_attention' or"),
            ("qwen2_moe", {**windows, "num_experts": EXPERTS}, {}, "use_sliding_window is true, which recipes cannot express; false"),
            ("mistral", {"sliding_window": 4, "layer_types": ["full_attention"] * 2}, dense(), "sliding_attention in every layer is needed")):
        write_model(work / f"refused.{kind}", kind, config, tensors)
        got = call("import", "hf", work / f"refused.{kind}", work / "none", status=1)
        expect(said in got and "[hf-setting-refused]" in got, f"{config}: {got}")
    both = {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}}
    check(work, "two-bases", {"tie_word_embeddings": True, **both}, MODELS["gemma3_text"][1], kind="gemma3_text")
    expect_lines("two-bases", import_recipe(work, work / "two-bases.ckpt"),
                 ["rotary_base = 500000.0", "window_rotary_base = 100.0", "seq_len_interpolation_factor = 8.0"])
    for kind, config, said in (
            ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
            ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0.0, which recipes cannot express; a number above 0"),
            ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, which recipes cannot express; null"),
            ("gemma3_text", {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
             'rope_parameters.sliding_attention.rope_type is "linear", which recipes cannot express; default'),
            ("gemma3_text", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
             "which recipes cannot express; an object for each kind of layers is needed"),
            ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is 8.0, which recipes cannot express; null"),
            ("olmoe", {"sliding_window": 4}, "sliding_window is 4, which recipes cannot express; null"),
            ("stablelm", {"use_parallel_residual": True}, "use_parallel_residual is true, which recipes cannot express; false"),
            ("stablelm", {"qk_layernorm": True}, "qk_layernorm is true, which recipes cannot express; false"),
            ("dots1", {"norm_topk_prob": False}, "norm_topk_prob is false, which recipes cannot express; true, as sigmoids"),
            ("minimax_m2", {"num_experts_per_tok": 1}, "num_experts_per_tok is 1, which recipes cannot express; 2 or more"),
            ("mistral4", {"n_group": 3}, "n_group is 3, which recipes cannot express; 1"),
            ("glm4_moe_lite", {"first_k_dense_replace": 2}, "first_k_dense_replace is 2, which recipes cannot express; 1"),
            ("olmo3", {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.3}},
             "rope_scaling.attention_factor is 1.3, which recipes cannot express; 1.2079441541679836"),
            ("hunyuan_v1_dense", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 'rope_scaling.type is "dynamic", which recipes cannot'),
            ("llama4_text", {"num_experts_per_tok": 2}, "num_experts_per_tok is 2, which recipes cannot express; 1, as scores multiply"),
            ("llama4_text", {"layer_types": ["full_attention"] * LAYERS}, '"chunked_attention" for each layer with rotations'),
            ("llama4_text", {"no_rope_layers": [1]}, "no_rope_layers is [1]; one number for each of 2 layers is needed"),
            ("starcoder2", {"norm_type": "rms_norm"}, 'norm_type is "rms_norm", which recipes cannot express; "layer_norm"'),
            ("smollm3", {"use_sliding_window": True, "sliding_window": 4}, "use_sliding_window is true, which recipes cannot express; false"),
            ("smollm3", {"layer_types": ["sliding_attention"] * LAYERS}, "full_attention in every layer is needed")):
        write_model(work / "of-gemma", kind, {**MODELS[kind][0], **config}, MODELS[kind][1])
        got = call("import", "hf", work / "of-gemma", work / "none", status=1)
        expect(said in got and ("[hf-setting-refused]" in got or "no_rope_layers" in config), f"{config}: {got}")
        shutil.rmtree(work / "of-gemma")
    write_model(work / "of-gpt2", "gpt2", {**MODELS["gpt2"][0], "scale_attn_by_inverse_layer_idx": True}, gpt2())
    got = call("import", "hf", work / "of-gpt2", work / "none", status=1)
    expect("scale_attn_by_inverse_layer_idx is true" in got, got)
    expect(not (work / "none").exists(), "something was made")


def main():
    work = pathlib.Path(sys.argv[1])
    shutil.rmtree(work, ignore_errors=True)
    for kind, (config, shapes) in MODELS.items():
        check(work, kind, config, shapes)
    check_details(work)
    check_smaller(work)
    check_bounds(work)
    check_predictors(work)
    check_arguments(work)
    check_refused_settings(work)
    check_beside(work)
    check_packed(work)
    check_parts(work)
    check_stacked(work)
    left = [name for name in os.listdir(work) if name.startswith(".")]
    expect(not left, f"{left} were left")


if __name__ == "__main__":
    main()
