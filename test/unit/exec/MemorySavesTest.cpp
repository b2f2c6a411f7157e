// How a rank uses what the others report about state in memory: when an image may begin, what is
// reported, and from which images a restart continues.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/Crc32.h"
#include "runtime/save/MemorySaves.h"
#include "test/unit/base/Told.h"
#include "test/unit/exec/ToyPlan.h"

namespace shardc::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Rank 0 of two. The other rank answers what a test sets, or the same as rank 0.
class OnePeer final : public hal::Peers {
public:
  std::map<std::string, std::string, std::less<>> says;
  std::string third; ///< the answer of a third rank about its memory, if there is a third rank

  int rank() const override { return 0; }
  int worldSize() const override { return 2; }
  int localRank() const override { return 0; }
  int localSize() const override { return 1; }
  std::string address() const override { return "127.0.0.1"; }
  Key jobKey() const override { return {}; }
  int64_t attempt() const override { return 1; }
  Result<std::vector<std::string>> exchange(std::string_view what, const std::vector<int> &,
                                            std::string_view mine, Fold fold) override {
    auto said = says.find(what);
    std::vector<std::string> all(2, std::string(mine));
    if (said != says.end())
      all[1] = said->second;
    if (!third.empty() && what == "what ranks have in memory")
      all.push_back(third);
    return folded(std::move(all), fold);
  }
  void reportLost(int, std::string_view) override {}
};

constexpr int64_t kRanks = 2;

/// Rank 0's part, with memory that a test may fill.
struct Kept {
  plan::Plan plan = toyPlan({.snapshots = 1});
  OnePeer peers;
  Reported reported;
  std::vector<uint8_t> memory;
  std::unique_ptr<save::MemorySaves> saves;

  Kept() {
    plan.job.put("checkpoint.in_memory_interval", int64_t{4});
    bytes_ =
        static_cast<size_t>(save::ImageSlots::bytesFor(*save::imageBytesMax(std::span(&plan, 1))));
    memory.resize(2 * bytes_ + kPageBytes);
    peers.says["what ranks have in memory"] = introduction("other", 0);
  }
  save::ImageSlots own() { return save::ImageSlots({begin(), bytes_}); }
  save::ImageSlots guest() { return save::ImageSlots({begin() + bytes_, bytes_}); }
  void start() {
    save::MemoryOptions options;
    options.own = {begin(), bytes_};
    options.guest = {begin() + bytes_, bytes_};
    options.plans = std::span(&plan, 1);
    options.machine = "this";
    options.emit = reported.sink();
    auto made = save::MemorySaves::create(std::span(&plan, 1), peers, std::move(options));
    ASSERT_TRUE(made.isOk()) << made.status().message();
    saves = std::move(*made);
  }
  static std::string introduction(const std::string &machine, int localRank,
                                  const std::string &images = "[]") {
    return fmt::format(R"({{"machine":"{}","local":{},"images":{}}})", machine, localRank, images) +
           "\n" + save::ImageAddress{"127.0.0.1", 1, {}}.pack();
  }
  /// An image of the toy's state after a step.
  void put(const save::ImageSlots &slots, int64_t owner, int64_t step) {
    save::Progress progress;
    progress.step = step;
    std::string bytes = save::packProgress(progress);
    save::ImageInfo info;
    info.id = {owner, 0, step, kRanks};
    info.metaBytes = static_cast<int64_t>(bytes.size());
    int slot = slots.next();
    slots.begin(slot);
    std::copy(bytes.begin(), bytes.end(), slots.bytesOf(slot).begin());
    info.crc = crc32(0, bytes.data(), bytes.size());
    slots.complete(slot, info);
  }

private:
  static constexpr size_t kPageBytes = 4096;
  uint8_t *begin() {
    void *at = memory.data();
    size_t room = memory.size();
    return static_cast<uint8_t *>(std::align(kPageBytes, 2 * bytes_, at, room));
  }
  size_t bytes_ = 0;
};

