// Finds when the passes of each stage run, what they receive, and repeated sequences, which become
// loops of a program.
#include "compiler/passes/StageSchedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "compiler/predict/PipelineTime.h"
#include "runtime/base/Status.h"

namespace shardc::passes {

using plan::Pred;
using plan::ProgramNode;

namespace {

/// Assumes that the backward pass of a layer takes twice as long as its forward pass.
double usualSeconds(const StagePart &part) {
  return part.kind == PassKind::Both ? 3 : part.kind == PassKind::Backward ? 2 : 1;
}

/// A repeated sequence of passes; each repetition advances the microbatch by `step`.
struct Repetition {
  size_t length = 1, count = 1;
  int64_t step = 0;

  /// Lines of plan text.
  size_t lines() const { return length + (count > 1 ? 1 : 0); }
};

/// Finds the program with the fewest lines. Returns, for each pass, the piece with which the
/// shortest program from there on begins. A piece may leave up to `longest` passes, in whole
/// repetitions, to the next piece if that is shorter.
std::vector<Repetition> shortestOf(const std::vector<StagePass> &passes, size_t longest) {
  /// The number of passes, from the current one on, that equal the pass `length` positions later
  /// except for `step` microbatches.
  struct Run {
    size_t alike = 0;
    int64_t step = 0;
  };
  std::vector<Run> runs(longest + 1); // by length
  std::vector<Repetition> best(passes.size());
  std::vector<size_t> lines(passes.size() + 1);
  for (size_t i = passes.size(); i-- > 0;) {
    lines[i] = lines[i + 1] + 1;
    for (; passes[i + best[i].length - 1].isPair; ++best[i].length)
      lines[i] = lines[i + best[i].length + 1] + best[i].length + 1;
    for (size_t length = 1; length <= longest && i + length < passes.size(); ++length) {
      Run &run = runs[length];
      int64_t step = passes[i + length].microbatch - passes[i].microbatch;
      bool isLike = passes[i].part == passes[i + length].part &&
                    passes[i].isPair == passes[i + length].isPair;
      run = {isLike ? (run.step == step ? run.alike : 0) + 1 : 0, step};
      Repetition found{length, 1 + run.alike / length, step};
      for (size_t left = 0; found.count > 1 && left <= longest / length; --found.count, ++left)
        if (size_t all = found.lines() + lines[i + length * found.count]; all < lines[i])
          lines[i] = all, best[i] = found;
    }
    if (i > 0 && passes[i - 1].isPair) // no piece begins within a cell
      lines[i] += 2 * passes.size();
  }
  return best;
}

} // namespace

StageSchedule::StageSchedule(const PassOrder &order, const SecondsOf &seconds)
    : order_(order), index_(order.placement.chunks(), order.microbatches) {
  joinParts();
  placed_ = placeReceives(usualSeconds);
  if (seconds) {
    constexpr double kGain = 0.999;
    placed_.seconds = *secondsWith(placed_.transfers, seconds);
    if (Placed placed = placeReceives(seconds); placed.seconds < kGain * placed_.seconds)
      placed_ = std::move(placed);
  }
  for (int32_t stage = 0; stage < stages(); ++stage) {
    receives_.emplace_back();
    for (StagePart part : parts(stage))
      receives_.back()[part] = receivesOf(part);
    for (StagePart part : parts(stage))
      if (std::optional<Handover> of = operandOf(part))
        waiting_[*of] = countWaiting(*of);
  }
  placed_.transfers = {};
}

/// Turns the passes of the order into those that segments execute.
void StageSchedule::joinParts() {
  const int32_t last = placement().chunks() - 1;
  auto isBehindItsForward = [&](const std::vector<StagePass> &row, size_t i) {
    return i > 0 && row[i].part == StagePart{PassKind::Backward, last} &&
           row[i - 1].part == StagePart{PassKind::Forward, last} &&
           row[i - 1].microbatch == row[i].microbatch;
  };
  std::set<int32_t> divided; // chunks
  int64_t pairs = 0;
  for (std::vector<StagePass> &row : order_.rows)
    for (size_t i = 0; i < row.size(); ++i) {
      if (row[i].isPair && !hasForward(row[i].part.kind)) // the forward pass of a cell comes first
        std::swap(row[i], row[i + 1]), std::swap(row[i].isPair, row[i + 1].isPair);
      if (row[i].isPair && row[i + 1].microbatch > row[i].microbatch)
        row[i].isPair = false; // periods of predicates cannot begin before microbatch 0
      pairs += isBehindItsForward(row, i) ? 1 : 0;
      if (row[i].part.kind == PassKind::Inputs)
        divided.insert(row[i].part.chunk);
    }
  for (std::vector<StagePass> &own : order_.rows) {
    const std::vector<StagePass> row = std::exchange(own, {});
    std::set<StagePart> parts;
    for (size_t i = 0; i < row.size(); ++i) {
      auto [kind, chunk] = row[i].part;
      if (pairs == microbatches() && isBehindItsForward(row, i)) {
        own.back().part.kind = PassKind::Both;
        continue;
      }
      bool isDivided = kind == PassKind::Backward && divided.contains(chunk);
      bool isPair = row[i].isPair || (isDivided && i > 0 && row[i - 1].isPair);
      own.push_back({{isDivided ? PassKind::Inputs : kind, chunk}, row[i].microbatch, isPair});
      if (isDivided)
        own.push_back({{PassKind::Weights, chunk}, row[i].microbatch});
    }
    for (const StagePass &pass : own)
      parts.insert(pass.part);
    parts_.emplace_back(parts.begin(), parts.end());
  }
  for (const PassPlace &place : order_.places())
    index_.add(order_.at(place), place);
}

/// Chooses the pass that receives a value: one that runs when the value is computed, so that
/// neither side waits. If one pass ends exactly then and the next begins, the second one receives,
/// so that a late producer delays only the consumer. Adjacent stages that send to each other at the
/// same time could then deadlock; in that case the first pass receives gradients, inputs or both.
StageSchedule::Placed StageSchedule::placeReceives(const SecondsOf &seconds) const {
  const auto spans = order_.run(index_, seconds);
  Placed best{{}, std::numeric_limits<double>::infinity()};
  std::vector<Transfer> transfers;
  std::map<std::tuple<size_t, size_t, bool>, int32_t> channels;
  double bound = 0; // without transfers; no choice can be faster
  for (const PassPlace &to : order_.places()) {
    SHARDC_CHECK(to.pass < spans[to.row].size(), "stages wait for each other");
    bound = std::max(bound, spans[to.row][to.pass].end);
    const PassPlace *from = index_.needsOf(order_.at(to))[1];
    if (from == nullptr)
      continue;
    const bool isForward = hasForward(order_.at(to).part.kind);
    auto number = static_cast<int32_t>(channels.size());
    int32_t channel = channels.try_emplace({from->row, to.row, isForward}, number).first->second;
    transfers.push_back({spans[from->row][from->pass].end, to, *from, channel, from->pass});
  }
  std::ranges::sort(transfers);
  enum : unsigned { Gradients = 1, Inputs = 2 }; // what the second pass receives
  for (unsigned second = (Inputs | Gradients) + 1; second-- > 0 && best.seconds > bound;) {
    Placed found{transfers, 0};
    for (Transfer &each : found.transfers) {
      if (!each.isSent())
        continue;
      const PassPlace &to = each.to;
      bool isSecond = (second & (hasForward(order_.at(to).part.kind) ? Inputs : Gradients)) != 0;
      auto isTooLate = [&](const model::PassSpan &span) {
        return isSecond ? span.begin > each.ready : span.begin >= each.ready;
      };
      each.by = std::max<size_t>(order_.cellBegin(to), 1) - 1;
      while (each.by > 0 && isTooLate(spans[to.row][each.by]))
        --each.by;
    }
    found.seconds = secondsWith(found.transfers, seconds).value_or(best.seconds);
    if (found.seconds < best.seconds)
      best = std::move(found);
  }
  SHARDC_CHECK(std::isfinite(best.seconds), "stages wait for each other's transfers");
  return best;
}

/// Predicted seconds of a step. A transfer takes no time, and begins when both ends are ready.
/// Empty if stages deadlock.
std::optional<double> StageSchedule::secondsWith(const std::vector<Transfer> &transfers,
                                                 const SecondsOf &seconds) const {
  std::vector<std::vector<std::vector<predict::Meeting>>> meetings; // receives, then sends
  for (const std::vector<StagePass> &row : order_.rows)
    meetings.emplace_back(row.size());
  auto lengthOf = [&](PassPlace place) {
    double length = 0;
    for (size_t end = order_.cellEnd(place); place.pass < end; ++place.pass)
      length += seconds(order_.at(place).part);
    return length;
  };
  for (bool isSend : {false, true})
    for (const Transfer &each : transfers) {
      if (!each.isSent())
        continue;
      const PassPlace at = isSend ? each.from : PassPlace{each.to.row, each.by};
      const PassPlace cell{at.row, order_.cellBegin(at)};
      meetings[cell.row][cell.pass].push_back(
          {each.channel, isSend, isSend ? lengthOf(cell) : 0, 0, at == each.to, 0});
    }
  std::vector<std::vector<predict::Pass>> actors(meetings.size());
  for (size_t row = 0; row < actors.size(); ++row)
    for (size_t i = 0; i < meetings[row].size(); i = order_.cellEnd({row, i}))
      actors[row].push_back({lengthOf({row, i}), meetings[row][i]});
  std::optional<std::vector<predict::ActorTimes>> times = predict::timesOf(actors);
  if (!times)
    return std::nullopt;
  double end = 0;
  for (const predict::ActorTimes &own : *times)
    end = std::max(end, own.passes.back().end);
  return end;
}

/// The operands of later passes that arrive during passes of part `by`, each with its distance in
/// microbatches and the microbatches for which it arrives. A segment has one order of receives. It
/// is that in which passes need the values if the values also become ready in this order in each
/// microbatch; otherwise some receives are there twice, for different microbatches.
std::vector<Receive> StageSchedule::receivesOf(StagePart by) const {
  using Key = std::pair<Handover, int64_t>;
  struct Found {
    Key key;
    size_t after = SIZE_MAX; ///< fewest passes until the value is read
    std::vector<int64_t> microbatches;
  };
  std::vector<Found> order;
  std::map<std::pair<bool, int64_t>, std::vector<Key>> byMicrobatch;
  std::vector<Receive> receives;
  const int32_t stage = placement().stageOf(by.chunk);
  bool isOwnLeft = receivesOwn(stage, by);
  for (const Transfer &transfer : placed_.transfers) {
    const auto &[row, i] = transfer.to;
    if (std::cmp_not_equal(row, stage) || !transfer.isSent())
      continue;
    isOwnLeft &= i != 0;
    const StagePass &pass = order_.rows[row][i], &during = order_.rows[row][transfer.by];
    if (transfer.by == i || during.part != by)
      continue;
    int64_t now = during.microbatch;
    Key key{*operandOf(pass.part), pass.microbatch - now};
    if (isOwnLeft && transfer.by == 0 && !key.first.isGradient) {
      receives.push_back({key.first, key.second, predsOf({now}), true});
      continue;
    }
    auto found = std::ranges::find(order, key, &Found::key);
    if (found == order.end())
      found = order.insert(found, {key, SIZE_MAX, {}});
    found->after = std::min(found->after, i - transfer.by);
    byMicrobatch[{key.first.isGradient, now}].push_back(key);
  }
  std::ranges::sort(order, {},
                    [](const Found &found) { return std::pair(found.after, found.key); });
  for (const auto &[of, sequence] : byMicrobatch) {
    auto next = order.begin();
    for (const Key &key : sequence) {
      auto found = std::ranges::find(next, order.end(), key, &Found::key);
      if (found == order.end())
        found = order.insert(next, {key, 0, {}});
      found->microbatches.push_back(of.second);
      next = found + 1;
    }
  }
  std::erase_if(order, [](const Found &found) { return found.microbatches.empty(); });
  for (Found &found : order)
    receives.push_back(
        {found.key.first, found.key.second, predsOf(std::move(found.microbatches)), false});
  return receives;
}

/// Predicates for microbatches. Intervals that repeat three times or more at equal distances become
/// one predicate, so that neither ops nor variants of a segment grow with the number of
/// microbatches. Groups of microbatches repeat, so the distance is that to one of the next few
/// intervals of the same width.
std::vector<Pred> StageSchedule::predsOf(std::vector<int64_t> microbatches) const {
  constexpr int kCandidates = 64;
  std::ranges::sort(microbatches);
  std::set<std::pair<int64_t, int64_t>> left; // intervals: first and last number
  for (size_t i = 0, begin = 0; i < microbatches.size(); ++i)
    if (i + 1 == microbatches.size() || microbatches[i + 1] != microbatches[i] + 1)
      left.emplace(microbatches[begin], microbatches[i]), begin = i + 1;
  std::vector<Pred> preds;
  while (!left.empty()) {
    const auto [begin, last] = *left.begin();
    const int64_t first = begin, width = last - begin, end = order_.microbatches - 1;
    int64_t period = 0, count = 1;
    int tried = 0;
    for (auto next = std::next(left.begin()); next != left.end() && tried < kCandidates; ++next) {
      if (next->second - next->first != width)
        continue;
      ++tried;
      int64_t by = next->first - first, times = 2;
      while (left.contains({first + by * times, first + width + by * times}))
        ++times;
      if (times > count)
        period = by, count = times;
    }
    count = count < 3 ? 1 : count;
    preds.push_back(count > 1 ? Pred::every(period, begin, last, last + period * (count - 1))
                    : begin == 0 && last == end     ? Pred::Always
                    : begin == 0 && last == 0       ? Pred::First
                    : begin == end && last == end   ? Pred::Last
                    : begin == 0 && last == end - 1 ? Pred::NotLast
                    : begin == 1 && last == end     ? Pred::NotFirst
                                                    : Pred::within(begin, last));
    for (int64_t i = 0; i < count; ++i)
      left.erase({first + period * i, first + width + period * i});
  }
  return preds;
}

bool StageSchedule::receivesOwn(int32_t stage, StagePart part) const {
  std::optional<Handover> of = operandOf(part);
  return passes(stage).front().part == part && of && placement().areApart(of->maker(), of->chunk);
}

/// The fewest slots of a ring that `fit` and in which no value is replaced while it lives. The slot
/// is the microbatch modulo the number of slots.
template <typename Fit> int32_t StageSchedule::fewestSlots(std::vector<Life> lives, Fit fit) {
  std::ranges::sort(lives, {}, &Life::begin);
  for (int32_t slots = 1;; ++slots) {
    std::vector<size_t> free(at(slots)); // by slot: the first pass that may fill it again
    bool holds = std::ranges::all_of(lives, [&](const Life &life) {
      size_t &from = free[at(life.microbatch % slots)];
      return std::exchange(from, life.last + 1) <= life.begin;
    });
    if (holds && fit(slots))
      return slots;
  }
}

/// A pass may fill the slot that it empties, since it first reads the operand, unless it receives
/// before its own operand, or is in a cell with others. It must receive its transfers into
/// different slots of a ring, and not into the slot that it reads.
int32_t StageSchedule::countWaiting(Handover of) const {
  int32_t stage = placement().stageOf(of.chunk);
  std::vector<Life> lives;
  for (const auto &[ready, to, from, channel, by] : placed_.transfers) {
    const StagePass &pass = order_.at(to);
    if (operandOf(pass.part) != of || by == to.pass)
      continue;
    const size_t end = order_.cellEnd(to);
    bool isAlone = end - order_.cellBegin(to) == 1;
    lives.push_back(
        {order_.cellBegin({to.row, by}), isAlone ? to.pass - 1 : end - 1, pass.microbatch});
  }
  auto areApart = [&](int32_t slots) {
    return std::ranges::all_of(parts(stage), [&](StagePart by) {
      std::set<int64_t> shifts, taken;
      bool isFirst = false; // whether the pass receives others before its own
      for (const Receive &receive : receives(stage, by))
        if (receive.of == of)
          shifts.insert(receive.shift), isFirst |= receive.isBeforeOwn;
      if (operandOf(by) == of && (slots > 1 || isFirst))
        taken.insert(0);
      return std::ranges::all_of(shifts, [&](int64_t shift) {
        return taken.insert((shift % slots + slots) % slots).second;
      });
    });
  };
  return lives.empty() ? 0 : fewestSlots(std::move(lives), areApart);
}

Runs StageSchedule::runsOf(StagePart part) const {
  Runs runs{0, 0, microbatches()};
  for (int64_t i = 1; i < microbatches(); ++i) {
    runs.first = indexOf(part, i) < indexOf(part, runs.first) ? i : runs.first;
    runs.last = indexOf(part, i) > indexOf(part, runs.last) ? i : runs.last;
  }
  return runs;
}

int32_t StageSchedule::slotsFor(StagePart from, const std::set<StagePart> &to) const {
  std::vector<Life> lives;
  for (int64_t i = 0; i < microbatches(); ++i) {
    size_t last = 0;
    for (const StagePart &part : to)
      last = std::max(last, indexOf(part, i));
    lives.push_back({indexOf(from, i), last, i});
  }
  return fewestSlots(std::move(lives), [](int32_t) { return true; });
}

/// Writes the passes as program nodes. Repeated sequences become loops whose microbatch numbers
/// grow by a fixed step, so that programs stay short. If chunks take turns, a group of microbatches
/// passes through each of them forward and backward; other orders have short periods.
std::vector<ProgramNode>
StageSchedule::program(int32_t stage, const std::map<StagePart, uint32_t> &segmentOf) const {
  constexpr size_t kUsual = 64, kMost = 4096;
  const std::vector<StagePass> &all = passes(stage);
  if (parts(stage).size() == 1 && std::ranges::is_sorted(all))
    return {{ProgramNode::Run, segmentOf.at(all.front().part), microbatches(), {}, {}}};
  size_t chunks = placement().chunksOf(stage).size(), group = 0;
  while (group < all.size() && all[group].part == all.front().part)
    ++group;
  const auto best = shortestOf(all, std::clamp(2 * group * chunks, kUsual, kMost));
  std::vector<ProgramNode> nodes;
  for (size_t i = 0; i < all.size();) {
    const auto &[length, count, step] = best[i];
    std::vector<ProgramNode> runs;
    for (size_t k = i; k < i + length; ++k)
      runs.push_back({ProgramNode::Run,
                      segmentOf.at(all[k].part),
                      1,
                      {},
                      plan::MicrobatchNumber{step, all[k].microbatch}});
    i += length * count;
    if (count > 1)
      nodes.push_back(
          {ProgramNode::Loop, plan::kNone, static_cast<int64_t>(count), std::move(runs), {}});
    else
      std::ranges::move(runs, std::back_inserter(nodes));
  }
  return nodes;
}

} // namespace shardc::passes
