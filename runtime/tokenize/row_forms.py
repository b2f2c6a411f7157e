"""Says what the keys of a row mean, for encode_rows.py: rows of TRL, OpenAI, LLaMA-Factory (Alpaca, ShareGPT), Axolotl,
torchtune, ms-swift and Megatron-Bridge. One table has the keys of rows, one those of masks, one the roles. Every key of a
row is taken by the form that is found, or is in `Row.left`, or the row is refused."""

import json
import re
import string


# {meaning: keys}. Keys are compared without case. If several keys with one meaning have values, these must be equal.
KEYS = {
    "messages": ["messages", "conversations", "conversation", "chat", "dialogue", "dialog"],
    "system": ["system", "system_prompt"],
    "history": ["history"],
    "prompt": ["prompt", "instruction", "question", "query", "problem"],
    "input": ["input", "context"],
    "completion": ["completion", "output", "response", "answer", "generation", "generated_solution", "solution", "target"],
    "chosen": ["chosen", "accepted", "chosen_response", "response_j", "preferred_output", "preferred_completion"],
    "rejected": ["rejected", "rejected_response", "rejected_messages", "response_k", "non_preferred_output", "non_preferred_completion"],
    "label": ["label", "kto_tag"],
    "tools": ["tools", "functions"],
    "documents": ["documents"],
    "kwargs": ["chat_template_kwargs"],
    "roles without loss": ["mask"],
    "text": ["text"],
    "segments": ["segments"],
    "tokens": ["input_ids"],
    "labels": ["labels"],
    "masks": ["completion_mask", "assistant_masks", "loss_mask"],
    "padding": ["attention_mask"],
    "media": ["image", "images", "video", "videos", "audio", "audios"],
}
# Keys of a message that say whether it counts in the loss. `masked`, as in torchtune, says that it does not.
MASKS = ["weight", "train", "trainable", "training", "loss", "loss_mask", "loss_scale"]
# {role: other names of it}. "call" is a turn of the assistant whose text is the JSON of calls.
ROLES = {
    "system": ["system"],
    "user": ["user", "human", "input", "prompter"],
    "assistant": ["assistant", "gpt", "chatgpt", "bot", "model", "bing", "bard", "ai", "output"],
    "tool": ["tool", "observation", "observations", "tool_response", "tool_result", "function_response", "function", "ipython", "environment"],
    "call": ["function_call", "tool_call"],
}
ROLE_OF = {name: role for role, names in ROLES.items() for name in names}
# The names of prompt and answer, sorted, that are texts which follow each other, and the text between them.
PLAIN = {"completion prompt": "", "input output": " "}
# {type of a part of a message: its keys that are used}. Thoughts are the first key of a part with "thinking".
PARTS = {"text": ["text"], "input_text": ["text"], "output_text": ["text"], "refusal": ["refusal"], "thinking": ["thinking"],
         "reasoning": ["reasoning", "text", "thinking"], "tool_use": ["id", "name", "input"]}
# Names of an assistant's thoughts, as in transformers: the first one that is set counts.
THOUGHTS = ["reasoning_content", "thinking", "reasoning"]


class Row:
    """The values of a row. `taken` and `left` are the keys that were used and that were not."""

    def __init__(self, row):
        if not isinstance(row, dict):
            raise Refused("it is not an object")
        self.row, self.taken, self.told = row, set(), set()
        if self.get("media"):
            raise Refused(f"it has '{self.key('media')}'; models are trained on text alone")

    @property
    def left(self):
        return [key for key, value in self.row.items() if key not in self.taken and value is not None]

    def keys(self, meaning):
        """The keys that have a value with this meaning; those with empty values only if no other has one."""
        keys = [key for key in self.row if key.lower() in KEYS[meaning] and self.row[key] is not None]
        return [key for key in keys if self.row[key] not in ("", [], {})] or keys

    def key(self, meaning):
        return next(iter(self.keys(meaning)), None)

    def get(self, meaning):
        return self.row.get(self.key(meaning))

    def take(self, meaning):
        keys = self.keys(meaning)
        other = next((key for key in keys if self.row[key] != self.row[keys[0]]), None)
        if other:
            raise Refused(f"'{keys[0]}' and '{other}' can both be its {meaning}; leave one of them out" +
                          (", or name the keys by --prompt-key and --completion-key" if meaning in ("prompt", "completion") else ""))
        self.taken.update(key for key in self.row if key.lower() in KEYS[meaning] and (key in keys or not self.row[key]))
        return self.row[keys[0]] if keys else None

    def take_json(self, meaning, kind=list):
        """A list, or an object, which may be a text of JSON; None if there is none or it is empty."""
        value = self.take(meaning)
        if isinstance(value, str) and value.strip():
            value = parse(value, f"'{self.key(meaning)}'")
        if value and not isinstance(value, kind):
            raise Refused(f"'{self.key(meaning)}' is not {'a list' if kind is list else 'an object'}")
        return value or None


