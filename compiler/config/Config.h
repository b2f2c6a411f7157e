// The configuration: a value for every option, and the origin of every value. Resolve creates it,
// defaults and adjust change it, and validate checks it (Steps.h). Lowering and all later steps
// read only the configuration. It has no pointers into a syntax tree.
//
//   cfg.getInt(Opt::ModelNumLayers)   cfg.derived().dataParallel   cfg.range(Opt::OptimizerLr)
#pragma once

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

/// Index of a row of Rules.def; defined in Rules.h.
enum class RuleId : uint16_t;

/// A value of any option type: none, a boolean, a number, a string, an enumerator, or a list of
/// these. Sizes are integers in bytes, durations integers in milliseconds.
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

/// The value in recipe syntax: `8_192`, `"a b"`, `optim`, `[1, 2]`, `30min`, `none`. Parsing it
/// gives the same value.
std::string toRecipeText(const Value &value, const OptionType &type);

/// The origin of a value, from weakest to strongest.
enum class Origin : uint8_t {
  Unset,       ///< the option has no value
  Default,     ///< the option table
  Family,      ///< the model family
  Preset,      ///< the preset of mixed_precision
  Derived,     ///< computed from other options by rule `Provenance::rule`
  Recipe,      ///< written in the recipe, or in one that it extends
  Overlay,     ///< written in a file given by --overlay
  CommandLine, ///< given by --set
  Rule,        ///< changed by an adjustment, rule `Provenance::rule`
};

/// Where a value comes from, for messages, fix-its and `explain`. Ranges are set only if the value
/// was written.
struct Provenance {
  Origin origin = Origin::Unset;
  uint16_t rank = 0; ///< order of written values: 0 for the innermost base, the highest for --set
  SourceRange item;  ///< the whole assignment, if the value was written
  SourceRange name;  ///< range of the option name
  SourceRange value; ///< range of the value
  std::optional<RuleId> rule; ///< for Derived and Rule
  std::optional<Opt> cause;   ///< the option that triggered the rule, if only one did

  bool isWritten() const {
    return origin == Origin::Recipe || origin == Origin::Overlay || origin == Origin::CommandLine;
  }
  /// Whether both are written, and this one in a stronger layer: a file that extends the other one,
  /// an overlay over it, or --set. All of --set are one layer.
  bool isAbove(const Provenance &other) const {
    return isWritten() && other.isWritten() && rank > other.rank &&
           (origin != Origin::CommandLine || other.origin != Origin::CommandLine);
  }
};

/// A value and the values that it replaced.
struct Setting {
  Value value;
  Provenance from;
  bool isPoisoned =
      false; ///< the value could not be read, which was reported as an error, so rules stay silent
  std::vector<std::pair<Value, Provenance>>
      history; ///< values that this one has replaced, oldest first
};

/// An environment variable that is not in the option table.
struct EnvVariable {
  std::string name;
  Setting setting;
};

/// The location of a section, so that fix-its can insert lines.
struct SectionSite {
  Section section;
  SourceRange head; ///< such as `optimizer adam`
  SourceLoc openBrace;
  SourceLoc closeBrace;  ///< invalid if it is missing
  SourceLoc lastItemEnd; ///< end of the last item, or just after the brace
};

/// Numbers of samples in one pass over the data of a run, known after opening the data.
struct DataLengths {
  std::optional<int64_t> train, valid;
  std::string problem; ///< why a requested number is unknown
};

/// Options of the run that saved the checkpoint, expressed as options of this run.
struct CheckpointSettings {
  struct Item {
    Opt opt;
    Value value;
    bool replaces = true; ///< also replaces a value of the recipe
  };
  std::string folder;         ///< of the checkpoint
  std::vector<Item> model;    ///< checkpoint.use_checkpoint_args
  std::vector<Item> parallel; ///< checkpoint.use_mp_args_from_checkpoint_args
  /// scheduler.use_checkpoint_opt_param_scheduler: values, and lengths in samples, as values of the
  /// options that count samples.
  std::vector<Item> schedule;
  std::string problem; ///< why the settings are unknown
};

