#include "compiler/tools/TuneBound.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/passes/ChooseRecompute.h"
#include "compiler/passes/PipelineStages.h"
#include "compiler/predict/StepTime.h"
#include "compiler/predict/Transfers.h"
#include "runtime/plan/Builder.h"

namespace shardc::tools {
namespace {

using plan::Op;
using plan::Phase;
using plan::ValueId;

/// The longest chain of ops from a value of one part of the model to another part, within a phase.
/// What a chain begins with besides does not count: it may have been ready before.
class Chains {
public:
  Chains(const plan::Segment &body, const std::vector<double> &seconds)
      : body_(body), seconds_(seconds), reached_(body.values.size(), kNever) {}

  /// By unit.
  std::vector<double> longest(Phase phase, size_t units) {
    std::ranges::fill(reached_, kNever);
    std::vector<double> most(units);
    for (size_t i = 0; i < body_.ops.size(); ++i) {
      const Op &op = body_.ops[i];
      if (op.phase != phase || op.unit < 0)
        continue;
      double begin = kNever;
      auto read = [&](ValueId value) {
        const plan::Value &operand = body_.values[value];
        if (operand.def == plan::kNone || body_.ops[operand.def].phase != phase)
          return;
        int32_t from = body_.ops[operand.def].unit;
        if (from != op.unit && from >= 0 && reached_[value] != kNever)
          most[static_cast<size_t>(from)] =
              std::max(most[static_cast<size_t>(from)], reached_[value]);
        begin = std::max(begin, from == op.unit ? reached_[value] : 0);
      };
      std::ranges::for_each(op.operands, read);
      for (ValueId result : op.results)
        reached_[result] = begin == kNever ? kNever : begin + seconds_[i];
    }
    return most;
  }

private:
  static constexpr double kNever = -1;
  const plan::Segment &body_;
  const std::vector<double> &seconds_;
  std::vector<double> reached_; ///< seconds since its unit began; kNever: by no chain
};

const plan::Segment *bodyOf(const plan::Plan &plan) {
  for (const plan::Segment &segment : plan.roles.front().segments)
    if (segment.body &&
        std::ranges::any_of(segment.ops, [](const Op &op) { return op.phase == Phase::Backward; }))
      return &segment;
  return nullptr;
}

bool isCollective(const Op &op) { return plan::opInfo(op).traits == plan::OpTraits::Collective; }
bool isAlias(const Op &op) { return plan::opInfo(op).traits == plan::OpTraits::Alias; }

std::vector<PartCost> costsOfUnits(const plan::Plan &plan, const plan::Segment &body) {
  const predict::Device device = predict::atFullPower(predict::deviceOf(plan));
  std::vector<PartCost> units(plan.units.size());
  std::vector<double> seconds(body.ops.size());
  for (size_t i = 0; i < body.ops.size(); ++i) {
    const Op &op = body.ops[i];
    if (op.unit < 0 || isAlias(op))
      continue;
    seconds[i] = predict::timeOf(device, plan, body, op);
    PartCost &unit = units[static_cast<size_t>(op.unit)];
    if (!isCollective(op))
      (op.phase == Phase::Backward ? unit.backward : unit.forward) += seconds[i];
    unit.recomputed += op.isRecomputed ? seconds[i] : 0;
  }
  // Pieces of rows move beside products that they do not belong to.
  if (plan.job.model.tpCommOverlap)
    for (size_t i = 0; i < body.ops.size(); ++i)
      seconds[i] = isCollective(body.ops[i]) ? 0 : seconds[i];
  Chains chains(body, seconds);
  std::vector<double> forward = chains.longest(Phase::Forward, units.size());
  std::vector<double> backward = chains.longest(Phase::Backward, units.size());
  for (size_t unit = 0; unit < units.size(); ++unit) {
    units[unit].forward = std::max(units[unit].forward, forward[unit]);
    units[unit].passing = std::min(backward[unit], units[unit].backward);
    units[unit].backward = std::max(units[unit].backward, backward[unit]);
  }
  std::vector<int64_t> kept = passes::keptBytesOfUnits(body, units.size());
  for (size_t unit = 0; unit < units.size(); ++unit)
    units[unit].keptBytes = kept[unit];
  for (const plan::Param &param : plan.params)
    if (param.block >= 0 && plan.blocks[static_cast<size_t>(param.block)].unit >= 0)
      units[static_cast<size_t>(plan.blocks[static_cast<size_t>(param.block)].unit)].numel +=
          param.type.numel();
  return units;
}

struct Sums {
  double both = 0, fill = 0; ///< of all passes; of what the first microbatch takes to get through
};

class Pipeline {
public:
  Pipeline(const BodyCost &body, const Layout &mesh, int64_t microbatches,
           const std::vector<int64_t> &layers)
      : body_(body), stages_(mesh.size(Knob::Stages)),
        microbatches_(static_cast<double>(microbatches)), counts_(layers),
        // Behind its last gradient a stage may still have those of weights to compute.
        passesBack_(!mesh.is(Knob::Schedule, "zero_bubble")) {}

