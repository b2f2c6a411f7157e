// The rows that a rank holds, and the rows that it saves.
#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/save/StateLayout.h"
#include "test/unit/exec/SavedPlan.h"

namespace shardc::test {
namespace {

using checkpoint::ParamPart;
using save::StatePiece;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(StateLayout, AShardHoldsPartOfAParameterSeveralOrNone) {
  plan::Plan plan = makePlan(4);
  auto weights = [&](int64_t dp) {
    std::vector<StatePiece> pieces = piecesOf(plan, dp);
    std::erase_if(pieces, [](const StatePiece &p) { return p.part != ParamPart::Weight; });
    return pieces;
  };
  constexpr uint32_t kMaster = 1; // the cell with master weights, not the weights that layers use
  EXPECT_THAT(weights(0),
              ElementsAre(StatePiece{ParamPart::Weight, 0, kMaster, 0, 48, {{0, 0}, {3, 4}}}));
  EXPECT_THAT(weights(1),
              ElementsAre(StatePiece{ParamPart::Weight, 1, kMaster, 0, 16, {{0}, {4}}},
                          StatePiece{ParamPart::Weight, 2, kMaster, 16, 32, {{0, 0}, {2, 4}}}));
  EXPECT_THAT(weights(2),
              ElementsAre(StatePiece{ParamPart::Weight, 2, kMaster, 0, 48, {{2, 0}, {3, 4}}}));
  EXPECT_THAT(weights(3),
              ElementsAre(StatePiece{ParamPart::Weight, 2, kMaster, 0, 16, {{5, 0}, {1, 4}}}));
  EXPECT_THAT(piecesOf(plan, 3), SizeIs(3)); // one piece of the weights, and one of each moment
}

TEST(StateLayout, EveryRowIsSavedOnceAtAnySize) {
  for (bool isSharded : {true, false})
    for (int64_t dp : {1, 2, 3, 4, 6, 12}) {
      plan::Plan plan = makePlan(dp, isSharded);
      std::map<std::pair<ParamPart, uint32_t>, std::vector<int>> saved;
      for (int64_t rank = 0; rank < dp; ++rank)
        for (const StatePiece &piece : piecesOf(plan, rank, true)) {
          auto &rows = saved[{piece.part, piece.param}];
          rows.resize(static_cast<size_t>(plan.params[piece.param].type.shape[0]));
          for (int64_t r = 0; r < piece.box.shape[0]; ++r)
            ++rows[static_cast<size_t>(piece.box.offset[0] + r)];
        }
      EXPECT_THAT(saved, SizeIs(9));
      for (const auto &[key, rows] : saved)
        EXPECT_THAT(rows, ::testing::Each(1)) << dp << " ranks";
    }
}

TEST(StateLayout, WholeStateIsHeldByAllAndSavedByOneEach) {
  plan::Plan plan = makePlan(2, false);
  EXPECT_THAT(piecesOf(plan, 1), SizeIs(9));
  EXPECT_THAT(piecesOf(plan, 0, true), SizeIs(6)); // two of the parameters, three tensors each
  EXPECT_THAT(piecesOf(plan, 1, true), SizeIs(3));
}

TEST(StateLayout, WholeStateIsSharedByStretchesOfTheBlock) {
  plan::Plan plan = makePlan(2, false);
  constexpr int64_t kRows = 262'145; // rows of 4 floats: a little more than 4 MiB
  plan.params = {param(kWords, plan::Type::of(DType::BF16, {kRows, 4}), 0)};
  plan.blocks[0] = {"all", -1, 4 * kRows, 4 * kRows, 0, 4 * kRows, 0};
  for (plan::Cell &cell : plan.roles[0].cells)
    cell.type = plan::Type::of(cell.type.dtype, {4 * kRows});
  StatePiece first = piecesOf(plan, 0, true)[0], second = piecesOf(plan, 1, true)[0];
  EXPECT_EQ(first, (StatePiece{ParamPart::Weight, 0, 1, 0, 131'072 * 16, {{0, 0}, {131'072, 4}}}));
  EXPECT_EQ(
      second,
      (StatePiece{
          ParamPart::Weight, 0, 1, 131'072 * 16, 131'073 * 16, {{131'072, 0}, {131'073, 4}}}));
}

