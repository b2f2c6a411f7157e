// Creates the first plan of a configuration: job table, mesh and groups, parameter table, units,
// and the forward bodies that modules emit.
#include "compiler/lower/Lower.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>

#include "compiler/config/Evaluate.h"
#include "compiler/config/Mesh.h"
#include "compiler/config/ReadSchedule.h"
#include "compiler/lower/Family.h"
#include "compiler/lower/Turns.h"
#include "compiler/model/Forward.h"
#include "compiler/model/ScheduleFile.h"
#include "compiler/predict/DeviceTable.h"
#include "runtime/base/Preference.h"
#include "runtime/base/StepState.h"
#include "runtime/plan/Optimizers.h"

namespace shardc::lower {
namespace {

using config::Config;
using config::Opt;
using config::ValueType;
using plan::JobField;
using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::Type;
using Key = plan::AttrKey;

/// Locations in the recipe that ops refer to, as indices in Plan::locs.
struct Places {
  uint32_t model = kNone, layers = kNone, vocab = kNone, predictions = kNone;
  uint32_t optimizer = kNone, train = kNone, strategy = kNone;
  uint32_t checkpoint = kNone; ///< set if saves run in the background
};

/// Alignment of a parameter's start in elements: 16 bytes also for weights that are kept in 8 bits.
constexpr int64_t kAlign = 16;

/// Number of steps whose batches the feed ring holds: one in use, one that the host fills.
constexpr int64_t kFeedSteps = 2;
/// If an evaluation covers all data, this number of microbatches counts as one step.
constexpr int64_t kWholeAhead = 32;

/// Whether passes and the runtime read the option from the plan: options of these sections that
/// have a value.
bool belongsToJob(const Config &config, const config::OptionInfo &info) {
  using config::Section;
  switch (info.section) {
  case Section::Preference:
    return config.has(Opt::PreferenceLoss) && config.has(info.opt);
  case Section::Peft:
    if (!config.has(Opt::PeftScheme))
      return false;
    [[fallthrough]];
  case Section::Train:
  case Section::Dataset:
  case Section::Rng:
  case Section::Optimizer:
  case Section::Scheduler:
  case Section::Validation:
  case Section::Logger:
  case Section::Checkpoint:
  case Section::Ddp:
  case Section::Dist:
  case Section::Model:
  case Section::RerunStateMachine:
  case Section::Env:
    return config.has(info.opt) && info.status == config::OptionStatus::Executed &&
           !info.isCompiled;
  default:
    return false;
  }
}

std::string wordOf(const config::Value &value, const config::OptionType &type) {
  return config::enumSpellings(type.enumKind)[value.asEnum()->index].str();
}

/// Converts a value. Durations are converted to the unit in the option's name.
plan::JobValue toJobValue(const config::Value &value, const config::OptionType &type) {
  if (const bool *held = value.asBool())
    return *held;
  if (const int64_t *held = value.asInt(); held != nullptr && type.type == ValueType::Duration)
    return static_cast<double>(*held) / static_cast<double>(config::unitMs(type.unit));
  if (const int64_t *held = value.asInt())
    return *held;
  if (const double *held = value.asFloat())
    return *held;
  if (const std::string *held = value.asString())
    return *held;
  if (value.asEnum() != nullptr)
    return wordOf(value, type);
  if (const config::Value::List *list = value.asList()) {
    std::vector<std::string> items;
    for (const config::Value &element : *list)
      items.push_back(element.asString() != nullptr ? *element.asString()
                      : element.asEnum() != nullptr ? wordOf(element, type)
                                                    : config::toRecipeText(element, type));
    return items;
  }
  return config::toRecipeText(value, type);
}

/// Removes options that are off, since off is the default in a plan and they would fill its first
/// page.
void leaveOutOff(plan::Job &job) {
  const plan::Job none;
  const plan::JobValue off = false;
  for (size_t i = 0; i < plan::kJobFields; ++i)
    if (auto field = static_cast<JobField>(i); job.value(field) == off && none.value(field) == off)
      job.unset(field);
}

void fillJob(const Config &config, plan::Plan &plan, config::ShardingStrategy strategy,
             const Places &places) {
  for (const config::OptionInfo &info : config::options())
    if (belongsToJob(config, info))
      plan.job.put(info.path.str(), toJobValue(config[info.opt].value, info.type));
  for (const config::EnvVariable &variable : config.env())
    if (const std::string *value = variable.setting.value.asString())
      plan.job.put("env." + variable.name, *value);
  const config::Derived &d = config.derived();
  auto add = [&](JobField field, const plan::JobValue &value) { plan.job.put(field, value); };
  bool countsOtherwise = config.has(Opt::TrainTrainSamples) || config.has(Opt::TrainNumEpochs);
  if (countsOtherwise && d.trainIters > 0) // the run counts in steps
    add(JobField::train_trainIters, d.trainIters);
  add(JobField::derived_strategy, config::spelling(strategy).str());
  add(JobField::derived_numMicrobatches, d.numMicrobatches);
  add(JobField::derived_nodes, d.nodes);
  add(JobField::derived_evalMicrobatches, d.evalMicrobatches);
  add(JobField::derived_paddedVocabSize, d.paddedVocab);
  add(d.phase ? JobField::derived_lrDecaySamples : JobField::derived_lrDecayIters, d.decayLength);
  add(d.phase ? JobField::derived_lrWarmupSamples : JobField::derived_lrWarmupIters,
      d.warmupLength);
  if (d.phase) {
    add(JobField::derived_stepSamples, d.phase->size);
    add(JobField::derived_samplesBefore, d.phase->samplesBefore);
  }
  add(JobField::derived_wire, std::string(dtypeName(d.wire)));
  add(JobField::derived_mainGrads, std::string(dtypeName(d.mainGrads)));
  // Recipe locations of ops that passes create from the job.
  add(JobField::derived_locStrategy, static_cast<int64_t>(static_cast<int32_t>(places.strategy)));
  add(JobField::derived_locOptimizer, static_cast<int64_t>(static_cast<int32_t>(places.optimizer)));
  if (config.isOn(Opt::CheckpointAsyncSave) || config.has(Opt::CheckpointInMemoryInterval))
    add(JobField::derived_locCheckpoint,
        static_cast<int64_t>(static_cast<int32_t>(places.checkpoint)));
  add(JobField::derived_master, std::string(dtypeName(d.master)));
  if (!config.passOrder().empty())
    add(JobField::derived_passOrder,
        model::writeSchedule(config::passOrderOf(config, d.numMicrobatches), '|'));
  if (config.has(Opt::ModelOffloadLayers)) {
    Opt depth = Opt::ModelFineGrainedOffloadingMaxInflightOffloads;
    add(JobField::derived_offloadDepth, config.getIntOr(depth, 1));
    add(JobField::derived_offloadMinElements, config.getInt(Opt::ModelMinOffloadedTensorSize));
  }
  if (!config.rates().empty())
    add(JobField::derived_rates, config.rates());
  if (d.gpu && !predict::device(*d.gpu).isHost()) { // peak rate for the reported utilisation
    const predict::DeviceRates &peak = predict::device(*d.gpu).peak;
    add(JobField::derived_peakTflops, d.compute != DType::F32 ? peak.bf16Tflops : peak.fp32Tflops);
  }
  leaveOutOff(plan.job);
}

/// Adds recipe locations to the plan's table, each location once.
class LocTable {
public:
  LocTable(const Config &config, const SourceManager &sources, plan::Plan &plan)
      : config_(config), sources_(sources), plan_(plan),
        folder_(std::filesystem::path(sources.name(config.buffer()).str()).parent_path()) {}

