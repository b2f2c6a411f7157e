// The schedules that recipes name: a function for each, which lists the passes of every stage. See
// docs/pipelines.md for their sources.
#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "compiler/model/PassOrder.h"

namespace shardc::model {
namespace {

using Passes = std::vector<StagePass>;

/// The forward passes of a stage. Microbatches come in groups of at least as many as there are
/// stages. Each chunk processes a whole group before the next chunk does, so the first chunk of the
/// last stage has computed the input of the first stage's next chunk in time.
Passes forwardsOf(const Placement &placement, int32_t stage, int64_t microbatches, int64_t group) {
  Passes passes;
  for (int64_t begin = 0; begin < microbatches; begin += group)
    for (int32_t chunk : placement.chunksOf(stage))
      for (int64_t i = begin; i < std::min(begin + group, microbatches); ++i)
        passes.push_back({{PassKind::Forward, chunk}, i});
  return passes;
}

int64_t groupOf(const PipelineShape &shape) { return shape.group > 0 ? shape.group : shape.stages; }

/// Lists the passes of a stage in one or two chunks. Each pass is of the next microbatch of its
/// kind and chunk, and left out if a step has no such microbatch.
class StageRow {
public:
  StageRow(const Placement &placement, int32_t stage, int64_t microbatches)
      : chunks_(placement.chunksOf(stage)), microbatches_(microbatches) {}

  /// Repeats passes: F, B, I or W of the first chunk, f, b, i or w of the second one. X is the
  /// weights' part of the first divided backward pass that has none yet. A pair begins with a
  /// parenthesis.
  StageRow &repeat(int64_t times, std::string_view passes) {
    for (; times > 0; --times)
      for (bool isPair = false; char letter : passes)
        if (letter == '(')
          isPair = true;
        else if (letter == 'X')
          addLate();
        else
          add(letter, std::exchange(isPair, false));
    return *this;
  }
  operator Passes() const { return row_; }

private:
  void add(char letter, bool isPair) {
    constexpr std::string_view kLetters = "FBIWfbiw";
    constexpr std::array kKinds = {PassKind::Forward, PassKind::Backward, PassKind::Inputs,
                                   PassKind::Weights};
    const size_t at = kLetters.find(letter), which = at / kKinds.size();
    PassKind kind = kKinds[at % kKinds.size()];
    int64_t &next = next_[which][static_cast<size_t>(firstResult(kind))];
    if (next < microbatches_)
      row_.push_back({{kind, chunks_[which]}, next, isPair});
    ++next;
  }
  void addLate() {
    while (late_ < row_.size() && row_[late_].part.kind != PassKind::Inputs)
      ++late_;
    if (late_ == row_.size())
      return;
    StagePass pass = row_[late_++];
    pass.part.kind = PassKind::Weights;
    row_.push_back(pass);
  }

