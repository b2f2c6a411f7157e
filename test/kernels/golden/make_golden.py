"""Writes golden.txt: the results of PyTorch's own functions and optimizers, in fp64, on rounded inputs.

    python make_golden.py > golden.txt

One line a fact: `case NAME OP`, `attr NAME VALUE`, `index I OF N` (what a rank has by its index in a group),
`in DTYPE SHAPE: VALUES`, `row ELEMENTS TURNS` (of a parameter's rows), `state LR SCALE APPLIED` (a StepState operand), `out DTYPE SHAPE TOLERANCE:
VALUES` (expected) or `place OPERAND SHAPE TOLERANCE: VALUES` (expected of a result in an operand's place).
Inputs are exact in their type.
"""

import math

import torch
import torch.nn.functional as F

F32, BF16, F64 = torch.float32, torch.bfloat16, torch.float64
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
NAMES = {F32: "f32", BF16: "bf16", E4M3: "f8e4m3", E5M2: "f8e5m2", torch.int32: "i32", torch.int64: "i64"}
torch.manual_seed(2024)


def rand(dtype, *shape, scale=1.0):
    """Random numbers that `dtype` holds exactly, as fp64."""
    return (torch.randn(*shape) * scale).to(dtype).to(F64)


def shape_of(t):
    return ",".join(str(n) for n in (t.shape or [1]))


def values_of(t):
    if t.dtype in (torch.int32, torch.int64):
        return " ".join(str(v) for v in t.flatten().tolist())
    return " ".join(f"{v:.9g}" for v in t.detach().to(F64).flatten().tolist())


class Case:
    def __init__(self, name, op, **attrs):
        print(f"case {name} {op}")
        for key, value in attrs.items():
            print(f"attr {key} {int(value) if isinstance(value, bool) else value}")

    def given(self, t, dtype=F32):
        dtype = t.dtype if t.dtype in (torch.int32, torch.int64) else dtype
        print(f"in {NAMES[dtype]} {shape_of(t)}: {values_of(t)}")
        return self

    def index(self, index, members):
        print(f"index {index} of {members}")
        return self

    def row(self, elements, *turns):
        print("row", elements, *(*turns, 0, 0, 0, 0)[:4])
        return self

    def state(self, lr, scale, applied):
        print(f"state {lr} {scale} {applied}")
        return self

    def wanted(self, t, tolerance, dtype=F32):
        print(f"out {NAMES[dtype]} {shape_of(t)} {tolerance}: {values_of(t)}")
        return self

    def updated(self, operand, t, tolerance):
        print(f"place {operand} {shape_of(t)} {tolerance}: {values_of(t)}")
        return self


def leaf(t):
    return t.clone().requires_grad_()


def norms(dtype):
    name = NAMES[dtype]
    x, w, b, dy = rand(dtype, 4, 9, scale=2), rand(dtype, 9), rand(dtype, 9), rand(dtype, 4, 9)
    eps = 1e-5
    lx, lw, lb = leaf(x), leaf(w), leaf(b)
    y = F.layer_norm(lx, (9,), lw, lb, eps)
    y.backward(dy)
    mean, rstd = x.mean(1), 1 / (x.var(1, unbiased=False) + eps).sqrt()
    Case(f"layernorm_{name}", "layernorm", eps=eps).given(x, dtype).given(w, dtype).given(b, dtype) \
        .wanted(y, 1e-6, dtype).wanted(mean, 1e-6).wanted(rstd, 1e-6)
    Case(f"layernorm_bwd_{name}", "layernorm_bwd", eps=eps).given(dy, dtype).given(x, dtype) \
        .given(w, dtype).given(mean).given(rstd) \
        .wanted(lx.grad, 4e-6, dtype).wanted(lw.grad, 4e-6).wanted(lb.grad, 4e-6)
    lx, lw = leaf(x), leaf(w)
    y = F.rms_norm(lx, (9,), lw, eps)
    y.backward(dy)
    rstd = 1 / (x.square().mean(1) + eps).sqrt()
    Case(f"rmsnorm_{name}", "rmsnorm", eps=eps).given(x, dtype).given(w, dtype) \
        .wanted(y, 1e-6, dtype).wanted(rstd, 1e-6)
    Case(f"rmsnorm_bwd_{name}", "rmsnorm_bwd", eps=eps).given(dy, dtype).given(x, dtype) \
        .given(w, dtype).given(rstd).wanted(lx.grad, 4e-6, dtype).wanted(lw.grad, 4e-6)


def activations(dtype):
    name = NAMES[dtype]
    x, dy = rand(dtype, 3, 8, scale=3), rand(dtype, 3, 8)
    for approximate in ("none", "tanh"):
        lx = leaf(x)
        y = F.gelu(lx, approximate=approximate)
        y.backward(dy)
        attrs = {"tanh_approx": approximate == "tanh"}
        Case(f"gelu_{approximate}_{name}", "gelu", **attrs).given(x, dtype).wanted(y, 2e-6, dtype)
        Case(f"gelu_bwd_{approximate}_{name}", "gelu_bwd", **attrs).given(dy, dtype) \
            .given(x, dtype).wanted(lx.grad, 2e-6, dtype)
    x, dy = rand(dtype, 3, 10, scale=3), rand(dtype, 3, 5)
    lx = leaf(x)
    gate, up = lx.chunk(2, dim=-1)
    y = F.silu(gate) * up
    y.backward(dy)
    Case(f"swiglu_{name}", "swiglu").given(x, dtype).wanted(y, 2e-6, dtype)
    Case(f"swiglu_bwd_{name}", "swiglu_bwd").given(dy, dtype).given(x, dtype) \
        .wanted(lx.grad, 4e-6, dtype)


def linear(dtype):
    x, w, b, dy = rand(dtype, 2, 3, 5), rand(dtype, 4, 5), rand(dtype, 4), rand(dtype, 2, 3, 4)
    lx, lw, lb = leaf(x), leaf(w), leaf(b)
    y = F.linear(lx, lw, lb)
    y.backward(dy)
    name = NAMES[dtype]
    Case(f"linear_{name}", "matmul", trans_b=True).given(x, dtype).given(w, dtype).given(b, dtype) \
        .wanted(y, 1e-6, dtype)
    Case(f"linear_dx_{name}", "matmul").given(dy, dtype).given(w, dtype).wanted(lx.grad, 1e-6, dtype)
    Case(f"linear_dw_{name}", "matmul", trans_a=True).given(dy, dtype).given(x, dtype) \
        .wanted(lw.grad, 1e-6)
    Case(f"linear_dbias_{name}", "reduce_rows").given(dy, dtype).wanted(lb.grad, 1e-6)


