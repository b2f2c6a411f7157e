// Lists the passes of each stage in order, finds repeated sequences, and writes them as loops of a
// program.
#include "compiler/passes/StageSchedule.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <mutex>
#include <numeric>
#include <set>

#include "compiler/predict/PipelineTime.h"
#include "runtime/base/Status.h"

namespace shardc::passes {

using plan::Pred;
using plan::ProgramNode;

namespace {

/// Assumes that the backward pass of a layer takes twice as long as its forward pass.
double secondsOf(PassKind kind) {
  switch (kind) {
  case PassKind::Forward:
  case PassKind::Inputs:
  case PassKind::Weights:
    return 1;
  case PassKind::Backward:
    return 2;
  case PassKind::Both:
    return 3;
  }
  return 0;
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

bool hasForward(PassKind kind) { return kind == PassKind::Forward || kind == PassKind::Both; }

bool hasInputs(PassKind kind) {
  return kind == PassKind::Backward || kind == PassKind::Inputs || kind == PassKind::Both;
}

StageSchedule::StageSchedule(const PipelineShape &shape)
    : shape_(shape), passes_(static_cast<size_t>(shape.stages)) {}

/// The forward order. Microbatches come in groups of at least as many as there are stages. Each
/// chunk processes a whole group before the next chunk does, so the first chunk of the last stage
/// has computed the input of the first stage's next chunk in time.
std::vector<StagePass> StageSchedule::forwards() const {
  std::vector<StagePass> order;
  for (int64_t begin = 0; begin < shape_.microbatches; begin += group())
    for (int32_t chunk = 0; chunk < shape_.chunks; ++chunk)
      for (int64_t i = begin; i < std::min(begin + group(), shape_.microbatches); ++i)
        order.push_back({{PassKind::Forward, chunk}, i});
  return order;
}

void StageSchedule::add(int32_t stage, PassKind kind, const StagePass &like) {
  int32_t chunk = kind == PassKind::Forward ? like.part.chunk : mirrored(like);
  passes_[at(stage)].push_back({{kind, chunk}, like.microbatch});
}

StageSchedule StageSchedule::oneForwardOneBackward(const PipelineShape &shape) {
  StageSchedule schedule(shape);
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    std::vector<StagePass> order = schedule.forwards();
    int64_t behind = shape.stages - 1 - stage;
    int64_t ahead = shape.chunks == 1 ? behind : 2 * behind + (shape.chunks - 1) * schedule.group();
    auto first = std::min(static_cast<size_t>(ahead), order.size());
    for (size_t i = 0; i < order.size() + first; ++i) {
      // In the last chunk of the model, both passes of a microbatch run at the position of the
      // backward pass, which is later if a group is incomplete.
      if (i < order.size() && !schedule.isLastChunk(stage, order[i].part.chunk))
        schedule.add(stage, PassKind::Forward, order[i]);
      if (i >= first) {
        bool isEnd = schedule.isLastChunk(stage, schedule.mirrored(order[i - first]));
        schedule.add(stage, isEnd ? PassKind::Both : PassKind::Backward, order[i - first]);
      }
    }
  }
  schedule.finish();
  return schedule;
}

/// The weight gradients of a backward pass run after as many forward passes as the first stage runs
/// ahead. So no stage keeps more microbatches than the first stage does under 1F1B.
StageSchedule StageSchedule::zeroBubble(const PipelineShape &shape) {
  StageSchedule schedule(shape);
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    std::vector<StagePass> order = schedule.forwards();
    auto ahead = static_cast<size_t>(shape.stages - 1 - stage), late = static_cast<size_t>(stage);
    size_t first = std::min(ahead, order.size());
    for (size_t i = 0; i < order.size() + first + late; ++i) {
      if (i < order.size())
        schedule.add(stage, PassKind::Forward, order[i]);
      // No stage waits for the first one, so it computes both kinds of gradients at once.
      if (i >= first && i - first < order.size())
        schedule.add(stage, stage == 0 ? PassKind::Backward : PassKind::Inputs, order[i - first]);
      if (stage > 0 && i >= first + late && i - first - late < order.size())
        schedule.add(stage, PassKind::Weights, order[i - first - late]);
    }
  }
  schedule.finish();
  return schedule;
}

StageSchedule StageSchedule::forwardOnly(const PipelineShape &shape) {
  StageSchedule schedule(shape);
  for (int32_t stage = 0; stage < shape.stages; ++stage)
    for (const StagePass &pass : schedule.forwards())
      schedule.add(stage, PassKind::Forward, pass);
  schedule.finish();
  return schedule;
}

/// Computes everything that depends on the order of passes: when each value is received, in how
/// many ring slots it is kept, and which parts a stage has.
void StageSchedule::finish() {
  auto chunks = static_cast<size_t>(lastChunk() + 1);
  forward_.assign(chunks, std::vector<size_t>(static_cast<size_t>(shape_.microbatches), kNoPass));
  gradient_ = forward_;
  for (int32_t stage = 0; stage < shape_.stages; ++stage)
    for (size_t i = 0; i < passes(stage).size(); ++i) {
      const StagePass &pass = passes(stage)[i];
      auto chunk = static_cast<size_t>(pass.part.chunk * shape_.stages + stage);
      auto microbatch = static_cast<size_t>(pass.microbatch);
      if (hasForward(pass.part.kind))
        forward_[chunk][microbatch] = i;
      if (hasInputs(pass.part.kind))
        gradient_[chunk][microbatch] = i;
    }
  findTimes();
  placeReceives();
  begins_.clear(), ends_.clear();
  begins_.shrink_to_fit(), ends_.shrink_to_fit();
  for (int32_t stage = 0; stage < shape_.stages; ++stage) {
    std::set<StagePart> parts;
    for (const StagePass &pass : passes(stage))
      parts.insert(pass.part);
    parts_.emplace_back(parts.begin(), parts.end());
    receives_.emplace_back();
    for (StagePart part : parts)
      receives_.back()[part] = receivesOf(stage, part);
    slots_.push_back(slotsOf(stage));
    received_.emplace_back();
    for (StagePart part : parts)
      received_.back().push_back(countReceived(stage, part));
  }
}

namespace {

/// Cache of the most recently used schedules, up to a total number of passes.
class SharedSchedules {
public:
  using Key = std::pair<StageSchedule::Kind, PipelineShape>;
  using Value = std::shared_ptr<const StageSchedule>;

