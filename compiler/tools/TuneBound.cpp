#include "compiler/tools/TuneBound.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "compiler/passes/PipelineStages.h"
#include "compiler/predict/StepTime.h"
#include "compiler/predict/Transfers.h"
#include "compiler/tools/TuneExchanges.h"
#include "compiler/tools/TuneStages.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Optimizers.h"

namespace shardc::tools {
namespace {

using plan::Op;
using plan::Phase;
using plan::ValueId;

/// The longest chain of ops from a value of one part of the model to another part, within a phase.
/// Chains that begin inside a part do not count, because they may have run earlier.
class Chains {
public:
  Chains(const plan::Segment &body, const std::vector<PowerSeconds> &seconds)
      : body_(body), seconds_(seconds), reached_(body.values.size()) {}

  /// The longest chain of ops in the phase, for each unit.
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
  /// By value: seconds since its unit began; empty: no chain from another unit leads here.
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

/// The time of an op as a function of the power factor, at the rates of the device.
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

/// Seconds that a collective adds to the kernels that overlap it.
double contendingOf(const plan::Plan &plan, const plan::Segment &body, const Op &op, double took) {
  return predict::kContention *
         predict::contendingSeconds(plan::collectiveKindOf(op), plan.transportOf(op),
                                    body.values[plan::wholeOf(op)].type.bytes(), plan.membersOf(op),
                                    took);
}

/// For each op, whether no earlier unit waits for its result in the backward pass.
std::vector<uint8_t> areForWeights(const plan::Segment &body) {
  std::vector<uint8_t> isAwaited(body.values.size()), areFor(body.ops.size());
  for (size_t i = body.ops.size(); i-- > 0;) {
    const Op &op = body.ops[i];
    if (op.phase != Phase::Backward)
      continue;
    areFor[i] = std::ranges::none_of(op.results, [&](ValueId value) { return isAwaited[value]; });
    auto read = [&](ValueId value) {
      uint32_t def = body.values[value].def;
      isAwaited[value] |= areFor[i] == 0 || (def != plan::kNone && body.ops[def].unit != op.unit);
    };
    std::ranges::for_each(op.operands, read);
    for (const plan::Tie &tie : op.ties)
      read(tie.value);
  }
  return areFor;
}

/// Adds the bytes of activations that passes keep for later passes. If only one other layer reads
/// the result of a layer, the bytes count for that layer, because its stage keeps the result even
/// if a stage ends between the two.
class Kept {
public:
  Kept(const plan::Segment &body, const std::vector<uint8_t> &areFor, std::vector<PartCost> &units)
      : body_(body), areFor_(areFor), units_(units), readers_(body.values.size()) {}

  void run() {
    for (size_t i = 0; i < body_.ops.size(); ++i) {
      const Op &op = body_.ops[i];
      if (op.phase == Phase::Backward && !isAlias(op) && op.unit >= 0)
        for (ValueId value : op.operands)
          addReader(viewed(value), op.unit, areFor_[i] != 0);
    }
    for (ValueId value = 0; value < readers_.size(); ++value)
      if (readers_[value].unit >= 0)
        add(value);
  }

private:
  /// The readers of a value in the backward pass.
  struct Readers {
    int32_t unit = -1; ///< the unit that computed it, if it reads it; otherwise the first
    bool isForWeights = false;
  };

  void addReader(ValueId value, int32_t unit, bool isForWeights) {
    Readers &readers = readers_[value];
    uint32_t def = body_.values[value].def;
    int32_t producer = def == plan::kNone ? -1 : body_.ops[def].unit;
    if (readers.unit < 0 || unit == producer || (readers.unit != producer && unit < readers.unit))
      readers.unit = unit;
    readers.isForWeights |= isForWeights;
  }

  /// The value of whose buffer a view is a part.
  ValueId viewed(ValueId value) const {
    for (uint32_t def = body_.values[value].def;
         def != plan::kNone && body_.ops[def].kind == plan::OpKind::View;
         def = body_.values[value].def)
      value = body_.ops[def].operands[0];
    return value;
  }