  double seconds() const {
    Sums all;
    for (const PartCost &layer : body_.layers)
      add(all, layer);
    add(all, body_.head);
    if (stages_ == 1)
      return microbatches_ * all.both;
    // Some stage has its share, whatever the division.
    return counts_.empty() ? microbatches_ * all.both / static_cast<double>(stages_)
                           : knownLayers();
  }

private:
  void add(Sums &sums, const PartCost &part) const {
    sums.both += part.both();
    sums.fill += part.forward + (passesBack_ ? part.passing : 0);
  }

  /// Of the trailing gradients of weights that the last pass of a stage does not wait for.
  double trailing() const {
    double most = 0;
    for (const PartCost &layer : body_.layers)
      most = std::max(most, layer.backward - layer.passing);
    return passesBack_ ? most : 0;
  }

  /// Before the first pass of a stage and behind its last one, the first microbatch, or the last,
  /// is with the stages before it.
  double knownLayers() const {
    std::vector<Sums> stages(static_cast<size_t>(stages_)), firsts(stages.size());
    size_t layer = 0;
    for (size_t chunk = 0; chunk < counts_.size(); ++chunk) {
      Sums sums;
      for (int64_t i = 0; i < counts_[chunk]; ++i)
        add(sums, body_.layers[layer++]);
      if (chunk + 1 == counts_.size())
        add(sums, body_.head);
      stages[chunk % stages.size()].both += sums.both;
      if (chunk < firsts.size())
        firsts[chunk] = sums;
    }
    double most = 0, fill = 0;
    for (size_t s = 0; s < stages.size(); ++s) {
      double behind = s == 0 ? 0 : std::max(fill - trailing(), 0.0);
      most = std::max(most, microbatches_ * stages[s].both + behind);
      fill += firsts[s].fill;
    }
    return most;
  }

  const BodyCost &body_;
  int64_t stages_;
  double microbatches_;
  const std::vector<int64_t> &counts_; ///< of the layers of each chunk; none: not known
  bool passesBack_;
};

/// What the ranks of a stage hold at least.
class StageBytes {
public:
  StageBytes(const BodyCost &body, const Layout &mesh, const TuneSizes &sizes, int64_t microbatches)
      : body_(body), mesh_(mesh), stages_(mesh.size(Knob::Stages)),
        chunks_(mesh.size(Knob::Chunks)), microbatches_(microbatches) {
    if (!mesh.is(Knob::Sharding, "none"))
      shards_ = mesh.replicas(sizes) * mesh.size(Knob::Context) / mesh.size(Knob::Instances);
  }

  /// Of the stage that needs most; with an unknown division, of one with its share of the layers.
  int64_t most(const std::vector<int64_t> &layers) const {
    int64_t share = static_cast<int64_t>(body_.layers.size()) / stages_;
    if (layers.empty() && stages_ > 1)
      return state(share * leastLayer(&PartCost::numel));
    int64_t bytes = 0;
    for (int64_t stage = 0; stage < stages_; ++stage)
      bytes = std::max(bytes, ofStage(stage, layers));
    return bytes;
  }

private:
  int64_t leastLayer(int64_t PartCost::*of) const {
    return (*std::ranges::min_element(body_.layers, {}, of)).*of;
  }

