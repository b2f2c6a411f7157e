#include "compiler/tools/TuneEstimate.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "compiler/config/Options.h"
#include "compiler/model/PassOrder.h"
#include "compiler/passes/ChooseRecompute.h"
#include "compiler/passes/PipelineStages.h"
#include "compiler/predict/Overheads.h"
#include "compiler/predict/StepTime.h"
#include "runtime/plan/Builder.h"

namespace shardc::tools {
namespace {

using plan::Op;
using plan::Phase;
using plan::ValueId;

const plan::Segment *bodyOf(const plan::Plan &plan) {
  for (const plan::Segment &segment : plan.roles.front().segments)
    if (segment.body &&
        std::ranges::any_of(segment.ops, [](const Op &op) { return op.phase == Phase::Backward; }))
      return &segment;
  return nullptr;
}

bool isCollective(const Op &op) { return plan::opInfo(op).traits == plan::OpTraits::Collective; }
bool isAlias(const Op &op) { return plan::opInfo(op).traits == plan::OpTraits::Alias; }

/// For each op, whether an earlier unit waits for its result in the backward pass.
std::vector<uint8_t> areAwaited(const plan::Segment &body) {
  std::vector<uint8_t> isRead(body.values.size()), are(body.ops.size());
  for (size_t i = body.ops.size(); i-- > 0;) {
    const Op &op = body.ops[i];
    if (op.phase != Phase::Backward)
      continue;
    are[i] = std::ranges::any_of(op.results, [&](ValueId value) { return isRead[value] != 0; });
    auto read = [&](ValueId value) {
      uint32_t def = body.values[value].def;
      isRead[value] |= are[i] != 0 || (def != plan::kNone && body.ops[def].unit != op.unit);
    };
    std::ranges::for_each(op.operands, read);
    for (const plan::Tie &tie : op.ties)
      read(tie.value);
  }
  return are;
}

PassCost costOf(const predict::Device &device, const plan::Plan &plan, const plan::Segment &body,
                const Op &op) {
  double seconds = predict::timeOf(device, plan, body, op);
  if (!isCollective(op)) {
    bool isScaled =
        predict::takesPower(op) || plan::opInfo(op).work.cost == plan::CostClass::Attention;
    return {predict::kGapSeconds + (isScaled ? 0 : seconds), isScaled ? seconds : 0, 0};
  }
  if (!plan.job.model.tpCommOverlap)
    return {0, 0, seconds};
  double slows = predict::contendingSeconds(plan::collectiveKindOf(op), plan.transportOf(op),
                                            body.values[plan::wholeOf(op)].type.bytes(),
                                            plan.membersOf(op), seconds);
  return {predict::kContentionOfPieces * slows, 0, 0};
}

/// The cost of each unit, and what it holds.
std::vector<PartCost> costsOfUnits(const plan::Plan &plan, const plan::Segment &body) {
  std::vector<PartCost> units(plan.units.size());
  std::vector<uint8_t> isAwaited = areAwaited(body);
  const predict::Device device = predict::deviceOf(plan);
  for (size_t i = 0; i < body.ops.size(); ++i) {
    const Op &op = body.ops[i];
    if (op.unit < 0 || isAlias(op))
      continue;
    PartCost &unit = units[static_cast<size_t>(op.unit)];
    PassCost cost = costOf(device, plan, body, op);
    (op.phase == Phase::Backward ? unit.backward : unit.forward) += cost;
    if (op.phase == Phase::Backward && isAwaited[i] != 0)
      unit.inputs += cost;
    unit.products += predict::takesPower(op) ? cost.scaled : 0;
  }
  std::vector<int64_t> kept = passes::keptBytesOfUnits(body, units.size());
  for (size_t unit = 0; unit < units.size(); ++unit)
    units[unit].keptBytes = kept[unit];
  for (const plan::Param &param : plan.params) {
    int32_t unit = param.block < 0 ? -1 : plan.blocks[static_cast<size_t>(param.block)].unit;
    if (unit < 0)
      continue;
    PartCost &part = units[static_cast<size_t>(unit)];
    Held &held = param.isStacked() ? part.experts : part.dense;
    if (plan.classOf(plan.blocks[static_cast<size_t>(param.block)]).isTrained)
      held.trained += param.type.numel();
    else
      held.frozenBytes += param.type.bytes();
  }
  return units;
}

/// Seconds of a collective with the fastest transport, and the slowdown of kernels beside it.
struct Transfer {
  double took = 0, slows = 0;
};

/// The data-parallel communication of parts of the model under one mesh.
class Exchanges {
public:
  Exchanges(const BodyCost &body, const ElementBytes &elements, const Layout &mesh,
            const TuneSizes &sizes)
      : body_(body), elements_(elements), mesh_(mesh), sizes_(sizes) {}

