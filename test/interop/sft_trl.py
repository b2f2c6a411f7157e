#!/usr/bin/env python3
"""Compares random rows of `shardc data sft` and `data preference` with those of TRL's own trainers: the tokens, and which of
them count in the loss.

    sft_trl.py                    with the recorded rows
    sft_trl.py --record           writes sft_trl.json, by the templates of templates/
    sft_trl.py --random SEED N    N rows by each of TRL's templates for training, and as many texts and pairs

The rows go through `_prepare_dataset` of SFTTrainer (assistant_only_loss for conversations) and of DPOTrainer. The tokenizer
has a token for each byte, and the templates' special tokens. A row that TRL's template refuses is not compared, nor one whose
calls the template does not print, which TRL trains as empty answers and shardc refuses. Recorded
with trl 1.16.0 and transformers 5.24.0. Exits with 77, skipped, without the packages tokenizers and jinja2, and without TRL
if it is needed.
"""

import json
import pathlib
import random
import sys
import tempfile
import types

import sft_masks

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE / "sft_trl.json"
WORDS = ["Hi", "wörld", "2+2?", " a", "b ", "\n", "\n\nNote: ", "👋", "日本", "<b>", "'q'", "\\n", '{"a": 1}', "<|im_end|>", "", "\t", "no.", "Ünï"]
# Templates of models with images, which lose content that is a text, and one that prints the date.
OTHERS = ("idefics3_training", "smolvlm_training", "muse_glimmer_training", "gptoss_training")
START = "<|begin|>"  # with --random, the tokenizer puts it before a text
LOST = "the chat template leaves out or distorts the calls of"
KINDS = ("messages", "conversation and completion", "texts", "text", "pair of texts", "pair of answers", "implicit pair")


def words(draw, least=0):
    text = "".join(draw.choices(WORDS, k=draw.randint(least, 5)))
    return text if text.strip() or not least else text + "x"


def conversation(draw, has_tools):
    turns = [{"role": "system", "content": words(draw, 1)}] if draw.random() < 0.4 else []
    for _ in range(draw.randint(1, 3)):
        turns.append({"role": "user", "content": words(draw, 1)})
        if has_tools and draw.random() < 0.4:
            arguments = {"a": draw.randint(0, 9), "b": words(draw)}
            turns += [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": arguments}}]},
                      {"role": "tool", "name": "add", "content": words(draw, 1)}]
        turns.append({"role": "assistant", "content": words(draw, 1)})
    return turns


def row_of(kind, draw):
    """A row, and whether it is a pair."""
    if kind == "text":
        return {"text": words(draw, 1)}, False
    if kind == "texts":
        return {"prompt": words(draw, 1), "completion": words(draw, 1)}, False
    if kind == "pair of texts":
        return {"prompt": words(draw, 1), "chosen": words(draw, 1), "rejected": words(draw, 1)}, True
    turns = conversation(draw, has_tools=kind == "messages" and draw.random() < 0.4)
    tools = {"tools": sft_masks.TOOL} if any("tool_calls" in turn for turn in turns) else {}
    if kind == "messages":
        return {"messages": turns, **tools}, False
    if kind == "conversation and completion":
        return {"prompt": turns[:-1], "completion": turns[-1:]}, False
    other = [{"role": "assistant", "content": words(draw, 1) + "!"}]
    if kind == "implicit pair":
        return {"chosen": turns, "rejected": turns[:-1] + other}, True
    return {"prompt": turns[:-1], "chosen": turns[-1:], "rejected": other}, True


# --- our rows ---

def ours(module, tokenizer, folder, row, is_pair):
    maker = module.Rows(tokenizer, {**sft_masks.DEFAULTS, "pairs": is_pair, "tokenizer": str(folder / "tokenizer.json")})
    try:
        return [(tokens, masks) for tokens, masks, _ in maker.rows(json.dumps(row))]
    except module.Refused as error:
        return LOST if LOST in str(error) else f"refused: {error}"


def start_of(tokenizer):
    return {} if tokenizer.token_to_id(START) is None else {"bos_token": START}


def made_folder(place, tokenizer, name, template):
    folder = pathlib.Path(place) / name
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", **start_of(tokenizer), "chat_template": template}))
    return folder


# --- TRL's rows ---

class Dataset:
    """The part of a dataset that the trainers use."""

    def __init__(self, rows):
        self.rows, self.column_names = rows, list(rows[0])

    def __iter__(self):
        return iter(self.rows)

    def map(self, change, fn_kwargs=None, remove_columns=None, **_):
        rows = [{**row, **change(dict(row), **(fn_kwargs or {}))} for row in self.rows]
        return Dataset([{key: value for key, value in row.items() if key not in (remove_columns or [])} for row in rows])

    def filter(self, keeps, **_):
        rows = [row for row in self.rows if keeps(row)]
        return Dataset(rows) if rows else self


