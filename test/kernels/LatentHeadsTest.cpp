// Compares heads of latent attention with copies and rotations in double, their gradients with
// differences, and the frequencies of rotations with formulas in double.
#include "test/kernels/Harness.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

struct Shape {
  int64_t batch, positions, heads, plain, rotated, values;

  std::vector<int64_t> q() const { return {batch, positions, heads, plain + rotated}; }
  std::vector<int64_t> v() const { return {batch, positions, heads, values}; }
  std::vector<int64_t> queries() const { return {batch, positions, heads * (plain + rotated)}; }
  std::vector<int64_t> keyValues() const { return {batch, positions, heads * (plain + values)}; }
  std::vector<int64_t> krot() const { return {batch, positions, rotated}; }
  int64_t rows() const { return batch * positions; }
};
constexpr Shape kShapes[] = {{1, 1, 1, 1, 2, 1}, {2, 3, 3, 5, 4, 7}, {1, 17, 2, 16, 8, 12}};

using Vector = std::vector<double>;

/// The frequency of a pair of channels, from the attributes.
double frequencyOf(const Attrs &attrs, int64_t pair) {
  auto dim = static_cast<double>(attrs.rotary_dim);
  double plain = std::pow(attrs.rotary_base, -2.0 * static_cast<double>(pair) / dim);
  if (attrs.yarn_factor == 1)
    return plain;
  // The pair of channels that makes this number of turns within the positions: positions·frequency
  // = turns·2·pi.
  auto pairOf = [&](double turns) {
    double ratio = static_cast<double>(attrs.yarn_positions) / (2 * std::numbers::pi * turns);
    return dim / 2 * std::log(ratio) / std::log(attrs.rotary_base);
  };
  double first = pairOf(attrs.yarn_beta_fast), last = pairOf(attrs.yarn_beta_slow);
  if (attrs.yarn_round)
    first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, dim - 1);
  if (first == last)
    last += 0.001;
  double shrunk = std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
  return plain * (1 - shrunk + shrunk / attrs.yarn_factor);
}

/// Rotates `n` channels from `at` on for position `position`.
void turn(const Attrs &attrs, double position, Vector &x, size_t at) {
  for (int64_t i = 0; i < attrs.rotary_dim / 2; ++i) {
    auto first = at + static_cast<size_t>(attrs.rotary_interleaved ? 2 * i : i);
    auto second =
        at + static_cast<size_t>(attrs.rotary_interleaved ? 2 * i + 1 : i + attrs.rotary_dim / 2);
    double angle = position / attrs.rotary_interpolation * frequencyOf(attrs, i);
    std::complex<double> rotatedPair =
        std::complex<double>(x[first], x[second]) * std::polar(attrs.rotary_magnitude, angle);
    x[first] = rotatedPair.real(), x[second] = rotatedPair.imag();
  }
}

struct Heads {
  Vector q, k, v;
};

Heads headsOf(const Shape &s, const Attrs &attrs, const Vector &queries, const Vector &keyValues,
              const Vector &krot) {
  Heads heads = {queries, {}, {}};
  auto width = static_cast<size_t>(s.plain + s.rotated);
  for (int64_t row = 0; row < s.rows(); ++row)
    for (int64_t head = 0; head < s.heads; ++head) {
      auto at = static_cast<size_t>(row * s.heads + head);
      auto position = static_cast<double>(row % s.positions);
      turn(attrs, position, heads.q, at * width + static_cast<size_t>(s.plain));
      auto from = keyValues.begin() + static_cast<ptrdiff_t>(at) * (s.plain + s.values);
      heads.k.insert(heads.k.end(), from, from + s.plain);
      heads.k.insert(heads.k.end(), krot.begin() + row * s.rotated,
                     krot.begin() + (row + 1) * s.rotated);
      turn(attrs, position, heads.k, heads.k.size() - static_cast<size_t>(s.rotated));
      heads.v.insert(heads.v.end(), from + s.plain, from + s.plain + s.values);
    }
  return heads;
}

struct Case {
  Shape shape;
  Attrs attrs;
  Array queries, keyValues, krot;

  Case(const Shape &s, DType dtype, bool isInterleaved)
      : shape(s), queries(randoms(dtype, s.queries(), 1)),
        keyValues(randoms(dtype, s.keyValues(), 2)), krot(randoms(dtype, s.krot(), 3)) {
    attrs.rotary_dim = s.rotated;
    attrs.rotary_interleaved = isInterleaved;
    attrs.rotary_base = 100;
    attrs.rotary_magnitude = 1.25;
    attrs.yarn_factor = 4, attrs.yarn_positions = 64, attrs.yarn_round = true;
    attrs.yarn_beta_fast = 8, attrs.yarn_beta_slow = 1;
  }
  KernelRun forward() const {
    KernelRun run("latent_heads");
    run.attrs = attrs;
    run.in(queries).in(keyValues).in(krot);
    DType dtype = queries.dtype;
    run.out(dtype, shape.q()).out(dtype, shape.q()).out(dtype, shape.v());
    return run;
  }
};

