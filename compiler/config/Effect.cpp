#include "compiler/config/Effect.h"

#include "compiler/config/Evaluate.h"
#include "runtime/base/Status.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"

namespace shardc::config {

namespace {

using Parts = llvm::SmallVector<llvm::StringRef, 3>;

Parts partsOf(llvm::StringRef settings, llvm::StringRef word) {
  Parts parts;
  if (!settings.empty())
    settings.split(parts, word);
  return parts;
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
    return value == setting.value ||
           (setting.value.isNone() && config[setting.opt].from.origin == Origin::Derived);
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
  for (llvm::StringRef list : partsOf(option.with, " and "))
    for (llvm::StringRef clause : partsOf(list, " or "))
      settings.push_back(parseClause(clause));
  return settings;
}

bool holds(const Config &config, llvm::StringRef settings) {
  return llvm::all_of(partsOf(settings, " and "), [&](llvm::StringRef list) {
    return llvm::any_of(partsOf(list, " or "),
                        [&](llvm::StringRef clause) { return holds(config, parseClause(clause)); });
  });
}

bool hasEffect(const Config &config, const OptionInfo &option) {
  return holds(config, option.with);
}

bool isLeftBehind(const Config &config, const OptionInfo &option) {
  const Provenance &from = config[option.opt].from;
  auto isAbove = [&](Opt opt) {
    std::optional<Opt> kind = info(info(opt).section).kind;
    return config[opt].from.isAbove(from) || (kind && config[*kind].from.isAbove(from));
  };
  auto isChosenAbove = [&](const NeededSetting &needed) {
    const bool isCopied = llvm::any_of(copiedFields(), [&](CopiedField copy) {
      return needed.opt == copy.option && isAbove(copy.field);
    });
    const bool isData = llvm::is_contained(kDataPaths, needed.opt); // one replaces another
    return isCopied || isAbove(needed.opt) || (isData && llvm::any_of(kDataPaths, isAbove));
  };
  return llvm::any_of(neededSettings(option), isChosenAbove);
}

bool isSavingIgnored(const Config &config, const OptionInfo &option) {
  return option.ignored == Ignored::SavesMemory && config.isWritten(option.opt) &&
         config.has(option.opt) && config[option.opt].value != tableDefault(option.opt) &&
         config[option.opt].value != Value::ofBool(false);
}

std::optional<Opt> trainingData(const Config &config) {
  for (Opt paths : {Opt::DatasetBlend, Opt::DatasetDataPath, Opt::DatasetTrainDataPath})
    if (isNamed(config, paths))
      return paths;
  return std::nullopt;
}

const std::string &lastPath(const Config &config, Opt paths) {
  static const std::string kNone; // an import may read a weight without a path
  const std::string *last = config.getList(paths).back().asString();
  return last != nullptr ? *last : kNone;
}

std::optional<DatasetKind> dataKindOf(llvm::StringRef path) {
  auto hasEnding = [&](std::initializer_list<llvm::StringRef> endings) {
    return llvm::any_of(endings, [&](llvm::StringRef ending) { return path.endswith(ending); });
  };
  const bool isFile = hasEnding({".bin", ".idx"});
  const std::string prefix = (isFile ? path.drop_back(4) : path).str();
  using llvm::sys::fs::exists;
  if (exists(prefix + ".mask.idx"))
    return DatasetKind::Packed;
  if (isFile || path.endswith("_document") || exists(prefix + ".idx"))
    return DatasetKind::Indexed;
  const bool isText = hasEnding({".txt", ".md", ".json", ".jsonl"}) || exists(path) ||
                      path.find_first_of("*?[") != llvm::StringRef::npos; // a pattern
  return isText ? std::optional(DatasetKind::Text) : std::nullopt;
}

bool isNamed(const Config &config, Opt opt) {
  const Value &value = config[opt].value;
  const Value::List *list = value.asList();
  return list != nullptr ? !list->empty() : config.has(opt) && value != Value::ofBool(false);
}

bool isOfLayout(const OptionInfo &option) {
  std::vector<NeededSetting> needed = neededSettings(option);
  return option.isLayout || (!needed.empty() && llvm::all_of(needed, [](const NeededSetting &of) {
           return info(of.opt).isLayout;
         }));
}

std::string describeNeeds(const OptionInfo &option) {
  std::string text;
  for (llvm::StringRef list : partsOf(option.with, " and "))
    text += (text.empty() ? "'" : ", and '") + llvm::join(partsOf(list, " or "), "' or '") + "'";
  return text;
}

} // namespace shardc::config
