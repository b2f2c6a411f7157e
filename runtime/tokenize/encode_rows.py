"""Converts JSON lines to rows for fine-tuning for `shardc data sft`, which embeds and starts this script. Also reads
Parquet and CSV files, and converts tokens back to text.

    python3 -I -c SCRIPT SETTINGS

SETTINGS is a JSON object: `mode` is rows, table or text, and `tokenizer` is a tokenizer.json; for rows, it also has the
fields of RowSettings in runtime/tokenize/RowProcess.h. Requests and answers are those of exchange.py. For rows, each text
of a request is a line; for a table, there is none; for text, each is a JSON list of
tokens, or an object: `row`, whose `prompt` or `messages` are converted to tokens, and `chat` if a prompt is a user's
message. More answers:

        'N'   before 'T' of lines, notes on them: a JSON list of [kind, text, number of lines, index of the first one]
        'T'   uint32 n; uint32 tokens of each of n rows; n times uint8: 1 if a row was cut, 4 if it was refused and is left
              out, 8 or 16 if it is a wanted or an unwanted answer, whose pair is another line; the tokens, each an int32;
              their masks, each a uint8: 1 if the token counts in the loss when it is predicted
        'S'   JSON list of texts; the text for a prompt is a JSON list of tokens
        'R'   a line is refused; JSON with its index in the request and the reason
"""

import array
import csv
import datetime
import hashlib
import itertools
import json
import os
import pathlib
import struct
import sys
import time

CUT, REFUSED, WANTED, UNWANTED = 1, 4, 8, 16  # flags of a row


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def special(files, name):
    for file in files:
        value = file.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            return value
    return None