/// Angles are rounded to fp32, so the error grows with positions.
Tolerance toleranceOf(const Shape &s) { return {4e-7 * static_cast<double>(s.positions + 4), 1}; }

TEST(LatentHeads, ArePartsOfRowsWithRotatedChannels) {
  for (const Shape &s : kShapes)
    for (DType dtype : kDataTypes)
      for (bool isInterleaved : {false, true}) {
        Case c(s, dtype, isInterleaved);
        std::vector<Array> got = c.forward().run();
        Heads want = headsOf(s, c.attrs, c.queries.values, c.keyValues.values, c.krot.values);
        expectClose(got[0], want.q, toleranceOf(s), "q");
        expectClose(got[1], want.k, toleranceOf(s), "k");
        EXPECT_EQ(got[2].values, want.v) << "values are copied";
      }
}

TEST(LatentHeads, HaveTheGradientsOfTheirRows) {
  for (const Shape &s : kShapes)
    for (DType dtype : kDataTypes) {
      Case c(s, dtype, true);
      Array dq = randoms(dtype, s.q(), 4), dk = randoms(dtype, s.q(), 5);
      Array dv = randoms(dtype, s.v(), 6);
      KernelRun run("latent_heads_bwd");
      run.attrs = c.attrs;
      run.in(dq).in(dk).in(dv);
      run.out(dtype, s.queries()).out(dtype, s.keyValues()).out(dtype, s.krot());
      std::vector<Array> got = run.run();
      auto loss = [&](const Vector &queries, const Vector &keyValues, const Vector &krot) {
        Heads heads = headsOf(s, c.attrs, queries, keyValues, krot);
        return inner(dq.values, heads.q) + inner(dk.values, heads.k) + inner(dv.values, heads.v);
      };
      Tolerance tolerance = {1e-5, 4};
      const Vector &q = c.queries.values, &kv = c.keyValues.values, &rot = c.krot.values;
      expectGradient(
          got[0], q, [&](const Vector &x) { return loss(x, kv, rot); }, tolerance, "queries", 40);
      expectGradient(
          got[1], kv, [&](const Vector &x) { return loss(q, x, rot); }, tolerance,
          "keys and values", 40);
      expectGradient(
          got[2], rot, [&](const Vector &x) { return loss(q, kv, x); }, tolerance,
          "rotated channels", 40);
    }
}

/// With positions, each row has the angles of its given position.
TEST(LatentHeads, RowsAreRotatedByPositions) {
  Shape s = {2, 4, 2, 3, 4, 5};
  Case c(s, DType::F32, true);
  Case twice(s, DType::F32, true);
  twice.attrs.rotary_interpolation = 0.5;
  KernelRun run = c.forward();
  std::vector<double> places;
  for (int64_t row = 0; row < s.rows(); ++row)
    places.push_back(static_cast<double>(2 * (row % s.positions)));
  run.in(array(DType::I32, {s.batch, s.positions}, places));
  std::vector<Array> got = run.run(), want = twice.forward().run();
  for (size_t r = 0; r < 3; ++r)
    EXPECT_EQ(got[r].values, want[r].values) << r;
}

TEST(LatentHeads, RefuseHeadsWithoutPlainChannels) {
  Shape s = {1, 2, 1, 4, 4, 4};
  Case c(s, DType::F32, true);
  c.attrs.rotary_dim = 8;
  EXPECT_STREQ(c.forward().refusal(), "extents of operands and results do not fit each other");
}

TEST(Columns, AreTakenApartAndPutTogether) {
  for (DType dtype : kDataTypes) {
    Array x = randoms(dtype, {2, 3, 11}, 7);
    KernelRun split("split_columns"), join("join_columns");
    split.in(x).out(dtype, {2, 3, 4}).out(dtype, {2, 3, 7});
    std::vector<Array> parts = split.run();
    for (int64_t row = 0; row < 6; ++row)
      for (int64_t i = 0; i < 11; ++i)
        EXPECT_EQ((i < 4 ? parts[0][row * 4 + i] : parts[1][row * 7 + i - 4]), x[row * 11 + i]);
    join.in(parts[0]).in(parts[1]).out(dtype, x.shape);
    EXPECT_EQ(join.run()[0].values, x.values);
  }
}

