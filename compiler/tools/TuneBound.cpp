#include "compiler/tools/TuneBound.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

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
  Chains(const plan::Segment &body, const std::vector<PowerSeconds> &seconds)
      : body_(body), seconds_(seconds), reached_(body.values.size()) {}

  /// By unit.
  std::vector<PowerSeconds> longest(Phase phase, size_t units) {
    std::ranges::fill(reached_, std::nullopt);
    std::vector<PowerSeconds> most(units);
    for (size_t i = 0; i < body_.ops.size(); ++i) {
      const Op &op = body_.ops[i];
      if (op.phase != phase || op.unit < 0)
        continue;
      std::optional<PowerSeconds> begin;
      for (ValueId value : op.operands) {
        const plan::Value &operand = body_.values[value];
        if (operand.def == plan::kNone || body_.ops[operand.def].phase != phase)
          continue;
        int32_t from = body_.ops[operand.def].unit;
        const std::optional<PowerSeconds> &reached = reached_[value];
        if (from != op.unit && from >= 0 && reached)
          most[static_cast<size_t>(from)] = longer(most[static_cast<size_t>(from)], *reached);
        if (from != op.unit || reached)
          begin =
              longer(begin.value_or(PowerSeconds()), from == op.unit ? *reached : PowerSeconds());
      }
      if (begin)
        *begin += seconds_[i];
      for (ValueId result : op.results)
        reached_[result] = begin;
    }
    return most;
  }

private:
  static const PowerSeconds &longer(const PowerSeconds &a, const PowerSeconds &b) {
    return a.at(1) < b.at(1) ? b : a;
  }

  const plan::Segment &body_;
  const std::vector<PowerSeconds> &seconds_;
  /// Since its unit began; nothing: by no chain.
  std::vector<std::optional<PowerSeconds>> reached_;
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

/// Of an op by the rates of its device at several factors of power.
class OpSeconds {
public:
  explicit OpSeconds(const plan::Plan &plan)
      : plan_(plan), device_(predict::deviceOf(plan)), half_(predict::atPower(device_, 0.5)),
        twice_(predict::atPower(device_, 2)) {}

  PowerSeconds of(const plan::Segment &segment, const Op &op) const {
    double once = predict::timeOf(device_, plan_, segment, op);
    plan::CostClass cost = plan::opInfo(op).work.cost;
    if (!predict::takesPower(op) && cost != plan::CostClass::Attention)
      return {once, 0, 0};
    double byPower = predict::timeOf(half_, plan_, segment, op) - once;
    bool isCapped = predict::timeOf(twice_, plan_, segment, op) == once;
    return {once - byPower, isCapped ? 0 : byPower, isCapped ? byPower : 0};
  }

private:
  const plan::Plan &plan_;
  const predict::Device device_;
  const predict::Device half_, twice_;
};

/// What a collective costs the kernels beside it.
double contendingOf(const plan::Plan &plan, const plan::Segment &body, const Op &op, double took) {
  return predict::kContention *
         predict::contendingSeconds(plan::collectiveKindOf(op), plan.transportOf(op),
                                    body.values[plan::wholeOf(op)].type.bytes(), plan.membersOf(op),
                                    took);
}

