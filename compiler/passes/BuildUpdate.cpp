// Appends the segments around the bodies: `init` (the start of a fresh run), `prologue` (the state
// that every forward pass expects after start or load), `update` (norm, clipping, optimizer), and
// the program that runs them.
#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "compiler/passes/CellTable.h"
#include "compiler/passes/DelayedScaling.h"
#include "compiler/passes/Passes.h"
#include "compiler/passes/Strategy.h"
#include "runtime/base/Status.h"
#include "runtime/base/StepState.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Matrices.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/plan/WeightScales.h"

namespace shardc::passes {
namespace {

class UpdateBuilder {
public:
  UpdateBuilder(plan::Plan &plan, plan::Role &role)
      : plan_(plan), role_(role), strategies_(strategiesOf(plan)),
        in8Bits_(plan::blocksIn8Bits(plan)), loc_(jobLoc(plan, plan.job.derived.locOptimizer)) {
    std::optional<plan::Optimizer> optimizer = plan::optimizerOf(plan.job);
    SHARDC_CHECK(optimizer, "no op is an optimizer '{}'",
                 plan.job.text(plan::JobField::optimizer_optimizer));
    for (const plan::Block &block : plan.blocks)
      optimizers_.push_back(plan::optimizerOf(plan, block).value_or(*optimizer));
  }

  void run() {
    step_ = plan::findCell(role_, plan::CellKind::Step);
    stop_ = plan::findCell(role_, plan::CellKind::Stop);
    findBlockCells();
    addAmaxHistory(plan_, role_);
    for (size_t b : blocks_)
      addBlockCells(b);
    buildInit();
    buildPrologue();
    buildUpdate();
    extendProgram();
  }

private:
  struct BlockCells {
    uint32_t weight = kNone; ///< cell that the optimizer also writes: a shard or the whole
    uint32_t master = kNone, grad = kNone;
    std::vector<uint32_t> moments; ///< in the order of the optimizer's table row
    bool areHalves = false;        ///< weight and master are the halves of the master weights
  };

  void findBlockCells() {
    using enum plan::CellKind;
    auto find = [&](plan::CellKind kind) {
      return plan::findCells(role_, kind, plan_.blocks.size());
    };
    wholes_ = find(Weight);
    slots_ = find(WeightShard);
    grads_ = find(ReducedGradient);
    for (plan::CellKind kind : {GradientShard, Gradient}) {
      std::vector<uint32_t> others = find(kind);
      for (size_t b = 0; b < grads_.size(); ++b)
        if (grads_[b] == kNone)
          grads_[b] = others[b];
    }
    for (size_t b = 0; b < wholes_.size(); ++b)
      if (wholes_[b] != kNone)
        blocks_.push_back(b);
    cells_.resize(wholes_.size());
  }

  /// Adds the cells of a block's state: the master weights and, if it is trained, the optimizer's
  /// moments. With remainders, the master consists of the bf16 weights and a cell with the lower 16
  /// bits.
  void addBlockCells(size_t b) {
    const plan::Block &block = plan_.blocks[b];
    Type type = Type::of(strategies_[b].master, {block.stateShard});
    BlockCells cells;
    if (strategies_[b].masterIsParam() && !isKeptIn8Bits(b)) {
      cells.master = wholes_[b];
    } else {
      cells.weight = slots_[b] != kNone ? slots_[b] : wholes_[b];
      cells.areHalves = strategies_[b].keepsRemainders() && !isKeptIn8Bits(b);
      if (cells.areHalves)
        type.dtype = DType::U16;
      cells.master = addCell(role_, "master." + block.name, {plan::CellKind::Master, b}, type,
                             plan::Arena::State, plan::Purpose::MasterParams);
    }
    cells_[b] = cells;
    if (!strategies_[b].isTrained)
      return;
    for (const plan::Moment &moment : moments(b)) {
      type.dtype = moment.type(plan_.job.optimizer);
      cells.moments.push_back(addCell(role_, std::string(moment.prefix) + block.name,
                                      {moment.cell, b}, type, plan::Arena::State,
                                      plan::Purpose::OptimizerState));
    }
    cells.grad = grads_[b];
    SHARDC_CHECK(cells.grad != kNone, "block '{}' has no gradient", block.name);
    cells_[b] = cells;
  }

