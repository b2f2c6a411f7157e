// Progress words: what they mean for a plan's ranks, and which rank is named when work has stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/ProgressWord.h"
#include "runtime/exec/ProgressMap.h"
#include "runtime/launch/StallDetector.h"
#include "runtime/plan/Text.h"

namespace shardc {
namespace {

using exec::ProgressMap;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char *kPlan = R"(shardc.plan 2 placed "p"
needs { backend = host  gpu = ""  device_bytes = 0 }
job { }
mesh { dp = 3 }
groups { dp = [dp] } data dp
channel misc group dp
loc 0 "a.recipe" 12 3
role all "r" {
  arenas { state = 64  work = 64  sym = 0  host = 0 }
  cell @a : f32[1] in work for grads at 0
  segment first {
    in %x = @a at work 0
    %y = all_reduce %x channel misc : f32[1] grads at work 16 loc 0
    %z = all_reduce %y channel misc : f32[1] grads at work 32 loc 0
    out @a = %x
  }
  program { run first }
}
)";

struct Fixture {
  Fixture() : plan(*plan::parse(kPlan, "p.plan")), map(plan) {}
  plan::Plan plan;
  ProgressMap map;
};

TEST(ProgressWord, TellsPlaces) {
  for (uint32_t op : {0u, 1u, 1000u}) {
    EXPECT_TRUE(ProgressWord::isInside(ProgressWord::inside(op)));
    EXPECT_FALSE(ProgressWord::isInside(ProgressWord::after(op)));
    EXPECT_EQ(ProgressWord::op(ProgressWord::inside(op)), op);
    EXPECT_EQ(ProgressWord::op(ProgressWord::after(op)), op);
  }
  EXPECT_FALSE(ProgressWord::isBegun(0));
}

TEST(ProgressMap, NamesOpAndRecipeLine) {
  Fixture f;
  EXPECT_EQ(f.map.place(ProgressWord::inside(0)), "in 'first: all_reduce %y (a.recipe:12)'");
  EXPECT_EQ(f.map.place(ProgressWord::after(1)), "after 'first: all_reduce %z (a.recipe:12)'");
  EXPECT_EQ(f.map.place(0u), "");
  EXPECT_EQ(f.map.place(ProgressWord::after(99)), "after '?'");
}

TEST(ProgressMap, APlanWithoutRolesHasNoOps) {
  plan::Plan plan;
  EXPECT_EQ(ProgressMap(plan).place(ProgressWord::inside(0)), "in '?'");
}

constexpr const char *kStages = R"(shardc.plan 2 placed "p"
needs { backend = host  gpu = ""  device_bytes = 0 }
job { }
mesh { pp = 2 dp = 2 }
groups { pp = [pp] dp = [dp] } data dp
channel up group pp pair 0 1
loc 0 "a.recipe" 12 3
role first "r" where { pp = 0 to 0 } {
  arenas { state = 64  work = 64  sym = 0  host = 0 }
  cell @a : f32[1] in work for grads at 0
  segment forward forward body {
    in %x = @a at work 0
    send %x channel up loc 0
  }
  program { steps 1 { loop 2 { run forward mb i } } }
}
role last "r" where { pp = 1 to 1 } {
  arenas { state = 64  work = 64  sym = 0  host = 0 }
  cell @a : f32[1] in work for grads at 0
  segment forward forward body {
    %y = recv channel up : f32[1] grads at work 0 loc 0
    out @a = %y
  }
  program { steps 1 { loop 2 { run forward mb i } } }
}
)";

TEST(ProgressMap, NamesStagesAndMicrobatches) {
  plan::Plan plan = *plan::parse(kStages, "p.plan");
  ProgressMap map(plan);
  uint32_t sends = ProgressWord::inside(0), receives = ProgressWord::inside(1);
  std::vector<std::vector<uint32_t>> words = {
      {ProgressWord::after(0), ProgressWord::ofMicrobatch(3)},
      {sends, ProgressWord::ofMicrobatch(4)},
      {receives, 0, ProgressWord::ofMicrobatch(5)},
      {receives, ProgressWord::ofMicrobatch(4)}};
  EXPECT_EQ(map.stageOf(1), ", stage 1 of 2");
  EXPECT_EQ(map.stageOf(2), ", stage 2 of 2");
  EXPECT_EQ(map.place(words[2]), "in 'forward: recv %y (a.recipe:12)' of microbatch 5");
  EXPECT_EQ(map.explainStall(words, -1),
            "rank 0, stage 1 of 2, fell behind: ranks 2, 3 wait for it in 'forward: recv %y "
            "(a.recipe:12)' of microbatch 5; it was last seen after 'forward: send %x "
            "(a.recipe:12)' of microbatch 3");
  EXPECT_THAT(map.explainStall(words, 3), StartsWith("rank 3, stage 2 of 2, fell behind: "));
  EXPECT_EQ(Fixture().map.stageOf(1), "");
}

TEST(ProgressWord, OfAMicrobatchIsNoPlace) {
  for (int64_t microbatch : {0, 1, 4711}) {
    uint32_t word = ProgressWord::ofMicrobatch(microbatch);
    EXPECT_TRUE(ProgressWord::isMicrobatch(word));
    EXPECT_EQ(ProgressWord::microbatch(word), microbatch);
    EXPECT_FALSE(ProgressWord::isBegun(word));
    EXPECT_FALSE(ProgressWord::isInside(word));
  }
  for (uint32_t word : {0u, ProgressWord::kExchanging, ProgressWord::inside(7),
                        ProgressWord::after(7), ProgressWord::making(7)})
    EXPECT_FALSE(ProgressWord::isMicrobatch(word)) << word;
}

