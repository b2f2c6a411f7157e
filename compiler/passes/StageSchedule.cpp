// Finds when the passes of each stage run, what they receive, and repeated sequences, which become
// loops of a program.
#include "compiler/passes/StageSchedule.h"

#include <algorithm>
#include <cmath>
#include <mutex>
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

using Repetition = StageSchedule::Repetition;

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
    for (size_t length = 1; length <= longest && i + length < passes.size(); ++length) {
      Run &run = runs[length];
      int64_t step = passes[i + length].microbatch - passes[i].microbatch;
      bool isLike = passes[i].part == passes[i + length].part;
      run = {isLike ? (run.step == step ? run.alike : 0) + 1 : 0, step};
      Repetition found{length, 1 + run.alike / length, step};
      for (size_t left = 0; found.count > 1 && left <= longest / length; --found.count, ++left)
        if (size_t all = found.lines() + lines[i + length * found.count]; all < lines[i])
          lines[i] = all, best[i] = found;
    }
  }
  return best;
}

} // namespace

StageSchedule::StageSchedule(const PassOrder &order, const SecondsOf &seconds)
    : placement_(order.placement), microbatches_(order.microbatches) {
  takeRows(order);
  indexPasses();
  placeReceives(usualSeconds);
  if (seconds) {
    constexpr double kGain = 0.999;
    double usual = *secondsWith(receivedBy_, seconds);
    std::vector<std::vector<Arrival>> arrivals = arrivals_;
    ByPass receivedBy = receivedBy_;
    if (placeReceives(seconds) >= kGain * usual)
      arrivals_ = std::move(arrivals), receivedBy_ = std::move(receivedBy);
  }
  for (int32_t stage = 0; stage < stages(); ++stage) {
    receives_.emplace_back();
    for (StagePart part : parts(stage))
      receives_.back()[part] = receivesOf(stage, part);
    for (StagePart part : parts(stage))
      if (std::optional<Handover> of = operandOf(part))
        waiting_[*of] = countWaiting(*of);
    pieces_.push_back(piecesOf(stage));
  }
  begins_ = ends_ = {};
  arrivals_ = {};
}

void StageSchedule::takeRows(const PassOrder &order) {
  const int32_t last = placement_.chunks() - 1;
  auto isBehindItsForward = [&](const std::vector<StagePass> &row, size_t i) {
    return i > 0 && row[i].part == StagePart{PassKind::Backward, last} &&
           row[i - 1].part == StagePart{PassKind::Forward, last} &&
           row[i - 1].microbatch == row[i].microbatch;
  };
  std::set<int32_t> divided; // chunks
  int64_t pairs = 0;
  for (const std::vector<StagePass> &row : order.rows)
    for (size_t i = 0; i < row.size(); ++i) {
      pairs += isBehindItsForward(row, i) ? 1 : 0;
      if (row[i].part.kind == PassKind::Inputs)
        divided.insert(row[i].part.chunk);
    }
  if (pairs != microbatches_) // forward passes begin with gradients of weights, which move
    divided.insert(last);
  for (const std::vector<StagePass> &row : order.rows) {
    std::vector<StagePass> &own = passes_.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) {
      auto [kind, chunk] = row[i].part;
      if (pairs == microbatches_ && isBehindItsForward(row, i)) {
        own.back().part.kind = PassKind::Both;
        continue;
      }
      bool isDivided = kind == PassKind::Backward && divided.contains(chunk);
      own.push_back({{isDivided ? PassKind::Inputs : kind, chunk}, row[i].microbatch});
      if (isDivided)
        own.push_back({{PassKind::Weights, chunk}, row[i].microbatch});
    }
  }
}

void StageSchedule::indexPasses() {
  for (const std::vector<StagePass> &row : passes_) {
    std::set<StagePart> parts;
    for (size_t i = 0; i < row.size(); ++i) {
      parts.insert(row[i].part);
      auto [index, isNew] = indexOf_.try_emplace(row[i].part);
      if (isNew)
        index->second.resize(at(microbatches_), kNoPass);
      index->second[at(row[i].microbatch)] = i;
    }
    parts_.emplace_back(parts.begin(), parts.end());
  }
}