  std::span<const plan::Moment> moments(size_t b) const {
    return plan::optimizerInfo(optimizers_[b]).moments;
  }
  /// The cells that an optimizer updates, in the order of its operands, each with the prefix of its
  /// name.
  std::vector<std::pair<std::string_view, uint32_t>> updatedCells(size_t b) const {
    const BlockCells &cells = cells_[b];
    std::vector<std::pair<std::string_view, uint32_t>> updated = {{"master.", cells.master}};
    for (size_t i = 0; i < cells.moments.size(); ++i)
      updated.emplace_back(moments(b)[i].prefix, cells.moments[i]);
    return updated;
  }

  /// Whether the block's weights have 8 bits and are quantised from masters.
  bool isKeptIn8Bits(size_t block) const {
    return in8Bits_[block] != 0 && strategies_[block].isTrained;
  }
  /// Whether they have 8 bits and never change.
  bool isFrozenIn8Bits(size_t block) const {
    return in8Bits_[block] != 0 && !strategies_[block].isTrained;
  }

  std::vector<size_t> trainedBlocks() const {
    std::vector<size_t> trained;
    std::ranges::copy_if(blocks_, std::back_inserter(trained),
                         [&](size_t b) { return strategies_[b].isTrained; });
    return trained;
  }

  plan::Segment &addSegment(plan::SegmentKind kind) {
    plan::Segment segment;
    segment.name = plan::segmentKindInfo(kind).word;
    segment.kind = kind;
    role_.segments.push_back(std::move(segment));
    return role_.segments.back();
  }

  ValueId define(plan::Segment &segment, Op &op, std::string name, uint32_t cell) {
    return addResultInCell(segment, role_, op, std::move(name), cell);
  }

  Op blockOp(OpKind kind, size_t block) const {
    Op op = plan::makeOp(kind, {}, plan_.blocks[block].unit, loc_);
    op.set(Key::block, static_cast<int64_t>(block));
    return op;
  }

  /// The segment that only a fresh start runs: it sets the step state, random initial weights, and
  /// moments of zero.
  void buildInit() {
    plan::Segment &segment = addSegment(plan::SegmentKind::Init);
    Op reset = plan::makeOp(OpKind::StepReset, {}, -1, loc_);
    reset.set(Key::loss_scale, plan::firstLossScale(plan_.job));
    if (plan::scalingOf(plan_.job) == plan::Scaling::Dynamic)
      reset.set(Key::hysteresis, plan_.job.optimizer.hysteresis);
    define(segment, reset, "step", step_);
    plan::append(segment, std::move(reset));
    if (hasAmaxHistory())
      initAmaxHistory(role_, segment);
    if (uint32_t bias = plan::findCell(role_, plan::CellKind::ExpertBias); bias != kNone) {
      Op fill = plan::makeOp(OpKind::Fill, {}, -1, loc_);
      define(segment, fill, "expert_bias", bias);
      plan::append(segment, std::move(fill));
    }
    for (size_t b : blocks_) {
      if (isFrozenIn8Bits(b))
        continue;
      const std::string &name = plan_.blocks[b].name;
      Op init = initOf(b);
      if (cells_[b].areHalves)
        define(segment, init, "w." + name, cells_[b].weight);
      define(segment, init, "master." + name, cells_[b].master);
      plan::append(segment, std::move(init));
      for (size_t i = 0; i < cells_[b].moments.size(); ++i) {
        Op fill = plan::makeOp(OpKind::Fill, {}, plan_.blocks[b].unit, loc_);
        define(segment, fill, std::string(moments(b)[i].prefix) + name, cells_[b].moments[i]);
        plan::append(segment, std::move(fill));
      }
    }
    quantizeInitial(segment);
  }

  Op initOf(size_t b) const {
    Op init = blockOp(OpKind::InitBlock, b);
    init.set(Key::seed, plan_.job.rng.seed);
    return init;
  }

