// Compares attention of slices of a sequence, joined, with attention of the whole sequence.
#include "test/kernels/Harness.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Slice = std::vector<int64_t>; ///< positions in the sequence

/// The slices of a member of a context-parallel group: two slices that mirror each other.
Slice zigzag(int64_t positions, int64_t members, int64_t index) {
  int64_t each = positions / (2 * members);
  Slice slice(static_cast<size_t>(2 * each));
  std::iota(slice.begin(), slice.begin() + each, index * each);
  std::iota(slice.begin() + each, slice.end(), (2 * members - 1 - index) * each);
  return slice;
}

/// The rows of a [B, S, ...] tensor at these positions.
Array rowsAt(const Array &all, const Slice &slice) {
  Array rows = {all.dtype, all.shape, {}};
  rows.shape[1] = static_cast<int64_t>(slice.size());
  int64_t row = all.numel() / (all.shape[0] * all.shape[1]);
  for (int64_t b = 0; b < all.shape[0]; ++b)
    for (int64_t s : slice) {
      auto begin = all.values.begin() + (b * all.shape[1] + s) * row;
      rows.values.insert(rows.values.end(), begin, begin + row);
    }
  return rows;
}

/// The columns of lse[B, N, S] at these positions.
Array lseAt(const Array &all, const Slice &slice) {
  Array part = {all.dtype, {all.shape[0], all.shape[1], static_cast<int64_t>(slice.size())}, {}};
  for (int64_t row = 0; row < all.shape[0] * all.shape[1]; ++row)
    for (int64_t s : slice)
      part.values.push_back(all[row * all.shape[2] + s]);
  return part;
}

/// A whole sequence, and the results of attention on it.
struct Whole {
  static constexpr int64_t kBatch = 2, kPositions = 24, kHeads = 4, kGroups = 2, kChannels = 6;
  static constexpr int64_t kValues = 4; ///< channels of values
  Attrs attrs;
  Array q, k, v, docs, samples, dOut;
  Array o, lse, dq, dk, dv;

  Whole(DType dtype, bool causal, bool resetMask, int64_t window, double p, int64_t chunk = 0)
      : q(randoms(dtype, heads(kHeads), 1, 2.0)), k(randoms(dtype, heads(kGroups), 2, 2.0)),
        v(randoms(dtype, {kBatch, kPositions, kGroups, kValues}, 3)), docs{DType::I32,
                                                                           {kBatch, kPositions},
                                                                           {}},
        samples(array(DType::I64, {kBatch}, {1000, 77})),
        dOut(randoms(dtype, {kBatch, kPositions, kHeads * kValues}, 4)) {
    attrs.causal = causal, attrs.reset_mask = resetMask, attrs.window = window;
    attrs.chunk = chunk;
    attrs.p = p, attrs.salt = 7, attrs.seed = 1234, attrs.positions = kPositions;
    attrs.scale = 1 / std::sqrt(static_cast<double>(kChannels));
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t i = 0; i < kPositions; ++i)
        docs.values.push_back(static_cast<double>(i / (7 + b) * (7 + b)));
    run();
  }

  static std::vector<int64_t> heads(int64_t count) {
    return {kBatch, kPositions, count, kChannels};
  }

  void run() {
    KernelRun forward("attention"), backward("attention_bwd");
    forward.attrs = backward.attrs = attrs;
    forward.in(q).in(k).in(v).in(docs).in(samples).out(q.dtype, dOut.shape);
    std::vector<Array> got = forward.out(DType::F32, {kBatch, kHeads, kPositions}).run();
    o = got[0], lse = got[1];
    backward.in(dOut).in(q).in(k).in(v).in(o).in(lse).in(docs).in(samples);
    backward.out(DType::F32, q.shape).out(DType::F32, k.shape).out(DType::F32, v.shape);
    got = backward.run();
    dq = got[0], dk = got[1], dv = got[2];
  }

  Array positionsOf(const Slice &slice) const {
    Array positions = {DType::I32, {kBatch, static_cast<int64_t>(slice.size())}, {}};
    for (int64_t b = 0; b < kBatch; ++b)
      positions.values.insert(positions.values.end(), slice.begin(), slice.end());
    return positions;
  }

  KernelRun &words(KernelRun &run, const Slice &queries, const Slice &keys) const {
    run.attrs = attrs;
    run.in(positionsOf(queries)).in(positionsOf(keys));
    return run.in(rowsAt(docs, queries)).in(rowsAt(docs, keys)).in(samples);
  }

  /// o and lse for these queries and keys. o is f32 if the keys are a part.
  std::vector<Array> part(const Slice &queries, const Slice &keys) const {
    KernelRun run("attention_part");
    run.in(rowsAt(q, queries)).in(rowsAt(k, keys)).in(rowsAt(v, keys));
    auto count = static_cast<int64_t>(queries.size());
    words(run, queries, keys).out(DType::F32, {kBatch, count, kHeads * kValues});
    return run.out(DType::F32, {kBatch, kHeads, count}).run();
  }

  /// The contributions of these keys to dq of these queries, and dk and dv.
  std::vector<Array> gradients(const Slice &queries, const Slice &keys) const {
    KernelRun run("attention_part_bwd");
    Array keysHere = rowsAt(k, keys), valuesHere = rowsAt(v, keys);
    Array queriesHere = rowsAt(q, queries);
    run.in(rowsAt(dOut, queries)).in(queriesHere).in(keysHere).in(valuesHere);
    run.in(rowsAt(o, queries)).in(lseAt(lse, queries));
    words(run, queries, keys).out(DType::F32, queriesHere.shape);
    return run.out(DType::F32, keysHere.shape).out(DType::F32, valuesHere.shape).run();
  }
};

