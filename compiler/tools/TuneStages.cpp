#include "compiler/tools/TuneStages.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>

#include "compiler/predict/Overheads.h"
#include "compiler/predict/StepTime.h"

namespace shardc::tools {

using passes::PassKind;
using passes::PassSeconds;
using passes::StagePart;
using passes::StagePass;
using passes::StageSchedule;

namespace {

StageSchedule scheduleOf(const Layout &mesh, int64_t microbatches) {
  passes::PipelineShape shape{mesh.size(Knob::Stages), mesh.size(Knob::Chunks), microbatches, 0};
  return mesh.is(Knob::Schedule, "zero_bubble") ? StageSchedule::zeroBubble(shape)
                                                : StageSchedule::oneForwardOneBackward(shape);
}

/// Of all chunks of a stage.
int64_t layersOfStage(const std::vector<int64_t> &layers, int64_t stage, int64_t stages) {
  int64_t own = 0;
  for (auto chunk = static_cast<size_t>(stage); chunk < layers.size();
       chunk += static_cast<size_t>(stages))
    own += layers[chunk];
  return own;
}

} // namespace

StageOrder::StageOrder(StageSchedule of) : schedule(std::move(of)) {
  const passes::PipelineShape &shape = schedule.shape();
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    std::vector<Slots> &own = slots.emplace_back();
    for (int32_t chunk = 0; chunk < shape.chunks; ++chunk) {
      auto between = [&](PassKind from, PassKind to) {
        return schedule.slotsBetween(stage, {from, chunk}, {to, chunk});
      };
      const std::vector<StagePart> &parts = schedule.parts(stage);
      auto has = [&](PassKind kind) {
        return std::ranges::find(parts, StagePart{kind, chunk}) != parts.end();
      };
      if (has(PassKind::Both)) // all of a microbatch at once
        own.push_back({1, 1, 0});
      else if (has(PassKind::Weights))
        own.push_back({between(PassKind::Forward, PassKind::Inputs),
                       between(PassKind::Forward, PassKind::Weights),
                       between(PassKind::Inputs, PassKind::Weights)});
      else
        own.push_back({between(PassKind::Forward, PassKind::Backward),
                       between(PassKind::Forward, PassKind::Backward), 0});
    }
  }
}

const StageOrder &StageOrders::of(const Layout &mesh, int64_t microbatches) {
  std::string key = fmt::format("{} {} {} {}", mesh.word(Knob::Stages), mesh.word(Knob::Chunks),
                                mesh.word(Knob::Schedule), microbatches);
  {
    std::scoped_lock lock(mutex_);
    if (const std::unique_ptr<StageOrder> &order = known_[key])
      return *order;
  }
  auto made = std::make_unique<StageOrder>(scheduleOf(mesh, microbatches));
  std::scoped_lock lock(mutex_);
  std::unique_ptr<StageOrder> &order = known_[key];
  if (!order)
    order = std::move(made);
  return *order;
}

StageBytes::StageBytes(const BodyCost &body, const Layout &mesh, const TuneSizes &sizes,
                       int64_t microbatches, const StageOrder *order)
    : body_(body), mesh_(mesh), order_(order), stages_(mesh.size(Knob::Stages)),
      chunks_(mesh.size(Knob::Chunks)), microbatches_(microbatches) {
  if (mesh.is(Knob::Sharding, "none"))
    return;
  shards_ = mesh.sharers(sizes, false);
  expertShards_ = mesh.sharers(sizes, true);
}

int64_t StageBytes::most(const std::vector<int64_t> &layers) const {
  int64_t share = static_cast<int64_t>(body_.layers.size()) / stages_;
  int64_t beside = predict::leastOverheadBytes();
  if (layers.empty())
    return beside + held(state({share * body_.leastOfLayers(&PartCost::numel),
                                share * body_.leastOfLayers(&PartCost::expertNumel)}),
                         0);
  int64_t bytes = 0;
  for (int64_t stage = 0; stage < stages_; ++stage)
    bytes = std::max(bytes, communicators(stage) +
                                held(state(numelsOf(stage, layers)), activations(stage, layers)));
  return beside + bytes;
}

std::vector<int64_t> StageBytes::states(const std::vector<int64_t> &layers) const {
  std::vector<int64_t> bytes;
  for (int64_t stage = 0; stage < stages_; ++stage)
    bytes.push_back(held(state(numelsOf(stage, layers)), 0));
  return bytes;
}

/// Gradients of one microbatch are not there before its backward pass, and activations not behind
/// it. Those of several ones are summed.
int64_t StageBytes::held(const State &state, int64_t activations) const {
  return state.kept + (microbatches_ > 1 ? state.gradients + activations
                                         : std::max(state.gradients, activations));
}

StageBytes::State StageBytes::state(const Numels &numels) const {
  State dense = stateOf(numels.dense, shards_), experts = stateOf(numels.experts, expertShards_);
  return {dense.kept + experts.kept, dense.gradients + experts.gradients};
}