def parse(text, what):
    try:
        return json.loads(text)
    except ValueError as error:
        raise Refused(f"{what} of it is no JSON: {error}") from error


def turns_of(value, what):
    """The messages of a list, of one message, or of the text of an answer."""
    if isinstance(value, str):
        return [{"role": "assistant", "content": value}]
    turns = value if isinstance(value, list) else [value]
    if not turns:
        raise Refused(f"{what} is empty")
    if not all(isinstance(turn, dict) for turn in turns):
        raise Refused(f"{what} is not a list of messages")
    return turns


def prompt_of(row):
    """The text of a prompt and, if there is one, of its input on a line of its own."""
    parts = [row.take("prompt"), row.take("input")]
    if not all(part is None or isinstance(part, str) for part in parts):
        raise Refused("its prompt is not a text")
    return "\n".join(part for part in parts if part)


def asked(row):
    """The messages before an answer: system, the pairs of `history`, and the prompt."""
    turns, system = [], row.take("system")
    if system:
        turns.append({"role": "system", "content": system})
    for pair in row.take_json("history") or []:
        if not isinstance(pair, list) or len(pair) != 2:
            raise Refused(f"'{row.key('history')}' is not a list of pairs of a question and an answer")
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    return [*turns, {"role": "user", "content": prompt_of(row)}]


def between(row, has_template):
    """The text between a prompt and an answer that are texts; None if their names mean turns of a conversation. So do keys that
    only conversations have, also without a value, because all rows of a table have one form."""
    answer = row.key("completion") or ("chosen_response" if row.key("chosen") == "chosen_response" else "completion")
    names = sorted([(row.key("prompt") or row.key("input") or "").lower(), answer.lower()])
    joint = PLAIN.get(" ".join(names))
    turns = next((key for key in row.row if key.lower() in KEYS["system"] + KEYS["history"] and (row.row[key] or has_template)), None)
    if joint is not None and turns is not None:
        row.told.add(f"the row has '{turns}', so its texts are turns of a conversation; in rows without this key they follow each other")
        return None
    if joint is not None and row.get("prompt") and row.get("input"):
        raise Refused(f"'{row.key('input')}' may be a part of its prompt, and 'prompt' beside an answer is the whole prompt; leave it out, or name "
                      "the keys by --prompt-key and --prompt-template")
    return joint


def is_bare(tool):
    """Whether a tool is a function alone, without the object with `type` that templates are written for."""
    return isinstance(tool, dict) and "name" in tool and "function" not in tool


def chat(row, turns, given=0):
    """A conversation. Answers among the first `given` turns do not count."""
    silent = row.take("roles without loss")
    if silent and ROLE_OF.get(str(silent).lower()) != "user":
        raise Refused(f"'mask' of it is '{silent}'; found roles without loss, and needed is 'User'")
    first, is_sharegpt = turns[0].get("role", turns[0].get("from")), "from" in turns[-1]
    if str(first).lower() not in ("system", "developer") and isinstance(row.get("system"), str) and row.get("system"):
        turns, given = [{"role": "system", "content": row.take("system")}, *turns], given + (given > 0)
    tools = [parse(tool, "a tool") if isinstance(tool, str) else tool for tool in row.take_json("tools") or []] or None
    if not all(isinstance(tool, dict) for tool in tools or []):
        raise Refused(f"'{row.key('tools')}' is not a list of objects")
    if any(isinstance(function, dict) and isinstance(function.get("parameters"), str) for tool in tools or [] for function in (tool, tool.get("function"))):
        row.told.add("'parameters' of a tool are a text, which the template gets as it is; needed is an object")
    if tools and (is_sharegpt or row.key("tools").lower() == "functions"):  # as LLaMA-Factory gives templates functions
        tools = [{"type": "function", "function": tool} if is_bare(tool) else tool for tool in tools]
    rest = {"tools": tools, "documents": row.take_json("documents"), **(row.take_json("kwargs", dict) or {})}
    return {"kind": "chat", "turns": turns, "given": given, "rest": rest}


