// The configuration: a value for every option, and for every value where it came from. Made by
// resolve, changed by defaults and adjust, checked by validate (Steps.h); lowering and everything
// after it reads only this. Nothing in it points into a syntax tree.
//
//   cfg.getInt(Opt::ModelNumLayers)   cfg.derived().dataParallel   cfg.range(Opt::OptimizerLr)
#pragma once

#include <array>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "compiler/basic/SourceLoc.h"
#include "compiler/config/BatchRamp.h"
#include "compiler/config/Options.h"
#include "runtime/base/DType.h"
#include "runtime/base/Status.h"

namespace shardc::config {

/// Number of each row of Rules.def; Rules.h has them all.
enum class RuleId : uint16_t;

/// A value of any option type: nothing, a boolean, a number, a string, an enumerator, or a list of
/// them. Sizes are integers in bytes, durations integers in milliseconds.
class Value {
public:
  struct Enumerator {
    uint8_t index = 0;
    bool operator==(const Enumerator &) const = default;
  };
  using List = std::vector<Value>;

  Value() = default;
  static Value ofBool(bool value) { return Value(value); }
  static Value ofInt(int64_t value) { return Value(value); }
  static Value ofFloat(double value) { return Value(value); }
  static Value ofString(llvm::StringRef value) { return Value(value.str()); }
  static Value ofIndex(size_t index) { return Value(Enumerator{static_cast<uint8_t>(index)}); }
  template <typename E> static Value ofEnum(E value) { return ofIndex(static_cast<size_t>(value)); }
  static Value ofList(List values) { return Value(std::move(values)); }

  bool isNone() const { return std::holds_alternative<std::monostate>(data_); }
  const bool *asBool() const { return std::get_if<bool>(&data_); }
  const int64_t *asInt() const { return std::get_if<int64_t>(&data_); }
  const double *asFloat() const { return std::get_if<double>(&data_); }
  const std::string *asString() const { return std::get_if<std::string>(&data_); }
  const Enumerator *asEnum() const { return std::get_if<Enumerator>(&data_); }
  const List *asList() const { return std::get_if<List>(&data_); }
  bool operator==(const Value &) const = default;

private:
  using Data = std::variant<std::monostate, bool, int64_t, double, std::string, Enumerator, List>;
  template <typename T> explicit Value(T value) : data_(std::move(value)) {}
  Data data_;
};

/// The value in recipe syntax: `8_192`, `"a b"`, `optim`, `[1, 2]`, `30min`, `none`. Reads back as
/// the same value.
std::string toRecipeText(const Value &value, const OptionType &type);

/// The origin of a value, from weakest to strongest.
enum class Origin : uint8_t {
  Unset,       ///< the option has no value
  Default,     ///< the option table
  Family,      ///< the model family
  Preset,      ///< the preset of mixed_precision
  Derived,     ///< computed from other options, by the rule that the provenance names
  Recipe,      ///< written in a recipe or one that it extends
  Overlay,     ///< written in a file given by --overlay
  CommandLine, ///< given by --set
  Rule,        ///< changed by an adjustment, by the rule that the provenance names
};

struct Provenance {
  Origin origin = Origin::Unset;
  uint16_t rank = 0; ///< among written values: 0 for the innermost base, growing towards --set
  SourceRange item;  ///< the whole assignment, if written
  SourceRange name;  ///< the option's name in it
  SourceRange value; ///< its value
  std::optional<RuleId> rule; ///< for Derived and Rule
  std::optional<Opt> cause;   ///< the option that made the rule act, if one alone did

