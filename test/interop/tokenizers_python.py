#!/usr/bin/env python3
"""Compares tokens of `shardc data tokenize` with those of the Python libraries, for tokenizers that this test trains.

    tokenizers_python.py SHARDC_FOLDER [--speed MEGABYTES]

Trains tokenizers in the style of GPT-2, Llama 3 and Qwen 2 (byte-level BPE with each family's pattern) and of Mistral
(SentencePiece BPE with byte fallback, as a model and as tokenizer.json). With --speed it also measures the throughput
of both in the same run. Exits with 77, skipped, without the packages.
"""

import argparse
import gzip
import json
import os
import pathlib
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
    import sentencepiece
    import tokenizers
    import zstandard
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# The patterns in the families' published tokenizer.json.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
STRANGE = ["Größe naïve façade", "Быстрая лиса", "素早い茶色の狐が", "הכלב העצלן", "👩‍👩‍👧‍👦 🇺🇳", "e\u0301 e\u0300", "\u00a0\u2003 \u3000", "\ufeff",
           "don't WE'LL I'M", "3.14159 1234567890 ٣٤٥", "\t\tif (x)\r\n\r\n    y;", "   \n \n", "\x00\x07", "<|end|>", "</s><s>", "\U0001f9ff\U000e0001"]


def make_documents(count, seed):
    """Texts with words of this project's pages and code, and with what is hard for tokenizers. Some documents are
    lists, some empty."""
    rng = random.Random(seed)
    lines = []
    for path in sorted([*SOURCE.glob("docs/*.md"), *SOURCE.glob("runtime/data/*.cpp")]):
        lines += path.read_text(encoding="utf-8").split("\n")
    documents = []
    for number in range(count):
        begin = rng.randrange(len(lines))
        text = "\n".join(lines[begin:begin + rng.randrange(1, 60)])
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(STRANGE) + text[at:]
        documents.append("" if number % 97 == 5 else [text, "", text[:40]] if number % 53 == 7 else text)
    return documents


def texts_of(document):
    return [text for text in (document if isinstance(document, list) else [document]) if text]


def byte_level(pattern, normalizer=None):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    if pattern:
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(place, documents, vocab_size):
    """{name: folder} of tokenizers. The last folder has both forms of one tokenizer."""
    texts = [text for document in documents for text in texts_of(document)]
    folders = {}
    for name, tokenizer in {"gpt2": byte_level(None), "llama3": byte_level(LLAMA3),
                            "qwen2": byte_level(QWEN2, normalizers.NFC())}.items():
        folders[name] = place / name
        folders[name].mkdir()
        trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, special_tokens=["<|end|>", "<|pad|>"],
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(texts, trainer)
        tokenizer.enable_truncation(max_length=16)  # as models do; whole documents are still encoded
        tokenizer.save(str(folders[name] / "tokenizer.json"))
        (folders[name] / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|end|>"}}))
    folders["mistral"] = place / "mistral"
    folders["mistral"].mkdir()
    (place / "corpus.txt").write_text("\n".join(text.replace("\x00", "") for text in texts), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(place / "corpus.txt"), model_prefix=str(folders["mistral"] / "tokenizer"), model_type="bpe",
        vocab_size=vocab_size, byte_fallback=True, split_digits=True, normalization_rule_name="identity",
        allow_whitespace_only_pieces=True, remove_extra_whitespaces=False, character_coverage=0.995, minloglevel=2)
    folders["mistral_json"] = place / "mistral_json"
    folders["mistral_json"].mkdir()
    convert(folders["mistral"] / "tokenizer.model", folders["mistral_json"] / "tokenizer.json")
    return folders


def convert(model, path):
    """Converts a model to a tokenizer.json of Mistral's form, with the model's pieces and the merges that their ranks
    imply."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    vocab = {pieces.id_to_piece(i): i for i in range(pieces.get_piece_size())}
    ranked = []
    for piece, number in vocab.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                ranked.append((number, vocab[left], vocab[right], left, right))
    merges = [(left, right) for *_, left, right in sorted(ranked)]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(path))
    (path.parent / "special_tokens_map.json").write_text(json.dumps({"eos_token": "</s>"}))


def python_encoder(folder):
    """encode(text) and the end token's id, from the Python library alone."""
    if (folder / "tokenizer.json").exists():
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        end = tokenizer.token_to_id("<|end|>")
        end = tokenizer.token_to_id("</s>") if end is None else end
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, end
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return pieces.encode, pieces.eos_id()


def expected(documents, folder):
    """Tokens, lengths of sequences and ends of documents, as Megatron's preprocess_data.py --append-eod writes them."""
    encode, end = python_encoder(folder)
    tokens, lengths, boundaries = [], [], [0]
    for document in documents:
        sequences = [ids for ids in map(encode, texts_of(document)) if ids]
        if sequences:
            sequences[-1] = [*sequences[-1], end]
        for ids in sequences:
            tokens += ids
            lengths.append(len(ids))
        boundaries.append(len(lengths))
    return tokens, lengths, boundaries


def read_dataset(prefix):
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00", index[:9]
    version, code, count, boundaries = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1 and code in (4, 8), (version, code)
    lengths = np.frombuffer(index, np.int32, count, 34)
    ends = np.frombuffer(index, np.int64, boundaries, 34 + 12 * count)
    return np.fromfile(f"{prefix}.bin", np.uint16 if code == 8 else np.int32).tolist(), lengths.tolist(), ends.tolist()


def tokenize(program, folder, inputs, prefix, *more):
    command = [program, "data", "tokenize", "--tokenizer", folder, *inputs, "-o", prefix, f"--python={sys.executable}", *more]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}: {done.stderr}")
    return done.stdout


