// Compares Muon's CUDA kernels with the host's: many matrices, parts of them, symmetric products.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/base/NewtonSchulz.h"
#include "test/kernels/Harness.h"
#include "test/kernels/cuda/DeviceRun.h"

namespace shardc::kernels::test {
namespace {

/// Matrices of several shapes, more of one shape than fit into a batch, and interleaved rows of
/// several matrices; padding between them stays.
TEST(CudaMuon, TakesEachMatrix) {
  SKIP_WITHOUT_GPU();
  for (bool nesterov : {false, true}) {
    DeviceRun run("muon", DType::F32, bench::kSmallModel);
    Call &call = run.call();
    std::vector<ParamRange> ranges;
    auto add = [&](int64_t rows, int64_t row, std::array<int32_t, 3> turns = {}) {
      ParamRange &range = ranges.emplace_back();
      range.begin = ranges.size() == 1 ? 8 : ranges[ranges.size() - 2].end + 8;
      range.end = range.begin + rows * row;
      range.row = row, range.key = ranges.size();
      std::ranges::copy(turns, range.turns);
    };
    add(24, 64);
    add(64, 24);
    add(64, 32, {16, 8, 8});
    add(9, 7);
    for (int i = 0; i < 70; ++i)
      add(8, 16);
    ASSERT_LE(ranges.back().end, call.in[0].numel());
    call.ranges = ranges.data(), call.rangesCount = static_cast<int64_t>(ranges.size());
    call.attrs.nesterov = nesterov, call.attrs.decoupled = !nesterov;
    call.attrs.weight_decay = 0.1;
    call.attrs.products = static_cast<int64_t>(NsProducts::Highest);
    for (int r = 0; r < call.outCount; ++r)
      run.keep(r);
    run.compare(1e-5, 3e-3);
  }
}

/// Two ranks have rows or columns of a matrix, or of a group of interleaved matrices, and the shard
/// has some rows of one rank's part.
TEST(CudaMuon, TakesPartsOfOtherRanks) {
  SKIP_WITHOUT_GPU();
  for (auto [cutsColumns, hasTurns] : {std::pair(false, false), {false, true}, {true, false}}) {
    DeviceRun run("muon, parts", DType::F32, bench::kSmallModel);
    Call &call = run.call();
    const int64_t row = bench::kSmallModel.hidden();
    std::array<ParamRange, 2> ranges; // ranges of the shard, and of the rank's part
    for (ParamRange &range : ranges)
      range.key = 1, range.row = row, range.parts = 2, range.part = 1,
      range.cutsColumns = cutsColumns;
    ranges[0].end = call.in[0].numel(), ranges[0].inBlock = 100 * row;
    ranges[1].end = 2 * call.in[0].numel();
    const auto ofPart = static_cast<int32_t>(ranges[1].end / row);
    for (ParamRange &range : ranges)
      if (hasTurns) // the other rank has rows of the first matrix only
        range.turns[0] = 2 * ofPart - ofPart / 2, range.turns[1] = range.turns[2] = ofPart / 4;
    const int64_t bounds[] = {0, 1, 2};
    call.ranges = ranges.data(), call.rangesCount = 2, call.rangesOf = bounds;
    call.attrs.products = static_cast<int64_t>(NsProducts::Highest);
    call.attrs.weight_decay = 0.1;
    for (int r = 0; r < call.outCount; ++r)
      run.keep(r);
    run.compare(1e-5, 3e-3);
  }
}

/// Ranks do steps on parts of matrices of several shapes together: the sums, the division by norms
/// and a step, and the update from the steps' result.
TEST(CudaMuon, TakesStepsOfParts) {
  SKIP_WITHOUT_GPU();
  for (bool cutsColumns : {false, true})
    for (int64_t step : {0, 1})
      for (const char *op : {"muon_sums", "muon_step", "muon, divided"}) {
        const DType type = step == 0 ? DType::F32 : DType::BF16;
        DeviceRun run(op, type, bench::kSmallModel);
        Call &call = run.call();
        std::vector<ParamRange> ranges;
        auto add = [&](int64_t rows, int64_t row, std::array<int32_t, 3> turns = {}) {
          ParamRange &range = ranges.emplace_back();
          range.begin = ranges.size() == 1 ? 0 : ranges[ranges.size() - 2].end;
          range.end = range.begin + rows * row, range.inBlock = range.begin;
          range.row = row, range.key = ranges.size();
          range.parts = 2, range.cutsColumns = cutsColumns;
          std::ranges::copy(turns, range.turns);
        };
        add(24, 64);
        add(64, 24);
        add(64, 32, {16, 8, 8});
        for (int i = 0; i < 70; ++i)
          add(8, 16);
        ranges.back().parts = 1; // not a part: both ranks have all of it
        const int64_t count = static_cast<int64_t>(ranges.size());
        const int64_t bounds[] = {0, count, 2 * count};
        ranges.insert(ranges.end(), ranges.begin(), ranges.begin() + count);
        call.ranges = ranges.data(), call.rangesCount = 2 * count, call.rangesOf = bounds;
        call.attrs.ns_step = step;
        for (int r = 0; r < call.outCount; ++r)
          run.keep(r);
        run.compare(1e-5, 3e-3);
      }
}

constexpr bench::Model kWide = {1, 16, 32, 8, 64, 4096, 16};

/// Products of bf16 are tiles up to the diagonal, of matrices of several shapes at once. Extents
/// are multiples of 8, but not of tiles; some are less, and the tile kernel does not support 36.
TEST(CudaMuon, ComputesTilesUpToTheDiagonal) {
  SKIP_WITHOUT_GPU();
  DeviceRun run("muon", DType::BF16, kWide);
  Call &call = run.call();
  std::vector<ParamRange> ranges;
  constexpr std::array<int64_t, 2> kShapes[] = {{264, 520},  {520, 264}, {640, 1032}, {1032, 640},
                                                {512, 2048}, {8, 8},     {72, 40},    {36, 64},
                                                {256, 256},  {16, 512},  {512, 24},   {520, 264}};
  for (auto [rows, columns] : kShapes) {
    ParamRange range;
    range.begin = ranges.empty() ? 0 : ranges.back().end;
    range.end = range.begin + rows * columns;
    range.row = columns, range.key = ranges.size();
    ranges.push_back(range);
  }
  ASSERT_LE(ranges.back().end, call.in[0].numel());
  call.ranges = ranges.data(), call.rangesCount = static_cast<int64_t>(ranges.size());
  for (int r = 0; r < call.outCount; ++r)
    run.keep(r);
  run.compare(1e-4, 3e-3);
}

/// Symmetric products of fp32 computed in strips equal whole products.
TEST(CudaMuon, CopiesHalves) {
  SKIP_WITHOUT_GPU();
  DeviceRun run("muon, halves", DType::F32, kWide);
  run.call().attrs.products = static_cast<int64_t>(NsProducts::Highest);
  for (int r = 0; r < run.call().outCount; ++r)
    run.keep(r);
  run.compare(1e-5, 3e-3);
}

} // namespace
} // namespace shardc::kernels::test
