#!/usr/bin/env python3
"""Folders as other programs leave them: fields that the library does not read, other names of tensors, files beside them.

    hf_folders.py WORK
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import hf_models
from hf_models import BASE, EXPERTS, LAYERS, MODELS, VOCAB, call, dense, expect, read_model, write_model


# Parts of names that transformers 5 has in memory in place of those of published files, and what it joins.
MEMORY = {"mixtral": ([(".block_sparse_moe.", ".mlp.")], {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}),
          "granitemoe": ([(".router.layer.", ".router."), (".input_linear.weight", ".experts.gate_up_proj"),
                          (".output_linear.weight", ".experts.down_proj")], {}),
          "nemotron_h": ([("backbone.", "model.")], {"up_proj": ("up_proj",), "down_proj": ("down_proj",)})}


def imported(work, name, kind, config, shapes, values=None):
    """The folder's import, exported again: what it says, and the tensors."""
    write_model(work / name, kind, config, shapes, values=values)
    said = call("import", "hf", work / name, work / f"{name}.ckpt")
    call("export", "hf", work / f"{name}.ckpt", work / f"{name}.out")
    return said, read_model(work / f"{name}.out")


def recipe_of(path, status=0):
    done = subprocess.run(["shardc", "import", "hf", path], capture_output=True, text=True)
    expect(done.returncode == status, done.stdout + done.stderr)
    return done.stdout + done.stderr