std::vector<Array> join(const std::vector<Array> &a, const std::vector<Array> &b) {
  KernelRun run("attention_join");
  run.in(a[0]).in(a[1]).in(b[0]).in(b[1]).out(a[0].dtype, a[0].shape);
  return run.out(DType::F32, a[1].shape).run();
}

void add(Array &sum, const Array &more) {
  if (sum.values.empty())
    sum = constant(more.dtype, more.shape, 0);
  for (size_t i = 0; i < sum.values.size(); ++i)
    sum.values[i] += more.values[i];
}

struct Mask {
  bool causal, resetMask;
  int64_t window, chunk = 0;
};
// These chunks end inside slices.
constexpr Mask kMasks[] = {{false, false, -1}, {true, false, -1}, {true, true, -1},
                           {false, true, -1},  {true, false, 5},  {true, false, -1, 7}};

/// For mirrored slices, the op needs no positions.
TEST(AttentionPart, OfMirroredSlicesNeedsNoPositions) {
  Whole whole(DType::F32, true, false, -1, 0.3);
  constexpr int64_t kMembers = 3;
  Slice all(Whole::kPositions);
  std::iota(all.begin(), all.end(), 0);
  for (int64_t rank = 0; rank < kMembers; ++rank)
    for (int64_t by = 0; by <= kMembers; ++by) { // kMembers: all keys
      Slice queries = zigzag(Whole::kPositions, kMembers, rank);
      Slice keys = by == kMembers
                       ? all
                       : zigzag(Whole::kPositions, kMembers, (rank - by + kMembers) % kMembers);
      std::vector<Array> want = whole.part(queries, keys);
      KernelRun run("attention_part");
      run.in(rowsAt(whole.q, queries)).in(rowsAt(whole.k, keys)).in(rowsAt(whole.v, keys));
      whole.words(run, Slice(queries.size(), 0), Slice(keys.size(), 0));
      run.attrs.slices = kMembers, run.attrs.by = by % kMembers;
      run.index = rank, run.groupSize = kMembers;
      run.out(want[0].dtype, want[0].shape).out(want[1].dtype, want[1].shape);
      std::vector<Array> got = run.run();
      EXPECT_EQ(got[0].values, want[0].values) << rank << ' ' << by;
      EXPECT_EQ(got[1].values, want[1].values) << rank << ' ' << by;
    }
}

/// A ring of members with mirrored slices: each query attends to all keys, slice by slice.
TEST(AttentionPart, JoinedAreThoseOfTheWhole) {
  for (int64_t members : {1, 2, 3})
    for (const Mask &mask : kMasks)
      for (double p : {0.0, 0.3})
        for (DType dtype : kDataTypes) {
          Whole whole(dtype, mask.causal, mask.resetMask, mask.window, p, mask.chunk);
          std::vector<Array> dk(static_cast<size_t>(members)), dv = dk;
          for (int64_t rank = 0; rank < members; ++rank) {
            Slice queries = zigzag(Whole::kPositions, members, rank);
            std::vector<Array> joined;
            Array dq;
            for (int64_t step = 0; step < members; ++step) {
              auto other = static_cast<size_t>((rank + step) % members);
              Slice keys = zigzag(Whole::kPositions, members, static_cast<int64_t>(other));
              std::vector<Array> part = whole.part(queries, keys);
              joined = step == 0 ? part : join(joined, part);
              std::vector<Array> back = whole.gradients(queries, keys);
              add(dq, back[0]), add(dk[other], back[1]), add(dv[other], back[2]);
            }
            // The whole sequence's o is rounded to its type.
            double rounded = dtype == DType::BF16 ? 2e-2 : dtype == DType::F16 ? 2.5e-3 : 1e-5;
            expectClose(joined[0], rowsAt(whole.o, queries).values, {rounded, 4}, "o");
            expectClose(joined[1], lseAt(whole.lse, queries).values, {2e-6, 4}, "lse");
            expectClose(dq, rowsAt(whole.dq, queries).values, {rounded, 8}, "dq");
          }
          for (int64_t rank = 0; rank < members; ++rank) {
            auto at = static_cast<size_t>(rank);
            Slice keys = zigzag(Whole::kPositions, members, rank);
            double rounded = dtype == DType::BF16 ? 4e-2 : dtype == DType::F16 ? 5e-3 : 2e-5;
            expectClose(dk[at], rowsAt(whole.dk, keys).values, {rounded, 8}, "dk");
            expectClose(dv[at], rowsAt(whole.dv, keys).values, {rounded, 8}, "dv");
          }
        }
}

