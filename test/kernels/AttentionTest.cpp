// Compares attention with loops over pairs of positions in double, and its gradients with
// differences of these loops.
#include "test/kernels/Harness.h"

#include "kernels/host/Dropout.h"

#include <cmath>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

struct Shape {
  int64_t batch, positions, heads, groups, channels;
  int64_t own = 0; ///< channels of values; 0: the same as keys
  int64_t values() const { return own == 0 ? channels : own; }
  std::vector<int64_t> q() const { return {batch, positions, heads, channels}; }
  std::vector<int64_t> k() const { return {batch, positions, groups, channels}; }
  std::vector<int64_t> v() const { return {batch, positions, groups, values()}; }
  std::vector<int64_t> o() const { return {batch, positions, heads * values()}; }
  std::vector<int64_t> lse() const { return {batch, heads, positions}; }
};

/// The operands of one attention. Documents have unequal lengths.
struct Case {
  Shape shape;
  Attrs attrs;
  Array q, k, v, docs, samples;
};

Case makeCase(Shape s, DType dtype, bool causal, bool resetMask, double p) {
  Case c = {s,
            {},
            randoms(dtype, s.q(), 1, 2.0),
            randoms(dtype, s.k(), 2, 2.0),
            randoms(dtype, s.v(), 3),
            {DType::I32, {s.batch, s.positions}, {}},
            {DType::I64, {s.batch}, {}}};
  c.attrs.causal = causal;
  c.attrs.reset_mask = resetMask;
  c.attrs.p = p;
  c.attrs.salt = 7;
  c.attrs.seed = 1234;
  c.attrs.scale = 1 / std::sqrt(static_cast<double>(s.channels));
  for (int64_t b = 0; b < s.batch; ++b) {
    double first = 0;
    for (int64_t i = 0; i < s.positions; ++i) {
      if ((i + b) % 5 == 3 || (i + b) % 19 == 11)
        first = static_cast<double>(i);
      c.docs.values.push_back(first);
    }
    c.samples.values.push_back(static_cast<double>(1000 + 3 * b));
  }
  return c;
}

bool sees(const Case &c, int64_t b, int64_t query, int64_t key) {
  int64_t row = b * c.shape.positions;
  // Chunks count from the beginning of the document.
  auto first = static_cast<int64_t>(c.attrs.reset_mask ? c.docs[row + query] : 0.0);
  return (!c.attrs.causal || key <= query) &&
         (c.attrs.window < 0 || query - key <= c.attrs.window) &&
         (c.attrs.chunk == 0 || key < first ||
          (query - first) / c.attrs.chunk == (key - first) / c.attrs.chunk) &&
         (!c.attrs.reset_mask || c.docs[row + query] == c.docs[row + key]);
}

double dropoutFactor(const Case &c, int64_t b, int64_t head, int64_t query, int64_t key) {
  if (c.attrs.p == 0)
    return 1;
  float factor;
  host::Dropout(c.attrs).factors(static_cast<int64_t>(c.samples[b]),
                                 head * c.shape.positions + query, key, 1, &factor);
  return static_cast<double>(factor);
}

