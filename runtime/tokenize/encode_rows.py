"""Converts JSON lines to rows for fine-tuning for `shardc data sft`, which embeds and starts this script. Also reads
packs of Megatron-Bridge, and converts tokens back to text.

    python3 -c SCRIPT SETTINGS

SETTINGS is a JSON object: `mode` is rows, packs or text, and `tokenizer` is a tokenizer.json; for rows, it also has the
fields of RowSettings in runtime/tokenize/RowProcess.h. Requests arrive on standard input and answers are written to
standard output. All numbers are little-endian:

    request   uint64 number of bytes that follow; uint32 n; uint32 bytes of each of n texts; the texts, in UTF-8. For
              rows, each text is a line; for packs, the only text is a path; for text, each is a JSON list of tokens, or
              an object with a `prompt` to convert to tokens, and `chat` if the prompt is a user's message
    answer    uint8 kind; uint64 number of bytes that follow, which are
        'H'   once, first: JSON with the properties of the tokenizer and the template
        'T'   uint32 n; uint32 tokens of each of n rows; n times uint8: 1 if a row was cut, 2 if it begins a pack; the
              tokens, each an int32; their masks, each a uint8: 1 if the token counts in the loss when it is predicted
        'S'   JSON list of texts; the text for a prompt is a JSON list of tokens
        'R'   a line is refused; JSON with its index in the request and the reason
        'M'   a package is missing; the reason as text
        'E'   another error; its text. The process ends after 'M' and 'E'
"""

import sys

sys.path[:] = [folder for folder in sys.path if folder]  # no imports from the user's current folder

import array
import datetime
import hashlib
import itertools
import json
import os
import pathlib
import struct

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


class Refused(Exception):
    pass


def answer(out, kind, *parts):
    out.write(struct.pack("<cQ", kind, sum(len(part) for part in parts)))
    for part in parts:
        out.write(part)
    out.flush()


def answer_json(out, kind, value):
    answer(out, kind, json.dumps(value).encode())


def read_exactly(source, count):
    data = source.read(count)
    if len(data) != count:
        sys.exit(0)  # the requesting program has ended
    return data


def read_request(source):
    (size,) = struct.unpack("<Q", read_exactly(source, 8))
    request = memoryview(read_exactly(source, size))
    (count,) = struct.unpack_from("<I", request)
    lengths = struct.unpack_from(f"<{count}I", request, 4)
    ends = list(itertools.accumulate(lengths, initial=4 + 4 * count))
    return [str(request[begin:end], "utf-8") for begin, end in zip(ends, ends[1:])]


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def special(folder, name):
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        value = read_json(folder / file).get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            return value
    return None


class Template:
    """A chat template, rendered as by transformers: in a sandbox, with its filters and marks of generated text."""

    def __init__(self, text, tokens, date):
        import jinja2
        import jinja2.ext
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
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = date.strftime
        self.text, self.tokens = text, tokens
        self.template = environment.from_string(text)
        self.marks = "endgeneration" in text
        self.family = next((family for family in FAMILIES if all(mark in text for mark in family[0])), None)

    def render(self, messages, rest, prompt=False):
        try:
            return self.template.render(messages=messages, add_generation_prompt=prompt, **{**self.tokens, **rest})
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"the chat template fails: {type(error).__name__}: {error}") from error

    def spans(self, messages, rest):
        """Returns the text of a conversation, and (begin, end) of what the assistant generates in each turn."""
        text = self.render(messages, rest)
        if self.marks:
            return unmarked(text)
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        found = self.by_family(text, messages, rest, len(turns)) if self.family else None
        return text, found if found is not None else [self.by_prefixes(text, messages, rest, i) for i in turns]

    def by_family(self, text, messages, rest, turns):
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
            if len(spans) >= 1 and spans[-1][1] == at and start == "<|start|>assistant":
                spans[-1] = (spans[-1][0], end)  # the turn continues in another channel
            else:
                spans.append((begin, end))
            at = text.find(start, end)
        return spans if len(spans) == turns else None

    def by_prefixes(self, text, messages, rest, turn):
        before = self.render(messages[:turn], rest, prompt=True) if turn > 0 else ""
        through = self.render(messages[:turn + 1], rest)
        end_token = self.tokens.get("eos_token") or ""
        if not text.startswith(through) and end_token and through.endswith(end_token):
            through = through[:-len(end_token)]  # it ends the conversation, not the turn
        if not through.startswith(before):  # an answer without thoughts does not repeat <think>
            before = before[:before.rfind("<think>")] if "<think>" in before else before
        if not text.startswith(through) or not through.startswith(before) or len(through) == len(before):
            raise Refused(f"message {turn} is not where the chat template puts it without the later ones, and the template does "
                          "not mark what is generated; name a template with {% generation %} by --template=FILE")
        return len(before), len(through)