def theirs(tokenizer, template, row, is_pair):
    import transformers
    from trl.trainer import dpo_trainer, sft_trainer

    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=template, **start_of(tokenizer))
    owner = types.SimpleNamespace(_tokenizer=fast, chat_template=None, completion_only_loss=True)
    args = types.SimpleNamespace(dataset_num_proc=None, dataset_text_field="text", assistant_only_loss="messages" in row, max_length=None,
                                 shuffle_dataset=False, dataset_kwargs=None)
    if is_pair:
        (made,) = dpo_trainer.DPOTrainer._prepare_dataset(owner, Dataset([row]), fast, args, "train").rows
        return [(made["prompt_ids"] + made[key], [0] * len(made["prompt_ids"]) + [1] * len(made[key])) for key in ("chosen_ids", "rejected_ids")]
    (made,) = sft_trainer.SFTTrainer._prepare_dataset(owner, Dataset([row]), fast, args, False, None, "train").rows
    begins = made["input_ids"][0] == tokenizer.token_to_id(START)  # no place predicts it
    return [(made["input_ids"], [int(label != -100 and (i > 0 or not begins)) for i, label in enumerate(made["labels"])])]


def drawn(templates, seed, count):
    """Yields a template's name and text, and a row, of each kind in turn."""
    for name, template in templates.items():
        draw = random.Random(f"{seed} {name}")
        for i in range(count):
            kind = KINDS[i % len(KINDS)]
            yield name, template, kind, *row_of(kind, draw)


def own_templates():
    return {name: sft_masks.template_of(name) for name in sft_masks.all_names() if name.endswith("_training") and name not in OTHERS}


def compare(module, tokenizer, cases):
    """Yields (name, row, is_pair, our rows, TRL's rows) where TRL makes rows."""
    with tempfile.TemporaryDirectory() as place:
        folders = {}
        for name, template, _, row, is_pair in cases:
            if name not in folders:
                folders[name] = made_folder(place, tokenizer, name, template)
            try:
                wanted = theirs(tokenizer, template, json.loads(json.dumps(row)), is_pair)
            except Exception as error:  # what the template and the trainer raise
                wanted = f"refused: {type(error).__name__} {error}"
            yield name, row, is_pair, ours(module, tokenizer, folders[name], row, is_pair), wanted


def values(rows):
    return rows if isinstance(rows, str) else [sft_masks.value_of(*row) for row in rows]


def main():
    module = sft_masks.load_script()
    marks = sft_masks.all_names()
    if sys.argv[1:2] == ["--random"]:
        import trl
        from tokenizers import processors
        folder = pathlib.Path(trl.__file__).parent / "chat_templates"
        templates = {path.stem: path.read_text() for path in sorted(folder.glob("*_training.jinja")) if path.stem not in OTHERS}
        tokenizer = sft_masks.tokenizer_of(marks)
        found = {mark for text in templates.values() for mark in sft_masks.SPECIAL.findall(text)}
        tokenizer.add_special_tokens(sorted(found))
        tokenizer.add_special_tokens([START])
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{START} $A", special_tokens=[(START, tokenizer.token_to_id(START))])
        counts = dict.fromkeys(("equal", "refused by TRL", "without calls", "different"), 0)
        for name, row, _, own, wanted in compare(module, tokenizer, drawn(templates, int(sys.argv[2]), int(sys.argv[3]))):
            which = "refused by TRL" if isinstance(wanted, str) else "without calls" if own == LOST else "equal" if own == wanted else "different"
            counts[which] += 1
            if which == "different":
                shown = own if isinstance(own, str) else [(tokenizer.decode(t, skip_special_tokens=False), m) for t, m in own]
                print(f"{name}: {json.dumps(row, ensure_ascii=False)}\n  ours  {shown}\n  TRL's {[(tokenizer.decode(t, skip_special_tokens=False), m) for t, m in wanted]}")
        print(counts)
        sys.exit(bool(counts["different"]))
    tokenizer = sft_masks.tokenizer_of(marks)
    if sys.argv[1:2] == ["--record"]:
        import transformers
        import trl
        made = [[name, row, is_pair, values(wanted)] for name, row, is_pair, own, wanted in compare(module, tokenizer, drawn(own_templates(), 1, 14))
                if not isinstance(wanted, str) and own != LOST]
        lines = ",\n".join(f"  {json.dumps(one)}" for one in made)
        GOLDEN.write_text(f'{{"versions": {json.dumps({"trl": trl.__version__, "transformers": transformers.__version__})}, "rows": [\n{lines}\n]}}\n')
        return
    golden, failures = json.loads(GOLDEN.read_text())["rows"], []
    with tempfile.TemporaryDirectory() as place:
        folders = {name: made_folder(place, tokenizer, name, template) for name, template in own_templates().items()}
        for name, row, is_pair, wanted in golden:
            found = values(ours(module, tokenizer, folders[name], row, is_pair))
            if found != wanted:
                failures.append(f"{name}: {json.dumps(row, ensure_ascii=False)}: {found}, TRL {wanted}")
    for failure in failures:
        print(failure)
    print(f"{len(golden)} rows as TRL makes them; {len(failures)} failures")
    sys.exit(bool(failures))


main()
