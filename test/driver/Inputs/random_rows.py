"""Gives random rows and random chat templates to the script that makes rows for fine-tuning: each row is refused with a
reason or becomes tokens and masks of one length, and nothing else happens.

    random_rows.py [COUNT [FIRST]]

SHARDC_LONG=1 tries 100,000 rows. A stand-in for the package 'tokenizers' encodes; without 'jinja2' there are no templates.
"""

import copy
import importlib.util
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import types

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = [HERE.parents[2] / "runtime" / "tokenize" / f"{name}.py" for name in ("exchange", "row_forms", "chat_template", "encode_rows")]
WORDS = {"a": 0, "b": 1, "c": 2, "?": 3, "<end>": 4, "<begin>": 5, "user": 6, "assistant": 7}
CALL = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]}
TURNS = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]
ROWS = [{"messages": TURNS}, {"messages": [{"role": "system", "content": "a"}, *TURNS, *TURNS]}, {"prompt": "a b", "completion": "c a"},
        {"instruction": "a", "input": "b", "output": "c"}, {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "c"},
        {"messages": [TURNS[0], CALL, {"role": "tool", "content": "b"}, TURNS[1]], "tools": [{"name": "f", "parameters": {}}]}, {"text": "a b c"},
        {"segments": [{"text": "a", "label": True}, {"text": "b", "label": False}]}, {"input_ids": [0, 1, 2], "labels": [-100, 1, 2]},
        {"messages": [TURNS[0], {"role": "assistant", "content": [{"type": "text", "text": "c"}], "weight": 0}]},
        {"messages": [TURNS[0], {"role": "assistant", "content": "<think>a</think>b", "reasoning_content": "a"}], "chat_template_kwargs": {"x": 1}}]
PAIRS = [{"prompt": "a b", "chosen": "c a", "rejected": "b"}, {"chosen": TURNS, "rejected": [TURNS[0], {"role": "assistant", "content": "b"}]},
         {"prompt": [TURNS[0]], "chosen": [TURNS[1]], "rejected": [TURNS[1]]}]
TEMPLATES = [
    "{% for m in messages %}{{ m.role }} {% if m.role == 'assistant' %}{% generation %}{{ m.content }} <end>{% endgeneration %}{% else %}{{ m.content }} {% endif %}{% endfor %}",
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "{{ bos_token }}{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% else %}{{ m.content | trim }}{% endif %}{{ eos_token }}{% endfor %}",
    "{%- if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{% for m in messages %}{{ loop.index }} {{ m.content }}{% break %}{% endfor %}",
    "{{ strftime_now('%d') }}{% set ns = namespace(x=0) %}{% for m in messages %}{% set ns.x = ns.x + 1 %}{{ m }}{% endfor %}{{ tools }}"]
WRONG = [None, [], {}, True, -1, 0, 1.5, 1 << 70, 1e308, "", "a", "<end>", "\U000f5a01", "\U000fd000", "\ud800", "x\x1b", "a " * 500, [[[]]], {"role": "assistant"}, "assistant", "nan"]
PIECES = ["{{", "}}", "{%", "%}", "{% if x %}", "{% endfor %}", "{% generation %}", "{% endgeneration %}", "{{ 'a' * 99999999999 }}", "{{ 9 ** 9 ** 9 }}", "{% for i in range(10**9) %}",
          "{{ messages.clear() }}", "{{ messages[0].update({}) }}", "{{ [].append(1) }}", "{{ 1 / 0 }}", "{{ x.y.z }}", "{{ ''['a'] }}", "{% include 'a' %}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
          "{{ '%s' % 1 }}", "{{ '{0.x}'.format(1) }}", "{{ cycler.__init__ }}", "{{ lipsum() }}", "\x00", "{#", "{{ '\U000f5a01' }}", "{{ raise_exception() }}", "{{ messages|tojson(indent=10000000) }}"]
SECONDS = 1  # of processor time for a row


def load_script():
    text = "\n".join(script.read_text(encoding="utf-8") for script in SCRIPTS).replace("ROW_SECONDS = 60", f"ROW_SECONDS = {SECONDS}")
    module = types.ModuleType("encode_rows")
    exec(compile(text.rsplit("\nserve(run)", 1)[0], "encode_rows", "exec"), module.__dict__)
    return module


