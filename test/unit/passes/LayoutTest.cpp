// Layout of a unit's parameters: shards cut no row, offsets are aligned, and padding stays small.
#include "compiler/passes/Layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace shardc::passes {
namespace {

using Params = std::vector<LayoutParam>;

int64_t total(const Params &params) {
  return std::accumulate(params.begin(), params.end(), int64_t{0},
                         [](int64_t sum, const LayoutParam &param) { return sum + param.numel; });
}

int64_t numelOf(const std::vector<LayoutBlock> &blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), int64_t{0},
                         [](int64_t sum, const LayoutBlock &block) { return sum + block.numel; });
}

/// A matrix with `rows` rows of `row` elements.
LayoutParam matrix(int index, int64_t rows, int64_t row) { return {index, rows * row, row}; }
LayoutParam vector(int index, int64_t numel) { return {index, numel, 1}; }

/// The parameters of a Llama layer: two norms and four matrices.
Params llamaLayer(int64_t hidden, int64_t kv, int64_t ffn) {
  return {vector(0, hidden), matrix(1, hidden + 2 * kv, hidden), matrix(2, hidden, hidden),
          vector(3, hidden), matrix(4, 2 * ffn, hidden),         matrix(5, hidden, ffn)};
}

/// Rows of each shard, like PyTorch's `torch.chunk` along dimension 0.
std::vector<int64_t> rowsOfShards(const LayoutParam &param, int64_t shards) {
  LayoutBlock block = layOutRows(param, shards);
  EXPECT_EQ(block.numel, block.shard * shards);
  EXPECT_EQ(block.shard % param.row, 0);
  EXPECT_EQ(block.offsets, std::vector<int64_t>{0});
  EXPECT_EQ(block.params, std::vector<int>{param.index});
  std::vector<int64_t> rows;
  for (int64_t rank = 0; rank < shards; ++rank) {
    int64_t elements = std::clamp<int64_t>(param.numel - rank * block.shard, 0, block.shard);
    EXPECT_EQ(elements % param.row, 0);
    rows.push_back(elements / param.row);
  }
  return rows;
}

/// Expects the properties of every layout, for any parameters.
void expectSound(const Params &params, int64_t shards) {
  std::vector<LayoutBlock> blocks = layOut(params, shards);
  std::set<int> seen;
  for (const LayoutBlock &block : blocks) {
    ASSERT_EQ(block.numel, block.shard * shards);
    ASSERT_EQ(block.shard % kLayoutAlign, 0);
    ASSERT_EQ(block.params.size(), block.offsets.size());
    int64_t end = 0;
    for (size_t i = 0; i < block.params.size(); ++i) {
      const LayoutParam &param = params[static_cast<size_t>(block.params[i])];
      int64_t start = block.offsets[i];
      ASSERT_TRUE(seen.insert(param.index).second) << "parameter " << param.index << " lies twice";
      ASSERT_GE(start, end) << "parameter " << param.index << " overlaps the one before";
      ASSERT_EQ(start % kLayoutAlign, 0);
      end = start + param.numel;
      // The first shard boundary after the start, and every later one, is between two rows.
      for (int64_t cut = (start / block.shard + 1) * block.shard; cut < end; cut += block.shard)
        ASSERT_EQ((cut - start) % param.row, 0)
            << "a row of parameter " << param.index << " is cut at " << cut << " over " << shards;
    }
    ASSERT_LE(end, block.numel);
  }
  ASSERT_EQ(seen.size(), params.size());
}

TEST(Layout, OneShardHasNoPaddingBeyondAlignment) {
  Params params = {vector(0, 6), matrix(1, 8, 9), vector(2, 5)};
  std::vector<LayoutBlock> blocks = layOut(params, 1);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].offsets, (std::vector<int64_t>{0, 8, 80}));
  EXPECT_EQ(blocks[0].numel, 88);
}

TEST(Layout, MatricesLieInOneShardEach) {
  Params params = {matrix(0, 4, 8), matrix(1, 16, 8), matrix(2, 4, 10), matrix(3, 10, 8),
                   matrix(4, 2, 3)};
  for (int64_t shards : {1, 2, 3, 8}) {
    LayoutBlock block = layOutMatrices(params, shards);
    EXPECT_EQ(block.numel, block.shard * shards);
    EXPECT_EQ(block.params.size(), params.size());
    int64_t end = 0;
    for (size_t i = 0; i < block.params.size(); ++i) {
      int64_t numel = params[static_cast<size_t>(block.params[i])].numel, at = block.offsets[i];
      EXPECT_GE(at, end) << "overlaps the one before";
      EXPECT_EQ(at / block.shard, (at + numel - 1) / block.shard) << "is cut";
      EXPECT_EQ(at % kLayoutAlign, 0);
      end = at + numel;
    }
  }
  EXPECT_EQ(layOutMatrices(params, 2).shard, 152) << "the largest one, and 80 + 40 + 32 beside it";
}