  void add(ValueId id) {
    const plan::Value &value = body_.values[id];
    if (value.def == plan::kNone || value.purpose != plan::Purpose::Activations)
      return;
    const Op &producer = body_.ops[value.def];
    if (isAlias(producer) || producer.unit < 0)
      return;
    PartHeld &held = units_[static_cast<size_t>(readers_[id].unit)].held;
    bool isForWeights = readers_[id].isForWeights;
    if (producer.phase == Phase::Forward) {
      held.keptBytes += value.type.bytes();
      held.keptForWeights += isForWeights ? value.type.bytes() : 0;
    } else if (areFor_[value.def] == 0 && isForWeights) {
      held.passedBytes += value.type.bytes();
    }
  }

  const plan::Segment &body_;
  const std::vector<uint8_t> &areFor_;
  std::vector<PartCost> &units_;
  std::vector<Readers> readers_;
};

/// Whether frozen weights are whole on each rank, at least if that fits.
bool keepsFrozen(const plan::Plan &plan) {
  using plan::Job;
  return plan.job.ddp.keepFrozen.value_or(Job::KeepFrozen::Never) != Job::KeepFrozen::Never;
}

/// For each parameter, whether the backward pass reads it, so that it may be gathered again. If all
/// parameters are trained, all count as read, since those that are not read are small.
std::vector<uint8_t> readAgain(const plan::Plan &plan, const plan::Segment &body) {
  bool areAll = std::ranges::all_of(plan.classes, &plan::ParamClass::isTrained);
  std::vector<uint8_t> isRead(plan.params.size(), areAll ? 1 : 0);
  if (areAll)
    return isRead;
  std::vector<int32_t> paramOf(body.values.size(), -1);
  for (const plan::Segment::Boundary &in : body.ins)
    if (const plan::Cell &cell = plan.roles.front().cells[in.cell];
        cell.kind == plan::CellKind::Param)
      paramOf[in.value] = cell.of;
  for (const Op &op : body.ops)
    for (ValueId operand : op.operands)
      if (int32_t param = paramOf[operand]; param >= 0) {
        if (isAlias(op)) // a view of the parameter
          paramOf[op.results[0]] = param;
        else if (op.phase == Phase::Backward)
          isRead[static_cast<size_t>(param)] =
              !keepsFrozen(plan) || plan::isTrained(plan, plan.params[static_cast<size_t>(param)]);
      }
  return isRead;
}

/// Bytes of a number of weights that are not quantised. Quantised ones count as fewer numbers.
int64_t bytesOfWeight(const plan::Plan &plan) {
  int64_t bytes = 1;
  for (const plan::Param &param : plan.params)
    if (isComputeType(param.type.dtype))
      bytes = std::max<int64_t>(bytes, dtypeBytes(param.type.dtype));
  return bytes;
}

/// For each unit, the least time of its forward and backward pass and the bytes that it keeps. A
/// pass cannot be shorter than its compute, nor than the longest chain of ops that wait for each
/// other.
std::vector<PartCost> costsOfUnits(const plan::Plan &plan, const plan::Segment &body) {
  std::vector<PartCost> units(plan.units.size());
  std::vector<PowerSeconds> seconds(body.ops.size());
  std::vector<uint8_t> areFor = areForWeights(body);
  OpSeconds times(plan);
  // Pieces of rows are transferred while other pieces are multiplied, so their transfers are not on
  // the chain.
  bool movesPieces = plan.job.model.tpCommOverlap;
  for (size_t i = 0; i < body.ops.size(); ++i) {
    const Op &op = body.ops[i];
    if (op.unit < 0 || isAlias(op) || (movesPieces && isCollective(op)))
      continue;
    seconds[i] = times.of(body, op);
    PartCost &unit = units[static_cast<size_t>(op.unit)];
    if (!isCollective(op))
      seconds[i].fixed += predict::kGapSeconds;
    double once = seconds[i].at(1);
    auto add = [&](PassCost &pass) {
      if (isCollective(op)) {
        pass.transfers += once;
        pass.contending += contendingOf(plan, body, op, once);
      } else {
        pass.compute += seconds[i];
      }
    };
    bool isBackward = op.phase == Phase::Backward;
    add(isBackward ? unit.backward : unit.forward);
    if (isBackward)
      add(areFor[i] != 0 ? unit.weights : unit.inputs);
    unit.products += predict::takesPower(op) ? once : 0;
  }
  Chains chains(body, seconds);
  std::vector<PowerSeconds> forward = chains.longest(Phase::Forward, units.size());
  std::vector<PowerSeconds> backward = chains.longest(Phase::Backward, units.size());
  Kept(body, areFor, units).run();
  for (size_t unit = 0; unit < units.size(); ++unit) {
    units[unit].forward.chain = forward[unit];
    units[unit].backward.chain = backward[unit];
  }
  std::vector<uint8_t> isRead = readAgain(plan, body);
  const int64_t weightBytes = bytesOfWeight(plan);
  for (size_t p = 0; p < plan.params.size(); ++p) {
    const plan::Param &param = plan.params[p];
    if (param.block < 0)
      continue;
    const plan::Block &block = plan.blocks[static_cast<size_t>(param.block)];
    if (block.unit < 0)
      continue;
    PartHeld &held = units[static_cast<size_t>(block.unit)].held;
    Numel &numel = param.isStacked() ? held.experts : held.dense;
    const bool isTrained = plan.classOf(block).isTrained;
    const int64_t count = isTrained ? param.type.numel() : param.type.bytes() / weightBytes;
    (isTrained ? numel.trained : numel.frozen) += count;
    numel.again += isRead[p] != 0 ? count : 0;
  }
  return units;
}

/// Lower bound of the bytes that a layer passes to the next one in the forward pass. If the next
/// layer adds several values, the stage adds them before it sends.
int64_t boundaryBytes(const plan::Plan &plan, const plan::Segment &body) {
  std::vector<int64_t> bytes(plan.units.size());
  for (const Op &op : body.ops)
    for (ValueId value : op.operands) {
      uint32_t def = body.values[value].def;
      if (op.phase != Phase::Forward || op.unit < 0 || def == plan::kNone)
        continue;
      const Op &producer = body.ops[def];
      if (producer.unit < 0 || producer.unit == op.unit || isAlias(producer) ||
          body.values[value].purpose != plan::Purpose::Activations)
        continue;
      int64_t &most = bytes[static_cast<size_t>(producer.unit)];
      most = std::max(most, body.values[value].type.bytes());
    }
  int64_t least = INT64_MAX;
  for (size_t unit = 0; unit < bytes.size(); ++unit)
    if (plan.units[unit].kind == plan::UnitKind::Layer)
      least = std::min(least, bytes[unit]);
  return least == INT64_MAX ? 0 : least;
}

struct Sums {
  /// Seconds of all passes; seconds until the first microbatch has passed through.
  double both = 0, fill = 0;
};

/// Upper bound of the power factor of a step whose products take `products` seconds at factor 1.
/// `seconds`: an upper bound of the step's time.
double mostPower(double products, double seconds) {
  // At a power factor above 1, the step may be shorter than at factor 1 by at most that factor; the
  // share of products refers to factor 1.
  double most = predict::powerFactor(products / (predict::powerFactor(0) * seconds));
  return most > 1 ? most : predict::powerFactor(products / seconds);
}

} // namespace

PartHeld &PartHeld::operator+=(const PartHeld &other) {
  keptBytes += other.keptBytes;
  keptForWeights += other.keptForWeights;
  passedBytes += other.passedBytes;
  dense += other.dense;
  experts += other.experts;
  return *this;
}

Numel &Numel::operator+=(const Numel &other) {
  trained += other.trained;
  frozen += other.frozen;
  again += other.again;
  return *this;
}

Numel Numel::operator-(const Numel &other) const {
  return {trained - other.trained, frozen - other.frozen, again - other.again};
}

PartHeld PartHeld::operator-(const PartHeld &other) const {
  return {keptBytes - other.keptBytes, keptForWeights - other.keptForWeights,
          passedBytes - other.passedBytes, dense - other.dense, experts - other.experts};
}

LayerSums::LayerSums(const std::vector<PartCost> &layers) : before_(1) {
  for (const PartCost &layer : layers) {
    before_.push_back(before_.back());
    before_.back() += layer.held;
  }
}

std::vector<PartHeld> LayerSums::ofChunks(const std::vector<int64_t> &layers) const {
  std::vector<PartHeld> sums;
  size_t begin = 0;
  for (int64_t count : layers) {
    size_t end = begin + static_cast<size_t>(count);
    sums.push_back(of(begin, end));
    begin = end;
  }
  return sums;
}

PowerSeconds &PowerSeconds::operator+=(const PowerSeconds &other) {
  fixed += other.fixed;
  scaled += other.scaled;
  capped += other.capped;
  return *this;
}

double PassCost::at(double factor) const {
  PassSum sum;
  sum.add(*this, factor);
  return sum.seconds();
}

void PassSum::add(const PassCost &pass, double factor) {
  double own = pass.compute.at(factor);
  kernels += own;
  longest += std::max(own, pass.chain.at(factor));
  transfers += pass.transfers;
  contending += pass.contending;
}

double PassSum::seconds(double least) const {
  double all = std::max(longest, least);
  double hidden = std::max(transfers - (all - kernels), 0.0);
  return all + (transfers > 0 ? contending * std::min(hidden / transfers, 1.0) : 0);
}

/// The passes of the stages of a pipeline, or of a model without stages.
struct Bounds::Passes {
  /// Number of layers of each kind in the stage and in its first chunk; whether the head is in the
  /// stage, and in its first chunk.
  struct Stage {
    std::vector<int64_t> layers, first;
    bool hasHead = false, startsWithHead = false;
  };
  std::vector<Stage> stages;
  double microbatches = 1;
  double products = 0;    ///< seconds of the matrix products of an average stage, at factor 1
  bool passesBack = true; ///< no stage computes weight gradients after its last gradient is sent
  double least = 0;       ///< seconds of all passes, without data-parallel exchanges

