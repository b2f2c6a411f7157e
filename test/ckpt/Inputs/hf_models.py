#!/usr/bin/env python3
"""Makes small models in Hugging Face's form, imports and exports them, and compares every byte.

    hf_models.py WORK
"""

import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys

HIDDEN, HEADS, GROUPS, HEAD, FFN, VOCAB, LAYERS, EXPERTS = 8, 4, 2, 2, 12, 10, 2, 3
BASE = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": HEAD,
        "intermediate_size": FFN, "vocab_size": VOCAB, "num_hidden_layers": LAYERS, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16"}


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
                     "first_k_dense_replace": 1, "q_lora_rank": 6, "kv_lora_rank": 4,
                     "num_nextn_predict_layers": 1}, deepseek()),  # transformers saves no predictor of further tokens
    "gpt2": ({"n_layer": LAYERS, "n_embd": HIDDEN, "n_head": HEADS, "tie_word_embeddings": True}, gpt2()),
}


def write_model(folder, kind, config, shapes):
    """Random bf16 values, none of them NaN."""
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
        data += b"".join(struct.pack("<H", rng.randrange(0x3c00, 0x4200)) for _ in range(count))
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


def check(work, kind, config, shapes):
    source, out = work / kind, work / f"{kind}.out"
    write_model(source, kind, config, shapes)
    said = call("import", "hf", source, work / f"{kind}.ckpt")
    expect("warning" not in said, f"{kind}: {said}")
    call("verify", work / f"{kind}.ckpt")
    said = call("export", "hf", work / f"{kind}.ckpt", out, "--config", source)
    expect("weights in bfloat16, as config.json says" in said, f"{kind}: {said}")
    want, got = read_model(source), read_model(out)
    expect(want.keys() == got.keys(), f"{kind}: {sorted(want.keys() ^ got.keys())[:5]} are on one side only")
    for name, value in want.items():
        expect(got[name] == value, f"{kind}: {name} differs: {got[name][:2]} and {value[:2]}")
    call("convert", "fsdp-dtensor-to-torch-dist", work / f"{kind}.ckpt", work / f"{kind}.dist")
    call("export", "hf", work / f"{kind}.dist", work / f"{kind}.dist-out", "--config", source)
    expect(read_model(work / f"{kind}.dist-out") == got, f"{kind}: from torch_dist the model differs")
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
    expect("1 tensors have no place in the model and are left out: [tensors-left-out]\n  model.layers.0.self_attn.sinks" in said, said)
    unknown = work / "unknown"
    write_model(unknown, "mamba", {}, {"x": [2]})
    said = call("import", "hf", unknown, work / "none", status=1)
    expect("model type 'mamba'; supported are llama" in said, said)


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
        ("hidden_size", 4, "'model.embed_tokens.weight' has 8 columns but the hidden size is 4",
         "'embedding.word_embeddings.weight' is [128, 8]; the hidden size in config.json is 4"),
        ("num_hidden_layers", 1, "9 tensors have no place in the model and are left out: [tensors-left-out]\n  model.layers.1.",
         "has no place for 6 parameters of the checkpoint"),
        ("tie_word_embeddings", True, None, "has no place for 1 parameters of the checkpoint"),
    ]
    for field, value, imported, exported in cases:
        source = work / f"{field}.small"
        write_model(source, "llama", {field: value}, dense())
        if imported:
            said = call("import", "hf", source, work / f"{field}.ckpt", status=0 if "place" in imported else 1)
            expect(imported in said, f"{field}: {said}")
        said = call("export", "hf", work / "llama.ckpt", work / f"{field}.out", "--config", source, status=1)
        expect(exported in said and not (work / f"{field}.out").exists(), f"{field}: {said}")


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


def main():
    work = pathlib.Path(sys.argv[1])
    shutil.rmtree(work, ignore_errors=True)
    for kind, (config, shapes) in MODELS.items():
        check(work, kind, config, shapes)
    check_details(work)
    check_smaller(work)
    check_bounds(work)
    left = [name for name in os.listdir(work) if name.startswith(".")]
    expect(not left, f"{left} were left")


if __name__ == "__main__":
    main()