  int64_t state(int64_t numel) const {
    bool isFull = mesh_.is(Knob::Sharding, "fsdp");
    bool sharesGrads = isFull || mesh_.is(Knob::Sharding, "optim_grads");
    return numel * body_.weightBytes / (isFull ? shards_ : 1) +
           numel * body_.gradientBytes / (sharesGrads ? shards_ : 1) +
           numel * body_.stateBytes / shards_;
  }

  /// Passes of chunks of which the stage keeps something at once.
  int64_t inFlight(int64_t stage) const {
    int64_t before = stages_ - 1 - stage;
    return chunks_ == 1 ? std::min(microbatches_, before + 1)
                        : std::min(microbatches_ * chunks_, 2 * before + (chunks_ - 1) * stages_);
  }

  int64_t ofStage(int64_t stage, const std::vector<int64_t> &layers) const {
    int64_t all = static_cast<int64_t>(body_.layers.size()), fewest = all;
    int64_t own = stages_ == 1 ? all : 0;
    for (auto chunk = static_cast<size_t>(stage); chunk < layers.size();
         chunk += static_cast<size_t>(stages_)) {
      own += layers[chunk];
      fewest = std::min(fewest, layers[chunk]);
    }
    bool isFirst = stage == 0, isLast = stage + 1 == stages_;
    int64_t numel = own * leastLayer(&PartCost::numel) + (isFirst ? body_.embeddingNumel : 0) +
                    (isLast ? body_.head.numel : 0);
    return state(numel) + fewest * leastLayer(&PartCost::keptBytes) * inFlight(stage);
  }

  const BodyCost &body_;
  const Layout &mesh_;
  int64_t stages_, chunks_, microbatches_, shards_ = 1;
};

} // namespace

BodyCost costOfBody(const plan::Plan &plan) {
  BodyCost cost;
  const plan::Segment *body = bodyOf(plan);
  if (body == nullptr)
    return cost;
  passes::addSeconds(plan, cost.times);
  std::vector<PartCost> units = costsOfUnits(plan, *body);
  for (size_t unit = 0; unit < units.size(); ++unit)
    switch (plan.units[unit].kind) {
    case plan::UnitKind::Layer:
      cost.layers.push_back(units[unit]);
      break;
    case plan::UnitKind::Head:
      cost.head = units[unit];
      break;
    case plan::UnitKind::Embedding:
      cost.embeddingNumel += units[unit].numel;
      break;
    case plan::UnitKind::Prediction:
    case plan::UnitKind::Other:
      break;
    }
  return cost;
}

const std::vector<int64_t> &Bounds::layersOf(const Layout &mesh) {
  auto [at, isFirst] = layers_.emplace(fmt::format("{} {} {}", mesh.word(Knob::Stages),
                                                   mesh.word(Knob::Chunks), mesh.word(Knob::Split)),
                                       std::vector<int64_t>());
  model::StageRequest request = cost_.times;
  request.layers = sizes_.layers;
  request.stages = mesh.size(Knob::Stages);
  request.chunks = mesh.size(Knob::Chunks);
  request.isBalanced = mesh.is(Knob::Split, "balanced");
  if (isFirst && (request.isBalanced || mesh.is(Knob::Split, "even")))
    at->second = model::divideLayers(request).layers;
  return at->second;
}

double Bounds::secondsOf(const Layout &mesh) {
  auto [at, isFirst] =
      seconds_.emplace(fmt::format("{} {} {} {}", mesh.word(Knob::Stages), mesh.word(Knob::Chunks),
                                   mesh.word(Knob::Split), mesh.word(Knob::Schedule)),
                       0);
  if (isFirst)
    at->second =
        Pipeline(cost_, mesh, microbatchesOf(body_, mesh, sizes_), layersOf(mesh)).seconds();
  return at->second;
}

Bound Bounds::of(const Layout &mesh) {
  if (cost_.layers.empty())
    return {};
  return {
      secondsOf(mesh),
      StageBytes(cost_, mesh, sizes_, microbatchesOf(body_, mesh, sizes_)).most(layersOf(mesh))};
}

} // namespace shardc::tools