  uint32_t of(Opt opt) {
    SourceRange range = config_.range(opt);
    if (!range.isValid())
      return kNone;
    LineColumn at = sources_.lineColumn(range.begin);
    plan::Loc loc{relative(at.file.str()), static_cast<int32_t>(at.line),
                  static_cast<int32_t>(at.column)};
    for (size_t i = 0; i < plan_.locs.size(); ++i)
      if (plan_.locs[i].file == loc.file && plan_.locs[i].line == loc.line &&
          plan_.locs[i].column == loc.column)
        return static_cast<uint32_t>(i);
    plan_.locs.push_back(std::move(loc));
    return static_cast<uint32_t>(plan_.locs.size()) - 1;
  }

  /// The location of the first of these options that a recipe sets.
  uint32_t ofFirst(std::initializer_list<Opt> opts) {
    for (Opt opt : opts)
      if (uint32_t loc = of(opt); loc != kNone)
        return loc;
    return kNone;
  }

private:
  std::string relative(const std::string &file) const {
    if (file.empty() || file.front() == '<')
      return file;
    std::filesystem::path path =
        std::filesystem::path(file).lexically_relative(folder_.empty() ? "." : folder_);
    return path.empty() ? file : path.generic_string();
  }

  const Config &config_;
  const SourceManager &sources_;
  plan::Plan &plan_;
  std::filesystem::path folder_;
};

/// The groups of a block: ranks that shard it, ranks that shard its state, and ranks that sum its
/// gradients.
struct BlockGroups {
  int16_t shard = -1, state = -1, sum = -1;
};

/// Adds a block without parameters to the last unit. Returns its index.
size_t addBlock(plan::Plan &plan, std::string name, const BlockGroups &groups, int16_t paramClass) {
  plan::Block block;
  block.paramClass = paramClass;
  block.group = groups.shard, block.stateGroup = groups.state, block.sumGroup = groups.sum;
  block.name = std::move(name);
  block.unit = static_cast<int32_t>(plan.units.size()) - 1;
  plan.blocks.push_back(std::move(block));
  return plan.blocks.size() - 1;
}

/// LoRA+ as PEFT has it: the ratio also applies to all vectors that are trained beside adapters.
double rateOf(const Config &config, const model::ParamSpec &spec) {
  const bool hasRatio = config.has(Opt::PeftScheme) &&
                        (spec.kind == model::ParamKind::AdapterOut || spec.shape.size() == 1);
  return hasRatio ? config.getFloat(Opt::PeftLoraplusLrRatio) : 1;
}

bool isDecayed(const Config &config, model::ParamKind kind) {
  using enum model::ParamKindInfo::Decay;
  auto decay = model::paramKindInfo(kind).decay;
  return decay == Decayed ||
         (decay == AsAsked && (config.isOn(Opt::OptimizerApplyWdToQkLayernorm) ||
                               config.has(Opt::SchedulerNoWeightDecayCondType)));
}

/// The optimizer of parameters that are not matrices, if the job's optimizer updates only matrices;
/// empty if it updates all parameters.
std::optional<plan::Optimizer> optimizerOfNoMatrix(const Config &config) {
  using enum config::OptimizerKind;
  if (!config.is(Opt::OptimizerOptimizer, Muon) && !config.is(Opt::OptimizerOptimizer, DistMuon))
    return std::nullopt;
  return plan::findOptimizer(config::spelling(config.getEnumOr(Opt::OptimizerMuonScalarOptimizer,
                                                               config::ScalarOptimizer::Adam))
                                 .str());
}

/// Marks a stack of experts' tensors for sharding by pass Partition: each rank gets some of the
/// experts, and each expert-tensor-parallel rank a part of each.
void splitStack(const plan::Plan &plan, plan::Param &param, const model::ParamSpec &spec) {
  int16_t experts = plan::groupToCutOf(plan, plan::GroupKind::Expert);
  int16_t tensor = plan::groupToCutOf(plan, plan::GroupKind::ExpertTensor);
  if (experts >= 0)
    param.splits.push_back({0, experts});
  if (tensor >= 0 && spec.split)
    param.splits.push_back({spec.split->dim, tensor, spec.split->parts});
  else if (tensor >= 0)
    param.copies.push_back(tensor);
  param.stackedRow = param.type.numel() / (param.type.shape[0] * param.type.shape[1]);
}

/// Marks the parameter for sharding over tensor-parallel ranks by pass Partition. If it has fewer
/// pieces than there are ranks, ranks along the group's fastest axes have equal pieces.
void splitByTensor(plan::Plan &plan, plan::Param &param, const model::TensorSplit &split,
                   int16_t tensor) {
  int64_t ranks = plan.groupSize(tensor);
  int64_t alike = split.pieces > 0 ? std::max<int64_t>(ranks / split.pieces, 1) : 1;
  if (int16_t different = plan::outerGroupOf(plan, tensor, alike); different >= 0)
    param.splits.push_back({split.dim, different, split.parts});
  if (int16_t same = plan::innerGroupOf(plan, tensor, alike); same >= 0)
    param.copies.push_back(same);
}

/// Whether the weight is stored in blocks of 4 bits. This holds for frozen linear layers, except
/// routers, embeddings, the output layer and experts, which bitsandbytes does not quantise either.
bool isQuantized(const Config &config, const model::ParamSpec &spec, bool isFrozen) {
  using enum model::ParamKind;
  constexpr std::array kLinear = {Qkv, Latent, Projection, FeedForward, SharedExperts, Prediction};
  return isFrozen && config.has(Opt::PeftScheme) && config.has(Opt::PeftQuantize) &&
         !config.is(Opt::PeftQuantize, config::WeightFormat::Fp8) && !spec.isStacked &&
         std::ranges::find(kLinear, spec.kind) != kLinear.end();
}

/// Appends the parameter to the block. `tensor`: the group of tensor-parallel ranks, or -1 without
/// tensor parallelism. Pass Partition shards the parameter over this group, unless it belongs to
/// experts, which have groups of their own.
void addParam(const Config &config, plan::Plan &plan, const model::ParamSpec &spec, size_t index,
              DType dtype, int16_t tensor) {
  plan::Param param;
  param.name = spec.name;
  param.type.dtype = dtype;
  param.type.rank = static_cast<uint8_t>(spec.shape.size());
  std::copy(spec.shape.begin(), spec.shape.end(), param.type.shape.begin());
  param.type.shape[param.type.rank - 1u] /= numbersIn(dtype);
  if (spec.isStacked)
    splitStack(plan, param, spec);
  else if (tensor >= 0 && spec.split)
    splitByTensor(plan, param, *spec.split, tensor);
  else if (tensor >= 0)
    param.copies.push_back(tensor);
  plan::Block &block = plan.blocks[index];
  param.block = static_cast<int32_t>(index);
  param.offset = block.numel;
  block.numel = (block.numel + param.type.numel() + kAlign - 1) / kAlign * kAlign;
  block.shard = block.stateShard = block.numel;
  param.wdMult = isDecayed(config, spec.kind) ? 1 : 0;
  param.lrMult = rateOf(config, spec);
  param.isDecoupled = config.has(Opt::OptimizerDecoupledLr) &&
                      model::paramKindInfo(spec.kind).rate == model::ParamKindInfo::Decoupled;
  param.init = spec.init;
  param.initStd = spec.initStd;
  plan.params.push_back(std::move(param));
}

/// The number of 32-bit words in one entry of the feed ring, which batch.load reads.
int64_t feedWords(const config::Derived &d, int64_t microBatch, bool hasPairs) {
  return (hasPairs ? 6 : 5) * microBatch * d.seqLength + 2 * microBatch;
}

/// A changing weight decay changes during the whole run. If the length of the run is given in
/// samples, the run may end within a step.
void setWeightDecay(const Config &config, Op &op) {
  const config::Derived &d = config.derived();
  auto style =
      config.getEnumOr(Opt::SchedulerWeightDecayIncrStyle, config::WeightDecayStyle::Constant);
  if (style == config::WeightDecayStyle::Constant)
    return;
  op.set(Key::weight_decay_style, static_cast<int64_t>(style));
  op.set(Key::start_weight_decay, d.startWeightDecay);
  op.set(Key::end_weight_decay, d.endWeightDecay);
  auto length = static_cast<double>(d.trainIters);
  if (config.has(Opt::TrainTrainSamples))
    length = static_cast<double>(config.getInt(Opt::TrainTrainSamples)) /
             static_cast<double>(d.phase ? 1 : d.globalBatch);
  op.set(Key::weight_decay_steps, length);
}

/// Sets the attributes with which `step.begin` evaluates Megatron's OptimizerParamScheduler.
void setSchedule(const Config &config, Op &op) {
  const config::Derived &d = config.derived();
  op.set(Key::lr, config.getFloatOr(Opt::OptimizerLr, 0));
  op.set(Key::min_lr, config.getFloatOr(Opt::OptimizerMinLr, 0));
  op.set(Key::warmup_init_lr, config.getFloatOr(Opt::SchedulerLrWarmupInit, 0));
  if (d.phase) // all lengths are in samples
    op.set(Key::step_samples, d.phase->size);
  op.set(Key::warmup_steps, d.warmupLength);
  op.set(Key::decay_steps, d.decayLength);
  op.set(Key::decay_style, static_cast<int64_t>(config.getEnumOr(Opt::SchedulerLrDecayStyle,
                                                                 config::DecayStyle::Linear)));
  op.set(Key::wsd_decay_steps, d.wsdDecayLength);
  op.set(Key::wsd_decay_style,
         static_cast<int64_t>(
             config.getEnumOr(Opt::SchedulerLrWsdDecayStyle, config::WsdDecayStyle::Exponential)));
  if (config.has(Opt::OptimizerDecoupledLr)) {
    op.set(Key::decoupled_lr, config.getFloat(Opt::OptimizerDecoupledLr));
    op.set(Key::decoupled_min_lr, config.getFloatOr(Opt::OptimizerDecoupledMinLr,
                                                    config.getFloatOr(Opt::OptimizerMinLr, 0)));
  }
  setWeightDecay(config, op);
}

/// Appends an op that updates the step state in place. Returns the new state.
plan::ValueId chainState(plan::Segment &segment, Op op, plan::ValueId state,
                         const std::string &name) {
  op.results = {plan::addValue(segment, name, segment.values[state].type, plan::Purpose::Step)};
  if (op.pred != plan::Pred::Always)
    op.ties.push_back({plan::Tie::Else, 0, state});
  plan::ValueId result = op.results[0];
  plan::append(segment, std::move(op));
  return result;
}

/// Translates one configuration to a plan.
class Lowering {
public:
  /// `rows`: the number of tokens of each of `samples` in a single forward body; 0: the bodies of
  /// the job.
  Lowering(const Config &config, const SourceManager &sources, int64_t rows, int64_t samples)
      : rows_(rows), samples_(samples), config_(config), d_(config.derived()),
        decoder_(decoderOf(config)), units_(decoder_.units()), locs_(config, sources, plan_),
        strategy_(d_.strategy) {}