  /// The seconds at a power factor, with `added` ones in a microbatch of each stage.
  double at(double factor, const BodyCost &cost, const std::vector<PartCost> &kinds,
            const std::vector<double> &added = {}) const {
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
      double both = (stage.hasHead ? head.both : 0) + (s < added.size() ? added[s] : 0);
      for (size_t kind = 0; kind < sums.size(); ++kind)
        both += static_cast<double>(stage.layers[kind]) * sums[kind].both;
      // The first microbatch must pass through the preceding stages before a stage begins, and the
      // last one must pass back through them after the stage ends.
      double behind = s == 0 ? 0 : std::max(fill - trailing, 0.0);
      most = std::max(most, microbatches * both + behind);
      fill += stage.startsWithHead ? head.fill : 0;
      for (size_t kind = 0; kind < sums.size(); ++kind)
        fill += static_cast<double>(stage.first[kind]) * sums[kind].fill;
    }
    return most;
  }
};

Bounds::Bounds(const BodyCost &cost, const Layout &body, const TuneSizes &sizes,
               std::function<ElementBytes(const Layout &mesh)> elements)
    : cost_(cost), body_(body), sizes_(sizes), elements_(std::move(elements)), sums_(cost.layers) {
  for (const PartCost &layer : cost.layers) {
    auto known = std::ranges::find(kinds_, layer);
    kindOf_.push_back(static_cast<size_t>(known - kinds_.begin()));
    if (known == kinds_.end())
      kinds_.push_back(layer);
  }
}

/// Sorts the costs of units by their kind, since a layout divides layers among stages but not
/// embedding and head.
BodyCost costOfBody(const plan::Plan &plan) {
  BodyCost cost;
  const plan::Segment *body = bodyOf(plan);
  if (body == nullptr)
    return cost;
  passes::addSeconds(plan, cost.times);
  cost.device = predict::deviceOf(plan);
  std::vector<PartCost> units = costsOfUnits(plan, *body);
  cost.boundaryBytes = boundaryBytes(plan, *body);
  cost.keepsFrozen = keepsFrozen(plan);
  cost.dividesFrozen = plan.job.ddp.keepFrozen != plan::Job::KeepFrozen::Always;
  for (size_t unit = 0; unit < units.size(); ++unit)
    switch (plan.units[unit].kind) {
    case plan::UnitKind::Layer:
      cost.layers.push_back(units[unit]);
      break;
    case plan::UnitKind::Head:
      cost.head = units[unit];
      break;
    case plan::UnitKind::Embedding:
      cost.embedding += units[unit].held.dense;
      break;
    case plan::UnitKind::Prediction:
    case plan::UnitKind::Other:
      break;
    }
  return cost;
}

namespace {

std::string keyOfLayers(const Layout &mesh) {
  return fmt::format("{} {} {}", mesh.word(Knob::Stages), mesh.word(Knob::Chunks),
                     mesh.word(Knob::Split));
}

std::string keyOfPasses(const Layout &mesh) {
  return keyOfLayers(mesh) + " " + mesh.word(Knob::Schedule);
}

} // namespace

const std::vector<int64_t> &Bounds::layersOf(const Layout &mesh) const {
  return layers_.at(keyOfLayers(mesh));
}

const std::vector<int64_t> &Bounds::divide(const Layout &mesh) {
  auto [at, isFirst] = layers_.try_emplace(keyOfLayers(mesh));
  if (!isFirst)
    return at->second;
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
  at->second = request.stages == 1 ? std::vector<int64_t>{request.layers}
                                   : model::divideLayers(request).layers;
  return at->second;
}

const Bounds::Passes &Bounds::passesOf(const Layout &mesh) {
  std::shared_ptr<Passes> &known = passes_[keyOfPasses(mesh)];
  if (known)
    return *known;
  known = std::make_shared<Passes>();
  Passes &passes = *known;
  auto count = static_cast<size_t>(mesh.size(Knob::Stages));
  const std::vector<int64_t> &layers = divide(mesh);
  passes.microbatches = static_cast<double>(microbatchesOf(body_, mesh, sizes_));
  passes.passesBack = !mesh.is(Knob::Schedule, "zero_bubble");
  passes.stages.resize(count);
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
  // Finds the shortest consistent step by bisection: in a shorter step, products have a larger
  // share, which lowers the power factor and so makes the step longer.
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
  if (cost_.layers.empty())
    return 0;
  const Passes &passes = passesOf(mesh);
  Exchanges::Least exchanged =
      Exchanges(cost_, elements_(mesh), mesh, sizes_, microbatchesOf(body_, mesh, sizes_))
          .of(leastOfStages(mesh, sums_.ofChunks(divide(mesh))));
  // In a step with exchanges, products have a smaller share, so the power factor is higher.
  double factor = mostPower(passes.products, passes.least + exchanged.added);
  return std::max(passes.at(factor, cost_, kinds_) + exchanged.added, exchanged.stream);
}

int64_t Bounds::bytesOf(const Layout &mesh) {
  if (cost_.layers.empty())
    return 0;
  return StageBytes(cost_, elements_(mesh), mesh, sizes_, microbatchesOf(body_, mesh, sizes_))
      .most(sums_.ofChunks(divide(mesh)));
}

int64_t Bounds::bytesWith(const std::vector<int64_t> &activations, const Layout &mesh) const {
  return StageBytes(cost_, elements_(mesh), mesh, sizes_, microbatchesOf(body_, mesh, sizes_))
      .mostWith(activations, sums_.ofChunks(layersOf(mesh)));
}

int64_t Bounds::refinedBytes(const Layout &mesh, StageOrders &orders) const {
  const std::vector<int64_t> &layers = layersOf(mesh);
  int64_t microbatches = microbatchesOf(body_, mesh, sizes_);
  return StageBytes(cost_, elements_(mesh), mesh, sizes_, microbatches,
                    &orders.of(mesh, microbatches))
      .most(sums_.ofChunks(layers));
}

double Bounds::secondsWith(const std::vector<double> &added, const Layout &mesh,
                           double within) const {
  const Passes &passes = *passes_.at(keyOfPasses(mesh));
  Exchanges exchanges(cost_, elements_(mesh), mesh, sizes_, microbatchesOf(body_, mesh, sizes_));
  Exchanges::Least exchanged = exchanges.of(leastOfStages(mesh, sums_.ofChunks(layersOf(mesh))));
  return passes.at(mostPower(passes.products, within), cost_, kinds_, added) + exchanged.added;
}

double Bounds::refinedSeconds(const Layout &mesh, StageOrders &orders, double within) const {
  // In the schedule, each stage waits for gradients. Frozen stages need none, so the bound would be
  // too high.
  if (cost_.hasForwardOnly())
    return 0;
  const std::vector<int64_t> &layers = layersOf(mesh);
  int64_t microbatches = microbatchesOf(body_, mesh, sizes_);
  double factor = mostPower(passes_.at(keyOfPasses(mesh))->products, within);
  Numels fewest = leastOfStages(mesh, sums_.ofChunks(layers));
  return StageSeconds(cost_, elements_(mesh), mesh, sizes_, microbatches, layers,
                      orders.of(mesh, microbatches))
      .at(factor, fewest);
}

} // namespace shardc::tools