  const std::vector<int32_t> &chunks_;
  int64_t microbatches_;
  Passes row_;
  std::array<std::array<int64_t, 3>, 2> next_{}; ///< microbatch, by chunk and what passes compute
  size_t late_ = 0;                              ///< the passes before it have run both parts
};

/// 1F1B: a stage runs one forward pass for each later stage, then alternates forward and backward
/// passes. With several chunks this is Megatron's interleaved schedule: a stage runs further ahead,
/// so that it has work while other stages process its microbatch. If a forward pass shares a cell
/// with the next backward pass, a stage runs one more ahead, also if it is the only one.
Passes oneForwardOneBackward(const PipelineShape &shape, const Placement &of, int32_t stage) {
  const Passes all = forwardsOf(of, stage, shape.microbatches, groupOf(shape));
  const std::vector<int32_t> &chunks = of.chunksOf(stage);
  Passes row;
  int64_t behind = shape.stages - 1 - stage;
  int64_t ahead = shape.chunks == 1 && !shape.overlaps
                      ? behind
                      : 2 * behind + (shape.chunks - 1) * groupOf(shape) + (shape.overlaps ? 1 : 0);
  size_t first = std::min(static_cast<size_t>(ahead), all.size());
  for (size_t i = 0; i < all.size() + first; ++i) {
    // In the last chunk of the model, both passes of a microbatch run at the position of the
    // backward pass, which is later if a group is incomplete.
    auto runsAtBackward = [&](int32_t chunk) { return of.isLast(chunk) && !shape.overlaps; };
    if (i < all.size() && !runsAtBackward(all[i].part.chunk))
      row.push_back({all[i].part, all[i].microbatch, shape.overlaps && i >= first});
    if (i < first)
      continue;
    StagePass pass = all[i - first];
    pass.part.chunk = chunks[chunks.size() - 1 - static_cast<size_t>(of.indexOn(pass.part.chunk))];
    if (runsAtBackward(pass.part.chunk))
      row.push_back(pass);
    pass.part.kind = PassKind::Backward;
    row.push_back(pass);
  }
  return row;
}

/// ZB-H1 (zero bubble): like 1F1B, but input gradients, for which other stages wait, come first.
/// The weight gradients of a backward pass run after as many forward passes as the first stage runs
/// ahead. So no stage keeps more microbatches than the first stage does under 1F1B. No stage waits
/// for the first one, so it computes both kinds of gradients at once.
Passes zeroBubble(const PipelineShape &shape, const Placement &of, int32_t stage) {
  return StageRow(of, stage, shape.microbatches)
      .repeat(std::min(shape.stages - 1 - stage, shape.microbatches), "F")
      .repeat(stage, "FI")
      .repeat(shape.microbatches, stage == 0 ? "FB" : "FIW");
}

/// Breadth first: each chunk runs all microbatches; backward passes in reverse.
Passes loopedBfs(const PipelineShape &shape, const Placement &of, int32_t stage) {
  Passes row = forwardsOf(of, stage, shape.microbatches, shape.microbatches);
  for (size_t i = row.size(); i-- > 0;)
    row.push_back({{PassKind::Backward, row[i].part.chunk}, row[i].microbatch});
  return row;
}

/// ZB-V: no stage waits between its first and its last pass if all passes take equally long.
Passes zbV(const PipelineShape &shape, const Placement &of, int32_t stage) {
  const int64_t count = shape.microbatches, stages = shape.stages;
  return StageRow(of, stage, count)
      .repeat(2 * (stages - stage) - 1, "F")
      .repeat(stage, "fF")
      .repeat(stages - stage, "fiw")
      .repeat(std::max(stages - 1, count - stages), "FIWfiw")
      .repeat(stage, "Ii")
      .repeat(stages - stage, "IW")
      .repeat(count, "w")
      .repeat(count, "W");
}

/// DualPipeV: forward and backward passes of two microbatches form pairs. Needs twice as many
/// microbatches as stages.
Passes dualPipeV(const PipelineShape &shape, const Placement &of, int32_t stage) {
  const int64_t count = shape.microbatches, behind = shape.stages - 1 - stage;
  const int64_t split = 2 * ((stage + 1) / 2) + (stage + 1) % 2; // the first pass in two parts
  StageRow row(of, stage, count);
  row.repeat(2 * behind, "F").repeat(stage + 1, "Ff").repeat(behind, "iXf");
  row.repeat(1, behind == 0 ? "Fb(fB" : "(Fb(fB");
  row.repeat(count - 2 * shape.stages + stage, "(Fb(fB").repeat(behind, "b(fB");
  for (int64_t i = 0; i <= stage; ++i)
    row.repeat(1, 2 * i >= split ? "i" : "b").repeat(1, 2 * i + 1 >= split ? "I" : "B");
  row.repeat(behind, 2 * stage + 2 >= split ? "XI" : "XB").repeat(2 * count, "X");
  return row;
}

/// Chunks in a loop run in groups, as in the interleaved schedule. For other placements, passes run
/// by the times at which a stage that never waits would: a microbatch begins as soon as a stage has
/// run all its chunks for the one before.
Passes forwards(const PipelineShape &shape, const Placement &of, int32_t stage) {
  Passes row = forwardsOf(of, stage, shape.microbatches, groupOf(shape));
  size_t period = 0;
  for (int32_t each = 0; each < of.stages(); ++each)
    period = std::max(period, of.chunksOf(each).size());
  if (!of.isLooped())
    std::ranges::stable_sort(row, {}, [&](const StagePass &pass) {
      return std::pair(static_cast<int64_t>(period) * pass.microbatch + pass.part.chunk,
                       pass.part.chunk);
    });
  return row;
}

/// Appends passes in the order in which they begin. `patience`: how long a stage waits for other
/// passes rather than compute weight gradients, as a share of their time.
PassOrder greedy(const PipelineShape &shape, const Placement &of, int64_t limit, double patience,
                 const SecondsOf &seconds) {
  PassOrder order{of, shape.microbatches, std::vector<Passes>(static_cast<size_t>(of.stages()))};
  PassIndex index(of.chunks(), shape.microbatches);
  std::vector<std::vector<PassSpan>> spans(order.rows.size());
  std::map<StagePart, int64_t> next; // microbatch
  struct Choice {
    /// When the pass begins or, for weight gradients, after patience; then what comes first.
    std::tuple<double, int, int32_t> rank;
    StagePass pass;
    PassSpan span;
  };
  auto choiceOf = [&](const StagePart &part) -> std::optional<Choice> {
    const StagePass pass{part, next[part]};
    const auto stage = static_cast<size_t>(of.stageOf(part.chunk));
    const std::vector<int32_t> &own = of.chunksOf(of.stageOf(part.chunk));
    const bool isForward = part.kind == PassKind::Forward, isFill = part.kind == PassKind::Weights;
    int64_t kept = 0; // passes of microbatches that have begun, up to their weight gradients
    for (int32_t each : own)
      kept += next[{PassKind::Forward, own.front()}] - next[{PassKind::Weights, each}];
    bool begins = isForward && part.chunk == own.front();
    if (pass.microbatch == shape.microbatches || (begins && kept > (limit - 1) * std::ssize(own)))
      return std::nullopt;
    double begin = spans[stage].empty() ? 0 : spans[stage].back().end;
    for (const PassPlace *needed : index.needsOf(pass))
      if (needed != nullptr && !needed->isKnown())
        return std::nullopt;
      else if (needed != nullptr)
        begin = std::max(begin, spans[needed->row][needed->pass].end);
    double turn = begin + (isFill ? patience * seconds(part) : 0);
    int priority = isFill ? 2 : isForward ? 1 : 0;
    return Choice{
        {turn, priority, isFill ? part.chunk : -part.chunk}, pass, {begin, begin + seconds(part)}};
  };
  for (;;) {
    std::optional<Choice> best;
    for (int32_t chunk = 0; chunk < of.chunks(); ++chunk)
      for (PassKind kind : {PassKind::Inputs, PassKind::Forward, PassKind::Weights})
        if (auto found = choiceOf({kind, chunk}); found && (!best || found->rank < best->rank))
          best = found;
    if (!best)
      return order;
    const auto row = static_cast<size_t>(of.stageOf(best->pass.part.chunk));
    index.add(best->pass, {row, order.rows[row].size()});
    order.rows[row].push_back(best->pass);
    spans[row].push_back(best->span);
    ++next[best->pass.part];
  }
}

using RowOf = Passes(const PipelineShape &, const Placement &, int32_t stage);
PassOrder orderOf(const Placement &placement, const PipelineShape &shape, RowOf *rowOf) {
  PassOrder order{placement, shape.microbatches};
  for (int32_t stage = 0; stage < placement.stages(); ++stage)
    order.rows.push_back(rowOf(shape, placement, stage));
  return order;
}

} // namespace

PassOrder orderOf(plan::Job::PipelineSchedule schedule, const PipelineShape &shape) {
  using enum plan::Job::PipelineSchedule;
  return orderOf(shape.placement.value_or(placementFor(schedule, shape.stages, shape.chunks)),
                 shape,
                 schedule == ZeroBubble  ? zeroBubble
                 : schedule == ZbV       ? zbV
                 : schedule == DualPipeV ? dualPipeV
                 : schedule == LoopedBfs ? loopedBfs
                                         : oneForwardOneBackward);
}

std::vector<PassOrder> zeroBubbleGreedy(const PipelineShape &shape, int64_t limit,
                                        const SecondsOf &seconds) {
  using enum plan::Job::PipelineSchedule;
  auto placement = Placement::orLooped(shape.placement, shape.stages, shape.chunks);
  limit = limit > 0 ? limit : shape.stages;
  std::vector<PassOrder> orders;
  for (auto schedule : {ZeroBubble, ZbV})
    if (bool hasChunks = shape.chunks == (schedule == ZbV ? 2 : 1);
        hasChunks && limit >= shape.stages &&
        placement == placementFor(schedule, shape.stages, shape.chunks))
      orders.push_back(orderOf(schedule, shape));
  for (double patience : {0.0, 0.25, 0.5})
    orders.push_back(greedy(shape, placement, limit, patience, seconds));
  return orders;
}

PassOrder forwardOnly(const PipelineShape &shape) {
  return orderOf(Placement::orLooped(shape.placement, shape.stages, shape.chunks), shape, forwards);
}

Placement placementFor(plan::Job::PipelineSchedule schedule, int64_t stages, int64_t chunks,
                       std::string_view asked) {
  using enum plan::Job::PipelineSchedule;
  if (schedule == ZbV || schedule == DualPipeV)
    return Placement::v(stages, chunks);
  return Placement::orLooped(schedule == LoopedBfs || schedule == ZeroBubbleGreedy
                                 ? Placement::read(asked, stages, chunks)
                                 : std::nullopt,
                             stages, chunks);
}

} // namespace shardc::model