std::vector<PartCost> costsOfUnits(const plan::Plan &plan, const plan::Segment &body) {
  std::vector<PartCost> units(plan.units.size());
  std::vector<PowerSeconds> seconds(body.ops.size());
  OpSeconds times(plan);
  // Pieces of rows move beside products that they do not belong to.
  bool movesPieces = plan.job.model.tpCommOverlap;
  for (size_t i = 0; i < body.ops.size(); ++i) {
    const Op &op = body.ops[i];
    if (op.unit < 0 || isAlias(op) || (movesPieces && isCollective(op)))
      continue;
    seconds[i] = times.of(body, op);
    PartCost &unit = units[static_cast<size_t>(op.unit)];
    PassCost &pass = op.phase == Phase::Backward ? unit.backward : unit.forward;
    double once = seconds[i].at(1);
    if (isCollective(op)) {
      pass.transfers += once;
      pass.contending += contendingOf(plan, body, op, once);
    } else {
      pass.compute += seconds[i];
    }
    unit.products += predict::takesPower(op) ? once : 0;
    unit.recomputed += op.isRecomputed ? once : 0;
  }
  Chains chains(body, seconds);
  std::vector<PowerSeconds> forward = chains.longest(Phase::Forward, units.size());
  std::vector<PowerSeconds> backward = chains.longest(Phase::Backward, units.size());
  std::vector<int64_t> kept = passes::keptBytesOfUnits(body, units.size());
  for (size_t unit = 0; unit < units.size(); ++unit) {
    units[unit].forward.chain = forward[unit];
    units[unit].backward.chain = backward[unit];
    units[unit].keptBytes = kept[unit];
  }
  for (const plan::Param &param : plan.params)
    if (param.block >= 0 && plan.blocks[static_cast<size_t>(param.block)].unit >= 0) {
      PartCost &unit =
          units[static_cast<size_t>(plan.blocks[static_cast<size_t>(param.block)].unit)];
      (param.isStacked() ? unit.expertNumel : unit.numel) += param.type.numel();
    }
  return units;
}

struct Sums {
  double both = 0, fill = 0; ///< of all passes; of what the first microbatch takes to get through
};

/// Of the layers.
int64_t leastOf(const BodyCost &body, int64_t PartCost::*of) {
  return (*std::ranges::min_element(body.layers, {}, of)).*of;
}

/// What the ranks of a stage hold at least.
class StageBytes {
public:
  StageBytes(const BodyCost &body, const Layout &mesh, const TuneSizes &sizes, int64_t microbatches)
      : body_(body), mesh_(mesh), stages_(mesh.size(Knob::Stages)),
        chunks_(mesh.size(Knob::Chunks)), microbatches_(microbatches) {
    if (mesh.is(Knob::Sharding, "none"))
      return;
    shards_ = mesh.sharers(sizes, false);
    expertShards_ = mesh.sharers(sizes, true);
  }

  /// Of the stage that needs most; with an unknown division, of one with its share of the layers.
  int64_t most(const std::vector<int64_t> &layers) const {
    int64_t share = static_cast<int64_t>(body_.layers.size()) / stages_;
    if (layers.empty() && stages_ > 1)
      return state(share * leastLayer(&PartCost::numel), shards_) +
             state(share * leastLayer(&PartCost::expertNumel), expertShards_);
    int64_t bytes = 0;
    for (int64_t stage = 0; stage < stages_; ++stage)
      bytes = std::max(bytes, ofStage(stage, layers));
    return bytes;
  }

private:
  int64_t leastLayer(int64_t PartCost::*of) const { return leastOf(body_, of); }

  int64_t state(int64_t numel, int64_t shards) const {
    bool isFull = mesh_.is(Knob::Sharding, "fsdp");
    bool sharesGrads = isFull || mesh_.is(Knob::Sharding, "optim_grads");
    return numel * body_.weightBytes / (isFull ? shards : 1) +
           numel * body_.gradientBytes / (sharesGrads ? shards : 1) +
           numel * body_.stateBytes / shards;
  }

  /// Passes of chunks of which the stage keeps something at once.
  int64_t inFlight(int64_t stage) const {
    int64_t before = stages_ - 1 - stage;
    return chunks_ == 1 ? std::min(microbatches_, before + 1)
                        : std::min(microbatches_ * chunks_, 2 * before + (chunks_ - 1) * stages_);
  }

  /// Passes of layers of which it does. A stage runs its chunks in turn, each for as many
  /// microbatches as there are stages.
  int64_t layersInFlight(int64_t stage, const std::vector<int64_t> &layers) const {
    if (stages_ == 1)
      return static_cast<int64_t>(body_.layers.size()) * inFlight(stage);
    int64_t sum = 0;
    for (int64_t pass = 0; pass < inFlight(stage); ++pass)
      sum += layers[static_cast<size_t>(pass / stages_ % chunks_ * stages_ + stage)];
    return sum;
  }