/// Outputs by (b, query, head, channel); `lse` takes the logarithms by (b, head, query) if given.
std::vector<double> attend(const Case &c, const std::vector<double> &q,
                           const std::vector<double> &k, const std::vector<double> &v,
                           std::vector<double> *lse = nullptr) {
  const Shape &s = c.shape;
  std::vector<double> o(static_cast<size_t>(s.batch * s.positions * s.heads * s.values()));
  if (lse)
    lse->assign(static_cast<size_t>(s.batch * s.heads * s.positions), 0);
  auto at = [&](int64_t b, int64_t position, int64_t head, int64_t heads) {
    return static_cast<size_t>((b * s.positions + position) * heads + head);
  };
  auto channels = static_cast<size_t>(s.channels), values = static_cast<size_t>(s.values());
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t head = 0; head < s.heads; ++head)
      for (int64_t i = 0; i < s.positions; ++i) {
        int64_t group = head / (s.heads / s.groups);
        size_t own = at(b, i, head, s.heads);
        double total = 0;
        for (int64_t j = 0; j < s.positions; ++j) {
          if (!sees(c, b, i, j))
            continue;
          size_t other = at(b, j, group, s.groups);
          double score = 0;
          for (size_t d = 0; d < channels; ++d)
            score += q[own * channels + d] * k[other * channels + d];
          double weight = std::exp(c.attrs.scale * score);
          total += weight;
          weight *= dropoutFactor(c, b, head, i, j);
          for (size_t d = 0; d < values; ++d)
            o[own * values + d] += weight * v[other * values + d];
        }
        for (size_t d = 0; d < values; ++d)
          o[own * values + d] /= total;
        if (lse)
          (*lse)[static_cast<size_t>((b * s.heads + head) * s.positions + i)] = std::log(total);
      }
  return o;
}

void checkForward(const Case &c) {
  KernelRun run("attention");
  run.attrs = c.attrs;
  run.in(c.q).in(c.k).in(c.v).in(c.docs).in(c.samples);
  run.out(c.q.dtype, c.shape.o()).out(DType::F32, c.shape.lse());
  std::vector<Array> got = run.run();
  std::vector<double> lse, o = attend(c, c.q.values, c.k.values, c.v.values, &lse);
  // Scores are a few units; exponentials and the weighted mean are computed in fp32.
  expectClose(got[0], o, {4e-6, 2}, "o");
  expectClose(got[1], lse, {2e-6, 4}, "lse");
}

void checkBackward(const Case &c, size_t samples) {
  const Shape &s = c.shape;
  std::vector<double> lse, o = attend(c, c.q.values, c.k.values, c.v.values, &lse);
  Array dOut = randoms(c.q.dtype, s.o(), 4);
  KernelRun run("attention_bwd");
  run.attrs = c.attrs;
  run.in(dOut).in(c.q).in(c.k).in(c.v).in(array(c.q.dtype, s.o(), o));
  run.in(array(DType::F32, s.lse(), lse)).in(c.docs).in(c.samples);
  run.out(c.q.dtype, s.q()).out(c.q.dtype, s.k()).out(c.q.dtype, s.v());
  std::vector<Array> got = run.run();
  using Vector = std::vector<double>;
  // Gradients of keys are sums over all queries.
  Tolerance tolerance = {4e-6 * (1 + std::sqrt(static_cast<double>(s.positions))), 4};
  auto loss = [&](const Vector &q, const Vector &k, const Vector &v) {
    return inner(dOut.values, attend(c, q, k, v));
  };
  expectGradient(
      got[0], c.q.values, [&](const Vector &q) { return loss(q, c.k.values, c.v.values); },
      tolerance, "dq", samples);
  expectGradient(
      got[1], c.k.values, [&](const Vector &k) { return loss(c.q.values, k, c.v.values); },
      tolerance, "dk", samples);
  expectGradient(
      got[2], c.v.values, [&](const Vector &v) { return loss(c.q.values, c.k.values, v); },
      tolerance, "dv", samples);
}

/// A minimal shape; an odd one with grouped queries; one with more than two blocks of queries; and
/// two whose values have fewer or more channels than keys.
const Shape kShapes[] = {
    {1, 1, 1, 1, 1}, {2, 7, 6, 2, 3}, {1, 131, 4, 2, 8}, {2, 7, 4, 4, 6, 4}, {1, 70, 2, 1, 3, 5}};

TEST(Attention, ForwardAndBackward) {
  for (Shape shape : kShapes)
    for (DType dtype : kDataTypes)
      for (int variant = 0; variant < 8; ++variant) {
        SCOPED_TRACE(testing::Message() << shape.positions << " positions, " << dtypeName(dtype)
                                        << ", variant " << variant);
        Case c = makeCase(shape, dtype, variant & 1, variant & 2, variant & 4 ? 0.3 : 0);
        checkForward(c);
        checkBackward(c, shape.positions > 100 ? 6 : 40);
      }
}