  /// The order matters: parameters need the groups, cells need the parameters, bodies need the
  /// cells, and the program needs the bodies. A plan that only continues texts has a forward body
  /// and nothing else.
  plan::Plan run() {
    plan_.name = config_.name();
    addMesh();
    plan_.deviceBytes = d_.memoryBytes;
    if (d_.gpu.has_value()) {
      plan_.needsGpu = config::spelling(*d_.gpu).str();
      plan_.needsBackend = predict::device(*d_.gpu).isHost() ? "host" : "cuda";
      plan_.multiprocessors = predict::device(*d_.gpu).multiprocessors;
    }
    findPlaces();
    fillJob(config_, plan_, strategy_, places_);
    addParameters();
    plan_.roles.emplace_back();
    role_ = &plan_.roles.back();
    role_->name = "all";
    const bool isOfData = tensor_ < 0 && context_ < 0;
    role_->why = fmt::format("{}parallel ranks 0 to {}",
                             isOfData       ? "data-"
                             : context_ < 0 ? "data- and tensor-"
                             : tensor_ < 0  ? "data- and context-"
                                            : "data-, context- and tensor-",
                             isOfData ? d_.dataParallel - 1 : plan_.worldSize() - 1);
    addCells();
    role_->segments.reserve(2);
    if (rows_ > 0) {
      addBody("forward", /*training=*/false);
      return std::move(plan_);
    }
    addBody("micro", /*training=*/true);
    if (evaluates())
      addBody("eval", /*training=*/false);
    addProgram();
    return std::move(plan_);
  }

private:
  /// Forward bodies for generation have no pairs.
  bool hasPairs() const { return rows_ == 0 && config_.has(Opt::PreferenceLoss); }