  /// Quantises the initial values of frozen 8-bit weights. They are drawn twice, for amaxes and for
  /// the weights, so that the f32 numbers of only one block exist at a time.
  void quantizeInitial(plan::Segment &segment) {
    std::vector<uint8_t> isAgain(plan_.blocks.size());
    auto drawn = [&](size_t b) {
      if (!isFrozenIn8Bits(b))
        return kNone;
      Op init = initOf(b);
      std::string name = "initial." + plan_.blocks[b].name + (isAgain[b] != 0 ? ".again" : "");
      isAgain[b] = 1;
      ValueId numbers = addResult(segment, init, std::move(name),
                                  Type::of(DType::F32, {plan_.blocks[b].stateShard}));
      plan::append(segment, std::move(init));
      return numbers;
    };
    for (size_t b = 0; b < plan_.blocks.size(); ++b)
      if (isFrozenIn8Bits(b)) // possibly of another stage
        return quantizeWeights(segment, drawn);
  }

  void buildPrologue() {
    plan::Segment &segment = addSegment(plan::SegmentKind::Prologue);
    if (hasAmaxHistory())
      takeAmax(role_, segment);
    // Master weights of blocks with 8-bit weights.
    std::vector<ValueId> masters(cells_.size(), kNone);
    for (size_t b : blocks_) {
      if (cells_[b].weight == kNone || cells_[b].areHalves)
        continue; // filled at the start of a run or by a load
      const std::string &name = plan_.blocks[b].name;
      ValueId master = plan::addLiveIn(segment, "master." + name, role_, cells_[b].master);
      if (isKeptIn8Bits(b)) {
        masters[b] = master;
        continue;
      }
      Op cast = plan::makeOp(OpKind::Cast, {master}, plan_.blocks[b].unit, loc_);
      define(segment, cast, "w." + name, cells_[b].weight);
      plan::append(segment, std::move(cast));
    }
    quantizeMasters(segment, masters);
  }

  /// Quantises the masters of 8-bit weights, if any stage has such.
  void quantizeMasters(plan::Segment &segment, const std::vector<ValueId> &masters) {
    for (size_t b = 0; b < plan_.blocks.size(); ++b)
      if (isKeptIn8Bits(b))
        return quantizeWeights(segment, [&](size_t block) { return masters[block]; });
  }

  /// Quantises the numbers of blocks, and stores their scales. Scales use the amaxes of all ranks,
  /// so stages without 8-bit weights take part. `numbersOf` returns kNone for other blocks.
  template <typename Numbers>
  void quantizeWeights(plan::Segment &segment, const Numbers &numbersOf) {
    Type type = Type::of(DType::F32, {plan::countWeightScales(plan_)});
    Op begin = plan::makeOp(OpKind::Fill, {}, -1, loc_);
    ValueId amax = addResult(segment, begin, "weights.amax", type);
    plan::append(segment, std::move(begin));
    for (size_t b : blocks_) {
      ValueId numbers = numbersOf(b);
      if (numbers == kNone)
        continue;
      Op op = blockOp(OpKind::AmaxShard, b);
      op.operands = {numbers, amax};
      amax = addResult(segment, op, "amax." + plan_.blocks[b].name, type);
      plan::append(segment, std::move(op));
    }
    amax = largestOfRanks(plan_, segment, amax);
    for (size_t b : blocks_) {
      ValueId numbers = numbersOf(b);
      if (numbers == kNone)
        continue;
      Op op = blockOp(OpKind::QuantizeShard, b);
      op.operands = {numbers, amax};
      define(segment, op, "w." + plan_.blocks[b].name + ".q",
             isKeptIn8Bits(b) ? cells_[b].weight : cells_[b].master);
      plan::append(segment, std::move(op));
    }
    uint32_t scales = plan::findCell(role_, plan::CellKind::WeightScales);
    if (scales == kNone)
      return;
    Op op = plan::makeOp(OpKind::WeightScales, {amax}, -1, loc_);
    define(segment, op, "weight_scales", scales);
    plan::append(segment, std::move(op));
  }