StageBytes::State StageBytes::stateOf(int64_t numel, int64_t shards) const {
  bool isFull = mesh_.is(Knob::Sharding, "fsdp");
  bool sharesGrads = isFull || mesh_.is(Knob::Sharding, "optim_grads");
  // A rank sums whole gradients, or its shard of them. Of one microbatch it may have what is sent.
  int64_t sum = shards > 1 && sharesGrads ? numel * body_.sumBytes / shards
                : microbatches_ > 1       ? numel * body_.sumBytes
                                          : numel * body_.gradientBytes;
  // With chunks nothing lies in bytes that a pass leaves something in.
  if (shards > 1 && !sharesGrads && chunks_ > 1)
    sum += numel * body_.sumBytes / shards;
  return {numel * body_.weightBytes / (isFull ? shards : 1) + numel * body_.stateBytes / shards,
          sum};
}

/// Of transfers, layers, gathers and reductions: those are never small.
int64_t StageBytes::communicators(int64_t stage) const {
  predict::LeastChannels channels;
  if (body_.boundaryBytes > predict::kSmallBytes && stages_ > 1)
    channels.transfers = chunks_ == 1 && (stage == 0 || stage + 1 == stages_) ? 2 : 4;
  bool movesRows = body_.boundaryBytes > predict::kSmallBytes;
  channels.kernels = movesRows && mesh_.size(Knob::Tensor) > 1 && mesh_.is(Knob::Rows, "rows");
  if (shards_ > 1 && body_.leastOfLayers(&PartCost::numel) > predict::kSmallBytes)
    channels.gathers = channels.reductions = true;
  return predict::leastCommunicatorBytes(channels);
}

/// Passes of chunks of which the stage keeps something at once, at least.
int64_t StageBytes::inFlight(int64_t stage) const {
  int64_t before = stages_ - 1 - stage;
  return chunks_ == 1 ? std::min(microbatches_, before + 1)
                      : std::min(microbatches_ * chunks_, 2 * before + (chunks_ - 1) * stages_);
}

/// Passes of layers of which it does. A stage runs its chunks in turn, each for as many
/// microbatches as there are stages.
int64_t StageBytes::layersInFlight(int64_t stage, const std::vector<int64_t> &layers) const {
  if (stages_ == 1)
    return static_cast<int64_t>(body_.layers.size()) * inFlight(stage);
  int64_t sum = 0;
  for (int64_t pass = 0; pass < inFlight(stage); ++pass)
    sum += layers[static_cast<size_t>(pass / stages_ % chunks_ * stages_ + stage)];
  return sum;
}

int64_t StageBytes::activations(int64_t stage, const std::vector<int64_t> &layers) const {
  if (order_ == nullptr || stages_ == 1)
    return body_.leastOfLayers(&PartCost::keptBytes) * layersInFlight(stage, layers);
  // Of each chunk as many as it ever keeps at once: they have their own bytes.
  int64_t bytes = 0;
  for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
    const StageOrder::Slots &slots =
        order_->slots[static_cast<size_t>(stage)][static_cast<size_t>(chunk)];
    int64_t kept = body_.leastOfLayers(&PartCost::keptBytes);
    int64_t longer = std::min(body_.leastOfLayers(&PartCost::keptForWeights), kept);
    bytes += layers[static_cast<size_t>(chunk * stages_ + stage)] *
             (slots.kept * (kept - longer) + slots.longer * longer +
              slots.passed * body_.leastOfLayers(&PartCost::passedBytes));
  }
  return bytes;
}

StageBytes::Numels StageBytes::numelsOf(int64_t stage, const std::vector<int64_t> &layers) const {
  int64_t own = layersOfStage(layers, stage, stages_);
  bool isFirst = stage == 0, isLast = stage + 1 == stages_;
  return {own * body_.leastOfLayers(&PartCost::numel) + (isFirst ? body_.embeddingNumel : 0) +
              (isLast ? body_.head.numel : 0),
          own * body_.leastOfLayers(&PartCost::expertNumel)};
}

StageSeconds::StageSeconds(const BodyCost &body, const Layout &mesh, const TuneSizes &sizes,
                           int64_t microbatches, const std::vector<int64_t> &layers,
                           const StageOrder &order)
    : body_(body), exchanges_(body, mesh, sizes, microbatches), order_(order),
      microbatches_(microbatches), fewest_(static_cast<int64_t>(body.layers.size())) {
  int64_t stages = mesh.size(Knob::Stages);
  if (stages > 1) {
    int64_t near = std::clamp<int64_t>(sizes.inNode / (sizes.ranks / stages), 1, 2);
    transferSeconds_ =
        predict::collectiveSeconds(*body.device, CollectiveKind::Send, plan::Transport::Nccl,
                                   body.boundaryBytes, {2, near, near});
  }
  size_t begin = 0;
  for (int64_t count : layers) {
    auto end = begin + static_cast<size_t>(count);
    chunks_.push_back(chunkOf(begin, end));
    begin = end;
  }
  for (int64_t stage = 0; stage < stages; ++stage)
    fewest_ = std::min(fewest_, layersOfStage(layers, stage, stages));
}

