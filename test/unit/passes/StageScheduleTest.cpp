// Pipeline schedules: each message is exchanged once, in order and without deadlock; stages keep no
// more microbatches than the schedule says, and wait no longer than its known formula.
#include "compiler/passes/StageSchedule.h"

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "compiler/predict/PipelineTime.h"
#include "runtime/plan/Variants.h"

namespace shardc::passes {
namespace {

struct Case {
  const char *name;
  int64_t stages, chunks, microbatches;
  StageSchedule schedule;
  int64_t group = 0; ///< microbatches per group; 0: as many as stages

  bool isLastChunk(int64_t chunk) const { return chunk == stages * chunks - 1; }
};

std::vector<Case> allCases() {
  std::vector<Case> cases;
  for (int64_t stages : {2, 3, 4, 5, 8, 16})
    for (int64_t m = 1; m <= 17; ++m) {
      PipelineShape shape{stages, 1, m};
      cases.push_back({"1f1b", stages, 1, m, StageSchedule::oneForwardOneBackward(shape)});
      cases.push_back({"zero bubble", stages, 1, m, StageSchedule::zeroBubble(shape)});
    }
  for (int64_t stages : {2, 3, 4, 8})
    for (int64_t chunks : {2, 3})
      for (int64_t m = 1; m <= 5 * stages; m += m < stages ? 1 : stages) {
        PipelineShape shape{stages, chunks, m};
        cases.push_back({"interleaved", stages, chunks, shape.microbatches,
                         StageSchedule::oneForwardOneBackward(shape)});
      }
  for (int64_t stages : {2, 3, 4})
    for (int64_t group : {stages, stages + 1, 2 * stages, 2 * stages + 1})
      for (int64_t chunks : {2, 3})
        for (int64_t m = group; m <= 3 * group; ++m) {
          if (m % group != 0 && m % group < stages)
            continue; // a rule refuses it
          PipelineShape shape{stages, chunks, m, group};
          cases.push_back({"interleaved", stages, chunks, m,
                           StageSchedule::oneForwardOneBackward(shape), group});
        }
  return cases;
}

/// A message that a chunk of layers takes from its neighbour: an output, or a gradient.
struct Message {
  bool isGradient;
  int64_t chunk, microbatch; ///< chunk and microbatch of the pass that receives the message
  auto operator<=>(const Message &) const = default;
};

/// A pass with its messages, in order.
struct Turn {
  StagePass pass;
  std::vector<Message> sends, receives;
  bool isOwn = false; ///< the pass receives its first message for itself, not for a later pass
};

Message takenBy(const Case &each, int32_t stage, StagePart part, int64_t microbatch) {
  return {!hasForward(part.kind), part.chunk * each.stages + stage, microbatch};
}

std::vector<Turn> turnsOf(const Case &each, int32_t stage) {
  std::vector<Turn> turns;
  for (const StagePass &pass : each.schedule.passes(stage)) {
    Turn turn{pass, {}, {}};
    int64_t mb = pass.microbatch, chunk = pass.part.chunk * each.stages + stage;
    if (turns.empty() && each.schedule.receivesOwn(stage, pass.part)) {
      turn.receives.push_back(takenBy(each, stage, pass.part, mb));
      turn.isOwn = true;
    }
    for (const Receive &receive : each.schedule.receives(stage, pass.part))
      for (const plan::Pred &pred : receive.when)
        if (plan::holds(pred, plan::Variant{mb, each.microbatches}))
          turn.receives.push_back(takenBy(each, stage, receive.of, mb + receive.shift));
    if (hasForward(pass.part.kind) && !each.isLastChunk(chunk))
      turn.sends.push_back({false, chunk + 1, mb});
    if (hasInputs(pass.part.kind) && chunk > 0)
      turn.sends.push_back({true, chunk - 1, mb});
    turns.push_back(turn);
  }
  return turns;
}

double secondsOf(PassKind kind) {
  return kind == PassKind::Both ? 3 : kind == PassKind::Backward ? 2 : 1;
}

/// Seconds of a step if transfers take no time and each pass takes the time that schedules assume.
/// With `hasHead`, the last chunk needs longer for results that others wait for, and less for its
/// weights. Empty if stages wait for each other forever.
std::optional<double> secondsOf(const Case &each, bool hasHead = false) {
  std::vector<std::vector<predict::Pass>> actors;
  std::list<std::vector<predict::Meeting>> meetings;
  for (int32_t stage = 0; stage < each.stages; ++stage) {
    std::vector<predict::Pass> &passes = actors.emplace_back();
    for (const Turn &turn : turnsOf(each, stage)) {
      predict::Pass &timed = passes.emplace_back();
      std::vector<predict::Meeting> &own = meetings.emplace_back();
      PassKind kind = turn.pass.part.kind;
      timed.seconds = secondsOf(kind);
      if (hasHead && each.isLastChunk(turn.pass.part.chunk * each.stages + stage))
        timed.seconds += kind == PassKind::Weights ? -0.4 : 0.3;
      // Messages from one stage to another have two orders: one for outputs and one for gradients.
      auto channelOf = [&](int64_t from, const Message &message) {
        return static_cast<int32_t>(2 * (from % each.stages) + (message.isGradient ? 1 : 0));
      };
      for (size_t i = 0; i < turn.receives.size(); ++i) {
        const Message &message = turn.receives[i];
        int64_t from = message.chunk + (message.isGradient ? 1 : -1);
        own.push_back({channelOf(from, message), false, 0, 0, turn.isOwn && i == 0});
      }
      for (const Message &message : turn.sends)
        own.push_back({channelOf(stage, message), true, timed.seconds, 0, false});
      timed.meetings = own;
    }
  }
  std::optional<std::vector<predict::ActorTimes>> times = predict::timesOf(actors);
  if (!times)
    return std::nullopt;
  double end = 0;
  for (const predict::ActorTimes &own : *times)
    end = std::max(end, own.passes.back().end);
  return end;
}

std::string nameOf(const Case &each) {
  return fmt::format("{}: {} stages, {} chunks, {} microbatches in groups of {}", each.name,
                     each.stages, each.chunks, each.microbatches, each.group);
}

TEST(StageSchedule, RunsEachPartOfEachMicrobatchOnceInOrder) {
  for (const Case &each : allCases())
    for (int32_t stage = 0; stage < each.stages; ++stage) {
      std::map<StagePart, int64_t> next;
      for (const StagePass &pass : each.schedule.passes(stage))
        EXPECT_EQ(pass.microbatch, next[pass.part]++) << nameOf(each);
      for (const auto &[part, count] : next)
        EXPECT_EQ(count, each.microbatches) << nameOf(each);
    }
}

TEST(StageSchedule, ExchangesEachMessageOnceAndInOrder) {
  for (const Case &each : allCases()) {
    std::map<std::pair<int64_t, bool>, std::vector<Message>> sent, received; // by sender
    for (int32_t stage = 0; stage < each.stages; ++stage)
      for (const Turn &turn : turnsOf(each, stage)) {
        for (const Message &message : turn.sends)
          sent[{stage, message.isGradient}].push_back(message);
        for (const Message &message : turn.receives) {
          int64_t from = message.chunk + (message.isGradient ? 1 : -1);
          received[{from % each.stages, message.isGradient}].push_back(message);
        }
      }
    EXPECT_EQ(sent, received) << nameOf(each);
  }
}

TEST(StageSchedule, PredicatesOfReceivesDoNotGrowWithMicrobatches) {
  auto predicates = [](const StageSchedule &schedule) {
    size_t count = 0;
    for (int32_t stage = 0; stage < schedule.shape().stages; ++stage)
      for (StagePart part : schedule.parts(stage))
        for (const Receive &receive : schedule.receives(stage, part))
          count += receive.when.size();
    return count;
  };
  for (int64_t chunks : {2, 3})
    for (int64_t group : {0, 8}) {
      auto with = [&](int64_t microbatches) {
        return PipelineShape{4, chunks, microbatches, group};
      };
      EXPECT_LE(predicates(StageSchedule::oneForwardOneBackward(with(512))),
                predicates(StageSchedule::oneForwardOneBackward(with(64))));
      EXPECT_LE(predicates(StageSchedule::forwardOnly(with(512))),
                predicates(StageSchedule::forwardOnly(with(64))));
    }
}

TEST(StageSchedule, ReceivesBeforeAPassTakesItIntoASlotThatIsFree) {
  for (const Case &each : allCases())
    for (int32_t stage = 0; stage < each.stages; ++stage) {
      std::map<std::pair<StagePart, int64_t>, int64_t> inSlot; // microbatch that waits in the slot
      auto slotOf = [&](StagePart part, int64_t mb) {
        return std::pair(part, mb % std::max(each.schedule.slotsOfReceived(stage, part), 1));
      };
      for (const Turn &turn : turnsOf(each, stage)) {
        StagePart part = turn.pass.part;
        int64_t chunk = part.chunk * each.stages + stage;
        bool takes =
            hasForward(part.kind) ? chunk > 0 : hasInputs(part.kind) && !each.isLastChunk(chunk);
        if (takes && !turn.isOwn) {
          auto at = inSlot.find(slotOf(part, turn.pass.microbatch));
          ASSERT_NE(at, inSlot.end()) << nameOf(each);
          EXPECT_EQ(at->second, turn.pass.microbatch) << nameOf(each);
          inSlot.erase(at);
        }
        for (const Receive &receive : each.schedule.receives(stage, part))
          for (const plan::Pred &pred : receive.when) {
            int64_t mb = turn.pass.microbatch, of = mb + receive.shift;
            if (!plan::holds(pred, plan::Variant{mb, each.microbatches}))
              continue;
            EXPECT_TRUE(inSlot.emplace(slotOf(receive.of, of), of).second) << nameOf(each);
          }
      }
      EXPECT_TRUE(inSlot.empty()) << nameOf(each);
    }
}

TEST(StageSchedule, KeepsAsManyMicrobatchesAsItSays) {
  for (const Case &each : allCases())
    for (int32_t stage = 0; stage < each.stages; ++stage) {
      const std::vector<StagePart> &parts = each.schedule.parts(stage);
      for (StagePart from : parts)
        for (StagePart to : parts) {
          if (from.kind != PassKind::Forward || to.kind == PassKind::Forward ||
              to.kind == PassKind::Both || from.chunk != to.chunk)
            continue;
          std::set<int64_t> kept;
          size_t most = 0;
          for (const StagePass &pass : each.schedule.passes(stage)) {
            if (pass.part == from)
              kept.insert(pass.microbatch);
            most = std::max(most, kept.size());
            if (pass.part == to) {
              EXPECT_EQ(kept.erase(pass.microbatch), 1u) << nameOf(each);
            }
          }
          EXPECT_EQ(most, each.schedule.slotsBetween(stage, from, to)) << nameOf(each);
          // No stage keeps more microbatches than the first stage.
          if (each.chunks == 1) {
            EXPECT_LE(static_cast<int64_t>(most), std::min(each.stages, each.microbatches));
          }
        }
    }
}

TEST(StageSchedule, WaitsNoLongerThanItIsKnownFor) {
  for (const Case &each : allCases()) {
    std::optional<double> seconds = secondsOf(each);
    ASSERT_TRUE(seconds.has_value()) << nameOf(each);
    auto waiting = static_cast<double>(each.stages - 1);
    double work = 3.0 * static_cast<double>(each.microbatches * each.chunks);
    bool isZeroBubble = std::string_view(each.name) == "zero bubble";
    if (each.microbatches >= each.stages || (each.chunks == 1 && !isZeroBubble)) {
      EXPECT_EQ(*seconds, work + (isZeroBubble ? 1 : 3) * waiting) << nameOf(each);
    } else {
      EXPECT_LE(*seconds, work + 3 * waiting * static_cast<double>(each.chunks)) << nameOf(each);
    }
  }
}

/// If there are two stages, the second is always late, because only it computes the loss.
TEST(StageSchedule, KeepsStagesBusyWhereOneIsLate) {
  for (const Case &each : allCases()) {
    if (each.stages != 2 || each.microbatches < 4)
      continue;
    std::optional<double> seconds = secondsOf(each, /*hasHead=*/true);
    ASSERT_TRUE(seconds.has_value()) << nameOf(each);
    double late = std::string_view(each.name) == "zero bubble" ? 0.3 + 0.3 - 0.4 : 0.3;
    double own =
        (3.0 * static_cast<double>(each.chunks) + late) * static_cast<double>(each.microbatches);
    EXPECT_LE(*seconds, own + 3 + 1e-9) << nameOf(each);
  }
}

TEST(StageSchedule, WritesItsProgramInLoops) {
  for (const Case &each : allCases())
    for (int32_t stage = 0; stage < each.stages; ++stage) {
      std::map<StagePart, uint32_t> segmentOf;
      for (StagePart part : each.schedule.parts(stage))
        segmentOf.emplace(part, static_cast<uint32_t>(segmentOf.size()));
      std::vector<plan::ProgramNode> program = each.schedule.program(stage, segmentOf);
      std::vector<std::pair<uint32_t, int64_t>> runs, expected;
      plan::forEachRun(program, [&](const plan::ProgramNode &node, int64_t iteration) {
        for (int64_t i = 0; i < node.count; ++i)
          runs.emplace_back(node.segment, node.microbatch ? node.microbatch->at(iteration) : i);
        return true;
      });
      for (const StagePass &pass : each.schedule.passes(stage))
        expected.emplace_back(segmentOf[pass.part], pass.microbatch);
      EXPECT_EQ(runs, expected) << nameOf(each);
    }
  PipelineShape shape{4, 1, 12};
  StageSchedule schedule = StageSchedule::oneForwardOneBackward(shape);
  EXPECT_EQ(schedule.program(0, {{{PassKind::Forward, 0}, 0}, {{PassKind::Backward, 0}, 1}}).size(),
            3u);
}

// 18,432 passes in groups of 96: comparing each one with all later ones would take minutes.
TEST(StageSchedule, ProgramsOfManyPassesAreShort) {
  PipelineShape shape{8, 6, 1536};
  StageSchedule schedule = StageSchedule::oneForwardOneBackward(shape);
  std::map<StagePart, uint32_t> segmentOf;
  for (StagePart part : schedule.parts(0))
    segmentOf.emplace(part, static_cast<uint32_t>(segmentOf.size()));
  std::vector<plan::ProgramNode> program = schedule.program(0, segmentOf);
  EXPECT_EQ(schedule.passes(0).size(), 2u * 6 * 1536);
  EXPECT_LT(program.size(), 200u);
  std::vector<std::pair<uint32_t, int64_t>> runs, expected;
  plan::forEachRun(program, [&](const plan::ProgramNode &node, int64_t iteration) {
    runs.emplace_back(node.segment, node.microbatch->at(iteration));
    return true;
  });
  for (const StagePass &pass : schedule.passes(0))
    expected.emplace_back(segmentOf[pass.part], pass.microbatch);
  EXPECT_TRUE(runs == expected);
}

} // namespace
} // namespace shardc::passes