/// Numbers that follow from the options and that many parts of the compiler need. The defaults step
/// computes them, and computes them again after adjustments. Rules report invalid sizes (zero, not
/// divisible); the numbers here are then rounded down and at least 1.
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

  std::vector<BatchPhase> phases;  ///< the batch sizes in order, if the batch grows; else empty
  std::optional<BatchPhase> phase; ///< the phase that the sizes above describe; by default the last

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
  /// Whether tokens attend only within their document, and the option that requests it.
  bool splitsDocuments = false;
  Opt splitting = Opt::DatasetResetAttentionMask;

  // sharding
  bool fsdp = false;                                     ///< Megatron FSDP
  bool torchFsdp2 = false;                               ///< PyTorch FSDP2
  ShardingStrategy strategy = ShardingStrategy::NoShard; ///< the strategy that the plan uses
  OuterStrategy outerStrategy = OuterStrategy::NoShard;
  bool distributedOptimizer = false;

  // element types
  DType params = DType::F32;    ///< weights that the layers compute with
  DType compute = DType::F32;   ///< activations and products
  DType wire = DType::F32;      ///< gradients in reductions
  DType mainGrads = DType::F32; ///< accumulated gradients
  DType master = DType::F32;    ///< weights that the optimizer updates
  int64_t masterBytes = 0;      ///< bytes besides the weight; 0: the weight is the master
  DType expAvg = DType::F32;
  DType expAvgSq = DType::F32;

  // the run and its schedule: in steps, or in samples if the batch size grows
  int64_t trainIters = 0; ///< always in steps
  int64_t decayLength = 0;
  int64_t warmupLength = 0;
  double startWeightDecay = 0, endWeightDecay = 0;
  int64_t wsdDecayLength = 0;

  // the device
  std::optional<Gpu> gpu;
  int64_t memoryBytes = 0; ///< that a plan may use on one device; 0: unknown
};

/// A text from which values were read.
struct SourceUse {
  BufferId buffer;
  Origin origin;   ///< Recipe, Overlay or CommandLine
  bool isExtended; ///< extended by another recipe rather than named by the command
};

/// The values of all options of one recipe, with their provenance. The four steps of Steps.h fill
/// it; afterwards the compiler only reads it.
class Config {
public:
  Config() : settings_(kNumOptions) {}

  /// The name of the recipe, and the buffer of the recipe that the command named.
  const std::string &name() const { return name_; }
  BufferId buffer() const { return buffer_; }
  void setName(std::string name, BufferId buffer) {
    name_ = std::move(name);
    buffer_ = buffer;
  }

  /// All texts that were read, in order of increasing strength of their values.
  const std::vector<SourceUse> &sources() const { return sources_; }
  std::vector<SourceUse> &sources() { return sources_; }

  const Setting &operator[](Opt opt) const { return settings_[static_cast<size_t>(opt)]; }
  /// Only the steps (Steps.h) may change settings.
  Setting &setting(Opt opt) { return settings_[static_cast<size_t>(opt)]; }

  /// Whether the option has a value, of any origin.
  bool has(Opt opt) const { return !(*this)[opt].value.isNone(); }
  /// Whether a recipe, an overlay or the command line sets the option, possibly to `none`.
  bool isWritten(Opt opt) const { return (*this)[opt].from.isWritten(); }
  /// The location at which the option's value was written. If a rule changed it, the location of
  /// the option that caused the change. May be invalid.
  SourceRange range(Opt opt) const;

  // The value of an option. The option must have a value of the requested type.
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

  // Like the functions above, with a fallback for an option without a value.
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

  /// The lengths of the data; empty if the data were not opened.
  const std::optional<DataLengths> &lengths() const { return lengths_; }
  void setLengths(DataLengths lengths) { lengths_ = std::move(lengths); }

  /// The settings of the checkpoint; empty if none was read.
  const std::optional<CheckpointSettings> &checkpoint() const { return checkpoint_; }
  void setCheckpoint(CheckpointSettings settings) { checkpoint_ = std::move(settings); }

  /// Measured rates of the cluster, in the form in which a plan stores them (Rate::words); empty
  /// without `cluster.rates`.
  const std::vector<std::string> &rates() const { return rates_; }
  void setRates(std::vector<std::string> rates) { rates_ = std::move(rates); }

  /// The text of the pipeline's schedule, if it comes from a file; otherwise empty.
  const std::string &passOrder() const { return passOrder_; }
  void setPassOrder(std::string text) { passOrder_ = std::move(text); }

  /// Variables of section env that are not options, sorted by name.
  const std::vector<EnvVariable> &env() const { return env_; }
  std::vector<EnvVariable> &env() { return env_; }
  /// Names that the user allows in addition to those of the table of variables.
  const std::vector<std::string> &allowedVariables() const { return allowedVariables_; }
  void allowVariables(std::vector<std::string> names) { allowedVariables_ = std::move(names); }

  const std::vector<SectionSite> &sites() const { return sites_; }
  std::vector<SectionSite> &sites() { return sites_; }
  /// The location of the closing brace of the recipe that the command named.
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
  std::vector<std::string> allowedVariables_;
  std::vector<SectionSite> sites_;
  SourceLoc bodyEnd_;
  Derived derived_;
  std::optional<DataLengths> lengths_;
  std::optional<CheckpointSettings> checkpoint_;
  std::vector<std::string> rates_;
  std::string passOrder_;
};

/// The value of an option in recipe syntax; `none` if it has none.
std::string toRecipeText(const Config &config, Opt opt);

} // namespace shardc::config
