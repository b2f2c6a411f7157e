// Splitting, merging and rotating heads: copies are exact; rotations are compared with complex
// numbers in double.
#include "test/kernels/Harness.h"

#include <algorithm>
#include <cmath>
#include <complex>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

struct Shape {
  int64_t batch, positions, heads, groups, channels;
  int64_t width() const { return (heads + 2 * groups) * channels; }
};
constexpr Shape kShapes[] = {
    {1, 1, 1, 1, 2}, {2, 3, 6, 2, 4}, {2, 17, 8, 8, 16}, {1, 33, 4, 1, 64}};

/// The column at which head `head` of part 0 (q), 1 (k) or 2 (v) begins in a row of qkv.
int64_t columnOf(const Shape &s, int part, int64_t head) {
  int64_t perGroup = s.heads / s.groups;
  int64_t group = part == 0 ? head / perGroup : head;
  int64_t place = part == 0 ? head % perGroup : perGroup + part - 1;
  return (group * (perGroup + 2) + place) * s.channels;
}

std::vector<int64_t> shapeOf(const Shape &s, int part) {
  return {s.batch, s.positions, part == 0 ? s.heads : s.groups, s.channels};
}

/// Rotates x[B,S,heads,D] by position. The channels of a pair are neighbours if interleaved,
/// otherwise in different halves.
std::vector<double> rotated(const std::vector<double> &x, const std::vector<int64_t> &shape,
                            const Attrs &attrs, bool inverse) {
  std::vector<double> y = x;
  int64_t pairs = attrs.rotary_dim / 2, channels = shape[3];
  for (size_t row = 0; row < x.size() / static_cast<size_t>(channels); ++row)
    for (int64_t i = 0; i < pairs; ++i) {
      int64_t position = static_cast<int64_t>(row) / shape[2] % shape[1];
      double angle = static_cast<double>(position) *
                     std::pow(attrs.rotary_base, -2.0 * static_cast<double>(i) /
                                                     static_cast<double>(attrs.rotary_dim));
      size_t start = row * static_cast<size_t>(channels);
      auto first = start + static_cast<size_t>(attrs.rotary_interleaved ? 2 * i : i);
      auto second = start + static_cast<size_t>(attrs.rotary_interleaved ? 2 * i + 1 : i + pairs);
      std::complex<double> rotatedPair =
          std::complex<double>(x[first], x[second]) * std::polar(1.0, inverse ? -angle : angle);
      y[first] = rotatedPair.real();
      y[second] = rotatedPair.imag();
    }
  return y;
}

/// Frequencies and angles are rounded to fp32: an angle of s has an error of about s·2^-24.
Tolerance rotationTolerance(const Shape &s) {
  return {2e-7 * static_cast<double>(s.positions + 4), 1};
}

TEST(Qkv, SplitFollowsTheLayoutAndMergeInvertsIt) {
  for (Shape s : kShapes)
    for (DType dtype : kDataTypes) {
      Array qkv = randoms(dtype, {s.batch, s.positions, s.width()}, 1);
      KernelRun split("split_qkv"), merge("merge_qkv");
      for (int part = 0; part < 3; ++part)
        split.out(dtype, shapeOf(s, part));
      std::vector<Array> parts = split.in(qkv).run();
      for (int part = 0; part < 3; ++part) {
        const Array &got = parts[static_cast<size_t>(part)];
        int64_t heads = got.shape[2];
        for (int64_t i = 0; i < got.numel(); ++i) {
          int64_t row = i / (heads * s.channels), head = i / s.channels % heads;
          ASSERT_EQ(got[i], qkv[row * s.width() + columnOf(s, part, head) + i % s.channels]);
        }
        merge.in(got);
      }
      EXPECT_EQ(merge.out(dtype, qkv.shape).run()[0].values, qkv.values);
    }
}

