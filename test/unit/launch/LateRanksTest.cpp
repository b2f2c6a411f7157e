// Detection of ranks that are late in step after step. The test sets positions and times.
#include <cmath>

#include <gtest/gtest.h>

#include "runtime/base/ProgressWord.h"
#include "runtime/launch/LateRanks.h"

namespace shardc::launch {
namespace {

/// A job whose ranks report their positions four times a second. In each step of about a second, a
/// rank spends its share in a collective.
class Job {
public:
  explicit Job(std::vector<double> shares, int64_t perMachine = 1)
      : shares_(std::move(shares)), late_(shares_.size() / static_cast<size_t>(perMachine)),
        perMachine_(perMachine) {}

  /// Runs until `end`. Returns the late ranks that were found.
  std::vector<LateRank> runTo(double end) {
    std::vector<LateRank> found;
    for (; now_ < end; now_ += 0.25) {
      for (int64_t rank = 0; rank < count(); ++rank) {
        // Reports fall on any place in a step, because the step is not a multiple of their
        // interval.
        double place = now_ * 1.037 - std::floor(now_ * 1.037);
        bool isInside = place < shares_[static_cast<size_t>(rank)];
        RankProgress position;
        position.steps = static_cast<uint64_t>(now_ * stepsPerSecond) + 1;
        position.words = {isInside ? ProgressWord::inside(3) : ProgressWord::after(3),
                          ProgressWord::ofMicrobatch(1)};
        late_[static_cast<size_t>(rank / perMachine_)].note(rank, position, now_);
      }
      auto steps = static_cast<uint64_t>(now_ * stepsPerSecond) + 1;
      if (!judge_.isDue(now_, steps))
        continue;
      Waits all;
      for (LateRanks &machine : late_)
        all.merge(*unpacked<Waits>(packed(machine.take(now_, kindOf)), count()));
      for (const LateRank &each : judge_.judge(all, now_, steps))
        found.push_back(each);
    }
    return found;
  }
  void setShare(size_t rank, double share) { shares_[rank] = share; }

  double stepsPerSecond = 1.037;
  std::function<std::string(int64_t)> kindOf;

private:
  int64_t count() const { return static_cast<int64_t>(shares_.size()); }
  std::vector<double> shares_;
  std::vector<LateRanks> late_; ///< by machine
  LateJudge judge_;
  int64_t perMachine_;
  double now_ = 0;
};

TEST(LateRanks, NamesTheOneThatWaitsForNobody) {
  Job job({0.4, 0.4, 0.05, 0.42});
  std::vector<LateRank> found = job.runTo(2 * LateJudge::kWindowSeconds + 1);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_NEAR(found[0].share, 0.05, 0.04);
  EXPECT_NEAR(found[0].others, 0.4, 0.04);
  EXPECT_GE(found[0].steps, LateJudge::kStepsMin);
}

/// Transfers, which take equally long on all ranks, may be most of a step.
TEST(LateRanks, NamesOneAmongLongTransfers) {
  std::vector<LateRank> found = Job({0.9, 0.9, 0.7, 0.88}).runTo(200);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 2);
}

TEST(LateRanks, NamesNobodyForOneWindow) {
  Job job({0.4, 0.4, 0.1});
  EXPECT_TRUE(job.runTo(LateJudge::kWindowSeconds + 1).empty());
  job.setShare(2, 0.4);
  EXPECT_TRUE(job.runTo(500).empty());
}

TEST(LateRanks, NamesNobodyOfEqualRanks) {
  EXPECT_TRUE(Job({0.4, 0.38, 0.42, 0.33}).runTo(500).empty());
  EXPECT_TRUE(Job({0.09, 0.09, 0.0, 0.09}).runTo(500).empty()); // too small a difference
  EXPECT_TRUE(Job({0.5}).runTo(500).empty());
}

TEST(LateRanks, NamesOnceAndAgainAfterAPause) {
  Job job({0.4, 0.02});
  EXPECT_EQ(job.runTo(400).size(), 1u); // in the second of six windows
  job.setShare(1, 0.4);
  EXPECT_TRUE(job.runTo(800).empty());
  job.setShare(1, 0.02);
  EXPECT_EQ(job.runTo(1200).size(), 1u);
}

TEST(LateRanks, WaitsForEnoughSteps) {
  Job job({0.4, 0.02});
  job.stepsPerSecond = 0.05;
  EXPECT_TRUE(job.runTo(19 / 0.05).empty());
  EXPECT_EQ(job.runTo(23 / 0.05).size(), 1u);
}

TEST(LateRanks, ComparesRanksOfAStage) {
  Job job({0.4, 0.4, 0.05, 0.05});
  job.kindOf = [](int64_t rank) { return rank < 2 ? "stage 0" : "stage 1"; };
  EXPECT_TRUE(job.runTo(500).empty());
  job.setShare(1, 0.05);
  std::vector<LateRank> found = job.runTo(900);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 1);
}

/// Reports of many machines are merged, and all ranks are compared with each other.
TEST(LateRanks, AddsMachinesUp) {
  std::vector<double> shares(64, 0.4);
  shares[37] = 0.1;
  std::vector<LateRank> found = Job(shares, 8).runTo(2 * LateJudge::kWindowSeconds + 1);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 37);
  EXPECT_NEAR(found[0].others, 0.4, 0.04);
}

TEST(LateRanks, SaysNothingBeforeTheFirstStep) { EXPECT_FALSE(LateJudge().isDue(500, 0)); }

} // namespace
} // namespace shardc::launch
