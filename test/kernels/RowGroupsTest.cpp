// Compares ops on rows in groups with plain loops in fp64. Rows that are not counted are NaN in
// operands, and must not change in results.
#include "test/kernels/Harness.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Numbers of rows of each group, in slots of `slotRows` rows.
struct Layout {
  int64_t slots, runs, slotRows;
  std::vector<double> counts;

  int64_t bound() const { return slots * slotRows; }
  Array array() const { return test::array(DType::I32, {slots, runs}, counts); }
  /// The group of a row, or -1 if the row is not counted.
  int64_t groupOf(int64_t row) const {
    int64_t slot = row / slotRows, left = row % slotRows;
    for (int64_t run = 0; run < runs; ++run) {
      auto count = static_cast<int64_t>(counts[static_cast<size_t>(slot * runs + run)]);
      if (left < count)
        return run;
      left -= count;
    }
    return -1;
  }
};

/// One slot and one group; groups without rows, including the first and the last; full and partly
/// filled slots; more rows than are computed at a time.
const Layout kLayouts[] = {{1, 1, 5, {3}},
                           {1, 4, 9, {0, 5, 0, 2}},
                           {1, 4, 9, {3, 0, 6, 0}},
                           {3, 2, 4, {4, 0, 1, 3, 0, 0}},
                           {2, 3, 6, {1, 2, 3, 2, 0, 1}},
                           {1, 3, 1300, {601, 0, 555}}};

/// Random numbers, and NaN in rows that are not counted.
Array rowsOf(const Layout &layout, DType dtype, int64_t cols, uint64_t seed) {
  Array rows = randoms(dtype, {layout.bound(), cols}, seed);
  for (int64_t i = 0; i < rows.numel(); ++i)
    if (layout.groupOf(i / cols) < 0)
      rows.values[static_cast<size_t>(i)] = kNan;
  return rows;
}

/// Expects `want` in counted rows, and that the NaN in all other rows remain.
void expectRows(const Layout &layout, const Array &got, const std::vector<double> &want,
                Tolerance tolerance) {
  Array there = got;
  int64_t cols = got.shape[1];
  for (int64_t i = 0; i < got.numel(); ++i)
    if (layout.groupOf(i / cols) < 0) {
      EXPECT_TRUE(std::isnan(got[i])) << "row " << i / cols << " is not there and was written";
      there.values[static_cast<size_t>(i)] = 0;
    }
  expectClose(there, want, tolerance, "rows that are there");
}

Tolerance toleranceOf(DType dtype, int64_t terms) {
  return {(dtype == DType::F32 ? 1e-6 : 1e-4) * static_cast<double>(terms), 2};
}

TEST(GroupedMatMul, IsTheProductOfEachRunWithItsMatrix) {
  for (const Layout &layout : kLayouts)
    for (DType dtype : kDataTypes)
      for (bool isTransposed : {false, true}) {
        int64_t k = 7, m = 5;
        Array a = rowsOf(layout, dtype, k, 1);
        Array b = randoms(dtype, {layout.runs, isTransposed ? m : k, isTransposed ? k : m}, 2);
        KernelRun run("grouped_matmul");
        run.attrs.trans_b = isTransposed;
        run.in(a).in(b).in(layout.array()).over(constant(dtype, {layout.bound(), m}, kNan));
        std::vector<double> want(static_cast<size_t>(layout.bound() * m));
        for (int64_t row = 0; row < layout.bound(); ++row)
          for (int64_t c = 0, e = layout.groupOf(row); c < m && e >= 0; ++c)
            for (int64_t i = 0; i < k; ++i)
              want[static_cast<size_t>(row * m + c)] +=
                  a[row * k + i] * b[e * k * m + (isTransposed ? c * k + i : i * m + c)];
        expectRows(layout, run.run()[0], want, toleranceOf(dtype, k));
      }
}