def texts(prompt, completion, between="", begins=True):
    """`begins`: whether the first of them begins with what the tokenizer puts before a text, as in TRL and not in Megatron-Bridge."""
    return {"kind": "texts", "prompt": prompt, "completion": completion, "between": between, "begins": begins}


def named_texts(row, settings):
    """Prompt and completion by the keys and the template of the command line, with Megatron-Bridge's rules for blanks."""
    prompt, completion = settings["prompt_key"] or "prompt", settings["completion_key"] or "completion"
    template = settings["prompt_template"] or "{" + prompt + "}"
    if not isinstance(row.row.get(completion), str):
        raise Refused(f"it needs a text '{completion}'; its keys are {row_keys(row.row)}")
    strings = {key: value.strip(" ") for key, value in row.row.items() if isinstance(value, str)}
    try:
        text = template.format_map(strings)
    except (KeyError, IndexError, ValueError) as error:
        raise Refused(f"it has no text for {error} of the prompt's template '{template}'") from error
    row.taken |= {completion, *(re.split(r"[.\[]", name)[0] for _, name, _, _ in string.Formatter().parse(template) if name)}
    return texts(text, strings[completion], begins=False)


def row_keys(row):
    """The keys of a row or of a message, with what a value is that no form takes as a text."""
    kinds = {type(None): " (null)", bool: " (a truth value)", int: " (a number)", float: " (a number)"}
    return ", ".join(f"'{key}'{kinds.get(type(value), '')}" for key, value in row.items()) or "none"


def example(row, settings, has_template):
    """What a row trains: a conversation, two texts, segments, or tokens."""
    if settings["prompt_key"] or settings["completion_key"] or settings["prompt_template"]:
        return named_texts(row, settings)
    if row.get("tokens") is not None:
        return tokens(row)
    if row.get("segments"):
        return segments(row)
    asks = "prompt" if row.get("prompt") is not None else "input"
    prompt, completion = row.get(asks), row.get("completion")
    if row.get("messages") or row.get("messages") is not None and completion is None and row.get("text") is None:
        found = chat(row, turns_of(row.take_json("messages") or [], "the conversation"))
    elif isinstance(completion, (list, dict)) or isinstance(completion, str) and isinstance(prompt, list):
        before = turns_of(row.take(asks), "the prompt") if isinstance(prompt, list) else asked(row) if prompt else []
        found = chat(row, before + turns_of(row.take("completion"), "the completion"), len(before))
    elif isinstance(completion, str) and prompt is not None:
        found = answered(row, row.take("completion"), has_template)
    elif isinstance(row.get("text"), str):
        return texts("", row.take("text"))
    else:
        raise Refused(("it has two answers; 'shardc data preference' makes pairs of such rows; " if row.get("chosen") and row.get("rejected") else "") +
                      "it needs 'messages', 'conversations' or a text 'completion', or its texts named by --prompt-key and --completion-key; its keys are " + row_keys(row.row))
    if settings["pairs"] or row.get("label") in (0, 1):  # a wanted or an unwanted answer, as for KTO
        found["is_unwanted"] = not row.take("label")
    return found


def answered(row, answer, has_template):
    joint = between(row, has_template)
    if joint is not None:
        return texts(prompt_of(row), answer, joint, begins=joint == "")
    if has_template or row.get("system") or row.get("history"):
        return chat(row, asked(row) + turns_of(answer, ""))
    return texts(prompt_of(row), answer, "\n")


def is_labelled(row):
    """Whether it has one answer and says whether that is wanted, as for KTO. 1 and 0 are true and false, as tables write them."""
    label = row.get("label")
    if label is None or any(row.get(meaning) is not None for meaning in ("chosen", "rejected")):
        return False
    if label not in (0, 1):
        raise Refused(f"'{row.key('label')}' is {json.dumps(label)}; needed is true or false")
    return True