  bool evaluates() const {
    return config_.has(Opt::ValidationEvalInterval) && d_.evalMicrobatches > 0;
  }

  /// Adds axes and groups, and the groups over which the blocks of dense layers and of experts are
  /// sharded and summed.
  void addMesh() {
    config::Mesh mesh =
        config::refine(config::denseChain(config_), config::expertChain(config_),
                       {config::innerContext(config_), config::ranksOfKey(config_)});
    using enum plan::GroupKind;
    for (auto [link, kind] :
         {std::pair("dp_outer", Outer), std::pair("cp", Context), std::pair("tp", Tensor),
          std::pair("pp", Stages), std::pair("ep", Expert), std::pair("etp", ExpertTensor),
          std::pair("edp", ExpertData)})
      if (const config::Mesh::Group *group = mesh.findGroup(link))
        plan_.kindGroup(kind) = static_cast<int16_t>(group - mesh.groups.data());
    plan_.kindGroup(Data) = static_cast<int16_t>(mesh.data);
    context_ = plan::groupOfKind(plan_, Context);
    tensor_ = plan::groupOfKind(plan_, Tensor);
    for (config::Mesh::Axis &axis : mesh.axes)
      plan_.mesh.push_back({std::move(axis.name), axis.size});
    for (config::Mesh::Group &group : mesh.groups)
      plan_.groups.push_back({std::move(group.name), std::move(group.axes)});
    all_ = static_cast<int16_t>(mesh.all);
    bool dividesAll = d_.fsdp && d_.outerStrategy == config::OuterStrategy::Optim;
    auto groupsOf = [&](size_t shard, size_t state) {
      return BlockGroups{static_cast<int16_t>(shard),
                         static_cast<int16_t>(dividesAll ? state : shard)};
    };
    dense_ = experts_ = groupsOf(mesh.shard, mesh.state);
    // An instance of a single rank has nothing to shard; then only the state is sharded, between
    // instances.
    if (plan_.groupSize(dense_.shard) == 1 && plan_.groupSize(dense_.state) > 1) {
      dense_.shard = experts_.shard = dense_.state;
      strategy_ = config::ShardingStrategy::Optim;
    }
    if (mesh.expertShard) {
      experts_ = groupsOf(*mesh.expertShard, *mesh.expertState);
      experts_.sum = static_cast<int16_t>(*mesh.expertState);
      if (plan_.groupSize(experts_.shard) == 1) // see strategyOf()
        experts_.shard = experts_.state;
      if (plan_.groupSize(experts_.sum) > 1)
        plan_.kindGroup(ExpertData) = experts_.sum;
    }
  }

