"""Makes fixtures/ for the data tests: indexed datasets and the order of samples over them.

Run by hand as `python make_goldens.py` with numpy installed; the results are committed. Nothing of
Megatron is used: the formats and orders are stated here a second time, in the plainest way, and
numpy's own RandomState does the shuffles.
"""

import math
import pathlib
import struct

import numpy as np

HERE = pathlib.Path(__file__).parent / "fixtures"
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
goldens = {}


def put(name, values):
    goldens[name] = [int(v) for v in np.asarray(values).reshape(-1)]


def write_indexed(name, dtype, documents):
    """documents: lists of sequences, which are lists of tokens."""
    sequences = [s for document in documents for s in document]
    boundaries = np.cumsum([0] + [len(document) for document in documents])
    lengths = [len(s) for s in sequences]
    width = np.dtype(dtype).itemsize
    pointers = np.cumsum([0] + lengths)[:-1] * width
    with open(HERE / f"{name}.bin", "wb") as out:
        for s in sequences:
            out.write(np.array(s, dtype=dtype).tobytes())
    with open(HERE / f"{name}.idx", "wb") as out:
        out.write(b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, CODES[dtype]))
        out.write(struct.pack("<QQ", len(sequences), len(boundaries)))
        out.write(np.array(lengths, dtype=np.int32).tobytes())
        out.write(np.array(pointers, dtype=np.int64).tobytes())
        out.write(np.array(boundaries, dtype=np.int64).tobytes())
    return sequences