def pair(row, settings, has_template):
    """The chosen and the rejected answer of a row, each as the example of it."""
    if isinstance(row.get("input"), dict) and "messages" in row.get("input"):  # OpenAI's
        key = row.key("input")
        inner = Row({**row.row[key], **{k: v for k, v in row.row.items() if k != key}})
        found = pair(inner, settings, has_template)
        row.taken |= {key, *inner.taken}
        row.told |= {f"'{key}.{name}' is ignored" for name in inner.left if name not in row.row}
        return found
    chosen, rejected, before = row.take("chosen"), row.take("rejected"), None
    if chosen is None and rejected is not None and row.get("messages") is not None:  # ms-swift's
        *before, chosen = turns_of(row.take_json("messages"), "the conversation")
        if isinstance(rejected, list):
            before, chosen = None, [*before, chosen]
    elif chosen is None and rejected is not None and row.get("completion") is not None:
        chosen = row.take("completion")
    if not all(isinstance(answer, (str, list, dict)) for answer in (chosen, rejected)):
        raise Refused("it has no 'chosen' and 'rejected', with 'prompt' or without, that are all conversations or all texts; its "
                      "keys are " + row_keys(row.row))
    prompt = row.get("prompt")
    if before is None and row.get("messages") is not None and begins_with_answer(chosen):
        before = turns_of(row.take_json("messages"), "the conversation")
    elif before is None and isinstance(prompt, list):
        before = turns_of(row.take("prompt"), "the prompt")
    if isinstance(chosen, str) and isinstance(rejected, str) and before is None:
        if prompt is None and row.get("input") is None:
            return implicit(row, chosen, rejected)
        answers = [chosen, rejected]
        if not all([prompt_of(row), *answers]):
            raise Refused("a prompt or an answer of it is empty")
        if between(row, has_template) is not None or not has_template:
            return [answered(row, answer, has_template) for answer in answers]
        before = asked(row)
    chosen, rejected = turns_of(chosen, "'chosen'"), turns_of(rejected, "'rejected'")
    same = common(chosen, rejected)
    if before is None and same == 0 and isinstance(prompt, str):
        before = asked(row)
    elif before is None:
        before, chosen, rejected = chosen[:same], chosen[same:], rejected[same:]
    elif chosen[:len(before)] == before == rejected[:len(before)]:
        chosen, rejected = chosen[len(before):], rejected[len(before):]
    if not before or not chosen or not rejected:
        raise Refused("a prompt or an answer of it is empty" if before or prompt is not None else
                      "it has no prompt, and its answers have no common beginning, which would be the prompt")
    return [chat(row, before + answer, len(before)) for answer in (chosen, rejected)]


def begins_with_answer(answer):
    first = answer[0] if isinstance(answer, list) and answer else {"role": "assistant"}
    return isinstance(first, dict) and ROLE_OF.get(str(first.get("role", first.get("from"))).lower()) in ("assistant", "call")


def common(first, second):
    """The length of the common beginning before the last element of each, as TRL counts it."""
    same = 0
    while same < min(len(first), len(second)) - 1 and first[same] == second[same]:
        same += 1
    return same


def implicit(row, chosen, rejected):
    """Texts without a prompt, as TRL reads them: their common beginning is the prompt."""
    same = common(chosen, rejected)
    if chosen[:same].endswith(" "):
        same -= 1  # a blank before an answer belongs to the answer
    if row.get("system") or row.get("history") or not chosen[:same] or not chosen[same:] or not rejected[same:]:
        raise Refused("a prompt or an answer of it is empty")
    return [texts(chosen[:same], answer[same:]) for answer in (chosen, rejected)]


def segments(row):
    parts = row.take_json("segments")
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) and isinstance(part.get("label"), bool) for part in parts):
        raise Refused("its segments need a 'text' and a 'label', true or false")
    return {"kind": "segments", "parts": [(part["text"], part["label"]) for part in parts]}