TEST(MemorySaves, PassOverStepsWhileARankIsLate) {
  Kept kept;
  kept.start();
  EXPECT_TRUE(kept.saves->isDue(4));
  EXPECT_FALSE(kept.saves->isDue(5));
  kept.peers.says["how far state in memory is"] = "busy";
  EXPECT_FALSE(*kept.saves->mayBegin(4, true));
  EXPECT_FALSE(*kept.saves->mayBegin(5, true));
  EXPECT_THAT(kept.reported.lines,
              ElementsAre("warning: step 4 is not kept in memory: rank 1 still "
                          "copies or sends its state after an earlier step; the "
                          "newest state in memory is none yet [memory-save-skipped]"));
  EXPECT_TRUE(kept.saves->isDue(6)) << "it is tried again after each step";
  kept.peers.says.erase("how far state in memory is");
  EXPECT_TRUE(*kept.saves->mayBegin(6, true));
  EXPECT_FALSE(kept.saves->isDue(7));
}

TEST(MemorySaves, GoOnWhenACopyHasNotReachedANeighbour) {
  Kept kept;
  kept.start();
  EXPECT_TRUE(*kept.saves->mayBegin(4, true));
  kept.peers.says["how far state in memory is"] = "failed: rank 0: the other end is gone";
  EXPECT_TRUE(*kept.saves->mayBegin(8, true));
  EXPECT_TRUE(*kept.saves->mayBegin(12, true)); // the warning is not repeated
  EXPECT_THAT(kept.reported.lines,
              ElementsAre(AllOf(HasSubstr("the state of rank 1 after step 4 has not reached its "
                                          "neighbour, rank 0: the other end is gone"),
                                HasSubstr("[memory-copy-not-sent]"))));
}

TEST(MemorySaves, SayWhichRanksHaveNoNeighbour) {
  Kept same, other, smaller;
  same.peers.says["what ranks have in memory"] = Kept::introduction("this", 1);
  same.start();
  other.start();
  EXPECT_THAT(same.reported.lines, IsEmpty());
  EXPECT_THAT(other.reported.lines, IsEmpty());
  // A third rank, the second of this machine.
  smaller.peers.third = Kept::introduction("this", 1);
  smaller.start();
  EXPECT_THAT(smaller.reported.lines,
              ElementsAre(AllOf(HasSubstr("rank 2 has no neighbour"), HasSubstr("1 of 3 ranks"),
                                HasSubstr("[memory-without-neighbour]"))));
}

TEST(MemorySaves, GoOnFromTheirOwnImagesAndThoseOfOthers) {
  Kept kept;
  kept.put(kept.own(), 0, 4);
  kept.put(kept.own(), 0, 8);
  kept.put(kept.guest(), 1, 8);
  kept.start();
  kept.peers.says["whether state in memory is damaged"] = "[]";
  auto state = kept.saves->restore(3);
  ASSERT_TRUE(state.isOk()) << state.status().message();
  ASSERT_TRUE(*state);
  EXPECT_EQ((**state).progress.step, 8);
  EXPECT_EQ((**state).whose, "rank 1 from the copy of rank 0, the others from their own");
  EXPECT_FALSE(kept.own().find({0, 0, 4, kRanks})) << "what was not chosen is dropped";
  EXPECT_TRUE(kept.own().find({0, 0, 8, kRanks}));
}

TEST(MemorySaves, LeaveOutWhatIsDamaged) {
  Kept kept;
  for (int64_t step : {4, 8}) {
    kept.put(kept.own(), 0, step);
    kept.put(kept.guest(), 1, step);
  }
  kept.start();
  kept.peers.says["whether state in memory is damaged"] = "[]";
  kept.guest().bytesOf(*kept.guest().find({1, 0, 8, kRanks}))[3] ^= 1;
  auto state = kept.saves->restore(-1);
  ASSERT_TRUE(state.isOk() && *state);
  EXPECT_EQ((**state).progress.step, 4);
  EXPECT_THAT(
      kept.reported.lines,
      ElementsAre("warning: rank 0 has a damaged copy of the state of rank 1 after step 8 in "
                  "memory, which is not used [memory-copy-damaged]"));
}

TEST(MemorySaves, LeaveWhatACheckpointIsNewerThan) {
  Kept kept;
  kept.put(kept.own(), 0, 8);
  kept.put(kept.guest(), 1, 8);
  kept.start();
  auto state = kept.saves->restore(8);
  ASSERT_TRUE(state.isOk());
  EXPECT_FALSE(*state);
  EXPECT_FALSE(kept.own().find({0, 0, 8, kRanks}));
}

} // namespace
} // namespace shardc::test