def write_inputs(place, documents):
    """Writes the documents to three files: plain, gzip with several members, and zstd with several frames."""
    third = len(documents) // 3
    lines = [json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0) + "\n" for i, text in enumerate(documents)]
    parts = ["".join(lines[:third]), "".join(lines[third:2 * third]), "".join(lines[2 * third:])]
    paths = [place / "a.jsonl", place / "b.jsonl.gz", place / "c.jsonl.zst"]
    paths[0].write_text(parts[0], encoding="utf-8")
    raw = [part.encode() for part in parts]
    paths[1].write_bytes(b"".join(gzip.compress(raw[1][i:i + 50000]) for i in range(0, len(raw[1]), 50000)))
    paths[2].write_bytes(b"".join(zstandard.compress(raw[2][i:i + 70000]) for i in range(0, len(raw[2]), 70000)))
    return paths


def compare(program, place, documents, folders):
    inputs = write_inputs(place, documents)
    for name, folder in folders.items():
        prefix = place / f"{name}-out"
        tokenize(program, folder, inputs, prefix, "--shard-tokens=20000", "--threads=3")
        wanted, found = expected(documents, folder), read_dataset(prefix)
        for what, left, right in zip(("tokens", "lengths", "ends of documents"), found, wanted):
            if left != right:
                at = next((i for i, pair in enumerate(zip(left, right)) if pair[0] != pair[1]), min(len(left), len(right)))
                sys.exit(f"{name}: {what}: {len(left)} and {len(right)}, which differ first at {at}: "
                         f"{left[at:at + 8]}, not {right[at:at + 8]}")
        manifest = json.loads(pathlib.Path(f"{prefix}.json").read_text())
        assert manifest["tokens"] == len(wanted[0]) and manifest["documents"] == len(documents), manifest
        print(f"{name}: {len(wanted[0])} tokens of {len(documents)} documents are equal; {manifest['tokenizer']['library']}")


def python_alone(folder, source, prefix):
    """Tokenizes like a simple script: reads lines, encodes batches of a thousand on all cores, and writes tokens."""
    is_json = (folder / "tokenizer.json").exists()
    if is_json:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
    else:
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    lengths = []

    def flush(batch, out):
        rows = [one.ids for one in tokenizer.encode_batch(batch, add_special_tokens=False)] if is_json else pieces.encode(batch)
        for ids in rows:
            out.write(np.array([*ids, 0], dtype=np.uint16).tobytes())
            lengths.append(len(ids) + 1)

    with open(source, encoding="utf-8") as lines, open(f"{prefix}.bin", "wb") as out:
        batch = []
        for line in lines:
            batch.append(json.loads(line)["text"])
            if len(batch) == 1000:
                flush(batch, out)
                batch = []
        flush(batch, out)
    return sum(lengths)


def measure(program, place, folders, megabytes):
    source = place / "speed.jsonl"
    size, seed = 0, 100
    with open(source, "w", encoding="utf-8") as out:
        while size < megabytes * 1_000_000:
            for document in make_documents(1000, seed):
                text = "\n".join(texts_of(document))
                size += len(text.encode())
                out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            seed += 1
    print(f"{size / 1e6:.1f} MB of text, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name, folder in folders.items():
        runs = {"shardc": lambda: tokenize(program, folder, [source], place / "speed"),
                "Python alone": lambda: subprocess.run(
                    [sys.executable, "-B", __file__, "--alone", str(folder), str(source), str(place / "alone")], check=True)}
        costs = {who: [] for who in runs}
        for _ in range(3):
            for who, run in runs.items():
                began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
                run()
                now = resource.getrusage(resource.RUSAGE_CHILDREN)
                costs[who].append((time.monotonic() - began, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime))
        print(name + ": " + "; ".join(f"{who} {size / 1e6 / wall:.2f} MB/s, {cpu:.2f} s of processors"
                                      for who, each in costs.items() for wall, cpu in [sorted(each)[1]]))


def main():
    if sys.argv[1:2] == ["--alone"]:
        python_alone(pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--speed", type=float, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        documents = make_documents(1500, 1)
        folders = train(place, documents, 8000 if arguments.speed else 2000)
        compare(arguments.folder / "shardc", place, documents, folders)
        if arguments.speed:
            measure(arguments.folder / "shardc", place, folders, arguments.speed)


if __name__ == "__main__":
    main()
