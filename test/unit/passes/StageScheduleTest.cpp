// Pipeline schedules: each message is exchanged once, in order and without deadlock; stages keep no
// more microbatches than the schedule says, and wait no longer than its known formula.
#include "compiler/passes/StageSchedule.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "compiler/model/ScheduleFile.h"
#include "compiler/predict/PipelineTime.h"
#include "runtime/plan/Variants.h"

namespace shardc::passes {
namespace {

using Schedule = plan::Job::PipelineSchedule;

struct Case {
  const char *name;
  int64_t stages, chunks, microbatches;
  StageSchedule schedule;
  int64_t group = 0; ///< microbatches per group; 0: as many as stages

  bool isLastChunk(int64_t chunk) const { return chunk == stages * chunks - 1; }
};

StageSchedule takingTurns(const PipelineShape &shape) {
  return StageSchedule(model::orderOf(Schedule::OneForwardOneBackward, shape));
}
StageSchedule withZeroBubble(const PipelineShape &shape) {
  return StageSchedule(model::orderOf(Schedule::ZeroBubble, shape));
}
StageSchedule evaluation(const PipelineShape &shape) {
  return StageSchedule(model::forwardOnly(shape));
}

std::vector<Case> allCases() {
  std::vector<Case> cases;
  for (int64_t stages : {2, 3, 4, 5, 8, 16})
    for (int64_t m = 1; m <= 17; ++m) {
      PipelineShape shape{stages, 1, m};
      cases.push_back({"1f1b", stages, 1, m, takingTurns(shape)});
      cases.push_back({"zero bubble", stages, 1, m, withZeroBubble(shape)});
    }
  for (int64_t stages : {2, 3, 4, 8})
    for (int64_t chunks : {2, 3})
      for (int64_t m = 1; m <= 5 * stages; m += m < stages ? 1 : stages) {
        PipelineShape shape{stages, chunks, m};
        cases.push_back({"interleaved", stages, chunks, shape.microbatches, takingTurns(shape)});
      }
  for (int64_t stages : {2, 3, 4})
    for (int64_t group : {stages, stages + 1, 2 * stages, 2 * stages + 1})
      for (int64_t chunks : {2, 3})
        for (int64_t m = group; m <= 3 * group; ++m) {
          if (m % group != 0 && m % group < stages)
            continue; // a rule refuses it
          PipelineShape shape{stages, chunks, m, group};
          cases.push_back({"interleaved", stages, chunks, m, takingTurns(shape), group});
        }
  return cases;
}

/// A message that a chunk of layers takes from its neighbour: an output, or a gradient.
struct Message {
  Handover of;
  int64_t microbatch; ///< of the pass that receives the message
  auto operator<=>(const Message &) const = default;
};

/// A pass with its messages, in order.
struct Turn {
  StagePass pass;
  std::vector<Message> sends, receives;
  std::optional<size_t> own; ///< the receive that is for the pass itself, not for a later pass
};

std::vector<Turn> turnsOf(const StageSchedule &schedule, int32_t stage) {
  std::vector<Turn> turns;
  const Placement &placement = schedule.placement();
  for (const StagePass &pass : schedule.passes(stage)) {
    Turn turn{pass, {}, {}, {}};
    int64_t mb = pass.microbatch;
    int32_t chunk = pass.part.chunk;
    auto receive = [&](bool isBeforeOwn) {
      for (const Receive &receive : schedule.receives(stage, pass.part))
        for (const plan::Pred &pred : receive.when)
          if (receive.isBeforeOwn == isBeforeOwn &&
              plan::holds(pred, plan::Variant{mb, schedule.microbatches()}))
            turn.receives.push_back({receive.of, mb + receive.shift});
    };
    receive(true);
    if (turns.empty() && schedule.receivesOwn(stage, pass.part)) {
      turn.own = turn.receives.size();
      turn.receives.push_back({*schedule.operandOf(pass.part), mb});
    }
    receive(false);
    if (hasForward(pass.part.kind) && placement.areApart(chunk, chunk + 1))
      turn.sends.push_back({{false, chunk + 1}, mb});
    if (hasInputs(pass.part.kind) && placement.areApart(chunk, chunk - 1))
      turn.sends.push_back({{true, chunk - 1}, mb});
    turns.push_back(turn);
  }
  return turns;
}

/// Messages from one stage to another have two orders: one for outputs and one for gradients.
struct Ends {
  int32_t from, to;
  bool isGradient;
  auto operator<=>(const Ends &) const = default;
};

Ends endsOf(const StageSchedule &schedule, const Handover &of) {
  return {schedule.placement().stageOf(of.maker()), schedule.placement().stageOf(of.chunk),
          of.isGradient};
}

double secondsOf(PassKind kind) {
  return kind == PassKind::Both ? 3 : kind == PassKind::Backward ? 2 : 1;
}

/// Seconds of a step if transfers take no time. Empty if stages wait for each other forever.
std::optional<double> secondsOf(const StageSchedule &schedule,
                                const std::function<double(const StagePass &)> &lengthOf) {
  std::vector<std::vector<predict::Pass>> actors;
  std::list<std::vector<predict::Meeting>> meetings;
  std::map<Ends, int32_t> channels;
  auto channelOf = [&](const Message &message) {
    auto number = static_cast<int32_t>(channels.size());
    return channels.try_emplace(endsOf(schedule, message.of), number).first->second;
  };
  for (int32_t stage = 0; stage < schedule.stages(); ++stage) {
    std::vector<predict::Pass> &passes = actors.emplace_back();
    bool isPair = false; // the pass is in one cell with the one before it
    for (const Turn &turn : turnsOf(schedule, stage)) {
      predict::Pass &timed = isPair ? passes.back() : passes.emplace_back();
      std::vector<predict::Meeting> &own = isPair ? meetings.back() : meetings.emplace_back();
      isPair = turn.pass.isPair;
      timed.seconds += lengthOf(turn.pass);
      for (size_t i = 0; i < turn.receives.size(); ++i)
        own.push_back({channelOf(turn.receives[i]), false, 0, 0, turn.own == i});
      for (const Message &message : turn.sends)
        own.push_back({channelOf(message), true, timed.seconds, 0, false});
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

/// If each pass takes the time that schedules assume. With `hasHead`, the last chunk needs longer
/// for results that others wait for, and less for its weights.
std::optional<double> secondsOf(const Case &each, bool hasHead = false) {
  return secondsOf(each.schedule, [&](const StagePass &pass) {
    double more = hasHead && each.isLastChunk(pass.part.chunk)
                      ? pass.part.kind == PassKind::Weights ? -0.4 : 0.3
                      : 0;
    return secondsOf(pass.part.kind) + more;
  });
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

/// Each message is sent once and received once, in one order at both ends.
void checkMessages(const StageSchedule &schedule, const std::string &name) {
  std::map<Ends, std::vector<Message>> sent, received;
  for (int32_t stage = 0; stage < schedule.stages(); ++stage)
    for (const Turn &turn : turnsOf(schedule, stage)) {
      for (const Message &message : turn.sends)
        sent[endsOf(schedule, message.of)].push_back(message);
      for (const Message &message : turn.receives)
        received[endsOf(schedule, message.of)].push_back(message);
    }
  EXPECT_EQ(sent, received) << name;
}

/// What a pass takes was put into its slot before, and not replaced since.
void checkSlots(const StageSchedule &schedule, const std::string &name) {
  const Placement &placement = schedule.placement();
  for (int32_t stage = 0; stage < schedule.stages(); ++stage) {
    std::map<std::pair<Handover, int64_t>, int64_t> inSlot; // microbatch that waits in the slot
    auto put = [&](Handover of, int64_t mb) {
      auto slots = std::max<int64_t>(schedule.slotsOfWaiting(of), 1);
      EXPECT_TRUE(inSlot.emplace(std::pair(of, mb % slots), mb).second) << name;
    };
    for (const Turn &turn : turnsOf(schedule, stage)) {
      StagePart part = turn.pass.part;
      int64_t mb = turn.pass.microbatch;
      for (size_t i = 0; i < turn.own.value_or(0); ++i)
        put(turn.receives[i].of, turn.receives[i].microbatch);
      std::optional<Handover> of = schedule.operandOf(part);
      if (of && turn.own && schedule.slotsOfWaiting(*of) > 0)
        put(*of, mb); // and reads it
      if (of && (!turn.own || schedule.slotsOfWaiting(*of) > 0)) {
        auto at = inSlot.find({*of, mb % std::max<int64_t>(schedule.slotsOfWaiting(*of), 1)});
        ASSERT_NE(at, inSlot.end()) << name;
        EXPECT_EQ(at->second, mb) << name;
        inSlot.erase(at);
      }
      for (size_t i = turn.own ? *turn.own + 1 : 0; i < turn.receives.size(); ++i)
        put(turn.receives[i].of, turn.receives[i].microbatch);
      if (hasForward(part.kind) && placement.areTogether(part.chunk, part.chunk + 1))
        put({false, part.chunk + 1}, mb);
      if (hasInputs(part.kind) && placement.areTogether(part.chunk, part.chunk - 1))
        put({true, part.chunk - 1}, mb);
    }
    EXPECT_TRUE(inSlot.empty()) << name;
  }
}

/// What a forward pass keeps is there until the last pass that reads it.
void checkKept(const StageSchedule &schedule, const std::string &name) {
  for (int32_t stage = 0; stage < schedule.stages(); ++stage)
    for (int32_t chunk : schedule.placement().chunksOf(stage)) {
      StagePart from{PassKind::Forward, chunk};
      std::set<StagePart> readers;
      for (const StagePart &part : schedule.parts(stage))
        if (part.chunk == chunk && !hasForward(part.kind))
          readers.insert(part);
      if (readers.empty())
        continue;
      int32_t slots = schedule.slotsFor(from, readers);
      std::map<int64_t, int64_t> inSlot;
      for (const StagePass &pass : schedule.passes(stage)) {
        if (pass.part == from)
          inSlot[pass.microbatch % slots] = pass.microbatch;
        if (readers.contains(pass.part)) {
          EXPECT_EQ(inSlot[pass.microbatch % slots], pass.microbatch) << name;
        }
      }
    }
}

TEST(StageSchedule, ExchangesEachMessageOnceAndInOrder) {
  for (const Case &each : allCases())
    checkMessages(each.schedule, nameOf(each));
}

TEST(StageSchedule, PredicatesOfReceivesDoNotGrowWithMicrobatches) {
  auto predicates = [](const StageSchedule &schedule) {
    size_t count = 0;
    for (int32_t stage = 0; stage < schedule.stages(); ++stage)
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
      EXPECT_LE(predicates(takingTurns(with(512))), predicates(takingTurns(with(64))));
      EXPECT_LE(predicates(evaluation(with(512))), predicates(evaluation(with(64))));
    }
}

TEST(StageSchedule, ReceivesBeforeAPassTakesItIntoASlotThatIsFree) {
  for (const Case &each : allCases())
    checkSlots(each.schedule, nameOf(each));
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
          EXPECT_EQ(most, each.schedule.slotsFor(from, {to})) << nameOf(each);
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
  StageSchedule schedule = takingTurns(shape);
  EXPECT_EQ(schedule.program(0, {{{PassKind::Forward, 0}, 0}, {{PassKind::Backward, 0}, 1}}).size(),
            3u);
}

// 18,432 passes in groups of 96: comparing each one with all later ones would take minutes.
TEST(StageSchedule, ProgramsOfManyPassesAreShort) {
  PipelineShape shape{8, 6, 1536};
  StageSchedule schedule = takingTurns(shape);
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

/// Draws orders: placements in a loop, a V, or a list; and passes in a random order in which each
/// follows those that it needs.
class Draw {
public:
  explicit Draw(uint32_t seed) : random_(seed) {}

  int64_t below(int64_t count) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }

  Placement placement() {
    int64_t stages = 2 + below(7), chunks = 1 + below(3), kind = below(3);
    if (kind < 2)
      return kind == 0 ? Placement::looped(stages, chunks) : Placement::v(stages, chunks);
    std::vector<int32_t> stageOf;
    for (int64_t chunk = 0; chunk < stages * chunks; ++chunk)
      stageOf.push_back(static_cast<int32_t>(chunk < stages ? chunk : below(stages)));
    std::ranges::shuffle(stageOf, random_);
    return Placement(std::move(stageOf));
  }

  model::PassOrder order() {
    model::PassOrder order{placement(), 1 + below(9), {}, {}};
    order.rows.resize(static_cast<size_t>(order.placement.stages()));
    const int32_t chunks = order.placement.chunks();
    auto number = [&](int32_t chunk, int64_t mb) {
      return static_cast<size_t>(chunk * order.microbatches + mb);
    };
    size_t count = number(chunks, 0);
    std::vector<uint8_t> hasOutput(count), hasGradient(count), isDivided(count);
    int64_t share = below(3);
    for (uint8_t &each : isDivided)
      each = below(2) < share ? 1 : 0;
    std::vector<StagePass> open, next;
    for (int64_t mb = 0; mb < order.microbatches; ++mb)
      open.push_back({{PassKind::Forward, 0}, mb});
    int64_t hurry = below(3); // how much earlier microbatches, or backward passes, are preferred
    while (!open.empty()) {
      auto rank = [&](const StagePass &pass) {
        return below(100) + (hurry == 1   ? 20 * pass.microbatch
                             : hurry == 2 ? (hasForward(pass.part.kind) ? 80 : 0)
                                          : 0);
      };
      size_t best = 0;
      for (size_t i = 1, least = SIZE_MAX; i <= open.size(); ++i)
        if (auto own = static_cast<size_t>(rank(open[i - 1])); own < least)
          least = own, best = i - 1;
      StagePass pass = open[best];
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(best));
      auto [kind, chunk] = pass.part;
      order.rows[static_cast<size_t>(order.placement.stageOf(chunk))].push_back(pass);
      size_t own = number(chunk, pass.microbatch);
      hasOutput[own] |= kind == PassKind::Forward ? 1 : 0;
      hasGradient[own] |= hasInputs(kind) ? 1 : 0;
      if (kind == PassKind::Forward && !order.placement.isLast(chunk))
        open.push_back({{PassKind::Forward, chunk + 1}, pass.microbatch});
      if (kind == PassKind::Inputs)
        open.push_back({{PassKind::Weights, chunk}, pass.microbatch});
      int32_t back = kind == PassKind::Forward ? chunk : chunk - 1;
      bool begins =
          kind != PassKind::Weights && back >= 0 && hasOutput[number(back, pass.microbatch)] != 0 &&
          (order.placement.isLast(back) || hasGradient[number(back + 1, pass.microbatch)] != 0);
      if (begins)
        open.push_back(
            {{isDivided[number(back, pass.microbatch)] != 0 ? PassKind::Inputs : PassKind::Backward,
              back},
             pass.microbatch});
    }
    return order;
  }

  std::mt19937 &random() { return random_; }

private:
  std::mt19937 random_;
};

int64_t drawnOrders() { return std::getenv("SHARDC_LONG") != nullptr ? 2000 : 60; }

TEST(StageSchedule, DrawnOrdersNeverDeadlockAndFitTheirSlots) {
  Draw draw(7);
  for (int64_t i = 0; i < drawnOrders(); ++i) {
    model::PassOrder order = draw.order();
    std::string name = fmt::format("order {}:\n{}", i, model::writeSchedule(order));
    ASSERT_FALSE(order.check().has_value()) << name << order.check()->reason;
    StageSchedule schedule(order);
    checkMessages(schedule, name);
    checkSlots(schedule, name);
    checkKept(schedule, name);
    EXPECT_TRUE(secondsOf(schedule, [](const StagePass &pass) { return secondsOf(pass.part.kind); })
                    .has_value())
        << name;
    std::map<StagePass, double> seconds;
    EXPECT_TRUE(secondsOf(schedule,
                          [&](const StagePass &pass) {
                            return seconds
                                .try_emplace(pass, static_cast<double>(1 + draw.below(20)))
                                .first->second;
                          })
                    .has_value())
        << name;
    if (::testing::Test::HasFailure())
      return;
  }
}

TEST(PassOrder, FilesGiveTheSameOrderAgain) {
  Draw draw(8);
  for (int64_t i = 0; i < drawnOrders(); ++i) {
    model::PassOrder order = draw.order();
    auto read = model::readSchedule(model::writeSchedule(order), order.placement.stages(),
                                    order.microbatches);
    ASSERT_TRUE(std::holds_alternative<model::PassOrder>(read))
        << std::get<model::OrderFault>(read).reason;
    EXPECT_EQ(std::get<model::PassOrder>(read).rows, order.rows);
    EXPECT_EQ(std::get<model::PassOrder>(read).placement, order.placement);
  }
}

/// A pass is dropped, doubled, exchanged with another one, or moved to another stage. The order is
/// refused at one of the changed cells, or in a message that names one; an exchange may be valid.
TEST(PassOrder, RefusesChangedOrdersAtTheirCells) {
  Draw draw(9);
  for (int64_t i = 0; i < drawnOrders(); ++i) {
    model::PassOrder order = draw.order();
    auto count = static_cast<int64_t>(order.rows.size());
    auto row = static_cast<size_t>(draw.below(count));
    std::vector<StagePass> &own = order.rows[row];
    auto at = static_cast<size_t>(draw.below(std::ssize(own)));
    auto other = static_cast<size_t>(draw.below(std::ssize(own)));
    const StagePass pass = own[at];
    int64_t how = draw.below(4);
    if (how == 1)
      own.insert(own.begin() + static_cast<std::ptrdiff_t>(other), pass);
    else if (how == 2)
      std::swap(own[at], own[other]);
    else
      own.erase(own.begin() + static_cast<std::ptrdiff_t>(at));
    if (how == 3)
      order.rows[(row + 1) % order.rows.size()].push_back(pass);
    std::optional<model::OrderFault> fault = order.check();
    std::string text = model::writeSchedule(order);
    if (how == 2 && !fault) {
      EXPECT_TRUE(secondsOf(StageSchedule(order), [](const StagePass &) { return 1; })) << text;
      continue;
    }
    ASSERT_TRUE(fault.has_value()) << text;
    if (how == 2)
      continue; // a cycle may be named by other cells of it
    auto isNamed = [&](const StagePass &of) {
      return fault->reason.find(fmt::format("'{}'", model::nameOf(of))) != std::string::npos;
    };
    bool isOfParts = isNamed({{PassKind::Backward, pass.part.chunk}, pass.microbatch}) ||
                     isNamed({{PassKind::Inputs, pass.part.chunk}, pass.microbatch}) ||
                     isNamed({{PassKind::Weights, pass.part.chunk}, pass.microbatch});
    EXPECT_TRUE(isNamed(pass) || isOfParts || fault->kind == model::OrderFault::Kind::Shape ||
                fault->kind == model::OrderFault::Kind::Missing)
        << fault->reason << "\n"
        << text;
  }
}

/// The idle time of a stage between its first and its last pass, of the stage that idles most.
double idleInside(const StageSchedule &schedule, const model::PassOrder &order) {
  std::map<std::pair<int32_t, int64_t>, double> output, gradient;
  std::vector<size_t> done(order.rows.size());
  std::vector<double> now(order.rows.size()), begin(order.rows.size()), busy(order.rows.size());
  const Placement &placement = schedule.placement();
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t row = 0; row < done.size(); ++row)
      while (done[row] < order.rows[row].size()) {
        const StagePass &pass = order.rows[row][done[row]];
        auto [kind, chunk] = pass.part;
        auto needed = [&](const auto &of, int32_t maker) -> std::optional<double> {
          if (maker < 0 || maker >= placement.chunks())
            return 0;
          auto at = of.find({maker, pass.microbatch});
          return at == of.end() ? std::nullopt : std::optional(at->second);
        };
        std::optional<double> ready = kind == PassKind::Forward   ? needed(output, chunk - 1)
                                      : kind == PassKind::Weights ? std::optional(0.0)
                                                                  : needed(gradient, chunk + 1);
        if (!ready)
          break;
        double from = std::max(now[row], *ready), length = secondsOf(kind);
        begin[row] = done[row]++ == 0 ? from : begin[row];
        now[row] = from + length, busy[row] += length, moves = true;
        if (kind == PassKind::Forward)
          output[{chunk, pass.microbatch}] = now[row];
        if (hasInputs(kind))
          gradient[{chunk, pass.microbatch}] = now[row];
      }
  }
  double most = 0;
  for (size_t row = 0; row < done.size(); ++row)
    most = std::max(most, now[row] - begin[row] - busy[row]);
  return most;
}

/// ZB-V: no stage waits between its first and its last pass, and each keeps as many activations as
/// the first stage does under 1F1B (Qi et al., arXiv:2405.15362).
TEST(StageSchedule, ZbVHasNoBubbleInsideAndKeepsAsMuchAsOneForwardOneBackward) {
  for (int64_t stages : {2, 3, 4, 8})
    for (int64_t microbatches : {2 * stages, 4 * stages, 4 * stages + 1}) {
      model::PassOrder order = model::orderOf(Schedule::ZbV, {stages, 2, microbatches});
      ASSERT_FALSE(order.check().has_value()) << order.check()->reason;
      StageSchedule schedule(order);
      EXPECT_EQ(idleInside(schedule, order), 0) << stages << " stages";
      for (int32_t stage = 0; stage < stages; ++stage) {
        int64_t kept = 0, most = 0;
        for (const StagePass &pass : schedule.passes(stage)) {
          most = std::max(most, kept += hasForward(pass.part.kind) ? 1 : 0);
          kept -= pass.part.kind == PassKind::Weights ? 1 : 0;
        }
        EXPECT_LE(most, 2 * stages); // chunks, each half as large as a stage of 1F1B
      }
    }
}

/// DualPipeV keeps 2 stages + 1 chunks of activations (DeepSeek, github.com/deepseek-ai/DualPipe).
TEST(StageSchedule, DualPipeVKeepsOneChunkMoreThanTwicePerStage) {
  for (int64_t stages : {2, 3, 4, 8})
    for (int64_t microbatches : {2 * stages, 4 * stages, 32 + 2 * stages}) {
      model::PassOrder order = model::orderOf(Schedule::DualPipeV, {stages, 2, microbatches});
      ASSERT_FALSE(order.check().has_value()) << order.check()->reason;
      StageSchedule schedule(order);
      checkMessages(schedule, "DualPipeV");
      checkSlots(schedule, "DualPipeV");
      checkKept(schedule, "DualPipeV");
      for (int32_t stage = 0; stage < stages; ++stage) {
        int64_t kept = 0, most = 0;
        for (const StagePass &pass : order.rows[static_cast<size_t>(stage)]) {
          most = std::max(most, kept += hasForward(pass.part.kind) ? 1 : 0);
          bool ends = pass.part.kind == PassKind::Weights || pass.part.kind == PassKind::Backward;
          kept -= ends ? 1 : 0;
        }
        EXPECT_LE(most, 2 * stages + 1);
      }
    }
}

/// Megatron-LM's combined 1F1B: from one forward pass more than without cells on, each cell has a
/// forward pass and the backward pass of an earlier microbatch.
TEST(StageSchedule, AlternatingPassesShareCellsIfTheyOverlap) {
  for (int64_t stages : {1, 2, 3, 4, 8})
    for (int64_t chunks : {1, 2, 3})
      for (int64_t group : {stages, stages + 1})
        for (int64_t m = 1; m <= 3 * group + 1; ++m) {
          if (m > group && chunks > 1 && 0 < m % group && m % group < stages)
            continue; // a rule refuses it
          const PipelineShape shape{stages, chunks, m, group, {}, /*overlaps=*/true};
          model::PassOrder order = model::orderOf(Schedule::OneForwardOneBackward, shape);
          std::string name = model::writeSchedule(order);
          ASSERT_FALSE(order.check().has_value()) << name << order.check()->reason;
          StageSchedule schedule(order);
          checkMessages(schedule, name);
          checkSlots(schedule, name);
          checkKept(schedule, name);
          for (int32_t stage = 0; stage < stages; ++stage) {
            int64_t pairs = 0, ahead = 2 * (stages - 1 - stage) + (chunks - 1) * group + 1;
            const std::vector<StagePass> &passes = schedule.passes(stage);
            for (size_t i = 0; i < passes.size(); ++i)
              if (passes[i].isPair) {
                ++pairs;
                EXPECT_EQ(passes[i].part.kind, PassKind::Forward) << name;
                EXPECT_EQ(passes[i + 1].part.kind, PassKind::Backward) << name;
                EXPECT_GT(passes[i].microbatch, passes[i + 1].microbatch) << name;
              }
            EXPECT_EQ(pairs, std::max<int64_t>(m * chunks - ahead, 0)) << name;
          }
          std::optional<double> seconds =
              secondsOf(schedule, [](const StagePass &pass) { return secondsOf(pass.part.kind); });
          ASSERT_TRUE(seconds.has_value()) << name;
          if (group == stages && m % group == 0 && m > group) {
            double waiting = 3.0 * static_cast<double>(stages - 1);
            EXPECT_LE(*seconds, 3.0 * static_cast<double>(m * chunks) + 2 * waiting) << name;
          }
        }
}

/// Greedy orders are complete in any placement, keep what the limit says, and for stages of
/// different speeds wait less than the order for equal ones.
TEST(StageSchedule, GreedyOrdersKeepTheLimitAndBalanceUnevenStages) {
  const std::optional<Placement> placements[] = {Placement::looped(3, 1), Placement::looped(3, 2),
                                                 Placement::v(3, 2), Placement({0, 1, 1, 2, 0, 1})};
  for (const std::optional<Placement> &placement : placements)
    for (int64_t microbatches : {1, 3, 8, 21})
      for (int64_t limit : {0, 1, 2, 5}) {
        const PipelineShape shape{3, placement->chunks() / 3, microbatches, 0, placement};
        auto seconds = [](const StagePart &part) {
          return 1.0 + 0.25 * part.chunk + (part.kind == PassKind::Inputs ? 0.5 : 0);
        };
        for (const model::PassOrder &order : model::zeroBubbleGreedy(shape, limit, seconds)) {
          ASSERT_FALSE(order.check().has_value()) << order.check()->reason;
          EXPECT_EQ(order.placement, *placement);
          StageSchedule schedule(order, seconds);
          checkMessages(schedule, "greedy");
          checkSlots(schedule, "greedy");
          checkKept(schedule, "greedy");
          for (int32_t stage = 0; stage < 3; ++stage) {
            int64_t kept = 0, most = 0;
            for (const StagePass &pass : order.rows[static_cast<size_t>(stage)]) {
              most = std::max(most, kept += pass.part.kind == PassKind::Forward ? 1 : 0);
              kept -= makes(pass.part.kind, model::PassResult::Weights) ? 1 : 0;
            }
            EXPECT_LE(most, (limit > 0 ? limit : 3) * std::ssize(placement->chunksOf(stage)));
          }
        }
      }
  // Layers of llama3_8b, divided by time; the head is as slow as some layers. Predicted
  // milliseconds.
  auto secondsOfBest = [](const PipelineShape &shape, int64_t limit, std::vector<int> layers,
                          const model::PassOrder &periodic) {
    auto seconds = [&](const StagePart &part) {
      auto chunk = static_cast<size_t>(part.chunk);
      bool isLast = chunk + 1 == layers.size();
      double forward = 6.62 * layers[chunk] + (isLast ? 40.07 : 0), inputs = 9.32 * layers[chunk],
             weights = 5.18 * layers[chunk] + (isLast ? 1.28 : 0);
      return 1e-6 + (hasForward(part.kind) ? forward : 0) + (hasInputs(part.kind) ? inputs : 0) +
             (makes(part.kind, model::PassResult::Weights) ? weights : 0);
    };
    double best = std::numeric_limits<double>::infinity();
    for (const model::PassOrder &order : model::zeroBubbleGreedy(shape, limit, seconds))
      best = std::min(best, StageSchedule(order, seconds).seconds());
    return best / StageSchedule(periodic, seconds).seconds();
  };
  const PipelineShape one{8, 1, 32}, two{8, 2, 32, 0, Placement::v(8, 2)};
  const std::vector<int> looped = {5, 5, 4, 4, 4, 4, 4, 2},
                         inV = {3, 2, 2, 2, 2, 2, 2, 3, 2, 2, 2, 2, 2, 2, 2, 0};
  const model::PassOrder zeroBubble = model::orderOf(Schedule::ZeroBubble, one),
                         zbV = model::orderOf(Schedule::ZbV, two);
  EXPECT_LE(secondsOfBest(one, 0, looped, zeroBubble), 1);
  EXPECT_LT(secondsOfBest(one, 15, looped, zeroBubble), 0.96);
  EXPECT_LE(secondsOfBest(two, 0, inV, zbV), 1);
  EXPECT_LT(secondsOfBest(two, 12, inV, zbV), 0.99);
}

/// The table of docs/pipelines.md: 8 stages, 32 microbatches, and forward passes, input gradients
/// and weight gradients of a stage that take one unit each.
TEST(StageSchedule, StepsIdleAsLongAsThePageSays) {
  struct Row {
    model::PassOrder order;
    double idle, kept;
  };
  const PipelineShape one{8, 1, 32}, two{8, 2, 32}, three{8, 3, 32};
  auto usual = [](const StagePart &part) { return secondsOf(part.kind); };
  const Row rows[] = {
      {model::orderOf(Schedule::OneForwardOneBackward, one), 21, 8},
      {model::orderOf(Schedule::OneForwardOneBackward, two), 10.5, 11.5},
      {model::orderOf(Schedule::OneForwardOneBackward, three), 7, 31.0 / 3},
      {model::orderOf(Schedule::ZeroBubble, one), 7, 8},
      {model::orderOf(Schedule::ZbV, two), 3.5, 8},
      {model::orderOf(Schedule::DualPipeV, two), 7, 8.5}, // as published
      {model::orderOf(Schedule::LoopedBfs, two), 10.5, 32},
      {model::zeroBubbleGreedy({8, 2, 32, 0, Placement::v(8, 2)}, 12, usual).back(), 3.5, 12},
  };
  for (const Row &row : rows) {
    StageSchedule schedule(row.order);
    auto chunks = static_cast<double>(schedule.placement().chunksOf(0).size());
    std::optional<double> step = secondsOf(
        schedule, [&](const StagePass &pass) { return secondsOf(pass.part.kind) / chunks; });
    ASSERT_TRUE(step);
    EXPECT_NEAR(*step - 96, row.idle, 1e-9);
    double most = 0;
    for (const std::vector<StagePass> &passes : row.order.rows) {
      double kept = 0;
      for (const StagePass &pass : passes) {
        most = std::max(most, kept += pass.part.kind == PassKind::Forward ? 1 : 0);
        bool ends = pass.part.kind == PassKind::Backward || pass.part.kind == PassKind::Weights;
        kept -= ends ? 1 : 0;
      }
    }
    EXPECT_NEAR(most / chunks, row.kept, 1e-9);
  }
}

TEST(StageSchedule, BreadthFirstRunsBackwardInReverse) {
  model::PassOrder order = model::orderOf(Schedule::LoopedBfs, {4, 2, 6});
  ASSERT_FALSE(order.check().has_value()) << order.check()->reason;
  StageSchedule schedule(order);
  checkMessages(schedule, "breadth first");
  checkSlots(schedule, "breadth first");
  Runs runs = schedule.runsOf({PassKind::Backward, 0});
  EXPECT_EQ(runs.first, 5);
  EXPECT_EQ(runs.last, 0);
  EXPECT_EQ(runs.like(plan::Pred::NotFirst), plan::Pred::NotLast);
  EXPECT_EQ(runs.like(plan::Pred::Last), plan::Pred::First);
}

} // namespace
} // namespace shardc::passes