  static ValueId addResult(plan::Segment &segment, Op &op, std::string name, const Type &type) {
    op.results.push_back(plan::addValue(segment, std::move(name), type, plan::Purpose::Step));
    return op.results.back();
  }

  /// Gradients, their norm, then one optimizer op per block. Blocks whose update needs whole
  /// matrices gather the next block's operands before the current one is updated, so that the
  /// transfer overlaps the products.
  void buildUpdate() {
    plan::Segment &segment = addSegment(plan::SegmentKind::Update);
    std::vector<ValueId> grads(cells_.size(), kNone);
    std::vector<std::vector<int32_t>> stages = stagesOfBlocks();
    for (size_t b : trainedBlocks()) {
      bool isPart = stages[b].size() > 1; // two stages sum their gradients
      grads[b] = plan::addLiveIn(segment, (isPart ? "part." : "g.") + plan_.blocks[b].name, role_,
                                 cells_[b].grad);
    }
    for (size_t b : trainedBlocks())
      if (stages[b].size() > 1)
        grads[b] = sumOverStages(segment, b, grads[b], stages[b]);
    ValueId state = buildNorm(segment, grads);
    if (hasAmaxHistory())
      updateAmaxHistory(plan_, role_, segment, state);
    balanceExperts(segment);
    std::vector<ValueId> masters(cells_.size(), kNone);
    std::vector<std::vector<ValueId>> operands(cells_.size());
    auto prepare = [&](size_t b) {
      if (operands[b].empty())
        operands[b] = takeOperands(segment, b, grads[b], state);
    };
    const std::vector<size_t> trained = trainedBlocks();
    for (auto at = trained.begin(); at != trained.end(); ++at) {
      const size_t b = *at;
      prepare(b);
      if (takesWhole(b)) // gathers the next block's updates while this block's products run
        if (auto next = std::find_if(std::next(at), trained.end(),
                                     [&](size_t other) { return takesWhole(other); });
            next != trained.end())
          prepare(*next);
      ValueId master = buildOptimizer(segment, b, operands[b]);
      if (isKeptIn8Bits(b))
        masters[b] = master;
    }
    quantizeMasters(segment, masters);
  }

  /// Sums the reported values of experts and of multi-token prediction over all ranks, and updates
  /// the bias that is added to the experts' scores.
  void balanceExperts(plan::Segment &segment) {
    ValueId load = sumOfRanks(segment, plan::CellKind::ExpertLoad);
    sumOfRanks(segment, plan::CellKind::RouterLosses);
    sumOfRanks(segment, plan::CellKind::PredictionLosses);
    sumOfRanks(segment, plan::CellKind::PreferenceSums);
    uint32_t bias = plan::findCell(role_, plan::CellKind::ExpertBias);
    if (bias == kNone)
      return;
    Op op = plan::makeOp(OpKind::ExpertBiasUpdate,
                         {plan::addLiveIn(segment, "expert_bias", role_, bias), load}, -1, loc_);
    op.set(Key::experts, plan_.job.model.numMoeExperts);
    op.set(Key::rate, plan_.job.model.moeRouterBiasUpdateRate);
    define(segment, op, "expert_bias.new", bias);
    plan::append(segment, std::move(op));
  }

  /// The value that this rank stored in a cell of this kind. If the role lacks such a cell but
  /// another role has one, adds an empty one; kNone if no role has one.
  ValueId ownPart(plan::Segment &segment, plan::CellKind kind) {
    if (uint32_t cell = plan::findCell(role_, kind); cell != kNone)
      return plan::addLiveIn(segment, role_.cells[cell].name, role_, cell);
    for (const plan::Role &other : plan_.roles)
      if (uint32_t cell = plan::findCell(other, kind); cell != kNone) {
        const plan::Cell like = other.cells[cell];
        plan::addCell(role_, like.name, like.kind, like.type, like.arena, like.purpose);
        Op none = plan::makeOp(OpKind::Fill, {}, -1, loc_);
        ValueId own = addResult(segment, none, like.name, like.type);
        plan::append(segment, std::move(none));
        return own;
      }
    return kNone;
  }

