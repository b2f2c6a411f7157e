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
# Message i is put between the private-use characters FIRST + 2 i and FIRST + 2 i + 1, to see where a template writes it.
FIRST, MESSAGES = 0xFD000, 6000
FRAME = re.compile(f"[{chr(FIRST)}-{chr(FIRST + 2 * MESSAGES - 1)}]")
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
            return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

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
        """Returns the text of a conversation, {message: (begin, end)} where its own text is, and the spans (message, begin,
        end) of what the assistant generates. What is lost of the conversation is added to `told`."""
        text, marked = unmarked(self.render(messages, rest))
        places = self.places(text, messages, rest)
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        ways = [lambda: self.owned(marked, places, turns)] if self.marks else [
            lambda: self.by_family(text, messages, rest, turns), lambda: self.by_places(text, messages, rest, turns, places)]
        reason = None
        for way in ways:
            spans = way()
            reason = reason if spans is None else self.fault(text, messages, places, spans)
            if spans is not None and reason is None:
                if not self.marks and way is ways[-1]:
                    told.add("the chat template does not mark answers; they are found by the places of their texts")
                return self.stopped(text, messages, rest, places, spans, told)
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
        """Where each message's own text is, or the names of its calls or, if the template does not write these, their ids;
        None if the template changes the texts. The text before `</think>` is left out, because templates drop it from
        earlier turns."""
        found = self.framed(text, messages, rest, ["name"])
        if found is not None and any(message.get("tool_calls") and i not in found for i, message in enumerate(messages)):
            return self.framed(text, messages, rest, ["name", "id"]) or found
        return found

    def framed(self, text, messages, rest, keys):
        if len(messages) > MESSAGES or FRAME.search(text):
            return None
        frames = [frame(message, i, keys) for i, message in enumerate(messages)]
        framed = self.try_render(frames, rest)
        # A template may write the name of a call again with its result.
        left = [len(FRAME.findall(json.dumps(message, ensure_ascii=False))) for message in frames]
        places, at, length = {}, 0, 0
        for found in FRAME.finditer(framed or ""):
            length += found.start() - at
            at = found.end()
            i = (ord(found[0]) - FIRST) // 2
            left[i] -= 1
            if left[i] >= 0:
                places[i] = (places.get(i, (length,))[0], length)
        return places if framed is not None and FRAME.sub("", framed) == text else None

    def whole(self, text, at):
        """The place itself, or the beginning of the added token that it is in."""
        found = next((found for found in self.added.finditer(text, max(0, at - 100), at + 100) if found.start() < at < found.end()), None)
        return found.start() if found else at

    def fault(self, text, messages, places, spans):
        """Why these spans are not what the assistant generates. None if they are, or if nothing is known of the places."""
        for i, (begin, end) in (places or {}).items():
            inside = [owner for owner, first, last in spans if first < end and begin < last]
            if messages[i]["role"] != "assistant" and inside:
                return f"the text of message {i} of role '{messages[i]['role']}' is in what the chat template generates"
            own = [text[first:last] for _, first, last in spans if first <= begin and end <= last]
            needed = [*leaves(messages[i].get("tool_calls")), words(messages[i]).rpartition("</think>")[2].strip()]
            whole = own and all(any(leaf in part for part in own) for leaf in needed if leaf in text)
            if messages[i]["role"] == "assistant" and not self.marks and not whole:
                return (f"what the chat template generates is not the text of message {i}; name a template with "
                        "{% generation %} by --template=FILE")
        return None

    def owned(self, marked, places, turns):
        """The marked spans with the message of each: the first one whose text ends after the span's beginning or, if this is no
        answer, the last answer before it, whose end the template marks apart."""
        if places is None:
            return [(turn, *span) for turn, span in zip(turns, marked)] if len(marked) == len(turns) else \
                [(turns[-1] if turns else 0, *span) for span in marked]
        ends = sorted((end, i) for i, (_, end) in places.items())

        def owner(begin):
            after = next((i for end, i in ends if end > begin), None)
            before = [i for end, i in ends if end <= begin and i in turns]
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

    def by_places(self, text, messages, rest, turns, places):
        """For templates that write earlier turns in another form than the last one: from the end of the header before an
        answer's own text to what ends the answer if it is the last one."""
        if not places:
            return None
        order, spans, end_token = sorted(places, key=places.get), [], self.tokens.get("eos_token")
        for turn in (turn for turn in turns if turn in places):
            rank = order.index(turn)
            before = places[order[rank - 1]][1] if rank > 0 else 0
            after = places[order[rank + 1]][0] if rank + 1 < len(order) else len(text)
            begin = self.after_header(text, messages[:turn], rest, before, places[turn][0])
            begin -= len(re.search(r"(<[^<>\s]{0,30})?$", text[before:begin])[0])  # a tag that begins as another one in a prompt
            last = self.try_render(messages[:turn + 1], rest)
            own = self.places(last, messages[:turn + 1], rest) if last else None
            gap = text[places[turn][1]:after]
            tail = os.path.commonprefix([gap, last[own[turn][1]:]]) if own and turn in own else ""
            end = self.whole(text, places[turn][1] + len(tail))
            own = max([0, *(at + len(leaf) for leaf in leaves(messages[turn].get("tool_calls")) if (at := gap.rfind(leaf)) >= 0)])
            if messages[turn].get("tool_calls") and end_token and end_token not in tail[own:] and end_token in gap[own:]:
                # A template may leave out a last message that is a call, or write it in another form.
                spans.append((turn, self.whole(text, begin), places[turn][1] + gap.index(end_token, own) + len(end_token)))
                continue
            stop = tail.find(end_token, own) + len(end_token) if end_token and end_token in tail[own:] else \
                found.end() if (found := self.ends.match(tail)) and not messages[turn].get("tool_calls") else None
            if stop and self.try_render(messages[:turn + 1], rest, prompt=True) == last:  # the end may have a prompt's header
                at = places[turn][1] + stop
                end = at + len(text[at:end]) - len(text[at:end].lstrip())
            spans.append((turn, self.whole(text, begin), end))
        return spans

    def after_header(self, text, before, rest, first, last):
        """The end of the header of the assistant's turn between two places: where the text and the prompt for an answer become
        different, as in TRL. If the text differs earlier, the header is searched. A prompt may have more than the header of
        an earlier turn, such as `<think>`."""
        shown = before or [{"role": "user", "content": "?"}]
        plain, prompt = self.try_render(shown, rest) or "", self.try_render(shown, rest, prompt=True) or ""
        same, shared = len(os.path.commonprefix([text, prompt])), len(os.path.commonprefix([plain, prompt]))
        header = prompt[shared:]
        if before and first < same <= last:  # a few characters of a header are another text that begins as it does, such as '<'
            return same if same - shared > len(header) // 3 else min(same, max(shared, first))
        sizes = range(len(header), len(header) // 3, -1)
        return next((at + size for size in sizes if (at := text.rfind(header[:size], first, last)) >= 0), last)

    def stopped(self, text, messages, rest, places, spans, told):
        """Returns the text, the places and the spans, in which each answer ends with a special token: its own, or else the
        next turn's first one, as in TRL's template for GLM."""
        out, last = [], {owner: i for i, (owner, _, _) in enumerate(spans)}  # the last of several spans ends an answer
        for i, (owner, begin, end) in enumerate(spans):
            own = text[max(begin, places[owner][1] if places and owner in places else begin):end]
            if i == last[owner] and not self.ends.search(own):
                if text[end:].strip() == "":
                    more = [*messages, {"role": "user", "content": "?"}]
                    after = self.try_render(more, rest) or ""
                    follows = self.ends.match(after, (self.places(after, more, rest) or {}).get(owner, (0, 0))[1] or len(after))
                    text = text[:end] + follows[0] if follows else text
                    end = len(text) if follows else end  # `after` may lack thoughts that `text` has
                elif follows := self.ends.match(text, end):
                    end = follows.end()
                told.add(f"answers end with '{follows[0].strip()}', which begins the next turn: generation must stop at it"
                         if follows else "answers end without a token that counts, so a model does not learn to stop; name another "
                         "template by --template=FILE")
            out.append((owner, begin, end))
        return text, places, out


def words(message):
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def leaves(value):
    """The texts and numbers in the arguments of calls, as a template writes them in JSON or alone."""
    if isinstance(value, (list, dict)):
        inner = value.get("arguments", value.get("function")) if isinstance(value, dict) and not {"arguments", "function"}.isdisjoint(value) else value
        parts = [inner] if inner is not value else value.values() if isinstance(value, dict) else value
        return [leaf for part in parts for leaf in leaves(part)]
    return [] if value in (None, "") or isinstance(value, bool) else [value, json.dumps(value, ensure_ascii=False)[1:-1]] if isinstance(value, str) else [json.dumps(value)]


def frame(message, number, keys):
    """The message with private-use characters around its own text and the `keys` of its calls."""
    start, stop = chr(FIRST + 2 * number), chr(FIRST + 2 * number + 1)

    def around(text):
        head, think, core = text.rpartition("</think>")
        body = core.strip()
        at = core.index(body)
        return head + think + core[:at] + start + body + stop + core[at + len(body):] if body else text

    out = dict(message)
    content = message.get("content")
    if isinstance(content, str):
        out["content"] = around(content)
    elif isinstance(content, list):
        out["content"] = [{**part, "text": around(part["text"])} for part in content]

    def named(call):
        function = {"function": named(call["function"])} if isinstance(call.get("function"), dict) else {}
        return {**call, **{key: around(call[key]) for key in keys if isinstance(call.get(key), str)}, **function}

    if message.get("tool_calls"):
        out["tool_calls"] = [named(call) if isinstance(call, dict) else call for call in message["tool_calls"]]
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
