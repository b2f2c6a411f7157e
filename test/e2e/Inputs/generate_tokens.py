#!/usr/bin/env python3
"""Lets models in Hugging Face's form continue texts, and compares the tokens with those of transformers.

    generate_tokens.py SHARDC WORK GOLDEN [CASE...]

GOLDEN is test/e2e/golden. Its file values/generate.json has, for each case, the tokens of a prompt and those that
greedy decoding by transformers appended, with their log-probability (test/interop/generate_transformers.py). The models are those of
values/hf_training.json. The first case also continues from a checkpoint, from a prompt in two parts, with adapters and
with merged weights, and by sampling: a seed gives the same tokens each time.
"""

import array
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys

COUNT = 12  # tokens


def prompt(number):
    """Of the case with this number."""
    return [(37 * number + 11 * i * i + 5 * i) % 250 + 3 for i in range(3 + number % 9)]


def generate(shardc, model, tokens, *options):
    done = subprocess.run([shardc, "generate", model, " ".join(map(str, tokens)), f"--tokens={COUNT}", "--tokenizer=none", *options],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{model}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return [int(word) for word in done.stdout.split()]


def expect_batch(shardc, model, case):
    """Texts of different lengths, of which two run together; the third begins where one has ended."""
    begun = [case["prompt"] + case["tokens"][:5], case["prompt"][:1], case["prompt"]]
    rows = model.parent / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": " ".join(map(str, tokens)), "id": i}) + "\n" for i, tokens in enumerate(begun)))
    done = subprocess.run([shardc, "generate", model, f"--prompts={rows}", f"--tokens={COUNT}", "--tokenizer=none", "--batch-size=2"],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{model}: status {done.returncode}\n{done.stdout}{done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = [[int(word) for word in line["generated"].split()] for line in lines]
    expect([line["id"] for line in lines], [0, 1, 2], "the order of texts")
    expect(found[0][:COUNT - 5], case["tokens"][5:], "the longer text of a batch")
    expect(found[1], generate(shardc, model, begun[1]), "the shorter text of a batch")
    expect(found[2], case["tokens"], "the last text of a batch")


def expect_score(shardc, model, prompt, tokens, wanted):
    """The log-probability of tokens behind a prompt, and of the last token alone, which greedy decoding chose."""
    context, continuation, last = (" ".join(map(str, some)) for some in (prompt, tokens, tokens[-1:]))
    rows = model.parent / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ({"context": context, "continuation": " " + continuation, "id": 1},
                                                              {"context": f"{context} {continuation[:-len(last)]}", "continuation": last})))
    done = subprocess.run([shardc, "score", model, rows, "--tokenizer=none"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{model}: status {done.returncode}\n{done.stdout}{done.stderr}")
    whole, one = map(json.loads, done.stdout.splitlines())
    if abs(whole["log_probability"] - wanted) > 2e-5 or one["log_probability"] < whole["log_probability"]:
        sys.exit(f"{model}: {done.stdout}; the log-probability is {wanted}")
    expect([whole["id"], whole["tokens"], one["tokens"], whole["is_likeliest"], one["is_likeliest"]], [1, len(tokens), 1, True, True], "scores")


def make(work, case, hf_values):
    model = work / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(case["config"], indent=2))
    hf_values.write_tensors(model / "model.safetensors", case["shapes"], case["config"]["model_type"])
    return model


def expect(found, wanted, what):
    if found != wanted:
        sys.exit(f"{what}: {found}, expected {wanted}")


def write_adapter(folder, shapes):
    """In the form of PEFT, of queries and values."""
    folder.mkdir()
    rng, header, data = random.Random(7), {}, b""
    for name, shape in shapes.items():
        module = name.removesuffix(".weight")
        if module.split(".")[-1] not in ("q_proj", "v_proj"):
            continue
        for factor, size in (("lora_A", (4, shape[1])), ("lora_B", (shape[0], 4))):
            values = array.array("f", (rng.gauss(0, 0.3) for _ in range(size[0] * size[1]))).tobytes()
            header[f"base_model.model.{module}.{factor}.weight"] = {
                "dtype": "F32", "shape": size, "data_offsets": [len(data), len(data) + len(values)]}
            data += values
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none"}))


def check_adapters(shardc, work, model, case, shapes):
    write_adapter(work / "peft", shapes)
    for words in (["import", "peft", work / "peft", work / "adapters", "--config", model],
                  ["merge", work / "adapters", model, work / "merged"]):
        subprocess.run([shardc, "ckpt", *words], check=True, capture_output=True)
    found = generate(shardc, work / "adapters", case["prompt"], f"--base={model}")
    expect(found, generate(shardc, work / "merged", case["prompt"]), "adapters")
    if found == case["tokens"]:
        sys.exit("adapters change nothing")
    done = subprocess.run([shardc, "generate", work / "adapters", "1", "--tokenizer=none", f"--base={work / 'none'}"], capture_output=True, text=True)
    if done.returncode != 1 or "[checkpoint-not-found]" not in done.stderr:
        sys.exit(f"without a base: status {done.returncode}, {done.stderr}")


def check_ways(shardc, work, model, case):
    subprocess.run([shardc, "ckpt", "import", "hf", model, work / "weights"], check=True, capture_output=True)
    expect(generate(shardc, work / "weights", case["prompt"]), case["tokens"], "from a checkpoint")
    # Keys of a text that was read at once are those of its tokens one by one.
    longer = case["prompt"] + case["tokens"][:5]
    expect(generate(shardc, model, longer)[:COUNT - 5], case["tokens"][5:], "of a longer prompt")
    drawn = [generate(shardc, model, case["prompt"], "--temperature=2", f"--seed={seed}") for seed in (1, 1, 2)]
    expect(drawn[0], drawn[1], "drawn twice")
    if drawn[0] == drawn[2] or drawn[0] == case["tokens"]:
        sys.exit(f"draws do not differ: {drawn}")


def check_precision(shardc, model, case):
    """A model in bf16 computes in bf16; here, this changes the tokens after the first ones."""
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    found = generate(shardc, model, case["prompt"])
    expect(generate(shardc, model, case["prompt"], "--set=mixed_precision=fp32"), case["tokens"], "in fp32 on request")
    if found == case["tokens"] or found[:3] != case["tokens"][:3]:
        sys.exit(f"in bf16: {found}")


def main():
    shardc, work, golden = sys.argv[1], *(pathlib.Path(word).resolve() for word in sys.argv[2:4])
    sys.path.insert(0, str(golden.parents[1] / "interop"))
    import hf_values

    shutil.rmtree(work, ignore_errors=True)
    models = json.loads((golden / "values/hf_training.json").read_text())["cases"]
    cases = json.loads((golden / "values/generate.json").read_text())["cases"]
    for number, name in enumerate(sys.argv[4:] or cases):
        model = make(work / name, models[name], hf_values)
        expect(generate(shardc, model, cases[name]["prompt"]), cases[name]["tokens"], name)
        expect_score(shardc, model, cases[name]["prompt"], cases[name]["tokens"], cases[name]["log_probability"])
        expect_batch(shardc, model, cases[name])
        if number == 0:
            check_ways(shardc, work / name, model, cases[name])
            check_adapters(shardc, work / name, model, cases[name], models[name]["shapes"])
        if name == "glm4":
            check_precision(shardc, model, cases[name])
        print(f"{name}: {len(cases[name]['tokens'])} tokens")


if __name__ == "__main__":
    main()
