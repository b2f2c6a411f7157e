// Step 2: values for options that the recipe does not set. From weakest to strongest: the option
// table, the model family, the preset of mixed_precision; then, in the order of the rule table,
// values derived from other options. Values in recipes do not change.
#include "compiler/config/Evaluate.h"
#include "compiler/config/RuleContext.h"
#include "llvm/ADT/STLExtras.h"

namespace shardc::config {

namespace {

/// Rows of a table in which a kind may have the values of another one.
template <typename Kind> struct KindRows {
  std::vector<KindRow<Kind>> rows;

  void set(const KindRow<Kind> &row) {
    auto isSame = [&](const KindRow<Kind> &of) { return of.kind == row.kind && of.opt == row.opt; };
    auto known = llvm::find_if(rows, isSame);
    if (known == rows.end())
      rows.push_back(row);
    else
      known->text = row.text;
  }
  /// Adds a kind with the values of another one, and then these settings of the section, such as
  /// `kv_channels = 128; window_size = [127, 0]`.
  void add(Kind kind, Kind other, const char *section, llvm::StringRef settings) {
    for (const KindRow<Kind> &row : std::vector<KindRow<Kind>>(rows))
      if (row.kind == other)
        set({kind, row.opt, row.text});
    while (!settings.empty()) {
      auto [setting, rest] = settings.split("; ");
      auto [name, text] = setting.split(" = ");
      std::optional<Opt> opt = findOption(fmt::format("{}.{}", section, name));
      SHARDC_CHECK(opt, "'{}' of '{}' is no option of '{}'", name, spelling(kind), section);
      set({kind, *opt, text});
      settings = rest;
    }
  }
};

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
  for (auto [field, option] : copiedFields())
    if (config.has(field))
      setUnwritten(config, option, config[field].value, Origin::Preset, field);
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

llvm::ArrayRef<KindRow<ModelFamily>> familyRows() {
  static const auto kRows = [] {
    KindRows<ModelFamily> table;
#define FAMILY(family, other, settings)                                                            \
  table.add(ModelFamily::family, ModelFamily::other, "model", settings);
#include "compiler/config/Families.def"
    return table.rows;
  }();
  return kRows;
}

llvm::ArrayRef<KindRow<PrecisionPreset>> presetRows() {
  static const auto kRows = [] {
    using enum PrecisionPreset;
    KindRows<PrecisionPreset> table;
#define PRESET(preset, other, settings) table.add(preset, other, "mixed_precision", settings);
#include "compiler/config/Presets.def"
    return table.rows;
  }();
  return kRows;
}

llvm::ArrayRef<CopiedField> copiedFields() {
  static const auto kCopies = [] {
    std::vector<CopiedField> copies = {
#define COPY(field, option) {Opt::field, Opt::option},
#include "compiler/config/Presets.def"
    };
    for (const OptionInfo &field : options())
      if (field.section == Section::MixedPrecision)
        for (const OptionInfo &option : options())
          if (option.name == field.name &&
              (option.section == Section::Model || option.section == Section::Optimizer ||
               option.section == Section::Ddp))
            copies.push_back({field.opt, option.opt});
    return copies;
  }();
  return kCopies;
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
