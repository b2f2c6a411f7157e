// The schedules that recipes name: a function for each, which lists the passes of every stage. See
// docs/pipelines.md for their sources.
#include <algorithm>
#include <array>
#include <deque>

#include "compiler/model/PassOrder.h"

namespace shardc::model {
namespace {

/// Appends passes to the row of one stage.
struct StageRow {
  std::vector<StagePass> &passes;

  void add(PassKind kind, int32_t chunk, int64_t microbatch) {
    passes.push_back({{kind, chunk}, microbatch});
  }
};

PassOrder emptyOrder(Placement placement, int64_t microbatches) {
  PassOrder order{std::move(placement), microbatches, {}, {}};
  order.rows.resize(static_cast<size_t>(order.placement.stages()));
  return order;
}

struct Turn {
  int32_t chunk; ///< its number among those of the stage
  int64_t microbatch;
};

/// The forward order. Microbatches come in groups of at least as many as there are stages. Each
/// chunk processes a whole group before the next chunk does, so the first chunk of the last stage
/// has computed the input of the first stage's next chunk in time.
std::vector<Turn> turnsOf(int64_t chunks, int64_t microbatches, int64_t group) {
  std::vector<Turn> turns;
  for (int64_t begin = 0; begin < microbatches; begin += group)
    for (int32_t chunk = 0; chunk < chunks; ++chunk)
      for (int64_t i = begin; i < std::min(begin + group, microbatches); ++i)
        turns.push_back({chunk, i});
  return turns;
}

int64_t groupOf(const PipelineShape &shape) { return shape.group > 0 ? shape.group : shape.stages; }

} // namespace

PassOrder oneForwardOneBackward(const PipelineShape &shape) {
  PassOrder order = emptyOrder(Placement::looped(shape.stages, shape.chunks), shape.microbatches);
  const std::vector<Turn> turns = turnsOf(shape.chunks, shape.microbatches, groupOf(shape));
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    StageRow row{order.rows[static_cast<size_t>(stage)]};
    const std::vector<int32_t> &chunks = order.placement.chunksOf(stage);
    int64_t behind = shape.stages - 1 - stage;
    int64_t ahead = shape.chunks == 1 ? behind : 2 * behind + (shape.chunks - 1) * groupOf(shape);
    size_t first = std::min(static_cast<size_t>(ahead), turns.size());
    for (size_t i = 0; i < turns.size() + first; ++i) {
      // In the last chunk of the model, both passes of a microbatch run at the position of the
      // backward pass, which is later if a group is incomplete.
      if (i < turns.size())
        if (int32_t chunk = chunks[static_cast<size_t>(turns[i].chunk)];
            !order.placement.isLast(chunk))
          row.add(PassKind::Forward, chunk, turns[i].microbatch);
      if (i < first)
        continue;
      const Turn &turn = turns[i - first];
      int32_t chunk = chunks[chunks.size() - 1 - static_cast<size_t>(turn.chunk)];
      if (order.placement.isLast(chunk))
        row.add(PassKind::Forward, chunk, turn.microbatch);
      row.add(PassKind::Backward, chunk, turn.microbatch);
    }
  }
  return order;
}

/// The weight gradients of a backward pass run after as many forward passes as the first stage runs
/// ahead. So no stage keeps more microbatches than the first stage does under 1F1B. No stage waits
/// for the first one, so it computes both kinds of gradients at once.
PassOrder zeroBubble(const PipelineShape &shape) {
  PassOrder order = emptyOrder(Placement::looped(shape.stages, 1), shape.microbatches);
  const int64_t count = shape.microbatches;
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    StageRow row{order.rows[static_cast<size_t>(stage)]};
    int64_t first = std::min(shape.stages - 1 - stage, count), late = first + stage;
    for (int64_t i = 0; i < count + late; ++i) {
      if (i < count)
        row.add(PassKind::Forward, stage, i);
      if (i >= first && i - first < count)
        row.add(stage == 0 ? PassKind::Backward : PassKind::Inputs, stage, i - first);
      if (stage > 0 && i >= late)
        row.add(PassKind::Weights, stage, i - late);
    }
  }
  return order;
}