  int64_t ofStage(int64_t stage, const std::vector<int64_t> &layers) const {
    int64_t own = stages_ == 1 ? static_cast<int64_t>(body_.layers.size()) : 0;
    for (auto chunk = static_cast<size_t>(stage); chunk < layers.size();
         chunk += static_cast<size_t>(stages_))
      own += layers[chunk];
    bool isFirst = stage == 0, isLast = stage + 1 == stages_;
    int64_t numel = own * leastLayer(&PartCost::numel) + (isFirst ? body_.embeddingNumel : 0) +
                    (isLast ? body_.head.numel : 0);
    return state(numel, shards_) + state(own * leastLayer(&PartCost::expertNumel), expertShards_) +
           leastLayer(&PartCost::keptBytes) * layersInFlight(stage, layers);
  }

  const BodyCost &body_;
  const Layout &mesh_;
  int64_t stages_, chunks_, microbatches_, shards_ = 1, expertShards_ = 1;
};

/// What data-parallel ranks exchange in a step, and their optimizer, at least.
class Exchanges {
public:
  Exchanges(const BodyCost &body, const Layout &mesh, const TuneSizes &sizes, int64_t microbatches)
      : body_(body), mesh_(mesh), sizes_(sizes), microbatches_(static_cast<double>(microbatches)) {}

  /// Seconds that are added to those of the passes of a stage with so many layers, and the least
  /// that one of its streams of collectives takes.
  struct Least {
    double added = 0, stream = 0;
  };
  Least of(int64_t layers) const {
    Least least;
    for (bool areExperts : {false, true}) {
      int64_t PartCost::*numel = areExperts ? &PartCost::expertNumel : &PartCost::numel;
      int64_t all = layers * leastOf(body_, numel);
      if (all > 0)
        add(least, all, areExperts);
    }
    return least;
  }

private:
  void add(Least &least, int64_t numel, bool areExperts) const {
    bool isNone = mesh_.is(Knob::Sharding, "none"), isFull = mesh_.is(Knob::Sharding, "fsdp");
    int64_t shards = mesh_.sharers(sizes_, areExperts);
    // Master weights and moments are read and written.
    auto bytes =
        static_cast<double>(2 * body_.stateBytes + body_.weightBytes + body_.gradientBytes);
    least.added += static_cast<double>(numel) * bytes / static_cast<double>(isNone ? 1 : shards) /
                   (body_.device->sustained.memoryGBs * 1e9);
    if (shards == 1)
      return;
    double reductions = mesh_.isSharded() ? microbatches_ : 1;
    double gathers = isNone ? 0 : isFull ? 2 * microbatches_ : 1;
    CollectiveKind sum = isNone ? CollectiveKind::AllReduce : CollectiveKind::ReduceScatter;
    Cost reduced = costOf(sum, numel * body_.gradientBytes, shards, areExperts);
    Cost gathered =
        costOf(CollectiveKind::AllGather, numel * body_.gatheredBytes, shards, areExperts);
    least.added += reductions * reduced.contending + gathers * gathered.contending;
    least.stream = std::max({least.stream, reductions * reduced.took, gathers * gathered.took});
    if (areExperts)
      return;
    // When the gradients of a backward pass that come last are exchanged, nothing is left beside
    // it.
    int64_t last =
        mesh_.size(Knob::Stages) > 1 ? leastOf(body_, &PartCost::numel) : body_.embeddingNumel;
    Cost exposed = costOf(sum, last * body_.gradientBytes, shards, areExperts);
    double passes = mesh_.isSharded() ? static_cast<double>(mesh_.size(Knob::Chunks)) : 1;
    least.added += passes * reductions * (exposed.took - exposed.contending);
  }

  struct Cost {
    double took = 0, contending = 0;
  };
  /// By the fastest transport.
  Cost costOf(CollectiveKind kind, int64_t bytes, int64_t members, bool areExperts) const {
    int64_t stride = areExperts ? mesh_.expertRanks() : mesh_.size(Knob::Tensor);
    int64_t inNode = std::clamp<int64_t>(sizes_.inNode / stride, 1, members);
    predict::Team team{members, inNode, inNode};
    Cost least{HUGE_VAL, HUGE_VAL};
    for (plan::Transport way : {plan::Transport::Nccl, plan::Transport::Ce}) {
      double took = predict::collectiveSeconds(*body_.device, kind, way, bytes, team);
      least.took = std::min(least.took, took);
      least.contending =
          std::min(least.contending, predict::contendingSeconds(kind, way, bytes, members, took));
    }
    least.contending *= predict::kContention;
    return least;
  }