std::optional<Handover> StageSchedule::operandOf(const StagePart &part) const {
  if (hasForward(part.kind) && part.chunk > 0)
    return Handover{false, part.chunk};
  if (part.kind != PassKind::Both && hasInputs(part.kind) && !placement_.isLast(part.chunk))
    return Handover{true, part.chunk};
  return std::nullopt;
}

std::shared_ptr<const StageSchedule> StageSchedule::shared(Generator generator,
                                                           const PipelineShape &shape) {
  struct Entry {
    Generator generator;
    PipelineShape shape;
    std::shared_ptr<const StageSchedule> schedule;
  };
  constexpr size_t kPassesMax = size_t{6} << 20; // of all entries
  static std::mutex mutex;
  static std::vector<Entry> known;
  static size_t passes = 0;
  {
    std::scoped_lock lock(mutex);
    for (const Entry &entry : known)
      if (entry.generator == generator && entry.shape == shape)
        return entry.schedule;
  }
  auto made = std::make_shared<StageSchedule>(generator(shape));
  size_t count = 0;
  for (const std::vector<StagePass> &row : made->passes_)
    count += row.size();
  std::scoped_lock lock(mutex);
  if ((passes += count) > kPassesMax)
    known.clear(), passes = count;
  known.push_back({generator, shape, made});
  return made;
}

/// The pass that computes the operand of this pass.
std::optional<StageSchedule::Place> StageSchedule::producerOf(const StagePass &pass) const {
  std::optional<Handover> of = operandOf(pass.part);
  if (!of)
    return std::nullopt;
  int32_t maker = producerOf(*of);
  for (PassKind kind : {PassKind::Forward, PassKind::Both, PassKind::Backward, PassKind::Inputs})
    if (of->isGradient ? hasInputs(kind) : hasForward(kind))
      if (auto found = indexOf_.find({kind, maker}); found != indexOf_.end())
        return Place{placement_.stageOf(maker), found->second[at(pass.microbatch)]};
  return std::nullopt;
}

bool StageSchedule::isReceived(const StagePass &pass) const {
  std::optional<Handover> of = operandOf(pass.part);
  return of && placement_.areApart(of->chunk, producerOf(*of));
}

/// Assigns the earliest possible times to passes, assuming that transfers take no time and delay
/// only their receivers.
void StageSchedule::findTimes(const SecondsOf &seconds) {
  begins_.assign(passes_.size(), {});
  ends_ = begins_;
  for (bool hasMoved = true; hasMoved;) {
    hasMoved = false;
    for (int32_t stage = 0; stage < stages(); ++stage) {
      std::vector<double> &ends = ends_[at(stage)];
      while (ends.size() < passes(stage).size()) {
        const StagePass &pass = passes(stage)[ends.size()];
        std::optional<Place> producer = producerOf(pass);
        if (producer && ends_[at(producer->stage)].size() <= producer->pass)
          break;
        double begin = ends.empty() ? 0 : ends.back();
        if (producer)
          begin = std::max(begin, ends_[at(producer->stage)][producer->pass]);
        begins_[at(stage)].push_back(begin);
        ends.push_back(begin + seconds(pass.part));
        hasMoved = true;
      }
    }
  }
  arrivals_.assign(passes_.size(), {});
  for (int32_t stage = 0; stage < stages(); ++stage) {
    SHARDC_CHECK(ends_[at(stage)].size() == passes(stage).size(), "stages wait for each other");
    for (size_t i = 0; i < passes(stage).size(); ++i)
      if (isReceived(passes(stage)[i])) {
        Place producer = *producerOf(passes(stage)[i]);
        arrivals_[at(stage)].push_back({ends_[at(producer.stage)][producer.pass], i});
      }
    std::ranges::sort(arrivals_[at(stage)]);
  }
}

