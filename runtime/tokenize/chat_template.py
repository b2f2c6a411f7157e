"""Renders conversations by a chat template, and finds what the assistant generates in the text. For encode_rows.py."""

import json
import os
import re
import sys

# Model families whose templates mark the beginning and end of the assistant's turns: marks that occur in the template,
# the beginning, the ends (the longest first), and the beginning of any turn. Taken from Megatron-Bridge
# (conversation_processing.py).
FAMILIES = [
    (["<|im_start|>assistant", "<|im_end|>"], "<|im_start|>assistant\n", ["<|im_end|>\n", "<|im_end|>"], "<|im_start|>"),
    (["<start_of_turn>model", "<end_of_turn>"], "<start_of_turn>model\n", ["<end_of_turn>"], "<start_of_turn>"),
    (["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|start_header_id|>assistant<|end_header_id|>\n\n",
     ["<|eot_id|>"], "<|start_header_id|>"),
    (["<|start|>", "<|channel|>", "<|message|>"], "<|start|>assistant", ["<|return|>", "<|end|>", "<|call|>"], "<|start|>"),
]
# Private-use characters around the text that a template marks as generated. A line that contains them is refused.
OPEN, CLOSE = "\U000f5a01", "\U000f5a02"
# Part n of a conversation is put between the private-use characters FIRST + 2 n and FIRST + 2 n + 1, to see where a template
# writes it. NUMBER is put around a number in JSON.
FIRST, PARTS_MAX, NUMBER = 0xFD000, 30000, "\U000f5a03"
FRAME = re.compile(f"[{chr(FIRST)}-{chr(FIRST + 2 * PARTS_MAX - 1)}]")
# Kinds of parts that are framed. A template may not take a framed id, or write arguments by Python's repr.
FRAMED = [{"words", "thoughts", "name", "argument", "number", "id"}, {"words", "thoughts", "name", "argument", "number"},
          {"words", "thoughts", "name"}, {"words", "name"}, {"words"}]
# Known ways out of a sandbox: each prints a hidden attribute of `it` if jinja2 lets it. The filter `run` calls `it.run`.
ESCAPES = ["{{ it._hidden }}", "{{ it['_hidden'] }}", "{{ it|attr('_hidden') }}", "{{ [it]|map(attribute='_hidden')|first }}",
           "{{ '{0._hidden}'.format(it) }}", "{{ '{a._hidden}'.format_map({'a': it}) }}", "{{ '{0._hidden}'|attr('format')(it) }}",
           "{% set ns = namespace() %}{% set ns.run = '{0._hidden}'.format %}{{ ns|run(it) }}",
           "{{ (['{0._hidden}']|map(attribute='format')|first)(it) }}"]


class Read(dict):
    """An object that knows which of its keys a template reads."""

    def __init__(self, value):
        super().__init__(value)
        self._read = set()

    def __getitem__(self, key):
        self._read.add(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        self._read.add(key)
        return super().get(key, default)

    def keys(self):
        self._read.update(super().keys())
        return super().keys()

    def items(self):
        return [(key, self[key]) for key in self.keys()]

    def values(self):
        return [self[key] for key in self.keys()]

    def __iter__(self):
        return iter(list(self.keys()))

    def __repr__(self):
        return repr(dict(self.items()))


class Template:
    """A chat template, rendered as by transformers: in a sandbox, with its filters and marks of generated text. `tokens`:
    {bos_token: text, …}; `added` and `ends`: the texts of added tokens, and of those of them that are special."""

    def __init__(self, text, tokens, date, added=(), ends=()):
        import jinja2
        import jinja2.ext
        import jinja2.meta
        import jinja2.sandbox

        class Generation(jinja2.ext.Extension):
            tags = {"generation"}

            def parse(self, parser):
                line = next(parser.stream).lineno
                body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
                return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

            def mark(self, caller):
                return OPEN + caller() + CLOSE

        def refuse(message):
            raise Refused(f"the chat template refuses it: {message}")

        def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
            text = json.dumps(quoted_numbers(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
            return text.replace(f'"{NUMBER}', "").replace(f'{NUMBER}"', "")

        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                                   extensions=[Generation, "jinja2.ext.loopcontrols"])
        try_escapes(jinja2, environment.overlay())
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = date.strftime
        self.text, self.tokens = text, tokens
        any_of = ["|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)" for texts in (added, ends)]
        self.added, self.ends = re.compile(any_of[0]), re.compile(rf"\s*(?:{any_of[1]})")
        self.template = environment.from_string(text)
        self.names_read = jinja2.meta.find_undeclared_variables(environment.parse(text))
        self.marks = "endgeneration" in text
        self.family = next((family for family in FAMILIES if all(mark in text for mark in family[0])), None)

    def names(self, role):
        return f"'{role}'" in self.text or f'"{role}"' in self.text

    def render(self, messages, rest, prompt=False):
        try:
            return self.template.render(**{**self.tokens, "tools": None, "documents": None, "messages": messages,
                                           "add_generation_prompt": prompt, **rest})
        except (Refused, TooLong):
            raise
        except Exception as error:
            raise Refused(f"the chat template fails: {type(error).__name__}: {error}") from error

    def try_render(self, messages, rest, prompt=False):
        try:
            return unmarked(self.render(messages, rest, prompt))[0]
        except Refused:
            return None

    def answers(self, messages, rest, told):
        """Returns the text of a conversation, the places of its parts, and the spans (message, begin, end) of what the assistant
        generates. What is lost of the conversation is added to `told`."""
        text, marked = unmarked(self.render(messages, rest))
        places = self.places(text, messages, rest)
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        ways = [lambda: self.owned(marked, places, turns)] if self.marks else [
            lambda: self.by_family(text, messages, rest, turns), lambda: self.by_places(text, messages, rest, places)]
        reason = None
        for way in ways:
            spans = way()
            if spans is None:
                continue
            notes = set() if self.marks or way is not ways[-1] else {
                "the chat template does not mark answers; they are found by the places of their texts"}
            whole, spans = self.stopped(text, messages, rest, places, spans, notes)
            fault = self.fault(messages, places, spans)
            if fault is None:
                told |= notes
                return whole, places, spans
            reason = fault
        raise Refused(reason or "the chat template does not mark what is generated, and writes the messages in another form than "
                      "they have; name a template with {% generation %} by --template=FILE")

    def unread(self, messages, rest):
        """The keys of messages and calls that the template does not read, each with what it is a key of."""
        usual = {"role", "content", "tool_calls", "type", "function", "name", "arguments", *THOUGHTS}
        calls = [call for message in messages for call in message.get("tool_calls") or [] if isinstance(call, dict)]
        if all(key in usual for value in [*messages, *calls] for key in value) and not any("name" in message for message in messages):
            return set()
        wraps = []

        def wrap(value, what):
            wraps.append((Read(value), what))
            return wraps[-1][0]

        def wrap_call(call):
            inner = {"function": wrap(call["function"], "a call")} if isinstance(call.get("function"), dict) else {}
            return wrap({**call, **inner}, "a call")

        self.try_render([wrap({**message, **({"tool_calls": [wrap_call(call) if isinstance(call, dict) else call for call in message["tool_calls"]]}
                                             if message.get("tool_calls") else {})}, "a message") for message in messages], rest)
        own = {"a message": usual - {"type", "function", "name", "arguments"}, "a call": usual}
        return {(key, what) for value, what in wraps for key in dict.keys(value) - value._read - own[what]}

    def places(self, text, messages, rest):
        """Where the parts of the messages are; None if the template changes their texts."""
        if FRAME.search(text):
            return None
        for kinds in FRAMED:
            parts = []
            frames = [frame(message, i, kinds, parts) for i, message in enumerate(messages)]
            framed = self.try_render(frames, rest) if len(parts) <= PARTS_MAX else None
            if framed is not None and FRAME.sub("", framed) == text:
                return Places(parts, kinds, framed)
        return None

    def whole(self, text, at):
        """The place itself, or the beginning of the added token that it is in."""
        found = next((found for found in self.added.finditer(text, max(0, at - 100), at + 100) if found.start() < at < found.end()), None)
        return found.start() if found else at

    def fault(self, messages, places, spans):
        """Why these spans are not what the assistant generates: they lack a part of an answer that the text has, or have one of
        another message. None if they are, or if nothing is known of the places."""
        for number, found in places.found.items() if places else ():
            i = places.parts[number][0]
            is_answer = messages[i]["role"] == "assistant"
            for begin, end in found[:1] if is_answer else found:
                owners = [owner for owner, first, last in spans if first < end and begin < last]
                if owners and not is_answer:
                    return f"the text of message {i} of role '{messages[i]['role']}' is in what the chat template generates"
                if is_answer and not self.marks and (set(owners) != {i} or not any(first <= begin and end <= last for _, first, last in spans)):
                    return (f"what the chat template generates is not the text of message {i}; name a template with "
                            "{% generation %} by --template=FILE")
        return None

    def owned(self, marked, places, turns):
        """The marked spans with the message of each: the first one whose text ends after the span's beginning or, if this is no
        answer, the last answer before it, whose end the template marks apart, or all of it."""
        if places is None:
            return [(turn, *span) for turn, span in zip(turns, marked)] if len(marked) == len(turns) else \
                [(turns[-1] if turns else 0, *span) for span in marked]
        ends = sorted((end, i) for _, end, i, _ in places.runs)

        def owner(begin):
            after = next((i for end, i in ends if end > begin), None)
            before = [i for i in turns if after is None or i < after]  # also those whose place is not known
            if after in turns or (after is not None and not before):
                return after
            return before[-1] if before else turns[-1] if turns else 0

        return [(owner(begin), begin, last) for begin, last in marked]

    def by_family(self, text, messages, rest, turns):
        if not self.family:
            return None
        _, start, ends, other = self.family
        payload = json.dumps([[{k: v for k, v in m.items() if k != "role"} for m in messages], rest], ensure_ascii=False)
        if any(mark.strip() in payload for mark in [start, *ends, other]):
            return None  # a message contains text that looks like a turn
        spans, at = [], text.find(start)
        while at >= 0:
            begin = at + len(start)
            limit = text.find(other, begin)
            limit = len(text) if limit < 0 else limit
            places = sorted((place, -len(end)) for end in ends if begin <= (place := text.find(end, begin)) < limit)
            if not places:
                return None
            end = places[0][0] - places[0][1]
            if spans and spans[-1][1] == at and start == "<|start|>assistant":
                spans[-1] = (spans[-1][0], end)  # the turn continues in another channel
            else:
                spans.append((begin, end))
            at = text.find(start, end)
        return [(turn, *span) for turn, span in zip(turns, spans)] if len(spans) == len(turns) else None

    def by_places(self, text, messages, rest, places):
        """For templates that write earlier turns in another form than the last one: from the end of the header before an
        answer's own text to what ends the answer if it is the last one. What comes after another message's text has no header."""
        if not places or not places.found:
            return None
        spans, end_token = [], self.tokens.get("eos_token")
        begins = sorted(begin for found in places.found.values() for begin, _ in found)
        for rank, (first, end, turn, part) in enumerate(places.runs):
            if messages[turn]["role"] != "assistant":
                continue
            before = places.runs[rank - 1][1] if rank > 0 else 0
            after = next((begin for begin in begins if begin >= end), len(text))
            is_first = all(owner != turn for owner, _, _ in spans)
            begin = self.after_header(text, messages[:turn], rest, before, first) if is_first else first
            last = self.try_render(messages[:turn + 1], rest)
            tail, is_whole = self.tail(text[end:after], messages[:turn + 1], part, rest, last)
            if tail is None or not is_whole and not self.ends.search(tail):
                longer = self.tail_before_others(text[end:after], messages[:turn + 2], part, rest)
                tail = longer if tail is None or longer is not None and self.ends.search(longer) else tail
                if places.parts[part][1] not in ("words", "thoughts") and not self.added.search(tail or ""):
                    raise Refused(f"the end of the calls of message {turn} is not found: the chat template writes another one if other messages "
                                  "follow; name a template with {% generation %} by --template=FILE")
            tail = tail or ""
            stop = tail.find(end_token) + len(end_token) if end_token and end_token in tail else \
                found.end() if (found := self.ends.match(tail)) and not messages[turn].get("tool_calls") else None
            limit = self.whole(text, end + len(tail))
            if stop and (end_token and end_token in tail or self.try_render(messages[:turn + 1], rest, prompt=True) == last):
                limit -= len(text[end + stop:limit].lstrip())  # it may be a prompt's header
            spans.append((turn, self.whole(text, begin), limit))
        return spans

    def tail(self, text, messages, part, rest, rendered):
        """What a text behind a part has in common with another text of the messages, and whether that ends there; None if that does
        not have the part."""
        places = self.places(rendered, messages, rest) if rendered else None
        if places is None or part not in places.found:
            return None, False
        other = rendered[places.found[part][0][1]:]
        same = os.path.commonprefix([text, other])
        return same, not other[len(same):].strip()

    def tail_before_others(self, text, messages, part, rest):
        """For templates that write a last turn in another form: what follows a part before a message of any role, up to a token
        that ends an answer. The last of the messages is the one that follows in the text."""
        for role in ("user", "tool"):
            other = [*messages[:-1], {"role": role, "content": "?"}]
            tail = self.tail(text, other, part, rest, self.try_render(other, rest))[0] if role != messages[-1]["role"] else None
            if tail is not None:
                end = self.tokens.get("eos_token") or ""
                at = tail.find(end) + len(end) if end and end in tail else found.end() if (found := self.ends.search(tail)) else len(tail)
                return tail[:at + len(tail[at:]) - len(tail[at:].lstrip())]
        return None

    def after_header(self, text, before, rest, first, last):
        """The end of the header of the assistant's turn between two places: where the text and the prompt for an answer become
        different, as in TRL. If the text differs earlier, the header is searched. A prompt may have more than the header of
        an earlier turn, such as `<think>`."""
        shown = before or [{"role": "user", "content": "?"}]
        plain, prompt = self.try_render(shown, rest) or "", self.try_render(shown, rest, prompt=True) or ""
        same, shared = len(os.path.commonprefix([text, prompt])), len(os.path.commonprefix([plain, prompt]))
        header = prompt[shared:]
        if same < len(prompt):  # a tag of the prompt, such as '<think>', may begin as the answer does
            same = max([found.start() for found in re.finditer(r"[<\[](?=[^<>\[\]]*$)", text[:same]) if found.start() >= shared], default=same)
        sizes = range(len(header), len(header) // 3, -1)
        found = next((at + size for size in sizes if (at := text.rfind(header[:size], first, last)) >= 0), None)
        if before and first < same <= last:  # a few characters of a header are another text that begins as it does, such as '<'
            return same if same - shared > len(header) // 3 else found or min(same, max(shared, first))
        return last if found is None else found

    def stopped(self, text, messages, rest, places, spans, told):
        """Returns the text and the spans, in which each answer ends with a special token: its own, or else the next turn's first
        one, as in TRL's template for GLM."""
        out, last = [], {owner: i for i, (owner, _, _) in enumerate(spans)}  # the last of several spans ends an answer
        for i, (owner, begin, end) in enumerate(spans):
            own = max([begin, *(place for _, place, turn, _ in places.runs if turn == owner and place <= end)]) if places else begin
            if i == last[owner] and not self.ends.search(text[own:end]):
                if text[end:].strip() == "":
                    follows = self.follows(messages, rest, text[own:end])
                    text = text[:end] + follows[0] if follows else text
                else:
                    follows = self.ends.match(text, end)
                end += len(follows[0]) if follows else 0
                told.add(f"answers end with '{follows[0].strip()}', the first token after them: generation must stop at it"
                         if follows else "answers end without a token that counts, so a model does not learn to stop; name another "
                         "template by --template=FILE")
            out.append((owner, begin, end))
        return text, out

    def follows(self, messages, rest, tail):
        """The first token of the turn after the last message, whose text ends in `tail`: the result of its calls, or a user's turn.
        A template may write thoughts in the last answer only, so another answer is tried in place of them."""
        other = {"role": "tool" if messages[-1].get("tool_calls") else "user", "content": "?"}
        for answer in (messages[-1], {"role": "assistant", "content": "?"}):
            more = [*messages[:-1], answer, other]
            after = self.try_render(more, rest) or ""
            there = self.places(after, more, rest)
            ends = [end for _, end, turn, _ in there.runs if turn == len(messages) - 1] if there else []
            tail = tail if answer is messages[-1] else ""
            if ends and after.startswith(tail, ends[-1]):
                return self.ends.match(after, ends[-1] + len(tail))
        return None


class Places:
    """Where a text has the parts of messages. `parts`: (message, kind, text) of each; `kinds`: those that were
    framed; `found`: {number of a part: its places}; `runs`: the first places as (begin, end, message, last part), joined within a message."""

    def __init__(self, parts, kinds, framed):
        self.parts, self.kinds, self.found, self.runs = parts, kinds, {}, []
        opened, at, length = {}, 0, 0
        for mark in FRAME.finditer(framed):
            length += mark.start() - at
            at = mark.end()
            number, is_end = divmod(ord(mark[0]) - FIRST, 2)
            if not is_end:
                opened[number] = length
            elif number in opened:
                self.found.setdefault(number, []).append((opened.pop(number), length))
        for (begin, end), number in sorted((found[0], number) for number, found in self.found.items()):
            owner = self.parts[number][0]
            if self.runs and self.runs[-1][2] == owner:
                begin = self.runs.pop()[0]
            self.runs.append((begin, end, owner, number))

    def lost(self, message):
        """The kinds of a message's parts of which the text lacks one. An id that has the name may be written in place of it."""
        there = {self.parts[number] for number in self.found}
        lost = [part for part in self.parts if part[0] == message and part[1] in self.kinds and part not in there]
        ids = [text for i, kind, text in there if i == message and kind == "id"]
        return {kind for _, kind, text in lost if kind != "name" or not any(text in own for own in ids)}


def quoted_numbers(value):
    """The value with framed numbers as texts, which JSON keeps."""
    if isinstance(value, dict):
        return {key: quoted_numbers(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [quoted_numbers(part) for part in value]
    return NUMBER + repr(value) + NUMBER if type(value).__name__ == "Number" else value


def frame(message, i, kinds, parts):
    """The message with private-use characters around its parts of these kinds. All parts are added to `parts`."""
    def marked(kind, text, body):
        parts.append((i, kind, body))
        start = FIRST + 2 * (len(parts) - 1)
        return text.replace(body, chr(start) + body + chr(start + 1), 1) if kind in kinds and len(parts) <= PARTS_MAX else text

    def around(kind, text):
        return marked(kind, text, text.strip()) if isinstance(text, str) and text.strip() else text

    def content(text):
        head, end, core = text.rpartition("</think>") if message["role"] == "assistant" else ("", "", text)
        before, begin, thoughts = head.rpartition("<think>")
        return around("words", before) + begin + around("thoughts", thoughts) + end + around("words", core)

    def argument(value):
        if isinstance(value, dict):
            return {key: argument(part) for key, part in value.items()}
        if isinstance(value, list):
            return [argument(part) for part in value]
        if type(value) in (int, float):
            shown = marked("number", str(value), str(value))
            value = type("Number", (type(value),), {"__repr__": lambda _: shown})(value)
        return around("argument", value)

    def called(call):
        change = {"function": called, "arguments": argument, **{key: lambda text, key=key: around(key, text) for key in ("name", "id")}}
        return {key: change[key](value) if key in change and (key != "function" or isinstance(value, dict)) else value for key, value in call.items()}

    out = dict(message)
    if isinstance(message.get("content"), str):
        out["content"] = content(message["content"])
    elif isinstance(message.get("content"), list):
        out["content"] = [{**part, "text": content(part["text"])} for part in message["content"]]
    out.update({key: around("thoughts", message[key]) for key in THOUGHTS if key in message and message[key] == message.get("reasoning_content")})
    if message.get("tool_calls"):
        out["tool_calls"] = [called(call) if isinstance(call, dict) else call for call in message["tool_calls"]]
    return out


def unmarked(text):
    """The text without the marks of generated text, and the spans between them."""
    parts, spans, begin, length = [], [], None, 0
    for part in re.split(f"([{OPEN}{CLOSE}])", text):
        if part == OPEN:
            begin = length
        elif part == CLOSE:
            if begin is not None and length > begin:
                spans.append((begin, length))
            begin = None
        else:
            parts.append(part)
            length += len(part)
    return "".join(parts), spans


def try_escapes(jinja2, environment):
    """Refuses a jinja2 whose sandbox lets a template read what it must not."""
    class It:
        _hidden = "leaked"

    environment.filters["run"] = lambda value, argument: value.run(argument)
    for text in ESCAPES:
        try:
            shown = environment.from_string(text).render(it=It())
        except Exception:
            continue
        if "leaked" in shown:
            raise Refused(f"jinja2 {jinja2.__version__} lets chat templates leave its sandbox; needed is 3.1.6 or later: "
                          f"'{sys.executable} -m pip install -U jinja2'")
