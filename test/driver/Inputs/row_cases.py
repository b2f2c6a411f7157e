"""Compares what counts in the loss of small conversations and rows with what is right, in the script that makes rows.

    row_cases.py

Without 'jinja2' there are no templates.
"""

import datetime
import importlib.util
import sys

import random_rows

SETTINGS = {"prompt_key": None, "completion_key": None, "prompt_template": None, "pairs": False}
TOKENS = ["<|user|>", "<|assistant|>", "<|tool|>", "<eos>", "<A>"]
USER = {"role": "user", "content": "Q"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
# Only the last answer has thoughts, and the next turn's role ends it, as in GLM's templates.
THINKS = ("{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
          "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}<think>{{ m.reasoning_content if loop.index0 > ns.last else '' }}</think>"
          "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
# A call that is the last message is left out, and the prompt for an answer begins with a tag, as in Nemotron Nano's.
CALLS = ("{% for m in messages %}{% if m.tool_calls %}{% if not loop.last %}<A>\n<CALL>{{ m.tool_calls[0].function.name }}"
         "{{ m.tool_calls[0].function.arguments | tojson }}</CALL><eos>{% endif %}{% elif m.role == 'assistant' %}<A>\n<think>{{ m.content }}<eos>"
         "{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<A>\n<think>{% endif %}")
# The text beside a call follows the result of the tool, as in Gemma 4's.
AFTER = ("{% for m in messages %}{% if m.role == 'assistant' %}<A>{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}"
         "{{ m.tool_calls[0].function.arguments | tojson }}{{ messages[loop.index0 + 1].content }}{% endif %}{{ m.content }}<eos>"
         "{% elif m.role == 'user' %}<|user|>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}")
# Every conversation ends with the header of an answer, which a prompt makes longer, as in Command A's.
HEADS = ("{% for m in messages %}<A><|{{ m.role }}|>{% if m.role == 'assistant' %}<say>{{ m.content }}<end>{% else %}{{ m.content }}{% endif %}<eos>{% endfor %}"
         "<A><|assistant|>{% if add_generation_prompt %}<say>{% endif %}")
# A role's mark ends the turn before it, the text begins with a token of its own, and calls come last, as in GLM's.
MARKS = ("<A>{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% if loop.last %}{{ m.reasoning_content }}{% endif %}{{ m.content }}"
         "{% for c in m.tool_calls %}<CALL>{{ c.function.name }}{{ c.function.arguments | tojson }}</CALL>{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
         "{% if add_generation_prompt %}<|assistant|>{% endif %}")
TEMPLATES = [
    (HEADS, [USER, {"role": "assistant", "content": "one"}, USER, {"role": "assistant", "content": "two"}], ["one<end><eos>", "two<end><eos>"]),
    (MARKS, [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}], ['<CALL>f{"x": 1}</CALL><|tool|>']),
    (MARKS, [USER, {"role": "assistant", "content": "", "reasoning_content": "a thought"}], ["a thought<|user|>"]),
    (THINKS, [USER, {"role": "assistant", "content": "4", "reasoning_content": "a thought that is long"}], ["<think>a thought that is long</think>4<|user|>"]),
    (CALLS, [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "3"}, {"role": "assistant", "content": "done"}],
     ['<CALL>f{"x": 1}</CALL><eos>', "done<eos>"]),
    (AFTER, [USER, {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]}, {"role": "tool", "content": "3"}, {"role": "assistant", "content": "done"}], None),
]


def counted(script, text, messages):
    template = script.Template(text, {"eos_token": "<eos>"}, datetime.datetime(2026, 1, 1), TOKENS, TOKENS)
    try:
        rendered, _, spans = template.answers(messages, {}, set())
    except script.Refused:
        return None
    return [rendered[begin:end] for _, begin, end in spans]


def row_facts(script):
    """(what is found, what is right)"""
    def example(row):
        return script.example(script.Row(row), SETTINGS, True)

    def of(turn):
        told = set()
        return script.conversation([turn], told, lambda role: True)[0][0]["content"], bool(told)

    def refusal(row):
        try:
            return script.conversation(example(row)["turns"], set(), lambda role: True)[2]
        except script.Refused as error:
            return str(error)

    turns = [USER, {"role": "assistant", "content": "A"}]
    yield refusal({"messages": [{**turn, "masked": masked} for turn, masked in zip(turns, (True, False))]}), [False, True]
    yield refusal({"messages": [USER, {**turns[1], "masked": True}]}), [True, False]
    yield refusal({"messages": [USER, {**turns[1], "mask": 1}]}), (
        "'mask' of message 1 may mean that it counts in the loss or that it does not; needed is 'weight': 1 or 0, or 'masked': true")
    yield refusal({"conversations": [{"from": "human", "text": "Q"}, {"from": "gpt", "text": "A"}]}), [True, True]
    yield refusal({"instruction": "Q", "output": 42}).split("; ")[1], "its keys are 'instruction', 'output' (a number)"
    yield refusal({"chosen": "A", "rejected": "B"}).split("; ")[0], "it has two answers"
    tool = '{"type": "function", "function": {"name": "f"}}'
    yield of({"role": "assistant", "content": "", "refusal": "No."}), ("No.", False)
    yield of({"role": "assistant", "content": "A", "refusal": "No."}), ("A", True)
    yield example({"messages": turns, "tools": [tool]})["rest"]["tools"], [{"type": "function", "function": {"name": "f"}}]
    yield [example({"prompt": "Q", "completion": "A", "system": system})["kind"] for system in ("", "S")], ["chat", "chat"]
    yield [example({"messages": turns, "label": label})["is_unwanted"] for label in (0, 1, False)], [True, False, True]
    yield script.pair(script.Row({"prompt": "Q", "chosen_response": "A", "rejected_response": "B"}), SETTINGS, True)[0]["kind"], "chat"
    yield [script.plain(value) for value in (b"text", b"\xff", datetime.date(2026, 1, 1))], ["text", {"bytes": 1}, "2026-01-01"]


def main():
    script = random_rows.load_script()
    wrong = [f"{found} instead of {right}" for found, right in row_facts(script) if found != right]
    templates = TEMPLATES if importlib.util.find_spec("jinja2") else []
    wrong += [f"{found} instead of {right}" for text, messages, right in templates if (found := counted(script, text, messages)) != right]
    print(*wrong, f"{len(wrong)} wrong", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