/// A window may end within a block of queries, span several blocks, or include every key.
TEST(Attention, AWindowHidesWhatIsFurtherBack) {
  for (int64_t window : {0, 1, 5, 63, 64, 100, 130, 1 << 20})
    for (DType dtype : kDataTypes)
      for (int variant = 0; variant < 4; ++variant) {
        SCOPED_TRACE(testing::Message()
                     << "window " << window << ' ' << dtypeName(dtype) << " variant " << variant);
        Case c = makeCase({1, 131, 4, 2, 8}, dtype, true, variant & 1, variant & 2 ? 0.3 : 0);
        c.attrs.window = window;
        checkForward(c);
        checkBackward(c, 6);
      }
}

/// Chunks may be shorter than a block of queries, longer than the sequence, or cut by a window.
TEST(Attention, AChunkHidesWhatIsBeforeIt) {
  for (int64_t chunk : {1, 6, 64, 100, 1 << 20})
    for (int variant = 0; variant < 4; ++variant) {
      SCOPED_TRACE(testing::Message() << "chunk " << chunk << " variant " << variant);
      Case c = makeCase({1, 131, 4, 2, 8}, DType::F32, true, variant & 1, variant & 2 ? 0.3 : 0);
      c.attrs.chunk = chunk;
      c.attrs.window = variant == 0 ? 9 : -1;
      checkForward(c);
      checkBackward(c, 6);
    }
}

TEST(Attention, WindowsAndChunksNeedACausalMask) {
  for (bool isChunk : {false, true}) {
    Case c = makeCase({1, 5, 1, 1, 2}, DType::F32, false, false, 0);
    (isChunk ? c.attrs.chunk : c.attrs.window) = 2;
    KernelRun run("attention");
    run.attrs = c.attrs;
    run.in(c.q).in(c.k).in(c.v).in(c.docs).in(c.samples);
    run.out(DType::F32, c.shape.o()).out(DType::F32, c.shape.lse());
    EXPECT_STREQ(run.refusal(), "a window or a chunk has no causal mask");
  }
}

TEST(Attention, ASequenceOfATypicalLengthAgrees) {
  Case c = makeCase({1, 256, 2, 1, 64}, DType::F32, true, false, 0);
  checkForward(c);
  checkBackward(c, 3);
}

/// Like PyTorch's scaled_dot_product_attention with dropout_p = 1: no output, and no gradient.
TEST(Attention, DropoutOfOneClearsOutputAndGradients) {
  for (DType dtype : kDataTypes) {
    Case c = makeCase({2, 9, 4, 2, 8}, dtype, true, true, 1);
    checkForward(c);
    checkBackward(c, 40);
  }
}

TEST(Attention, LargeScoresDoNotOverflow) {
  Case c = makeCase({1, 70, 1, 1, 4}, DType::F32, true, false, 0);
  c.attrs.scale = 1;
  for (double &value : c.q.values)
    value *= 64;
  std::vector<double> lse, o = attend(c, c.q.values, c.k.values, c.v.values, &lse);
  KernelRun run("attention");
  run.attrs = c.attrs;
  run.in(c.q).in(c.k).in(c.v).in(c.docs).in(c.samples);
  run.out(DType::F32, c.shape.o()).out(DType::F32, c.shape.lse());
  std::vector<Array> got = run.run();
  expectClose(got[0], o, {2e-4, 4}, "o"); // a score of 400 is accurate to 3e-5
  expectClose(got[1], lse, {1e-4, 4}, "lse");
}

