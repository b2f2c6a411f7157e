#include "compiler/config/Rules.h"

#include <algorithm>

#include "compiler/basic/Format.h"
#include "compiler/config/ReadRates.h"
#include "compiler/config/ReadSchedule.h"
#include "compiler/config/RulePredicates.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::config {

namespace {

struct RuleRow {
  RuleInfo info;
  llvm::StringLiteral name;
  RulePredicate predicate;
};

llvm::ArrayRef<RuleRow> ruleRows() {
  using enum RuleKind;
  static constexpr RuleRow kRows[] = {
#define RULE(enumerator, ...)                                                                      \
  {RuleInfo{RuleId::enumerator, "", __VA_ARGS__}, #enumerator, rule##enumerator},
#include "compiler/config/Rules.def"
  };
  return kRows;
}

/// Adjustments converge much earlier; more rounds mean that two of them undo each other.
constexpr unsigned kRoundsMax = 16;

} // namespace

DiagInfo RuleInfo::diagInfo() const {
  bool isError = kind == RuleKind::Error || kind == RuleKind::Unsupported;
  Severity severity = isError                     ? Severity::Error
                      : kind == RuleKind::Warning ? Severity::Warning
                                                  : Severity::Remark;
  return {severity, id, group, text};
}

llvm::ArrayRef<RuleInfo> rules() {
  static const std::vector<std::string> kIds = [] {
    std::vector<std::string> ids;
    for (const RuleRow &row : ruleRows())
      std::ranges::replace(ids.emplace_back(llvm::convertToSnakeFromCamelCase(row.name)), '_', '-');
    return ids;
  }();
  static const std::vector<RuleInfo> kRules = [] {
    std::vector<RuleInfo> rules;
    for (const RuleRow &row : ruleRows())
      rules.emplace_back(row.info).id = kIds[static_cast<size_t>(row.info.rule)];
    return rules;
  }();
  return kRules;
}

const RuleInfo &info(RuleId rule) { return rules()[static_cast<size_t>(rule)]; }
RulePredicate predicate(RuleId rule) { return ruleRows()[static_cast<size_t>(rule)].predicate; }

const RuleInfo *findRule(llvm::StringRef id) {
  for (const RuleInfo &rule : rules())
    if (rule.id == id)
      return &rule;
  return nullptr;
}

llvm::StringRef ruleKindName(RuleKind kind) {
  constexpr llvm::StringRef kNames[] = {"derive",      "adjust",  "error",
                                        "unsupported", "warning", "remark"};
  return kNames[static_cast<size_t>(kind)];
}

void registerGroups(DiagEngine &diags) {
  for (const RuleInfo &rule : rules())
    if (!rule.group.empty())
      diags.flags().addGroup(rule.group);
}

Config adjust(Config config, DiagEngine &diags) {
  bool hasChanged = true;
  for (unsigned round = 0; hasChanged; ++round) {
    SHARDC_CHECK(round < kRoundsMax, "adjustments of '{}' reach no fixed point", config.name());
    hasChanged = false;
    for (const RuleInfo &rule : rules()) {
      if (rule.kind != RuleKind::Adjust)
        continue;
      RuleContext context(config, diags, rule);
      predicate(rule.rule)(context);
      hasChanged |= context.hasChanged();
      if (context.hasChanged())
        config.setDerived(computeDerived(config));
    }
  }
  return config;
}

void validate(const Config &config, DiagEngine &diags, bool isForUpstream) {
  Config judged = config; // predicates have one interface; checks change nothing
  for (const RuleInfo &rule : rules()) {
    if (rule.kind == RuleKind::Derive || rule.kind == RuleKind::Adjust ||
        (rule.kind == RuleKind::Unsupported && isForUpstream))
      continue;
    RuleContext context(judged, diags, rule);
    predicate(rule.rule)(context);
    SHARDC_CHECK(!context.hasChanged(), "rule '{}' judges and must not change anything", rule.id);
    if (rule.rule == RuleId::SizeTooLarge && context.hasReported())
      return; // other rules compute with sizes and could overflow
  }
}

// --- all steps ---------------------------------------------------------------------------------

llvm::StringRef stepName(Step step) {
  constexpr llvm::StringRef kNames[] = {"resolve", "defaults", "adjust", "validate"};
  return kNames[static_cast<size_t>(step)];
}

std::optional<Config> loadConfig(SourceManager &sources, DiagEngine &diags, BufferId recipe,
                                 const LoadOptions &options,
                                 const std::function<void(Step, const Config &)> &after) {
  auto done = [&](Step step, const Config &config) {
    if (after)
      after(step, config);
  };
  registerGroups(diags);
  std::optional<Config> config = resolve(sources, diags, recipe, options);
  if (!config)
    return std::nullopt;
  config->allowVariables(options.allowedVariables);
  done(Step::Resolve, *config);
  // A family or a preset sets many values. If it could not be read, later messages would be wrong.
  if ((*config)[Opt::ModelFamily].isPoisoned || (*config)[Opt::MixedPrecisionPreset].isPoisoned)
    return std::nullopt;
  diags.beginPhase();
  config = deriveDefaults(std::move(*config), diags, options);
  done(Step::Defaults, *config);
  config = adjust(std::move(*config), diags);
  done(Step::Adjust, *config);
  readRates(sources, diags, *config);
  readSchedule(sources, diags, *config);
  validate(*config, diags, options.isForUpstream);
  done(Step::Validate, *config);
  return diags.hasErrors() ? std::nullopt : std::move(config);
}

std::optional<Config> loadConfig(SourceManager &sources, DiagEngine &diags,
                                 const LoadOptions &options,
                                 const std::function<void(Step, const Config &)> &after) {
  if (options.read)
    copySources(*options.read, sources);
  Result<BufferId> recipe = sources.loadFile(options.path);
  if (!recipe.isOk()) {
    diags.report(diag::CannotReadFile, {}, recipe.status().message());
    return std::nullopt;
  }
  return loadConfig(sources, diags, *recipe, options, after);
}

} // namespace shardc::config