TEST(GroupedMatMul, GradientOfAMatrixIsTheSumOverTheRowsOfItsRun) {
  for (const Layout &layout : kLayouts)
    for (DType dtype : kDataTypes) {
      int64_t k = 6, m = 5;
      Array a = rowsOf(layout, dtype, k, 3), b = rowsOf(layout, dtype, m, 4);
      KernelRun run("grouped_matmul_bwd");
      run.in(a).in(b).in(layout.array()).out(DType::F32, {layout.runs, k, m});
      std::vector<double> want(static_cast<size_t>(layout.runs * k * m));
      for (int64_t row = 0; row < layout.bound(); ++row)
        for (int64_t i = 0, e = layout.groupOf(row); i < k * m && e >= 0; ++i)
          want[static_cast<size_t>(e * k * m + i)] += a[row * k + i / m] * b[row * m + i % m];
      Array contribution = run.run()[0];
      expectClose(contribution, want, {1e-5 * static_cast<double>(layout.slotRows), 2}, "dw");

      Array old = randoms(DType::F32, {layout.runs, k, m}, 5);
      KernelRun again("grouped_matmul_bwd");
      again.in(a).in(b).in(layout.array()).accumulate(old);
      expectAccumulated(again.run()[0], contribution, old);
    }
}

/// The squares are of the stored elements, including the addends.
TEST(GroupedMatMul, SquaresAreThoseOfTheGradientAsItIsStored) {
  for (const Layout &layout : kLayouts)
    for (DType dtype : kDataTypes)
      for (bool adds : {false, true}) {
        int64_t k = 6, m = 5;
        Array a = rowsOf(layout, dtype, k, 3), b = rowsOf(layout, dtype, m, 4);
        Array old = randoms(dtype, {layout.runs, k, m}, 5);
        std::vector<Array> got[2];
        for (bool squares : {false, true}) {
          KernelRun run(squares ? "grouped_matmul_bwd_squares" : "grouped_matmul_bwd");
          run.in(a).in(b).in(layout.array());
          adds ? run.accumulate(old) : run.out(dtype, {layout.runs, k, m});
          if (squares)
            run.out(DType::F64, {1});
          got[squares ? 1 : 0] = run.run();
        }
        EXPECT_EQ(got[1][0].values, got[0][0].values);
        double want = 0;
        for (int64_t i = 0; i < layout.runs * k * m; ++i)
          want += got[0][0][i] * got[0][0][i];
        EXPECT_NEAR(got[1][1][0], want, 1e-12 * want);
      }
}

/// Adds the weights of rows to the operands of grouped_bias or its gradient, if there are any.
void giveWeights(KernelRun &run, const Array &weights, bool isWeighted) {
  if (isWeighted)
    run.in(weights);
}

TEST(GroupedBias, AddsTheBiasOfEachRun) {
  for (const Layout &layout : kLayouts)
    for (DType dtype : kDataTypes)
      for (bool isWeighted : {false, true}) {
        int64_t m = 13;
        Array x = rowsOf(layout, dtype, m, 1), bias = randoms(dtype, {layout.runs, m}, 2);
        Array weights = rowsOf(layout, DType::F32, 1, 3);
        KernelRun run("grouped_bias");
        run.in(x).in(bias).in(layout.array());
        giveWeights(run, weights, isWeighted);
        run.over(constant(dtype, {layout.bound(), m}, kNan));
        std::vector<double> want(static_cast<size_t>(layout.bound() * m));
        for (int64_t i = 0; i < layout.bound() * m; ++i)
          if (int64_t e = layout.groupOf(i / m); e >= 0)
            want[static_cast<size_t>(i)] =
                x[i] + bias[e * m + i % m] * (isWeighted ? weights[i / m] : 1.0);
        expectRows(layout, run.run()[0], want, toleranceOf(dtype, 1));
      }
}

