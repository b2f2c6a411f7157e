#include "compiler/tools/TuneStages.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>

#include "compiler/predict/Overheads.h"
#include "compiler/predict/StepTime.h"
#include "runtime/base/SmallCollectives.h"

namespace shardc::tools {

using passes::PassKind;
using passes::PassSeconds;
using passes::StagePart;
using passes::StagePass;
using passes::StageSchedule;

namespace {

StageSchedule scheduleOf(const Layout &mesh, int64_t microbatches) {
  passes::PipelineShape shape{mesh.size(Knob::Stages), mesh.size(Knob::Chunks), microbatches, 0};
  return StageSchedule(mesh.is(Knob::Schedule, "zero_bubble")
                           ? model::zeroBubble(shape)
                           : model::oneForwardOneBackward(shape));
}

} // namespace

StageOrder::StageOrder(StageSchedule of) : schedule(std::move(of)) {
  for (int32_t stage = 0; stage < schedule.stages(); ++stage) {
    std::vector<Slots> &own = slots.emplace_back();
    for (int32_t chunk : schedule.placement().chunksOf(stage)) {
      auto between = [&](PassKind from, PassKind to) {
        return schedule.slotsFor({from, chunk}, {{to, chunk}});
      };
      const std::vector<StagePart> &parts = schedule.parts(stage);
      auto has = [&](PassKind kind) {
        return std::ranges::find(parts, StagePart{kind, chunk}) != parts.end();
      };
      if (has(PassKind::Both)) // both passes of one microbatch in one launch
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

StageBytes::StageBytes(const BodyCost &body, const ElementBytes &elements, const Layout &mesh,
                       const TuneSizes &sizes, int64_t microbatches, const StageOrder *order)
    : body_(body), elements_(elements), mesh_(mesh), order_(order),
      stages_(mesh.size(Knob::Stages)), chunks_(mesh.size(Knob::Chunks)),
      microbatches_(microbatches) {
  if (mesh.is(Knob::Sharding, "none"))
    return;
  shards_ = mesh.sharers(sizes, false);
  expertShards_ = mesh.sharers(sizes, true);
  instances_ = elements.dividesInstances ? mesh.size(Knob::Instances) : 1;
}

int64_t StageBytes::most(const std::vector<PartHeld> &chunks) const {
  int64_t bytes = 0;
  for (int64_t stage = 0; stage < stages_; ++stage)
    bytes = std::max(bytes, communicators(stage) +
                                held(state(numelsOf(stage, chunks)), activations(stage, chunks)));
  return predict::leastOverheadBytes() + bytes;
}

int64_t StageBytes::mostWith(const std::vector<int64_t> &activations,
                             const std::vector<PartHeld> &chunks) const {
  int64_t bytes = 0;
  for (size_t stage = 0; stage < activations.size(); ++stage)
    bytes = std::max(
        bytes, held(state(numelsOf(static_cast<int64_t>(stage), chunks)), activations[stage]));
  return predict::leastOverheadBytes() + bytes;
}

/// Gradients and activations of a single microbatch share bytes: gradients exist only from the
/// backward pass on, activations only up to it. With several microbatches both exist at the same
/// time.
int64_t StageBytes::held(const State &state, int64_t activations) const {
  return state.kept + (microbatches_ > 1 ? state.gradients + activations
                                         : std::max(state.gradients, activations));
}

StageBytes::State StageBytes::state(const Numels &numels) const {
  State dense = stateOf(numels.dense, shards_), experts = stateOf(numels.experts, expertShards_);
  return {dense.kept + experts.kept, dense.gradients + experts.gradients};
}

StageBytes::State StageBytes::stateOf(const Numel &of, int64_t shards) const {
  int64_t numel = of.trained;
  // For a sharding that the table does not list, assumes the one with the fewest bytes.
  bool isFull = mesh_.is(Knob::Sharding, "fsdp") || mesh_.is(Knob::Sharding, "given");
  bool sharesGrads = isFull || mesh_.is(Knob::Sharding, "optim_grads");
  // A rank sums whole gradients, or its shard of them. With a single microbatch, gradients are
  // sharded as soon as a layer has computed them.
  int64_t sum = numel * elements_.sums / (shards > 1 && sharesGrads ? shards : 1);
  if (microbatches_ == 1)
    sum = numel * std::min(elements_.sums, elements_.gradients) / (shards * instances_);
  // With chunks, buffers do not reuse bytes of values that a pass stores.
  if (shards > 1 && !sharesGrads && chunks_ > 1)
    sum += numel * elements_.sums / shards;
  return {numel * elements_.weights / (isFull ? shards : 1) +
              numel * elements_.state / (shards * instances_) +
              of.frozen * elements_.weights / (isFull && body_.dividesFrozen ? shards : 1),
          sum};
}

int64_t StageBytes::communicators(int64_t stage) const {
  predict::LeastChannels channels;
  if (body_.boundaryBytes > kSmallCollectiveBytes && stages_ > 1)
    channels.transfers = (chunks_ == 1 && (stage == 0 || stage + 1 == stages_) ? 2 : 4) /
                         (body_.hasForwardOnly() ? 2 : 1); // possibly nothing is sent back
  bool movesRows = body_.boundaryBytes > kSmallCollectiveBytes;
  channels.kernels = movesRows && mesh_.size(Knob::Tensor) > 1 && mesh_.is(Knob::Rows, "rows");
  if (shards_ > 1 && body_.leastOfLayers(&Numel::trained) > kSmallCollectiveBytes)
    channels.gathers = channels.reductions = true;
  return predict::leastCommunicatorBytes(channels);
}

int64_t StageBytes::inFlight(int64_t stage) const {
  int64_t before = stages_ - 1 - stage;
  return chunks_ == 1 ? std::min(microbatches_, before + 1)
                      : std::min(microbatches_ * chunks_, 2 * before + (chunks_ - 1) * stages_);
}

int64_t StageBytes::keptInFlight(int64_t stage, const std::vector<PartHeld> &chunks) const {
  int64_t bytes = 0;
  for (int64_t pass = 0; pass < inFlight(stage); ++pass)
    bytes += held(stage, pass / stages_ % chunks_, chunks).keptBytes;
  return bytes;
}

int64_t StageBytes::activations(int64_t stage, const std::vector<PartHeld> &chunks) const {
  if (order_ == nullptr || stages_ == 1)
    return keptInFlight(stage, chunks);
  // Each chunk has its own bytes, for as many microbatches as it keeps at a time.
  int64_t bytes = 0;
  for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
    const StageOrder::Slots &slots =
        order_->slots[static_cast<size_t>(stage)][static_cast<size_t>(chunk)];
    const PartHeld &own = held(stage, chunk, chunks);
    bytes += slots.kept * (own.keptBytes - own.keptForWeights) + slots.longer * own.keptForWeights +
             slots.passed * own.passedBytes;
  }
  return bytes;
}

Numels StageBytes::numelsOf(int64_t stage, const std::vector<PartHeld> &chunks) const {
  Numels numels;
  for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
    numels.dense += held(stage, chunk, chunks).dense;
    numels.experts += held(stage, chunk, chunks).experts;
  }
  if (stage == 0)
    numels.dense += body_.embedding;
  if (stage + 1 == stages_)
    numels.dense += body_.head.held.dense;
  return numels;
}

StageSeconds::StageSeconds(const BodyCost &body, const ElementBytes &elements, const Layout &mesh,
                           const TuneSizes &sizes, int64_t microbatches,
                           const std::vector<int64_t> &layers, const StageOrder &order)
    : body_(body), exchanges_(body, elements, mesh, sizes, microbatches), order_(order),
      microbatches_(microbatches), embedding_(&exchangedOf(body.embedding, {})),
      head_(&exchangedOf(body.head.held.dense, body.head.held.experts)) {
  int64_t stages = mesh.size(Knob::Stages);
  if (stages > 1) {
    transferSeconds_ = predict::collectiveSeconds(
        *body.device, CollectiveKind::Send, plan::Transport::Nccl, body.boundaryBytes,
        predict::teamOf(*body.device, sizes.inNode, 2, sizes.ranks / stages));
  }
  for (const PartCost &layer : body.layers)
    layers_.push_back(&exchangedOf(layer.held.dense, layer.held.experts));
  size_t begin = 0;
  for (size_t chunk = 0; chunk < layers.size(); ++chunk) {
    size_t end = begin + static_cast<size_t>(layers[chunk]);
    chunks_.push_back({begin, end, chunk == 0, chunk + 1 == layers.size()});
    begin = end;
  }
}

const StageSeconds::Exchanged &StageSeconds::exchangedOf(const Numel &dense, const Numel &experts) {
  auto [at, isNew] = known_.try_emplace({dense, experts});
  for (bool areExperts : {false, true})
    if (const Numel &own = areExperts ? experts : dense; isNew && own.all() > 0) {
      Exchanged &each = at->second;
      each.gathers[areExperts] = exchanges_.gathered(exchanges_.gatheredOf(own), areExperts);
      each.again[areExperts] = exchanges_.gathered(own.again, areExperts);
      each.reductions[areExperts] = exchanges_.reduced(own.trained, areExperts);
      each.sums[areExperts] = exchanges_.summed(own.trained, areExperts);
    }
  return at->second;
}

/// Times a pass. Its kernels run in order, and so do the collectives of each stream. The kernels of
/// a part wait for its gathers, and the reductions of its gradients wait for its kernels.
class StageSeconds::Pass {
public:
  explicit Pass(double factor) : factor_(factor) {}

  void gather(const ExchangeCost (&of)[2]) {
    for (size_t stream : {0, 1})
      run(gathered_[stream], 0, of[stream]);
    now_ = std::max(now_, gathered_[kDense]);
  }

  /// Adds the kernels of a part, after its gathers.
  void compute(const PassCost &cost) {
    sum_.add(cost, factor_);
    now_ = std::max(now_ + std::max(cost.compute.at(factor_), cost.chain.at(factor_)),
                    gathered_[kExperts]);
  }

  /// Adds reductions of gradients that are complete at the time `complete` or later.
  void reduce(const Exchanged &of, double complete, bool addsInstances) {
    for (size_t stream : {0, 1}) {
      run(reduced_[stream], complete, of.reductions[stream]);
      if (addsInstances)
        run(reduced_[stream], complete, of.sums[stream]);
    }
  }

  double now() const { return now_; }
  /// Seconds from the beginning of the pass until everything has completed.
  double seconds() {
    sum_.longest = 0;
    return sum_.seconds(std::max(
        {now_, gathered_[kDense], gathered_[kExperts], reduced_[kDense], reduced_[kExperts]}));
  }

private:
  static constexpr size_t kDense = 0, kExperts = 1;

  void run(double &stream, double ready, const ExchangeCost &cost) {
    stream = std::max(stream, ready) + cost.took;
    sum_.transfers += cost.took;
    sum_.contending += cost.contending;
  }

  double factor_, now_ = 0;
  double gathered_[2] = {}, reduced_[2] = {}; ///< ends of streams
  PassSum sum_;
};

PassSeconds StageSeconds::pass(const Chunk &chunk, PassKind kind, bool isFirst, bool isLast,
                               double factor) const {
  bool isForward = passes::hasForward(kind), isBackward = kind != PassKind::Forward,
       hasGradients = isBackward && kind != PassKind::Inputs;
  bool gathersHere = exchanges_.gathersEachPass() && kind != PassKind::Weights;
  bool gathersForward = isForward && (gathersHere || (exchanges_.gathersOnce() && isFirst));
  bool reduces = hasGradients && (exchanges_.reducesEachPass() || isLast);
  Pass pass(factor);
  if (gathersForward && chunk.isFirst)
    pass.gather(embedding_->gathers);
  for (size_t layer = chunk.begin; isForward && layer < chunk.end; ++layer) {
    if (gathersForward)
      pass.gather(layers_[layer]->gathers);
    pass.compute(body_.layers[layer].forward);
  }
  auto addBackward = [&](const PartCost &part, const Exchanged &of) {
    const PassCost &cost = kind == PassKind::Inputs    ? part.inputs
                           : kind == PassKind::Weights ? part.weights
                                                       : part.backward;
    // Exchanges inside the layer may still run after the weight gradients are complete.
    double complete = pass.now() + part.weights.compute.at(factor);
    pass.compute(cost);
    if (reduces)
      pass.reduce(of, std::min(complete, pass.now()), isLast);
  };
  if (chunk.isLast) {
    if (gathersForward)
      pass.gather(head_->gathers);
    if (isForward)
      pass.compute(body_.head.forward);
    if (isBackward)
      addBackward(body_.head, *head_);
  }
  for (size_t layer = chunk.end; isBackward && layer-- > chunk.begin;) {
    if (gathersHere)
      pass.gather(layers_[layer]->again);
    addBackward(body_.layers[layer], *layers_[layer]);
  }
  PassSeconds seconds;
  seconds.made = pass.now();
  if (hasGradients && kind != PassKind::Weights && chunk.begin < chunk.end) {
    const PartCost &first = body_.layers[chunk.begin];
    seconds.made -= std::max(first.backward.compute.at(factor) - first.passing(factor), 0.0);
  }
  if (reduces && chunk.isFirst)
    pass.reduce(*embedding_, pass.now(), isLast);
  seconds.all = pass.seconds() + predict::kLaunchSeconds;
  return seconds;
}

double StageSeconds::at(double factor, const Numels &fewest) const {
  constexpr size_t kKinds = 5, kTurns = 4;
  std::vector<std::array<std::optional<PassSeconds>, kKinds * kTurns>> known(chunks_.size());
  auto of = [&](int32_t, const StagePass &which) {
    auto number = static_cast<size_t>(which.part.chunk);
    bool isFirst = which.microbatch == 0, isLast = which.microbatch + 1 == microbatches_;
    size_t turn = (isFirst ? 1u : 0u) + (isLast ? 2u : 0u);
    std::optional<PassSeconds> &seconds =
        known[number][static_cast<size_t>(which.part.kind) * kTurns + turn];
    if (!seconds)
      seconds = pass(chunks_[number], which.part.kind, isFirst, isLast, factor);
    return *seconds;
  };
  return order_.schedule.secondsWith(of, transferSeconds_) + exchanges_.optimizerSeconds(fewest);
}

} // namespace shardc::tools