TEST(Columns, OfPartsThatAreNotTheWholeAreRefused) {
  KernelRun split("split_columns");
  split.in(randoms(DType::F32, {3, 11}, 1)).out(DType::F32, {3, 4}).out(DType::F32, {3, 6});
  EXPECT_STREQ(split.refusal(), "extents of operands and results do not fit each other");
}

/// Rows with two groups of units: two units of the first part, then one unit of each other part;
/// the second part has no columns.
TEST(Parts, AreExpandedAndContracted) {
  constexpr int64_t kGroups = 2, kUnits = 4, kRows = 3, kColumns = 5;
  constexpr int kPlaces[kUnits] = {0, 0, -1, 1};
  for (DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    int64_t rows = kGroups * kUnits * kRows;
    Array b = randoms(dtype, {rows, kColumns}, 4), dw = randoms(dtype, {rows, 2 * kColumns}, 5),
          old = randoms(DType::F32, {rows, kColumns}, 6);
    KernelRun expand("expand_parts"), contract("contract_parts");
    for (KernelRun *run : {&expand, &contract}) {
      run->attrs.num_groups = kGroups, run->attrs.units = kUnits, run->attrs.first_units = 2;
      run->attrs.parts = 2, run->attrs.kept = 5;
    }
    Array w = expand.in(b).out(dtype, {rows, 2 * kColumns}).run()[0];
    Array sum = contract.in(dw).accumulate(old).run()[0], made = old;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t c = 0; c < kColumns; ++c) {
        int place = kPlaces[row / kRows % kUnits];
        for (int part = 0; part < 2; ++part)
          EXPECT_EQ(w[(row * 2 + part) * kColumns + c],
                    part == place ? b[row * kColumns + c] : 0.0);
        made.values[static_cast<size_t>(row * kColumns + c)] =
            place < 0 ? 0.0 : dw[(row * 2 + place) * kColumns + c];
      }
    expectAccumulated(sum, made, old);
  }
}

TEST(Parts, OfOtherUnitsAreRefused) {
  KernelRun expand("expand_parts");
  expand.attrs.num_groups = 1, expand.attrs.units = 2, expand.attrs.parts = 1;
  expand.attrs.kept = 4;
  expand.in(randoms(DType::F32, {4, 3}, 1)).out(DType::F32, {4, 3});
  EXPECT_STREQ(expand.refusal(), "kept has bits of other parts");
}

/// Magnitudes, squares, and rows of columns in parts of which the second
/// one is not kept.
struct Scaling {
  static constexpr int64_t kRows = 3, kColumns = 8;
  static constexpr bool kKept[kColumns] = {true, true, false, true, true, true, false, true};
  DType dtype;
  Array x, dy, m, squares;

  explicit Scaling(DType type)
      : dtype(type), x(randoms(type, {kRows, kColumns}, 1)),
        dy(randoms(type, {kRows, kColumns}, 2)), m(randoms(type, {kColumns}, 3)),
        squares(randoms(DType::F32, {kColumns}, 4)) {
    for (double &square : squares.values)
      square = roundTo(DType::F32, square * square);
    squares.values[3] = 0;
  }
  void set(Attrs &attrs) const {
    attrs.num_groups = 2, attrs.units = 4, attrs.first_units = 2, attrs.kept = 5;
  }
  double root(int64_t c) const { return roundTo(dtype, std::sqrt(squares[c])); }
  double scale(int64_t c) const { return !kKept[c] ? 1 : root(c) == 0 ? 0 : m[c] / root(c); }
};

TEST(Columns, AreScaledByMagnitudesOverNorms) {
  for (DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    const Scaling of(dtype);
    KernelRun scale("scale_columns");
    of.set(scale.attrs);
    Array y = scale.in(of.x).in(of.m).in(of.squares).out(dtype, of.x.shape).run()[0];
    KernelRun back("scale_columns_bwd");
    of.set(back.attrs);
    Array old = randoms(DType::F32, {Scaling::kColumns}, 5), dm = old;
    back.in(of.dy).in(of.x).in(of.m).in(of.squares).out(dtype, of.x.shape).accumulate(old);
    std::vector<Array> gradients = back.run();
    Vector ys, dxs;
    for (int64_t i = 0; i < of.x.numel(); ++i) {
      double by = of.scale(i % Scaling::kColumns);
      ys.push_back(of.x[i] * by), dxs.push_back(of.dy[i] * by);
    }
    expectClose(y, ys, {1e-6, 1}, "y");
    expectClose(gradients[0], dxs, {1e-6, 1}, "dx");
    for (int64_t c = 0; c < Scaling::kColumns; ++c) {
      double sum = 0;
      for (int64_t t = 0; t < Scaling::kRows; ++t)
        sum += of.dy[t * Scaling::kColumns + c] * of.x[t * Scaling::kColumns + c];
      bool has = Scaling::kKept[c] && of.root(c) != 0;
      dm.values[static_cast<size_t>(c)] = has ? sum * roundTo(DType::F32, 1 / of.root(c)) : 0;
    }
    expectAccumulated(gradients[1], dm, old);
  }
}

