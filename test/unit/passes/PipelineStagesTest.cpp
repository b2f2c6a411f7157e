// The schedule of a pipeline: stages that follow it exchange each microbatch once, in time and
// without waiting for each other forever, and keep no more microbatches than they say.
#include "compiler/passes/PipelineStages.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "compiler/predict/PipelineTime.h"
#include "runtime/plan/Variants.h"

namespace shardc::passes {
namespace {

constexpr uint32_t kForward = 0, kBackward = 1;

/// Something that one stage gives another one: an output of a forward pass, or a gradient.
struct Message {
  bool isGradient;
  int64_t stage, microbatch; ///< that takes it
  auto operator<=>(const Message &) const = default;
};

/// One pass of a stage: it has ended when everything that it sends and receives has a partner.
struct Pass {
  bool isBackward;
  int64_t microbatch;
  std::vector<Message> sends, receives;
};

bool holds(const std::optional<plan::Pred> &pred, int64_t microbatch, int64_t microbatches) {
  return pred && plan::holds(*pred, plan::Variant{microbatch, microbatches});
}

std::vector<Pass> passesOf(int64_t stage, int64_t stages, int64_t m) {
  StageSchedule schedule(stage, stages, m);
  std::vector<Pass> passes;
  auto forward = [&](int64_t mb) {
    Pass pass{false, mb, {}, {}};
    if (!schedule.isFirst() && mb == 0)
      pass.receives.push_back({false, stage, 0});
    if (holds(schedule.inputAfterForward(), mb, m))
      pass.receives.push_back({false, stage, mb + 1});
    if (holds(schedule.gradientAfterForward(), mb, m))
      pass.receives.push_back({true, stage, mb + schedule.gradientShift()});
    if (!schedule.isLast())
      pass.sends.push_back({false, stage + 1, mb});
    if (schedule.isLast() && !schedule.isFirst())
      pass.sends.push_back({true, stage - 1, mb});
    passes.push_back(pass);
  };
  auto backward = [&](int64_t mb) {
    Pass pass{true, mb, {}, {}};
    if (holds(schedule.inputAfterBackward(), mb, m))
      pass.receives.push_back({false, stage, mb + schedule.inputShift()});
    if (holds(schedule.gradientAfterBackward(), mb, m))
      pass.receives.push_back({true, stage, mb + 1});
    if (!schedule.isFirst())
      pass.sends.push_back({true, stage - 1, mb});
    passes.push_back(pass);
  };
  std::vector<plan::ProgramNode> program = schedule.program(kForward, kBackward);
  plan::forEachRun(program, [&](const plan::ProgramNode &node, int64_t turn) {
    for (int64_t i = 0; i < node.count; ++i) {
      int64_t mb = node.microbatch ? node.microbatch->at(turn) : i;
      node.segment == kForward ? forward(mb) : backward(mb);
    }
    return true;
  });
  return passes;
}

/// Lets the stages run until nothing moves; returns how many passes have not ended.
size_t follow(const std::vector<std::vector<Pass>> &stages) {
  std::vector<size_t> at(stages.size());
  std::set<Message> met;
  for (bool moves = true; moves;) {
    moves = false;
    std::set<Message> sent, taken; // by the passes that are under way
    for (size_t s = 0; s < stages.size(); ++s)
      if (at[s] < stages[s].size()) {
        sent.insert(stages[s][at[s]].sends.begin(), stages[s][at[s]].sends.end());
        taken.insert(stages[s][at[s]].receives.begin(), stages[s][at[s]].receives.end());
      }
    std::ranges::set_intersection(sent, taken, std::inserter(met, met.end()));
    for (size_t s = 0; s < stages.size(); ++s) {
      if (at[s] == stages[s].size())
        continue;
      const Pass &pass = stages[s][at[s]];
      auto hasMet = [&](const Message &message) { return met.count(message) != 0; };
      if (std::ranges::all_of(pass.sends, hasMet) && std::ranges::all_of(pass.receives, hasMet)) {
        ++at[s];
        moves = true;
      }
    }
  }
  size_t left = 0;
  for (size_t s = 0; s < stages.size(); ++s)
    left += stages[s].size() - at[s];
  return left;
}

class Schedules : public testing::TestWithParam<int64_t> {
protected:
  static constexpr int64_t kMicrobatchesMax = 17;
};

TEST_P(Schedules, EndWithoutBuffersBetweenStages) {
  for (int64_t m = 1; m <= kMicrobatchesMax; ++m) {
    std::vector<std::vector<Pass>> stages;
    for (int64_t s = 0; s < GetParam(); ++s)
      stages.push_back(passesOf(s, GetParam(), m));
    EXPECT_EQ(follow(stages), 0u) << m << " microbatches";
  }
}

TEST_P(Schedules, ReceiveWhatAPassTakesBeforeItAndNothingElse) {
  for (int64_t m = 1; m <= kMicrobatchesMax; ++m)
    for (int64_t s = 0; s < GetParam(); ++s) {
      bool isFirst = s == 0, isLast = s == GetParam() - 1;
      // What waits: one input and one gradient at most.
      std::map<bool, std::deque<int64_t>> waiting;
      std::vector<Pass> passes = passesOf(s, GetParam(), m);
      for (const Pass &pass : passes) {
        if (pass.microbatch == 0 && !pass.isBackward && !isFirst)
          waiting[false].push_back(0);
        if (!(pass.isBackward ? isLast : isFirst)) {
          ASSERT_FALSE(waiting[pass.isBackward].empty()) << s << " of " << m;
          EXPECT_EQ(waiting[pass.isBackward].front(), pass.microbatch);
          waiting[pass.isBackward].pop_front();
        }
        for (const Message &message : pass.receives)
          if (message.isGradient || message.microbatch != 0)
            waiting[message.isGradient].push_back(message.microbatch);
        EXPECT_LE(waiting[false].size(), 1u);
        EXPECT_LE(waiting[true].size(), 1u);
      }
      EXPECT_TRUE(waiting[false].empty() && waiting[true].empty());
    }
}

TEST_P(Schedules, KeepAsManyMicrobatchesAsTheySay) {
  for (int64_t m = 1; m <= kMicrobatchesMax; ++m)
    for (int64_t s = 0; s + 1 < GetParam(); ++s) {
      std::set<int64_t> kept;
      size_t most = 0;
      for (const Pass &pass : passesOf(s, GetParam(), m)) {
        if (pass.isBackward)
          EXPECT_EQ(kept.erase(pass.microbatch), 1u);
        else
          EXPECT_TRUE(kept.insert(pass.microbatch).second);
        most = std::max(most, kept.size());
      }
      EXPECT_TRUE(kept.empty());
      EXPECT_EQ(static_cast<int64_t>(most), StageSchedule(s, GetParam(), m).inFlight());
    }
}

/// Seconds of a step in which a forward pass takes 1 and a backward pass 2, and transfers none.
double secondsOf(int64_t stages, int64_t m) {
  auto channelOf = [&](const Message &message) {
    return static_cast<int32_t>(message.stage + (message.isGradient ? stages : 0));
  };
  std::vector<std::vector<predict::Pass>> actors;
  for (int64_t s = 0; s < stages; ++s) {
    std::vector<predict::Pass> &passes = actors.emplace_back();
    for (const Pass &pass : passesOf(s, stages, m)) {
      bool isLast = s == stages - 1;
      predict::Pass &timed = passes.emplace_back();
      timed.seconds = isLast ? 3 : pass.isBackward ? 2 : 1;
      for (const Message &message : pass.receives) {
        bool isFirst = !message.isGradient && message.microbatch == 0;
        timed.meetings.push_back({channelOf(message), false, 0, 0, isFirst});
      }
      for (const Message &message : pass.sends)
        timed.meetings.push_back({channelOf(message), true, timed.seconds, 0, false});
    }
  }
  std::optional<std::vector<std::vector<predict::PassTime>>> times = predict::timesOf(actors);
  EXPECT_TRUE(times.has_value());
  double end = 0;
  for (size_t s = 0; times && s < times->size(); ++s)
    end = std::max(end, (*times)[s].back().end);
  return end;
}

TEST_P(Schedules, HaveNoOtherBubbleThanThatOf1F1B) {
  for (int64_t m = 1; m <= kMicrobatchesMax; ++m)
    EXPECT_EQ(secondsOf(GetParam(), m), 3.0 * static_cast<double>(m + GetParam() - 1)) << m;
}

INSTANTIATE_TEST_SUITE_P(Stages, Schedules, testing::Values(2, 3, 4, 5, 8, 16));

} // namespace
} // namespace shardc::passes