TEST(GroupedBias, InAProductHasTheSameBits) {
  for (const Layout &layout : kLayouts)
    for (DType dtype : kDataTypes)
      for (bool isWeighted : {false, true}) {
        int64_t k = 6, m = 13;
        Array a = rowsOf(layout, dtype, k, 1), bias = randoms(dtype, {layout.runs, m}, 2);
        Array b = randoms(dtype, {layout.runs, m, k}, 3);
        Array weights = rowsOf(layout, DType::F32, 1, 4);
        Array rows = constant(dtype, {layout.bound(), m}, kNan);
        KernelRun product("grouped_matmul"), sum("grouped_bias"), both("grouped_matmul_bias");
        product.attrs.trans_b = both.attrs.trans_b = true;
        product.in(a).in(b).in(layout.array()).over(rows);
        sum.in(product.run()[0]).in(bias).in(layout.array());
        both.in(a).in(b).in(layout.array()).in(bias);
        giveWeights(sum, weights, isWeighted);
        giveWeights(both, weights, isWeighted);
        sum.over(rows), both.over(rows);
        std::vector<double> want;
        Array apart = sum.run()[0];
        for (int64_t i = 0; i < apart.numel(); ++i)
          want.push_back(layout.groupOf(i / m) >= 0 ? apart[i] : 0);
        expectRows(layout, both.run()[0], want, {0, 0});
      }
}

TEST(GroupedBias, GradientOfABiasIsTheSumOverTheRowsOfItsRun) {
  for (const Layout &layout : kLayouts)
    for (DType dtype : kDataTypes)
      for (bool isWeighted : {false, true}) {
        int64_t m = 13;
        Array dy = rowsOf(layout, dtype, m, 1), weights = rowsOf(layout, DType::F32, 1, 2);
        KernelRun run("grouped_bias_bwd");
        run.in(dy).in(layout.array());
        giveWeights(run, weights, isWeighted);
        run.out(DType::F32, {layout.runs, m});
        std::vector<double> want(static_cast<size_t>(layout.runs * m));
        for (int64_t i = 0; i < layout.bound() * m; ++i)
          if (int64_t e = layout.groupOf(i / m); e >= 0)
            want[static_cast<size_t>(e * m + i % m)] += dy[i] * (isWeighted ? weights[i / m] : 1.0);
        Array contribution = run.run()[0];
        expectClose(contribution, want, {1e-6 * static_cast<double>(layout.slotRows), 2}, "dbias");

        Array old = randoms(DType::F32, {layout.runs, m}, 3);
        KernelRun again("grouped_bias_bwd");
        again.in(dy).in(layout.array());
        giveWeights(again, weights, isWeighted);
        again.accumulate(old);
        expectAccumulated(again.run()[0], contribution, old);
      }
}

TEST(GroupedBias, GradientOfAWeightIsTheProductOfItsRowWithTheBias) {
  for (const Layout &layout : kLayouts)
    for (DType dtype : kDataTypes) {
      int64_t m = 13;
      Array dy = rowsOf(layout, dtype, m, 1), bias = randoms(dtype, {layout.runs, m}, 2);
      KernelRun run("grouped_bias_dot");
      run.in(dy).in(bias).in(layout.array());
      run.over(constant(DType::F32, {layout.bound(), 1}, kNan));
      std::vector<double> want(static_cast<size_t>(layout.bound()));
      for (int64_t i = 0; i < layout.bound() * m; ++i)
        if (int64_t e = layout.groupOf(i / m); e >= 0)
          want[static_cast<size_t>(i / m)] += dy[i] * bias[e * m + i % m];
      expectRows(layout, run.run()[0], want, toleranceOf(DType::F32, m));
    }
}

TEST(GroupedBias, RefusesOtherShapes) {
  KernelRun run("grouped_bias");
  run.in(constant(DType::F32, {6, 2}, 0)).in(constant(DType::F32, {4, 2}, 0));
  run.in(constant(DType::I32, {2, 3}, 0)).out(DType::F32, {6, 2});
  EXPECT_STREQ(run.refusal(), "extents of operands and results do not fit each other");
  KernelRun dot("grouped_bias_dot");
  dot.in(constant(DType::F32, {6, 2}, 0)).in(constant(DType::F32, {3, 2}, 0));
  dot.in(constant(DType::I32, {2, 3}, 0)).out(DType::F32, {5, 1});
  EXPECT_STREQ(dot.refusal(), "extents of operands and results do not fit each other");
}

