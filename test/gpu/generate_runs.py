#!/usr/bin/env python3
"""Lets models continue texts on a GPU.

    generate_runs.py families SHARDC [CASE...]   the tokens must be those that transformers chose (see generate_tokens.py)
    generate_runs.py speed SHARDC [--layers=32] [--prompt=128] [--tokens=128] [--texts=1] [--vocab=128256] [--folder=FOLDER]
                     [--backend=cuda] [--peer]   the time of a model of the sizes of Llama 3.1 8B in bf16, with random weights, for some
                                                 texts together; --peer: also that of transformers, compiled, with a static cache

In bf16, a GPU and the host round differently, so later tokens may differ; the first one must be the same. (On the host, bf16 and
fp32 have the same first six tokens for each family.) Exits with 77 unless SHARDC_GPU is 1.
"""

import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import gpus

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "e2e" / "golden"
sys.path[:0] = [str(GOLDEN.parent / "Inputs"), str(GOLDEN.parents[1] / "interop")]
import generate_tokens  # noqa: E402
import hf_values  # noqa: E402


def common_prefix(one, other):
    return next((i for i, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(len(one), len(other)))


def families(shardc, names):
    values = {name: json.loads((GOLDEN / f"values/{name}.json").read_text())["cases"] for name in ("hf_training", "generate")}
    wrong = []
    print(f"{'family':<16}{'fp32':>16}{'bf16 as host':>16}")
    with tempfile.TemporaryDirectory() as folder:
        for name in names or values["generate"]:
            case, model = values["generate"][name], values["hf_training"][name]
            path = generate_tokens.make(pathlib.Path(folder) / name, model, hf_values)
            found = generate_tokens.generate(shardc, path, case["prompt"], "--backend=cuda")
            model["config"]["dtype"] = "bfloat16"
            (path / "config.json").write_text(json.dumps(model["config"], indent=2))
            both = [generate_tokens.generate(shardc, path, case["prompt"], f"--backend={backend}") for backend in ("cuda", "host")]
            count = len(case["tokens"])
            print(f"{name:<16}{common_prefix(found, case['tokens']):>8} of {count:>4}{common_prefix(*both):>8} of {len(both[1]):>4}", flush=True)
            if found != case["tokens"]:
                wrong.append(f"{name}: {found}, transformers has {case['tokens']}")
            if common_prefix(*both) == 0:
                wrong.append(f"{name} in bf16: {both[0]}, the host has {both[1]}")
    if wrong:
        sys.exit("\n".join(wrong))


def write_large(folder, layers, vocab):
    """Llama 3.1 8B's tensors in bf16; all have the same random numbers, again and again."""
    hidden, ffn, keys = 4096, 14336, 1024
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_size": hidden,
              "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 8,
              "vocab_size": vocab, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu",
              "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": vocab - 1,
              "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for i in range(layers):
        own = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
               "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn),
               "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        shapes.update({f"model.layers.{i}.{name}.weight": shape for name, shape in own.items()})
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    # bf16 between 2^-7 and 2^-5 of both signs; the number of values is prime, so rows of a matrix differ.
    draws = os.urandom(2 * 15485863)
    block = b"".join(bytes((low, 0x3C | high & 0x80)) for low, high in zip(draws[0::2], draws[1::2]))
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(end // len(block)):
            file.write(block)
        file.write(block[:end % len(block)])
    return end


def run_peer(folder, prompts, tokens):
    import time

    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to("cuda")
    ids = torch.tensor(prompts, device="cuda")

    def seconds(count):
        torch.cuda.synchronize()
        begin = time.monotonic()
        made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, cache_implementation="static", eos_token_id=None,
                              pad_token_id=0, max_new_tokens=count, min_new_tokens=count)
        torch.cuda.synchronize()
        assert made.shape[1] == len(prompts[0]) + count
        return time.monotonic() - begin

    seconds(tokens)  # compiles
    rate = len(prompts) * (tokens - 2) / (min(seconds(tokens) for _ in range(2)) - min(seconds(2) for _ in range(2)))
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: {rate:.2f} tokens/s", flush=True)


def speed(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", action="store_true")
    for name, value in (("layers", 32), ("prompt", 128), ("tokens", 128), ("texts", 1), ("vocab", 128256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("shardc")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or pathlib.Path(made) / "model"
        if not folder.exists():
            write_large(folder, args.layers, args.vocab)
        prompts = [[(37 * i * i + 11 * i + 1009 * text) % args.vocab for i in range(args.prompt)] for text in range(args.texts)]
        lines = pathlib.Path(made) / "prompts"
        lines.write_text("".join(" ".join(map(str, prompt)) + "\n" for prompt in prompts))
        subprocess.run([args.shardc, "generate", folder, f"--prompts={lines}", f"--batch-size={args.texts}", "--tokenizer=none",
                        f"--tokens={args.tokens}", f"--backend={args.backend}", "--timings"], check=True, stdout=subprocess.DEVNULL)
        if args.peer:
            run_peer(folder, prompts, args.tokens)


def main():
    gpus.need_permission()
    if sys.argv[1] == "speed":
        speed(sys.argv[2:])
    else:
        families(sys.argv[2], sys.argv[3:])


if __name__ == "__main__":
    main()