def tokens(row):
    """A row that is tokenized already. A label of -100, a mask of 0 and a place that is not attended to do not count."""
    ids, labels, padding = row.take("tokens"), row.take("labels"), row.take("padding")
    keys = [key for key in row.row if key.lower() in KEYS["masks"] and row.row[key] is not None]
    row.taken.update(keys)
    lists = [values for values in (ids, labels, padding, *(row.row[key] for key in keys)) if values is not None]
    if not all(isinstance(values, list) and len(values) == len(ids) and all(type(v) is int for v in values) for values in lists):
        raise Refused("its lists of tokens and masks are not lists of integers of one length")
    if labels and any(label not in (-100, token) for token, label in zip(ids, labels)):
        raise Refused("its 'labels' are other tokens than its 'input_ids'; found a label that is neither -100 nor the token")
    masks = [int(all(row.row[key][i] for key in keys) and (not labels or labels[i] != -100)) for i in range(len(ids))]
    kept = [i for i in range(len(ids)) if padding is None or padding[i]]
    return {"kind": "tokens", "tokens": [ids[i] for i in kept], "masks": [masks[i] for i in kept]}


# --- messages ---

def is_counted(turn, where):
    """Removes the masks of a message. Returns whether they let it count, and the keys that ask for that."""
    said = {key: turn.pop(key) for key in MASKS if key in turn}
    hidden = turn.pop("masked", None)
    if hidden not in (None, 0, 1):
        raise Refused(f"'masked' of {where} is {json.dumps(hidden)}; needed is true or false")
    if turn.get("mask") is not None:
        raise Refused(f"'mask' of {where} may mean that it counts in the loss or that it does not; needed is 'weight': 1 or 0, or 'masked': true")
    if turn.get("train_detail"):
        raise Refused(f"'train_detail' of {where} masks a part of its text; needed is a whole message that counts or does not")
    for key, value in said.items():
        if value not in (None, 0, 1):
            raise Refused(f"'{key}' of {where} is {json.dumps(value)}; a token counts in the loss or it does not: 0, 1, true or false")
    return not hidden and all(value is None or value for value in said.values()), [key for key, value in said.items() if value]


def flat(value, where):
    """The text of a text, of a part, or of a list of these."""
    if isinstance(value, list):
        return "".join(flat(part, where) for part in value)
    text = value.get("text") if isinstance(value, dict) and value.get("type", "text") == "text" and len(value) <= 2 else value
    if not isinstance(text, str):
        raise Refused(f"the thoughts of {where} are not a text")
    return text


def text_of(content, where, turn, told):
    """The text of a list of parts. Calls and thoughts among them become those of the message."""
    out = []
    for part in content:
        part = part if isinstance(part, dict) else {"type": "text", "text": part}
        kind = part.get("type")
        if kind not in PARTS:
            raise Refused(f"{where} has a part of type '{kind}'; " +
                          ("needed is a message of role 'tool' for a result" if kind == "tool_result" else "models are trained on text alone"))
        told |= {f"'{key}' of a part is ignored" for key, value in part.items() if value is not None and key not in ("type", "train", "weight", *PARTS[kind])}
        if not all(part.get(key) in (None, 1) for key in ("train", "weight")):
            raise Refused(f"a part of {where} has a mask of its own; found a part that does not count, and needed are whole messages")
        if kind == "tool_use":
            turn.setdefault("tool_calls", []).append(
                {"type": "function", "id": part.get("id"), "function": {"name": part.get("name"), "arguments": part.get("input", {})}})
        elif "thinking" in PARTS[kind]:
            thoughts = next((part[key] for key in PARTS[kind] if part.get(key) is not None), "")
            turn["reasoning_content"] = flat(turn.get("reasoning_content") or "", where) + flat(thoughts, where)
        else:
            out.append(part.get(PARTS[kind][0]))
    if not all(isinstance(text, str) for text in out):
        raise Refused(f"{where} has a part without text")
    return "".join(out) if out or not turn.get("tool_calls") else None


def calls_in(content, where, told):
    calls = content if isinstance(content, (list, dict)) else parse(str(content), f"the call in {where}")
    calls = calls if isinstance(calls, list) else [calls]
    out = []
    for call in calls:
        outer, call = call, call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise Refused(f"the call in {where} has no 'name'")
        arguments = next((key for key in ("arguments", "parameters") if key in call), "arguments")
        told |= {f"'{key}' of a call is ignored" for key in {*outer, *call} - {"type", "id", "function", "name", arguments}}
        out.append({"type": "function", "function": {"name": call["name"], "arguments": call.get(arguments, {})},
                    **{key: outer[key] for key in ("id",) if key in outer}})
    return out