TEST(Attention, ASampleDoesNotDependOnItsNeighbours) {
  Case two = makeCase({2, 70, 2, 2, 8}, DType::F32, true, true, 0.1), one = two;
  size_t half = two.q.values.size() / 2;
  one.shape.batch = 1;
  for (Array *array : {&one.q, &one.k, &one.v, &one.docs, &one.samples}) {
    array->shape[0] = 1;
    array->values.erase(array->values.begin(),
                        array->values.begin() + static_cast<long>(array->values.size() / 2));
  }
  std::vector<double> outputs[2];
  for (const Case *c : {&two, &one}) {
    KernelRun run("attention");
    run.attrs = c->attrs;
    run.in(c->q).in(c->k).in(c->v).in(c->docs).in(c->samples);
    run.out(DType::F32, c->shape.o()).out(DType::F32, c->shape.lse());
    outputs[c == &one] = run.run()[0].values;
  }
  outputs[0].erase(outputs[0].begin(), outputs[0].begin() + static_cast<long>(half));
  EXPECT_EQ(outputs[0], outputs[1]);
}

/// Heads [begin, end) of a tensor of heads, whose rows are `heads` of `channels`.
Array headsOf(const Array &all, int64_t heads, int64_t begin, int64_t end) {
  Array part = {all.dtype, all.shape, {}};
  int64_t channels = all.shape[3];
  part.shape[2] = end - begin;
  for (int64_t i = 0; i < all.numel(); ++i)
    if (int64_t head = i / channels % heads; head >= begin && head < end)
      part.values.push_back(all[i]);
  return part;
}

/// Only dropout depends on the member's position in the group.
TEST(Attention, OfAMembersHeadsIsThatOfAll) {
  Case all = makeCase({2, 9, 6, 3, 4}, DType::F32, true, true, 0.3);
  const Shape &s = all.shape;
  auto whole = [&] {
    KernelRun run("attention");
    run.attrs = all.attrs;
    run.in(all.q).in(all.k).in(all.v).in(all.docs).in(all.samples);
    std::vector<Array> results = run.out(DType::F32, s.o()).out(DType::F32, s.lse()).run();
    results[0].shape = s.q();
    return results;
  }();
  // The rows of an output's heads.
  auto rows = [](Array x) {
    x.shape = {x.shape[0], x.shape[1], x.shape[2] * x.shape[3]};
    return x;
  };
  Array dOut = randoms(DType::F32, s.q(), 4);
  KernelRun wholeBack("attention_bwd");
  wholeBack.attrs = all.attrs;
  wholeBack.in(rows(dOut)).in(all.q).in(all.k).in(all.v).in(rows(whole[0])).in(whole[1]);
  wholeBack.in(all.docs).in(all.samples);
  std::vector<Array> wants =
      wholeBack.out(DType::F32, s.q()).out(DType::F32, s.k()).out(DType::F32, s.k()).run();
  for (int64_t index = 0; index < 3; ++index) {
    auto queries = [&](const Array &x) { return headsOf(x, 6, 2 * index, 2 * index + 2); };
    auto keys = [&](const Array &x) { return headsOf(x, 3, index, index + 1); };
    Array q = queries(all.q), k = keys(all.k), v = keys(all.v);
    KernelRun run("attention"), back("attention_bwd");
    run.attrs = back.attrs = all.attrs;
    run.index = back.index = index, run.groupSize = back.groupSize = 3;
    run.in(q).in(k).in(v).in(all.docs).in(all.samples);
    std::vector<Array> got = run.out(DType::F32, rows(q).shape).out(DType::F32, {2, 2, 9}).run();
    EXPECT_EQ(got[0].values, queries(whole[0]).values);
    back.in(rows(queries(dOut))).in(q).in(k).in(v).in(got[0]).in(got[1]);
    back.in(all.docs).in(all.samples);
    std::vector<Array> gradients =
        back.out(DType::F32, q.shape).out(DType::F32, k.shape).out(DType::F32, k.shape).run();
    EXPECT_EQ(gradients[0].values, queries(wants[0]).values);
    EXPECT_EQ(gradients[1].values, keys(wants[1]).values);
    EXPECT_EQ(gradients[2].values, keys(wants[2]).values);
  }
}