TEST(Layout, AParameterInsideOneShardNeedsNoRowBoundary) {
  // The matrix starts at an element that 9 does not divide, but no boundary is inside it.
  Params params = {vector(0, 8), matrix(1, 4, 9), vector(2, 100)};
  std::vector<LayoutBlock> blocks = layOut(params, 2);
  EXPECT_EQ(blocks[0].offsets[1], 8);
  expectSound(params, 2);
}

TEST(Layout, AParameterAcrossABoundaryStartsAtARow) {
  Params params = {vector(0, 8), matrix(1, 16, 9)};
  std::vector<LayoutBlock> blocks = layOut(params, 2);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].offsets[1], 72);
  EXPECT_EQ(blocks[0].shard, 144);
  expectSound(params, 2);
}

TEST(Layout, LikeRowsTakeOneBlock) {
  Params llama8b = llamaLayer(4096, 1024, 14336);
  std::vector<LayoutBlock> blocks = layOut(llama8b, 8);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_LE(blocks[0].numel - total(llama8b), total(llama8b) / 64);
}

TEST(Layout, UnlikeRowsOverManyRanksTakeABlockEach) {
  // Row sizes of DeepSeek-V3: their least common multiple is 1,032,192 elements.
  Params params = {vector(0, 7168), matrix(1, 7168, 18432), matrix(2, 24576, 7168),
                   matrix(3, 7168, 16384)};
  std::vector<LayoutBlock> blocks = layOut(params, 1024);
  EXPECT_EQ(blocks.size(), 3u);
  EXPECT_LE(numelOf(blocks) - total(params), 1024 * (18432 + 7168 + 16384) + 7168);
  expectSound(params, 1024);
  // Over few ranks, one common block costs little.
  EXPECT_EQ(layOut(params, 2).size(), 1u);
}

TEST(Layout, MoreShardsThanRowsLeaveSomeEmpty) {
  Params params = {matrix(0, 3, 64)};
  std::vector<LayoutBlock> blocks = layOut(params, 8);
  EXPECT_EQ(blocks[0].shard, 64);
  EXPECT_EQ(blocks[0].numel, 512);
  expectSound(params, 8);
}

TEST(Layout, OrderStaysThatOfTheTable) {
  Params params = llamaLayer(64, 32, 160);
  for (int64_t shards : {1, 2, 8})
    for (const LayoutBlock &block : layOut(params, shards))
      EXPECT_TRUE(std::is_sorted(block.params.begin(), block.params.end()));
}

TEST(Layout, RandomUnitsKeepRowsWholeAndPaddingBounded) {
  std::mt19937_64 random(7);
  auto pick = [&](int64_t from, int64_t to) {
    return from + static_cast<int64_t>(random() % static_cast<uint64_t>(to - from + 1));
  };
  for (int round = 0; round < 2000; ++round) {
    Params params;
    std::set<int64_t> rows;
    int count = static_cast<int>(pick(1, 8));
    for (int i = 0; i < count; ++i) {
      if (pick(0, 2) == 0) {
        params.push_back(vector(i, pick(1, 3000)));
        continue;
      }
      params.push_back(matrix(i, pick(1, 60), pick(2, 200)));
      rows.insert(params.back().row);
    }
    int64_t shards = pick(1, 4) == 1 ? pick(1, 4) : pick(1, 64);
    SCOPED_TRACE(testing::Message() << "round " << round << ", " << shards << " shards");
    expectSound(params, shards);
    if (HasFatalFailure())
      return;
    // Separate blocks pad at most a granule per shard and a gap before each parameter; a common
    // block may cost a 64th more.
    int64_t bound = total(params);
    for (int64_t row : rows)
      bound += shards * std::lcm(row, kLayoutAlign);
    for (const LayoutParam &param : params)
      bound += std::lcm(param.row, kLayoutAlign) + kLayoutAlign;
    bound += shards * kLayoutAlign;
    EXPECT_LE(numelOf(layOut(params, shards)), bound + bound / 64);
  }
}

TEST(Layout, RowsOfOneParameterAsTorchChunks) {
  using Rows = std::vector<int64_t>;
  EXPECT_EQ(rowsOfShards(matrix(3, 6, 5), 4), (Rows{2, 2, 2, 0}));
  EXPECT_EQ(rowsOfShards(matrix(0, 257, 40), 5), (Rows{52, 52, 52, 52, 49}));
  EXPECT_EQ(rowsOfShards(matrix(0, 2, 8), 5), (Rows{1, 1, 0, 0, 0}));
  EXPECT_EQ(rowsOfShards(matrix(0, 8, 8), 2), (Rows{4, 4}));
  EXPECT_EQ(rowsOfShards(vector(1, 7), 3), (Rows{3, 3, 1}));
  EXPECT_EQ(rowsOfShards(vector(1, 7), 1), (Rows{7}));
}

} // namespace
} // namespace shardc::passes