def unmarked(text):
    parts, spans, begin, length = [], [], None, 0
    for char in text:
        if char == OPEN:
            begin = length
        elif char == CLOSE:
            if begin is not None and length > begin:
                spans.append((begin, length))
            begin = None
        else:
            parts.append(char)
            length += 1
    return "".join(parts), spans


ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}


def conversation(row):
    """Returns the messages, with role and content, of a row in the format of OpenAI or ShareGPT."""
    turns = next((row[key] for key in ("messages", "conversation", "conversations") if row.get(key) is not None), None)
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        raise Refused("the conversation is not a list of messages")
    messages = []
    for turn in turns:
        if "role" in turn:
            message = dict(turn, content="" if turn.get("content") is None else turn["content"])
        elif "from" in turn and "value" in turn:
            role = str(turn["from"]).lower()
            message = {"role": ROLES.get(role, role), "content": turn["value"]}
        else:
            raise Refused("a message has neither 'role' and 'content' nor 'from' and 'value'")
        for call in message.get("tool_calls") or []:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                try:
                    function["arguments"] = json.loads(function["arguments"])
                except ValueError as error:
                    raise Refused(f"the arguments of a tool's call are no JSON: {error}") from error
        messages.append(message)
    if row.get("system") and not any(message["role"] == "system" for message in messages):
        messages.insert(0, {"role": "system", "content": row["system"]})
    return messages