/// Counts beyond a slot's capacity never reach rows of another slot.
TEST(GroupedMatMul, NoRunLeavesItsSlot) {
  Layout layout = {2, 2, 3, {2, 9, -4, 9}};
  Array a = constant(DType::F32, {6, 1}, 1), b = array(DType::F32, {2, 1, 1}, {1, 10});
  KernelRun run("grouped_matmul");
  run.in(a).in(b).in(layout.array()).out(DType::F32, {6, 1});
  EXPECT_EQ(run.run()[0].values, (std::vector<double>{1, 1, 10, 10, 10, 10}));
}

TEST(GroupedMatMul, RefusesOtherShapes) {
  KernelRun run("grouped_matmul");
  run.in(constant(DType::F32, {6, 2}, 0)).in(constant(DType::F32, {3, 2, 4}, 0));
  run.in(constant(DType::I32, {4, 3}, 0)).out(DType::F32, {6, 4});
  EXPECT_STREQ(run.refusal(), "the rows do not consist of equal slots");
  KernelRun bwd("grouped_matmul_bwd");
  bwd.in(constant(DType::F32, {6, 2}, 0)).in(constant(DType::F32, {6, 4}, 0));
  bwd.in(constant(DType::I32, {2, 3}, 0)).out(DType::F32, {2, 2, 4});
  EXPECT_STREQ(bwd.refusal(), "extents of operands and results do not fit each other");
}

/// The expected results of make_runs: rows sorted by run, in their order, up to the capacity.
struct SortedRows {
  std::vector<double> counts, places;

  SortedRows(const std::vector<double> &ids, int64_t slots, int64_t runs, int64_t slotRows)
      : counts(static_cast<size_t>(slots * runs)), places(ids.size(), -1) {
    std::vector<size_t> order(ids.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return ids[a] < ids[b]; });
    std::vector<int64_t> used(static_cast<size_t>(slots));
    for (size_t i : order) {
      if (ids[i] < 0 || ids[i] >= static_cast<double>(slots * runs))
        continue;
      auto id = static_cast<size_t>(ids[i]), slot = id / static_cast<size_t>(runs);
      if (used[slot] == slotRows) {
        places[i] = -2;
        continue;
      }
      places[i] = static_cast<double>(static_cast<int64_t>(slot) * slotRows + used[slot]++);
      ++counts[id];
    }
  }
};

TEST(MakeRuns, SortsRowsByRun) {
  struct {
    int64_t rows, choices, slots, runs, bound;
  } cases[] = {
      {9, 1, 1, 1, 9}, {8, 2, 1, 5, 16}, {8, 2, 4, 2, 32}, {8, 2, 2, 3, 10}, {5, 3, 6, 1, 6}};
  for (auto [rows, choices, slots, runs, bound] : cases) {
    Array ids = indices(DType::I32, {rows, choices}, 7, slots * runs);
    ids.values[1] = slots * runs, ids.values[2] = -1; // no runs
    KernelRun run("make_runs");
    run.attrs.bound = bound;
    run.in(ids).out(DType::I32, {slots, runs}).out(DType::I32, {rows, choices});
    std::vector<Array> got = run.run();
    SortedRows want(ids.values, slots, runs, bound / slots);
    EXPECT_EQ(got[0].values, want.counts);
    EXPECT_EQ(got[1].values, want.places);
  }
}

TEST(MakeRuns, RefusesABoundThatSlotsDoNotDivide) {
  KernelRun run("make_runs");
  run.attrs.bound = 7;
  run.in(indices(DType::I32, {3, 1}, 1, 4)).out(DType::I32, {2, 2}).out(DType::I32, {3, 1});
  EXPECT_STREQ(run.refusal(), "the rows do not consist of equal slots");
  run.attrs.bound = 0;
  EXPECT_STREQ(run.refusal(), "the bound is not from 1 to 2^31 - 1 rows");
}