  /// Adds the all-reduce of a sum that each rank has in a cell of this kind, and stores the result
  /// there. Returns the result; kNone if the role has no such cell.
  ValueId sumOfRanks(plan::Segment &segment, plan::CellKind kind) {
    ValueId own = ownPart(segment, kind);
    if (own == kNone)
      return kNone;
    uint32_t cell = plan::findCell(role_, kind);
    const std::string name = role_.cells[cell].name;
    int16_t group = groupOfSteps(plan_);
    if (plan_.groupSize(group) == 1)
      return own;
    Op sum = plan::makeOp(OpKind::AllReduce, {own}, -1, loc_);
    plan::setChannel(
        plan_, sum,
        plan::channelOf(plan_, group, plan::StreamKind::Compute, plan::Transport::Nccl, "misc"));
    ValueId all = define(segment, sum, name + ".all", cell);
    plan::append(segment, std::move(sum));
    return all;
  }

  /// Whether tensors are quantised with amax values of earlier steps.
  bool hasAmaxHistory() const {
    return plan::findCell(role_, plan::CellKind::AmaxHistory) != kNone;
  }

  /// For each block, the stages that have it; empty if there is one role.
  std::vector<std::vector<int32_t>> stagesOfBlocks() const {
    std::vector<std::vector<int32_t>> stages(plan_.blocks.size());
    for (const plan::Role &role : plan_.roles)
      for (const plan::Cell &cell : role.cells)
        if (cell.kind == plan::CellKind::Weight && !role.where.empty())
          stages[static_cast<size_t>(cell.of)].push_back(
              static_cast<int32_t>(role.where.front().begin));
    return stages;
  }

  /// Appends the sum of a tied block's gradients over the two stages that have a copy. Returns the
  /// sum.
  ValueId sumOverStages(plan::Segment &segment, size_t block, ValueId gradient,
                        const std::vector<int32_t> &stages) {
    SHARDC_CHECK(stages.size() == 2, "block '{}' is on more than two stages",
                 plan_.blocks[block].name);
    Op reduce = blockOp(OpKind::AllReduce, block);
    reduce.operands = {gradient};
    plan::setChannel(plan_, reduce,
                     plan::pairChannelOf(plan_, plan::groupOfKind(plan_, plan::GroupKind::Stages),
                                         {stages[0], stages[1]}, plan::StreamKind::Compute,
                                         "tied"));
    plan::Value sum = segment.values[gradient];
    ValueId result =
        plan::addValue(segment, "g." + plan_.blocks[block].name, sum.type, sum.purpose);
    reduce.results = {result};
    plan::append(segment, std::move(reduce));
    return result;
  }

  /// Computes the gradient norm, the clipping factor and the reported loss. All ranks get the same
  /// values.
  ValueId buildNorm(plan::Segment &segment, const std::vector<ValueId> &grads) {
    ValueId before = plan::addLiveIn(segment, "step", role_, step_);
    ValueId stop = plan::addLiveIn(segment, "stop", role_, stop_);
    bool isReplicated = everyRankHasAll();
    Op squares = plan::makeOp(OpKind::SumSquares, {}, -1, loc_);
    std::vector<const plan::Role *> counts = firstRoles(plan_);
    for (size_t b : trainedBlocks()) {
      if (counts[b] != &role_)
        continue;
      squares.operands.push_back(grads[b]);
      squares.blocks.push_back(
          {static_cast<int32_t>(b), isReplicated ? int64_t{1} : strategies_[b].copies()});
    }
    ValueId ss = plan::addValue(segment, "squares", Type::of(DType::F64, {1}), plan::Purpose::Step);
    squares.results = {ss};
    plan::append(segment, std::move(squares));

    Op pack = plan::makeOp(OpKind::StepPack, {before, ss, stop}, -1, loc_);
    pack.set(Key::norm_replicated, int64_t{isReplicated});
    pack.set(Key::loss_copies, ranksOf(plan_, role_) / ranksOfTokens(plan_));
    Type type = Type::of(DType::F64, {kStepPartialCount});
    ValueId partial = plan::addValue(segment, "partial", type, plan::Purpose::Step);
    pack.results = {partial};
    plan::append(segment, std::move(pack));
    if (int16_t group = groupOfSteps(plan_); plan_.groupSize(group) > 1) {
      Op reduce = plan::makeOp(OpKind::AllReduce, {partial}, -1, loc_);
      plan::setChannel(
          plan_, reduce,
          plan::channelOf(plan_, group, plan::StreamKind::Compute, plan::Transport::Nccl, "misc"));
      partial = plan::addValue(segment, "reduced", type, plan::Purpose::Step);
      reduce.results = {partial};
      plan::append(segment, std::move(reduce));
    }
    Op finish = plan::makeOp(OpKind::StepFinish, {before, partial, ss}, -1, loc_);
    finish.set(Key::norm_replicated, int64_t{isReplicated});
    finish.set(Key::clip, plan_.job.optimizer.clipGrad);
    if (plan_.job.derived.stepSamples > 0)
      finish.set(Key::step_samples, plan_.job.derived.stepSamples);
    if (plan_.job.optimizer.gradNormSkipThreshold > 0)
      finish.set(Key::skip_above, plan_.job.optimizer.gradNormSkipThreshold);
    finish.set(Key::per_token, int64_t{plan_.job.model.calculatePerTokenLoss});
    setLossScaling(finish);
    ValueId after = define(segment, finish, "step.finished", step_);
    plan::append(segment, std::move(finish));
    return after;
  }