  Value find(const Key &key) {
    std::scoped_lock lock(mutex_);
    for (auto at = entries_.begin(); at != entries_.end(); ++at)
      if (at->key == key) {
        entries_.splice(entries_.begin(), entries_, at);
        return at->value;
      }
    return nullptr;
  }

  void keep(const Key &key, Value value, size_t passes) {
    constexpr size_t kPassesMax = size_t{6} << 20;
    std::scoped_lock lock(mutex_);
    entries_.push_front({key, std::move(value), passes});
    size_t sum = 0;
    for (auto at = entries_.begin(); at != entries_.end();)
      at = (sum += at->passes) > kPassesMax ? entries_.erase(at) : std::next(at);
  }

private:
  struct Entry {
    Key key;
    Value value;
    size_t passes;
  };
  std::mutex mutex_;
  std::list<Entry> entries_; ///< most recently used first
};

} // namespace

std::shared_ptr<const StageSchedule> StageSchedule::shared(Kind kind, const PipelineShape &shape) {
  static SharedSchedules known;
  if (std::shared_ptr<const StageSchedule> found = known.find({kind, shape}))
    return found;
  auto made = std::make_shared<StageSchedule>(kind == Kind::OneForwardOneBackward
                                                  ? oneForwardOneBackward(shape)
                                              : kind == Kind::ZeroBubble ? zeroBubble(shape)
                                                                         : forwardOnly(shape));
  for (int32_t stage = 0; stage < shape.stages; ++stage)
    made->pieces_.push_back(made->piecesOf(stage));
  known.keep({kind, shape}, made, made->passCount());
  return made;
}

size_t StageSchedule::passCount() const {
  size_t count = 0;
  for (const std::vector<StagePass> &each : passes_)
    count += each.size();
  return count;
}

/// The pass of another stage that computes the operand of this pass.
std::optional<StageSchedule::Place> StageSchedule::producerOf(int32_t stage,
                                                              const StagePass &pass) const {
  int64_t chunk = pass.part.chunk * shape_.stages + stage;
  auto microbatch = static_cast<size_t>(pass.microbatch);
  auto stageOf = [&](int64_t of) { return static_cast<int32_t>(of % shape_.stages); };
  if (hasForward(pass.part.kind) && chunk > 0)
    return Place{stageOf(chunk - 1), forward_[static_cast<size_t>(chunk - 1)][microbatch]};
  if (!hasForward(pass.part.kind) && hasInputs(pass.part.kind) && chunk < lastChunk())
    return Place{stageOf(chunk + 1), gradient_[static_cast<size_t>(chunk + 1)][microbatch]};
  return std::nullopt;
}

/// Assigns the earliest possible times to passes, assuming that transfers take no time and delay
/// only their receivers.
void StageSchedule::findTimes() {
  begins_.assign(passes_.size(), {});
  ends_ = begins_;
  for (bool hasMoved = true; hasMoved;) {
    hasMoved = false;
    for (int32_t stage = 0; stage < shape_.stages; ++stage) {
      std::vector<double> &ends = ends_[at(stage)];
      while (ends.size() < passes(stage).size()) {
        const StagePass &pass = passes(stage)[ends.size()];
        std::optional<Place> producer = producerOf(stage, pass);
        if (producer && ends_[at(producer->stage)].size() <= producer->pass)
          break;
        double begin = ends.empty() ? 0 : ends.back();
        if (producer)
          begin = std::max(begin, ends_[at(producer->stage)][producer->pass]);
        begins_[at(stage)].push_back(begin);
        ends.push_back(begin + secondsOf(pass.part.kind));
        hasMoved = true;
      }
    }
  }
  for (int32_t stage = 0; stage < shape_.stages; ++stage)
    SHARDC_CHECK(ends_[at(stage)].size() == passes(stage).size(), "stages wait for each other");
}

/// Chooses the pass that receives a value: one that runs when the value is computed, so that
/// neither side waits. If one pass ends exactly then and the next begins, the second one receives,
/// so that a late producer delays only the consumer. Adjacent stages that send to each other at the
/// same time could then deadlock; in that case the first pass receives gradients, inputs or both.
void StageSchedule::placeReceives() {
  struct Second {
    bool inputs, gradients;
  };
  double least = std::numeric_limits<double>::infinity(), bound = 0; // without transfers
  for (const std::vector<double> &ends : ends_)
    bound = std::max(bound, ends.empty() ? 0 : ends.back());
  for (Second second : {Second{true, true}, Second{true, false}, Second{false, true}, Second{}}) {
    std::vector<std::vector<size_t>> receivedBy(passes_.size());
    for (int32_t stage = 0; stage < shape_.stages; ++stage)
      for (size_t i = 0; i < passes(stage).size(); ++i)
        receivedBy[at(stage)].push_back(receiverOf(
            stage, i, hasForward(passes(stage)[i].part.kind) ? second.inputs : second.gradients));
    if (receivedBy == receivedBy_)
      continue;
    std::optional<double> seconds =
        secondsWith(receivedBy, [](int32_t, const StagePass &pass) -> PassSeconds {
          return {secondsOf(pass.part.kind), secondsOf(pass.part.kind)};
        });
    if (seconds && *seconds < least)
      least = *seconds, receivedBy_ = std::move(receivedBy);
    if (least <= bound)
      break; // no other choice can be faster
  }
  SHARDC_CHECK(std::isfinite(least), "stages wait for each other's transfers");
}

/// The pass during which the input of the i-th pass arrives. If it may arrive during either of two
/// passes, `isSecond` selects the second one.
size_t StageSchedule::receiverOf(int32_t stage, size_t i, bool isSecond) const {
  std::optional<Place> producer = producerOf(stage, passes(stage)[i]);
  if (!producer)
    return kNoPass;
  double made = ends_[at(producer->stage)][producer->pass];
  size_t by = i == 0 ? 0 : i - 1;
  auto isTooLate = [&](double begin) { return isSecond ? begin > made : begin >= made; };
  while (by > 0 && isTooLate(begins_[at(stage)][by]))
    --by;
  return by;
}

/// Predicted seconds of a step. A transfer begins when both ends are ready. Empty if stages
/// deadlock.
std::optional<double>
StageSchedule::secondsWith(const std::vector<std::vector<size_t>> &receivedBy,
                           const std::function<PassSeconds(int32_t, const StagePass &)> &of,
                           double transfer) const {
  std::vector<std::vector<predict::Pass>> actors(passes_.size());
  std::vector<std::vector<predict::Meeting>> meetings(passes_.size());
  auto channelOf = [&](int32_t from, bool isForward) { return 2 * from + (isForward ? 0 : 1); };
  for (int32_t stage = 0; stage < shape_.stages; ++stage) {
    const std::vector<StagePass> &all = passes(stage);
    const std::vector<size_t> &by = receivedBy[at(stage)];
    auto sends = [&](const StagePart &part, bool isForward) {
      int64_t chunk = part.chunk * shape_.stages + stage;
      return isForward ? hasForward(part.kind) && chunk < lastChunk()
                       : hasInputs(part.kind) && chunk > 0;
    };
    // The transfers of a pass are adjacent: first its receives, then its sends.
    std::vector<size_t> begins(all.size() + 1);
    for (size_t i = 0; i < all.size(); ++i) {
      begins[i + 1] += (sends(all[i].part, true) ? 1 : 0) + (sends(all[i].part, false) ? 1 : 0);
      if (by[i] != kNoPass)
        ++begins[by[i] + 1];
    }
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    std::vector<predict::Meeting> &own = meetings[at(stage)];
    own.resize(begins.back());
    actors[at(stage)].reserve(all.size());
    std::vector<size_t> next = begins;
    for (size_t i = 0; i < all.size(); ++i)
      if (by[i] != kNoPass) {
        int32_t channel = channelOf(producerOf(stage, all[i])->stage, hasForward(all[i].part.kind));
        own[next[by[i]]++] = {channel, false, 0, transfer, by[i] == i, 0};
      }
    for (size_t i = 0; i < all.size(); ++i) {
      auto [seconds, made] = of(stage, all[i]);
      for (bool isForward : {true, false})
        if (sends(all[i].part, isForward))
          own[next[i]++] = {channelOf(stage, isForward), true, made, transfer, false, 0};
      actors[at(stage)].push_back({seconds, {own.data() + begins[i], own.data() + begins[i + 1]}});
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

/// The values of later passes that arrive during passes of part `by`, each with its distance in
/// microbatches and the microbatches for which it arrives.
std::vector<Receive> StageSchedule::receivesOf(int32_t stage, StagePart by) const {
  struct Found {
    size_t after; ///< number of passes until the value is read
    std::vector<int64_t> microbatches;
  };
  std::map<std::pair<StagePart, int64_t>, Found> all;
  for (size_t i = 0; i < passes(stage).size(); ++i) {
    size_t during = receivedBy_[at(stage)][i];
    if (during == kNoPass || during == i || passes(stage)[during].part != by)
      continue;
    const StagePass &pass = passes(stage)[i];
    int64_t now = passes(stage)[during].microbatch;
    Found &found =
        all.try_emplace({pass.part, pass.microbatch - now}, Found{i - during, {}}).first->second;
    found.after = std::min(found.after, i - during);
    found.microbatches.push_back(now);
  }
  std::vector<std::pair<size_t, Receive>> order;
  for (auto &[what, found] : all) {
    std::ranges::sort(found.microbatches);
    order.push_back({found.after, {what.first, what.second, predsOf(found.microbatches)}});
  }
  // The sender sends in the order in which passes need the values.
  std::ranges::stable_sort(order, {}, &std::pair<size_t, Receive>::first);
  std::vector<Receive> receives;
  for (auto &[after, receive] : order)
    receives.push_back(std::move(receive));
  return receives;
}

namespace {

struct Interval {
  int64_t begin, last;
  int64_t width() const { return last - begin; }
  auto operator<=>(const Interval &) const = default;
};

std::vector<Interval> intervalsOf(const std::vector<int64_t> &numbers) {
  std::vector<Interval> intervals;
  for (int64_t number : numbers)
    if (!intervals.empty() && intervals.back().last + 1 == number)
      intervals.back().last = number;
    else
      intervals.push_back({number, number});
  return intervals;
}

/// A series of equal intervals: its first interval repeats `count` times, at distance `period`.
struct Series {
  int64_t period = 0;
  size_t count = 1;
};

/// The longest series of intervals that have the width of the first one and equal distances. Groups
/// of microbatches repeat, so the period is the distance from the first interval to one of the next
/// few intervals of the same width.
Series longestSeries(const std::set<Interval> &left) {
  constexpr int kCandidates = 64;
  const Interval first = *left.begin();
  Series best;
  int tried = 0;
  for (auto next = std::next(left.begin()); next != left.end() && tried < kCandidates; ++next) {
    if (next->width() != first.width())
      continue;
    ++tried;
    int64_t period = next->begin - first.begin;
    size_t count = 2;
    while (left.contains({next->begin + period * static_cast<int64_t>(count - 1),
                          next->last + period * static_cast<int64_t>(count - 1)}))
      ++count;
    if (count > best.count)
      best = {period, count};
  }
  return best;
}

} // namespace

/// Predicates for microbatches, which are in ascending order. Intervals that repeat three times or
/// more become one predicate, so that neither ops nor variants of a segment grow with the number of
/// microbatches.
std::vector<Pred> StageSchedule::predsOf(const std::vector<int64_t> &microbatches) const {
  int64_t last = shape_.microbatches - 1;
  auto within = [&](int64_t begin, int64_t end) -> Pred {
    if (begin == 0 && end == last)
      return Pred::Always;
    if (begin == 0 && end == 0)
      return Pred::First;
    if (end == last && begin == last)
      return Pred::Last;
    if (begin == 0 && end == last - 1)
      return Pred::NotLast;
    if (end == last && begin == 1)
      return Pred::NotFirst;
    return Pred::within(begin, end);
  };
  std::vector<Interval> intervals = intervalsOf(microbatches);
  std::set<Interval> left(intervals.begin(), intervals.end());
  std::vector<Pred> preds;
  while (!left.empty()) {
    Interval first = *left.begin();
    Series series = longestSeries(left);
    // A repetition of one or two intervals is written as one predicate each.
    if (series.count < 3) {
      preds.push_back(within(first.begin, first.last));
      left.erase(left.begin());
      continue;
    }
    int64_t behind = series.period * static_cast<int64_t>(series.count - 1);
    preds.push_back(Pred::every(series.period, first.begin, first.last, first.last + behind));
    for (size_t i = 0; i < series.count; ++i)
      left.erase({first.begin + series.period * static_cast<int64_t>(i),
                  first.last + series.period * static_cast<int64_t>(i)});
  }
  return preds;
}

bool StageSchedule::receivesOwn(int32_t stage, StagePart part) const {
  return passes(stage).front().part == part && receivedBy_[at(stage)].front() == 0;
}

size_t StageSchedule::numberOf(int32_t stage, StagePart part) const {
  const std::vector<StagePart> &all = parts(stage);
  auto found = std::ranges::lower_bound(all, part);
  SHARDC_CHECK(found != all.end() && *found == part, "stage {} has no such part", stage);
  return static_cast<size_t>(found - all.begin());
}

/// The slots that a ring needs for operands received ahead: the most that wait at a time, and more
/// if two receives of a pass would otherwise use the same slot.
int32_t StageSchedule::countReceived(int32_t stage, StagePart of) const {
  const std::vector<StagePass> &all = passes(stage);
  std::vector<int32_t> arrivals(all.size());
  auto isReceivedAhead = [&](size_t i) {
    size_t by = receivedBy_[at(stage)][i];
    return all[i].part == of && by != kNoPass && by != i;
  };
  for (size_t i = 0; i < all.size(); ++i)
    if (isReceivedAhead(i))
      ++arrivals[receivedBy_[at(stage)][i]];
  int32_t most = 0, waiting = 0;
  for (size_t now = 0; now < all.size(); ++now) {
    waiting += arrivals[now] - (isReceivedAhead(now) ? 1 : 0);
    most = std::max(most, waiting);
  }
  if (most == 0)
    return 0;
  // A pass must receive its transfers into different slots of a ring, and not into the slot that it
  // reads.
  auto areApart = [&](int32_t slots) {
    for (StagePart by : parts(stage)) {
      std::set<int64_t> taken;
      if (by == of && slots > 1)
        taken.insert(0);
      for (const Receive &receive : receives(stage, by))
        if (receive.of == of && !taken.insert((receive.shift % slots + slots) % slots).second)
          return false;
    }
    return true;
  };
  while (!areApart(most))
    ++most;
  return most;
}

int32_t StageSchedule::slotsBetween(int32_t stage, StagePart from, StagePart to) const {
  return slots_[at(stage)][numberOf(stage, from) * parts(stage).size() + numberOf(stage, to)];
}

/// The number of ring slots between each two of the stage's parts.
std::vector<int32_t> StageSchedule::slotsOf(int32_t stage) const {
  const std::vector<StagePart> &all = parts(stage);
  std::vector<int32_t> most(all.size() * all.size()), held = most;
  for (const StagePass &pass : passes(stage)) {
    size_t part = numberOf(stage, pass.part);
    for (size_t to = 0; to < all.size(); ++to) {
      size_t pair = part * all.size() + to;
      most[pair] = std::max(most[pair], ++held[pair]);
    }
    for (size_t from = 0; from < all.size(); ++from)
      --held[from * all.size() + part];
  }
  return most;
}

/// Writes the passes as program nodes. Repeated sequences become loops whose microbatch numbers
/// grow by a fixed step, so that programs stay short.
std::vector<ProgramNode>
StageSchedule::program(int32_t stage, const std::map<StagePart, uint32_t> &segmentOf) const {
  const std::vector<StagePass> &all = passes(stage);
  if (parts(stage).size() == 1)
    return {{ProgramNode::Run, segmentOf.at(all.front().part), shape_.microbatches, {}, {}}};
  auto run = [&](const StagePass &pass, int64_t step) {
    return ProgramNode{ProgramNode::Run,
                       segmentOf.at(pass.part),
                       1,
                       {},
                       plan::MicrobatchNumber{step, pass.microbatch}};
  };
  std::vector<ProgramNode> nodes;
  size_t i = 0;
  for (const Repetition &piece : pieces_.empty() ? piecesOf(stage) : pieces_[at(stage)]) {
    std::vector<ProgramNode> runs;
    for (size_t k = 0; k < piece.length; ++k)
      runs.push_back(run(all[i + k], piece.step));
    if (piece.count > 1)
      nodes.push_back(
          {ProgramNode::Loop, plan::kNone, static_cast<int64_t>(piece.count), std::move(runs), {}});
    else
      std::ranges::move(runs, std::back_inserter(nodes));
    i += piece.length * piece.count;
  }
  return nodes;
}

std::vector<Repetition> StageSchedule::piecesOf(int32_t stage) const {
  const std::vector<StagePass> &all = passes(stage);
  // With one chunk, at most three parts alternate.
  auto longest = static_cast<size_t>(shape_.chunks == 1 ? 3 : 2 * group() * shape_.chunks);
  std::vector<Repetition> best = shortestOf(all, longest), pieces;
  for (size_t i = 0; i < all.size(); i += pieces.back().length * pieces.back().count)
    pieces.push_back(best[i]);
  return pieces;
}

} // namespace shardc::passes