TEST(Combine, IsNoNumberWhereARowHasFoundNoRoom) {
  KernelRun run("combine");
  run.in(constant(DType::F32, {4, 2}, 1)).in(array(DType::I32, {3, 2}, {0, 1, -1, 2, -2, 3}));
  std::vector<double> got = run.out(DType::F32, {3, 2}).run()[0].values;
  EXPECT_EQ(std::vector(got.begin(), got.begin() + 4), (std::vector<double>{2, 2, 1, 1}));
  EXPECT_TRUE(std::isnan(got[4]) && std::isnan(got[5]));
}

/// Rows with two choices each, some of which have no place, and the values at the places.
struct Batch {
  static constexpr int64_t kRows = 5, kChoices = 2, kCols = 600, kBound = 12;
  Layout layout = {1, 1, kBound, {8}};
  Array places = array(DType::I32, {kRows, kChoices}, {3, 0, -1, 5, 7, 1, -1, -1, 2, 4});
  Array x, y, weights;

  explicit Batch(DType dtype)
      : x(randoms(dtype, {kRows, kCols}, 1)), y(rowsOf(layout, dtype, kCols, 2)),
        weights(randoms(DType::F32, {kRows, kChoices}, 3)) {
    for (int64_t c = 0; c < kCols; ++c) // a counted row without an owner
      y.values[static_cast<size_t>(6 * kCols + c)] = kNan;
  }
  int64_t place(int64_t i) const { return static_cast<int64_t>(places[i]); }
};

TEST(Dispatch, GivesEachPlaceItsRowAndWritesNoOther) {
  for (DType dtype : kDataTypes)
    for (bool isWeighted : {false, true}) {
      Batch batch(dtype);
      KernelRun run("dispatch");
      run.in(batch.x).in(batch.places);
      if (isWeighted)
        run.in(batch.weights);
      run.over(constant(dtype, {Batch::kBound, Batch::kCols}, kNan));
      Array got = run.run()[0];
      for (int64_t i = 0; i < batch.places.numel(); ++i)
        for (int64_t c = 0; c < Batch::kCols && batch.place(i) >= 0; ++c) {
          int64_t at = batch.place(i) * Batch::kCols + c;
          double from = batch.x[i / Batch::kChoices * Batch::kCols + c];
          ASSERT_NEAR(got[at], from * (isWeighted ? batch.weights[i] : 1), 4e-3) << i;
          got.values[static_cast<size_t>(at)] = kNan;
        }
      for (double other : got.values)
        ASSERT_TRUE(std::isnan(other)) << "a row without a place was written";
    }
}

TEST(Combine, AddsTheRowsAtThePlaces) {
  for (DType dtype : kDataTypes)
    for (bool isWeighted : {false, true}) {
      Batch batch(dtype);
      KernelRun run("combine");
      run.in(batch.y).in(batch.places);
      if (isWeighted)
        run.in(batch.weights);
      run.out(dtype, {Batch::kRows, Batch::kCols});
      std::vector<double> want(static_cast<size_t>(Batch::kRows * Batch::kCols));
      for (int64_t i = 0; i < batch.places.numel(); ++i)
        for (int64_t c = 0; c < Batch::kCols && batch.place(i) >= 0; ++c)
          want[static_cast<size_t>(i / Batch::kChoices * Batch::kCols + c)] +=
              batch.y[batch.place(i) * Batch::kCols + c] * (isWeighted ? batch.weights[i] : 1);
      expectClose(run.run()[0], want, {1e-6, 2}, "x");
    }
}

TEST(Combine, GradientOfAWeightIsTheProductOfRowAndGradient) {
  for (DType dtype : kDataTypes) {
    Batch batch(dtype);
    KernelRun run("combine_bwd");
    run.in(batch.y).in(batch.x).in(batch.places).out(dtype, {Batch::kRows, Batch::kChoices});
    std::vector<double> want(static_cast<size_t>(batch.places.numel()));
    for (int64_t i = 0; i < batch.places.numel(); ++i)
      for (int64_t c = 0; c < Batch::kCols && batch.place(i) >= 0; ++c)
        want[static_cast<size_t>(i)] += batch.y[batch.place(i) * Batch::kCols + c] *
                                        batch.x[i / Batch::kChoices * Batch::kCols + c];
    Array contribution = run.run()[0];
    expectClose(contribution, want, {1e-5, 2}, "dweights");

    Array old = randoms(DType::F32, {Batch::kRows, Batch::kChoices}, 5);
    KernelRun once("combine_bwd"), again("combine_bwd");
    once.in(batch.y).in(batch.x).in(batch.places).out(DType::F32, old.shape);
    again.in(batch.y).in(batch.x).in(batch.places).accumulate(old);
    expectAccumulated(again.run()[0], once.run()[0], old);
  }
}