class Rows:
    def __init__(self, tokenizer, settings):
        self.tokenizer, self.settings = tokenizer, settings
        folder = pathlib.Path(settings["tokenizer"]).parent
        names = {name: special(folder, name) for name in ("bos_token", "eos_token")}
        if settings["end"]:
            names["eos_token"] = settings["end"]
        self.ids = {name: tokenizer.token_to_id(text) if text else None for name, text in names.items()}
        self.words = {name: text for name, text in names.items() if text}
        text = None
        if settings["template"]:
            text = pathlib.Path(settings["template"]).read_text(encoding="utf-8")
        elif (folder / "chat_template.jinja").is_file():
            text = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        else:
            text = read_json(folder / "tokenizer_config.json").get("chat_template")
            if isinstance(text, list):
                text = next((item["template"] for item in text if item.get("name") == "default"), None)
        self.template_text = text
        self.template = None
        if text:
            self.template = Template(text, self.words, datetime.date.fromisoformat(settings["date"]) if settings["date"] else datetime.date.today())
        x, y, both = (self.encode(part).ids for part in ("x", "y", "x y"))
        self.is_space_sensitive = both != x + y

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def describe(self):
        digest = hashlib.sha256(self.template_text.encode()).hexdigest() if self.template_text else None
        return {"end": self.ids["eos_token"], "end_text": self.words.get("eos_token"), "template": digest,
                "marks": bool(self.template and self.template.marks)}

    def rows(self, line):
        """Returns (tokens, masks, whether it was cut) for the row of a line, or for both answers of a pair."""
        if OPEN in line or CLOSE in line:
            raise Refused("it has a private character that marks what a template generates")
        row = json.loads(line)
        if not isinstance(row, dict):
            raise Refused("it is not an object")
        return [self.row({**row, **answer}) for answer in answers(row)] if self.settings["pairs"] else [self.row(row)]

    def row(self, row):
        prompt, completion = row.get("prompt"), row.get("completion")
        if isinstance(prompt, list) and isinstance(completion, list):  # the format of TRL
            tokens, masks = self.chat({**row, "messages": prompt + completion}, conversation({"messages": prompt}))
        elif any(row.get(key) is not None for key in ("messages", "conversation", "conversations")):
            tokens, masks = self.chat(row)
        else:
            return self.pair(row)
        most = self.settings["length"] + 1
        isCut = self.settings["overlong"] == "truncate" and len(tokens) > most
        return (tokens[:most], masks[:most], True) if isCut else (tokens, masks, False)

    def chat(self, row, given=()):
        """Returns tokens and masks of a conversation. Answers in the messages `given` do not count in the loss."""
        if self.template is None:
            raise Refused("it is a conversation, and the tokenizer has no chat template; name one by --template=FILE")
        messages = conversation(row)
        rest = dict(row.get("chat_template_kwargs") or {})
        tools = row.get("tools")
        rest["tools"] = json.loads(tools) if isinstance(tools, str) else tools or None
        mode = self.settings["mask"]
        if mode == "full":
            text, spans = unmarked(self.template.render(messages, rest))[0], None
        else:
            text, spans = self.template.spans(messages, rest)
            if given:
                prompt = unmarked(self.template.render(list(given), rest, prompt=True))[0]
                first = len(os.path.commonprefix([text, prompt]))
                spans = [(max(begin, first), end) for begin, end in spans if end > first]
        if spans is not None and not spans and any(message["role"] == "assistant" for message in messages):
            raise Refused("the chat template marks nothing of it as generated")
        encoding = self.encode(text)
        tokens = encoding.ids
        if len(tokens) > 1 and tokens[0] == tokens[1] == self.ids["bos_token"]:
            raise Refused(f"it begins with two '{self.words['bos_token']}'")
        if spans is None:
            return tokens, [1] * len(tokens)
        masks = [0] * len(tokens)
        spans = spans[-1:] if mode == "last_turn" else spans
        at = 0
        for i, (begin, end) in enumerate(encoding.offsets):
            while at < len(spans) and spans[at][1] <= begin:
                at += 1
            if at < len(spans) and spans[at][0] < max(end, begin + 1) and begin < spans[at][1]:
                masks[i] = 1
        return tokens, masks

    def texts(self, row):
        """Returns the prompt, the completion and the separator between them."""
        settings = self.settings
        prompt, completion, between = settings["prompt_key"], settings["completion_key"], settings["separator"]
        if prompt is None and completion is None:
            named = "prompt" in row or "completion" in row
            prompt, completion = ("prompt", "completion") if named else ("input", "output")
            between = between if between is not None else "" if named else " "
        prompt, completion, between = prompt or "prompt", completion or "completion", between or ""
        template = settings["prompt_template"] or "{" + prompt + "}"
        if not isinstance(row.get(completion), str):
            found = ", ".join(f"'{key}'" for key in row) or "none"
            raise Refused(f"it needs 'messages', 'conversations' or a text '{completion}'; its keys are {found}")
        strings = {key: value.strip(" ") for key, value in row.items() if isinstance(value, str)}
        try:
            text = template.format_map(strings)
        except (KeyError, IndexError, ValueError) as error:
            raise Refused(f"it has no text for {error} of the prompt's template '{template}'") from error
        return text, strings[completion], between

    def pair(self, row):
        """Like Megatron-Bridge's tokenize_prompt_completion_example: encodes each text alone; cuts the prompt first."""
        prompt, completion, between = self.texts(row)
        if between.startswith(" ") and not self.is_space_sensitive:
            between = between[1:]
        first, second = self.encode(prompt).ids, self.encode(between + completion).ids
        ends = [[self.ids["bos_token"]] if self.settings["bos"] else [], [self.ids["eos_token"]] if self.settings["eos"] else []]
        if [None] in ends:
            raise Refused(f"the tokenizer has no {'bos' if ends[0] == [None] else 'eos'}_token")
        over = len(first) + len(second) + sum(map(len, ends)) - self.settings["length"] - 1
        is_cut = self.settings["overlong"] == "truncate" and over > 0
        if is_cut:
            keep = max(0, len(first) - over)
            second = shorten(second, len(second) - max(0, over - len(first)), self.settings["cut"])
            first = shorten(first, keep, self.settings["cut"])
        context = ends[0] + first
        if len(context) > 1 and context[0] == context[1] == self.ids["bos_token"]:
            raise Refused(f"it begins with two '{self.words['bos_token']}'")
        target = second + ends[1]
        return context + target, [int(self.settings["mask"] == "full")] * len(context) + [1] * len(target), is_cut


def answers(row):
    """Returns prompt and completion of both answers, the chosen one first. TRL's formats, also without a prompt."""
    chosen, rejected, prompt = row.get("chosen"), row.get("rejected"), row.get("prompt")
    both = (chosen, rejected) if prompt is None else (prompt, chosen, rejected)
    if not all(isinstance(part, list) for part in both) and not all(isinstance(part, str) for part in both):
        raise Refused("it has no 'chosen' and 'rejected', with 'prompt' or without, that are all conversations or all texts")
    if prompt is None:  # the prompt is the common beginning of both
        same = 0
        while same < min(len(chosen), len(rejected)) and chosen[same] == rejected[same]:
            same += 1
        if isinstance(chosen, str) and chosen[:same].endswith(" "):
            same -= 1  # a blank before an answer belongs to the answer
        prompt, chosen, rejected = chosen[:same], chosen[same:], rejected[same:]
    if not prompt or not chosen or not rejected:
        raise Refused("a prompt or an answer of it is empty")
    return [{"prompt": prompt, "completion": answer} for answer in (chosen, rejected)]


