// Tests Muon if ranks have parts of a matrix (rows or columns), and a shard has some rows of a
// part.
#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/base/NewtonSchulz.h"
#include "test/kernels/Harness.h"

namespace shardc::kernels::test {
namespace {

constexpr int64_t kRows = 24, kColumns = 16;

struct Parts {
  int64_t tensor = 1, shards = 1;
  bool cutsColumns = false;
  std::vector<int32_t> turns = {};

  int64_t rows() const { return cutsColumns ? kRows : kRows / tensor; }
  int64_t columns() const { return cutsColumns ? kColumns / tensor : kColumns; }
  int64_t shard() const { return rows() * columns() / shards; }
  /// The index in the whole matrix of element `at` of a shard.
  int64_t whole(int64_t rank, int64_t shard, int64_t at) const {
    int64_t element = shard * this->shard() + at;
    int64_t row = element / columns(), column = element % columns();
    return cutsColumns ? row * kColumns + rank * columns() + column
                       : (rank * rows() + row) * kColumns + column;
  }
};

KernelRun runOf(std::string_view op, const Parts &parts) {
  KernelRun run(op);
  run.attrs.momentum = 0.9;
  run.attrs.nesterov = true;
  run.attrs.weight_decay = 0.1;
  run.attrs.decoupled = false;
  run.attrs.products = static_cast<int64_t>(NsProducts::Highest);
  run.attrs.largest_matrix = kRows * kColumns;
  run.attrs.tensor_parts = parts.tensor;
  return run;
}

ParamRange rangeOf(const Parts &parts, int64_t rank, int64_t begin, int64_t end) {
  ParamRange range;
  range.end = end - begin, range.inBlock = begin;
  range.key = 1, range.row = parts.columns();
  range.parts = static_cast<int32_t>(parts.tensor), range.part = static_cast<int32_t>(rank);
  range.cutsColumns = parts.cutsColumns;
  std::ranges::copy(parts.turns, range.turns);
  return range;
}

Array stateOfStep() {
  StepState state = {};
  state.applied = 3, state.lr = 0.01f, state.gradScale = 0.5f;
  return stateArray(state);
}

/// Gradient, weights and momentum.
using Operands = std::array<Array, 3>;
Operands operandsOf(const Parts &parts, const Operands &whole, int64_t rank, int64_t shard) {
  Operands own;
  for (size_t k = 0; k < own.size(); ++k) {
    std::vector<double> values;
    for (int64_t i = 0; i < parts.shard(); ++i)
      values.push_back(whole[k][parts.whole(rank, shard, i)]);
    own[k] = array(DType::F32, {parts.shard()}, values);
  }
  return own;
}

/// The rows of each of the interleaved matrices, taken apart without the kernels' code.
std::vector<std::vector<int64_t>> rowsOfMatrices(const std::vector<int32_t> &turns) {
  std::vector<std::vector<int64_t>> rows(std::max<size_t>(turns.size(), 1));
  for (int64_t row = 0; row < kRows;) {
    for (size_t m = 0; m < turns.size(); ++m)
      for (int32_t i = 0; i < turns[m]; ++i)
        rows[m].push_back(row++);
    if (turns.empty())
      rows[0].push_back(row++);
  }
  return rows;
}

/// The weights and momentum that `muon` makes from each matrix alone, in the order of the whole.
std::vector<Array> updatedWhole(const Parts &parts, const Operands &all) {
  std::vector<Array> made = {all[1], all[2]};
  for (const std::vector<int64_t> &rows : rowsOfMatrices(parts.turns)) {
    const auto numel = static_cast<int64_t>(rows.size()) * kColumns;
    auto element = [&](int64_t i) {
      return rows[static_cast<size_t>(i / kColumns)] * kColumns + i % kColumns;
    };
    KernelRun alone = runOf("muon", {});
    alone.ranges = {rangeOf({}, 0, 0, numel)};
    for (const Array &operand : all) {
      std::vector<double> values;
      for (int64_t i = 0; i < numel; ++i)
        values.push_back(operand[element(i)]);
      alone.in(array(DType::F32, {numel}, values));
    }
    std::vector<Array> found = alone.in(stateOfStep()).inPlace(1).inPlace(2).run();
    for (size_t k = 0; k < made.size(); ++k)
      for (int64_t i = 0; i < numel; ++i)
        made[k].values[static_cast<size_t>(element(i))] = found[k][i];
  }
  return made;
}

void needEqualToWhole(const Parts &parts) {
  const std::vector<int64_t> shape = {kRows * kColumns};
  Operands all = {randoms(DType::F32, shape, 1), randoms(DType::F32, shape, 2),
                  randoms(DType::F32, shape, 3)};
  std::vector<Array> expected = updatedWhole(parts, all);
  std::vector<double> updates;
  for (int64_t rank = 0; rank < parts.tensor; ++rank)
    for (int64_t shard = 0; shard < parts.shards; ++shard) {
      Operands own = operandsOf(parts, all, rank, shard);
      KernelRun run = runOf("muon_update", parts);
      run.ranges = {rangeOf(parts, rank, shard * parts.shard(), (shard + 1) * parts.shard())};
      run.in(own[0]).in(own[1]).in(own[2]).in(stateOfStep());
      Array u = run.out(DType::F32, {parts.shard()}).run()[0];
      updates.insert(updates.end(), u.values.begin(), u.values.end());
    }
  Array gathered = array(DType::F32, {kRows * kColumns}, updates);
  for (int64_t rank = 0; rank < parts.tensor; ++rank)
    for (int64_t shard = 0; shard < parts.shards; ++shard) {
      Operands own = operandsOf(parts, all, rank, shard);
      KernelRun run = runOf("muon", parts);
      run.ranges = {rangeOf(parts, rank, shard * parts.shard(), (shard + 1) * parts.shard()),
                    rangeOf(parts, rank, 0, parts.shards * parts.shard())};
      run.rangesOf = {0, 1, 2};
      run.in(own[0]).in(own[1]).in(own[2]).in(stateOfStep()).in(gathered);
      std::vector<Array> found = run.inPlace(1).inPlace(2).run();
      for (int64_t i = 0; i < parts.shard(); ++i) {
        int64_t at = parts.whole(rank, shard, i);
        ASSERT_NEAR(found[0][i], expected[0][at], 1e-6) << rank << " " << shard << " " << i;
        ASSERT_EQ(found[1][i], expected[1][at]);
      }
    }
}

TEST(Muon, PartsOfOtherRanksMakeMatricesWhole) {
  needEqualToWhole({.tensor = 1, .shards = 3});
  for (bool cutsColumns : {false, true}) {
    needEqualToWhole({.tensor = 2, .cutsColumns = cutsColumns});
    needEqualToWhole({.tensor = 2, .shards = 3, .cutsColumns = cutsColumns});
  }
  needEqualToWhole({.tensor = 1, .shards = 4, .turns = {4, 2, 2}});
  needEqualToWhole({.tensor = 3, .shards = 2, .turns = {4, 2, 2}});
}

/// The op for rank `rank`'s part of the matrix. x has all shards of that part.
KernelRun stepOf(std::string_view op, const Parts &parts, int64_t copies, int64_t rank,
                 int64_t shard, int64_t step) {
  KernelRun run = runOf(op, parts);
  run.attrs.largest_matrix = kRows * kRows;
  run.attrs.tensor_parts = 1;
  run.attrs.ns_step = step;
  if (op == "muon_sums")
    run.attrs.sum_ranks = parts.tensor * copies;
  run.ranges = {rangeOf(parts, rank, 0, parts.shards * parts.shard()),
                rangeOf(parts, rank, shard * parts.shard(), (shard + 1) * parts.shard())};
  run.rangesOf = {0, 1, 2};
  return run;
}

/// Executes all Newton-Schulz steps on ranks that have parts of the matrices, each part on `copies`
/// ranks. Returns the result of each part, for the matrices of which the shard has rows.
std::vector<Array> stepsOf(const Parts &parts, int64_t copies, int64_t shard, std::vector<Array> x,
                           const std::vector<Array> &moments) {
  const auto sums = static_cast<size_t>(kRows * kRows * 3);
  for (int64_t step = 0; step <= Attrs().ns_steps; ++step) {
    std::vector<double> all(sums);
    for (size_t rank = 0; rank < x.size(); ++rank) {
      KernelRun run = stepOf("muon_sums", parts, copies, static_cast<int64_t>(rank), shard, step);
      run.in(x[rank]).in(moments[rank]);
      Array own = run.out(DType::F32, {static_cast<int64_t>(sums)}).run()[0];
      for (size_t i = 0; i < sums; ++i)
        all[i] += static_cast<double>(copies) * own.values[i];
    }
    Array added = array(DType::F32, {static_cast<int64_t>(sums)}, all);
    for (size_t rank = 0; rank < x.size(); ++rank) {
      KernelRun run = stepOf("muon_step", parts, copies, static_cast<int64_t>(rank), shard, step);
      run.in(x[rank]).in(moments[rank]).in(added);
      x[rank] = run.out(DType::F32, {x[rank].numel()}).run()[0];
    }
  }
  return x;
}

void needDividedEqualToWhole(const Parts &parts, int64_t copies = 1) {
  const std::vector<int64_t> shape = {kRows * kColumns};
  Operands all = {randoms(DType::F32, shape, 1), randoms(DType::F32, shape, 2),
                  randoms(DType::F32, shape, 3)};
  std::vector<Array> expected = updatedWhole(parts, all);
  std::vector<Array> updates;
  for (int64_t rank = 0; rank < parts.tensor; ++rank) {
    std::vector<double> u;
    for (int64_t shard = 0; shard < parts.shards; ++shard) {
      Operands own = operandsOf(parts, all, rank, shard);
      KernelRun run = runOf("muon_update", parts);
      run.ranges = {rangeOf(parts, rank, shard * parts.shard(), (shard + 1) * parts.shard())};
      run.in(own[0]).in(own[1]).in(own[2]).in(stateOfStep());
      Array made = run.out(DType::F32, {parts.shard()}).run()[0];
      u.insert(u.end(), made.values.begin(), made.values.end());
    }
    updates.push_back(array(DType::F32, {static_cast<int64_t>(u.size())}, u));
  }
  for (int64_t shard = 0; shard < parts.shards; ++shard) {
    std::vector<Array> moments;
    for (int64_t rank = 0; rank < parts.tensor; ++rank)
      moments.push_back(operandsOf(parts, all, rank, shard)[2]);
    std::vector<Array> left = stepsOf(parts, copies, shard, updates, moments);
    for (int64_t rank = 0; rank < parts.tensor; ++rank) {
      Operands own = operandsOf(parts, all, rank, shard);
      KernelRun run = runOf("muon", parts);
      run.attrs.divided = true, run.attrs.tensor_parts = 1, run.attrs.largest_matrix = 0;
      run.ranges = {rangeOf(parts, rank, shard * parts.shard(), (shard + 1) * parts.shard()),
                    rangeOf(parts, rank, 0, parts.shards * parts.shard())};
      run.rangesOf = {0, 1, 2};
      run.in(own[0]).in(own[1]).in(own[2]).in(stateOfStep()).in(left[static_cast<size_t>(rank)]);
      std::vector<Array> found = run.inPlace(1).inPlace(2).run();
      for (int64_t i = 0; i < parts.shard(); ++i) {
        int64_t at = parts.whole(rank, shard, i);
        ASSERT_NEAR(found[0][i], expected[0][at], 2e-6) << rank << " " << shard << " " << i;
        ASSERT_EQ(found[1][i], expected[1][at]);
      }
    }
  }
}

TEST(Muon, RanksTakeTheStepsOfTheirPartsTogether) {
  needDividedEqualToWhole({.tensor = 1});
  needDividedEqualToWhole({.tensor = 1}, /*copies=*/2);
  for (bool cutsColumns : {false, true}) {
    needDividedEqualToWhole({.tensor = 2, .cutsColumns = cutsColumns});
    needDividedEqualToWhole({.tensor = 2, .shards = 3, .cutsColumns = cutsColumns}, /*copies=*/2);
  }
  needDividedEqualToWhole({.tensor = 3, .shards = 2, .turns = {4, 2, 2}});
}

/// Ranks have parts of a group of queries, keys and values, so that some have no row of a matrix.
/// Random groups, numbers of ranks and shards.
TEST(Muon, RanksHavePartsOfGroups) {
  std::mt19937 draw(7);
  auto oneOf = [&](std::vector<int64_t> from) { return from[draw() % from.size()]; };
  for (int i = 0; i < 12; ++i) {
    Parts parts{.tensor = oneOf({2, 3, 4, 6, 8}), .cutsColumns = draw() % 4 == 0};
    if (parts.cutsColumns)
      parts.tensor = 2;
    parts.shards = oneOf({1, parts.rows()});
    const auto period = static_cast<int32_t>(kRows / oneOf({1, 2, 3}));
    const auto keys = static_cast<int32_t>(1 + draw() % 3);
    parts.turns = {period - 2 * keys, keys, keys};
    SCOPED_TRACE(testing::Message() << parts.tensor << " ranks, " << parts.shards << " shards, "
                                    << period << " rows of a group, " << keys << " of keys");
    needEqualToWhole(parts);
    needDividedEqualToWhole(parts);
  }
}

TEST(Muon, RefusesUpdatesThatLackTheShard) {
  Parts parts{.tensor = 1, .shards = 2};
  KernelRun run = runOf("muon", parts);
  run.ranges = {rangeOf(parts, 0, parts.shard(), 2 * parts.shard()),
                rangeOf(parts, 0, 0, parts.shard())};
  run.rangesOf = {0, 1, 2};
  Array values = constant(DType::F32, {parts.shard()}, 0.5);
  run.in(values).in(values).in(values).in(stateOfStep()).in(values);
  EXPECT_STREQ(run.inPlace(1).inPlace(2).refusal(),
               "the updates of matrices do not have the shard's");
}

} // namespace
} // namespace shardc::kernels::test