/// Chooses the pass that receives a value: one that runs when the value is computed, so that
/// neither side waits. If one pass ends exactly then and the next begins, the second one receives,
/// so that a late producer delays only the consumer. Adjacent stages that send to each other at the
/// same time could then deadlock; in that case the first pass receives gradients, inputs or both.
/// Returns the seconds of a step.
double StageSchedule::placeReceives(const SecondsOf &seconds) {
  findTimes(seconds);
  receivedBy_.clear();
  struct Second {
    bool inputs, gradients;
  };
  double least = std::numeric_limits<double>::infinity(), bound = 0; // without transfers
  for (const std::vector<double> &ends : ends_)
    bound = std::max(bound, ends.empty() ? 0 : ends.back());
  for (Second second : {Second{true, true}, Second{true, false}, Second{false, true}, Second{}}) {
    ByPass receivedBy(passes_.size());
    for (int32_t stage = 0; stage < stages(); ++stage)
      for (size_t i = 0; i < passes(stage).size(); ++i)
        receivedBy[at(stage)].push_back(receiverOf(
            stage, i, hasForward(passes(stage)[i].part.kind) ? second.inputs : second.gradients));
    if (receivedBy == receivedBy_)
      continue;
    std::optional<double> found = secondsWith(receivedBy, seconds);
    if (found && *found < least)
      least = *found, receivedBy_ = std::move(receivedBy);
    if (least <= bound)
      break; // no other choice can be faster
  }
  SHARDC_CHECK(std::isfinite(least), "stages wait for each other's transfers");
  return least;
}

/// The pass during which the input of the i-th pass arrives. If it may arrive during either of two
/// passes, `isSecond` selects the second one.
size_t StageSchedule::receiverOf(int32_t stage, size_t i, bool isSecond) const {
  if (!isReceived(passes(stage)[i]))
    return kNoPass;
  Place producer = *producerOf(passes(stage)[i]);
  double made = ends_[at(producer.stage)][producer.pass];
  size_t by = i == 0 ? 0 : i - 1;
  auto isTooLate = [&](double begin) { return isSecond ? begin > made : begin >= made; };
  while (by > 0 && isTooLate(begins_[at(stage)][by]))
    --by;
  return by;
}