/// A gated unit, and the forward and backward ops that multiply its rows by weights.
struct WeightedUnit {
  const char *op, *back;
  double slope, clamp, offset;

  /// y with its derivatives by gate and up.
  struct Value {
    double y, dGate, dUp;
  };
  Value at(double gate, double up) const {
    double g = clamp > 0 ? std::min(gate, clamp) : gate;
    double u = clamp > 0 ? std::clamp(up, -clamp, clamp) : up;
    double s = 1 / (1 + std::exp(-slope * g));
    return {g * s * (u + offset), g < gate ? 0 : (u + offset) * s * (1 + slope * g * (1 - s)),
            u != up ? 0 : g * s};
  }
  void setAttributes(KernelRun &run) const {
    run.attrs.clamp = clamp, run.attrs.linear_offset = offset;
  }
};
constexpr WeightedUnit kWeightedUnits[] = {
    {"weighted_swiglu", "weighted_swiglu_bwd", 1, 0, 0},
    {"weighted_quick_geglu", "weighted_quick_geglu_bwd", 1.702, 0.7, 1},
    {"weighted_quick_geglu", "weighted_quick_geglu_bwd", 1.702, 0, -0.5}};

TEST(WeightedUnits, MultiplyEachRowOfTheUnitByItsWeight) {
  constexpr int64_t kRows = 5, kCols = 700; // more than a block
  for (const WeightedUnit &unit : kWeightedUnits)
    for (DType dtype : kDataTypes) {
      Array x = randoms(dtype, {kRows, 2 * kCols}, 1), weights = randoms(DType::F32, {kRows, 1}, 2);
      KernelRun run(unit.op);
      unit.setAttributes(run);
      run.in(x).in(weights).out(dtype, {kRows, kCols});
      std::vector<double> want;
      for (int64_t i = 0; i < kRows * kCols; ++i) {
        int64_t gate = i / kCols * 2 * kCols + i % kCols;
        want.push_back(unit.at(x[gate], x[gate + kCols]).y * weights[i / kCols]);
      }
      expectClose(run.run()[0], want, {1e-5, 4}, unit.op);
    }
}

TEST(WeightedUnits, GradientsAreOfGateUpAndWeight) {
  constexpr int64_t kRows = 5, kCols = 700;
  for (const WeightedUnit &unit : kWeightedUnits)
    for (DType dtype : kDataTypes) {
      Array x = randoms(dtype, {kRows, 2 * kCols}, 3), dy = randoms(dtype, {kRows, kCols}, 4);
      Array weights = randoms(DType::F32, {kRows, 1}, 5);
      KernelRun run(unit.back);
      unit.setAttributes(run);
      run.in(dy).in(x).in(weights).out(dtype, x.shape).out(DType::F32, {kRows, 1});
      run.out(dtype, dy.shape);
      std::vector<double> dx(static_cast<size_t>(x.numel())), dweights(kRows), y;
      for (int64_t i = 0; i < dy.numel(); ++i) {
        auto row = static_cast<size_t>(i / kCols);
        auto gate = static_cast<size_t>(i / kCols * 2 * kCols + i % kCols);
        WeightedUnit::Value at =
            unit.at(x[static_cast<int64_t>(gate)], x[static_cast<int64_t>(gate) + kCols]);
        double d = dy[i] * weights[i / kCols];
        dx[gate] = d * at.dGate;
        dx[gate + kCols] = d * at.dUp;
        dweights[row] += dy[i] * at.y;
        y.push_back(at.y * weights[i / kCols]);
      }
      std::vector<Array> got = run.run();
      expectClose(got[0], dx, {1e-5, 4}, "dx");
      expectClose(got[1], dweights, {1e-5, 4}, "dweights");
      expectClose(got[2], y, {1e-5, 4}, "y");
    }
}