  /// Finds a line of the recipe for every op. If no option determines how the op is executed, it is
  /// the line of the model, which requires the op.
  void findPlaces() {
    places_.model = locs_.ofFirst({Opt::ModelFamily, Opt::ModelHiddenSize, Opt::ModelNumLayers,
                                   Opt::ModelVocabSize, Opt::ModelSeqLength});
    auto orModels = [this](std::initializer_list<Opt> opts) {
      uint32_t loc = locs_.ofFirst(opts);
      return loc == kNone ? places_.model : loc;
    };
    places_.layers = orModels({Opt::ModelNumLayers});
    places_.predictions = orModels({Opt::ModelMtpNumLayers});
    places_.vocab = orModels({Opt::ModelVocabSize});
    places_.train = orModels({Opt::TrainMicroBatchSize, Opt::TrainGlobalBatchSize});
    places_.optimizer = orModels({Opt::OptimizerOptimizer, Opt::OptimizerLr});
    if (config_.isOn(Opt::CheckpointAsyncSave) || config_.has(Opt::CheckpointInMemoryInterval))
      places_.checkpoint =
          locs_.ofFirst({Opt::CheckpointAsyncSave, Opt::CheckpointInMemoryInterval});
    places_.strategy =
        orModels({Opt::DdpDataParallelShardingStrategy, Opt::DdpUseMegatronFsdp,
                  Opt::DistUseMegatronFsdp, Opt::DdpUseDistributedOptimizer, Opt::DistUseTorchFsdp2,
                  Opt::ClusterGpusPerNode, Opt::ClusterNodes, Opt::ClusterGpu});
  }