TEST(Attention, DocumentStartsOutOfRangeAreHarmless) {
  Case c = makeCase({1, 5, 1, 1, 2}, DType::F32, true, true, 0);
  c.docs.values = {-7, 4, 99, 1, 1 << 30};
  KernelRun run("attention");
  run.attrs = c.attrs;
  run.in(c.q).in(c.k).in(c.v).in(c.docs).in(c.samples);
  run.out(DType::F32, c.shape.o()).out(DType::F32, c.shape.lse());
  Array o = run.run()[0];
  for (double value : o.values)
    EXPECT_TRUE(std::isfinite(value));
}

/// Attention on common rows has the same bits as splitting them and attention on the parts.
TEST(Attention, OfCommonRowsIsThatOfTheirParts) {
  for (Shape s : {Shape{1, 1, 1, 1, 2}, Shape{2, 5, 6, 3, 4}, Shape{2, 17, 4, 4, 16}})
    for (DType dtype : kDataTypes) {
      Case c = makeCase(s, dtype, true, true, 0.2);
      c.attrs.window = 3;
      std::vector<int64_t> rows = {s.batch, s.positions, (s.heads + 2 * s.groups) * s.channels};
      Array qkv = randoms(dtype, rows, 31, 2.0), dOut = randoms(dtype, s.o(), 32);
      auto make = [&](const char *op, bool isSplit) {
        KernelRun run(op);
        run.attrs = c.attrs;
        if (!isSplit)
          run.attrs.num_heads = s.heads, run.attrs.num_groups = s.groups,
          run.attrs.head_dim = s.channels;
        return run;
      };
      KernelRun split("split_qkv"), merge("merge_qkv");
      std::vector<Array> parts =
          split.in(qkv).out(dtype, s.q()).out(dtype, s.k()).out(dtype, s.k()).run();
      KernelRun apart = make("attention", true), whole = make("attention_qkv", false);
      for (const Array &part : parts)
        apart.in(part);
      std::vector<Array> want =
          apart.in(c.docs).in(c.samples).out(dtype, s.o()).out(DType::F32, s.lse()).run();
      whole.in(qkv).in(c.docs).in(c.samples).out(dtype, s.o()).out(DType::F32, s.lse());
      std::vector<Array> got = whole.run();
      EXPECT_EQ(got[0].values, want[0].values);
      EXPECT_EQ(got[1].values, want[1].values);

      KernelRun apartBack = make("attention_bwd", true), back = make("attention_qkv_bwd", false);
      apartBack.in(dOut).in(parts[0]).in(parts[1]).in(parts[2]).in(want[0]).in(want[1]);
      apartBack.in(c.docs).in(c.samples).out(dtype, s.q()).out(dtype, s.k()).out(dtype, s.k());
      for (const Array &gradient : apartBack.run())
        merge.in(gradient);
      back.in(dOut).in(qkv).in(want[0]).in(want[1]).in(c.docs).in(c.samples).out(dtype, rows);
      EXPECT_EQ(back.run()[0].values, merge.out(dtype, rows).run()[0].values);
    }
}

TEST(Attention, OfCommonRowsNamesItsHeads) {
  Shape s = {1, 3, 4, 4, 8};
  Case c = makeCase(s, DType::F32, true, false, 0);
  for (int wrong = 0; wrong < 4; ++wrong) {
    KernelRun run("attention_qkv");
    run.attrs = c.attrs;
    run.attrs.num_heads = wrong == 1 ? 5 : 4;
    run.attrs.num_groups = wrong == 2 ? 3 : 4;
    run.attrs.head_dim = wrong == 3 ? 9 : 8;
    run.in(randoms(DType::F32, {1, 3, 96}, 1)).in(c.docs).in(c.samples);
    run.out(DType::F32, s.o()).out(DType::F32, s.lse());
    EXPECT_EQ(run.refusal() == nullptr, wrong == 0) << wrong;
  }
}

} // namespace
} // namespace shardc::kernels::test
