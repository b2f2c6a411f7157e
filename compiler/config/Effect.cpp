#include "compiler/config/Effect.h"

#include "compiler/config/Evaluate.h"
#include "runtime/base/Status.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

namespace shardc::config {

namespace {

llvm::SmallVector<llvm::StringRef, 3> clausesOf(llvm::StringRef settings) {
  llvm::SmallVector<llvm::StringRef, 3> clauses;
  if (!settings.empty())
    settings.split(clauses, " or ");
  return clauses;
}

/// Parses `OPTION`, `OPTION = VALUE` or `OPTION > NUMBER`.
NeededSetting parseClause(llvm::StringRef clause) {
  bool isEqual = clause.contains(" = "), isAbove = clause.contains(" > ");
  auto [path, text] = clause.split(isEqual ? " = " : " > ");
  std::optional<Opt> opt = findOption(path);
  SHARDC_CHECK(opt, "there is no option '{}', which another one needs", path);
  NeededSetting setting{isEqual   ? NeededSetting::Kind::Equal
                        : isAbove ? NeededSetting::Kind::Above
                                  : NeededSetting::Kind::Set,
                        *opt,
                        {},
                        0};
  if (isEqual)
    setting.value = parseTableValue(text, info(*opt));
  SHARDC_CHECK(!isAbove || !text.getAsDouble(setting.low), "'{}' is not a number", text);
  return setting;
}

bool holds(const Config &config, const NeededSetting &setting) {
  const Value &value = config[setting.opt].value;
  switch (setting.kind) {
  case NeededSetting::Kind::Equal:
    return value == setting.value;
  case NeededSetting::Kind::Above:
    return (value.asInt() != nullptr && static_cast<double>(*value.asInt()) > setting.low) ||
           (value.asFloat() != nullptr && *value.asFloat() > setting.low);
  case NeededSetting::Kind::Set:
    break;
  }
  const bool *isOn = value.asBool();
  return isOn != nullptr ? *isOn : !value.isNone();
}

} // namespace

std::vector<NeededSetting> neededSettings(const OptionInfo &option) {
  std::vector<NeededSetting> settings;
  for (llvm::StringRef clause : clausesOf(option.with))
    settings.push_back(parseClause(clause));
  return settings;
}

bool holds(const Config &config, llvm::StringRef settings) {
  return settings.empty() || llvm::any_of(clausesOf(settings), [&](llvm::StringRef clause) {
           return holds(config, parseClause(clause));
         });
}

bool hasEffect(const Config &config, const OptionInfo &option) {
  return holds(config, option.with);
}

bool isOfLayout(const OptionInfo &option) {
  std::vector<NeededSetting> needed = neededSettings(option);
  return option.isLayout || (!needed.empty() && llvm::all_of(needed, [](const NeededSetting &of) {
           return info(of.opt).isLayout;
         }));
}

std::string describeNeeds(const OptionInfo &option) {
  std::string text;
  for (llvm::StringRef clause : clausesOf(option.with))
    text += (text.empty() ? "'" : " or '") + clause.str() + "'";
  return text;
}

} // namespace shardc::config