  /// Adds the blocks of each unit, with their parameters one after the other: one block, a separate
  /// one for experts, and separate ones for frozen parameters. Pass ShardUnits replaces this
  /// layout.
  void addParameters() {
    const model::Frozen frozen = frozenOf(config_);
    constexpr int16_t kOfJob = 0;
    auto addClass = [&](plan::ParamClass made) {
      plan_.classes.push_back(std::move(made));
      return static_cast<int16_t>(plan_.classes.size() - 1);
    };
    int16_t ofFrozen =
        frozen.freezesNothing() ? kOfJob : addClass({"frozen", /*isTrained=*/false, std::nullopt});
    std::optional<plan::Optimizer> other = optimizerOfNoMatrix(config_);
    int16_t ofOther = other ? addClass({"no_matrix", /*isTrained=*/true, other}) : kOfJob;
    const std::vector<model::UnitParams> params = model::paramsOfUnits(units_, frozen);
    for (size_t u = 0; u < units_.size(); ++u) {
      const model::Unit &unit = units_[u];
      plan_.units.push_back({unit.name, unit.kind});
      std::map<std::pair<bool, int16_t>, size_t> blocks; // by experts or not, and by class
      for (size_t p = 0; p < params[u].params.size(); ++p) {
        const model::ParamSpec &param = params[u].params[p];
        int16_t ofTrained = model::paramKindInfo(param.kind).takesMuon ? kOfJob : ofOther;
        int16_t own = params[u].isFrozen[p] != 0 ? ofFrozen : ofTrained;
        auto [block, isNew] = blocks.try_emplace({param.isStacked, own});
        if (isNew) {
          std::string name = unit.name + (param.isStacked ? ".experts" : "");
          if (std::ranges::any_of(plan_.blocks,
                                  [&](const plan::Block &other) { return other.name == name; }))
            name += fmt::format(".{}", blocks.size() - 1); // another class
          block->second =
              addBlock(plan_, std::move(name), param.isStacked ? experts_ : dense_, own);
        }
        DType type = param.isExact ? DType::F32 : d_.params;
        if (isQuantized(config_, param, params[u].isFrozen[p] != 0))
          type = hasNestedScales() ? DType::NF4x512 : DType::NF4x64;
        addParam(config_, plan_, param, block->second, type, tensor_);
        if (other)
          plan_.params.back().turns = turnsOf(config_, param);
      }
    }
  }

  /// Whether elements of quantised weights have scales in 8 bits. What only runs forward needs the
  /// same numbers, but no memory for anything else.
  bool hasNestedScales() const {
    return rows_ == 0 && config_.is(Opt::PeftQuantize, config::WeightFormat::Nf4Double);
  }

  /// Adds the cells of the logical plan: one per parameter, the step state, the stop flag, rings of
  /// batches, and sums that are reported.
  void addCells() {
    using enum plan::CellKind;
    for (size_t p = 0; p < plan_.params.size(); ++p) {
      const plan::Param &param = plan_.params[p];
      addCell(*role_, param.name, {Param, p}, param.type, plan::Arena::State,
              plan::Purpose::Params);
    }
    step_ = addCell(*role_, "step", Step, Type::of(DType::U8, {sizeof(StepState)}),
                    plan::Arena::State, plan::Purpose::Step);
    addCell(*role_, "stop", Stop, Type::of(DType::I32, {1}), plan::Arena::Host,
            plan::Purpose::Data);
    feed_ = addFeed("feed", Feed, d_.numMicrobatches, d_.microBatch);
    addExpertCells();
    if (decoder_.numPredictions > 0)
      addCell(*role_, "prediction_losses", PredictionLosses,
              Type::of(DType::F32, {decoder_.numPredictions, 1}), plan::Arena::State,
              plan::Purpose::Step);
    if (hasPairs())
      addCell(*role_, "preference_sums", PreferenceSums, Type::of(DType::F32, {1, kPairMetrics}),
              plan::Arena::State, plan::Purpose::Step);
    if (rows_ > 0)
      evalFeed_ = addFeed("eval_feed", EvalFeed, 1, samples_);
    if (rows_ > 0 || !evaluates())
      return;
    int64_t ahead = d_.evalMicrobatches;
    if (config_.isOn(Opt::ValidationFullValidation)) // may need any number
      ahead = std::min(ahead, std::max(d_.numMicrobatches, kWholeAhead));
    evalFeed_ = addFeed("eval_feed", EvalFeed, ahead, d_.evalMicroBatch);
  }