  bool isWritten() const {
    return origin == Origin::Recipe || origin == Origin::Overlay || origin == Origin::CommandLine;
  }
};

/// A value and its past.
struct Setting {
  Value value;
  Provenance from;
  bool isPoisoned =
      false; ///< its value could not be read, the error is reported: rules stay silent
  std::vector<std::pair<Value, Provenance>>
      history; ///< values that this one replaced, oldest first
};

/// An environment variable that the option table does not know.
struct EnvVariable {
  std::string name;
  Setting setting;
};

/// A section as it is written, so that a fix-it knows where a new line goes.
struct SectionSite {
  Section section;
  SourceRange head; ///< `optimizer adam`
  SourceLoc openBrace;
  SourceLoc closeBrace;  ///< invalid if it is missing
  SourceLoc lastItemEnd; ///< end of the last item, or just after the brace
};

/// Numbers of samples that one pass over the data of a run has, which only who opens them knows.
struct DataLengths {
  std::optional<int64_t> train, valid;
  std::string problem; ///< why one that is asked for is not known
};

/// Options that the checkpoint's run was started with, expressed as options of this run.
struct CheckpointSettings {
  struct Item {
    Opt opt;
    Value value;
    bool replaces = true; ///< also what the recipe sets
  };
  std::string folder;         ///< of the checkpoint
  std::vector<Item> model;    ///< checkpoint.use_checkpoint_args
  std::vector<Item> parallel; ///< checkpoint.use_mp_args_from_checkpoint_args
  /// scheduler.use_checkpoint_opt_param_scheduler: values, and lengths in samples, by the options
  /// that take samples.
  std::vector<Item> schedule;
  std::string problem; ///< why nothing is known
};

/// Numbers that follow from the options and that many parts of the compiler need. The defaults step
/// computes them, and again after adjustments. Rules report invalid sizes (zero, not divisible);
/// the numbers here are then rounded down and at least 1.
struct Derived {
  // the mesh
  int64_t worldSize = 1;
  int64_t nodes = 1;
  int64_t gpusPerNode = 1;
  int64_t tensorParallel = 1;
  int64_t pipelineParallel = 1;
  int64_t virtualStages = 1; ///< chunks of layers on each stage
  int64_t contextParallel = 1;
  int64_t expertParallel = 1;
  int64_t expertTensorParallel = 1;
  int64_t dataParallel = 1;       ///< world / (tp * pp * cp)
  int64_t dataParallelOuter = 1;  ///< optimizer instances (HSDP, HFSDP)
  int64_t shardGroup = 1;         ///< ranks that shard: dataParallel * contextParallel / outer
  int64_t expertDataParallel = 1; ///< ranks that hold the same expert

  // batches
  int64_t microBatch = 1;
  int64_t globalBatch = 1;
  int64_t numMicrobatches = 1; ///< per rank and step
  int64_t evalMicroBatch = 1;
  int64_t evalMicrobatches = 0; ///< per rank and evaluation

  std::vector<BatchPhase> phases; ///< the sizes of a batch that grows, as it takes them; else empty
  std::optional<BatchPhase> phase; ///< that of which the above are the sizes; the last by default

  // the model
  ModelFamily family = ModelFamily::Gpt;
  int64_t numLayers = 1;
  int64_t hidden = 1;
  int64_t ffnHidden = 1;
  int64_t numHeads = 1;
  int64_t numGroups = 1; ///< key/value heads
  int64_t headSize = 1;
  int64_t seqLength = 1;
  int64_t maxPositions = 1; ///< rows of the learned position table
  int64_t vocab = 1;
  int64_t paddedVocab = 1;
  bool gated = false; ///< the feed-forward layer has a gate
  bool tied = true;   ///< embedding and output projection are one weight
  /// Tokens attend within their document alone, and the option that asks for it.
  bool splitsDocuments = false;
  Opt splitting = Opt::DatasetResetAttentionMask;

  // sharding
  bool fsdp = false;                                     ///< Megatron FSDP
  bool torchFsdp2 = false;                               ///< PyTorch FSDP2
  ShardingStrategy strategy = ShardingStrategy::NoShard; ///< what runs
  OuterStrategy outerStrategy = OuterStrategy::NoShard;
  bool distributedOptimizer = false;

  // element types
  DType params = DType::F32;    ///< weights that the layers compute with
  DType compute = DType::F32;   ///< activations and products
  DType wire = DType::F32;      ///< gradients in reductions
  DType mainGrads = DType::F32; ///< accumulated gradients
  DType master = DType::F32;    ///< weights that the optimizer updates
  int64_t masterBytes = 0;      ///< of an element, beside its parameter: 0 if that is the master
  DType expAvg = DType::F32;
  DType expAvgSq = DType::F32;

  // the run, and its schedule: in steps, or in samples where the batch size grows
  int64_t trainIters = 0; ///< always steps
  int64_t decayLength = 0;
  int64_t warmupLength = 0;
  double startWeightDecay = 0, endWeightDecay = 0;
  int64_t wsdDecayLength = 0;

  // the device
  std::optional<Gpu> gpu;
  int64_t memoryBytes = 0; ///< what a plan may use on one device; 0: not known
};

/// A text that the values were read from.
struct SourceUse {
  BufferId buffer;
  Origin origin;   ///< Recipe, Overlay or CommandLine
  bool isExtended; ///< no command named it, another recipe extends it
};

class Config {
public:
  Config() : settings_(kNumOptions) {}