def shorten(tokens, count, side):
    return tokens[len(tokens) - max(0, count):] if side == "left" else tokens[:max(0, count)]


def answer_rows(out, rows):
    """`rows`: (tokens, masks, flags) of each row."""
    tokens, masks = array.array("i"), bytearray()
    for row in rows:
        tokens.fromlist(row[0])
        masks += bytes(row[1])
    answer(out, b"T", struct.pack(f"<I{len(rows)}I", len(rows), *(len(row[0]) for row in rows)), bytes(row[2] for row in rows),
           tokens.tobytes(), bytes(masks))


def serve_rows(source, out, maker):
    while True:
        rows = []
        for index, line in enumerate(read_request(source)):
            try:
                rows.extend((tokens, masks, int(is_cut)) for tokens, masks, is_cut in maker.rows(line))
            except (Refused, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                text = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
                answer_json(out, b"R", {"row": index, "reason": text})
                break
        else:
            answer_rows(out, rows)


def packs_of(path):
    """Yields (tokens, starts, shifted masks) of each pack in a Parquet file of Megatron-Bridge."""
    import pyarrow.parquet
    for batch in pyarrow.parquet.ParquetFile(path).iter_batches(500, columns=["input_ids", "seq_start_id", "loss_mask"]):
        yield from zip(*(batch.column(i).to_pylist() for i in range(3)))


def serve_packs(source, out):
    """Sends the rows of a file of packs, those of several packs in each answer. An answer without rows is the last."""
    rows = []
    for tokens, starts, masks in packs_of(read_request(source)[0]):
        tokens, masks = [int(token) for token in tokens], [int(bool(mask)) for mask in masks]
        borders = [int(start) for start in starts] + [len(tokens)]
        if len(masks) != len(tokens) or borders[0] != 0 or any(a > b for a, b in zip(borders, borders[1:])):
            raise Refused("a pack's seq_start_id, loss_mask and input_ids do not agree")
        is_first = True
        for begin, end in zip(borders, borders[1:]):
            if end > begin:  # each mask belongs to the token after its position
                rows.append((tokens[begin:end], [0] + masks[begin:end - 1], 2 if is_first else 0))
                is_first = False
        if len(rows) >= 4096:
            answer_rows(out, rows)
            rows = []
            read_request(source)
    if rows:
        answer_rows(out, rows)
        read_request(source)
    answer_rows(out, [])


def tokens_of(tokenizer, maker, value):
    """Returns the tokens of a prompt, begun as the tokenizer begins texts, or rendered by the chat template."""
    if not value["chat"]:
        return tokenizer.encode(value["prompt"], add_special_tokens=True).ids
    if maker.template is None:
        raise Refused("the tokenizer has no chat template; name one by --template=FILE")
    messages = [{"role": "user", "content": value["prompt"]}]
    return maker.encode(unmarked(maker.template.render(messages, {}, prompt=True))[0]).ids


def serve_texts(source, out, tokenizer, maker):
    while True:
        values = [json.loads(text) for text in read_request(source)]
        answer_json(out, b"S", [json.dumps(tokens_of(tokenizer, maker, value)) if isinstance(value, dict) else
                                tokenizer.decode_batch([value], skip_special_tokens=False)[0] for value in values])


def run(settings, out):
    if settings["mode"] == "packs":
        answer_json(out, b"H", {})
        serve_packs(sys.stdin.buffer, out)
        return
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(settings["tokenizer"])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    facts = {"library": f"tokenizers {tokenizers.__version__}",
             "vocab": 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)}
    if settings["mode"] == "text":
        maker = Rows(tokenizer, settings) if "end" in settings else None
        answer_json(out, b"H", {**facts, **(maker.describe() if maker else {})})
        serve_texts(sys.stdin.buffer, out, tokenizer, maker)
    maker = Rows(tokenizer, settings)
    answer_json(out, b"H", {**facts, **maker.describe()})
    serve_rows(sys.stdin.buffer, out, maker)


def main():
    settings = json.loads(sys.argv[1])
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    try:
        run(settings, out)
    except SystemExit:
        raise
    except BrokenPipeError:
        os._exit(0)  # nobody reads any more; a normal exit would write the rest of the buffer and report an error
    except ImportError as error:
        answer(out, b"M", str(error).encode())
    except BaseException as error:  # includes panics of the library
        text = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        answer(out, b"E", text.encode("utf-8", "replace"))


main()