void StageSeconds::addExchange(Exchanged &sum, const ExchangeCost &cost, bool areExperts) const {
  (areExperts ? sum.experts : sum.dense) += cost.took;
  sum.contending += cost.contending;
}

/// Layers are gathered and reduced one by one. The first kernel of a layer reads what it gathers,
/// and behind the last kernel of its backward pass its gradients are complete.
StageSeconds::Chunk StageSeconds::chunkOf(size_t begin, size_t end) const {
  Chunk chunk{begin, end, {}, {}};
  for (size_t layer = begin; layer < end; ++layer)
    for (bool areExperts : {false, true}) {
      const PartCost &part = body_.layers[layer];
      int64_t numel = areExperts ? part.expertNumel : part.numel;
      addExchange(chunk.gathers, exchanges_.gathered(numel, areExperts), areExperts);
      addExchange(chunk.reductions, exchanges_.reduced(numel, areExperts), areExperts);
    }
  if (begin < end) {
    int64_t least = body_.leastOfLayers(&PartCost::numel);
    chunk.gathers.exposed = exchanges_.gathered(least, false).took;
    chunk.reductions.exposed =
        exchanges_.reduced(chunks_.empty() ? std::min(least, body_.embeddingNumel) : least, false)
            .took;
  }
  return chunk;
}

/// The kernels of a pass run in order, so the backward ones begin when the weights of all layers
/// have been gathered for the forward ones, and gradients are reduced behind these.
PassSeconds StageSeconds::pass(const Chunk &chunk, PassKind kind, bool isLastOfModel, bool isFirst,
                               bool isLast, double factor) const {
  bool isForward = passes::hasForward(kind),
       hasGradients = kind != PassKind::Forward && kind != PassKind::Inputs;
  PassSum forward, backward;
  auto addPart = [&](const PartCost &part) {
    if (isForward)
      forward.add(part.forward, factor);
    if (kind == PassKind::Inputs)
      backward.add(part.inputs, factor);
    else if (kind == PassKind::Weights)
      backward.add(part.weights, factor);
    else if (hasGradients)
      backward.add(part.backward, factor);
  };
  for (size_t layer = chunk.begin; layer < chunk.end; ++layer)
    addPart(body_.layers[layer]);
  if (isLastOfModel)
    addPart(body_.head);
  PassSeconds seconds;
  const Exchanged &gathers = chunk.gathers, &reductions = chunk.reductions;
  bool gathersHere = exchanges_.gathersEachPass() && kind != PassKind::Weights;
  bool gathersOnce = exchanges_.gathersOnce() && isForward && isFirst;
  bool reduces = hasGradients && (exchanges_.reducesEachPass() || isLast);
  int times = gathersHere && kind == PassKind::Both ? 2 : gathersHere || gathersOnce ? 1 : 0;
  double behindForward = forward.longest, behind = backward.longest;
  // What a step of one microbatch gathers first has been gathered behind the step before.
  if (gathersHere && isForward && microbatches_ > 1)
    behindForward = std::max(behindForward + gathers.exposed, gathers.stream());
  seconds.made = behindForward + behind;
  if (hasGradients && kind != PassKind::Weights && chunk.begin < chunk.end) {
    const PartCost &first = body_.layers[chunk.begin];
    seconds.made -= std::max(first.backward.compute.at(factor) - first.passing(factor), 0.0);
  }
  if (reduces)
    behind = std::max(behind + reductions.exposed, reductions.stream());
  PassSum sum;
  sum.kernels = forward.kernels + backward.kernels;
  sum.longest = std::max(behindForward + behind, times * gathers.stream());
  sum.transfers = forward.transfers + backward.transfers + times * gathers.all() +
                  (reduces ? reductions.all() : 0);
  sum.contending = forward.contending + backward.contending + times * gathers.contending +
                   (reduces ? reductions.contending : 0);
  seconds.all = sum.seconds() + predict::kLaunchSeconds;
  return seconds;
}

double StageSeconds::at(double factor) const {
  constexpr size_t kKinds = 5, kTurns = 4;
  int64_t stages = order_.schedule.shape().stages;
  std::vector<std::array<std::optional<PassSeconds>, kKinds * kTurns>> known(chunks_.size());
  auto of = [&](int32_t stage, const StagePass &which) {
    auto number = static_cast<size_t>(which.part.chunk * stages + stage);
    bool isFirst = which.microbatch == 0, isLast = which.microbatch + 1 == microbatches_;
    size_t turn = (isFirst ? 1u : 0u) + (isLast ? 2u : 0u);
    std::optional<PassSeconds> &seconds =
        known[number][static_cast<size_t>(which.part.kind) * kTurns + turn];
    if (!seconds)
      seconds = pass(chunks_[number], which.part.kind, number + 1 == chunks_.size(), isFirst,
                     isLast, factor);
    return *seconds;
  };
  return order_.schedule.secondsWith(of, transferSeconds_) + exchanges_.optimizerSeconds(fewest_);
}

} // namespace shardc::tools