TEST(AttentionPart, HasNothingOfKeysThatNoQuerySees) {
  Whole whole(DType::F32, true, false, -1, 0);
  Slice first(12), second(12);
  std::iota(first.begin(), first.end(), 0), std::iota(second.begin(), second.end(), 12);
  std::vector<Array> none = whole.part(first, second);
  for (double value : none[0].values)
    EXPECT_EQ(value, 0);
  for (double value : none[1].values)
    EXPECT_EQ(value, -kInfinity);
  for (const Array &gradient : whole.gradients(first, second))
    for (double value : gradient.values)
      EXPECT_EQ(value, 0);
  std::vector<Array> own = whole.part(first, first), joined = join(own, none);
  EXPECT_EQ(joined[0].values, own[0].values);
  EXPECT_EQ(joined[1].values, own[1].values);
  joined = join(none, none);
  EXPECT_EQ(joined[0].values, none[0].values);
  EXPECT_EQ(joined[1].values, none[1].values);
}

TEST(AttentionPart, DropoutNeedsToKnowTheSequence) {
  Whole whole(DType::F32, true, false, -1, 0.3);
  whole.attrs.positions = 0;
  KernelRun run("attention_part");
  Slice slice = zigzag(Whole::kPositions, 2, 0);
  run.in(rowsAt(whole.q, slice)).in(rowsAt(whole.k, slice)).in(rowsAt(whole.v, slice));
  whole.words(run, slice, slice).out(DType::F32, {2, 12, 16}).out(DType::F32, {2, 4, 12});
  EXPECT_STREQ(run.refusal(), "dropout does not know how many positions a sequence has");
}

TEST(Transpose, MovesRunsThereAndBack) {
  for (DType dtype : kDataTypes) {
    Array x = randoms(dtype, {3, 4, 5}, 1);
    KernelRun run("transpose"), back("transpose");
    run.attrs.outer = back.attrs.inner = 3, run.attrs.inner = back.attrs.outer = 4;
    Array y = run.in(x).out(dtype, {4, 3, 5}).run()[0];
    for (int64_t a = 0; a < 3; ++a)
      for (int64_t b = 0; b < 4; ++b)
        for (int64_t i = 0; i < 5; ++i)
          ASSERT_EQ(y[(b * 3 + a) * 5 + i], x[(a * 4 + b) * 5 + i]);
    EXPECT_EQ(back.in(y).out(dtype, {3, 4, 5}).run()[0].values, x.values);
  }
}

/// Merges the slices of three members into whole sequences, and splits them again.
TEST(MergeSlices, PutsChunksInTheOrderOfSequences) {
  constexpr int64_t kMembers = 3, kSamples = 2, kPositions = 24, kColumns = 5;
  for (DType dtype : {DType::F32, DType::BF16, DType::F16, DType::I32}) {
    Array whole = randoms(DType::F32, {kSamples, kPositions, kColumns}, 1);
    for (size_t i = 0; i < whole.values.size(); ++i)
      whole.values[i] = static_cast<double>(i % 199);
    whole.dtype = dtype;
    Array sliced = whole;
    sliced.shape = {kMembers, kSamples, kPositions / kMembers, kColumns};
    size_t to = 0;
    for (int64_t member = 0; member < kMembers; ++member)
      for (int64_t sample = 0; sample < kSamples; ++sample)
        for (int64_t position : zigzag(kPositions, kMembers, member))
          for (int64_t i = 0; i < kColumns; ++i)
            sliced.values[to++] = whole[(sample * kPositions + position) * kColumns + i];
    KernelRun merge("merge_slices"), split("merge_slices");
    merge.attrs.outer = split.attrs.outer = kSamples;
    merge.attrs.inner = split.attrs.inner = kMembers;
    split.attrs.inverse = true;
    EXPECT_EQ(merge.in(sliced).out(dtype, whole.shape).run()[0].values, whole.values);
    EXPECT_EQ(split.in(whole).out(dtype, sliced.shape).run()[0].values, sliced.values);
  }
}

