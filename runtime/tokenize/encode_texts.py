"""Encodes texts with the tokenizers of Hugging Face for `shardc data tokenize`, which embeds and starts this script.

    python3 -c SCRIPT TOKENIZER_JSON THREADS END_TOKEN

Requests arrive on standard input and answers are written to standard output. All numbers are little-endian:

    request   uint64 number of bytes that follow; uint32 n; uint32 bytes of each of n texts; the texts, in UTF-8
    answer    uint8 kind; uint64 number of bytes that follow, which are
        'H'   once, first: JSON with the properties of the tokenizer
        'T'   uint32 n; uint32 tokens of each of n texts; the tokens, each an int32
        'M'   the package is missing; the reason as text
        'E'   another error; its text. The process ends after 'M' and 'E'
"""

import sys

sys.path[:] = [folder for folder in sys.path if folder]  # no imports from the user's current folder

import array
import itertools
import json
import os
import struct


def answer(out, kind, *parts):
    out.write(struct.pack("<cQ", kind, sum(len(part) for part in parts)))
    for part in parts:
        out.write(part)
    out.flush()


def read_exactly(source, count):
    data = source.read(count)
    if len(data) != count:
        sys.exit(0)  # the requesting program has ended
    return data


def describe(tokenizers, tokenizer, end):
    ids = set(tokenizer.get_vocab(with_added_tokens=True).values())
    gap = next((i for i in range(max(ids, default=-1) + 1) if i not in ids), None)
    return {"library": f"tokenizers {tokenizers.__version__}", "tokens": len(ids), "highest": max(ids, default=-1), "gap": gap,
            "end": tokenizer.token_to_id(end) if end else None}


def serve(source, out, encode):
    while True:
        (size,) = struct.unpack("<Q", read_exactly(source, 8))
        request = memoryview(read_exactly(source, size))
        (count,) = struct.unpack_from("<I", request)
        lengths = struct.unpack_from(f"<{count}I", request, 4)
        ends = list(itertools.accumulate(lengths, initial=4 + 4 * count))
        texts = [str(request[begin:end], "utf-8") for begin, end in zip(ends, ends[1:])]
        tokens = array.array("i")
        counts = array.array("I")
        for ids in encode(texts):
            counts.append(len(ids))
            tokens.fromlist(ids)
        answer(out, b"T", struct.pack("<I", count), counts.tobytes(), tokens.tobytes())


def main():
    path, threads, end = sys.argv[1:4]
    os.environ["RAYON_NUM_THREADS"] = threads
    os.environ["TOKENIZERS_PARALLELISM"] = "false" if threads == "1" else "true"
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    try:
        try:
            import tokenizers
        except ImportError as error:
            answer(out, b"M", str(error).encode())
            return
        tokenizer = tokenizers.Tokenizer.from_file(path)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        encode_batch = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
        answer(out, b"H", json.dumps(describe(tokenizers, tokenizer, end)).encode())
        serve(sys.stdin.buffer, out, lambda texts: [item.ids for item in encode_batch(texts, add_special_tokens=False)])
    except SystemExit:
        raise
    except BrokenPipeError:
        os._exit(0)  # nobody reads any more; a normal exit would write the rest of the buffer and report an error
    except BaseException as error:  # includes panics of the library
        answer(out, b"E", f"{type(error).__name__}: {error}".encode("utf-8", "replace"))


main()