def gpt_order(lengths, first, end, seq, num_samples, seed, drop_last=True):
    """Documents, places and shuffle of a GPT dataset; lengths are those of the whole store."""
    chosen = np.arange(first, end)
    per_epoch = int(sum(lengths[i] for i in chosen))
    epochs = 1 if num_samples is None else max(1, -(-(num_samples * seq + 1) // per_epoch))
    before = ((epochs - 1) * per_epoch - 1) // seq
    separate = epochs > 1 and num_samples - before < int(0.80 * ((per_epoch - 1) // seq))
    rng = np.random.RandomState(seed)
    row = []
    for part in [epochs - 1, 1] if separate else [epochs]:
        piece = np.tile(chosen, part).astype(np.int32)
        rng.shuffle(piece)
        row.extend(piece.tolist())
    tokens = epochs * per_epoch - 1
    samples = tokens // seq if drop_last else -(-tokens // seq)
    ends = np.cumsum([lengths[i] for i in row])
    places = [(0, 0)]
    for cut in range(1, samples + 1):  # sample `cut` begins at token cut * seq of the row
        at = cut * seq
        document = int(np.searchsorted(ends, at, side="right"))
        if document < len(row):
            places.append((document, at - (ends[document] - lengths[row[document]])))
        else:  # a partial sample ends with the row
            places.append((len(row) - 1, lengths[row[-1]] - 1))
    first_part = before if separate else samples
    parts = [np.arange(first_part), np.arange(first_part, samples)]
    for part in parts:
        rng.shuffle(part)
    return epochs, separate, row, places, np.concatenate(parts)


def put_gpt(name, lengths, first, end, seq, num_samples, seed, drop_last=True):
    epochs, separate, row, places, shuffle = gpt_order(
        lengths, first, end, seq, num_samples, seed, drop_last
    )
    none = -1 if num_samples is None else num_samples
    put(f"{name}.lengths", lengths)
    put(f"{name}.spec", [first, end, seq, none, seed, drop_last, epochs, separate])
    put(f"{name}.documents", row)
    put(f"{name}.places", places)
    put(f"{name}.shuffle", shuffle)


def sample_texts(sequences, order, seq):
    """The text of each sample in the order of the run; shorter than seq + 1 if partial."""
    _, _, row, _, shuffle = order
    text = [token for i in row for token in sequences[i]]
    return [text[cut * seq : cut * seq + seq + 1] for cut in shuffle]


def targets(text, seq, end, reset_positions, reset_attention, mask_loss):
    tokens = text[:seq]
    labels = text[1 : seq + 1]
    loss = [0 if mask_loss and t == end else 1 for t in tokens]
    loss = [m if i < len(labels) else 0 for i, m in enumerate(loss + [0] * (seq - len(loss)))]
    positions, starts, at = [], [0], 0
    for i in range(seq):
        positions.append(at)
        at += 1
        if i < len(tokens) and tokens[i] == end:
            at = 0 if reset_positions else at
            if reset_attention and i + 1 < seq:
                starts.append(i + 1)
    pad = lambda x: x + [0] * (seq - len(x))
    return pad(tokens), pad(labels), loss, positions, starts + [seq]


def blend(weights, size):
    weights = np.array(weights, dtype=np.float64)
    weights = weights / np.sum(weights)
    taken = np.zeros(len(weights), dtype=np.int64)
    datasets, samples = [], []
    for i in range(size):
        chosen = int(np.argmax(weights * max(float(i), 1.0) - taken))
        datasets.append(chosen)
        samples.append(taken[chosen])
        taken[chosen] += 1
    return datasets, samples


def blend_all(sizes):
    weights = np.array(sizes, dtype=np.float64) / sum(sizes)
    taken = np.zeros(len(sizes), dtype=np.int64)
    datasets, samples = [], []
    for i in range(sum(sizes)):
        errors = np.where(taken < sizes, weights * max(float(i), 1.0) - taken, -np.inf)
        chosen = int(np.argmax(errors))
        datasets.append(chosen)
        samples.append(taken[chosen])
        taken[chosen] += 1
    return datasets, samples


def split_bounds(weights, count):
    weights = np.array(weights + [0.0] * (3 - len(weights)), dtype=np.float64)
    weights = (weights / np.sum(weights)).tolist()
    edges = [0.0]
    for w in weights:
        edges.append(edges[-1] + w)
    return [
        (round(a * float(count)), round(b * float(count))) if b > a else (-1, -1)
        for a, b in zip(edges, edges[1:])
    ]


def philox(counter, key):
    x, k = list(counter), [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [b >> 32 ^ x[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ x[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return x


def synthetic(seed, name, index, vocab, count):
    digest = 0xCBF29CE484222325  # FNV-1a of the stream's name
    for byte in name.encode():
        digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    block = philox([digest & 0xFFFFFFFF, digest >> 32, 0, 0], seed)
    key = block[1] << 32 | block[0]
    bits = [philox([i // 4, 0, index & 0xFFFFFFFF, index >> 32], key)[i % 4] for i in range(count)]
    return [int(vocab * ((b / 2**32) ** 2) ** 2) for b in bits]


def main():
    HERE.mkdir(exist_ok=True)
    for seed, size in [(1234, 10), (0, 1), (7, 257), (2**32 - 1, 100)]:
        values = np.arange(size, dtype=np.uint32)
        rng = np.random.RandomState(seed)
        rng.shuffle(values)
        put(f"shuffle.{seed}.{size}", values)
    rng = np.random.RandomState(99)
    put("interval64", rng.randint(0, 2**40 + 6, size=12, dtype=np.int64))  # in [0, 2^40 + 5]

    rng = np.random.RandomState(5)
    tiny = [[rng.randint(0, 257, size=n).tolist() for n in d]
            for d in [[5, 3], [1], [0], [12], [], [30, 2, 2], [7], [1, 1], [9], [17]]]
    for document in tiny:
        if document and document[-1]:
            document[-1][-1] = 256
    tiny = write_indexed("tiny", "uint16", tiny)
    wide = write_indexed("wide", "int32", [[rng.randint(0, 100000, size=n).tolist()] for n in
                                           [40, 3, 25, 60, 11, 8]])
    write_indexed("long", "int64", [[[1, 2, 2**31 - 1]], [[2**31]]])

    lengths = [len(s) for s in tiny]
    count = len(lengths)
    put_gpt("gpt.epoch", lengths, 0, count, 8, None, 1234)
    put_gpt("gpt.within", lengths, 0, count, 8, 5, 1234)
    put_gpt("gpt.separate", lengths, 0, count, 8, 24, 1234)
    put_gpt("gpt.together", lengths, 0, count, 8, 21, 1234)
    put_gpt("gpt.threshold", lengths, 0, count, 8, 19, 1234)
    put_gpt("gpt.below_threshold", lengths, 0, count, 8, 18, 1234)
    put_gpt("gpt.many", lengths, 0, count, 4, 300, 42)
    put_gpt("gpt.range", lengths, 4, 9, 6, 40, 3)
    put_gpt("gpt.partial", lengths, 0, count, 8, None, 7, drop_last=False)
    put_gpt("gpt.one", [3], 0, 1, 2, 9, 17)
    put_gpt("gpt.empty", [0, 4, 0, 0, 9, 0], 0, 6, 3, 11, 8)
    lengths = np.random.RandomState(1).randint(0, 200, size=500).tolist()
    put_gpt("gpt.large", lengths, 0, 475, 64, 1300, 1234)

    lengths = [len(s) for s in tiny]
    for name, drop_last, options in [
        ("plain", True, (False, False, False)),
        ("positions", True, (True, False, False)),
        ("attention", True, (False, True, False)),
        ("all", True, (True, True, True)),
        ("partial", False, (True, True, True)),
    ]:
        order = gpt_order(lengths, 0, count, 8, None, 7, drop_last)
        for i, text in enumerate(sample_texts(tiny, order, 8)):
            parts = targets(text, 8, 256, *options)
            for field, values in zip(["tokens", "labels", "loss", "positions", "starts"], parts):
                put(f"sample.{name}.{i}.{field}", values)

    # A run over a weighted blend of both, in the order that the dataset builder creates.
    weights, target, seq = np.array([30.0, 70.0]) / 100.0, 40, 8
    orders = []
    for sequences, weight in zip([tiny, wide], weights):
        lengths = [len(s) for s in sequences]
        end = split_bounds([9.0, 1.0], len(lengths))[0][1]
        need = math.ceil(math.ceil(target * weight) * 1.005)
        order = gpt_order(lengths, 0, end, seq, need, 1234)
        orders.append(sample_texts(sequences, order, seq))
    size = sum(math.ceil(target * w) for w in weights)
    for i, (dataset, sample) in enumerate(zip(*blend(weights, size))):
        put(f"run.{i}", orders[dataset][sample])

    for name, weights, size in [
        ("two", [30.0, 70.0], 60),
        ("equal", [1.0, 1.0, 1.0], 20),
        ("nine", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], 150),
        ("many", (np.arange(300) % 17 + 0.1).tolist(), 900),
    ]:
        datasets, samples = blend(weights, size)
        goldens[f"blend.{name}.weights"] = [repr(w) for w in weights]
        put(f"blend.{name}.datasets", datasets)
        put(f"blend.{name}.samples", samples)
    for name, sizes in [("small", [3, 5, 1]), ("uneven", [40, 1, 7, 19])]:
        datasets, samples = blend_all(sizes)
        put(f"blend_all.{name}.sizes", sizes)
        put(f"blend_all.{name}.datasets", datasets)
        put(f"blend_all.{name}.samples", samples)
    for split in ["969,30,1", "90,10", "1,1,1", "0.9,0.1,0", "0,0,5", "99,0.5,0.5", "1,0,1"]:
        for count in [1, 2, 5, 7, 10, 100, 333, 1000003]:
            weights = [float(w) for w in split.split(",")]
            put(f"split.{split}.{count}", split_bounds(weights, count))

    for index in [0, 5, 2**33]:
        put(f"synthetic.{index}", synthetic(1234, "data.synthetic.train", index, 1000, 65))

    with open(HERE / "goldens.txt", "w") as out:
        for name, values in goldens.items():
            out.write(f"{name}: {' '.join(str(v) for v in values)}\n")


if __name__ == "__main__":
    main()