TEST(MergeSlices, RefusesSlicesWithoutHalves) {
  KernelRun run("merge_slices");
  run.attrs.outer = 2, run.attrs.inner = 3;
  run.in(randoms(DType::F32, {3, 2, 5}, 1)).out(DType::F32, {2, 15});
  EXPECT_STREQ(run.refusal(), "extents of operands and results do not fit each other");
}

TEST(Join, PutsPartsOneAfterTheOther) {
  for (DType dtype : kDataTypes) {
    Array a = randoms(dtype, {3, 5}, 1), b = randoms(dtype, {2, 5}, 2), c = randoms(dtype, {5}, 3);
    Array whole = KernelRun("join").listed(a).listed(b).listed(c).out(dtype, {6, 5}).run()[0];
    std::vector<double> expected = a.values;
    expected.insert(expected.end(), b.values.begin(), b.values.end());
    expected.insert(expected.end(), c.values.begin(), c.values.end());
    EXPECT_EQ(whole.values, expected);
  }
}

TEST(Join, RefusesPartsThatAreNotTheWhole) {
  Array a = randoms(DType::F32, {3, 5}, 1), b = randoms(DType::F32, {2, 5}, 2);
  auto refusal = [&](DType dtype, int64_t rows) {
    KernelRun run("join");
    run.listed(a).listed(b).out(dtype, {rows, 5});
    return std::string(run.refusal());
  };
  EXPECT_EQ(refusal(DType::F32, 4), "the parts have more elements than the whole");
  EXPECT_EQ(refusal(DType::F32, 6), "the parts have fewer elements than the whole");
  EXPECT_EQ(refusal(DType::BF16, 5), "parts and whole differ in type");
  EXPECT_STREQ(KernelRun("join").out(DType::F32, {1, 5}).refusal(),
               "the list of parts is not given");
}

/// Rotations and dropout of slices are those of the whole sequence; so are reverse rotations of
/// gradients.
TEST(Positions, SlicesAreRotatedAndDroppedAsInTheWhole) {
  Slice slice = zigzag(24, 3, 1);
  for (DType dtype : kDataTypes) {
    Whole whole(dtype, true, false, -1, 0.25);
    whole.attrs.rotary_dim = 4;
    Array positions = whole.positionsOf(slice);
    auto run = [&](const char *op, const Array &x, bool isSlice) {
      KernelRun kernel(op);
      kernel.attrs = whole.attrs;
      kernel.in(x);
      if (std::string_view(op) == "dropout")
        kernel.in(whole.samples);
      if (isSlice)
        kernel.in(positions);
      return kernel.out(dtype, x.shape).run()[0];
    };
    EXPECT_EQ(run("rope", rowsAt(whole.q, slice), true).values,
              rowsAt(run("rope", whole.q, false), slice).values);
    whole.attrs.position_step = 5, whole.attrs.position_slope = 0.5;
    EXPECT_EQ(run("scale_positions", rowsAt(whole.q, slice), true).values,
              rowsAt(run("scale_positions", whole.q, false), slice).values);
    EXPECT_EQ(run("dropout", rowsAt(whole.dOut, slice), true).values,
              rowsAt(run("dropout", whole.dOut, false), slice).values);
  }
}

TEST(Positions, SplitsAndMergesRotateByThem) {
  Slice slice = zigzag(24, 2, 1);
  Whole whole(DType::F32, true, false, -1, 0);
  auto count = static_cast<int64_t>(slice.size());
  Array qkv = randoms(DType::F32, {2, 24, (4 + 2 * 2) * 6}, 9),
        positions = whole.positionsOf(slice);
  KernelRun all("split_qkv_rope"), some("split_qkv_rope"), merge("merge_qkv_rope");
  all.attrs.rotary_dim = some.attrs.rotary_dim = merge.attrs.rotary_dim = 6;
  all.in(qkv).out(DType::F32, whole.q.shape).out(DType::F32, whole.k.shape);
  std::vector<Array> want = all.out(DType::F32, whole.k.shape).run();
  some.in(rowsAt(qkv, slice)).in(positions).out(DType::F32, {2, count, 4, 6});
  std::vector<Array> got =
      some.out(DType::F32, {2, count, 2, 6}).out(DType::F32, {2, count, 2, 6}).run();
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(got[i].values, rowsAt(want[i], slice).values);
  for (const Array &part : got)
    merge.in(part);
  Array back = merge.in(positions).out(DType::F32, {2, count, 48}).run()[0];
  expectClose(back, rowsAt(qkv, slice).values, {1e-6, 4}, "qkv");
}

} // namespace
} // namespace shardc::kernels::test