/// Predicted seconds of a step. A transfer takes no time, and begins when both ends are ready.
/// Empty if stages deadlock.
std::optional<double> StageSchedule::secondsWith(const ByPass &receivedBy,
                                                 const SecondsOf &seconds) const {
  std::vector<std::vector<predict::Pass>> actors(passes_.size());
  std::vector<std::vector<std::vector<predict::Meeting>>> meetings(passes_.size());
  std::map<std::tuple<int32_t, int32_t, bool>, int32_t> channels;
  auto channelOf = [&](int32_t from, int32_t to, bool isForward) {
    auto number = static_cast<int32_t>(channels.size());
    return channels
        .try_emplace({placement_.stageOf(from), placement_.stageOf(to), isForward}, number)
        .first->second;
  };
  for (int32_t stage = 0; stage < stages(); ++stage) {
    const std::vector<StagePass> &all = passes(stage);
    const std::vector<size_t> &by = receivedBy[at(stage)];
    auto sends = [&](const StagePart &part, bool isForward) {
      return isForward ? hasForward(part.kind) && placement_.areApart(part.chunk, part.chunk + 1)
                       : hasInputs(part.kind) && placement_.areApart(part.chunk, part.chunk - 1);
    };
    std::vector<std::vector<predict::Meeting>> &own = meetings[at(stage)]; // receives, then sends
    own.resize(all.size());
    for (const Arrival &arrival : arrivals_[at(stage)]) {
      size_t i = arrival.pass;
      Handover operand = *operandOf(all[i].part);
      int32_t channel = channelOf(producerOf(operand), operand.chunk, !operand.isGradient);
      own[by[i]].push_back({channel, false, 0, 0, by[i] == i, 0});
    }
    for (size_t i = 0; i < all.size(); ++i) {
      double length = seconds(all[i].part);
      int32_t chunk = all[i].part.chunk;
      for (bool isForward : {true, false})
        if (sends(all[i].part, isForward)) {
          int32_t channel = channelOf(chunk, isForward ? chunk + 1 : chunk - 1, isForward);
          own[i].push_back({channel, true, length, 0, false, 0});
        }
      actors[at(stage)].push_back({length, own[i]});
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

/// The operands of later passes that arrive during passes of part `by`, each with its distance in
/// microbatches and the microbatches for which it arrives. A segment has one order of receives. It
/// is that in which passes need the values if the values also become ready in this order in each
/// microbatch; otherwise some receives are there twice, for different microbatches.
std::vector<Receive> StageSchedule::receivesOf(int32_t stage, StagePart by) const {
  using Key = std::pair<Handover, int64_t>;
  struct Found {
    Key key;
    size_t after = kNoPass; ///< fewest passes until the value is read
    std::vector<int64_t> microbatches;
  };
  std::map<Key, Found> all;
  std::map<std::pair<bool, int64_t>, std::vector<std::pair<Key, double>>> byMicrobatch;
  std::vector<Receive> receives;
  const std::vector<size_t> &receivedBy = receivedBy_[at(stage)];
  bool isOwnLeft = receivedBy.front() == 0 && passes(stage).front().part == by;
  for (const Arrival &arrival : arrivals_[at(stage)]) {
    size_t i = arrival.pass, during = receivedBy[i];
    isOwnLeft &= i != 0;
    if (during == i || passes(stage)[during].part != by)
      continue;
    const StagePass &pass = passes(stage)[i];
    int64_t now = passes(stage)[during].microbatch;
    Key key{*operandOf(pass.part), pass.microbatch - now};
    if (isOwnLeft && during == 0 && !key.first.isGradient) {
      receives.push_back({key.first, key.second, predsOf({now}), true});
      continue;
    }
    Found &found = all.try_emplace(key, Found{key, kNoPass, {}}).first->second;
    found.after = std::min(found.after, i - during);
    found.microbatches.push_back(now);
    byMicrobatch[{key.first.isGradient, now}].emplace_back(key, arrival.ready);
  }
  std::vector<Found> order;
  for (auto &[key, found] : all)
    order.push_back(std::move(found));
  std::ranges::stable_sort(order, {}, &Found::after);
  std::map<Key, size_t> rank;
  for (size_t k = 0; k < order.size(); ++k)
    rank[order[k].key] = k;
  auto isLikeNeeded = [&](auto sequence) {
    std::ranges::sort(sequence, {}, [&](const auto &each) { return rank[each.first]; });
    return std::ranges::is_sorted(sequence, {}, &std::pair<Key, double>::second);
  };
  if (!std::ranges::all_of(byMicrobatch,
                           [&](const auto &each) { return isLikeNeeded(each.second); })) {
    order.clear();
    for (const auto &[of, sequence] : byMicrobatch) {
      auto next = order.begin();
      for (const auto &[key, ready] : sequence) {
        auto found = std::ranges::find(next, order.end(), key, &Found::key);
        if (found == order.end())
          found = order.insert(next, {key, 0, {}});
        found->microbatches.push_back(of.second);
        next = found + 1;
      }
    }
  }
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
    const int64_t first = begin, width = last - begin, end = microbatches_ - 1;
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
  return passes(stage).front().part == part && receivedBy_[at(stage)].front() == 0;
}

int32_t StageSchedule::slotsOfWaiting(Handover of) const {
  auto found = waiting_.find(of);
  return found == waiting_.end() ? 0 : found->second;
}

/// The fewest slots of a ring, at least `least`, in which no value is replaced while it lives. The
/// slot is the microbatch modulo the number of slots.
int32_t StageSchedule::fewestSlots(const std::vector<Life> &lives, int32_t least) {
  std::vector<Life> order = lives;
  std::ranges::sort(order, {}, &Life::begin);
  auto slots = static_cast<size_t>(least);
  auto holds = [&] {
    std::vector<size_t> free(slots); // by slot: the first pass that may fill it again
    return std::ranges::all_of(order, [&](const Life &life) {
      size_t &from = free[at(life.microbatch) % slots];
      bool isFree = from <= life.begin;
      from = life.last + 1;
      return isFree;
    });
  };
  while (slots > 0 && !holds())
    ++slots;
  return static_cast<int32_t>(slots);
}

/// A pass may fill the slot that it empties, since it first reads the operand, unless it receives
/// before its own operand. It must receive its transfers into different slots of a ring, and not
/// into the slot that it reads.
int32_t StageSchedule::countWaiting(Handover of) const {
  int32_t stage = placement_.stageOf(of.chunk);
  std::vector<Life> lives;
  for (size_t i = 0; i < passes(stage).size(); ++i) {
    const StagePass &pass = passes(stage)[i];
    if (operandOf(pass.part) != of)
      continue;
    size_t begin = isReceived(pass) ? receivedBy_[at(stage)][i] : producerOf(pass)->pass;
    if (begin != i)
      lives.push_back({begin, i - 1, pass.microbatch});
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
  int32_t slots = lives.empty() ? 0 : fewestSlots(lives, 1);
  while (slots > 0 && !areApart(slots))
    slots = fewestSlots(lives, slots + 1);
  return slots;
}

Runs StageSchedule::runsOf(StagePart part) const {
  const std::vector<size_t> &index = indexOf_.at(part);
  auto [first, last] = std::ranges::minmax_element(index);
  return {first - index.begin(), last - index.begin(), microbatches_};
}

int32_t StageSchedule::slotsFor(StagePart from, const std::set<StagePart> &to) const {
  std::vector<Life> lives;
  const std::vector<size_t> &begins = indexOf_.at(from);
  for (int64_t i = 0; i < microbatches_; ++i) {
    size_t last = 0;
    for (const StagePart &part : to)
      last = std::max(last, indexOf_.at(part)[at(i)]);
    lives.push_back({begins[at(i)], last, i});
  }
  return fewestSlots(lives, 1);
}

/// Writes the passes as program nodes. Repeated sequences become loops whose microbatch numbers
/// grow by a fixed step, so that programs stay short.
std::vector<ProgramNode>
StageSchedule::program(int32_t stage, const std::map<StagePart, uint32_t> &segmentOf) const {
  const std::vector<StagePass> &all = passes(stage);
  if (parts(stage).size() == 1 && std::ranges::is_sorted(all))
    return {{ProgramNode::Run, segmentOf.at(all.front().part), microbatches_, {}, {}}};
  std::vector<ProgramNode> nodes;
  auto pass = all.begin();
  for (const Repetition &piece : pieces_[at(stage)]) {
    std::vector<ProgramNode> runs;
    for (size_t k = 0; k < piece.length; ++k)
      runs.push_back({ProgramNode::Run,
                      segmentOf.at(pass[k].part),
                      1,
                      {},
                      plan::MicrobatchNumber{piece.step, pass[k].microbatch}});
    if (piece.count > 1)
      nodes.push_back(
          {ProgramNode::Loop, plan::kNone, static_cast<int64_t>(piece.count), std::move(runs), {}});
    else
      std::ranges::move(runs, std::back_inserter(nodes));
    pass += static_cast<std::ptrdiff_t>(piece.length * piece.count);
  }
  return nodes;
}

/// With one chunk, at most three parts alternate. If chunks take turns, a group of microbatches
/// passes through each of them forward and backward. Other orders have short periods.
size_t StageSchedule::longestPiece(int32_t stage) const {
  constexpr size_t kMost = 4096, kUsual = 64;
  const std::vector<StagePass> &all = passes(stage);
  size_t chunks = placement_.chunksOf(stage).size(), group = 0;
  bool isDivided = std::ranges::any_of(
      parts(stage), [](const StagePart &part) { return part.kind == PassKind::Weights; });
  while (group < all.size() && all[group].part == all.front().part)
    ++group;
  return chunks == 1 && placement_.isLooped() ? 3
         : isDivided                          ? kUsual
                                              : std::min(2 * group * chunks, kMost);
}

std::vector<Repetition> StageSchedule::piecesOf(int32_t stage) const {
  const std::vector<StagePass> &all = passes(stage);
  std::vector<Repetition> best = shortestOf(all, longestPiece(stage)), pieces;
  for (size_t i = 0; i < all.size(); i += pieces.back().length * pieces.back().count)
    pieces.push_back(best[i]);
  return pieces;
}

} // namespace shardc::passes
