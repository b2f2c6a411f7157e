"""Encodes texts with the tokenizers of Hugging Face for `shardc data tokenize`, which embeds and starts this script.

    python3 -I -c SCRIPT TOKENIZER_JSON END_TOKEN

Requests and answers are those of exchange.py, and one more answer:

        'T'   uint32 n; uint32 tokens of each of n texts; the tokens, each an int32
"""

import array
import struct
import sys


def describe(library, tokenizer, end):
    ids = set(tokenizer.get_vocab(with_added_tokens=True).values())
    gap = next((i for i in range(max(ids, default=-1) + 1) if i not in ids), None)
    return {"library": library, "tokens": len(ids), "highest": max(ids, default=-1), "gap": gap,
            "end": tokenizer.token_to_id(end) if end else None}


def run(out):
    path, end = sys.argv[1:3]
    tokenizer, library = open_tokenizer(path)
    encode_batch = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    answer_json(out, b"H", describe(library, tokenizer, end))
    while True:
        tokens = array.array("i")
        counts = array.array("I")
        for item in encode_batch(read_request(sys.stdin.buffer), add_special_tokens=False):
            counts.append(len(item.ids))
            tokens.fromlist(item.ids)
        answer(out, b"T", struct.pack("<I", len(counts)), counts.tobytes(), tokens.tobytes())


serve(run)