  const BodyCost &body_;
  const Layout &mesh_;
  const TuneSizes &sizes_;
  double microbatches_;
};

/// The factor of power of the fastest step in which products take so long at the factor 1, or of a
/// slower one; `seconds` is that step's, or more.
double mostPower(double products, double seconds) {
  // At a factor above 1 the step at the factor 1, of which the share is, is longer by up to it.
  double most = predict::powerFactor(products / (predict::powerFactor(0) * seconds));
  return most > 1 ? most : predict::powerFactor(products / seconds);
}

} // namespace

PowerSeconds &PowerSeconds::operator+=(const PowerSeconds &other) {
  fixed += other.fixed;
  scaled += other.scaled;
  capped += other.capped;
  return *this;
}

double PassCost::at(double factor) const {
  double kernels = compute.at(factor), longest = std::max(kernels, chain.at(factor));
  double hidden = std::max(transfers - (longest - kernels), 0.0);
  return longest + (transfers > 0 ? contending * hidden / transfers : 0);
}

BodyCost withLayers(BodyCost cost, int64_t layers) {
  auto more = static_cast<size_t>(layers) - cost.layers.size();
  cost.layers.insert(cost.layers.begin() + 1, more, cost.layers[1]);
  if (!cost.times.seconds.empty())
    cost.times.seconds.insert(cost.times.seconds.begin() + 1, more, cost.times.seconds[1]);
  return cost;
}

int64_t passingBytes(const BodyCost &cost) {
  // Two slots of weights, and gradients that are computed and sent.
  int64_t most = cost.embeddingNumel + cost.head.numel;
  for (const PartCost &layer : cost.layers)
    most = std::max(most, layer.numel + layer.expertNumel);
  return 2 * most * (cost.weightBytes + std::max<int64_t>(cost.gradientBytes, 4));
}

/// The passes of the stages of a pipeline, or of a model that is not cut.
struct Bounds::Passes {
  /// Layers of each kind, all those of a stage and those of its first chunk; whether it has the
  /// head, there.
  struct Stage {
    std::vector<int64_t> layers, first;
    bool hasHead = false, startsWithHead = false;
  };
  std::vector<Stage> stages;
  double microbatches = 1;
  double share = 1;       ///< of the passes of the model, if the division is not known
  double products = 0;    ///< seconds of an average stage, at the factor 1
  bool passesBack = true; ///< behind its last gradient a stage has none of weights to compute
  double least = 0;       ///< seconds of all, whatever is exchanged

  /// At a factor of power.
  double at(double factor, const BodyCost &cost, const std::vector<PartCost> &kinds) const {
    std::vector<Sums> sums;
    double trailing = 0;
    auto sumsOf = [&](const PartCost &part) {
      return Sums{part.both(factor),
                  part.forward.at(factor) + (passesBack ? part.passing(factor) : 0)};
    };
    for (const PartCost &kind : kinds) {
      sums.push_back(sumsOf(kind));
      if (passesBack)
        trailing = std::max(trailing, kind.backward.at(factor) - kind.passing(factor));
    }
    Sums head = sumsOf(cost.head);
    double most = 0, fill = 0;
    for (size_t s = 0; s < stages.size(); ++s) {
      const Stage &stage = stages[s];
      double both = stage.hasHead ? head.both : 0;
      for (size_t kind = 0; kind < sums.size(); ++kind)
        both += static_cast<double>(stage.layers[kind]) * sums[kind].both;
      // Before the first pass of a stage and behind its last one, the first microbatch, or the
      // last, is with the stages before it.
      double behind = s == 0 ? 0 : std::max(fill - trailing, 0.0);
      most = std::max(most, share * microbatches * both + behind);
      fill += stage.startsWithHead ? head.fill : 0;
      for (size_t kind = 0; kind < sums.size(); ++kind)
        fill += static_cast<double>(stage.first[kind]) * sums[kind].fill;
    }
    return most;
  }
};