  /// Whether each rank has all elements of all gradients, so that the norm needs no sum over ranks.
  bool everyRankHasAll() const {
    return plan_.roles.size() == 1 && !jobStrategyOf(plan_).cutsParams &&
           std::ranges::none_of(strategies_, &BlockStrategy::shardsState);
  }

  void setLossScaling(Op &finish) const {
    plan::Scaling scaling = plan::scalingOf(plan_.job);
    finish.set(Key::scaling, static_cast<int64_t>(scaling));
    if (scaling != plan::Scaling::Dynamic)
      return;
    const plan::Job::Optimizer &optimizer = plan_.job.optimizer;
    finish.set(Key::min_scale, optimizer.minLossScale);
    finish.set(Key::growth_interval, static_cast<int64_t>(optimizer.lossScaleWindow));
    finish.set(Key::hysteresis, optimizer.hysteresis);
  }

  /// Reads the operands of the block's optimizer.
  std::vector<ValueId> takeOperands(plan::Segment &segment, size_t b, ValueId grad, ValueId state) {
    std::vector<ValueId> operands = {grad};
    for (auto [prefix, cell] : updatedCells(b))
      operands.push_back(
          plan::addLiveIn(segment, std::string(prefix) + plan_.blocks[b].name, role_, cell));
    operands.push_back(state);
    if (takesWhole(b))
      operands.push_back(gatherWhole(segment, b, operands));
    return operands;
  }

  /// Appends the block's optimizer. Returns the updated master weights.
  ValueId buildOptimizer(plan::Segment &segment, size_t b, std::vector<ValueId> operands) {
    const std::string &name = plan_.blocks[b].name;
    const BlockCells &cells = cells_[b];
    Op op = blockOp(plan::optimizerInfo(optimizers_[b]).op, b);
    op.operands = std::move(operands);
    auto updated = updatedCells(b);
    if (cells.areHalves)
      op.operands.push_back(plan::addLiveIn(segment, "w." + name, role_, cells.weight));
    setHyperparameters(op, b);
    if (dividesSteps(b)) {
      op.set(Key::divided, int64_t{1});
    } else if (plan::needsMatrices(optimizers_[b])) {
      op.set(Key::largest_matrix, largestMatrix(b));
      if (int16_t tensor = groupOfParts(b); tensor >= 0)
        op.set(Key::tensor_parts, plan_.groupSize(tensor));
    }
    if (cells.weight != kNone && !isKeptIn8Bits(b))
      updated.emplace_back("w.", cells.weight);
    for (auto [prefix, cell] : updated)
      define(segment, op, std::string(prefix) + name + ".new", cell);
    ValueId master = op.results[0];
    plan::append(segment, std::move(op));
    return master;
  }