TEST(WeightedUnits, MakeTheSameUnitAgainAndRefuseOtherShapes) {
  for (const WeightedUnit &unit : kWeightedUnits) {
    Array x = randoms(DType::BF16, {6, 80}, 6), dy = randoms(DType::BF16, {6, 40}, 7);
    Array weights = randoms(DType::F32, {6, 1}, 8);
    KernelRun once(unit.op), again(unit.back);
    unit.setAttributes(once), unit.setAttributes(again);
    once.in(x).in(weights).out(DType::BF16, dy.shape);
    again.in(dy).in(x).in(weights).out(DType::BF16, x.shape).out(DType::F32, {6, 1});
    again.out(DType::BF16, dy.shape);
    Array first = once.run()[0], second = again.run()[2];
    for (int64_t i = 0; i < first.numel(); ++i)
      ASSERT_EQ(first[i], second[i]) << i;
    KernelRun run(unit.op);
    run.in(x).in(constant(DType::F32, {5, 1}, 0)).out(DType::BF16, dy.shape);
    EXPECT_STREQ(run.refusal(), "extents of operands and results do not fit each other");
  }
  KernelRun back("weighted_swiglu_bwd");
  back.in(constant(DType::F32, {6, 4}, 0)).in(constant(DType::F32, {6, 8}, 0));
  back.in(constant(DType::F32, {6, 1}, 0)).in(constant(DType::I32, {4, 3}, 0));
  back.out(DType::F32, {6, 8}).out(DType::F32, {6, 1});
  EXPECT_STREQ(back.refusal(), "the rows do not consist of equal slots");
  KernelRun run("weighted_quick_geglu");
  run.attrs.clamp = -1;
  run.in(constant(DType::F32, {5, 8}, 0)).in(constant(DType::F32, {5, 1}, 0));
  EXPECT_STREQ(run.out(DType::F32, {5, 4}).refusal(), "the clamp is negative");
}

/// The layouts of kLayouts, and one with counts beyond the capacity.
std::vector<Layout> layoutsOfUnits() {
  std::vector<Layout> layouts(std::begin(kLayouts), std::end(kLayouts));
  layouts.push_back({2, 2, 3, {2, 9, -4, 9}});
  return layouts;
}

/// The content of results before the run: exact in all types, and no result of a unit here.
constexpr double kUnwritten = 7;

/// Expects the bits of `all` in counted rows, and that no other row was written.
void expectThoseRows(const Layout &layout, const Array &got, const Array &all) {
  int64_t cols = got.shape[1];
  for (int64_t i = 0; i < got.numel(); ++i)
    ASSERT_EQ(got[i], layout.groupOf(i / cols) < 0 ? kUnwritten : all[i]) << "row " << i / cols;
}

TEST(WeightedUnits, WithCountsMakeTheSameBitsOfRowsThatAreThere) {
  constexpr int64_t kCols = 13;
  for (const WeightedUnit &unit : kWeightedUnits)
    for (const Layout &layout : layoutsOfUnits())
      for (DType dtype : kDataTypes) {
        KernelRun all(unit.op);
        unit.setAttributes(all);
        all.in(rowsOf(layout, dtype, 2 * kCols, 1)).in(rowsOf(layout, DType::F32, 1, 2));
        KernelRun some = all;
        all.out(dtype, {layout.bound(), kCols});
        some.in(layout.array()).over(constant(dtype, {layout.bound(), kCols}, kUnwritten));
        expectThoseRows(layout, some.run()[0], all.run()[0]);
      }
}

