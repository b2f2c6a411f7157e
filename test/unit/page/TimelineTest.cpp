// Tests how a page shows a rank's work: blocks of every grain, exposed communication by transfer,
// and sums.
#include "compiler/page/Timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardc::page {
namespace {

constexpr uint32_t kCompute = 0, kGather = 1, kReduce = 2;

/// Work on three streams. Pieces of one stream are added in their order.
class TestWork {
public:
  TestWork() {
    work_.lanes = {"compute", "gather", "reduce"};
    work_.names.idOf("");
  }
  TestWork &add(uint32_t lane, double begin, double end, const std::string &op,
                const std::string &unit = "", int64_t microbatch = 0,
                const std::string &segment = "micro") {
    Piece piece;
    piece.lane = lane;
    piece.begin = begin;
    piece.end = end;
    piece.of = lane == kCompute ? Class::Forward : Class::Transfer;
    piece.op = work_.names.idOf(op);
    piece.label = work_.names.idOf(segment + ": " + op);
    piece.group = work_.names.idOf(lane == kCompute ? "" : "dp");
    piece.unit = work_.names.idOf(unit);
    piece.segment = work_.names.idOf(segment);
    piece.microbatch = microbatch;
    work_.pieces.push_back(piece);
    return *this;
  }
  void reclass(size_t piece, Class of) { work_.pieces[piece].of = of; }
  const Work &get() const { return work_; }
  operator const Work &() const { return work_; }

private:
  Work work_;
};

/// Two microbatches of two units with two ops each.
TestWork twoMicrobatches() {
  TestWork work;
  double at = 0;
  for (int64_t microbatch : {0, 1})
    for (const char *unit : {"layers.0", "layers.1"})
      for (const char *op : {"matmul", "add"}) {
        work.add(kCompute, at, at + 1, op, unit, microbatch);
        at += 1;
      }
  return work;
}

TEST(Timeline, TakesTheFinestGrainThatFits) {
  TestWork work = twoMicrobatches();
  EXPECT_EQ(timelineOf(work, 8).grain, Grain::Op);
  EXPECT_EQ(timelineOf(work, 8).blocks.size(), 8u);
  EXPECT_EQ(timelineOf(work, 7).grain, Grain::Unit);
  EXPECT_EQ(timelineOf(work, 4).blocks.size(), 4u);
  EXPECT_EQ(timelineOf(work, 3).grain, Grain::Pass);
  EXPECT_EQ(timelineOf(work, 2).blocks.size(), 2u);
}

TEST(Timeline, NamesBlocksByWhatTheirPiecesHaveInCommon) {
  TestWork work = twoMicrobatches();
  EXPECT_EQ(timelineOf(work, 8).blocks[1].name, "micro: add");
  Block unit = timelineOf(work, 4).blocks[1];
  EXPECT_EQ(unit.name, "micro: layers.1");
  EXPECT_EQ(unit.count, 2u);
  EXPECT_EQ(unit.begin, 2);
  EXPECT_EQ(unit.end, 4);
  EXPECT_EQ(unit.microbatch, 0);
  EXPECT_EQ(timelineOf(work, 2).blocks[1].microbatch, 1);
}

/// With any limit, all pieces are kept, and the number of blocks is within the limit.
TEST(Timeline, KeepsEveryPieceInAFewBlocks) {
  TestWork work;
  for (int i = 0; i < 1000; ++i)
    work.add(kCompute, 2 * i, 2 * i + 1, "matmul", "", i % 7, i % 2 == 0 ? "forward" : "backward");
  for (size_t blocksMax : {3, 10, 100, 999}) {
    Timeline timeline = timelineOf(work, blocksMax);
    size_t count = 0;
    double busy = 0;
    for (const Block &block : timeline.blocks) {
      count += block.count;
      busy += block.busy[static_cast<size_t>(Class::Forward)];
    }
    EXPECT_LE(timeline.blocks.size(), blocksMax);
    EXPECT_EQ(timeline.grain, Grain::Time);
    EXPECT_EQ(count, 1000u);
    EXPECT_DOUBLE_EQ(busy, 1000);
  }
}

TEST(Timeline, SaysOfWhichClassesABlockIs) {
  TestWork work;
  work.add(kCompute, 0, 1, "matmul").add(kCompute, 1, 4, "matmul").add(kCompute, 4, 5, "matmul");
  work.reclass(1, Class::Backward);
  Block block = timelineOf(work, 1).blocks[0];
  EXPECT_TRUE(block.isMixed);
  EXPECT_EQ(block.of, Class::Backward);
  EXPECT_EQ(block.busy[static_cast<size_t>(Class::Forward)], 2);
  EXPECT_EQ(block.busy[static_cast<size_t>(Class::Backward)], 3);
  EXPECT_FALSE(timelineOf(work, 3).blocks[0].isMixed);
}

TEST(Timeline, OfNoWorkHasNoBlocks) { EXPECT_TRUE(timelineOf(TestWork(), 10).blocks.empty()); }

TEST(Exposed, IsWhatNoKernelOverlaps) {
  TestWork work;
  work.add(kCompute, 2, 5, "matmul").add(kCompute, 8, 9, "add").add(kGather, 0, 6, "all_gather");
  std::vector<Exposed> exposed = exposedOf(work);
  ASSERT_EQ(exposed.size(), 2u);
  EXPECT_EQ(exposed[0].begin, 0);
  EXPECT_EQ(exposed[0].end, 2);
  EXPECT_EQ(exposed[1].begin, 5);
  EXPECT_EQ(exposed[1].end, 6);
  Shares shares = sharesOf(work, exposed);
  EXPECT_EQ(shares.total, 9);
  EXPECT_EQ(shares.computing, 4);
  EXPECT_EQ(shares.exposed, 3);
  EXPECT_EQ(shares.idle, 2);
}

TEST(Exposed, HasNoTimeBetweenKernelsThatMeet) {
  TestWork work;
  work.add(kCompute, 0, 5, "matmul").add(kCompute, 5, 9, "add").add(kGather, 1, 8, "all_gather");
  EXPECT_TRUE(exposedOf(work).empty());
}

/// Time that two transfers share counts only for the earlier one, so that the sum is the total.
TEST(Exposed, IsChargedOnce) {
  TestWork work;
  work.add(kGather, 0, 4, "all_gather").add(kReduce, 2, 7, "reduce_scatter");
  std::vector<Exposed> exposed = exposedOf(work);
  std::vector<OpSum> sums = sumsOf(work, exposed);
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_EQ(work.get().names.list()[sums[0].op], "reduce_scatter");
  EXPECT_EQ(sums[0].seconds, 5);
  EXPECT_EQ(sums[0].exposed, 3);
  EXPECT_EQ(sums[1].exposed, 4);
}

TEST(Exposed, IsThinnedAtTheNarrowestGaps) {
  std::vector<Exposed> list = {{0, 1, 0, 1}, {2, 5, 1, 3}, {20, 21, 2, 1}, {22, 23, 3, 1}};
  std::vector<Exposed> two = thinned(list, 2);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].end, 5);
  EXPECT_EQ(two[0].seconds, 4);
  EXPECT_EQ(two[0].piece, 1u) << "the longest part's";
  EXPECT_EQ(two[1].begin, 20);
  EXPECT_EQ(two[1].seconds, 2);
  EXPECT_EQ(thinned(list, 4).size(), 4u);
  EXPECT_EQ(thinned(list, 1).front().seconds, 6);
}

TEST(Sums, TellGroupsOfTransfersApart) {
  TestWork work;
  work.add(kCompute, 0, 3, "matmul").add(kCompute, 3, 5, "matmul").add(kGather, 0, 1, "all_gather");
  std::vector<OpSum> sums = sumsOf(work, exposedOf(work));
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_EQ(sums[0].count, 2u);
  EXPECT_EQ(sums[0].seconds, 5);
  EXPECT_TRUE(sums[1].isTransfer);
  EXPECT_EQ(work.get().names.list()[sums[1].group], "dp");
  EXPECT_EQ(sums[1].exposed, 0);
}

} // namespace
} // namespace shardc::page