def attention(dtype, s, kind, seen, **attrs):
    """Attention over s positions, in which query i sees key j where `seen[i, j]`."""
    b, n, g, d = 2, 4, 2, 3
    q, k, v = rand(dtype, b, s, n, d), rand(dtype, b, s, g, d), rand(dtype, b, s, g, d)
    do = rand(dtype, b, s, n * d)
    lq, lk, lv = leaf(q), leaf(k), leaf(v)
    heads = [t.transpose(1, 2) for t in (lq, lk, lv)]
    o = F.scaled_dot_product_attention(*heads, attn_mask=seen, enable_gqa=True)
    o = o.transpose(1, 2).reshape(b, s, n * d)
    o.backward(do)
    scores = torch.einsum("bsnd,btnd->bnst", q, k.repeat_interleave(n // g, dim=2)) * d**-0.5
    lse = scores.masked_fill(~seen, float("-inf")).logsumexp(-1)
    docs, samples = torch.zeros(b, s, dtype=torch.int32), torch.zeros(b, dtype=torch.int64)
    name = f"{NAMES[dtype]}_{kind}"
    attrs = {**attrs, "scale": d**-0.5}
    Case(f"attention_{name}", "attention", **attrs).given(q, dtype).given(k, dtype).given(v, dtype) \
        .given(docs).given(samples).wanted(o, 2e-6, dtype).wanted(lse, 2e-6)
    o = o.detach().to(dtype).to(F64)
    Case(f"attention_bwd_{name}", "attention_bwd", **attrs).given(do, dtype).given(q, dtype) \
        .given(k, dtype).given(v, dtype).given(o, dtype).given(lse).given(docs).given(samples) \
        .wanted(lq.grad, 4e-6, dtype).wanted(lk.grad, 4e-6, dtype).wanted(lv.grad, 4e-6, dtype)


def triangle(dtype, causal):
    """Attention to all tokens, or to the own token and those before it."""
    s = 7
    ones = torch.ones(s, s, dtype=torch.bool)
    attention(dtype, s, "causal" if causal else "full", ones.tril() if causal else ones, causal=causal)


def loss(dtype):
    rows, cols, valid, hidden = 5, 8, 6, 4
    labels = torch.randint(0, valid, (rows,))
    mask = torch.tensor([1, 0, 1, 1, 1], dtype=F64)
    x, w = rand(dtype, rows, hidden), rand(dtype, cols, hidden)
    lx, lw = leaf(x), leaf(w)
    logits = lx @ lw.T
    losses = F.cross_entropy(logits[:, :valid], labels, reduction="none") * mask
    (losses.sum() / mask.sum()).backward()
    name, ints, n = NAMES[dtype], labels.to(torch.int32), mask.sum().reshape(1)
    Case(f"lm_loss_grad_{name}", "lm_loss_grad", valid_cols=valid, chunk_rows=2).given(x, dtype) \
        .given(w, dtype).given(ints).given(mask).given(n) \
        .wanted(losses, 2e-6).wanted(lx.grad, 1e-6, dtype).wanted(lw.grad, 1e-6)
    logits = rand(dtype, rows, cols, scale=3)
    ll = leaf(logits)
    losses = F.cross_entropy(ll[:, :valid], labels, reduction="none") * mask
    (losses.sum() / mask.sum()).backward()
    lse = logits[:, :valid].logsumexp(1)
    Case(f"cross_entropy_{name}", "cross_entropy", valid_cols=valid).given(logits, dtype) \
        .given(ints).given(mask).wanted(losses, 2e-6).wanted(lse, 2e-6)
    Case(f"cross_entropy_bwd_{name}", "cross_entropy_bwd", valid_cols=valid).given(logits, dtype) \
        .given(lse).given(ints).given(mask).given(n).wanted(ll.grad, 1e-6, dtype)


def embedding(dtype):
    table, ids = rand(dtype, 5, 3), torch.tensor([[0, 3, 3], [4, 0, 3]])
    dx = rand(dtype, 2, 3, 3)
    lt = leaf(table)
    x = F.embedding(ids, lt)
    x.backward(dx)
    ints, name = ids.to(torch.int32), NAMES[dtype]
    Case(f"embedding_{name}", "embedding").given(ints).given(table, dtype).wanted(x, 0, dtype)
    Case(f"embedding_bwd_{name}", "embedding_bwd").given(dx, dtype).given(ints) \
        .wanted(lt.grad, 1e-7)


def llama31(inv_freq, factor, low=1.0, high=4.0, positions=8192):
    """As transformers' _compute_llama3_parameters and Megatron's _apply_scaling have it."""
    wave = 2 * math.pi / inv_freq
    scaled = torch.where(wave > positions / low, inv_freq / factor, inv_freq)
    smooth = (positions / wave - low) / (high - low)
    between = ~(wave < positions / high) * ~(wave > positions / low)
    return torch.where(between, (1 - smooth) * scaled / factor + smooth * scaled, scaled)


def rope(interleaved, factor=1.0):
    """Angles as models make them: fp32 frequencies, fp32 outer product, rotation of the halves."""
    b, s, heads, d, rotary, base = 2, 9, 2, 8, 6, 10000.0
    if factor != 1.0:  # four waves short enough to stay, one on the ramp, one that shrinks in full
        d, rotary = 12, 12
    x = rand(F32, b, s, heads, d)
    inv_freq = 1.0 / (base ** (torch.arange(0, rotary, 2, dtype=F32) / rotary))
    if factor != 1.0:
        inv_freq = llama31(inv_freq, factor)
    angles = torch.outer(torch.arange(s, dtype=F32), inv_freq)
    cos, sin = angles.cos().to(F64)[:, None], angles.sin().to(F64)[:, None]
    turned, rest = x[..., :rotary], x[..., rotary:]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, dim=-1)
    parts = (first * cos - second * sin, second * cos + first * sin)
    y = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    y = torch.cat((y, rest), -1)
    attrs = {"rotary_dim": rotary, "rotary_base": base, "rotary_interleaved": interleaved}
    if factor != 1.0:
        attrs["rotary_scaling"] = factor
    name = "scaled" if factor != 1.0 else "interleaved" if interleaved else "halves"
    Case(f"rope_{name}", "rope", **attrs).given(x).wanted(y, 4e-7)
    Case(f"rope_{name}_inverse", "rope", inverse=True, **attrs).given(y.to(F32)).wanted(x, 6e-7)


def squared_relu(dtype):
    name = NAMES[dtype]
    x, dy = rand(dtype, 3, 8, scale=3), rand(dtype, 3, 8)
    lx = leaf(x)
    y = F.relu(lx).square()
    y.backward(dy)
    Case(f"squared_relu_{name}", "squared_relu").given(x, dtype).wanted(y, 1e-7, dtype)
    Case(f"squared_relu_bwd_{name}", "squared_relu_bwd").given(dy, dtype).given(x, dtype) \
        .wanted(lx.grad, 1e-7, dtype)


def geglu(dtype):
    name = NAMES[dtype]
    x, dy = rand(dtype, 3, 10, scale=3), rand(dtype, 3, 5)
    for approximate in ("none", "tanh"):
        lx = leaf(x)
        gate, up = lx.chunk(2, dim=-1)
        y = F.gelu(gate, approximate=approximate) * up
        y.backward(dy)
        attrs = {"tanh_approx": approximate == "tanh"}
        Case(f"geglu_{approximate}_{name}", "geglu", **attrs).given(x, dtype).wanted(y, 4e-6, dtype)
        Case(f"geglu_bwd_{approximate}_{name}", "geglu_bwd", **attrs).given(dy, dtype) \
            .given(x, dtype).wanted(lx.grad, 4e-6, dtype)


def window(dtype, width):
    """Attention to the own token and `width` before it."""
    s = 9
    back = torch.arange(s)[:, None] - torch.arange(s)[None, :]
    attention(dtype, s, f"window_{width}", (back >= 0) & (back <= width), causal=True, window=width)


def adamw(weight_decay, decoupled):
    """The third step. The kernel's input is the state after the first two."""
    n, lr, betas, eps = 12, 0.01, (0.9, 0.95), 1e-8
    w = leaf(rand(F32, n))
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind([w], lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    for _ in range(2):
        w.grad = rand(F32, n)
        optimizer.step()
    state = optimizer.state[w]
    old = [t.detach().to(F32).to(F64) for t in (w, state["exp_avg"], state["exp_avg_sq"])]
    with torch.no_grad():
        for t, rounded in zip((w, state["exp_avg"], state["exp_avg_sq"]), old):
            t.copy_(rounded)
    g = rand(F32, n)
    w.grad = g * 0.25  # clipping
    optimizer.step()
    case = Case(f"adamw_{'decoupled' if decoupled else 'l2'}", "adamw", beta1=betas[0],
                beta2=betas[1], eps=eps, weight_decay=weight_decay, decoupled=decoupled)
    case.given(g)
    for t in old:
        case.given(t)
    case.state(lr, 0.25, 3).updated(1, w, 1e-6)
    case.updated(2, state["exp_avg"], 1e-7).updated(3, state["exp_avg_sq"], 1e-7)


def sgd(momentum):
    n, lr, weight_decay = 10, 0.1, 0.05
    w = leaf(rand(F32, n))
    optimizer = torch.optim.SGD([w], lr=lr, momentum=momentum, weight_decay=weight_decay)
    w.grad = rand(F32, n)
    optimizer.step()
    old = w.detach().to(F32).to(F64)
    with torch.no_grad():
        w.copy_(old)
    g = rand(F32, n)
    attrs = {"weight_decay": weight_decay, "decoupled": False}
    if momentum:
        buffer = optimizer.state[w]["momentum_buffer"]
        kept = buffer.to(F32).to(F64)
        buffer.copy_(kept)
    w.grad = g.clone()
    optimizer.step()
    if momentum:
        Case("sgd_momentum", "sgd_momentum", momentum=momentum, **attrs).given(g).given(old) \
            .given(kept).state(lr, 1, 2).updated(1, w, 1e-6).updated(2, buffer, 1e-6)
    else:
        Case("sgd", "sgd", **attrs).given(g).given(old).state(lr, 1, 2).updated(1, w, 1e-6)


def vocabulary(dtype):
    """A loss over columns of which three ranks have four each, the last two of them padding."""
    rows, members, cols, valid = 5, 3, 4, 10
    labels = torch.tensor([0, 9, 5, 3, 4])
    mask = torch.tensor([1, 1, 1, 0, 1], dtype=F64)
    logits = rand(dtype, rows, members * cols, scale=3)
    ll = leaf(logits)
    losses = F.cross_entropy(ll[:, :valid], labels, reduction="none") * mask
    (losses.sum() / mask.sum()).backward()
    lse = logits[:, :valid].logsumexp(1)
    name, ints, n = NAMES[dtype], labels.to(torch.int32), mask.sum().reshape(1)
    stats = []
    for i in range(members):
        first, part = i * cols, logits[:, i * cols:min((i + 1) * cols, valid)]
        largest = part.max(1).values
        is_here = (labels >= first) & (labels < first + cols)
        own = logits.gather(1, labels[:, None])[:, 0].masked_fill(~is_here, float("-inf"))
        stats += [largest, (part - largest[:, None]).exp().sum(1), own]
        columns = slice(first, first + cols)
        Case(f"cross_entropy_bwd_{name}_of_{i}", "cross_entropy_bwd", valid_cols=valid) \
            .index(i, members).given(logits[:, columns], dtype).given(lse).given(ints).given(mask) \
            .given(n).wanted(ll.grad[:, columns], 1e-6, dtype)
    Case(f"vocab_loss_{name}", "vocab_loss").given(torch.stack(stats)).given(mask) \
        .wanted(losses, 2e-6).wanted(lse, 2e-6)


def slices(dtype):
    """The contributions of each rank's keys to attention, for the queries of one of two ranks with mirrored slices."""
    b, n, g, d = 2, 4, 2, 3
    own, other = torch.tensor([2, 3, 4, 5]), torch.tensor([0, 1, 6, 7])
    q, do = rand(dtype, b, 4, n, d), rand(dtype, b, 4, n * d)
    samples, docs = torch.zeros(b, dtype=torch.int64), torch.zeros(b, 4, dtype=torch.int32)
    parts = [(keys, leaf(q), leaf(rand(dtype, b, 4, g, d)), leaf(rand(dtype, b, 4, g, d))) for keys in (own, other)]
    scores, values, seen = [], [], []
    for keys, lq, lk, lv in parts:
        heads = lk.repeat_interleave(n // g, dim=2)
        seen.append(own[:, None] >= keys[None, :])
        scores.append(torch.einsum("bsnd,btnd->bnst", lq, heads) * d**-0.5)
        values.append(lv.repeat_interleave(n // g, dim=2))
    masked = torch.cat(scores, -1).masked_fill(~torch.cat(seen, -1), float("-inf"))
    o = torch.einsum("bnst,btnd->bsnd", masked.softmax(-1), torch.cat(values, 1)).reshape(b, 4, n * d)
    lse = masked.logsumexp(-1).detach()
    o.backward(do)
    o = o.detach()
    name, attrs = NAMES[dtype], {"causal": True, "scale": d**-0.5}
    outputs = []

    def words(case, keys):
        for positions in (own, keys):
            case.given(positions.to(torch.int32).expand(b, 4))
        return case.given(docs).given(docs).given(samples)

    for (keys, lq, lk, lv), mask, at in zip(parts, seen, ("own", "other")):
        k, v = lk.detach(), lv.detach()
        heads = [t.transpose(1, 2) for t in (q, k, v)]
        part = F.scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=True)
        part = part.transpose(1, 2).reshape(b, 4, n * d)
        row = torch.einsum("bsnd,btnd->bnst", q, k.repeat_interleave(n // g, dim=2)) * d**-0.5
        outputs.append((part, row.masked_fill(~mask, float("-inf")).logsumexp(-1)))
        case = Case(f"attention_part_{at}_{name}", "attention_part", **attrs).given(q, dtype) \
            .given(k, dtype).given(v, dtype)
        words(case, keys).wanted(part, 2e-6, dtype).wanted(outputs[-1][1], 2e-6)
        case = Case(f"attention_part_bwd_{at}_{name}", "attention_part_bwd", **attrs).given(do, dtype) \
            .given(q, dtype).given(k, dtype).given(v, dtype).given(o).given(lse)
        words(case, keys).wanted(lq.grad, 4e-6, dtype).wanted(lk.grad, 4e-6, dtype).wanted(lv.grad, 4e-6, dtype)
    case = Case(f"attention_join_{name}", "attention_join")
    for part, statistics in outputs:
        case.given(part).given(statistics)
    case.wanted(o, 2e-6).wanted(lse, 2e-6)


for data in (F32, BF16):
    norms(data)
    activations(data)
    linear(data)
    triangle(data, True)
    loss(data)
    embedding(data)
triangle(F32, False)
rope(False)
rope(True)
adamw(0.1, True)
adamw(0.1, False)
sgd(0)
sgd(0.9)
values = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.14159274, -1e-40, 65504.0, 3e38])
Case("cast_down", "cast").given(values).wanted(values.to(BF16), 0, BF16)
rope(False, factor=8.0)
for data in (F32, BF16):
    squared_relu(data)
    geglu(data)
    for keys in (0, 3):
        window(data, keys)
for data in (F32, BF16):
    vocabulary(data)
for data in (F32, BF16):
    slices(data)


def quantised(x, dtype):
    """x quantised with one scale: its values in `dtype`, and the factor of products with them."""
    largest = torch.finfo(dtype).max
    amax = x.to(F32).abs().max()
    by = largest / amax if amax > 0 else torch.tensor(1.0)
    q = (x.to(F32) * by).clamp(-largest, largest).to(dtype)
    return q, amax, 1 / by


def products_of_8_bits(data, first, second):
    """quantize in its three forms, and matmul_scaled of its results, with a bias."""
    name = f"{NAMES[data]}_{NAMES[first]}_{NAMES[second]}"
    x, w, bias = rand(data, 2, 11, 19, scale=3), rand(data, 13, 19, scale=0.02), rand(data, 13)
    x[0, 0, 0] = 0
    (a, amax, a_scale), (b, _, b_scale) = quantised(x, first), quantised(w, second)
    Case(f"amax_{name}", "amax").given(x, data).wanted(amax, 0)
    rows = a.reshape(-1, 19)
    case = Case(f"quantize_{name}", "quantize").given(x, data).given(amax)
    case.wanted(a, 0, first).wanted(a_scale, 0).wanted(rows.T, 0, first)
    case = Case(f"quantize_transposed_{name}", "quantize", transposed=True).given(x, data).given(amax)
    case.wanted(rows.T, 0, first).wanted(a_scale, 0)
    product = (a.to(F64) @ b.to(F64).T) * (a_scale.to(F64) * b_scale.to(F64))
    case = Case(f"matmul_scaled_{name}", "matmul_scaled").given(a, first).given(b, second)
    case.given(a_scale).given(b_scale).given(bias, data).wanted(product + bias, 2e-6, data)


for data in (F32, BF16):
    for first, second in ((E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)):
        products_of_8_bits(data, first, second)


def block_quantised(x, dtype, rows, cols, microscales):
    """Numbers in `dtype`, and a power of two for each block: by its exponent as e8m0, or in fp32."""
    largest, (height, width) = torch.finfo(dtype).max, x.shape
    q = torch.empty(height, width, dtype=dtype)
    scales = torch.empty(-(-height // rows), -(-width // cols), dtype=F64)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = (slice(i * rows, (i + 1) * rows), slice(j * cols, (j + 1) * cols))
            block = x[at].to(F32)
            amax = block.abs().max().item()
            # The one is the smallest scale that is enough, the other comes from the rounded quotient.
            exponent = math.ceil(math.log2(amax / largest)) if microscales else -math.floor(math.log2(largest / amax))
            scales[i, j] = 2.0**exponent
            q[at] = (block * 2.0**-exponent).clamp(-largest, largest).to(dtype)
    return q, scales


def applied(q, scales, rows, cols):
    whole = scales.repeat_interleave(rows, 0).repeat_interleave(cols, 1)
    return q.to(F64) * whole[: q.shape[0], : q.shape[1]]


def blocks_of_8_bits(data, dtype):
    x, w, tall = rand(data, 2, 3, 140, scale=3), rand(data, 10, 140, scale=0.02), rand(data, 130, 3)
    x = x * 2.0 ** torch.linspace(-6, 6, 140).round()
    flat = x.reshape(6, 140)

    def exponents(scales):
        return (torch.log2(scales) + 127).to(torch.int32)

    def laid_out(scales, rows):
        """The scales of blocks with one row are stored along the columns."""
        return scales.T.contiguous() if rows == 1 else scales

    def given_scales(case, scales, rows, microscales):
        if microscales:
            print(f"in u8 {shape_of(scales)}: {values_of(exponents(scales))}")
        else:
            case.given(laid_out(scales, rows))

    def wanted_scales(case, scales, rows, microscales):
        if microscales:
            print(f"out u8 {shape_of(scales)} 0: {values_of(exponents(scales))}")
        else:
            case.wanted(laid_out(scales, rows), 0)

    for name, microscales, of_x, of_w in (("blockwise", False, (1, 128), (128, 128)), ("mxfp8", True, (1, 32), (1, 32))):
        name = f"{name}_{NAMES[data]}_{NAMES[dtype]}"
        a, a_scales = block_quantised(flat, dtype, *of_x, microscales)
        t, t_scales = block_quantised(flat.T, dtype, *of_x, microscales)
        b, b_scales = block_quantised(w, E4M3, *of_w, microscales)
        case = Case(f"quantize_blocks_{name}", "quantize_blocks").given(x, data).wanted(a.reshape(x.shape), 0, dtype)
        wanted_scales(case, a_scales, of_x[0], microscales)
        case = Case(f"quantize_blocks_transposed_{name}", "quantize_blocks", transposed=True).given(x, data).wanted(t, 0, dtype)
        wanted_scales(case, t_scales, of_x[0], microscales)
        case = Case(f"quantize_blocks_weight_{name}", "quantize_blocks").given(w, data).wanted(b, 0, E4M3)
        wanted_scales(case, b_scales, of_w[0], microscales)
        high, high_scales = block_quantised(tall, dtype, *of_w, microscales)
        case = Case(f"quantize_blocks_tall_{name}", "quantize_blocks").given(tall, data).wanted(high, 0, dtype)
        wanted_scales(case, high_scales, of_w[0], microscales)
        case = Case(f"matmul_scaled_{name}", "matmul_scaled").given(a, dtype).given(b, E4M3)
        given_scales(case, a_scales, of_x[0], microscales)
        given_scales(case, b_scales, of_w[0], microscales)
        product = applied(a, a_scales, *of_x) @ applied(b, b_scales, *of_w).T
        case.wanted(product, 1e-4, data)


for data, dtype in ((F32, E4M3), (BF16, E5M2)):
    blocks_of_8_bits(data, dtype)


def sinks(dtype):
    """Attention with a learned sink of each head, from attention without it."""
    name, b, s, n, d = NAMES[dtype], 2, 5, 4, 3
    scores, v, sink, do = rand(dtype, b, n, s, s), rand(dtype, b, n, s, d), rand(dtype, n), rand(dtype, b, s, n * d)
    rows = lambda t: t.transpose(1, 2).reshape(b, s, n * d)
    o, lse = rows(scores.softmax(-1) @ v), scores.logsumexp(-1)
    leaf_of_sink = leaf(sink)
    more = torch.cat((scores, leaf_of_sink[None, :, None, None].expand(b, n, s, 1)), -1)
    all = rows(more.softmax(-1)[..., :-1] @ v)
    all.backward(do)
    o, all_lse = o.to(F32), more.logsumexp(-1)
    Case(f"attention_sink_{name}", "attention_sink").given(o).given(lse.to(F32)).given(sink, dtype) \
        .wanted(all, 2e-6, dtype).wanted(all_lse, 2e-6)
    more = torch.cat((scores, torch.zeros(b, n, s, 1, dtype=F64)), -1)
    Case(f"attention_sink_of_one_{name}", "attention_sink").given(o).given(lse.to(F32)) \
        .wanted(rows(more.softmax(-1)[..., :-1] @ v), 2e-6, dtype).wanted(more.logsumexp(-1), 2e-6)
    Case(f"attention_sink_bwd_{name}", "attention_sink_bwd").given(do, dtype).given(all.to(F32)).given(all_lse.to(F32)) \
        .given(sink, dtype).wanted(leaf_of_sink.grad, 8e-6)


def quick_geglu(dtype):
    name = NAMES[dtype]
    x, dy = rand(dtype, 3, 10, scale=3), rand(dtype, 3, 5)
    lx = leaf(x)
    gate, up = lx.chunk(2, dim=-1)
    gate, up = gate.clamp(max=2.0), up.clamp(-2.0, 2.0)
    y = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    y.backward(dy)
    attrs = {"clamp": 2.0, "linear_offset": 1.0}
    Case(f"quick_geglu_{name}", "quick_geglu", **attrs).given(x, dtype).wanted(y, 4e-6, dtype)
    Case(f"quick_geglu_bwd_{name}", "quick_geglu_bwd", **attrs).given(dy, dtype).given(x, dtype) \
        .wanted(lx.grad, 4e-6, dtype)


for data in (F32, BF16):
    sinks(data)
    quick_geglu(data)


def capped(x, cap):
    """As transformers' Gemma2Attention and Gemma2ForCausalLM have it."""
    return torch.tanh(x / cap) * cap


def capped_attention(dtype, cap):
    """Causal attention whose scores have a soft cap: of whole sequences, and by positions."""
    b, s, n, g, d = 2, 7, 4, 2, 3
    q, k, v, do = rand(dtype, b, s, n, d), rand(dtype, b, s, g, d), rand(dtype, b, s, g, d), rand(dtype, b, s, n * d)
    lq, lk, lv = leaf(q), leaf(k), leaf(v)
    keys, values = (t.repeat_interleave(n // g, dim=2) for t in (lk, lv))
    scores = capped(torch.einsum("bsnd,btnd->bnst", lq, keys) * d**-0.5, cap)
    scores = scores.masked_fill(~torch.ones(s, s, dtype=torch.bool).tril(), float("-inf"))
    o = torch.einsum("bnst,btnd->bsnd", scores.softmax(-1), values).reshape(b, s, n * d)
    lse = scores.logsumexp(-1).detach()
    o.backward(do)
    docs, samples = torch.zeros(b, s, dtype=torch.int32), torch.zeros(b, dtype=torch.int64)
    positions = torch.arange(s, dtype=torch.int32).expand(b, s)
    rounded, name = o.detach().to(dtype).to(F64), NAMES[dtype]
    attrs = {"causal": True, "scale": d**-0.5, "soft_cap": cap}
    for op, words in (("attention", (docs, samples)), ("attention_part", (positions, positions, docs, docs, samples))):
        case = Case(f"{op}_{name}_capped", op, **attrs).given(q, dtype).given(k, dtype).given(v, dtype)
        for word in words:
            case.given(word)
        case.wanted(o, 2e-6, dtype).wanted(lse, 2e-6)
        # Gradients of a part take the sum of do and o, which is to have o's precision.
        given = rounded if op == "attention" else o
        case = Case(f"{op}_bwd_{name}_capped", f"{op}_bwd", **attrs).given(do, dtype).given(q, dtype).given(k, dtype) \
            .given(v, dtype).given(given, dtype if op == "attention" else F32).given(lse)
        for word in words:
            case.given(word)
        case.wanted(lq.grad, 4e-6, dtype).wanted(lk.grad, 4e-6, dtype).wanted(lv.grad, 4e-6, dtype)


def capped_loss(dtype, cap):
    """Losses of logits with a soft cap: whole, in chunks, and of two ranks with eight columns each, of which six are padding."""
    rows, cols, members, valid, hidden = 5, 8, 2, 10, 4
    labels = torch.tensor([0, 9, 5, 3, 4])
    mask = torch.tensor([1, 1, 1, 0, 1], dtype=F64)
    ints, n, name = labels.to(torch.int32), mask.sum().reshape(1), NAMES[dtype]
    attrs = {"valid_cols": valid, "soft_cap": cap}

    def losses_of(logits):
        kept = capped(logits[:, :valid], cap)
        losses = F.cross_entropy(kept, labels, reduction="none") * mask
        (losses.sum() / mask.sum()).backward()
        return losses, kept.logsumexp(1).detach()

    x, w = rand(dtype, rows, hidden), rand(dtype, members * cols, hidden)
    lx, lw = leaf(x), leaf(w)
    losses, _ = losses_of(lx @ lw.T)
    Case(f"lm_loss_{name}_capped", "lm_loss", chunk_rows=2, **attrs).given(x, dtype).given(w, dtype).given(ints) \
        .given(mask).wanted(losses, 2e-6)
    Case(f"lm_loss_grad_{name}_capped", "lm_loss_grad", chunk_rows=2, **attrs).given(x, dtype).given(w, dtype) \
        .given(ints).given(mask).given(n).wanted(losses, 2e-6).wanted(lx.grad, 1e-6, dtype).wanted(lw.grad, 1e-6)
    logits = rand(dtype, rows, members * cols, scale=3)
    ll = leaf(logits)
    losses, lse = losses_of(ll)
    Case(f"cross_entropy_{name}_capped", "cross_entropy", **attrs).given(logits, dtype).given(ints).given(mask) \
        .wanted(losses, 2e-6).wanted(lse, 2e-6)
    Case(f"cross_entropy_bwd_{name}_capped", "cross_entropy_bwd", **attrs).given(logits, dtype).given(lse).given(ints) \
        .given(mask).given(n).wanted(ll.grad, 1e-6, dtype)
    for i in range(members):
        first, columns = i * cols, slice(i * cols, (i + 1) * cols)
        part = capped(logits[:, first:min(first + cols, valid)], cap)
        largest = part.max(1).values
        is_here = (labels >= first) & (labels < first + cols)
        own = capped(logits.gather(1, labels[:, None])[:, 0], cap).masked_fill(~is_here, float("-inf"))
        stats = torch.stack([largest, (part - largest[:, None]).exp().sum(1), own])
        Case(f"vocab_stats_{name}_capped_of_{i}", "vocab_stats", **attrs).index(i, members) \
            .given(logits[:, columns], dtype).given(ints).wanted(stats, 2e-6)
        Case(f"cross_entropy_bwd_{name}_capped_of_{i}", "cross_entropy_bwd", **attrs).index(i, members) \
            .given(logits[:, columns], dtype).given(lse).given(ints).given(mask).given(n).wanted(ll.grad[:, columns], 1e-6, dtype)


for data in (F32, BF16):
    capped_attention(data, 0.75)
    capped_loss(data, 0.75)


def bare_norm(dtype):
    """A norm without weights, of rows that are longer than a chunk too."""
    name, eps = NAMES[dtype], 1e-5
    for columns in (9, 16):
        x, dy = rand(dtype, 4, columns, scale=2), rand(dtype, 4, columns)
        lx = leaf(x)
        y = F.rms_norm(lx, (columns,), None, eps)
        y.backward(dy)
        rstd = 1 / (x.square().mean(1) + eps).sqrt()
        Case(f"l2norm_{columns}_{name}", "l2norm", eps=eps).given(x, dtype).wanted(y, 1e-6, dtype).wanted(rstd, 1e-6)
        Case(f"l2norm_bwd_{columns}_{name}", "l2norm_bwd", eps=eps).given(dy, dtype).given(x, dtype).given(rstd) \
            .wanted(lx.grad, 4e-6, dtype)


def by_position(dtype):
    """Llama 4's factor on queries of layers without rotations."""
    name, step, slope = NAMES[dtype], 3, 0.5
    x = rand(dtype, 2, 8, 2, 4)
    given = torch.tensor([[0, 1, 2, 3, 20, 21, 22, 23], [9, 8, 7, 6, 5, 4, 3, 2]], dtype=torch.int32)
    for kind, places in (("own", torch.arange(8).expand(2, 8)), ("given", given)):
        factor = torch.log1p(torch.floor((places.to(F64) + 1) / step)) * slope + 1
        case = Case(f"scale_positions_{kind}_{name}", "scale_positions", position_step=step, position_slope=slope).given(x, dtype)
        if kind == "given":
            case.given(given)
        case.wanted(x * factor[:, :, None, None], 4e-7, dtype)


def chunks(dtype, size):
    """Attention to earlier tokens of the same `size` ones."""
    s = 9
    places = torch.arange(s)
    seen = (places[:, None] >= places[None, :]) & (places[:, None] // size == places[None, :] // size)
    attention(dtype, s, f"chunk_{size}", seen, causal=True, chunk=size)


for data in (F32, BF16):
    bare_norm(data)
    by_position(data)
    for size in (1, 4):
        chunks(data, size)


def adamw_narrow():
    """Moments in bf16: the step is made in fp32, and moments are rounded to nearest when they are stored."""
    n, lr, betas, eps, weight_decay = 12, 0.01, (0.9, 0.95), 1e-8, 0.1
    w, g = leaf(rand(F32, n)), rand(F32, n)
    m, v = rand(BF16, n, scale=0.1), rand(BF16, n, scale=0.1).abs().to(BF16).to(F64)
    optimizer = torch.optim.AdamW([w], lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    optimizer.state[w] = {"step": torch.tensor(2.0), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    case = Case("adamw_narrow", "adamw", beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay, decoupled=True)
    case.given(g).given(w.detach().clone()).given(m, BF16).given(v, BF16)
    w.grad = g.clone()
    optimizer.step()
    state = optimizer.state[w]
    case.state(lr, 1, 3).updated(1, w, 1e-6)
    for operand, name in ((2, "exp_avg"), (3, "exp_avg_sq")):
        case.updated(operand, state[name].to(BF16), 1e-7)


def lion(decoupled):
    """The second step, by lion-pytorch, whose decay is decoupled; an L2 term is a part of the gradient."""
    from lion_pytorch import Lion
    n, lr, betas, weight_decay = 12, 0.01, (0.9, 0.99), 0.1
    w = leaf(rand(F32, n))
    optimizer = Lion([w], lr=lr, betas=betas, weight_decay=weight_decay if decoupled else 0.0)
    w.grad = rand(F32, n)
    optimizer.step()
    state = optimizer.state[w]
    old, kept, g = w.detach().to(F32).to(F64), state["exp_avg"].to(F32).to(F64), rand(F32, n)
    with torch.no_grad():
        w.copy_(old)
        state["exp_avg"].copy_(kept)
    w.grad = g * 0.25 if decoupled else g * 0.25 + weight_decay * old
    optimizer.step()
    Case(f"lion_{'decoupled' if decoupled else 'l2'}", "lion", beta1=betas[0], beta2=betas[1], weight_decay=weight_decay,
         decoupled=decoupled).given(g).given(old).given(kept).state(lr, 0.25, 2) \
        .updated(1, w, 1e-6).updated(2, state["exp_avg"], 1e-6)


adamw_narrow()
lion(True)
lion(False)


def muon(name, shape, turns, decoupled, tolerance, **attrs):
    """A step from a momentum, by emerging_optimizers in fp32 (test/e2e/golden/maker/muon.py says where it is). Where its
    products are in bf16, so are ours, but for the order of sums."""
    import pathlib
    import sys
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e" / "golden"))
    from maker import muon as upstream
    kinds = ("quintic", "simple", "polar_express", "cans", "aol", "deepseekv4", "cubic5")
    scales, products = ("spectral", "unit_rms_norm", "shape_scaling"), ("medium", "high", "highest")
    lr, weight_decay, factor = 0.01, 0.1, 0.25
    w, m, g = leaf(rand(F32, *shape).to(F32)), rand(F32, *shape, scale=0.1), rand(F32, *shape)
    kind = {"momentum": 0.95, "nesterov": False, "split_qkv": bool(turns), "num_ns_steps": 5, "coefficient_type": "quintic",
            "scale_mode": "spectral", "extra_scale_factor": 1.0, "prec": "highest", **attrs}
    precision = kind.pop("prec")
    case = upstream.Described(lr, weight_decay, turns, decoupled, precision, tuple(kind.items()))
    optimizer = upstream.Muon({"linear_qkv" if turns else "matrix": w}, case)
    optimizer.state[w] = {"momentum_buffer": m.to(F32)}
    w.grad = (g * factor).to(F32)
    told = Case(f"muon_{name}", "muon", momentum=kind["momentum"], nesterov=kind["nesterov"], ns_steps=kind["num_ns_steps"],
                ns_coefficients=kinds.index(kind["coefficient_type"]), update_scale=scales.index(kind["scale_mode"]),
                extra_scale=kind["extra_scale_factor"], products=products.index(precision), weight_decay=weight_decay,
                decoupled=decoupled, largest_matrix=w.numel())
    told.row(shape[1], *turns).given(g.flatten()).given(w.detach().clone().flatten()).given(m.flatten())
    optimizer.step()
    told.state(lr, factor, 1).updated(1, w.flatten(), tolerance) \
        .updated(2, optimizer.state[w]["momentum_buffer"].flatten(), 1e-6)


muon("wide", (4, 9), (), True, 2e-6)
muon("tall", (16, 5), (), False, 2e-6, nesterov=True, coefficient_type="polar_express", num_ns_steps=9, scale_mode="unit_rms_norm")
muon("turns", (16, 6), (4, 2, 2), True, 2e-6, coefficient_type="cubic5", scale_mode="shape_scaling", extra_scale_factor=0.2)
muon("bf16", (16, 24), (), True, 1e-3, prec="medium", coefficient_type="simple", nesterov=True)


def short_conv(dtype, begins, taps):
    """PyTorch's grouped convolution of each document by itself, as transformers' Lfm2ShortConv has it."""
    name, positions, channels = NAMES[dtype], 7, 3
    x, w, dy = rand(dtype, 2, positions, 3 * channels), rand(dtype, channels, 1, taps), rand(dtype, 2, positions, channels)
    docs = torch.zeros(2, positions, dtype=torch.int32)
    lx, lw = leaf(x), leaf(w)
    rows = []
    for sample, starts in enumerate(begins):
        parts = []
        for first, end in zip(starts, (*starts[1:], positions)):
            docs[sample, first:end] = first
            before, after, value = lx[sample, first:end].T.chunk(3)
            convolved = F.conv1d(before * value, lw, padding=taps - 1, groups=channels)[:, :end - first]
            parts.append((after * convolved).T)
        rows.append(torch.cat(parts))
    y = torch.stack(rows)
    y.backward(dy)
    kind = f"{taps}_{'documents' if len(begins[0]) > 1 else 'whole'}_{name}"
    attrs = {"reset_mask": len(begins[0]) > 1}
    Case(f"short_conv_{kind}", "short_conv", **attrs).given(x, dtype).given(w[:, 0], dtype).given(docs).wanted(y, 1e-6, dtype)
    Case(f"short_conv_bwd_{kind}", "short_conv_bwd", **attrs).given(dy, dtype).given(x, dtype).given(w[:, 0], dtype).given(docs) \
        .wanted(lx.grad, 2e-6, dtype).wanted(lw.grad[:, 0], 2e-6)


torch.manual_seed(2026)
for data in (F32, BF16):
    for taps in (1, 3, 4):
        short_conv(data, ((0,), (0,)), taps)
        short_conv(data, ((0, 1, 4), (0, 5, 6)), taps)


def documents(begins, positions):
    docs = torch.zeros(len(begins), positions, dtype=torch.int32)
    for sample, starts in enumerate(begins):
        for first, end in zip(starts, (*starts[1:], positions)):
            docs[sample, first:end] = first
    return docs


def kind_of(dtype, begins):
    isReset = len(begins[0]) > 1
    return f"{'documents' if isReset else 'whole'}_{NAMES[dtype]}", {"reset_mask": isReset}


def causal_conv(dtype, begins, taps):
    """PyTorch's grouped convolution of each document by itself, then silu, as in transformers' Qwen3NextGatedDeltaNet."""
    positions, channels = 7, 3
    x, w, dy = rand(dtype, 2, positions, channels), rand(dtype, channels, 1, taps), rand(dtype, 2, positions, channels)
    lx, lw = leaf(x), leaf(w)
    y = torch.stack([torch.cat([F.silu(F.conv1d(lx[sample, first:end].T, lw, padding=taps - 1, groups=channels)[:, :end - first].T)
                                for first, end in zip(starts, (*starts[1:], positions))]) for sample, starts in enumerate(begins)])
    y.backward(dy)
    kind, attrs = kind_of(dtype, begins)
    given = lambda case: case.given(x, dtype).given(w[:, 0], dtype).given(documents(begins, positions))
    given(Case(f"causal_conv_{taps}_{kind}", "causal_conv", **attrs)).wanted(y, 1e-6, dtype)
    given(Case(f"causal_conv_bwd_{taps}_{kind}", "causal_conv_bwd", **attrs).given(dy, dtype)) \
        .wanted(lx.grad, 2e-6, dtype).wanted(lw.grad[:, 0], 2e-6)


def gate(dtype, silu):
    x, g, dy = rand(dtype, 3, 8), rand(dtype, 3, 8, scale=3), rand(dtype, 3, 8)
    lx, lg = leaf(x), leaf(g)
    y = lx * (F.silu(lg) if silu else torch.sigmoid(lg))
    y.backward(dy)
    name = f"{'silu' if silu else 'sigmoid'}_{NAMES[dtype]}"
    Case(f"gate_{name}", "gate", silu=silu).given(x, dtype).given(g, dtype).wanted(y, 1e-6, dtype)
    Case(f"gate_bwd_{name}", "gate_bwd", silu=silu).given(dy, dtype).given(x, dtype).given(g, dtype) \
        .wanted(lx.grad, 2e-6, dtype).wanted(lg.grad, 2e-6, dtype)


def delta_rule(dtype, begins, each):
    """The gated delta rule, position by position; each key head serves `each` value heads."""
    positions, groups, keys, values, eps = 19, 2, 4, 3, 1e-6
    heads, docs = groups * each, documents(begins, positions)
    inputs = [rand(dtype, 2, positions, *shape) for shape in ((groups, keys), (groups, keys), (heads, values), (heads,), (heads,))]
    inputs += [rand(F32, heads), rand(F32, heads)]
    do = rand(dtype, 2, positions, heads, values)
    leaves = [leaf(t) for t in inputs]
    q, k, v, a, b, alog, bias = leaves
    unit = lambda x: (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)).repeat_interleave(each, 2)
    q, k = unit(q) / keys**0.5, unit(k)
    decay, beta = (-alog.exp() * F.softplus(a + bias)).exp(), torch.sigmoid(b)
    state, rows = torch.zeros(2, heads, keys, values, dtype=F64), []
    for s in range(positions):
        state = state * (docs[:, s] != s)[:, None, None, None] * decay[:, s, :, None, None]
        u = beta[:, s, :, None] * (v[:, s] - torch.einsum("bhk,bhkv->bhv", k[:, s], state))
        state = state + k[:, s, ..., None] * u[..., None, :]
        rows.append(torch.einsum("bhk,bhkv->bhv", q[:, s], state))
    o = torch.stack(rows, 1)
    o.backward(do)
    kind, attrs = kind_of(dtype, begins)
    types = [dtype] * 5 + [F32] * 2
    def given(case):
        for value, type_ in zip(inputs, types):
            case.given(value, type_)
        return case.given(docs)
    given(Case(f"delta_rule_{each}_{kind}", "delta_rule", eps=eps, **attrs)).wanted(o, 2e-6, dtype)
    back = given(Case(f"delta_rule_bwd_{each}_{kind}", "delta_rule_bwd", eps=eps, **attrs).given(do, dtype))
    for value, type_ in zip(leaves, types):
        back.wanted(value.grad, 8e-6, type_)


torch.manual_seed(2027)
for data in (F32, BF16):
    for silu in (False, True):
        gate(data, silu)
    for begins in (((0,), (0,)), ((0, 1, 4), (0, 5, 6))):
        causal_conv(data, begins, 4)
    delta_rule(data, ((0,), (0,)), 1)
    delta_rule(data, ((0, 1, 15), (0, 16, 18)), 2)


def biased_conv(dtype, begins):
    """causal_conv with a bias, as in transformers' NemotronHMamba2Mixer."""
    positions, channels, taps = 7, 3, 4
    inputs = [rand(dtype, 2, positions, channels), rand(dtype, channels, 1, taps), rand(dtype, channels)]
    dy, leaves = rand(dtype, 2, positions, channels), [leaf(t) for t in inputs]
    lx, lw, lb = leaves
    y = torch.stack([torch.cat([F.silu(F.conv1d(lx[sample, first:end].T, lw, lb, padding=taps - 1, groups=channels)[:, :end - first].T)
                                for first, end in zip(starts, (*starts[1:], positions))]) for sample, starts in enumerate(begins)])
    y.backward(dy)
    kind, attrs = kind_of(dtype, begins)
    given = lambda case: case.given(inputs[0], dtype).given(inputs[1][:, 0], dtype).given(documents(begins, positions)).given(inputs[2], dtype)
    given(Case(f"causal_conv_bias_{kind}", "causal_conv", **attrs)).wanted(y, 1e-6, dtype)
    given(Case(f"causal_conv_bwd_bias_{kind}", "causal_conv_bwd", **attrs).given(dy, dtype)) \
        .wanted(lx.grad, 2e-6, dtype).wanted(lw.grad[:, 0], 2e-6).wanted(lb.grad, 2e-6)


def gated_norm(dtype, parts):
    """The norm of groups behind a gate, as transformers' NemotronHRMSNormGated."""
    rows, columns, eps = 5, 12, 1e-5
    inputs = [rand(dtype, rows, columns), rand(dtype, rows, columns, scale=2), rand(dtype, columns)]
    dy, leaves = rand(dtype, rows, columns), [leaf(t) for t in inputs]
    gated = (leaves[0] * F.silu(leaves[1])).view(rows, parts, -1)
    rstd = torch.rsqrt(gated.square().mean(-1) + eps)
    y = leaves[2] * (gated * rstd[..., None]).flatten(1)
    y.backward(dy)
    given = lambda case: case.given(inputs[0], dtype).given(inputs[1], dtype).given(inputs[2], dtype)
    name = f"{parts}_{NAMES[dtype]}"
    given(Case(f"gated_norm_{name}", "gated_norm", eps=eps, parts=parts)).wanted(y, 2e-6, dtype).wanted(rstd, 1e-6)
    back = given(Case(f"gated_norm_bwd_{name}", "gated_norm_bwd", parts=parts).given(dy, dtype)).given(rstd.detach())
    back.wanted(leaves[0].grad, 4e-6, dtype).wanted(leaves[1].grad, 4e-6, dtype).wanted(leaves[2].grad, 4e-6)


def state_scan(dtype, begins, each):
    """Mamba-2, position by position, as its recurrence is defined; each group's B and C serve `each` heads."""
    positions, groups, states, channels = 19, 2, 4, 3
    heads, docs = groups * each, documents(begins, positions)
    inputs = [rand(dtype, 2, positions, *shape) for shape in ((groups, states), (groups, states), (heads, channels), (heads,))]
    inputs += [rand(F32, heads), rand(F32, heads), rand(F32, heads)]
    dy = rand(dtype, 2, positions, heads, channels)
    leaves = [leaf(t) for t in inputs]
    q, k, x, dt, alog, bias, d = leaves
    q, k, dt = q.repeat_interleave(each, 2), k.repeat_interleave(each, 2), F.softplus(dt + bias)
    decay = (-alog.exp() * dt).exp()
    state, rows = torch.zeros(2, heads, states, channels, dtype=F64), []
    for s in range(positions):
        state = state * (docs[:, s] != s)[:, None, None, None] * decay[:, s, :, None, None]
        state = state + k[:, s, ..., None] * (dt[:, s, :, None] * x[:, s])[..., None, :]
        rows.append(torch.einsum("bhk,bhkv->bhv", q[:, s], state) + d[:, None] * x[:, s])
    y = torch.stack(rows, 1)
    y.backward(dy)
    kind, attrs = kind_of(dtype, begins)
    types = [dtype] * 4 + [F32] * 3
    def given(case):
        for value, type_ in zip(inputs, types):
            case.given(value, type_)
        return case.given(docs)
    given(Case(f"state_scan_{each}_{kind}", "state_scan", **attrs)).wanted(y, 2e-6, dtype)
    back = given(Case(f"state_scan_bwd_{each}_{kind}", "state_scan_bwd", **attrs).given(dy, dtype))
    for value, type_ in zip(leaves, types):
        back.wanted(value.grad, 8e-6, type_)


torch.manual_seed(2028)
for data in (F32, BF16):
    for begins in (((0,), (0,)), ((0, 1, 4), (0, 5, 6))):
        biased_conv(data, begins)
    for parts in (1, 3):
        gated_norm(data, parts)
    state_scan(data, ((0,), (0,)), 1)
    state_scan(data, ((0, 1, 15), (0, 16, 18)), 2)