TEST(WeightedUnits, WithCountsMakeTheSameGradientsOfRowsThatAreThere) {
  constexpr int64_t kCols = 13;
  for (const WeightedUnit &unit : kWeightedUnits)
    for (const Layout &layout : layoutsOfUnits())
      for (DType dtype : kDataTypes)
        for (bool makesAgain : {false, true}) {
          KernelRun all(unit.back);
          unit.setAttributes(all);
          all.in(rowsOf(layout, dtype, kCols, 1)).in(rowsOf(layout, dtype, 2 * kCols, 2));
          all.in(rowsOf(layout, DType::F32, 1, 3));
          KernelRun some = all;
          some.in(layout.array());
          auto give = [&](DType type, int64_t cols) {
            all.out(type, {layout.bound(), cols});
            some.over(constant(type, {layout.bound(), cols}, kUnwritten));
          };
          give(dtype, 2 * kCols), give(DType::F32, 1);
          if (makesAgain)
            give(dtype, kCols);
          std::vector<Array> got = some.run(), want = all.run();
          for (size_t r = 0; r < got.size(); ++r)
            expectThoseRows(layout, got[r], want[r]);
        }
}

TEST(ScaleRows, MultipliesEachRowByItsWeight) {
  constexpr int64_t kRows = 5, kCols = 700; // more than a block
  for (DType dtype : kDataTypes) {
    Array x = randoms(dtype, {kRows, kCols}, 1), weights = randoms(DType::F32, {kRows, 1}, 2);
    KernelRun run("scale_rows");
    run.in(x).in(weights).out(dtype, x.shape);
    std::vector<double> want;
    for (int64_t i = 0; i < x.numel(); ++i)
      want.push_back(x[i] * weights[i / kCols]);
    expectClose(run.run()[0], want, {1e-6, 2}, "y");
  }
}

TEST(ScaleRows, GradientOfAWeightIsTheProductOfRows) {
  constexpr int64_t kRows = 5, kCols = 700;
  for (DType dtype : kDataTypes) {
    Array x = randoms(dtype, {kRows, kCols}, 3), dy = randoms(dtype, {kRows, kCols}, 4);
    KernelRun run("dot_rows");
    run.in(dy).in(x).out(DType::F32, {kRows, 1});
    std::vector<double> want(kRows);
    for (int64_t i = 0; i < x.numel(); ++i)
      want[static_cast<size_t>(i / kCols)] += x[i] * dy[i];
    expectClose(run.run()[0], want, {1e-6, 2}, "y");
  }
}

TEST(ScaleRows, ProductsOfRowsHaveWeightsOfColumns) {
  constexpr int64_t kRows = 5, kCols = 700;
  for (DType dtype : kDataTypes)
    for (bool zeroCentered : {false, true}) {
      Array a = randoms(dtype, {kRows, kCols}, 3), b = randoms(dtype, {kRows, kCols}, 4),
            w = randoms(dtype, {kCols}, 5);
      KernelRun run("dot_rows");
      run.attrs.scale = 0.25, run.attrs.zero_centered = zeroCentered;
      run.in(a).in(b).in(w).out(DType::F32, {kRows, 1});
      std::vector<double> want(kRows);
      for (int64_t i = 0; i < a.numel(); ++i)
        want[static_cast<size_t>(i / kCols)] +=
            0.25 * a[i] * b[i] * (w[i % kCols] + (zeroCentered ? 1 : 0));
      expectClose(run.run()[0], want, {2e-6, 2}, "y");
    }
}

TEST(Dispatch, RefusesOtherShapes) {
  KernelRun run("dispatch");
  run.in(constant(DType::F32, {4, 8}, 0)).in(constant(DType::I32, {4, 2}, 0));
  run.in(constant(DType::F32, {4, 3}, 0)).out(DType::F32, {9, 8});
  EXPECT_STREQ(run.refusal(), "extents of operands and results do not fit each other");
  KernelRun back("combine");
  back.in(constant(DType::F32, {9, 8}, 0)).in(constant(DType::I32, {4, 2}, 0));
  EXPECT_STREQ(back.out(DType::F32, {5, 8}).refusal(),
               "extents of operands and results do not fit each other");
}

} // namespace
} // namespace shardc::kernels::test