def spoil(draw, value):
    """Replaces, adds or removes parts of a JSON value."""
    places = []

    def walk(inside):
        for key in list(inside) if isinstance(inside, dict) else range(len(inside)):
            places.append((inside, key))
            if isinstance(inside[key], (dict, list)):
                walk(inside[key])
    walk(value)
    for _ in range(draw.choice((0, 1, 1, 2, 4))):
        inside, key = draw.choice(places)
        how = draw.random()
        if isinstance(inside, dict) and how < 0.2:
            inside.pop(key, None)
        elif isinstance(inside, dict) and how < 0.4:
            inside[draw.choice(("role", "content", "weight", "tools", "tool_calls", "label", "x", "mask", "input", "thinking", "documents", "loss_mask"))] = copy.deepcopy(draw.choice(WRONG))
        elif isinstance(inside, dict) or key < len(inside):
            inside[key] = copy.deepcopy(draw.choice(WRONG))
    return value


def template_of(draw):
    text = draw.choice(TEMPLATES)
    for _ in range(draw.choice((0, 0, 1, 2))):
        at, size = draw.randrange(len(text)), draw.randrange(12)
        text = text[:at] + draw.choice(("", draw.choice(PIECES), text[at:at + size] * 2)) + text[at + size:]
    return text


def settings_of(draw, is_pairs, folder):
    return {"tokenizer": str(folder / "tokenizer.json"), "mask": draw.choice(("assistant", "last_turn", "full")), "overlong": draw.choice(("drop", "truncate")),
            "cut": draw.choice(("left", "right")), "template": None, "date": "2026-01-01", "end": draw.choice((None, "<end>", "x")), "prompt_key": draw.choice((None, None, "a")),
            "completion_key": draw.choice((None, None, "b")), "prompt_template": draw.choice((None, None, "{a} {b}", "{", "{0}", "{a.b!r:>9}")), "separator": draw.choice((None, None, "", " ")),
            "pairs": is_pairs, "bos": draw.random() < 0.3, "eos": draw.random() < 0.7, "skip": draw.random() < 0.5, "length": draw.choice((1, 8, 64))}


def try_row(module, draw, tokenizer, folder, with_templates):
    """Returns whether the row was accepted. Anything but rows and a refusal is an error."""
    is_pairs = draw.random() < 0.3
    (folder / "tokenizer_config.json").write_text(json.dumps(spoil(draw, {"bos_token": "<begin>", "eos_token": {"content": "<end>"}}) if draw.random() < 0.2 else {"eos_token": "<end>"}))
    if with_templates:
        (folder / "chat_template.jinja").write_text(template_of(draw), errors="replace")
    line = json.dumps(spoil(draw, copy.deepcopy(draw.choice(PAIRS if is_pairs else ROWS))))
    if draw.random() < 0.05:
        line = line[:draw.randrange(len(line))]
    module.allow(SECONDS)
    try:
        maker = module.Rows(tokenizer, settings_of(draw, is_pairs, folder))
        found = maker.rows(line, 0)
    except (module.Refused, module.TooLong) as refusal:
        assert str(refusal), "refused without a reason"
        return False
    except Exception as error:
        if type(error).__module__.startswith("jinja2") or isinstance(error, (ValueError, TypeError, AttributeError, OverflowError, MemoryError, RecursionError)) and "maker" not in locals():
            return False  # a folder's template or settings; the message names what is wrong
        raise
    for tokens, masks, _ in found:
        assert len(tokens) == len(masks) and set(masks) <= {0, 1} and all(isinstance(token, int) for token in tokens), found
    json.dumps([[kind, text, count, first] for (kind, text), (count, first) in maker.notes.items()])
    return True


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100000 if os.environ.get("SHARDC_LONG") == "1" else 400
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    sys.path.insert(0, str(HERE / "packages"))
    module = load_script()
    import tokenizers
    module.resource.setrlimit(module.resource.RLIMIT_AS, (2 << 30, 2 << 30))
    tokenizer, failures, accepted = tokenizers.Tokenizer(WORDS), 0, 0
    with_templates = importlib.util.find_spec("jinja2") is not None
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            try:
                accepted += try_row(module, random.Random(seed), tokenizer, pathlib.Path(folder), with_templates)
            except BaseException as error:
                failures += 1
                print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
                if isinstance(error, KeyboardInterrupt):
                    break
            signal.setitimer(signal.ITIMER_PROF, 0)
            module.resource.setrlimit(module.resource.RLIMIT_CPU, (module.resource.RLIM_INFINITY, module.resource.RLIM_INFINITY))
    print(f"{count} rows, {accepted} accepted, {failures} failures")
    sys.exit(bool(failures) or accepted == 0)


if __name__ == "__main__":
    main()
