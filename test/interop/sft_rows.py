#!/usr/bin/env python3
"""Compares the forms of rows that `shardc data sft` and `data preference` read with what the loaders of LLaMA-Factory,
torchtune, Axolotl, ms-swift and TRL make of them: the tokens, and which of them count in the loss.

    sft_rows.py
    sft_rows.py --record LOADERS    LOADERS has the packages, installed with `pip install --no-deps --target`

sft_rows.json has the values that `--record` wrote, and the versions. A loader gives messages, or tokens and labels. Where
it gives messages, transformers renders them with TRL's template of Qwen 2.5 that marks what is generated. Axolotl's labels
are compared without the line ends after `<|im_end|>`, which it does not count. Rows of OpenAI's forms have no loader: the
messages beside them are those of its description. Exits with 77, skipped, without the packages tokenizers and jinja2.
"""

import importlib
import itertools
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import types

import sft_masks

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE / "sft_rows.json"
TOOL = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = {"name": "add", "arguments": {"a": 1}}
U, A, U2, A2 = "Hi, wörld", "Hello!", "And bye?", "So long 👋."
TURNS = [{"role": "user", "content": U}, {"role": "assistant", "content": A}, {"role": "user", "content": U2}, {"role": "assistant", "content": A2}]
SYSTEM = {"role": "system", "content": "Be brief."}
SHARE = [{"from": "human", "value": U}, {"from": "gpt", "value": A}, {"from": "human", "value": U2}, {"from": "gpt", "value": A2}]
CALLS = [{"from": "human", "value": "Add."}, {"from": "function_call", "value": json.dumps(CALL)}, {"from": "observation", "value": "3"},
         {"from": "gpt", "value": "It is 3."}]
TOOL_CALLS = [{"role": "user", "content": "Add."}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]},
              {"role": "tool", "content": "3"}, {"role": "assistant", "content": "It is 3."}]
ANSWER, WORSE = {"role": "assistant", "content": A2}, {"role": "assistant", "content": "Go."}


def alpaca(**columns):
    return {"formatting": "alpaca", "prompt": "instruction", "query": "input", "response": "output", **columns}