/// Every rank finds all that it saves within its range, every row is saved once, and no rank saves
/// much more than others, for any row lengths.
TEST(StateLayout, SharesLieInTheirStretches) {
  for (int64_t ranks : {2, 3, 5, 8})
    for (int64_t columns : {1, 3, 40, 333}) {
      plan::Plan plan = makePlan(ranks, false);
      int64_t numel = 400 * columns + 64 + 900 * 7;
      plan.params = {param(kWords, plan::Type::of(DType::BF16, {400, columns}), 0),
                     param(kFc1, plan::Type::of(DType::BF16, {900, 7}), 400 * columns + 64)};
      plan.blocks[0] = {"all", -1, numel, numel, 0, numel, 0};
      for (plan::Cell &cell : plan.roles[0].cells)
        cell.type = plan::Type::of(cell.type.dtype, {numel});
      auto layout = save::StateLayout::create(plan);
      ASSERT_TRUE(layout.isOk());
      auto held = layout->toSnapshot(1);
      ASSERT_TRUE(held.isOk());
      ASSERT_GT(held->step, 0) << ranks << " ranks, " << columns << " columns";
      EXPECT_EQ(held->step * (ranks - 1) + held->bytes, 4 * numel);
      std::vector<std::vector<int>> saved = {std::vector<int>(400), std::vector<int>(900)};
      for (int64_t dp = 0; dp < ranks; ++dp) {
        int64_t bytes = 0;
        for (const StatePiece &piece : piecesOf(plan, dp, true)) {
          if (piece.part != ParamPart::Weight)
            continue;
          EXPECT_GE(piece.byteBegin, held->step * dp);
          EXPECT_LE(piece.byteBegin + piece.bytes, held->step * dp + held->bytes);
          bytes += piece.bytes;
          for (int64_t row = piece.box.offset[0]; row < piece.box.offset[0] + piece.box.shape[0];
               ++row)
            ++saved[piece.param][static_cast<size_t>(row)];
        }
        EXPECT_NEAR(static_cast<double>(bytes), 4.0 * static_cast<double>(numel / ranks),
                    4.0 * static_cast<double>(2 * columns + 64 * ranks + 64));
      }
      for (const std::vector<int> &rows : saved)
        EXPECT_TRUE(std::ranges::all_of(rows, [](int count) { return count == 1; }));
    }
}

TEST(StateLayout, WeightsThatAreTheirOwnMasters) {
  plan::Plan plan = makePlan(2);
  plan.roles[0].cells.erase(plan.roles[0].cells.begin() + 1);
  EXPECT_EQ(piecesOf(plan, 0)[0].cell, 0u);
  EXPECT_EQ(piecesOf(plan, 0)[0].bytes, 24);
}

TEST(StateLayout, HoldsTheMomentumOfSgd) {
  plan::Plan plan = makePlan(1);
  plan.roles[0].cells.pop_back();
  plan.job.put(plan::JobField::optimizer_optimizer, std::string("sgd"));
  std::vector<StatePiece> pieces = piecesOf(plan, 0);
  ASSERT_THAT(pieces, SizeIs(6));
  EXPECT_EQ(pieces[3].part, ParamPart::Momentum);
}

TEST(StateLayout, EveryParameterIsInABlock) {
  plan::Plan plan = makePlan(2);
  plan.params[1].block = -1;
  EXPECT_EQ(save::StateLayout::create(plan).status().message(),
            "parameter '" + kNorm +
                "' is in no block; only parameters in blocks can be saved and loaded");
}

/// Ranks that differ only in axes that do not shard hold the same state.
TEST(StateLayout, OneOfEqualRanksSaves) {
  plan::Plan plan = makePlan(2);
  plan.mesh.push_back({"tp", 2});
  auto layout = save::StateLayout::create(plan);
  ASSERT_TRUE(layout.isOk());
  for (int64_t rank = 0; rank < 4; ++rank) {
    std::vector<StatePiece> held = *layout->pieces(rank);
    EXPECT_FALSE(held.empty());
    EXPECT_EQ(*layout->piecesToSave(rank), rank % 2 == 0 ? held : std::vector<StatePiece>());
  }
}

TEST(StateLayout, SaysWhatHasNoForm) {
  auto messageOf = [](const plan::Plan &plan) {
    return save::StateLayout::create(plan).status().message();
  };
  plan::Plan second = makePlan(2);
  second.roles[0].cells.erase(second.roles[0].cells.begin() + 2);
  EXPECT_THAT(messageOf(second), HasSubstr("no cell for 'exp_avg' of optimizer 'adam'"));
  plan::Plan size = makePlan(2);
  size.roles[0].cells[2].type = plan::Type::of(DType::F32, {25});
  EXPECT_THAT(messageOf(size), HasSubstr("cell @m.all has 25 elements"));
  plan::Plan cut = makePlan(2);
  cut.params[2].offset = 17;
  auto layout = save::StateLayout::create(cut);
  ASSERT_TRUE(layout.isOk());
  EXPECT_THAT(layout->pieces(0).status().message(), HasSubstr("inside a row"));
}

} // namespace
} // namespace shardc::test