  /// Adds the cells for the expert bias of each layer, and for the balancing losses that a run
  /// reports.
  void addExpertCells() {
    const std::optional<model::RouterSettings> router = routerOf(config_);
    if (!router)
      return;
    auto add = [&](const char *name, plan::CellKind kind, int64_t rows, int64_t columns) {
      addCell(*role_, name, kind, Type::of(DType::F32, {rows, columns}), plan::Arena::State,
              plan::Purpose::Step);
    };
    // Rows begin at multiples of 16 bytes, as kernels require.
    constexpr int64_t kRow = 4;
    int64_t layers = countLayersWithExperts(config_);
    int64_t experts = (config_.getInt(Opt::ModelNumMoeExperts) + kRow - 1) / kRow * kRow;
    bool hasBias = config_.isOn(Opt::ModelMoeRouterEnableExpertBias);
    bool hasLosses = std::ranges::any_of(router->losses, [](double each) { return each != 0; });
    if (hasBias)
      add("expert_bias", plan::CellKind::ExpertBias, layers, experts);
    if (hasBias || hasLosses || router->capacityFactor > 0 || router->isBySinkhorn)
      add("expert_load", plan::CellKind::ExpertLoad, layers, experts);
    if (hasLosses)
      add("router_losses", plan::CellKind::RouterLosses, kRouterLosses, 1);
    if (router->losses[kGlobalLoss] != 0)
      add("global_load", plan::CellKind::Buffer, layers, experts);
  }

  /// Adds a ring that the host fills some microbatches ahead.
  uint32_t addFeed(const char *name, plan::CellKind kind, int64_t microbatches,
                   int64_t microBatch) {
    return addCell(
        *role_, name, kind,
        Type::of(DType::I32, {kFeedSteps * microbatches, feedWords(d_, microBatch, hasPairs())}),
        plan::Arena::Host, plan::Purpose::Data);
  }

  model::BodySettings bodySettings(bool training) const {
    DType residual = config_.isOn(Opt::ModelFp32ResidualConnection) ? DType::F32 : d_.compute;
    return {rows_ > 0  ? samples_
            : training ? d_.microBatch
                       : d_.evalMicroBatch,
            rows_ > 0 ? rows_ : d_.seqLength,
            d_.compute,
            residual,
            config_.getInt(Opt::RngSeed),
            training,
            d_.seqLength,
            hasPairs()};
  }

  uint32_t placeOf(plan::UnitKind kind) const {
    return kind == plan::UnitKind::Layer        ? places_.layers
           : kind == plan::UnitKind::Prediction ? places_.predictions
                                                : places_.vocab;
  }

  /// Emits everything from batch.load to the masked losses, f32[T], and returns these. Evaluations
  /// skip multi-token prediction, because they do not report its loss.
  plan::ValueId writeForward(model::Forward &forward, uint32_t feed) {
    plan::ValueId x = kNone;
    for (size_t i = 0; i < units_.size(); ++i) {
      const model::Unit &unit = units_[i];
      if (unit.kind == plan::UnitKind::Prediction && !forward.settings().training)
        continue;
      forward.enter(static_cast<int32_t>(i), placeOf(unit.kind), unit.paramPrefix,
                    unit.valuePrefix);
      if (i == 0)
        forward.loadBatch(feed, role_->cells[feed].type.shape[0], places_.train);
      for (const auto &module : *unit.modules)
        x = module->forward(forward, x);
    }
    return x;
  }

  /// Emits one body: start of a step, forward pass, loss, sums. `state` is threaded through these
  /// ops, which orders them.
  void addBody(const char *name, bool training) {
    plan::Segment &segment = role_->segments.emplace_back();
    segment.name = name;
    segment.kind = training ? plan::SegmentKind::Train : plan::SegmentKind::Eval;
    segment.body = true;
    plan::ValueId state = plan::addLiveIn(segment, "step", *role_, step_);
    Op begin = plan::makeOp(training ? OpKind::StepBegin : OpKind::EvalBegin, {state}, -1,
                            places_.optimizer);
    begin.pred = plan::Pred::First;
    if (training)
      setSchedule(config_, begin);
    state = chainState(segment, std::move(begin), state, "step.begun");

    model::Forward forward(plan_, *role_, segment, bodySettings(training));
    plan::ValueId losses = writeForward(forward, training ? feed_ : evalFeed_);
    if (training)
      setLossScale(segment);
    Op add = plan::makeOp(training ? OpKind::LossAdd : OpKind::EvalAdd,
                          {state, losses, forward.tokenCount}, -1, places_.vocab);
    state = chainState(segment, std::move(add), state, "step.summed");
    forward.leaveTallies();
    if (!training)
      state = finishEval(segment, state);
    segment.outs.push_back({state, step_});
  }