class Rows:
    def __init__(self, tokenizer, settings):
        self.tokenizer, self.settings = tokenizer, settings
        folder = pathlib.Path(settings["tokenizer"]).parent
        files = [read_json(folder / name) for name in ("tokenizer_config.json", "special_tokens_map.json")]
        names = {name: special(files, name) for name in [f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]}
        if settings["end"]:
            names["eos_token"] = settings["end"]
        self.ids = {name: tokenizer.token_to_id(text) if text else None for name, text in names.items()}
        self.words = {name: text for name, text in names.items() if text}
        self.template_texts = template_texts(folder, settings["template"])
        self.templates = {}
        if self.template_texts:
            date = datetime.date.fromisoformat(settings["date"]) if settings["date"] else datetime.date.today()
            added = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
            added.update({self.words["eos_token"]: True} if "eos_token" in self.words else {})
            ends = [text for text, is_special in added.items() if is_special]
            self.templates = {name: Template(text, self.words, date, added, ends) for name, text in self.template_texts.items()}
        x, y, both = (self.encode(part).ids for part in ("x", "y", "x y"))
        self.is_space_sensitive = both != x + y
        self.begins = tokenizer.encode("", add_special_tokens=True).ids[:1] == [self.ids["bos_token"]]  # as transformers calls it
        self.notes = {}

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def template(self, tools=None):
        """The template for a row, as transformers chooses it."""
        found = self.templates.get("tool_use") if tools else None
        found = found or self.templates.get("default")
        if found is None:
            raise Refused("it is a conversation, and the tokenizer has no chat template; name one by --template=FILE")
        return found

    def describe(self):
        texts = [self.template_texts[name] for name in sorted(self.template_texts)]
        digest = hashlib.sha256("\0".join(texts).encode()).hexdigest() if texts else None
        return {"begin": self.ids["bos_token"], "end": self.ids["eos_token"], "end_text": self.words.get("eos_token"), "template": digest,
                "marks": any(template.marks for template in self.templates.values())}

    def note(self, index, kind, text):
        count, first = self.notes.get((kind, text), (0, index))
        self.notes[kind, text] = (count + 1, first)

    def rows(self, line, index=0):
        """Returns (tokens, masks, flags) for the row of a line, or for both answers of a pair. Notes are of the row `index`."""
        try:
            if OPEN in line or CLOSE in line:
                raise Refused("it has a private character that marks what a template generates")
            row = Row(parse_row(line))
            is_pair = self.settings["pairs"] and not is_labelled(row)
            found = pair(row, self.settings, self.templates) if is_pair else [example(row, self.settings, self.templates)]
            if self.settings["pairs"] and not is_pair:
                found = [self.labelled(found[0])]
            made = [self.row(each, row.told) for each in found]
            if is_pair and made[0][0] == made[1][0]:
                row.told.add("both answers of a pair are equal")
            if is_pair and all(each["kind"] == "chat" and len(each["turns"]) == each["given"] + 1 for each in found):
                made = begin_together(made)
            if self.settings["pairs"] and not is_pair:
                if made[0][2] & CUT:
                    raise Refused("it has a label and is cut by --overlong=truncate, so its pair cannot be found by its prompt")
                made = [(*made[0][:2], made[0][2] | (UNWANTED if found[0]["is_unwanted"] else WANTED)), ([], [], 0)]
        except (Refused, TooLong, ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
            text = text_of_error(error)
            if not self.settings["skip"]:
                raise Refused(text) from error
            self.note(index, "refused", text)
            return [([], [], REFUSED)] * (2 if self.settings["pairs"] else 1)
        for key in row.left:
            self.note(index, "ignored", key)
        for text in row.told:
            self.note(index, "told", text)
        return made

    def labelled(self, example):
        """The answer of a row that is half of a pair: the last message of a conversation. All before it is the prompt, by which the
        other half is found."""
        if self.settings["mask"] == "full":
            raise Refused("it has a label, and --mask=full does not say where its answer begins, by which its pair is found")
        return {**example, "given": max(example["given"], len(example["turns"]) - 1)} if example["kind"] == "chat" else example

    def row(self, example, told):
        kind = example["kind"]
        if kind == "texts" and not example["completion"].strip():
            told.add("an answer is empty")
        tokens, masks, is_cut = self.texts(example) if kind == "texts" else (*getattr(self, kind)(example, told), False)
        most = self.settings["length"] + 1
        if self.settings["overlong"] == "truncate" and len(tokens) > most:
            tokens, masks, is_cut = tokens[:most], masks[:most], True
        if example.get("is_unwanted") and not self.settings["pairs"]:
            told.add("the label is false, so the answer does not count")
            masks = [0] * len(masks)
        return tokens, masks, CUT if is_cut else 0

    def tokens(self, example, told):
        return example["tokens"], example["masks"]

    def segments(self, example, told):
        parts = [(self.encode(text).ids, counts) for text, counts in example["parts"]]
        return [token for ids, _ in parts for token in ids], [int(counts or self.settings["mask"] == "full") for ids, counts in parts for _ in ids]

    def chat(self, example, told):
        """Returns tokens and masks of a conversation."""
        rest = example["rest"]
        template, mode = self.template(rest["tools"]), self.settings["mask"]
        messages, origins, counts = conversation(example["turns"], told, template.names)
        told |= {f"'{name}' is ignored: the chat template does not name it" for name in rest
                 if name not in template.names_read and rest[name] is not None}
        if any(map(is_bare, rest["tools"] or [])):
            told.add("'tools' has functions without 'type' and 'function', which a template gets as they are if it takes them")
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        counted = {i for i in turns if counts[i] and origins[i] >= example["given"] and (mode != "last_turn" or i == turns[-1])}
        is_full = mode == "full" and all(counts)
        text, spans = render_whole(template, messages, rest, counted, is_full, told)
        if not is_full and not spans and turns:
            raise Refused("the chat template marks nothing of it as generated")
        if example["given"]:  # as in TRL: where the text of the prompt ends
            given = [message for message, origin in zip(messages, origins) if origin < example["given"]]
            first = template.whole(text, len(os.path.commonprefix([text, template.try_render(given, rest, prompt=True) or ""])))
            spans = [(owner, max(begin, first), end) for owner, begin, end in spans]
        empty = {i for i in counted if not any(messages[i].get(key) for key in ("content", "tool_calls", *THOUGHTS))}
        if not is_full and empty:
            told.add("an answer is empty")
        if not is_full and counted - empty - {owner for owner, _, _ in spans}:
            told.add("an answer does not count, since the chat template does not mark it or writes nothing of it")
        encoding = self.encode(text)
        tokens = encoding.ids
        if len(tokens) > 1 and tokens[0] == tokens[1] == self.ids["bos_token"]:
            raise Refused(f"it begins with two '{self.words['bos_token']}'")
        if mode == "full":
            silent = places_of(encoding, [(begin, end) for owner, begin, end in spans if not counts[owner]])
            return tokens, [1 - mask for mask in silent]
        return tokens, places_of(encoding, [(begin, end) for owner, begin, end in spans if owner in counted])

    def texts(self, example):
        """Like Megatron-Bridge's tokenize_prompt_completion_example: encodes each text alone; cuts the prompt first. Blanks stay,
        unless a separator is put between the texts."""
        prompt, completion, between = example["prompt"], example["completion"], self.settings["separator"]
        between = example["between"] if between is None else between
        if between:
            prompt, completion = prompt.strip(" "), completion.strip(" ")
        target = between + completion
        if prompt and target.startswith(" ") and not self.is_space_sensitive:
            target = target[1:]
        first, second = self.encode(prompt).ids, self.encode(target).ids
        begins = self.settings["bos"] or example["begins"] and self.begins and (first or second)[:1] != [self.ids["bos_token"]]
        ends = [[self.ids["bos_token"]] if begins else [], [self.ids["eos_token"]] if self.settings["eos"] else []]
        if [None] in ends:
            raise Refused(f"the tokenizer has no {'bos' if ends[0] == [None] else 'eos'}_token")
        if second[-1:] == ends[1]:
            ends[1] = []
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


def parse_row(line):
    """The value of a line. NaN is nothing, as tables write it."""
    try:
        row = json.loads(line, parse_constant=lambda word: None if word == "NaN" else float(word))
    except json.JSONDecodeError as error:
        if line.strip() in ("{", "[") or line.lstrip().startswith("{") and error.pos >= len(line.rstrip()):
            raise Refused("it is the beginning of an object over several lines; needed is a row on each line, which 'jq -c . FILE' "
                          "writes ('jq -c .data[] FILE' if the rows are in its 'data'), or an array of rows") from error
        raise Refused(f"it is no JSON: {error}; rows are lines or an array of JSON, CSV, or Parquet") from error
    if "\\ud" in line.lower():
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise Refused(f"a text of it has half of a character, '\\u{ord(error.object[error.start]):04x}'") from error
    return row


def begin_together(rows):
    """As in TRL, both answers of a pair begin where the first of them differs from the prompt with the assistant's header. One
    of which nothing counts stays so."""
    if not all(any(masks) for _, masks, _ in rows):
        return rows
    begins = [masks.index(1) for _, masks, _ in rows]
    return [(tokens, masks[:min(begins)] + [1] * (begin - min(begins)) + masks[begin:], flags) for begin, (tokens, masks, flags) in zip(begins, rows)]


def template_texts(folder, file):
    """{name: text} of the chat templates of a tokenizer's folder, in the order in which transformers looks for them."""
    files = {"default": pathlib.Path(file) if file else folder / "chat_template.jinja"}
    if not file and (folder / "additional_chat_templates").is_dir():
        files.update((path.stem, path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja")))
    found = {name: path.read_text(encoding="utf-8") for name, path in files.items() if file or path.is_file()}
    if not found:
        said = next((text for name in ("tokenizer_config.json", "chat_template.json") if (text := read_json(folder / name).get("chat_template"))), None)
        found = {item["name"]: item["template"] for item in said} if isinstance(said, list) else {"default": said} if said else {}
    return found


def of_calls(messages, change):
    """The messages with other calls and arguments: `change(call, function)` is the changed call."""
    return [{**m, "tool_calls": [change(call, call.get("function", call)) for call in m["tool_calls"]]} if m.get("tool_calls") else m for m in messages]


def with_arguments(change):
    def changed(call, function):
        function = {**function, "arguments": change(function.get("arguments"))}
        return {**call, "function": function} if "function" in call else function
    return lambda messages: of_calls(messages, changed)


def as_object(value):
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def forms_of(messages, rest):
    """The conversation as it is, and other forms for templates that do not take this one, alone and together: arguments of calls
    as an object or as text, calls and tools as functions, `developer` as `system`, content that is none, empty, or a list of parts."""
    tools = [{"type": "function", "function": tool} if is_bare(tool) else tool for tool in rest["tools"] or []] or None
    ways = [
        [lambda given: [{**m, "content": m.get("content", empty)} for m in given] for empty in (None, "")] +
        [lambda given: [{**m, "content": [{"type": "text", "text": m["content"]}]} if m.get("content") else m for m in given]],
        [lambda given: [{**m, "role": "system"} if m["role"] == "developer" else m for m in given]],
        [lambda given: of_calls(given, lambda call, function: {"type": "function", "function": call} if is_bare(call) else call)],
        [with_arguments(as_object), with_arguments(lambda value: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))],
    ]
    forms = [(messages, rest)] + ([(messages, {**rest, "tools": tools})] if tools != rest["tools"] else [])
    for changes in ways:
        forms += [(changed, kwargs) for change in changes for given, kwargs in forms if (changed := change(given)) != given]
    return forms


def render_whole(template, messages, rest, counted, is_full, told):
    """Renders the first form of which the template loses nothing, or else the first one that it takes. Returns the text and
    the spans of the answers."""
    first = error = None
    for form, kwargs in forms_of(messages, rest):
        try:
            notes = set()
            if is_full:
                text, spans = unmarked(template.render(form, kwargs))[0], []
                places = template.places(text, form, kwargs)
            else:
                text, places, spans = template.answers(form, kwargs, notes)
        except Refused as refusal:
            error = error or (refusal if first is None else None)
            continue
        lost = [(i, what) for i, message in enumerate(form) for what in losses(message, i, text, places)]
        first = first or (text, spans, notes, lost, form, kwargs)
        if all(what == "thoughts" for _, what in lost):
            first = text, spans, notes, lost, form, kwargs
            break
    if first is None:
        raise error
    text, spans, notes, lost, form, kwargs = first
    told |= {f"'{key}' of {what} is ignored: the chat template does not read it" for key, what in template.unread(form, kwargs)}
    for i, what in lost:
        if i in counted and what != "thoughts":
            raise (error if what != "calls" else None) or Refused(f"the chat template leaves out or distorts the {what} of message {i}, which would count in the loss")
        told.add(f"the {what} of a message of role '{messages[i]['role']}' are not in the text that the chat template renders")
    told |= notes
    return text, spans


def losses(message, i, text, places):
    """What a rendered text lacks of message i, or has in a form in which Python writes it."""
    calls, lost = message.get("tool_calls") or [], places.lost(i) if places else set()
    printed = {key for key, value in message.items() if is_distorted(value, text)}
    if "words" in lost or "content" in printed:
        yield "words"
    names = [str(call.get("function", call).get("name")) for call in calls]
    if lost & {"name", "argument"} or "tool_calls" in printed or any(name not in text for name in names):
        yield "calls"
    yield from (f"'{key}'" for key in printed - {"content", "tool_calls"})
    if message["role"] == "assistant" and ("thoughts" in lost or message.get("reasoning_content", "").strip() not in text):
        has_words = any(part[:2] == (i, "words") for part in places.parts) if places else message.get("content")
        yield "thoughts" if calls or has_words else "words"


def is_distorted(value, text, key=None):
    """Whether a text has a list or an object in the form in which Python writes it, or as JSON the text that the arguments of a
    call are."""
    if isinstance(value, str):
        return key == "arguments" and value != "" and json.dumps(value, ensure_ascii=False) in text
    if not isinstance(value, (list, dict)):
        return False
    inner = value.items() if isinstance(value, dict) else ((key, part) for part in value)
    return str(value) in text and str(value) != json.dumps(value) or any(is_distorted(part, text, name) for name, part in inner)


def places_of(encoding, spans):
    """1 for each token that a span has characters of."""
    masks, at = [0] * len(encoding.ids), 0
    for i, (begin, end) in enumerate(encoding.offsets):
        while at < len(spans) and spans[at][1] <= begin:
            at += 1
        masks[i] = int(at < len(spans) and spans[at][0] < max(end, begin + 1) and begin < spans[at][1])
    return masks


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
        rows, maker.notes, lines, told = [], {}, read_request(source), time.monotonic()
        for index, line in enumerate(lines):
            if time.monotonic() > told + 30:
                told = time.monotonic()
                print(f"shardc: rows are slow: {index} of {len(lines)} lines of a batch are made", file=sys.stderr)
            try:
                allow(len(line))
                rows.extend(maker.rows(line, index))
            except Refused as error:
                answer_json(out, b"R", {"row": index, "reason": str(error)})
                break
        else:
            answer_json(out, b"N", [[kind, text, count, first] for (kind, text), (count, first) in maker.notes.items()])
            answer_rows(out, rows)


def tokens_of(tokenizer, maker, value):
    """Returns the tokens of a prompt, begun as the tokenizer begins texts, or rendered by the chat template."""
    row = Row(value["row"])
    turns = row.take_json("messages") or (row.take("prompt") if isinstance(row.get("prompt"), list) else None)
    if not turns and row.key("prompt") is None:
        raise Refused("it has no 'prompt' and no 'messages'")
    if not turns and not (value["chat"] or row.get("system") or row.get("history")):
        return tokenizer.encode(prompt_of(row), add_special_tokens=True).ids
    if not maker.templates:
        raise Refused("the tokenizer has no chat template; name one by --template=FILE")
    example = chat(row, turns_of(turns or asked(row), "its prompt"))
    template = maker.template(example["rest"]["tools"])
    messages, _, _ = conversation(example["turns"], set(), template.names)
    if messages[-1]["role"] == "assistant":
        raise Refused("its last message is the assistant's; needed is one that the model answers")
    return maker.encode(unmarked(template.render(messages, example["rest"], prompt=True))[0]).ids


def serve_texts(source, out, tokenizer, maker):
    while True:
        values = [json.loads(text) for text in read_request(source)]
        answer_json(out, b"S", [json.dumps(tokens_of(tokenizer, maker, value)) if isinstance(value, dict) else
                                tokenizer.decode_batch([value], skip_special_tokens=False)[0] for value in values])


def plain(value):
    """A value of a table that JSON does not have. Texts may be bytes there; bytes that are no text cannot be taken for one."""
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        return {"bytes": len(value)}


def batches(path):
    """The rows of a Parquet file, or those of a table of texts (.csv, .tsv), whose first line has the names of the columns. An empty
    field is none, as `datasets` reads it."""
    if path.endswith(".parquet"):
        import pyarrow.parquet
        file = pyarrow.parquet.ParquetFile(path)
        confine()
        yield from (batch.to_pylist() for batch in file.iter_batches(128))
        return
    csv.field_size_limit(2**31 - 1)
    with open(path, encoding="utf-8-sig", newline="") as file:
        confine()
        rows = csv.reader(file, delimiter="\t" if path.endswith(".tsv") else ",", strict=True)
        names = next(rows, [])
        if len(set(names)) < len(names) or "" in names:
            raise Refused(f"its first line needs a name of its own for each column; found {names}")
        while batch := list(itertools.islice(rows, 128)):
            wrong = next((row for row in batch if row and len(row) != len(names)), None)
            if wrong:
                raise Refused(f"its line {rows.line_num} or one before it has {len(wrong)} fields; needed are {len(names)}, as the first line has")
            yield [{name: field or None for name, field in zip(names, row)} for row in batch if row]


def serve_table(source, out, path):
    """Sends the rows of a table as lines of JSON, some for each request. An answer without lines is the last."""
    tables = filter(None, batches(path))
    table = next(tables, None)
    answer_json(out, b"H", {})
    while table:
        read_request(source)
        answer_json(out, b"S", [json.dumps(row, ensure_ascii=False, default=plain) for row in table])
        table = next(tables, None)
    read_request(source)
    answer_json(out, b"S", [])


def run(out):
    settings = json.loads(sys.argv[1])
    if settings["mode"] == "table":
        serve_table(sys.stdin.buffer, out, settings["path"])
        return
    tokenizer, library = open_tokenizer(settings["tokenizer"])
    facts = {"library": library, "vocab": 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)}
    is_text = settings["mode"] == "text"
    maker = Rows(tokenizer, settings) if not is_text or "end" in settings else None
    answer_json(out, b"H", {**facts, **(maker.describe() if maker else {})})
    if is_text:
        serve_texts(sys.stdin.buffer, out, tokenizer, maker)
    else:
        serve_rows(sys.stdin.buffer, out, maker)


serve(run)