# {form: (loader, its settings, row)}. The settings of LLaMA-Factory are columns of its catalogue.
FORMS = {
    "alpaca": ("llamafactory", alpaca(), {"instruction": "Add.", "input": "1 2", "output": "3"}),
    "alpaca without input": ("llamafactory", alpaca(), {"instruction": "Name a cheese.", "input": "", "output": "Brie"}),
    "alpaca with history": ("llamafactory", alpaca(system="system", history="history"), {
        "instruction": "Add.", "input": "1 2", "output": "3", "system": "Be brief.", "history": [["a", "b"], ["c", "d"]]}),
    "alpaca pair": ("llamafactory", alpaca(ranking=True, chosen="chosen", rejected="rejected"), {
        "instruction": "Add.", "input": "1 2", "chosen": "3", "rejected": "4"}),
    "orca_dpo_pairs": ("llamafactory", alpaca(ranking=True, prompt="question", query=None, system="system", chosen="chosen", rejected="rejected"), {
        "system": "Be brief.", "question": "What is 2+2?", "chosen": "The answer is 4.", "rejected": "The answer is 5."}),
    "alpaca kto": ("llamafactory", alpaca(kto_tag="kto_tag"), {"instruction": "Add.", "input": "1 2", "output": "3", "kto_tag": True}),
    "dolly": ("llamafactory", alpaca(query="context", response="response"), {
        "instruction": "Who?", "context": "Ada.", "response": "Ada.", "category": "qa"}),
    "OpenOrca": ("llamafactory", alpaca(prompt="question", query=None, response="response", system="system_prompt"), {
        "id": "a.1", "system_prompt": "Be brief.", "question": "Why?", "response": "So."}),
    "OpenOrca without system": ("llamafactory", alpaca(prompt="question", query=None, response="response", system="system_prompt"), {
        "id": "a.2", "system_prompt": "", "question": "Why?", "response": "So."}),
    "query and response": ("llamafactory", alpaca(prompt="query", query=None, response="response"), {"query": "Why?", "response": "So."}),
    "sharegpt": ("llamafactory", {"formatting": "sharegpt"}, {"conversations": SHARE}),
    "sharegpt system turn": ("llamafactory", {"formatting": "sharegpt"}, {"conversations": [{"from": "system", "value": "Be brief."}, *SHARE]}),
    "sharegpt system column": ("llamafactory", {"formatting": "sharegpt", "system": "system"}, {"conversations": SHARE, "system": "Be brief."}),
    "sharegpt calls": ("llamafactory", {"formatting": "sharegpt", "tools": "tools"}, {"conversations": CALLS, "tools": json.dumps([TOOL])}),
    "sharegpt pair": ("llamafactory", {"formatting": "sharegpt", "ranking": True, "chosen": "chosen", "rejected": "rejected"}, {
        "conversations": SHARE[:3], "chosen": SHARE[3], "rejected": {"from": "gpt", "value": "Go."}}),
    "sharegpt kto": ("llamafactory", {"formatting": "sharegpt", "kto_tag": "label"}, {"conversations": SHARE, "label": True}),
    "openai calls": ("description", [(TOOL_CALLS, [True, True])], {"messages": [TOOL_CALLS[0], {
        "role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}]}, *TOOL_CALLS[2:]]}),
    "torchtune sharegpt": ("torchtune", "ShareGPTToMessages", {"conversations": SHARE}),
    "torchtune openai": ("torchtune", "OpenAIToMessages", {"messages": [SYSTEM, *TURNS]}),
    "torchtune preference": ("torchtune", "ChosenRejectedToMessages", {"chosen": TURNS, "rejected": [*TURNS[:3], WORSE]}),
    "axolotl messages": ("axolotl", {}, {"messages": TURNS}),
    "axolotl role names": ("axolotl", {}, {"messages": [{"role": "human", "content": U}, {"role": "gpt", "content": A}]}),
    "axolotl from and value": ("axolotl", {"field_messages": "conversations", "message_property_mappings": {"role": "from", "content": "value"}},
                               {"conversations": SHARE}),
    "axolotl train": ("axolotl", {"message_field_training": "train"}, {"messages": [*TURNS[:1], {**TURNS[1], "train": False}, *TURNS[2:]]}),
    "axolotl system column": ("axolotl", {}, {"system": "Be brief.", "messages": TURNS}),
    "axolotl tools": ("axolotl", {"field_tools": "tools"}, {"messages": TOOL_CALLS, "tools": [{"type": "function", "function": TOOL}]}),
    "axolotl segments": ("axolotl segments", {}, {"segments": [{"label": False, "text": "Q: a\nA:"}, {"label": True, "text": " b<|im_end|>"}]}),
    "swift pairs of turns": ("swift", {}, {"conversation": [{"human": U, "assistant": A}, {"human": U2, "assistant": A2}]}),
    "swift loss": ("swift", {}, {"messages": [*TURNS[:1], {**TURNS[1], "loss": False}, *TURNS[2:]]}),
    "swift history": ("swift", {}, {"query": U2, "response": A2, "history": [[U, A]], "system": "Be brief."}),
    "swift rejected_response": ("swift", {}, {"messages": TURNS, "rejected_response": "Go."}),
    "trl text": ("trl", {}, {"text": "Once upon a time."}),
    "trl prompt and completion": ("trl", {}, {"prompt": "The sky is", "completion": " blue."}),
    "trl blanks": ("trl", {}, {"prompt": " What is it? ", "completion": "A test. "}),
    "trl messages and tools": ("trl", {}, {"messages": TOOL_CALLS, "tools": [{"type": "function", "function": TOOL}]}),
    "trl chat completion": ("trl", {}, {"prompt": [SYSTEM, *TURNS[:3]], "completion": TURNS[3:]}),
    "trl tokens": ("trl", {}, {"input_ids": [72, 105, 33], "labels": [-100, 105, 33]}),
    "trl preference": ("trl", {}, {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."}),
    "trl implicit preference": ("trl", {}, {"chosen": "The sky is blue.", "rejected": "The sky is green."}),
    "trl chat preference": ("trl", {}, {"prompt": TURNS[:3], "chosen": [ANSWER], "rejected": [WORSE]}),
    "ultrafeedback": ("trl", {}, {"prompt": U2, "prompt_id": "x", "chosen": TURNS, "rejected": [*TURNS[:3], WORSE], "messages": TURNS,
                                  "score_chosen": 8.0, "score_rejected": 2.0}),
    "openai weight": ("description", [(TURNS, [False, True])], {"messages": [*TURNS[:1], {**TURNS[1], "weight": 0}, *TURNS[2:3], {**TURNS[3], "weight": 1}]}),
    "openai parts": ("description", [(TURNS[:2], [True])], {"messages": [
        {"role": "user", "content": [{"type": "text", "text": U}]}, {"role": "assistant", "content": [{"type": "text", "text": A}]}]}),
    "openai refusal": ("description", [(TURNS[:2], [True])], {"messages": [TURNS[0], {"role": "assistant", "content": None, "refusal": A}]}),
    "openai preference": ("description", [(TURNS, None), ([*TURNS[:3], WORSE], None)], {
        "input": {"messages": TURNS[:3], "tools": [], "parallel_tool_calls": True}, "preferred_output": [ANSWER], "non_preferred_output": [WORSE]}),
}


def is_pair(row):
    return any(key in row for key in ("chosen", "rejected_response", "preferred_output"))


def tokenizer():
    return sft_masks.tokenizer_of(sft_masks.all_names())


def ours():
    module = sft_masks.load_script()
    values, ignored = {}, {}
    with tempfile.TemporaryDirectory() as place:
        for name in ("qwen2_5", "qwen2_5_training"):
            sft_masks.save(tokenizer(), pathlib.Path(place) / name, name)
        for form, (loader, _, row) in FORMS.items():
            folder = pathlib.Path(place) / ("qwen2_5" if loader == "axolotl" else "qwen2_5_training")
            maker = module.Rows(tokenizer(), {**sft_masks.DEFAULTS, "pairs": is_pair(row), "tokenizer": str(folder / "tokenizer.json")})
            try:
                values[form] = [value_of(tokens, masks, loader) for tokens, masks, _ in maker.rows(json.dumps(row))]
            except module.Refused as error:
                values[form] = f"refused: {error}"
            ignored[form] = sorted(text for kind, text in maker.notes if kind == "ignored")
    return values, ignored


def value_of(tokens, masks, loader):
    if loader == "axolotl":
        masks = [mask and not (token == 198 and not any(masks[i + 1:i + 2])) for i, (token, mask) in enumerate(zip(tokens, masks))]
    return sft_masks.value_of(tokens, masks)


# --- templates ---

HEAD = "{% for m in messages %}"
TAIL = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
CALLING = "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
# A template that writes the last answer in another form than earlier ones, with a prompt that neither of them begins with.
REWRITING = HEAD + ("{% if m.role == 'assistant' %}<|assistant|>{% if loop.last %}<t>{{ m.reasoning_content }}</t>{% endif %}{{ m.content }}<|end|>"
                    "{% else %}<|user|>{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|><t>{% endif %}")
ROLE_ENDS = HEAD + ("{% if m.role == 'user' %}<|user|>\n{{ m.content }}{% elif m.role == 'assistant' %}<|assistant|>\n{{ m.content }}{% endif %}"
                    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}")
# A template that writes results of tools under the header of the assistant, and calls under another one.
ODD_HEADERS = HEAD + ("{% if m.role == 'tool' %}<|im_start|>assistant\n{{ m.content }}<|im_end|>\n{% elif m.tool_calls %}<|im_start|>caller\n" +
                      CALLING + "<|im_end|>\n{% else %}" + CHATML + "{% endif %}") + TAIL
# A template that writes calls without a header, beginning as one does.
HEADLESS = HEAD + ("{% if m.tool_calls %}{% for c in m.tool_calls %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>\n{% endfor %}"
                   "{% else %}" + CHATML + "{% endif %}") + TAIL
# A template that marks the end of an answer apart from its text.
APART = HEAD + ("{% if m.role == 'assistant' %}<|assistant|>{% generation %}{{ m.content }}{% endgeneration %}{% generation %}<|end|>{% endgeneration %}"
                "{% else %}<|user|>{{ m.content }}<|end|>{% endif %}{% endfor %}")
TEXT_ARGUMENTS = HEAD + "{% for c in m.tool_calls or [] %}{{ '<' + c.function.arguments + '>' }}{{ c.function.name }}{% endfor %}{{ m.content }}<|im_end|>{% endfor %}"
PLAIN = HEAD + CHATML + TAIL
# As DeepSeek V3.1's: tokens between the name of a call and its arguments, and no header after results of tools.
SEPARATED = HEAD + ("{% if m.role == 'user' %}<|user|>{{ m.content }}<|assistant|>{% elif m.role == 'tool' %}<|system|>{{ m.content }}<|end|>{% else %}{{ m.content }}"
                    "{% for c in m.tool_calls or [] %}<|start|>{{ c.function.name }}<|sep|>{{ c.function.arguments | tojson }}<|stop|>{% endfor %}<|im_end|>{% endif %}{% endfor %}")
ASK = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
# As Kimi-K2-Thinking's: a call is written by its id.
BY_ID = HEAD + "<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.id }} {{ c.function.arguments | tojson }}{% endfor %}<|end|>{% endfor %}" + ASK
# As Qwen3's: calls with and without `function`, thoughts, and no name of a message.
OPEN_CALLS = HEAD + ("<|{{ m.role }}|>{% if m.reasoning_content %}<t>{{ m.reasoning_content }}</t>{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
                     "{% if c.function %}{% set c = c.function %}{% endif %}[{{ c.name }} {{ c.arguments | tojson }}]{% endfor %}<|end|>{% endfor %}") + ASK
# As GLM's: thoughts are in the last answer alone, and no token ends one.
OPEN_ENDS = HEAD + ("<|{{ m.role }}|>{% if loop.last and m.reasoning_content %}<t>{{ m.reasoning_content }}</t>{% endif %}{{ m.content }}{% endfor %}") + ASK
# As Apriel's: ids of calls and ends are in earlier turns alone.
LAST_OPEN = HEAD + ("<|{{ m.role }}|>{% set last = loop.last %}{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}"
                    "{% if not last %} #{{ c.id }}{% endif %}]{% endfor %}{{ m.content or '' }}{% if not last %}<|im_end|>\n{% endif %}{% endfor %}") + ASK
# As Gemma 4's: results of tools are in the turn that calls, before its text, with the name of the call.
INSIDE = HEAD + ("{% if m.role != 'tool' %}<|{{ m.role }}|>{% for c in m.tool_calls or [] %}<|start|>{{ c.function.name }} {{ c.function.arguments | tojson }}<|stop|>"
                 "{% if not loop.last or messages[loop0 + 1] is defined %}<|sep|>{{ c.function.name }}: {{ messages[loop0 + 1].content }}<|sep|>{% endif %}"
                 "{% endfor %}{{ m.content or '' }}<|im_end|>{% endif %}{% endfor %}").replace("loop0", "at") + ASK
INSIDE = INSIDE.replace(HEAD, HEAD + "{% set at = loop.index0 %}")
# As Motif's: a prompt begins with another token than an answer's turn.
OTHER_PROMPT = HEAD + ("<|start|><|{{ m.role }}|>{% if m.reasoning_content and not add_generation_prompt %}<t>{{ m.reasoning_content }}</t>{% endif %}{{ m.content }}<|end|>"
                       "{% endfor %}{% if add_generation_prompt %}<|assistant|><t>{% else %}<|im_end|>{% endif %}")
# As GLM's: thoughts in a text are taken from it.
THOUGHTS_APART = HEAD + ("<|{{ m.role }}|>{% if '</think>' in m.content %}<t>{{ m.content.split('</think>')[0].split('<think>')[-1] | trim }}</t>{% endif %}"
                         "{{ m.content.split('</think>')[-1] | trim }}" + CALLING + "<|end|>{% endfor %}") + ASK
TWO = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
CALLED = [{"role": "user", "content": "Add"}, {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": CALL}]},
          {"role": "tool", "content": "Three"}, {"role": "assistant", "content": "It is 3."}]


def thinking(key):
    return {"messages": [TWO[0], {**TWO[1], key: "Why not."}, TWO[0], {**TWO[1], key: "Again."}]}


def called(*calls, content="", **keys):
    return {"messages": [CALLED[0], {"role": "assistant", "content": content, "tool_calls": [{**keys, **call} for call in calls]}]}


# {name: (template, or several by name; row; the text with what counts in [[ ]], or a refusal; notes)}.
RENDERED = {
    "earlier turns are rewritten": (REWRITING, thinking("reasoning_content"),
                                    "<|user|>Hi<|end|><|assistant|>[[Yo<|end|>]]<|user|>Hi<|end|><|assistant|><t>[[Again.</t>Yo<|end|>]]", ["thoughts"]),
    "thinking": (REWRITING, {"messages": thinking("thinking")["messages"][2:]}, "<|user|>Hi<|end|><|assistant|><t>[[Again.</t>Yo<|end|>]]", []),
    "reasoning": (REWRITING, {"messages": thinking("reasoning")["messages"][2:]}, "<|user|>Hi<|end|><|assistant|><t>[[Again.</t>Yo<|end|>]]", []),
    "the next role ends an answer": (ROLE_ENDS, {"messages": TWO + TWO},
                                     "<|user|>\nHi<|assistant|>\n[[Yo<|user|>]]\nHi<|assistant|>\n[[Yo<|user|>]]", ["answers end with '<|user|>'"]),
    "nothing ends an answer": (HEAD + "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
                               {"messages": TWO}, "user: Hi\nassistant: [[Yo\n]]", ["answers end without a token"]),
    "headers are odd": (ODD_HEADERS, {"messages": CALLED}, "<|im_start|>user\nAdd<|im_end|>\n<|im_start|>[[caller\n[add {\"a\": 1}]<|im_end|>\n]]"
                        "<|im_start|>assistant\nThree<|im_end|>\n<|im_start|>assistant\n[[It is 3.<|im_end|>\n]]", []),
    "a call has no header": (HEADLESS, {"messages": CALLED}, "<|im_start|>user\nAdd<|im_end|>\n[[<call>add {\"a\": 1}</call>\n<|im_start|>]]tool\n"
                             "Three<|im_end|>\n<|im_start|>assistant\n[[It is 3.<|im_end|>\n]]", ["answers end with '<|im_start|>'"]),
    "ends are marked apart": (APART, {"messages": TWO + TWO},
                              "<|user|>Hi<|end|><|assistant|>[[Yo<|end|>]]<|user|>Hi<|end|><|assistant|>[[Yo<|end|>]]", []),
    "arguments as text": (TEXT_ARGUMENTS, {"messages": CALLED}, "Add<|im_end|>[[<{\"a\": 1}>add<|im_end|>]]Three<|im_end|>[[It is 3.<|im_end|>]]", []),
    "arguments given as text": (TEXT_ARGUMENTS, {"messages": [CALLED[0], {**CALLED[1], "tool_calls": [
        {"type": "function", "function": {"name": "add", "arguments": "{\"a\":1}"}}]}, *CALLED[2:]]},
        "Add<|im_end|>[[<{\"a\":1}>add<|im_end|>]]Three<|im_end|>[[It is 3.<|im_end|>]]", []),
    "no calls": (PLAIN, {"messages": CALLED}, "leaves out or distorts the calls of message 1, which would count in the loss", []),
    "tool_use": ({"default": PLAIN, "tool_use": "{{ tools | length }}" + PLAIN}, {"messages": TWO, "tools": [{"type": "function", "function": TOOL}]},
                 "1<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]", []),
    "no tools": ("{{ tools is none }}{{ documents is none }}" + PLAIN, {"messages": TWO, "tools": []},
                 "TrueTrue<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]", []),
    "a role is left out": (HEAD + "{% if m.role in ['user', 'assistant'] %}" + CHATML + "{% endif %}" + TAIL,
                           {"messages": [{"role": "narrator", "content": "Once"}, *TWO]},
                           "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]", ["words of a message of role 'narrator'"]),
    "developer": (HEAD + "{% if m.role != 'developer' %}" + CHATML + "{% endif %}" + TAIL, {"messages": [{"role": "developer", "content": "Once"}, *TWO]},
                  "<|im_start|>system\nOnce<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]", []),
    "parts": (HEAD + "<|im_start|>{{ m.role }}\n{% for part in m.content %}{{ part.text }}{% endfor %}<|im_end|>\n" + TAIL, {"messages": TWO},
              "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]", []),
    "a first answer": ("<|system|>Default.<|end|>" + REWRITING, {"messages": [TWO[1], *TWO]},
                       "<|system|>Default.<|end|><|assistant|>[[Yo<|end|>]]<|user|>Hi<|end|><|assistant|><t>[[</t>Yo<|end|>]]", []),
    "a system beside a prompt": (PLAIN, {"system": "Be brief.", "prompt": TWO + TWO[:1], "completion": TWO[1:]},
                                 "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n"
                                 "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]", []),
    "thoughts alone": (PLAIN, {"messages": [TWO[0], {"role": "assistant", "content": "", "thinking": "Why not."}]},
                       "leaves out or distorts the words of message 1", []),
    "thoughts in the text": (HEAD + "{% set own = m.content if loop.last else m.content.split('</think>')[-1] %}"
                             "<|{{ m.role }}|>{{ own }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
                             {"messages": [TWO[0], {**TWO[1], "content": "<think>Why.</think>Yo"}, TWO[0], {**TWO[1], "content": "<think>So.</think>Yo"}]},
                             "<|user|>Hi<|end|><|assistant|>[[Yo<|end|>]]<|user|>Hi<|end|><|assistant|>[[<think>So.</think>Yo<|end|>]]", ["thoughts"]),
    "long thoughts and no end": (OPEN_ENDS, thinking("thinking"),
                                 "<|user|>Hi<|assistant|>[[Yo<|user|>]]Hi<|assistant|>[[<t>Again.</t>Yo<|user|>]]", ["answers end with '<|user|>'", "thoughts"]),
    "a last turn without id and end": (LAST_OPEN, {"messages": [*called({"function": CALL}, id="abc", content=None)["messages"], *CALLED[2:]]},
                                       "<|user|>Add<|im_end|>\n<|assistant|>[[[add {\"a\": 1} #abc]<|im_end|>\n]]<|tool|>Three<|im_end|>\n<|assistant|>[[It is 3.<|im_end|>]]",
                                       ["answers end with '<|im_end|>', the first token after them"]),
    "ids that are compared": (HEAD + "{% if m.tool_call_id and m.tool_call_id != messages[loop.index0 - 1].tool_calls[0].id %}{{ raise_exception('id') }}{% endif %}" +
                              "<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}<|end|>{% endfor %}" + ASK,
                              {"messages": [*called({"function": {"name": "add", "arguments": {"a": "1", "b": True}}}, id="abc")["messages"],
                                            {**CALLED[2], "tool_call_id": "abc"}, CALLED[3]]},
                              "<|user|>Add<|end|><|assistant|>[[abc add {\"a\": \"1\", \"b\": true}<|end|>]]<|tool|>Three<|end|><|assistant|>[[It is 3.<|end|>]]", []),
    "calls whose end depends on what follows": (HEAD + "<|{{ m.role }}|>{{ m.content }}{% set last = loop.last %}{% for c in m.tool_calls or [] %}[{{ c.function.name }} "
                                                "{{ c.function.arguments | tojson }}{{ ']' if last else ')' }}{% endfor %}{% endfor %}" + ASK,
                                                {"messages": [*called({"function": CALL})["messages"], *CALLED[2:]]}, "the end of the calls of message 1 is not found", []),
    "a marked call that cannot be framed": (HEAD + "<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% for c in m.tool_calls or [] %}"
                                            "{{ c.function.name | length }} {{ c.function.name }}{% endfor %}<|end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
                                            {"messages": [*called({"function": CALL})["messages"], *CALLED[2:]]},
                                            "<|user|>Add<|assistant|>[[3 add<|end|>]]<|tool|>Three<|assistant|>[[It is 3.<|end|>]]", []),
    "an answer that is not marked": (HEAD + "<|{{ m.role }}|>{% if loop.last %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
                                     {"messages": TWO + TWO}, "<|user|>Hi<|assistant|>Yo<|user|>Hi<|assistant|>[[Yo<|end|>]]", ["an answer does not count"]),
    "a result before a text": (INSIDE, {"messages": [*called({"function": CALL}, content="Look.")["messages"], *CALLED[2:]]},
                               "<|user|>Add<|im_end|><|assistant|>[[<|start|>add {\"a\": 1}<|stop|>]]<|sep|>add: Three<|sep|>[[Look.<|im_end|>]]<|assistant|>[[It is 3.<|im_end|>]]", []),
    "a prompt with another header": (OTHER_PROMPT, thinking("thinking"), "<|start|><|user|>Hi<|end|><|start|><|assistant|><t>[[Why not.</t>Yo<|end|>]]"
                                     "<|start|><|user|>Hi<|end|><|start|><|assistant|><t>[[Again.</t>Yo<|end|><|im_end|>]]", []),
    "a call beside a text": (PLAIN, called({"function": {"name": "o", "arguments": {}}}, content="Look."),
                             "leaves out or distorts the calls of message 1, which would count in the loss", []),
    "a call without its arguments": (HEAD + "<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}<|end|>{% endfor %}" + ASK,
                                     called({"function": {"name": "f", "arguments": {"a": "1"}}}), "leaves out or distorts the calls of message 1", []),
    "thoughts beside a call": (THOUGHTS_APART, called({"function": CALL}, content="<think>\nWhy.\n</think>\n\n"),
                               "<|user|>Add<|end|><|assistant|>[[<t>Why.</t>[add {\"a\": 1}]<|end|>]]", []),
    "thoughts without words": (PLAIN, {"messages": [TWO[0], {**TWO[1], "content": "<think></think>"}]},
                               "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[<think></think><|im_end|>\n]]", []),
    "NaN": (PLAIN, {"instruction": "Hi", "input": float("nan"), "output": "Yo"}, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]", []),
    "half a character": (PLAIN, {"messages": [TWO[0], {**TWO[1], "content": "Yo \ud83d"}]}, "half of a character, '\\ud83d'", []),
    "keys of messages": (PLAIN, {"messages": [TWO[0], {**TWO[1], "id": 7}], "tools": [{"type": "function", "function": TOOL}]},
                         "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]", ["'id' of a message is ignored", "'tools' is ignored"]),
    "bare functions": (HEAD + CHATML + TAIL + "{{ tools | tojson }}", {"messages": TWO, "tools": [TOOL]},
                       "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]" + json.dumps([TOOL]), ["'tools' has functions without"]),
    "prompt and response": (PLAIN, {"prompt": "Hi", "response": "Yo"}, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]", []),
    "several calls": (ODD_HEADERS, {"conversations": [
        {"from": "human", "value": "Add"}, {"from": "gpt", "value": ""}, {"from": "function_call", "value": json.dumps([CALL, {"name": "sub", "parameters": {}}])},
        {"from": "observation", "value": "Three"}, {"from": "gpt", "value": "It is 3."}]},
        "<|im_start|>user\nAdd<|im_end|>\n<|im_start|>[[caller\n[add {\"a\": 1}][sub {}]<|im_end|>\n]]<|im_start|>assistant\nThree<|im_end|>\n"
        "<|im_start|>assistant\n[[It is 3.<|im_end|>\n]]", []),
    "tokens before arguments": (SEPARATED, {"messages": [*called({"function": CALL}, {"function": {**CALL, "arguments": {}}})["messages"], *CALLED[2:]]},
                                "<|user|>Add<|assistant|>[[<|start|>add<|sep|>{\"a\": 1}<|stop|><|start|>add<|sep|>{}<|stop|><|im_end|>]]<|system|>Three<|end|>"
                                "[[It is 3.<|im_end|>]]", []),
    "calls by id": (BY_ID, called({"function": CALL}, id="functions.add:0"), "<|user|>Add<|end|><|assistant|>[[functions.add:0 {\"a\": 1}<|end|>]]", []),
    "calls by an id without the name": (BY_ID, called({"function": CALL}, id="abc"), "leaves out or distorts the calls of message 1, which would count in the loss", []),
    "calls without function": (OPEN_CALLS, called(CALL, content=None, index=0), "<|user|>Add<|end|><|assistant|>[[[add {\"a\": 1}]<|end|>]]", ["'index' of a call"]),
    "calls as JSON": (OPEN_CALLS, {"messages": [CALLED[0], {**CALLED[1], "tool_calls": json.dumps(CALLED[1]["tool_calls"])}]},
                      "<|user|>Add<|end|><|assistant|>[[[add {\"a\": 1}]<|end|>]]", []),
    "XTuner's system": (OPEN_CALLS, {"conversation": [{"system": "Be brief.", "input": "Hi", "output": "Yo", "sep": "x"}, {"system": "", "input": "Hi", "output": "Yo"}]},
                        "<|system|>Be brief.<|end|>" + 2 * "<|user|>Hi<|end|><|assistant|>[[Yo<|end|>]]", ["'sep' of a message"]),
    "thoughts as parts": (OPEN_CALLS, {"messages": [TWO[0], {"role": "assistant", "content": [
        {"type": "thinking", "thinking": [{"type": "text", "text": "TH"}], "signature": "s"}, {"type": "text", "text": "Yo"}]}]},
        "<|user|>Hi<|end|><|assistant|>[[<t>TH</t>Yo<|end|>]]", ["'signature' of a part"]),
    "thoughts as objects": (OPEN_CALLS, {"messages": [TWO[0], {**TWO[1], "thinking": {"a": "b"}}]}, "the thoughts of message 1 are not a text", []),
    "thoughts twice": (OPEN_CALLS, {"messages": [TWO[0], {**TWO[1], "thinking": ["So", "."], "reasoning": "Why."}]},
                       "<|user|>Hi<|end|><|assistant|>[[<t>So.</t>Yo<|end|>]]", ["'reasoning' of a message is ignored: it has other thoughts"]),
    "printed as Python": (HEAD + CHATML + "{{ m.meta or '' }}" + TAIL, {"messages": [TWO[0], {**TWO[1], "meta": {"a": True}}]}, "the 'meta' of message 1", []),
    "a name that is another's": (OPEN_CALLS, {"messages": [{**TWO[0], "name": "Ada"}, TWO[1]]}, "<|user|>Hi<|end|><|assistant|>[[Yo<|end|>]]", ["'name' of a message"]),
    "a context beside a prompt": (PLAIN, {"prompt": "q", "completion": "r", "context": "CTX"}, "'context' may be a part of its prompt", []),
    "no messages": (PLAIN, {"messages": [], "instruction": "Hi", "output": "Yo"}, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]", []),
    "an image": (PLAIN, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, TWO[1]]}, "a part of type 'image_url'", []),
    "half a weight": (PLAIN, {"messages": [TWO[0], {**TWO[1], "weight": 0.5}]}, "'weight' of message 1 is 0.5", []),
    "an empty answer": (PLAIN, {"messages": [TWO[0], {"role": "assistant", "content": None}]}, "message 1 of role 'assistant' is empty", []),
    "an empty answer of a conversation": (PLAIN, {"messages": [TWO[0], {"role": "assistant", "content": ""}]},
                                          "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[<|im_end|>\n]]", ["an answer is empty"]),
    "a refusal beside no content": (PLAIN, {"messages": [TWO[0], {"role": "assistant", "content": "", "refusal": "Yo"}]}, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]", []),
    "a refusal beside a content": (PLAIN, {"messages": [TWO[0], {**TWO[1], "refusal": "No"}]}, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]", ["'refusal' of a message is ignored"]),
    "tools as texts": (PLAIN + "{{ tools | tojson }}", {"messages": TWO, "tools": [json.dumps({"type": "function", "function": TOOL})]},
                       "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]" + json.dumps([{"type": "function", "function": TOOL}]), []),
    "a tool that is a number": (PLAIN, {"messages": TWO, "tools": [7]}, "'tools' is not a list of objects", []),
    "parameters as text": (PLAIN + "{{ tools | tojson }}", {"messages": TWO, "tools": [{"type": "function", "function": {"name": "f", "parameters": "{}"}}]},
                           "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]" + json.dumps([{"type": "function", "function": {"name": "f", "parameters": "{}"}}]), ["'parameters' of a tool are a text"]),
    "no arguments": (OPEN_CALLS, called({"function": {"name": "add", "arguments": None}}), "<|user|>Add<|end|><|assistant|>[[[add null]<|end|>]]",
                     ["a call has arguments that are nothing"]),
    "thoughts before ShareGPT's call": (THOUGHTS_APART, {"conversations": [{"from": "human", "value": "Add"}, {"from": "function_call", "value": "<think>Why.</think>\n" + json.dumps(CALL)}]},
                                        "<|user|>Add<|end|><|assistant|>[[<t>Why.</t>[add {\"a\": 1}]<|end|>]]", []),
    "ShareGPT's call in a template without calls": ("{% for m in messages %}<|{{ m.role }}|>{{ m.content + '' }}<|end|>{% endfor %}" + ASK,
                                                    {"conversations": [{"from": "human", "value": "Add"}, {"from": "function_call", "value": json.dumps(CALL)}]},
                                                    "leaves out or distorts the calls of message 1", []),
    "an empty system beside texts": (PLAIN, {"prompt": "Hi", "completion": "Yo", "system": ""}, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[[Yo<|im_end|>\n]]", ["the row has 'system', so its texts are turns"]),
    "a label of a table": (PLAIN, {"messages": TWO, "label": 0}, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n", ["the label is false"]),
    "a result as a part": (PLAIN, {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "3"}]}, TWO[1]]}, "needed is a message of role 'tool' for a result", []),
    "a conversation without messages": (PLAIN, {"messages": []}, "the conversation is empty", []),
    "a null completion": (PLAIN, {"prompt": "Hi", "completion": None}, "its keys are 'prompt', 'completion' (null)", []),
    "two conversations": (PLAIN, {"messages": TWO, "conversations": SHARE}, "can both be its messages; leave one of them out", []),
    "two prompts": (PLAIN, {"question": "a", "query": "b", "answer": "c"}, "'question' and 'query' can both be its prompt", []),
    "an unwanted answer": (PLAIN, {"prompt": TWO[:1], "completion": TWO[1:], "label": False},
                           "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n", ["the label is false"]),
}


def rendered():
    module, failures = sft_masks.load_script(), []
    marks = ["<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|start|>", "<|sep|>", "<|stop|>"]
    for name, (template, row, wanted, notes) in RENDERED.items():
        own = tokenizer()
        own.add_special_tokens(marks)
        with tempfile.TemporaryDirectory() as place:
            texts = [{"name": key, "template": text} for key, text in template.items()] if isinstance(template, dict) else template
            (pathlib.Path(place) / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": texts}))
            maker = module.Rows(own, {**sft_masks.DEFAULTS, "tokenizer": f"{place}/tokenizer.json"})
            try:
                ((tokens, masks, _),) = maker.rows(json.dumps(row))
                runs = itertools.groupby(zip(masks, tokens), key=lambda pair: pair[0])
                found = "".join(("[[{}]]" if mask else "{}").format(own.decode([token for _, token in run], skip_special_tokens=False)) for mask, run in runs)
                is_right = found == wanted
            except module.Refused as error:
                found = str(error)
                is_right = wanted in found and not wanted.endswith("]]")
            told = sorted(text for kind, text in maker.notes if kind == "told" and not text.endswith("by the places of their texts"))
            is_named = any(text.endswith("by the places of their texts") for _, text in maker.notes)
            if is_named and template == PLAIN or not is_named and template in (REWRITING, ROLE_ENDS, ODD_HEADERS):
                failures.append(f"{name}: the way in which answers are found is not named")
        if not is_right or len(told) != len(notes) or not all(note in text for note, text in zip(notes, told)):
            failures.append(f"{name}: {found!r}, {told}; wanted is {wanted!r}, {notes}")
    return failures


def limits():
    """The limits of templates, in a process of the script as shardc starts it."""
    import jinja2
    module, failures = sft_masks.load_script(), []
    try:
        module.try_escapes(jinja2, jinja2.Environment())
        failures.append("a jinja2 that leaks is taken")
    except module.Refused as error:
        if "needed is 3.1.6 or later" not in str(error):
            failures.append(f"a jinja2 that leaks: {error}")
    script = sft_masks.script_text().replace("ROW_SECONDS = 60", "ROW_SECONDS = 1")
    for template, wanted in ((sft_masks.ENDLESS, "more than 1 s of processor time"), ("{{ ('x' * 99999999999) | length }}", "MemoryError"), (PLAIN, None)):
        with tempfile.TemporaryDirectory() as place:
            tokenizer().save(f"{place}/tokenizer.json")
            (pathlib.Path(place) / "chat_template.jinja").write_text(template)
            settings = {**sft_masks.DEFAULTS, "tokenizer": f"{place}/tokenizer.json"}
            line = json.dumps({"messages": TWO}).encode()
            request = struct.pack("<QII", 8 + len(line), 1, len(line)) + line
            done = subprocess.run([sys.executable, "-c", script, json.dumps(settings)], input=request, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            if (wanted or "").encode() not in done.stdout or (b'"reason"' in done.stdout) != bool(wanted):
                failures.append(f"{template}: status {done.returncode}, {done.stdout[-300:]}, {done.stderr[-300:]}")
    return failures


# --- the loaders of others ---

def bare(name, folder=None, **values):
    """A module without the code of its __init__.py, which imports more than is installed."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__.update(values, **({"__path__": [str(folder)]} if folder else {}))
    if "." in name and name.rpartition(".")[0] in sys.modules:
        setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
    return module


def silent(*_, **__):
    return types.SimpleNamespace(warning_rank0=print, warning_rank0_once=print, info_rank0=print, info=print, warning=print)


class Recorder:
    def __init__(self, folder):
        import transformers
        self.folder = pathlib.Path(folder)
        self.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer(), eos_token="<|im_end|>")
        self.tokenizer.chat_template = sft_masks.template_of("qwen2_5_training")

    def rendered(self, messages, counts, tools=None):
        """`counts`: whether each answer counts."""
        messages = [{key: value for key, value in message.items() if key in ("role", "content", "tool_calls")} for message in messages]
        made = self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        masks, turn = list(made["assistant_masks"]), -1
        for i, mask in enumerate(made["assistant_masks"]):
            turn += mask and not (i and made["assistant_masks"][i - 1])
            masks[i] = int(mask and counts[turn])
        return made["input_ids"], masks

    def all_count(self, messages, tools=None):
        return [self.rendered(messages, [True] * sum(message["role"] == "assistant" for message in messages), tools)]

    def last_counts(self, messages):
        import trl.data_utils as trl
        messages = [{key: message[key] for key in ("role", "content")} for message in messages]
        return self.completed(messages[:-1], messages[-1:], trl)

    def description(self, cases, row):
        return [self.last_counts(messages) if counts is None else self.rendered(messages, counts) for messages, counts in cases]

    def llamafactory(self, columns, row):
        for name in ("llamafactory", "llamafactory.data", "llamafactory.extras"):
            bare(name, self.folder / name.replace(".", "/"))
        bare("llamafactory.extras.logging", get_logger=silent)
        converter = importlib.import_module("llamafactory.data.converter")
        defaults = dict.fromkeys(["system", "tools", "images", "videos", "audios", "history", "kto_tag", "chosen", "rejected", "ranking"])
        tags = {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt", "observation_tag": "observation",
                "function_tag": "function_call", "system_tag": "system", "messages": "conversations"}
        made = getattr(converter, f"{columns['formatting'].capitalize()}DatasetConverter")(types.SimpleNamespace(**{**defaults, **tags, **columns}), None)(row)

        def message(turn):
            if turn["role"] == "function":
                calls = json.loads(turn["content"])
                calls = [{**call, "arguments": json.loads(call["arguments"]) if isinstance(call["arguments"], str) else call["arguments"]}
                         for call in (calls if isinstance(calls, list) else [calls])]
                return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call} for call in calls]}
            return {**turn, "role": "tool" if turn["role"] == "observation" else turn["role"]}

        before = [{"role": "system", "content": made["_system"]}] if made["_system"] else []
        before += [message(turn) for turn in made["_prompt"]]
        answers = [message(turn) for turn in made["_response"] if turn["content"]]
        if columns.get("ranking"):
            return [self.last_counts([*before, answer]) for answer in answers]
        tools = [tool if tool.get("type") == "function" else {"type": "function", "function": tool} for tool in json.loads(made["_tools"] or "[]")]
        return self.all_count([*before, *answers], tools or None)  # as in llamafactory.data.tool_utils

    def torchtune(self, name, row):
        for module in ("torchtune", "torchtune.data", "torchtune.modules"):
            bare(module, self.folder / module.replace(".", "/"))
        bare("torchtune.data._utils", format_content_with_images=None, load_image=None)
        bare("torchtune.modules.transforms", Transform=object)
        made = getattr(importlib.import_module("torchtune.data._messages"), name)(train_on_input=False)(row)
        rows = [[{"role": turn.role, "content": turn.text_content} for turn in turns] for turns in made.values()]
        if name.startswith("Chosen"):
            return [self.last_counts(messages) for messages in rows]
        return self.all_count(rows[0])

    def axolotl(self, settings, row):
        sys.path.insert(0, str(self.folder))
        chat_template = importlib.import_module("axolotl.prompt_strategies.chat_template")
        dictionary = importlib.import_module("axolotl.utils.dict").DictDefault
        own = self.tokenizer.chat_template
        self.tokenizer.chat_template = sft_masks.template_of("qwen2_5")
        strategy = chat_template.load(self.tokenizer, dictionary({"train_on_inputs": False, "sequence_len": 4096, "chat_template": "tokenizer_default"}),
                                      ds_cfg=dictionary({"type": "chat_template", **settings}))
        made = strategy.tokenize_prompt(json.loads(json.dumps(row)))
        self.tokenizer.chat_template = own
        return [(made["input_ids"], [int(label != -100) for label in made["labels"]])]

    def axolotl_segments(self, settings, row):
        sys.path.insert(0, str(self.folder))
        module = importlib.import_module("axolotl.prompt_strategies.input_output")
        made = module.RawInputOutputStrategy(module.RawInputOutputPrompter(), self.tokenizer).tokenize_prompt(row)
        return [(made["input_ids"], [int(label != -100) for label in made["labels"]])]

    def swift(self, settings, row):
        for name in ("swift", "swift.dataset", "swift.dataset.preprocessor", "swift.template", "swift.utils"):
            bare(name, self.folder / name.replace(".", "/"))
        for name in ("modelscope", "modelscope.hub", "modelscope.hub.utils"):
            bare(name, "/none")
        bare("modelscope.hub.utils.utils", get_cache_dir=None)
        bare("PIL", Image=types.SimpleNamespace(Image=object))
        utils = sys.modules["swift.utils"]
        utils.__dict__.update(get_logger=silent, TOOL_KEYS=("tools",), is_dist=None, is_master=None, remove_arrow_padding=None, safe_ddp_context=None)
        template = importlib.import_module("swift.template.utils")
        sys.modules["swift.template"].history_to_messages = template.history_to_messages
        core = importlib.import_module("swift.dataset.preprocessor.core")
        reader = core.MessagesPreprocessor() if "messages" in row or "conversation" in row else core.ResponsePreprocessor()
        made = reader.preprocess({reader.columns.get(key, key): value for key, value in json.loads(json.dumps(row)).items()})
        turns = [{"content": None, **turn} for turn in made["messages"]]
        counts = [turn.get("loss") is not False for turn in turns if turn["role"] == "assistant"]
        if made.get("rejected_response"):
            return [self.last_counts(turns), self.last_counts([*turns[:-1], {"role": "assistant", "content": made["rejected_response"]}])]
        return [self.rendered(turns, counts)]

    def trl(self, settings, row):
        import trl.data_utils as trl
        if "input_ids" in row:
            return [(row["input_ids"], [int(label != -100) for label in row["labels"]])]
        if "text" in row:
            tokens = self.tokenizer(row["text"] + self.tokenizer.eos_token)["input_ids"]
            return [(tokens, [1] * len(tokens))]
        if "chosen" in row:
            made = trl.maybe_extract_prompt({key: value for key, value in row.items() if key in ("prompt", "chosen", "rejected")})
            return [self.completed(made["prompt"], made[key], trl) for key in ("chosen", "rejected")]
        if "completion" in row:
            return [self.completed(row["prompt"], row["completion"], trl)]
        return self.all_count(row["messages"], row.get("tools"))

    def completed(self, prompt, completion, trl):  # as in the trainers' tokenize_fn
        if isinstance(prompt, str):
            before = self.tokenizer(prompt)["input_ids"]
            whole = self.tokenizer(prompt + completion + self.tokenizer.eos_token)["input_ids"]
        else:
            before, whole = (self.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, add_generation_prompt=is_prompt)["input_ids"]
                             for messages, is_prompt in ((prompt, True), (prompt + completion, False)))
        first = trl.common_prefix_length(before, whole)
        return whole, [0] * first + [1] * (len(whole) - first)


def record(folder):
    recorder, values = Recorder(folder), {}
    for form, (loader, settings, row) in FORMS.items():
        made = getattr(recorder, loader.replace(" ", "_"))(settings, row)
        values[form] = {"of": loader, "rows": [value_of(tokens, masks, loader) for tokens, masks in made]}
    names = ("trl", "transformers", "tokenizers")
    versions = {name: importlib.import_module(name).__version__ for name in names}
    versions.update(entry.name.removesuffix(".dist-info").rsplit("-", 1) for entry in sorted(pathlib.Path(folder).glob("*.dist-info")))
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    GOLDEN.write_text(f'{{"versions": {json.dumps(versions)}, "values": {{\n{lines}\n}}}}\n')


def main():
    if sys.argv[1:2] == ["--record"]:
        record(sys.argv[2])
        return
    golden = json.loads(GOLDEN.read_text())["values"]
    made, ignored = ours()
    failures = [f"{form}: {value}, {golden[form]['of']} {golden[form]['rows']}" for form, value in made.items() if value != golden[form]["rows"]]
    keys = {"dolly": ["category"], "OpenOrca": ["id"], "OpenOrca without system": ["id"],
            "ultrafeedback": ["messages", "prompt", "prompt_id", "score_chosen", "score_rejected"]}
    failures += [f"{form}: ignored are {found}" for form, found in ignored.items() if found != keys.get(form, [])]
    if sorted(golden) != sorted(FORMS):
        failures.append("other forms than those that were recorded")
    failures += rendered() + limits()
    for failure in failures:
        print(failure)
    print(f"{len(made)} forms of rows, {len(RENDERED)} templates; {len(failures)} failures")
    sys.exit(1 if failures else 0)


main()
