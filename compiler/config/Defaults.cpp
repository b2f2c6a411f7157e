// Step 2: values for options that the recipe does not set. From weakest to strongest: the option
// table, the model family, the preset of mixed_precision; then, in the order of the rule table,
// values derived from other options. Values in recipes do not change.
#include "compiler/config/Evaluate.h"
#include "compiler/config/RuleContext.h"
#include "llvm/ADT/STLExtras.h"

namespace shardc::config {

namespace {

struct PresetRow {
  PrecisionPreset kind;
  Opt opt;
  llvm::StringRef text;
};

llvm::ArrayRef<PresetRow> presetRows() {
  static constexpr PresetRow kRows[] = {
#define PRESET(preset, field, value) {PrecisionPreset::preset, Opt::field, value},
#include "compiler/config/Presets.def"
  };
  return kRows;
}

/// Sets an option that the recipe does not set. A `none` in the recipe counts as set, so it removes
/// the family's value.
void setUnwritten(Config &config, Opt opt, Value value, Origin origin, std::optional<Opt> cause) {
  Setting &setting = config.setting(opt);
  if (setting.from.isWritten())
    return;
  setting.value = std::move(value);
  setting.from = {};
  setting.from.origin = origin;
  setting.from.cause = cause;
}

/// Applies the rows of the kind that the option `cause` has.
template <typename Row>
void applyRows(Config &config, llvm::ArrayRef<Row> rows, Origin origin, Opt cause) {
  for (const Row &row : rows)
    if (config.is(cause, row.kind))
      setUnwritten(config, row.opt, parseTableValue(row.text, info(row.opt)), origin, cause);
}

/// Upstream keeps these two fields equal, so the one that is set determines the other.
void keepEqual(Config &config, Opt a, Opt b) {
  for (auto [from, to] : {std::pair(a, b), std::pair(b, a)})
    if (config.has(from) && !config.has(to))
      setUnwritten(config, to, config[from].value, Origin::Preset, from);
}

void applyTable(Config &config) {
  for (const OptionInfo &option : options()) {
    Setting &setting = config.setting(option.opt);
    if (!option.hasDefault() || !setting.value.isNone())
      continue;
    if (setting.from.isWritten() && !setting.isPoisoned)
      setting.history.emplace_back(setting.value, setting.from);
    setting.value = tableDefault(option.opt);
    // An unreadable value keeps its location, so that messages about it can be suppressed.
    if (setting.isPoisoned)
      continue;
    setting.from = {};
    setting.from.origin = Origin::Default;
  }
}

void applyPreset(Config &config) {
  constexpr Opt kPreset = Opt::MixedPrecisionPreset;
  applyRows(config, presetRows(), Origin::Preset, kPreset);
  keepEqual(config, Opt::MixedPrecisionFp8Param, Opt::MixedPrecisionFp8ParamGather);
  keepEqual(config, Opt::MixedPrecisionFp4Param, Opt::MixedPrecisionFp4ParamGather);
#define COPY(field, option)                                                                        \
  if (config.has(Opt::field))                                                                      \
    setUnwritten(config, Opt::option, config[Opt::field].value, Origin::Preset, Opt::field);
#include "compiler/config/Presets.def"
}

} // namespace

const Value &tableDefault(Opt opt) {
  static const std::vector<Value> kValues = [] { // parsed once
    std::vector<Value> values;
    for (const OptionInfo &option : options())
      values.push_back(option.hasDefault() ? parseTableValue(option.defaultText, option) : Value());
    return values;
  }();
  return kValues[static_cast<size_t>(opt)];
}

llvm::ArrayRef<FamilyRow> familyRows() {
  static const std::vector<FamilyRow> kRows = [] {
    std::vector<FamilyRow> rows;
    auto set = [&](const FamilyRow &row) {
      auto isSame = [&](const FamilyRow &of) { return of.kind == row.kind && of.opt == row.opt; };
      auto known = llvm::find_if(rows, isSame);
      if (known == rows.end())
        rows.push_back(row);
      else
        known->text = row.text;
    };
    auto setLike = [&](ModelFamily family, ModelFamily other) {
      for (const FamilyRow &row : std::vector<FamilyRow>(rows))
        if (row.kind == other)
          set({family, row.opt, row.text});
    };
#define FAMILY(family, option, value) set({ModelFamily::family, Opt::option, value});
#define FAMILY_LIKE(family, other) setLike(ModelFamily::family, ModelFamily::other);
#include "compiler/config/Families.def"
    return rows;
  }();
  return kRows;
}

/// Applies the sources of defaults, the strongest first: a later one does not replace a value.
/// Derived sizes are computed again after each rule that changed something.
Config deriveDefaults(Config config, DiagEngine &diags, const LoadOptions &options) {
  applyRows(config, familyRows(), Origin::Family, Opt::ModelFamily);
  applyPreset(config);
  applyTable(config);
  bool takes = config.isOn(Opt::CheckpointUseCheckpointArgs) ||
               config.isOn(Opt::SchedulerUseCheckpointOptParamScheduler);
  if (options.readCheckpoint && takes)
    config.setCheckpoint(options.readCheckpoint(config));
  if (options.measure &&
      (config.has(Opt::TrainNumEpochs) || config.isOn(Opt::ValidationFullValidation)))
    config.setLengths(options.measure(config));
  config.setDerived(computeDerived(config));
  for (const RuleInfo &rule : rules()) {
    if (rule.kind != RuleKind::Derive)
      continue;
    RuleContext context(config, diags, rule);
    predicate(rule.rule)(context);
    if (context.hasChanged())
      config.setDerived(computeDerived(config));
  }
  return config;
}

} // namespace shardc::config