  /// Name of the recipe, and the buffer that the command named.
  const std::string &name() const { return name_; }
  BufferId buffer() const { return buffer_; }
  void setName(std::string name, BufferId buffer) {
    name_ = std::move(name);
    buffer_ = buffer;
  }

  /// All texts that were read, from the weakest to the strongest.
  const std::vector<SourceUse> &sources() const { return sources_; }
  std::vector<SourceUse> &sources() { return sources_; }

  const Setting &operator[](Opt opt) const { return settings_[static_cast<size_t>(opt)]; }
  /// For the steps only.
  Setting &setting(Opt opt) { return settings_[static_cast<size_t>(opt)]; }

  /// Whether the option has a value, from wherever.
  bool has(Opt opt) const { return !(*this)[opt].value.isNone(); }
  /// Whether a recipe, an overlay or the command line sets the value (`none` included).
  bool isWritten(Opt opt) const { return (*this)[opt].from.isWritten(); }
  /// The place where the option's value was written, or that of the option that made a rule change
  /// it; may be invalid.
  SourceRange range(Opt opt) const;

  // The value of an option that has one; asking for another type or an unset option is our own
  // fault.
  bool getBool(Opt opt) const;
  int64_t getInt(Opt opt) const; ///< Int, Size (bytes) and Duration (milliseconds)
  double getFloat(Opt opt) const;
  const std::string &getString(Opt opt) const;
  const Value::List &getList(Opt opt) const;
  template <typename E> E getEnum(Opt opt) const {
    return static_cast<E>(enumIndex(opt, enumKindOf<E>()));
  }
  template <typename E> std::vector<E> getEnums(Opt opt) const {
    std::vector<E> values;
    checkEnumKind(opt, enumKindOf<E>());
    for (const Value &value : getList(opt))
      values.push_back(static_cast<E>(value.asEnum()->index));
    return values;
  }

  // The same with a fallback for an unset option.
  bool isOn(Opt opt) const { return has(opt) && getBool(opt); }
  int64_t getIntOr(Opt opt, int64_t fallback) const { return has(opt) ? getInt(opt) : fallback; }
  double getFloatOr(Opt opt, double fallback) const { return has(opt) ? getFloat(opt) : fallback; }
  std::string getStringOr(Opt opt, llvm::StringRef fallback) const {
    return has(opt) ? getString(opt) : fallback.str();
  }
  template <typename E> E getEnumOr(Opt opt, E fallback) const {
    return has(opt) ? getEnum<E>(opt) : fallback;
  }
  template <typename E> bool is(Opt opt, E value) const {
    return has(opt) && getEnum<E>(opt) == value;
  }

  const Derived &derived() const { return derived_; }
  void setDerived(const Derived &derived) { derived_ = derived; }

  /// The lengths of the data; nothing if they were not read.
  const std::optional<DataLengths> &lengths() const { return lengths_; }
  void setLengths(DataLengths lengths) { lengths_ = std::move(lengths); }

  /// The settings of the checkpoint; nothing if none was read.
  const std::optional<CheckpointSettings> &checkpoint() const { return checkpoint_; }
  void setCheckpoint(CheckpointSettings settings) { checkpoint_ = std::move(settings); }

  /// Measured rates of the cluster, as a plan has them (Rate::words); empty without
  /// `cluster.rates`.
  const std::vector<std::string> &rates() const { return rates_; }
  void setRates(std::vector<std::string> rates) { rates_ = std::move(rates); }

  /// Variables of the env section that are not options, in the order of their names.
  const std::vector<EnvVariable> &env() const { return env_; }
  std::vector<EnvVariable> &env() { return env_; }

  const std::vector<SectionSite> &sites() const { return sites_; }
  std::vector<SectionSite> &sites() { return sites_; }
  /// The braces of the recipe that the command named.
  SourceLoc bodyEnd() const { return bodyEnd_; }
  void setBodyEnd(SourceLoc end) { bodyEnd_ = end; }

private:
  size_t enumIndex(Opt opt, EnumKind kind) const;
  void checkEnumKind(Opt opt, EnumKind kind) const;

  std::string name_;
  BufferId buffer_;
  std::vector<SourceUse> sources_;
  std::vector<Setting> settings_;
  std::vector<EnvVariable> env_;
  std::vector<SectionSite> sites_;
  SourceLoc bodyEnd_;
  Derived derived_;
  std::optional<DataLengths> lengths_;
  std::optional<CheckpointSettings> checkpoint_;
  std::vector<std::string> rates_;
};

/// The value of an option in recipe syntax; `none` if it has none.
std::string toRecipeText(const Config &config, Opt opt);

} // namespace shardc::config