TEST(Qkv, RopeTurnsPairsOfChannels) {
  for (Shape s : kShapes)
    for (DType dtype : kDataTypes)
      for (int variant = 0; variant < 8; ++variant) {
        SCOPED_TRACE(testing::Message() << s.positions << ' ' << s.channels << ' ' << variant);
        Array x = randoms(dtype, shapeOf(s, 0), 2);
        KernelRun run("rope");
        run.attrs.rotary_interleaved = variant & 1;
        run.attrs.inverse = variant & 2;
        run.attrs.rotary_dim = variant & 4 ? std::max<int64_t>(2, s.channels / 2) : s.channels;
        Array y = run.in(x).out(dtype, x.shape).run()[0];
        expectClose(y, rotated(x.values, x.shape, run.attrs, variant & 2), rotationTolerance(s),
                    "y");
      }
}

TEST(Qkv, FusedRopeGivesTheSameBits) {
  for (Shape s : kShapes)
    for (DType dtype : kDataTypes) {
      Array qkv = randoms(dtype, {s.batch, s.positions, s.width()}, 3);
      KernelRun split("split_qkv"), fused("split_qkv_rope");
      fused.attrs.rotary_dim = s.channels;
      for (int part = 0; part < 3; ++part) {
        split.out(dtype, shapeOf(s, part));
        fused.out(dtype, shapeOf(s, part));
      }
      std::vector<Array> want = split.in(qkv).run(), got = fused.in(qkv).run();
      for (size_t part = 0; part < 2; ++part) {
        KernelRun rope("rope");
        rope.attrs.rotary_dim = s.channels;
        want[part] = rope.in(want[part]).out(dtype, want[part].shape).run()[0];
      }
      for (size_t part = 0; part < 3; ++part)
        EXPECT_EQ(got[part].values, want[part].values) << "part " << part;
    }
}

TEST(Qkv, FusedNormsGiveTheSameBits) {
  for (Shape s : kShapes)
    for (DType dtype : kDataTypes)
      for (bool isZeroCentered : {false, true}) {
        Array qkv = randoms(dtype, {s.batch, s.positions, s.width()}, 3);
        auto make = [&](const char *op) {
          KernelRun run(op);
          run.attrs.rotary_dim = s.channels;
          run.attrs.zero_centered = isZeroCentered;
          run.attrs.eps = 1e-3;
          return run;
        };
        KernelRun split = make("split_qkv"), fused = make("split_qkv_norm_rope");
        KernelRun merge = make("merge_qkv"), fusedMerge = make("merge_qkv_norm_rope");
        Array weights[2] = {randoms(dtype, {s.channels}, 5), randoms(dtype, {s.channels}, 6)};
        for (int part = 0; part < 3; ++part) {
          split.out(dtype, shapeOf(s, part));
          fused.out(dtype, shapeOf(s, part));
        }
        fused.in(qkv).in(weights[0]).in(weights[1]);
        fused.out(DType::F32, {s.batch, s.positions, s.heads});
        fused.out(DType::F32, {s.batch, s.positions, s.groups});
        std::vector<Array> parts = split.in(qkv).run(), got = fused.run();
        Array gradients[3], sums[2];
        for (int part = 0; part < 3; ++part) {
          auto i = static_cast<size_t>(part);
          gradients[i] = randoms(dtype, shapeOf(s, part), 7 + part);
          fusedMerge.in(gradients[i]);
          if (part == 2) {
            EXPECT_EQ(got[i].values, parts[i].values);
            merge.in(gradients[i]);
            continue;
          }
          int64_t rows = parts[i].numel() / s.channels;
          KernelRun norm = make("rmsnorm"), rope = make("rope"), back = make("rope"),
                    normBack = make("rmsnorm_bwd");
          std::vector<Array> normed = norm.in(parts[i])
                                          .in(weights[i])
                                          .out(dtype, parts[i].shape)
                                          .out(DType::F32, {rows})
                                          .run();
          EXPECT_EQ(got[i].values, rope.in(normed[0]).out(dtype, normed[0].shape).run()[0].values);
          EXPECT_EQ(got[3 + i].values, normed[1].values);
          back.attrs.inverse = true;
          Array rotatedPair = back.in(gradients[i]).out(dtype, gradients[i].shape).run()[0];
          std::vector<Array> wanted = normBack.in(rotatedPair)
                                          .in(parts[i])
                                          .in(weights[i])
                                          .in(normed[1])
                                          .out(dtype, rotatedPair.shape)
                                          .out(dtype, {s.channels})
                                          .run();
          merge.in(wanted[0]);
          sums[i] = wanted[1];
        }
        fusedMerge.in(qkv).in(weights[0]).in(weights[1]).in(got[3]).in(got[4]);
        fusedMerge.out(dtype, qkv.shape).out(dtype, {s.channels}).out(dtype, {s.channels});
        std::vector<Array> merged = fusedMerge.run();
        EXPECT_EQ(merged[0].values, merge.out(dtype, qkv.shape).run()[0].values);
        EXPECT_EQ(merged[1].values, sums[0].values);
        EXPECT_EQ(merged[2].values, sums[1].values);
      }
}