  void setHyperparameters(Op &op, size_t b) const {
    const plan::Job &job = plan_.job;
    if (job.scheduler.weightDecayIncrStyle == plan::Job::WeightDecayStyle::Constant)
      op.set(Key::weight_decay, job.scheduler.endWeightDecay >= 0 ? job.scheduler.endWeightDecay
                                                                  : job.optimizer.weightDecay);
    op.set(Key::decoupled, int64_t{job.optimizer.decoupledWeightDecay});
    for (const plan::Scalar &scalar : plan::scalarsOf(optimizers_[b], job))
      if (plan::opInfo(op).attrs.has(scalar.key)) // muon_update has only some of muon's
        plan::set(op, scalar);
  }

  /// The tensor-parallel group whose ranks have parts of the block's matrices and update them
  /// together; -1 if there is none.
  int16_t groupOfParts(size_t b) const {
    const auto index = static_cast<int32_t>(b);
    return plan::joinsMatrixParts(plan_, index) ? plan::groupOfMatrixParts(plan_, index)
                                                : int16_t{-1};
  }
  bool cutsMatrices(size_t b) const {
    return std::ranges::any_of(
        plan::matricesOf(plan_, static_cast<int32_t>(b), /*isJoined=*/false),
        [&](const plan::BlockMatrix &each) { return each.isCutBy(plan_.blocks[b].stateShard); });
  }
  /// Whether the optimizer works on whole matrices and this rank's shard has only parts of some.
  bool takesWhole(size_t b) const {
    return plan::needsMatrices(optimizers_[b]) && (cutsMatrices(b) || groupOfParts(b) >= 0);
  }

  /// Computes this rank's updates of matrices and gathers those of the other ranks, for optimizers
  /// that need whole matrices.
  ValueId gatherWhole(plan::Segment &segment, size_t b, const std::vector<ValueId> &operands) {
    const plan::Block &block = plan_.blocks[b];
    Op update = blockOp(OpKind::MuonUpdate, b);
    update.operands = operands;
    setHyperparameters(update, b);
    ValueId u = addWhole(segment, update, "u." + block.name, block.stateShard);
    plan::append(segment, std::move(update));
    if (cutsMatrices(b))
      u = gatherUpdates(segment, b, u, block.stateGroup);
    if (dividesSteps(b))
      return takeSteps(segment, b, u, operands[plan::operandIndex<OpKind::Muon>("m")]);
    if (int16_t tensor = groupOfParts(b); tensor >= 0)
      u = gatherUpdates(segment, b, u, tensor);
    return u;
  }

  bool dividesSteps(size_t b) const {
    return plan::needsMatrices(optimizers_[b]) &&
           plan::dividesSteps(plan_, static_cast<int32_t>(b));
  }