TEST(ProgressMap, NamesTheRankThatOthersWaitFor) {
  Fixture f;
  std::vector<std::vector<uint32_t>> words = {
      {ProgressWord::inside(1)}, {ProgressWord::after(0)}, {ProgressWord::inside(1)}};
  EXPECT_EQ(f.map.explainStall(words, -1),
            "rank 1 fell behind: ranks 0, 2 wait for it in 'first: all_reduce %z (a.recipe:12)'; "
            "it was last seen after 'first: all_reduce %y (a.recipe:12)'");
  words[1] = {};
  EXPECT_THAT(f.map.explainStall(words, -1), HasSubstr("it has not reported yet"));
}

TEST(ProgressMap, NamesASilentRankFirst) {
  Fixture f;
  std::vector<std::vector<uint32_t>> words = {
      {ProgressWord::inside(1)}, {ProgressWord::after(0)}, {ProgressWord::inside(0)}};
  EXPECT_THAT(f.map.explainStall(words, 2), StartsWith("rank 2 fell behind: "));
}

TEST(ProgressMap, NamesTheChannelThatOthersMake) {
  Fixture f;
  std::vector<std::vector<uint32_t>> words = {
      {ProgressWord::making(0)}, {0}, {ProgressWord::making(0)}};
  for (int silent : {-1, 1})
    EXPECT_EQ(
        f.map.explainStall(words, silent),
        "rank 1 fell behind: ranks 0, 2 wait for it creating the channel of 'first: all_reduce "
        "%y (a.recipe:12)'; it has not reported yet");
  EXPECT_EQ(ProgressWord::op(ProgressWord::making(7)), 7u);
  EXPECT_FALSE(ProgressWord::isMaking(ProgressWord::inside(7)));
}

TEST(ProgressMap, ARankInAnExchangeIsNotWhatOthersWaitFor) {
  Fixture f;
  std::vector<std::vector<uint32_t>> words = {
      {ProgressWord::kExchanging}, {ProgressWord::making(0)}, {0}};
  EXPECT_THAT(f.map.explainStall(words, -1), StartsWith("rank 2 fell behind: rank 1 waits for it"));
  words[2] = {ProgressWord::making(0)};
  EXPECT_THAT(f.map.explainStall(words, -1),
              AllOf(StartsWith("rank 0 fell behind: ranks 1, 2 wait for it creating the channel"),
                    HasSubstr("it was last seen in an exchange of the host")));
}

TEST(ProgressMap, NamesAChannelThatAllMake) {
  Fixture f;
  std::vector<std::vector<uint32_t>> words(3, {ProgressWord::making(0)});
  EXPECT_EQ(f.map.explainStall(words, -1),
            "rank 0 is stuck in its set-up: it is creating the channel of 'first: all_reduce "
            "%y (a.recipe:12)'");
}

TEST(StallClock, MakingAChannelIsNoCollective) {
  launch::StallClock clock;
  clock.update({0, {ProgressWord::making(4)}}, 0);
  EXPECT_EQ(clock.longestStay(7), 0);
  EXPECT_EQ(clock.longestMaking(7), 7);
  clock.update({0, {ProgressWord::making(5)}}, 7);
  EXPECT_EQ(clock.longestMaking(9), 2) << "the next one";
  clock.update({0, {ProgressWord::inside(5)}}, 10);
  EXPECT_EQ(clock.longestMaking(12), 0);
  EXPECT_EQ(clock.longestStay(12), 2);
}

TEST(ProgressMap, NamesASilentRankThatNobodyWaitsFor) {
  Fixture f;
  std::vector<std::vector<uint32_t>> words = {{0}, {ProgressWord::after(0)}, {0}};
  EXPECT_EQ(f.map.explainStall(words, 1),
            "rank 1 does not respond; it was last seen after 'first: all_reduce %y "
            "(a.recipe:12)'");
}

TEST(ProgressMap, NamesCollectivesThatDoNotMatch) {
  Fixture f;
  std::vector<std::vector<uint32_t>> words = {
      {ProgressWord::inside(1)}, {ProgressWord::inside(0)}, {ProgressWord::inside(1)}};
  EXPECT_THAT(f.map.explainStall(words, -1), StartsWith("rank 1 fell behind: ranks 0, 2 wait"));
  for (std::vector<uint32_t> &rank : words)
    rank = {ProgressWord::inside(1)};
  EXPECT_THAT(f.map.explainStall(words, -1), HasSubstr("is stuck in a collective"));
  for (std::vector<uint32_t> &rank : words)
    rank = {0};
  EXPECT_EQ(f.map.explainStall(words, -1), "work has stopped");
}

TEST(StallClock, CountsStaysInOneCollective) {
  launch::StallClock clock;
  clock.update({0, {ProgressWord::inside(1), 0}}, 10);
  EXPECT_EQ(clock.longestStay(15), 5);
  clock.update({0, {ProgressWord::inside(1), ProgressWord::inside(0)}}, 15);
  EXPECT_EQ(clock.longestStay(16), 6);
  clock.update({0, {ProgressWord::after(1), ProgressWord::inside(0)}}, 17);
  EXPECT_EQ(clock.longestStay(18), 3);
  clock.update({1, {ProgressWord::after(1), ProgressWord::inside(0)}}, 19); // the next step
  EXPECT_EQ(clock.longestStay(20), 1);
}

} // namespace
} // namespace shardc
