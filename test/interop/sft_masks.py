#!/usr/bin/env python3
"""Compares rows of `shardc data sft` with those of TRL and Megatron-Bridge: their tokens, and which of them count in
the loss.

    sft_masks.py SHARDC_FOLDER
    sft_masks.py --record BRIDGE    with TRL; BRIDGE is a checkout of Megatron-Bridge

Tests eight public chat templates (templates/, as in TRL) with one turn, several turns, a system prompt, tools and
truncation; TRL's forms of these templates, which mark generated text; and prompts with completions by Megatron-Bridge's
rules. sft_masks.json has the values that `--record` wrote, and the versions. The tokenizer has a token for each byte,
and the templates' special tokens. Exits with 77, skipped, without the packages tokenizers and jinja2.

Megatron-Bridge knows the marks of five of the templates. For phi3 and deepseekv3 it cannot train on answers only, so
their values come from TRL's marks alone. There, plain templates count what follows the generation prompt.
"""

import datetime
import hashlib
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time
import types

try:
    import jinja2  # noqa: F401
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE / "sft_masks.json"
SCRIPTS = [HERE.parents[1] / "runtime/tokenize" / name for name in ("exchange.py", "row_forms.py", "chat_template.py", "encode_rows.py")]
DATE = "2026-11-28"
CUT = 40  # tokens of a truncated row
SPECIAL = re.compile(r"<\|[a-z_]+\|>|<(?:bos|eos|s|/s|start_of_turn|end_of_turn)>|<｜[^｜]+｜>")
# {name: (eos_token, bos_token)}.
TEMPLATES = {"qwen2_5": ("<|im_end|>", None), "qwen3": ("<|im_end|>", None), "llama3": ("<|eot_id|>", "<|begin_of_text|>"),
             "llama3_1": ("<|eot_id|>", "<|begin_of_text|>"), "gemma3": ("<end_of_turn>", "<bos>"), "phi3": ("<|endoftext|>", "<s>"),
             "gptoss": ("<|return|>", None), "deepseekv3": ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>")}
TOOL = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "description": "first"}, "b": {"type": "integer", "description": "second"}},
    "required": ["a", "b"]}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