  /// Whether weights are gathered in each pass that uses them, or once per step; whether gradients
  /// are reduced in each backward pass instead of once per step.
  bool gathersEachPass() const { return mesh_.is(Knob::Sharding, "fsdp"); }
  bool gathers() const { return mesh_.isSharded() || mesh_.is(Knob::Sharding, "distopt"); }
  bool reducesEachPass() const { return mesh_.isSharded() && !body_.reducesOnce; }

  Transfer gathered(const Held &of, bool areExperts) const {
    int64_t frozen = gathersEachPass() && !body_.keepsFrozen ? of.frozenBytes : 0;
    return team(CollectiveKind::AllGather, of.trained * elements_.gathered + frozen, areExperts);
  }
  Transfer reduced(const Held &of, bool areExperts) const {
    return team(mesh_.is(Knob::Sharding, "none") ? CollectiveKind::AllReduce
                                                 : CollectiveKind::ReduceScatter,
                of.trained * elements_.gradients, areExperts);
  }
  /// The all-reduce between instances, once per step.
  Transfer summed(const Held &of, bool areExperts) const {
    int64_t instances = mesh_.size(Knob::Instances);
    if (instances == 1 || elements_.dividesInstances)
      return {};
    return collective(CollectiveKind::AllReduce,
                      of.trained / mesh_.sharers(sizes_, areExperts) * elements_.gradients,
                      instances, sizes_.ranks / (mesh_.size(Knob::Stages) * instances));
  }

private:
  Transfer team(CollectiveKind kind, int64_t bytes, bool areExperts) const {
    return collective(kind, bytes, mesh_.sharers(sizes_, areExperts),
                      areExperts ? mesh_.expertRanks() : mesh_.size(Knob::Tensor));
  }
  Transfer collective(CollectiveKind kind, int64_t bytes, int64_t members, int64_t stride) const {
    if (members == 1 || bytes == 0)
      return {};
    predict::Team team = predict::teamOf(*body_.device, sizes_.inNode, members, stride);
    Transfer least{HUGE_VAL, HUGE_VAL};
    for (plan::Transport way :
         {plan::Transport::Nccl, plan::Transport::Ce, plan::Transport::Exchange}) {
      double took = predict::collectiveSeconds(*body_.device, kind, way, bytes, team);
      least.took = std::min(least.took, took);
      least.slows =
          std::min(least.slows, predict::kContention *
                                    predict::contendingSeconds(kind, way, bytes, members, took));
    }
    return least;
  }