TEST(Qkv, MergeWithRopeIsTheGradient) {
  // The gradient of a rotation is the reverse rotation, so merging the split parts gives the input.
  for (Shape s : kShapes) {
    Array qkv = randoms(DType::F32, {s.batch, s.positions, s.width()}, 4);
    KernelRun split("split_qkv_rope"), merge("merge_qkv_rope");
    split.attrs.rotary_dim = merge.attrs.rotary_dim = s.channels;
    for (int part = 0; part < 3; ++part)
      split.out(DType::F32, shapeOf(s, part));
    for (Array &part : split.in(qkv).run())
      merge.in(part);
    expectClose(merge.out(DType::F32, qkv.shape).run()[0], qkv.values, {3e-7, 1}, "dqkv");
  }
}

/// Rows have the queries of three members. For each key, a member takes its own queries, and writes
/// zeros in place of the others.
TEST(Qkv, OfAMemberAreItsQueriesOfEachKey) {
  constexpr int64_t kMembers = 3;
  for (Shape s : kShapes)
    for (bool isRotated : {false, true}) {
      SCOPED_TRACE(testing::Message() << s.heads << ' ' << s.groups << ' ' << isRotated);
      const std::string suffix = isRotated ? "_rope" : "";
      Shape all = s;
      all.heads *= kMembers;
      int64_t own = s.heads / s.groups * s.channels, rows = s.batch * s.positions;
      Array qkv = randoms(DType::F32, {s.batch, s.positions, all.width()}, 5);
      auto make = [&](const char *op, int64_t index) {
        KernelRun run(op + suffix);
        run.attrs.rotary_dim = s.channels;
        if (index >= 0)
          run.index = index, run.groupSize = kMembers;
        return run;
      };
      auto split = [&](const Shape &shape, int64_t index) {
        KernelRun run = make("split_qkv", index);
        for (int part = 0; part < 3; ++part)
          run.out(DType::F32, shapeOf(shape, part));
        return run.in(qkv).run();
      };
      std::vector<Array> whole = split(all, -1);
      KernelRun mergeWhole = make("merge_qkv", -1);
      Array merged =
          mergeWhole.in(whole[0]).in(whole[1]).in(whole[2]).out(DType::F32, qkv.shape).run()[0];
      for (int64_t index = 0; index < kMembers; ++index) {
        std::vector<Array> parts = split(s, index);
        EXPECT_EQ(parts[1].values, whole[1].values);
        EXPECT_EQ(parts[2].values, whole[2].values);
        for (int64_t i = 0; i < parts[0].numel(); ++i)
          ASSERT_EQ(parts[0][i], whole[0][(i / own * kMembers + index) * own + i % own]) << i;
        KernelRun merge = make("merge_qkv", index);
        Array got =
            merge.in(parts[0]).in(parts[1]).in(parts[2]).out(DType::F32, qkv.shape).run()[0];
        // Elements of a key with its queries and its value.
        int64_t width = kMembers * own + 2 * s.channels;
        for (int64_t i = 0; i < rows * all.width(); ++i) {
          int64_t member = i % width / own;
          bool isOthers = i % width < kMembers * own && member != index;
          ASSERT_EQ(got[i], isOthers ? 0 : merged[i]) << i;
        }
      }
    }
}

TEST(Qkv, RefusesAnOddRotation) {
  KernelRun run("rope");
  run.attrs.rotary_dim = 3;
  run.in(constant(DType::F32, {1, 1, 1, 4}, 0)).out(DType::F32, {1, 1, 1, 4});
  EXPECT_STREQ(run.refusal(), "rotary_dim is not an even number from 2 to the head's channels");
}

} // namespace
} // namespace shardc::kernels::test