PassOrder loopedBfs(const PipelineShape &shape) {
  PassOrder order = emptyOrder(Placement::orLooped(shape.placement, shape.stages, shape.chunks),
                               shape.microbatches);
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    StageRow row{order.rows[static_cast<size_t>(stage)]};
    std::vector<int32_t> chunks = order.placement.chunksOf(stage);
    for (int32_t chunk : chunks)
      for (int64_t i = 0; i < shape.microbatches; ++i)
        row.add(PassKind::Forward, chunk, i);
    for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk)
      for (int64_t i = shape.microbatches; i-- > 0;)
        row.add(PassKind::Backward, *chunk, i);
  }
  return order;
}

PassOrder zbV(const PipelineShape &shape) {
  using enum PassKind;
  PassOrder order = emptyOrder(Placement::v(shape.stages, 2), shape.microbatches);
  const int64_t stages = shape.stages, count = std::max(2 * stages - 1, shape.microbatches);
  for (int32_t stage = 0; stage < stages; ++stage) {
    std::vector<StagePass> &row = order.rows[static_cast<size_t>(stage)];
    std::array<std::array<int64_t, 5>, 2> next{}; // by chunk and kind
    auto add = [&](PassKind kind, size_t which) {
      int64_t microbatch = next[which][static_cast<size_t>(kind)]++;
      if (microbatch < shape.microbatches)
        row.push_back({{kind, order.placement.chunksOf(stage)[which]}, microbatch});
    };
    auto repeat = [&](int64_t times, std::initializer_list<std::pair<PassKind, size_t>> passes) {
      for (int64_t i = 0; i < times; ++i)
        for (auto [kind, which] : passes)
          add(kind, which);
    };
    constexpr size_t kDown = 0, kUp = 1;
    auto left = [&](PassKind kind, size_t which) {
      return count - next[which][static_cast<size_t>(kind)];
    };
    repeat(2 * (stages - stage) - 1, {{Forward, kDown}});
    repeat(stage, {{Forward, kUp}, {Forward, kDown}});
    repeat(stages - stage, {{Forward, kUp}, {Inputs, kUp}, {Weights, kUp}});
    while (left(Forward, kUp) > 0) {
      repeat(left(Forward, kDown) > 0 ? 1 : 0, {{Forward, kDown}});
      repeat(1, {{Inputs, kDown}, {Weights, kDown}, {Forward, kUp}, {Inputs, kUp}, {Weights, kUp}});
    }
    repeat(stage, {{Inputs, kDown}, {Inputs, kUp}});
    repeat(stages - stage, {{Inputs, kDown}, {Weights, kDown}});
    repeat(left(Weights, kUp), {{Weights, kUp}});
    repeat(left(Weights, kDown), {{Weights, kDown}});
  }
  return order;
}

namespace {

/// The row of one stage of DualPipeV.
class DualRow {
public:
  DualRow(std::vector<StagePass> &row, const std::vector<int32_t> &chunks)
      : row_(row), chunks_(chunks) {}

  void forward(size_t which) { add(PassKind::Forward, which, forward_[which]++); }
  /// A backward pass; its weights' part may be left for weights().
  void backward(size_t which, bool isSplit = false) {
    if (isSplit)
      late_.push_back({{PassKind::Weights, chunks_[which]}, backward_[which]});
    add(isSplit ? PassKind::Inputs : PassKind::Backward, which, backward_[which]++);
  }
  void weights() {
    if (late_.empty())
      return;
    row_.push_back(late_.front());
    late_.pop_front();
  }
  /// A forward and a backward pass in one cell.
  void pair(size_t forwards, size_t backwards) {
    forward(forwards);
    row_.back().isPair = true;
    backward(backwards);
  }
  bool hasLate() const { return !late_.empty(); }

private:
  void add(PassKind kind, size_t which, int64_t microbatch) {
    row_.push_back({{kind, chunks_[which]}, microbatch});
  }
  std::vector<StagePass> &row_;
  const std::vector<int32_t> &chunks_;
  std::array<int64_t, 2> forward_{}, backward_{}; ///< next microbatch, by chunk of the stage
  std::deque<StagePass> late_;
};

} // namespace