  const BodyCost &body_;
  const ElementBytes &elements_;
  const Layout &mesh_;
  const TuneSizes &sizes_;
};

/// Seconds of a part of the model: of each microbatch, once per step, and of each microbatch of a
/// stage that another one waits for.
struct PartSeconds {
  double each = 0, once = 0, awaited = 0;
};

PartSeconds secondsOfPart(const PartCost &part, const Exchanges &exchanges, double factor,
                          bool delaysWeights, bool hidesTransfers) {
  double forward = part.forward.kernels(factor) + part.forward.transfers;
  double inputs = part.inputs.kernels(factor) + part.backward.transfers;
  double backward = std::max(part.backward.kernels(factor), inputs);
  PartSeconds seconds{forward + backward, 0, forward + backward};
  if (hidesTransfers) // behind kernels of another microbatch
    seconds.each = part.forward.kernels(factor) + part.backward.kernels(factor);
  if (delaysWeights) // weight gradients fill the time in which the stage would wait
    seconds.awaited = std::max(forward + 2 * inputs - backward, 0.0);
  double gathers = 0, reductions = 0;
  for (bool areExperts : {false, true}) {
    const Held &held = areExperts ? part.experts : part.dense;
    if (held.isEmpty())
      continue;
    Transfer gather = exchanges.gathers() ? exchanges.gathered(held, areExperts) : Transfer();
    Transfer reduction = exchanges.reduced(held, areExperts);
    Transfer sum = exchanges.summed(held, areExperts);
    gathers = std::max(gathers, gather.took);
    reductions = std::max(reductions, reduction.took);
    (exchanges.gathersEachPass() ? seconds.each : seconds.once) +=
        gather.slows * (exchanges.gathersEachPass() ? 2 : 1);
    (exchanges.reducesEachPass() ? seconds.each : seconds.once) += reduction.slows;
    seconds.once += sum.slows + std::max(sum.took - backward, 0.0);
  }
  double again = exchanges.gathersEachPass() ? gathers : 0;
  (exchanges.gathersEachPass() ? seconds.each : seconds.once) += std::max(gathers - forward, 0.0);
  (exchanges.reducesEachPass() ? seconds.each : seconds.once) +=
      std::max(reductions - std::max(backward, again), 0.0);
  seconds.each += std::max(again - backward, 0.0);
  return seconds;
}

/// The schedule that the layout names, if it comes from no file.
std::optional<plan::Job::PipelineSchedule> scheduleOf(const Layout &mesh) {
  if (mesh.is(Knob::Schedule, "file"))
    return std::nullopt;
  std::optional<size_t> named =
      config::findEnumerator(config::enumKindOf<config::PipelineSchedule>(),
                             mesh.word(Knob::Schedule)); // otherwise `1f1b` or `-`
  return static_cast<plan::Job::PipelineSchedule>(named.value_or(0));
}

/// Whether gradients of weights fill the time in which stages would wait.
bool dividesBackward(const Layout &mesh) {
  using enum plan::Job::PipelineSchedule;
  auto schedule = scheduleOf(mesh);
  return schedule == ZeroBubble || schedule == ZbV || schedule == DualPipeV ||
         schedule == ZeroBubbleGreedy;
}

/// The stage of each chunk. A file's is known for the recipe's own sizes.
model::Placement placementOf(const Layout &mesh, const model::StageRequest &own) {
  int64_t stages = mesh.size(Knob::Stages), chunks = mesh.size(Knob::Chunks);
  if (auto schedule = scheduleOf(mesh))
    return model::placementFor(*schedule, stages, chunks);
  return own.placement && own.stages == stages && own.chunks == chunks
             ? *own.placement
             : model::Placement::looped(stages, chunks);
}

/// How many forward passes of chunks a stage keeps at once; the fewest if that depends on more than
/// sizes.
int64_t passesKept(const Layout &mesh, int64_t stage, int64_t microbatches) {
  using enum plan::Job::PipelineSchedule;
  int64_t stages = mesh.size(Knob::Stages), chunks = mesh.size(Knob::Chunks);
  int64_t before = stages - 1 - stage;
  auto schedule = scheduleOf(mesh);
  if (schedule == LoopedBfs)
    return microbatches * chunks;
  if (schedule == ZbV)
    return std::min({2 * stages, 2 * microbatches, microbatches + 1 + stage});
  if (schedule == DualPipeV)
    return 2 * stages + 1;
  if (!schedule || schedule == ZeroBubbleGreedy)
    return chunks;
  return chunks == 1 ? std::min(microbatches, before + 1)
                     : std::min(microbatches * chunks, 2 * before + (chunks - 1) * stages);
}

} // namespace

PassCost &PassCost::operator+=(const PassCost &other) {
  fixed += other.fixed;
  scaled += other.scaled;
  transfers += other.transfers;
  return *this;
}

Held &Held::operator+=(const Held &other) {
  trained += other.trained;
  frozenBytes += other.frozenBytes;
  return *this;
}

/// Sorts the costs of units by their kind, since a layout divides layers among stages but not
/// embedding and head.
BodyCost costOfBody(const plan::Plan &plan) {
  using KeepFrozen = plan::Job::KeepFrozen;
  BodyCost cost;
  const plan::Segment *body = bodyOf(plan);
  if (body == nullptr)
    return cost;
  passes::addSeconds(plan, cost.times);
  cost.device = predict::deviceOf(plan);
  cost.movesPieces = plan.job.model.tpCommOverlap;
  cost.overlapsPasses = plan.job.model.overlapMoeExpertParallelComm;
  cost.reducesOnce = plan.job.ddp.reduceGrads == plan::Job::ReduceGrads::EachStep;
  cost.keepsFrozen = plan.job.ddp.keepFrozen.value_or(KeepFrozen::Never) != KeepFrozen::Never;
  cost.dividesFrozen = plan.job.ddp.keepFrozen != KeepFrozen::Always;
  std::vector<PartCost> units = costsOfUnits(plan, *body);
  for (size_t unit = 0; unit < units.size(); ++unit)
    if (plan.units[unit].kind == plan::UnitKind::Layer)
      cost.layers.push_back(units[unit]);
    else if (plan.units[unit].kind == plan::UnitKind::Head)
      cost.head = units[unit];
    else if (plan.units[unit].kind == plan::UnitKind::Embedding)
      cost.embedding += units[unit].dense;
  return cost;
}

Estimates::Estimates(const BodyCost &cost, const Layout &body, const TuneSizes &sizes,
                     std::function<ElementBytes(const Layout &mesh)> elements)
    : cost_(cost), body_(body), sizes_(sizes), elements_(std::move(elements)),
      products_(cost.head.products) {
  for (const PartCost &layer : cost.layers) {
    auto known = std::ranges::find(kinds_, layer);
    kindOf_.push_back(static_cast<size_t>(known - kinds_.begin()));
    if (known == kinds_.end())
      kinds_.push_back(layer);
    products_ += layer.products;
  }
  kinds_.push_back(cost.head);
}

static std::string keyOf(const Layout &mesh) {
  return fmt::format("{} {} {} {}", mesh.word(Knob::Stages), mesh.word(Knob::Chunks),
                     mesh.word(Knob::Schedule), mesh.word(Knob::Split));
}

const std::vector<int64_t> &Estimates::layersOf(const Layout &mesh) const {
  return divisions_.at(keyOf(mesh)).layers;
}

const Estimates::Division &Estimates::divide(const Layout &mesh) {
  auto [at, isFirst] = divisions_.try_emplace(keyOf(mesh));
  Division &division = at->second;
  if (!isFirst)
    return division;
  model::StageRequest request = cost_.times;
  if (mesh.is(Knob::Split, "given")) {
    request = sizes_.division;
    request.seconds = cost_.times.seconds;
    request.before = cost_.times.before, request.behind = cost_.times.behind;
  } else {
    request.isBalanced = mesh.is(Knob::Split, "balanced");
  }
  request.layers = sizes_.layers;
  request.stages = mesh.size(Knob::Stages);
  request.chunks = mesh.size(Knob::Chunks);
  const model::Placement placement = placementOf(mesh, sizes_.division);
  request.placement = placement;
  division.layers = request.stages == 1 ? std::vector<int64_t>{request.layers}
                                        : model::divideLayers(request).layers;
  division.counts.assign(static_cast<size_t>(request.stages), std::vector<double>(kinds_.size()));
  auto stageOf = [&](size_t chunk) {
    return static_cast<size_t>(placement.stageOf(static_cast<int32_t>(chunk)));
  };
  size_t layer = 0;
  for (size_t chunk = 0; chunk < division.layers.size(); ++chunk)
    for (int64_t i = 0; i < division.layers[chunk] && layer < kindOf_.size(); ++i)
      ++division.counts[stageOf(chunk)][kindOf_[layer++]];
  size_t last = stageOf(static_cast<size_t>(placement.chunks() - 1));
  division.counts[last].back() = 1; // the head
  return division;
}

double Estimates::secondsOf(const Layout &mesh, const std::vector<double> &added) const {
  if (cost_.layers.empty())
    return 0;
  auto microbatches = static_cast<double>(microbatchesOf(body_, mesh, sizes_));
  double products = microbatches * products_ / static_cast<double>(mesh.size(Knob::Stages));
  double once = secondsAt(1, mesh, added);
  return secondsAt(predict::powerFactor(products / once), mesh, added);
}

/// The slowest stage runs all microbatches, and waits for the first one of the stages before it.
double Estimates::secondsAt(double factor, const Layout &mesh,
                            const std::vector<double> &added) const {
  const ElementBytes elements = elements_(mesh);
  const Exchanges exchanges(cost_, elements, mesh, sizes_);
  const Division &division = divisions_.at(keyOf(mesh));
  auto microbatches = static_cast<double>(microbatchesOf(body_, mesh, sizes_));
  auto chunks = static_cast<double>(mesh.size(Knob::Chunks));
  const auto schedule = scheduleOf(mesh); // a file may have cells of two
  const bool hidesTransfers =
      !schedule || *schedule == plan::Job::PipelineSchedule::DualPipeV || cost_.overlapsPasses;
  std::vector<PartSeconds> kinds;
  for (const PartCost &kind : kinds_)
    kinds.push_back(secondsOfPart(kind, exchanges, factor, dividesBackward(mesh), hidesTransfers));
  double most = 0, fill = 0, updated = 0;
  for (size_t stage = 0; stage < division.counts.size(); ++stage) {
    PartSeconds sum;
    double numels[2] = {static_cast<double>(stage == 0 ? cost_.embedding.trained : 0), 0};
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      double count = division.counts[stage][kind];
      sum.each += count * kinds[kind].each;
      sum.once += count * kinds[kind].once;
      sum.awaited += count * kinds[kind].awaited;
      numels[0] += count * static_cast<double>(kinds_[kind].dense.trained);
      numels[1] += count * static_cast<double>(kinds_[kind].experts.trained);
    }
    sum.each += stage < added.size() ? added[stage] : 0;
    most = std::max(most, microbatches * sum.each + sum.once + fill);
    fill += sum.awaited / chunks;
    double shared = 0;
    for (bool areExperts : {false, true}) {
      int64_t shards = mesh.is(Knob::Sharding, "none") ? 1 : mesh.sharers(sizes_, areExperts);
      shards *= elements.dividesInstances ? mesh.size(Knob::Instances) : 1;
      shared += numels[areExperts ? 1 : 0] / static_cast<double>(shards);
    }
    updated = std::max(updated, shared);
  }
  // While the last gradients are reduced, and the first weights gathered, no kernel runs.
  const Held &last = mesh.size(Knob::Stages) > 1 ? cost_.layers.front().dense : cost_.embedding;
  double exposed = exchanges.reduced(last, false).took + exchanges.summed(last, false).took;
  // The optimizer reads and writes master weights and moments.
  auto bytes = static_cast<double>(2 * elements.state + elements.weights + elements.gradients);
  return most + exposed + updated * bytes / (cost_.device->sustained.memoryGBs * 1e9);
}