  /// Appends Newton-Schulz steps on updates of which this rank has parts. Before each step, the
  /// tensor-parallel ranks sum the products that the step needs of the whole matrix.
  ValueId takeSteps(plan::Segment &segment, size_t b, ValueId x, ValueId moment) {
    const plan::Job::Optimizer &job = plan_.job.optimizer;
    const std::string &name = plan_.blocks[b].name;
    const plan::MatrixSums sizes = plan::matrixSumsOf(plan_, static_cast<int32_t>(b));
    const int16_t tensor = groupOfParts(b);
    const bool isNarrow = job.muonFp32MatmulPrec == plan::Job::MatmulPrecision::Medium;
    const Type parts =
        Type::of(isNarrow ? DType::BF16 : DType::F32, {segment.values[x].type.numel()});
    for (int64_t n = 0; n <= job.muonNumNsSteps; ++n) {
      auto opOfStep = [&](OpKind kind, std::vector<ValueId> operands) {
        Op op = blockOp(kind, b);
        op.operands = std::move(operands);
        op.set(Key::ns_step, n);
        op.set(Key::products, static_cast<int64_t>(job.muonFp32MatmulPrec));
        op.set(Key::largest_matrix, sizes.largest);
        op.set(Key::symmetric, int64_t{job.muonUseSyrk});
        return op;
      };
      Op sums = opOfStep(OpKind::MuonSums, {x, moment});
      sums.set(Key::sum_ranks, plan_.groupSize(tensor));
      ValueId own = addWhole(segment, sums, fmt::format("a{}.{}", n, name),
                             n == 0 ? sizes.matrices : sizes.products);
      plan::append(segment, std::move(sums));
      Op reduce = plan::makeOp(OpKind::AllReduce, {own}, plan_.blocks[b].unit, loc_);
      plan::setChannel(plan_, reduce,
                       plan::channelOf(plan_, tensor, plan::StreamKind::Gather,
                                       plan::Transport::Nccl, "updates"));
      ValueId all = addWhole(segment, reduce, fmt::format("a{}.{}.all", n, name),
                             segment.values[own].type.numel());
      plan::append(segment, std::move(reduce));
      Op step = opOfStep(OpKind::MuonStep, {x, moment, all});
      step.set(Key::ns_coefficients, static_cast<int64_t>(job.muonCoefficientType));
      x = plan::addValue(segment, fmt::format("x{}.{}", n, name), parts, plan::Purpose::Comm);
      step.results = {x};
      plan::append(segment, std::move(step));
    }
    return x;
  }

  ValueId addWhole(plan::Segment &segment, Op &op, std::string name, int64_t elements) const {
    op.results = {plan::addValue(segment, std::move(name), Type::of(DType::F32, {elements}),
                                 plan::Purpose::Comm)};
    return op.results.front();
  }

  /// Gathers the updates of all ranks of the group, in the order of ranks.
  ValueId gatherUpdates(plan::Segment &segment, size_t b, ValueId part, int16_t group) {
    Op gather = plan::makeOp(OpKind::AllGather, {part}, plan_.blocks[b].unit, loc_);
    plan::setChannel(
        plan_, gather,
        plan::channelOf(plan_, group, plan::StreamKind::Gather, plan::Transport::Nccl, "updates"));
    const plan::Value value = segment.values[part];
    ValueId whole =
        addWhole(segment, gather, value.name + "." + plan_.groups[static_cast<size_t>(group)].name,
                 value.type.numel() * plan_.groupSize(group));
    plan::append(segment, std::move(gather));
    return whole;
  }

  int64_t largestMatrix(size_t b) const {
    const auto index = static_cast<int32_t>(b);
    int64_t largest = 0;
    for (const plan::BlockMatrix &matrix :
         plan::matricesOf(plan_, index, plan::joinsMatrixParts(plan_, index)))
      largest = std::max(largest, matrix.tensorNumel());
    return largest;
  }

  void extendProgram() {
    using plan::ProgramNode;
    auto segment = [&](plan::SegmentKind kind) { return plan::findSegment(role_, kind); };
    for (ProgramNode &node : role_.program)
      if (node.kind == ProgramNode::Steps)
        node.children.insert(
            std::ranges::find(node.children, ProgramNode::Every, &ProgramNode::kind),
            ProgramNode{ProgramNode::Run, segment(plan::SegmentKind::Update), 1, {}});
    role_.program.insert(
        role_.program.begin(),
        {ProgramNode{ProgramNode::Start, segment(plan::SegmentKind::Init), 1, {}},
         ProgramNode{ProgramNode::Run, segment(plan::SegmentKind::Prologue), 1, {}}});
  }

  plan::Plan &plan_;
  plan::Role &role_;
  std::vector<BlockStrategy> strategies_; ///< by block
  std::vector<uint8_t> in8Bits_;          ///< by block: whether its weights are kept in 8 bits
  uint32_t loc_;
  std::vector<plan::Optimizer> optimizers_; ///< by block
  uint32_t step_ = kNone, stop_ = kNone;
  std::vector<uint32_t> wholes_, slots_, grads_; ///< by block
  std::vector<size_t> blocks_;                   ///< the role's blocks
  std::vector<BlockCells> cells_;
};

} // namespace

void runBuildUpdate(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    UpdateBuilder(plan, role).run();
}

} // namespace shardc::passes