Bounds::Bounds(const BodyCost &cost, const Layout &body, const TuneSizes &sizes)
    : cost_(cost), body_(body), sizes_(sizes) {
  for (const PartCost &layer : cost.layers) {
    auto known = std::ranges::find(kinds_, layer);
    kindOf_.push_back(static_cast<size_t>(known - kinds_.begin()));
    if (known == kinds_.end())
      kinds_.push_back(layer);
  }
}

BodyCost costOfBody(const plan::Plan &plan) {
  BodyCost cost;
  const plan::Segment *body = bodyOf(plan);
  if (body == nullptr)
    return cost;
  passes::addSeconds(plan, cost.times);
  cost.device = predict::deviceOf(plan);
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

const Bounds::Passes &Bounds::passesOf(const Layout &mesh) {
  std::shared_ptr<Passes> &known =
      passes_[fmt::format("{} {} {} {}", mesh.word(Knob::Stages), mesh.word(Knob::Chunks),
                          mesh.word(Knob::Split), mesh.word(Knob::Schedule))];
  if (known)
    return *known;
  known = std::make_shared<Passes>();
  Passes &passes = *known;
  auto count = static_cast<size_t>(mesh.size(Knob::Stages));
  std::vector<int64_t> layers = layersOf(mesh);
  passes.microbatches = static_cast<double>(microbatchesOf(body_, mesh, sizes_));
  passes.passesBack = !mesh.is(Knob::Schedule, "zero_bubble");
  if (layers.empty()) { // some stage has its share, whatever the division
    layers = {static_cast<int64_t>(cost_.layers.size())};
    passes.share = 1 / static_cast<double>(count);
  }
  passes.stages.resize(std::min(count, layers.size()));
  size_t layer = 0;
  for (size_t chunk = 0; chunk < layers.size(); ++chunk) {
    Passes::Stage &stage = passes.stages[chunk % passes.stages.size()];
    stage.layers.resize(kinds_.size());
    for (int64_t i = 0; i < layers[chunk]; ++i)
      ++stage.layers[kindOf_[layer++]];
    bool isLast = chunk + 1 == layers.size();
    stage.hasHead |= isLast;
    if (chunk < passes.stages.size()) {
      stage.first = stage.layers;
      stage.startsWithHead = isLast;
    }
  }
  double products = cost_.head.products;
  for (const PartCost &part : cost_.layers)
    products += part.products;
  passes.products = passes.microbatches * products / static_cast<double>(count);
  // Shorter steps than the least have a larger share of products, and are then longer.
  double low = passes.at(predict::powerFactor(0), cost_, kinds_);
  double high = passes.at(predict::powerFactor(1), cost_, kinds_);
  constexpr int kHalvings = 12;
  for (int i = 0; i < kHalvings; ++i) {
    double middle = (low + high) / 2;
    bool isLess = middle < passes.at(mostPower(passes.products, middle), cost_, kinds_);
    (isLess ? low : high) = middle;
  }
  passes.least = low;
  return passes;
}

double Bounds::secondsOf(const Layout &mesh) {
  const Passes &passes = passesOf(mesh);
  const std::vector<int64_t> &layers = layersOf(mesh);
  int64_t stages = mesh.size(Knob::Stages), fewest = 0;
  if (stages == 1)
    fewest = static_cast<int64_t>(cost_.layers.size());
  else if (!layers.empty())
    for (const Passes::Stage &stage : passes.stages) {
      int64_t own = std::accumulate(stage.layers.begin(), stage.layers.end(), int64_t{0});
      fewest = &stage == passes.stages.data() ? own : std::min(fewest, own);
    }
  Exchanges::Least exchanged =
      Exchanges(cost_, mesh, sizes_, microbatchesOf(body_, mesh, sizes_)).of(fewest);
  // Power leaves more to a step that also exchanges.
  double factor = mostPower(passes.products, passes.least + exchanged.added);
  return std::max(passes.at(factor, cost_, kinds_) + exchanged.added, exchanged.stream);
}

Bound Bounds::of(const Layout &mesh) {
  if (cost_.layers.empty())
    return {};
  return {
      secondsOf(mesh),
      StageBytes(cost_, mesh, sizes_, microbatchesOf(body_, mesh, sizes_)).most(layersOf(mesh))};
}

} // namespace shardc::tools
