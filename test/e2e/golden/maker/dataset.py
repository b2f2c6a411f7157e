"""A Megatron indexed dataset and the order in which Megatron-Core's GPTDataset draws from it.

Written from the rules, not from shardc's code: document index, sample index and shuffle index by
numpy.random.RandomState, one extra token per sample, and batches in the order of the sequential sampler.
"""

import json
import struct

import numpy as np

from .documents import DOCUMENTS
from .philox import fnv1a

END_OF_DOCUMENT = 256
VOCAB_SIZE = 257


def documents():
    """Token ids of each document: its bytes, and the token that ends it."""
    return [np.array(list(text.encode()) + [END_OF_DOCUMENT], np.uint16) for text in DOCUMENTS]


def write_indexed(prefix, docs):
    """Writes PREFIX.bin and PREFIX.idx with one sequence per document and tokens as uint16."""
    with open(f"{prefix}.bin", "wb") as f:
        for doc in docs:
            f.write(doc.astype("<u2").tobytes())
    lengths = [len(doc) for doc in docs]
    pointers = [0]
    for length in lengths[:-1]:
        pointers.append(pointers[-1] + 2 * length)
    with open(f"{prefix}.idx", "wb") as f:
        f.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(docs), len(docs) + 1))
        f.write(struct.pack(f"<{len(docs)}i", *lengths))
        f.write(struct.pack(f"<{len(docs)}q", *pointers))
        f.write(struct.pack(f"<{len(docs) + 1}q", *range(len(docs) + 1)))


def write_jsonl(path):
    """Writes the documents in the form that preprocessing reads."""
    with open(path, "w", encoding="utf-8") as f:
        for text in DOCUMENTS:
            f.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


class SampleOrder:
    """Samples of `seq_length` + 1 tokens over as many shuffled epochs as `num_samples` need."""

    def __init__(self, docs, num_samples, seq_length, seed):
        self.docs, self.seq_length, self.seed = docs, seq_length, seed
        lengths = [len(doc) for doc in docs]
        per_epoch = sum(lengths)
        self.epochs = 1
        while self.epochs * per_epoch < num_samples * seq_length + 1:
            self.epochs += 1
        before_last = ((self.epochs - 1) * per_epoch - 1) // seq_length
        # If little of the last epoch is needed, it is shuffled separately, so that its samples come after all others.
        self.separate_last = self.epochs > 1 and num_samples - before_last < int(
            0.80 * ((per_epoch - 1) // seq_length)
        )
        state = np.random.RandomState(seed)
        self.document_index = self._documents(state, len(docs))
        self.sample_index = self._samples(lengths, (self.epochs * per_epoch - 1) // seq_length)
        total = len(self.sample_index) - 1
        first = before_last if self.separate_last else total
        parts = [np.arange(0, first, dtype=np.uint32), np.arange(first, total, dtype=np.uint32)]
        for part in parts[: 2 if first < total else 1]:
            state.shuffle(part)
        self.shuffle_index = np.concatenate(parts)

    def _documents(self, state, count):
        rounds = [self.epochs - 1, 1] if self.separate_last else [self.epochs]
        parts = [np.tile(np.arange(count, dtype=np.int32), n) for n in rounds]
        for part in parts:
            state.shuffle(part)
        return np.concatenate(parts)

    def _samples(self, lengths, count):
        """(index in the document index, offset) at which each sample begins."""
        index, position, offset = [(0, 0)], 0, 0
        for _ in range(count):
            remaining = self.seq_length + 1
            while remaining > lengths[self.document_index[position]] - offset:
                remaining -= lengths[self.document_index[position]] - offset
                position, offset = position + 1, 0
            # The next sample begins with this sample's last label.
            offset += remaining - 1
            index.append((position, offset))
        return index

    def sample(self, i):
        """The seq_length + 1 tokens of sample `i`."""
        (begin, first), (end, last) = (self.sample_index[self.shuffle_index[i] + k] for k in (0, 1))
        parts = []
        for position in range(begin, end + 1):
            doc = self.docs[self.document_index[position]]
            parts.append(
                doc[first if position == begin else 0 : last + 1 if position == end else len(doc)]
            )
        tokens = np.concatenate(parts).astype(np.int64)
        assert len(tokens) == self.seq_length + 1
        return tokens

    def describe(self, num_samples):
        """The values with which another implementation must agree."""
        samples = [self.sample(i) for i in range(num_samples)]
        digest = fnv1a(b"".join(s.astype("<i4").tobytes() for s in samples))
        return {
            "seed": self.seed,
            "sequence_length": self.seq_length,
            "num_samples": num_samples,
            "epochs": self.epochs,
            "separate_last_epoch": bool(self.separate_last),
            "document_index": self.document_index.tolist(),
            "sample_index": [list(map(int, pair)) for pair in self.sample_index],
            "shuffle_index": self.shuffle_index.tolist(),
            "first_samples": [s.tolist() for s in samples[:8]],
            "fnv1a_of_all_samples_int32": f"{digest:016x}",
        }


def batch(order, first, count, case):
    """Tokens, labels, loss mask, positions and document starts of `count` samples from `first` on."""
    text = np.stack([order.sample(i) for i in range(first, first + count)])
    tokens, labels = text[:, :-1], text[:, 1:]
    mask = np.ones(tokens.shape)
    if case.eod_mask_loss:
        mask[tokens == END_OF_DOCUMENT] = 0
    positions = np.tile(np.arange(tokens.shape[1]), (count, 1))
    starts = np.zeros_like(positions)
    for b, row in enumerate(tokens):
        for end in np.flatnonzero(row == END_OF_DOCUMENT):
            starts[b, end + 1 :] = end + 1
    if case.reset_position_ids:
        positions = positions - starts
    if not case.reset_attention_mask:
        starts = np.zeros_like(starts)
    return tokens, labels, mask, positions, starts