PassOrder dualPipeV(const PipelineShape &shape) {
  PassOrder order = emptyOrder(Placement::v(shape.stages, 2), shape.microbatches);
  constexpr size_t kDown = 0, kUp = 1;
  for (int64_t stage = 0; stage < shape.stages; ++stage) {
    DualRow row(order.rows[static_cast<size_t>(stage)],
                order.placement.chunksOf(static_cast<int32_t>(stage)));
    const int64_t behind = shape.stages - 1 - stage;
    for (int64_t i = 0; i < 2 * behind; ++i)
      row.forward(kDown);
    for (int64_t i = 0; i <= stage; ++i)
      row.forward(kDown), row.forward(kUp);
    for (int64_t i = 0; i < behind; ++i)
      row.backward(kUp, true), row.weights(), row.forward(kUp);
    for (int64_t i = 0; i <= shape.microbatches - 2 * shape.stages + stage; ++i) {
      if (i == 0 && behind == 0)
        row.forward(kDown), row.backward(kUp);
      else
        row.pair(kDown, kUp);
      row.pair(kUp, kDown);
    }
    for (int64_t i = 0; i < behind; ++i)
      row.backward(kUp), row.pair(kUp, kDown);
    const int64_t split = 2 * ((stage + 1) / 2) + (stage + 1) % 2; // the first pass in two parts
    for (int64_t i = 0; i <= stage; ++i)
      row.backward(kUp, 2 * i >= split), row.backward(kDown, 2 * i + 1 >= split);
    for (int64_t i = 0; i < behind; ++i)
      row.weights(), row.backward(kDown, 2 * stage + 2 >= split);
    while (row.hasLate())
      row.weights();
  }
  return order;
}

PassOrder (*generatorOf(plan::Job::PipelineSchedule schedule))(const PipelineShape &) {
  using enum plan::Job::PipelineSchedule;
  switch (schedule) {
  case OneForwardOneBackward:
  case Interleaved:
    break;
  case ZeroBubble:
    return zeroBubble;
  case ZbV:
    return zbV;
  case DualPipeV:
    return dualPipeV;
  case LoopedBfs:
    return loopedBfs;
  }
  return oneForwardOneBackward;
}

Placement placementFor(plan::Job::PipelineSchedule schedule, int64_t stages, int64_t chunks,
                       std::string_view asked) {
  using enum plan::Job::PipelineSchedule;
  if (schedule == ZbV || schedule == DualPipeV)
    return Placement::v(stages, chunks);
  std::optional<Placement> any;
  if (schedule == LoopedBfs)
    any = Placement::read(asked, stages, chunks);
  return Placement::orLooped(any, stages, chunks);
}

/// Chunks in a loop run in groups, as in the interleaved schedule. For other placements, passes run
/// by the times at which a stage that never waits would: a microbatch begins as soon as a stage has
/// run all its chunks for the one before.
PassOrder forwardOnly(const PipelineShape &shape) {
  PassOrder order = emptyOrder(Placement::orLooped(shape.placement, shape.stages, shape.chunks),
                               shape.microbatches);
  const Placement &placement = order.placement;
  size_t period = 0;
  for (int32_t stage = 0; stage < placement.stages(); ++stage)
    period = std::max(period, placement.chunksOf(stage).size());
  for (int32_t stage = 0; stage < placement.stages(); ++stage) {
    std::vector<StagePass> &row = order.rows[static_cast<size_t>(stage)];
    const std::vector<int32_t> &chunks = placement.chunksOf(stage);
    for (const Turn &turn :
         turnsOf(static_cast<int64_t>(chunks.size()), shape.microbatches, groupOf(shape)))
      row.push_back(
          {{PassKind::Forward, chunks[static_cast<size_t>(turn.chunk)]}, turn.microbatch});
    if (!placement.isLooped())
      std::ranges::stable_sort(row, {}, [&](const StagePass &pass) {
        return std::pair(static_cast<int64_t>(period) * pass.microbatch + pass.part.chunk,
                         pass.part.chunk);
      });
  }
  return order;
}

} // namespace shardc::model