  /// Sets the factor with which gradients start. Megatron divides the mean of each microbatch by
  /// the number of microbatches, and gradients by the data-parallel size, unless the collective
  /// averages or the loss is per token.
  void setLossScale(plan::Segment &segment) {
    for (Op &op : segment.ops) {
      if (!plan::opInfo(op).lossGradient)
        continue;
      bool perToken = config_.isOn(Opt::ModelCalculatePerTokenLoss);
      double scale = 1.0;
      if (!perToken) {
        scale /= static_cast<double>(d_.numMicrobatches);
        if (!config_.isOn(Opt::DdpAverageInCollective))
          scale /= static_cast<double>(d_.dataParallel);
        else // gradients of slices are partial sums
          scale *= static_cast<double>(d_.contextParallel);
      }
      if (plan_.units[static_cast<size_t>(op.unit)].kind == plan::UnitKind::Prediction &&
          op.kind == OpKind::CrossEntropy)
        scale *= config_.getFloat(Opt::ModelMtpLossScalingFactor) /
                 static_cast<double>(decoder_.numPredictions);
      if (op.kind == OpKind::CrossEntropy)
        op.set(Key::per_token, int64_t{perToken});
      else if (perToken) // compensates for the final division by the number of tokens
        scale *= static_cast<double>(d_.microBatch * d_.seqLength);
      op.set(Key::loss_scale, scale);
    }
  }

  /// Sums the evaluation's loss and token count over all ranks after the last microbatch, in fp64,
  /// so that the mean does not depend on how samples are divided.
  plan::ValueId finishEval(plan::Segment &segment, plan::ValueId state) {
    auto lastOnly = [&](OpKind kind, std::initializer_list<plan::ValueId> operands) {
      Op op = plan::makeOp(kind, operands, -1, places_.train);
      op.pred = plan::Pred::Last;
      return op;
    };
    Type type = Type::of(DType::F64, {kEvalPartialCount});
    Op pack = lastOnly(OpKind::EvalPack, {state});
    plan::ValueId partial = plan::addValue(segment, "eval.partial", type, plan::Purpose::Step);
    pack.results = {partial};
    plan::append(segment, std::move(pack));
    if (plan_.worldSize() > 1) { // ranks with the same samples count equally
      Op reduce = lastOnly(OpKind::AllReduce, {partial});
      plan::setChannel(
          plan_, reduce,
          plan::channelOf(plan_, all_, plan::StreamKind::Compute, plan::Transport::Nccl, "misc"));
      partial = plan::addValue(segment, "eval.reduced", type, plan::Purpose::Step);
      reduce.results = {partial};
      plan::append(segment, std::move(reduce));
    }
    return chainState(segment, lastOnly(OpKind::EvalFinish, {state, partial}), state,
                      "eval.finished");
  }

  void addProgram() {
    int64_t last = d_.phase ? d_.phase->lastStep() : d_.trainIters;
    plan::ProgramNode steps{plan::ProgramNode::Steps, kNone, last, {}};
    steps.children.push_back({plan::ProgramNode::Run, 0, d_.numMicrobatches, {}});
    if (evaluates()) {
      plan::ProgramNode every{
          plan::ProgramNode::Every, kNone, config_.getInt(Opt::ValidationEvalInterval), {}};
      every.children.push_back({plan::ProgramNode::Run, 1, d_.evalMicrobatches, {}});
      steps.children.push_back(std::move(every));
    }
    role_->program.push_back(std::move(steps));
  }

  int64_t rows_, samples_;
  const Config &config_;
  const config::Derived &d_;
  model::Decoder decoder_;
  std::vector<model::Unit> units_; ///< indices as in Plan::units
  plan::Plan plan_;
  LocTable locs_;
  config::ShardingStrategy strategy_;
  int16_t all_ = -1;     ///< the group of all ranks
  int16_t tensor_ = -1;  ///< the group of tensor-parallel ranks; -1: a single rank
  int16_t context_ = -1; ///< the group of context-parallel ranks; -1: a single rank
  BlockGroups dense_, experts_;
  Places places_;
  plan::Role *role_ = nullptr;
  uint32_t step_ = kNone, feed_ = kNone, evalFeed_ = kNone;
};

} // namespace

plan::Plan lower(const Config &config, const SourceManager &sources) {
  return Lowering(config, sources, 0, 0).run();
}

plan::Plan lowerForward(const Config &config, const SourceManager &sources, int64_t rows,
                        int64_t samples) {
  return Lowering(config, sources, rows, samples).run();
}

} // namespace shardc::lower