/// A stage keeps the activations of as many microbatches as are in flight. Gradients and
/// activations of a single microbatch share bytes.
int64_t Estimates::bytesOf(const Layout &mesh) const {
  const ElementBytes elements = elements_(mesh);
  const Division &division = divisions_.at(keyOf(mesh));
  const int64_t microbatches = microbatchesOf(body_, mesh, sizes_);
  const int64_t stages = mesh.size(Knob::Stages), chunks = mesh.size(Knob::Chunks);
  const bool isNone = mesh.is(Knob::Sharding, "none");
  // For a sharding that the table does not list, assumes the one with the fewest bytes.
  const bool isFull = mesh.is(Knob::Sharding, "fsdp") || mesh.is(Knob::Sharding, "given");
  const bool sharesGrads = (isFull || mesh.is(Knob::Sharding, "optim_grads")) && !cost_.reducesOnce;
  const int64_t instances = elements.dividesInstances && !isNone ? mesh.size(Knob::Instances) : 1;
  int64_t most = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    Held held[2];
    if (stage == 0)
      held[0] += cost_.embedding;
    double kept = 0;
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      auto count = static_cast<int64_t>(division.counts[static_cast<size_t>(stage)][kind]);
      for (int64_t i = 0; i < count; ++i) {
        held[0] += kinds_[kind].dense;
        held[1] += kinds_[kind].experts;
      }
      kept += static_cast<double>(count * kinds_[kind].keptBytes);
    }
    int64_t state = 0, gradients = 0;
    for (bool areExperts : {false, true}) {
      const Held &of = held[areExperts ? 1 : 0];
      int64_t shards = isNone ? 1 : mesh.sharers(sizes_, areExperts);
      state += of.trained * elements.weights / (isFull ? shards : 1) +
               of.trained * elements.state / (shards * instances) +
               of.frozenBytes / (isFull && cost_.dividesFrozen ? shards : 1);
      gradients += microbatches == 1 ? of.trained * std::min(elements.sums, elements.gradients) /
                                           (shards * instances)
                                     : of.trained * elements.sums / (sharesGrads ? shards : 1);
    }
    int64_t inFlight = passesKept(mesh, stage, microbatches);
    auto activations =
        static_cast<int64_t>(kept * static_cast<double>(inFlight) / static_cast<double>(chunks));
    most = std::max(most, state + (microbatches > 1 ? gradients + activations
                                                    : std::max(gradients, activations)));
  }
  return predict::leastOverheadBytes() + most;
}

} // namespace shardc::tools