def check_fields(work):
    """A field that the class does not read changes nothing, whatever its value, and stays in the file."""
    windows = ("llama", "olmo2", "granite", "glm4", "nemotron", "stablelm", "glm4_moe", "gemma", "granitemoe", "seed_oss", "ernie4_5",
               "hunyuan_v1_dense", "deepseek_v3", "qwen3_next", "granitemoehybrid", "bamba", "lfm2", "helium", "arcee", "minimax_m2")
    idle = [(kind, {"sliding_window": 4}) for kind in windows if kind in MODELS]
    idle += [("llama", {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
             ("llama", {"num_nextn_predict_layers": 1}), ("gpt_oss", {"hidden_act": "relu"}), ("mixtral", {"output_router_logits": True}),
             ("hunyuan_v1_dense", {"num_experts": 1}), ("llama", {"use_sliding_window": False}), ("llama", {"routed_scaling_factor": 2.5}),
             ("llama", {"num_local_experts": None, "moe_intermediate_size": 3})]
    (work / "idle").mkdir()
    for kind, config in idle:
        path = work / "idle" / "config.json"
        base = {"model_type": kind, **BASE, "num_experts_per_tok": 2, **MODELS[kind][0], "hidden_size": 32}
        base.pop("head_dim", None)
        recipes = []
        for fields in (base, {**base, **config}):
            path.write_text(json.dumps(fields))
            done = subprocess.run(["shardc", "import", "hf", path], capture_output=True, text=True)
            expect(done.returncode == 0, f"{kind} {config}: {done.stderr}")
            recipes.append(done.stdout)
        expect(recipes[0] == recipes[1], f"{kind} {config}: {recipes[1]}")
    imported(work, "window", "llama", {"sliding_window": 4}, dense())
    kept = json.loads((work / "window.out" / "config.json").read_text())
    expect(kept["sliding_window"] == 4, f"{kept}")
    path.write_text(json.dumps({"model_type": "qwen3_next", **BASE, **MODELS.get("qwen3_next", [{}])[0], "hidden_act": "gelu"}))
    said = recipe_of(path, status=1)
    expect('hidden_act is "gelu", which recipes cannot express; "silu"' in said, said)
    for lacking, what in (("vocab_size", "size of the vocabulary"), ("hidden_size", "hidden size"), ("num_hidden_layers", "number of layers")):
        path.write_text(json.dumps({"model_type": "llama", **{key: value for key, value in BASE.items() if key != lacking}}))
        expect(f"does not set the {what}" in recipe_of(path, status=1), lacking)
    path.write_text(json.dumps({"model_type": "llama", **BASE, "pad_token_id": -1}))
    expect(f"embedding of token {VOCAB - 1} " in recipe_of(path), "a negative padding token counts from the end")


def check_names(work):
    """Names without a root, a head alone of a tied model, and those that transformers 5 has in memory."""
    plain = {name.removeprefix("model."): shape for name, shape in dense().items()}
    said, got = imported(work, "rootless", "llama", {}, plain)
    expect({name.removeprefix("model."): value for name, value in got.items()} == read_model(work / "rootless"), said)
    tied = {"lm_head.weight" if name.startswith("model.embed") else name: shape for name, shape in dense().items() if name != "lm_head.weight"}
    said, got = imported(work, "head", "llama", {"tie_word_embeddings": True}, tied)
    expect(got["model.embed_tokens.weight"] == read_model(work / "head")["lm_head.weight"], said)
    for kind, (renames, merged) in MEMORY.items():
        config, shapes = MODELS[kind]
        write_model(work / kind, kind, config, shapes)
        values, held, bytes_of = {name: value[2] for name, value in read_model(work / kind).items()}, {}, {}
        for name, shape in shapes.items():
            one = re.fullmatch(r"(.*\.experts)\.0\.(\w+)\.weight", name)
            parts = next((parts for parts in merged.values() if one and one[2] == parts[0]), None)
            other = f"{one[1]}.{next(key for key in merged if merged[key] == parts)}" if parts else name
            for stored, changed in renames:
                other = other.replace(stored, changed)
            if parts:
                held[other] = [EXPERTS, shape[0] * len(parts), shape[1]]
                bytes_of[other] = b"".join(values[f"{one[1]}.{expert}.{part}.weight"] for expert in range(EXPERTS) for part in parts)
            elif not re.search(r"\.experts\.\d", name):
                held[other], bytes_of[other] = shape, values[name]
        said, got = imported(work, f"{kind}.memory", kind, config, held, values=bytes_of)
        got = {name: value[2] for name, value in got.items() if not name.endswith("e_score_correction_bias")}
        expect(got == values, f"{kind}: {said}")


def check_files(work):
    """Code, licences and further templates come along; a single file goes before parts; a folder without weights says what it has."""
    files = {"LICENSE": "l", "NOTICE.txt": "n", "USE_POLICY.md": "u", "modeling_x.py": "m", "additional_chat_templates/tool_use.jinja": "t",
             "additional_chat_templates/rag.jinja": "r"}
    write_model(work / "files", "llama", {"auto_map": {"AutoModel": "modeling_x.X"}}, dense())
    (work / "files" / "additional_chat_templates").mkdir()
    for name, text in {**files, "additional_chat_templates/notes.txt": "x", "README.md": "x"}.items():
        (work / "files" / name).write_text(text)
    call("import", "hf", work / "files", work / "files.ckpt")
    call("verify", work / "files.ckpt")
    call("convert", "fsdp-dtensor-to-torch-dist", work / "files.ckpt", work / "files.dist")
    call("export", "hf", work / "files.dist", work / "files.out")
    got = {str(path.relative_to(work / "files.out")): path.read_text() for path in (work / "files.out").rglob("*")
           if path.is_file() and path.suffix != ".safetensors"}
    expect(got.keys() == {*files, "config.json", "tokenizer.json"} and all(got[name] == text for name, text in files.items()), f"{got}")

    write_model(work / "both", "llama", {}, dense())
    (work / "both" / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}')
    shutil.copy(work / "files" / "model.safetensors", work / "both" / "model-00001-of-00001.safetensors")
    said = call("import", "hf", work / "both", work / "both.ckpt")
    expect("has an index of parts beside model.safetensors, which is read" in said and "[hf-index-unread]" in said, said)
    (work / "both" / "model.safetensors").rename(work / "both" / "pytorch_model.bin")
    (work / "both" / "model.safetensors.index.json").unlink()
    (work / "both" / "model-00001-of-00001.safetensors").unlink()
    said = call("import", "hf", work / "both", work / "none", status=1)
    expect("no parts of one, but pytorch_model.bin; load it with transformers and save it" in said, said)
    (work / "both" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    said = call("import", "hf", work / "both", work / "none", status=1)
    expect("a pointer of Git LFS, not the weights; 'git lfs pull'" in said, said)
    (work / "both" / "config.json").unlink()
    said = call("inspect", work / "both", status=1)
    expect("converts it, which needs the model's config.json" in said, said)


def check_missing(work):
    """A bias that the file says and no tensor has; a tensor that several parts of a parameter need counts once."""
    write_model(work / "biased", "llama", {"attention_bias": True}, dense())
    said = call("import", "hf", work / "biased", work / "none", status=1)
    expect(f"does not contain {3 * LAYERS} tensors:" in said and "model.layers.0.self_attn.q_proj.bias" in said, said)
    write_model(work / "short", "llama", {}, {name: shape for name, shape in dense().items() if name != "model.layers.1.self_attn.q_proj.weight"})
    said = call("import", "hf", work / "short", work / "none", status=1)
    expect("does not contain 1 tensors:" in said, said)


def check_shapes(work):
    """Tensors whose shapes follow from the hidden size alone are compared with it, whatever their rows."""
    first = "model.layers.0."
    for name, shape, said in ((f"{first}input_layernorm.weight", [6], "[6]"), ("model.norm.weight", [10], "[10]"), (f"{first}self_attn.o_proj.weight", [6, 8], "[6, 8]"),
                              (f"{first}mlp.down_proj.weight", [10, 12], "[10, 12]")):
        source = work / "wrong"
        shutil.rmtree(source, ignore_errors=True)
        write_model(source, "llama", {}, {**dense(), name: shape})
        found = call("import", "hf", source, work / "none", status=1)
        expect(f"'{name}' is {said}; the hidden size in config.json is 8" in found and not (work / "none").exists(), found)


def check_kept_predictors(work):
    """A kept config.json that names layers of multi-token prediction whose tensors the checkpoint lacks."""
    plain = {**MODELS["deepseek_v3"][1], f"model.layers.{LAYERS - 1}.mlp.gate.e_score_correction_bias": [EXPERTS]}
    for shapes, name, count in ((plain, "none", 0), (hf_models.with_predictor(plain), "one", 1)):
        write_model(work / f"mtp.{name}", "deepseek_v3", MODELS["deepseek_v3"][0], shapes)
        call("import", "hf", work / f"mtp.{name}", work / f"mtp.{name}.ckpt")
        recipe = recipe_of(work / f"mtp.{name}.ckpt" / "iter_0000000" / "huggingface")
        expect(recipe.count("mtp_num_layers = 1") == count, recipe)
    (work / "rows.jsonl").write_text('{"context": "5", "continuation": " 6 7"}\n')
    done = subprocess.run(["shardc", "score", work / "mtp.none.ckpt", work / "rows.jsonl", "--tokenizer=none", "--backend=host"],
                          capture_output=True, text=True)
    expect(done.returncode == 0, done.stdout + done.stderr)


def main():
    work = pathlib.Path(sys.argv[1])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    check_fields(work)
    check_names(work)
    check_files(work)
    check_missing(work)
    check_shapes(work)
    check_kept_predictors(work)


if __name__ == "__main__":
    main()