def named(turn, where):
    """A message with `role` and `content`; a list of them for {"system": …, "human": …, "assistant": …}, as in ms-swift and XTuner."""
    order = ["system", "user", "assistant"]
    roles = {ROLE_OF[key.lower()]: key for key in turn if ROLE_OF.get(key.lower()) in order and isinstance(turn[key], str)}
    if "role" not in turn and "from" not in turn and "user" in roles and "assistant" in roles:
        return [{**{k: v for k, v in turn.items() if k not in roles.values() and role == "assistant"}, "role": role, "content": turn[roles[role]]}
                for role in order if role in roles and (role != "system" or turn[roles[role]])]
    role = next((key for key in ("role", "from") if isinstance(turn.get(key), str)), None)
    content = next((key for key in ("content", "value", "text") if key in turn), None)
    if role is None or (content is None and not any(turn.get(key) for key in ("tool_calls", "function_call", "refusal", *THOUGHTS))):
        raise Refused(f"{where} has neither 'role' and 'content' nor 'from' and 'value'; its keys are {row_keys(turn)}")
    return [{"role": turn[role], "content": turn.get(content), **{k: v for k, v in turn.items() if k not in (role, content)}}]


def conversation(turns, told, knows):
    """Returns messages as transformers takes them, and for each its turn and whether it may count. `knows(role)`: the
    template names the role."""
    messages, origins, counts = [], [], []
    for number, turn in enumerate(turns):
        where = f"message {number}"
        for message in named(dict(turn), where):
            spelled = message["role"].strip().lower()
            role = ROLE_OF.get(spelled, spelled)
            mine, asks = is_counted(message, where)
            if isinstance(message["content"], list) and role != "call":
                message["content"] = text_of(message["content"], where, message, told)
            refusal = message.pop("refusal", None)
            if refusal and not message["content"] and isinstance(refusal, str):
                message["content"] = refusal
            elif refusal:
                told.add("'refusal' of a message is ignored: it has other content")
            if role == "call":
                thoughts, end, calls = message["content"].rpartition("</think>") if isinstance(message["content"], str) else ("", "", message["content"])
                message["tool_calls"], message["content"] = calls_in(calls, where, told), thoughts + end or None
            elif message.get("function_call"):
                message["tool_calls"] = calls_in(message.pop("function_call"), where, told)
            calls = message.get("tool_calls")
            calls = message["tool_calls"] = parse(calls, f"'tool_calls' of {where}") if isinstance(calls, str) and calls.strip() else calls
            if calls and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
                raise Refused(f"'tool_calls' of {where} is not a list of calls")
            if any("arguments" in part and part["arguments"] in (None, "") for call in calls or [] for part in (call, call.get("function")) if isinstance(part, dict)):
                told.add("a call has arguments that are nothing, which the template gets as they are; needed is an object")
            if role not in ("call", "assistant") and knows(spelled) and not knows(role):
                role = spelled
            message["role"] = "assistant" if role == "call" else role
            message = {key: value for key, value in message.items() if value is not None}
            said = {key: flat(message[key], where) for key in THOUGHTS if message.get(key) is not None}
            thoughts = next(iter(said.values()), None)
            if thoughts is not None:  # as transformers: templates read one of the first two
                message = {**message, **said, "thinking": thoughts, "reasoning_content": thoughts}
                told |= {f"'{key}' of a message is ignored: it has other thoughts" for key in said if said[key] != thoughts}
            if "content" in message and not isinstance(message["content"], str):
                raise Refused(f"the content of {where} is not a text")
            if "content" not in message and not message.get("tool_calls") and not thoughts:
                raise Refused(f"{where} of role '{message['role']}' is empty: it has no content")
            if message["role"] != "assistant" and asks:
                told.add(f"'{asks[0]}' lets messages of role '{message['role']}' count; only the assistant's count")
            if role == "call" and "content" not in message and messages and messages[-1]["role"] == "assistant" and counts[-1] == mine:
                messages[-1].setdefault("tool_calls", []).extend(message["tool_calls"])  # calls of one turn
                continue
            messages.append(message)
            origins.append(number)
            counts.append(mine)
    return messages, origins, counts