TEST(Columns, HaveTheNormsOfWeightsWithAdapters) {
  constexpr int64_t kRows = 5, kColumns = 11, kRank = 3;
  for (DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    Array w = randoms(dtype, {kRows, kColumns}, 1), b = randoms(dtype, {kRows, kRank}, 2),
          a = randoms(dtype, {kRank, kColumns}, 3);
    KernelRun run("adapter_squares");
    run.attrs.scale = 1.5;
    Array squares = run.in(w).in(b).in(a).out(DType::F32, {kRows}).run()[0];
    Vector want;
    for (int64_t o = 0; o < kRows; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < kColumns; ++i) {
        double v = w[o * kColumns + i];
        for (int64_t j = 0; j < kRank; ++j)
          v += 1.5 * b[o * kRank + j] * a[j * kColumns + i];
        sum += v * v;
      }
      want.push_back(sum);
    }
    expectClose(squares, want, {1e-6, 1}, "squares");
  }
}

TEST(Columns, OfOtherFactorsAreRefused) {
  KernelRun run("adapter_squares");
  run.in(randoms(DType::F32, {4, 3}, 1)).in(randoms(DType::F32, {4, 2}, 1));
  run.in(randoms(DType::F32, {1, 3}, 1)).out(DType::F32, {4});
  EXPECT_STREQ(run.refusal(), "extents of operands and results do not fit each other");
}

// ---- frequencies ----

/// Rotates x[1,S,1,D] with ones in the first halves, so that the result has the cosines and sines.
void expectAngles(const Attrs &attrs, int64_t positions) {
  Array x = constant(DType::F32, {1, positions, 1, attrs.rotary_dim}, 0);
  for (int64_t i = 0; i < x.numel(); ++i)
    if (i % attrs.rotary_dim < attrs.rotary_dim / 2)
      x.values[static_cast<size_t>(i)] = 1;
  KernelRun run("rope");
  run.attrs = attrs;
  Vector want = x.values;
  for (int64_t s = 0; s < positions; ++s)
    turn(attrs, static_cast<double>(s), want, static_cast<size_t>(s * attrs.rotary_dim));
  Array got = run.in(x).out(DType::F32, x.shape).run()[0];
  expectClose(got, want, {4e-7 * static_cast<double>(positions + 4), 1}, "angles");
}

TEST(Rotary, PositionsAreDivided) {
  Attrs attrs;
  attrs.rotary_dim = 8;
  attrs.rotary_interpolation = 2.5;
  expectAngles(attrs, 40);
}

TEST(Rotary, YarnShrinksFrequenciesOfFewTurns) {
  Attrs attrs;
  attrs.rotary_dim = 64;
  attrs.yarn_factor = 32, attrs.yarn_positions = 4096;
  attrs.yarn_beta_fast = 32, attrs.yarn_beta_slow = 1;
  attrs.rotary_base = 150000;
  attrs.rotary_magnitude = 0.1 * std::log(32.0) + 1;
  for (bool isRounded : {false, true}) {
    attrs.yarn_round = isRounded;
    expectAngles(attrs, 50);
  }
  attrs.yarn_positions = 6; // less than a whole turn, so both ends of the range are the first pair
  expectAngles(attrs, 50);
}

TEST(Rotary, FrequenciesAreScaledInOneWay) {
  KernelRun run("rope");
  run.attrs.rotary_dim = 4;
  run.attrs.yarn_factor = 2, run.attrs.yarn_positions = 8;
  run.attrs.yarn_beta_fast = 32, run.attrs.yarn_beta_slow = 1;
  run.in(randoms(DType::F32, {1, 2, 1, 4}, 1)).out(DType::F32, {1, 2, 1, 4});
  EXPECT_EQ(run.refusal(), nullptr);
  run.attrs.rotary_scaling = 8;
  EXPECT_STREQ(run.refusal(), "frequencies are scaled in two ways");
  run.attrs.rotary_scaling = 1;
  run.attrs.yarn_beta_slow = 33;
  EXPECT_STREQ(run.refusal(), "yarn_beta_slow is not between 0 and yarn_beta_fast");
}

} // namespace
} // namespace shardc::kernels::test