CONVERSATIONS = {
    "one": {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4."}]},
    "turns": {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi, wörld"},
                           {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye"},
                           {"role": "assistant", "content": "So\nlong 👋."}]},
    "tools": {"messages": [{"role": "user", "content": "Add 1 and 2"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
                           {"role": "tool", "name": "add", "content": "3"}, {"role": "assistant", "content": "It is 3."}], "tools": TOOL},
}
TURNS = CONVERSATIONS["turns"]["messages"]
CONVERSATIONS["completion"] = {"prompt": TURNS[:4], "completion": TURNS[4:]}  # a prompt and a completion, as TRL has them
PAIRS = {
    "plain": ({"prompt": "What is it?", "completion": "A test."}, {}),
    "separated": ({"input": "Question", "output": "Answer"}, {}),
    "begun": ({"prompt": "a b", "completion": "c"}, {"bos": True}),
    "bare": ({"prompt": "a b", "completion": "c"}, {"eos": False}),
    "full": ({"prompt": "a b", "completion": "c"}, {"mask": "full"}),
    "cut": ({"prompt": "0123456789", "completion": "abcdef"}, {"length": 9, "bos": True}),
    "cut_left": ({"prompt": "0123456789", "completion": "abcdef"}, {"length": 9, "cut": "left"}),
    "cut_answer": ({"prompt": "0123456789", "completion": "abcdef"}, {"length": 3}),
}
DEFAULTS = {"mode": "rows", "template": None, "mask": "assistant", "overlong": "drop", "cut": "right", "date": DATE, "end": None,
            "prompt_key": None, "completion_key": None, "prompt_template": None, "separator": None, "bos": False, "eos": True,
            "length": 100000, "pairs": False, "skip": False}
# Templates without calls: an answer that is a call would be empty.
CALLLESS = ("llama3 tools", "llama3_training tools", "phi3 tools", "phi3_training tools")
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def template_of(name):
    return (HERE / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def tokenizer_of(names):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = {mark for name in names for mark in SPECIAL.findall(template_of(name))}
    marks |= {token for name in TEMPLATES for token in TEMPLATES[name] if token}
    tokenizer.add_special_tokens(sorted(marks))
    return tokenizer


def save(tokenizer, folder, name):
    folder.mkdir()
    eos, bos = TEMPLATES[name.removesuffix("_training")]
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": eos, "bos_token": {"content": bos} if bos else None, "chat_template": template_of(name)}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def value_of(tokens, masks):
    """A short value that shows at which token rows differ: the count and digest of the tokens, and the ranges that
    count."""
    runs = []
    for i, mask in enumerate(masks):
        if mask and runs and runs[-1][1] == i:
            runs[-1][1] = i + 1
        elif mask:
            runs.append([i, i + 1])
    return {"tokens": len(tokens), "sha256": hashlib.sha256(struct.pack(f"<{len(tokens)}i", *tokens)).hexdigest()[:16], "runs": runs}


def all_names():
    return [path.stem for path in sorted((HERE / "templates").glob("*.jinja"))]


def cases():
    """Yields (key, template, conversation, settings)."""
    for name in all_names():
        for key, conversation in CONVERSATIONS.items():
            if key == "tools" and name.startswith(("gemma3", "deepseekv3")):
                continue  # the templates refuse it
            if key == "completion" and name == "gemma3":
                continue  # TRL counts the newline after its <end_of_turn>
            yield f"{name} {key}", name, conversation, {}
            if not name.endswith("_training") and key in ("turns", "tools"):
                yield f"{name} {key} last_turn", name, conversation, {"mask": "last_turn"}
                yield f"{name} {key} cut", name, conversation, {"length": CUT - 1, "overlong": "truncate"}


# --- our rows ---

def script_text():
    return "\n".join(script.read_text(encoding="utf-8") for script in SCRIPTS)


def load_script():
    module = types.ModuleType("encode_rows")
    exec(compile(script_text().rsplit("\nserve(run)", 1)[0], "encode_rows", "exec"), module.__dict__)
    return module


def ours(module, tokenizer, place):
    rows = {}
    for key, name, conversation, settings in cases():
        folder = place / name
        if not folder.exists():
            save(tokenizer, folder, name)
        maker = module.Rows(tokenizer, {**DEFAULTS, **settings, "tokenizer": str(folder / "tokenizer.json")})
        try:
            tokens, masks, _ = maker.rows(json.dumps(conversation))[0]
            rows[key] = value_of(tokens, masks)
        except module.Refused as error:
            rows[key] = {"refused": str(error)}
    for key, (row, settings) in PAIRS.items():
        overlong = "truncate" if "length" in settings else "drop"
        maker = module.Rows(tokenizer, {**DEFAULTS, **settings, "overlong": overlong, "tokenizer": str(place / "llama3/tokenizer.json")})
        rows[f"pair {key}"] = value_of(*maker.rows(json.dumps(row))[0][:2])
    return rows


def command(binaries, place):
    """Also tests the program: two templates, and input that it refuses."""
    failures = []
    for name in ("qwen3", "gptoss_training"):
        lines = place / f"{name}.jsonl"
        lines.write_text("".join(json.dumps(row) + "\n" for row in CONVERSATIONS.values()))
        subprocess.run([binaries / "shardc", "data", "sft", lines, "-o", place / f"{name}-packs", "--length=4096", "--pack=none", f"--date={DATE}",
                        f"--tokenizer={place / name}", f"--python={sys.executable}"], check=True, stdout=subprocess.DEVNULL)
        shown = subprocess.run([binaries / "shardc", "data", "show", place / f"{name}-packs", *"0123", "--color=never",
                                f"--python={sys.executable}"], check=True, stdout=subprocess.PIPE, text=True).stdout
        answers = sorted(re.findall(r"\[\[(.*?)\]\]", shown, re.DOTALL))
        head = "<|start|>assistant" if name.startswith("gptoss") else ""
        final = "<|channel|>final<|message|>" if head else ""
        wanted = sorted([f"{head}{final}4.{'<|return|>' if head else ''}", f"{head}{final}Hello!{'<|end|>' if head else ''}"])
        for text in wanted:
            if not any(text in answer for answer in answers):
                failures.append(f"{name}: {text!r} is not among the answers {answers}")
    refused = {"two beginnings": ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
                                  "{{bos_token}}{{bos_token}}{% for m in messages %}{% if m.role == 'user' %}{{m.content}}{% else %}"
                                  "{% generation %}{{m.content}}{% endgeneration %}{% endif %}{% endfor %}"),
               "in what the chat template generates": (CONVERSATIONS["one"], "{% for m in messages %}{% generation %}{{m.content}}{% endgeneration %}{% endfor %}"),
               "leaves out or distorts the words": (CONVERSATIONS["one"], "{% if false %}{% generation %}{% endgeneration %}{% endif %}hello"),
               "refuses it: no": (CONVERSATIONS["one"], "{{ raise_exception('no') }}"),
               "marks nothing": (CONVERSATIONS["one"], "{% if false %}{% generation %}{% endgeneration %}{% endif %}{% for m in messages %}{{m.content}}{% endfor %}"),
               "fails: SecurityError": (CONVERSATIONS["one"], "{{ ''.__class__.__mro__ }}{{ messages.append(1) }}"),
               "names a template": (CONVERSATIONS["turns"], "{{ messages|length }}{% for m in messages %}{{ m.content|length }}{% endfor %}")}
    for reason, (row, template) in refused.items():
        (place / "t.jinja").write_text(template)
        (place / "one.jsonl").write_text(json.dumps(row) + "\n")
        done = subprocess.run([binaries / "shardc", "data", "sft", place / "one.jsonl", "-o", place / "none", "--length=64",
                               f"--template={place / 't.jinja'}", f"--tokenizer={place / 'llama3'}", f"--python={sys.executable}"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        expected = "name a template" if reason == "names a template" else reason.replace("two beginnings", "it begins with two '<|begin_of_text|>'")
        if done.returncode != 1 or expected not in done.stdout or "one.jsonl:1'" not in done.stdout:
            failures.append(f"{reason}: status {done.returncode}, {done.stdout}")
    if not ends_with_parent(binaries, place):
        failures.append("a process with an endless template goes on without its parent")
    return failures


def ends_with_parent(binaries, place):
    """Whether the process of an endless template ends when shardc is killed."""
    (place / "t.jinja").write_text(ENDLESS)
    program = subprocess.Popen([binaries / "shardc", "data", "sft", place / "one.jsonl", "-o", place / "none", "--length=64", "--processes=1",
                                f"--template={place / 't.jinja'}", f"--tokenizer={place / 'llama3'}", f"--python={sys.executable}"],
                               stderr=subprocess.DEVNULL)
    children = []
    while not children and program.poll() is None:
        children = pathlib.Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    stat = pathlib.Path(f"/proc/{children[0]}/stat")

    def state():
        fields = stat.read_text().rpartition(")")[2].split() if stat.exists() else ["Z"] + [0] * 20
        return fields[0] == "Z", int(fields[11])

    while not state()[0] and state()[1] < 100:  # hundredths of a second of processor time: by then it renders
        time.sleep(0.05)
    program.kill()
    program.wait()
    for _ in range(600):  # half of the time that a row may take
        if state()[0]:
            return True
        time.sleep(0.05)
    return False


def bridge_packs(binaries, place):
    """Packs of Megatron-Bridge in both of its forms. Masks are those of the next token."""
    packs = [{"input_ids": [5, 6, 7, 8, 9], "seq_start_id": [0, 3], "loss_mask": [0, 1, 0, 1, 0]},
             {"input_ids": [1, 2, 3, 4], "seq_start_id": [0], "loss_mask": [0, 0, 1, 0]}]
    files, failures = [], []
    try:
        import numpy
        numpy.save(place / "packs.npy", numpy.array(packs, dtype=object))
        files.append("packs.npy")
        numpy.save(place / "wrong.npy", numpy.array([pathlib.PurePath("x")], dtype=object))
        done = subprocess.run([binaries / "shardc", "data", "pack", place / "wrong.npy", "-o", place / "wrong", "--length=8",
                               f"--python={sys.executable}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 1 or "that is no pack" not in done.stdout:
            failures.append(f"an object: status {done.returncode}, {done.stdout}")
        import pyarrow
        import pyarrow.parquet
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(packs), place / "packs.idx.parquet")
        files.append("packs.idx.parquet")
        rows = [CONVERSATIONS["turns"], {"instruction": "a", "output": "b"}] * 600  # columns that a row does not have are null
        columns = [{"messages": None, "instruction": None, **row, "output": row["output"].encode() if "output" in row else None} for row in rows]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(columns), place / "rows.parquet")  # with texts as bytes, as Spark writes them
        (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for kind in ("parquet", "jsonl"):
            subprocess.run([binaries / "shardc", "data", "sft", place / f"rows.{kind}", "-o", place / kind, "--length=4096", f"--date={DATE}",
                            f"--tokenizer={place / 'qwen3'}", f"--python={sys.executable}"], check=True, stdout=subprocess.DEVNULL)
        if (place / "parquet.mask.bin").read_bytes() != (place / "jsonl.mask.bin").read_bytes():
            failures.append("rows of Parquet are other rows")
        if json.loads((place / "parquet.json").read_text())["inputs"][0]["lines"] != len(rows):
            failures.append("rows of Parquet are counted wrongly")
    except ImportError as error:
        print(f"without packs of Megatron-Bridge: {error}")
    for file in files:
        subprocess.run([binaries / "shardc", "data", "pack", place / file, "-o", place / "taken", "--length=8", f"--python={sys.executable}"],
                       check=True, stdout=subprocess.DEVNULL)
        shown = subprocess.run([binaries / "shardc", "data", "show", place / "taken", "0", "1", "--tokenizer=none", "--color=never"],
                               check=True, stdout=subprocess.PIPE, text=True).stdout
        if json.loads((place / "taken.json").read_text())["vocab_size"] != 10:
            failures.append(f"{file}: another vocabulary")
        lines = [line for line in shown.splitlines() if not line.startswith("---")]
        if lines != ["5 6 [[7 ]]", "8 [[9 ]]", "1 2 3 [[4 ]]"] and lines != ["5 6 [[7 ]]", "8 [[9 ]]", "1 2 3 [[4 ]]", ""]:
            failures.append(f"{file}: {shown}")
    return failures


# --- rows of others ---

class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(DATE)


def bridge_module(checkout):
    """Imports two files of Megatron-Bridge by themselves, since their imports are not installed."""
    names = ["megatron", "megatron.bridge", "megatron.bridge.data", "megatron.bridge.data.datasets", "megatron.bridge.training",
             "megatron.bridge.training.utils"]
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    utils = sys.modules["megatron.bridge.data.datasets.utils"] = types.ModuleType("utils")
    utils.GENERATION_REGEX, utils.IGNORE_INDEX = re.compile(r"\{%-?\s+generation\s+-?%\}"), -100
    visual = sys.modules["megatron.bridge.training.utils.visual_inputs"] = types.ModuleType("visual")
    visual.GenericVisualInputs = object
    made = []
    for name in ("conversation_processing", "sft_processing"):
        module = sys.modules[f"megatron.bridge.data.{name}"] = types.ModuleType(f"megatron.bridge.data.{name}")
        text = subprocess.run(["git", "-C", checkout, "show", f"HEAD:src/megatron/bridge/data/{name}.py"], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        exec(compile(text, name, "exec"), module.__dict__)
        made.append(module)
    return made


def record(checkout):
    import transformers
    import transformers.utils.chat_template_utils as chat_template_utils
    import trl.data_utils
    chat_template_utils.datetime = FixedDate
    conversation_processing, sft_processing = bridge_module(checkout)
    tokenizer = tokenizer_of(all_names())
    values = {}
    for key, name, conversation, settings in cases():
        eos, bos = TEMPLATES[name.removesuffix("_training")]
        wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, bos_token=bos)
        wrapped.chat_template = template_of(name)
        if "completion" in conversation:  # as in SFTTrainer's tokenize_fn
            before, whole = (wrapped.apply_chat_template(messages, tokenize=True, return_dict=True, add_generation_prompt=is_prompt)["input_ids"]
                             for messages, is_prompt in ((TURNS[:4], True), (TURNS, False)))
            first = trl.data_utils.common_prefix_length(before, whole)
            values[key] = {"of": "trl", **value_of(whole, [0] * first + [1] * (len(whole) - first))}
            continue
        if name.endswith("_training"):
            made = wrapped.apply_chat_template(conversation["messages"], tools=conversation.get("tools"), tokenize=True, return_dict=True,
                                               return_assistant_tokens_mask=True)
            values[key] = {"of": "trl", **value_of(made["input_ids"], made["assistant_masks"])}
            continue
        try:
            row = conversation_processing.tokenize_chat_example(
                conversation, wrapped, warn_on_all_masked=False, loss_mode=settings.get("mask", "assistant"),
                max_length=settings["length"] + 1 if "length" in settings else None)
            values[key] = {"of": "bridge", **value_of(row.input_ids.tolist(), row.assistant_mask.int().tolist())}
        except ValueError as error:
            values[key] = {"of": "bridge", "refused": str(error)[:60]}
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|eot_id|>", bos_token="<|begin_of_text|>")
    for key, (row, settings) in PAIRS.items():
        columns = {} if "prompt" in row else {"prompt_column": "input", "completion_column": "output", "separator": " "}
        config = sft_processing.PromptCompletionSFTPreprocessingConfig(
            **columns, add_bos=settings.get("bos", False), add_eos=settings.get("eos", True), truncation_method=settings.get("cut", "right"),
            loss_mode="full" if settings.get("mask") == "full" else "completion")
        made = sft_processing.tokenize_prompt_completion_example(
            row, wrapped, config, max_length=settings["length"] + 1 if "length" in settings else None)
        values[f"pair {key}"] = {"of": "bridge", **value_of(made.input_ids.tolist(), made.loss_mask.int().tolist())}
    commit = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "tokenizers": tokenizers.__version__, "megatron-bridge": commit}
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    GOLDEN.write_text(f'{{"versions": {json.dumps(versions)}, "values": {{\n{lines}\n}}}}\n')


def main():
    if sys.argv[1] == "--record":
        record(sys.argv[2])
        return
    golden = json.loads(GOLDEN.read_text())["values"]
    failures, refused = [], 0
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        made = ours(load_script(), tokenizer_of(all_names()), place)
        if sorted(made) != sorted(golden):
            failures.append("other cases than those that were recorded")
        for key, value in made.items():
            wanted = {k: v for k, v in golden.get(key, {}).items() if k != "of"}
            if key.removesuffix(" cut") in CALLLESS:
                refused += 1
                if "the calls of message 1" not in value.get("refused", ""):
                    failures.append(f"{key}: {value}, which is not refused for its calls")
            elif "refused" in wanted:
                refused += 1
                if not value.get("runs") and not key.endswith("cut"):
                    failures.append(f"{key}: nothing counts")
                marked = golden.get(key.replace("phi3 ", "phi3_training "), {})
                if key.startswith("phi3 ") and marked and value.get("runs") != marked["runs"]:
                    failures.append(f"{key}: {value}, TRL {marked}")
            elif value != wanted:
                failures.append(f"{key}: {value}, {golden.get(key)}")
        binaries = pathlib.Path(sys.argv[1]).resolve()
        failures += command(binaries, place) + bridge_packs(binaries, place)
    for failure in failures:
        print(failure)
    print(f"{len(made) - refused} rows are as recorded, {refused} are those that Megatron-Bridge refuses; {len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
