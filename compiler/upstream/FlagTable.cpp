#include "compiler/upstream/FlagTable.h"

#include <algorithm>
#include <vector>

#include "compiler/basic/Suggest.h"
#include "compiler/config/Effect.h"
#include "compiler/config/Evaluate.h"
#include "compiler/config/ForeignNames.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

using config::Opt;
using config::Value;

constexpr UpstreamName kNames[] = {
#define UPSTREAM_NAME(kind, name, text) {NameKind::kind, name, text},
#include "compiler/upstream/UpstreamFlags.def"
};

/// Lookup tables by name.
struct Tables {
  llvm::StringMap<std::vector<FlagEffect>> byFlag;
  llvm::StringMap<llvm::StringRef> flagByAttribute;
  llvm::StringMap<std::vector<Opt>> byBridge;

  Tables() {
    for (const config::OptionInfo &option : config::options()) {
      if (!option.bridge.empty())
        byBridge[option.bridge].push_back(option.opt);
      if (!option.flag.empty())
        add(option.flag, {option.opt, option.flagNegates, {}});
    }
#define FLAG_SETS(flag, option, value) add(flag, {Opt::option, false, value});
#include "compiler/upstream/UpstreamFlags.def"
  }

  void add(llvm::StringRef flag, FlagEffect effect) {
    byFlag[flag].push_back(effect);
    flagByAttribute.try_emplace(config::foldName(flag), flag);
  }
};

const Tables &tables() {
  static const Tables kTables;
  return kTables;
}

} // namespace

llvm::StringRef canonicalFlag(llvm::StringRef flag) {
  const UpstreamName *alias = findName(NameKind::FlagAlias, flag);
  return alias == nullptr ? flag : alias->text;
}

llvm::ArrayRef<FlagEffect> findFlag(llvm::StringRef flag) {
  auto found = tables().byFlag.find(canonicalFlag(flag));
  if (found == tables().byFlag.end())
    return {};
  return found->second;
}

std::optional<llvm::StringRef> misspeltFlag(llvm::StringRef flag) {
  const config::ForeignName *foreign = config::findForeignName(flag);
  if (foreign && foreign->option)
    if (llvm::StringRef ours = config::info(*foreign->option).flag; !ours.empty())
      return ours;
  llvm::SmallVector<llvm::StringRef> known, longer; // `--micro-batch` is short for one
  for (const auto &entry : tables().byFlag) {
    known.push_back(entry.getKey());
    if (entry.getKey().startswith((flag + "-").str()))
      longer.push_back(entry.getKey());
  }
  return longer.size() == 1 ? longer.front() : suggest(flag, known).theOne();
}

llvm::ArrayRef<UpstreamName> upstreamNames() { return kNames; }

const UpstreamName *findName(NameKind kind, llvm::StringRef name) {
  const auto *found = llvm::find_if(kNames, [&](const UpstreamName &row) {
    return row.kind == kind && isOneOf(row.names, name);
  });
  return found == std::end(kNames) ? nullptr : found;
}

bool choosesForeignData(llvm::StringRef flag) {
  return findName(NameKind::DataFlag, config::foldName(flag)) != nullptr;
}

llvm::StringRef flagOfAttribute(llvm::StringRef attribute, bool &given) {
  given = true;
  llvm::StringRef flag = tables().flagByAttribute.lookup(attribute);
  if (!flag.empty())
    return flag;
  given = false;
  return tables().flagByAttribute.lookup(("no_" + attribute).str());
}

llvm::SmallVector<Opt, 2> findBridgePath(llvm::StringRef path) {
  auto found = tables().byBridge.find(path);
  if (found != tables().byBridge.end())
    return {found->second.begin(), found->second.end()};
  const config::AliasInfo *alias = config::findAlias(path);
  if (alias != nullptr && alias->targets.size() == 1 &&
      !config::info(alias->targets.front()).bridge.empty())
    return {alias->targets.front()};
  // A recipe's own path is accepted if its option has no path in Megatron-Bridge.
  std::optional<Opt> own = config::findOption(path);
  if (own && path.contains('.') && config::info(*own).bridge.empty())
    return {*own};
  return {};
}

bool mayPadVocabulary(const config::Config &config) {
  constexpr int64_t kDivisor = 128, kFactorMax = int64_t{1} << 30;
  auto factor = [&](Opt opt, int64_t preset) {
    return std::clamp(config.getIntOr(opt, preset), int64_t{1}, kFactorMax);
  };
  if (config.has(Opt::ModelShouldPadVocab) && !config.isOn(Opt::ModelShouldPadVocab))
    return false;
  int64_t multiple = factor(Opt::ModelMakeVocabSizeDivisibleBy, kDivisor) *
                     factor(Opt::ModelTensorModelParallelSize, 1);
  return !config.has(Opt::ModelVocabSize) || config.getInt(Opt::ModelVocabSize) % multiple != 0;
}

std::optional<Value> cliDefault(const config::Config &config, Opt opt) {
  struct Row {
    Opt opt;
    llvm::StringRef value, settings;
  };
  static constexpr Row kRows[] = {
#define CLI_DEFAULT(option, value, settings) {Opt::option, value, settings},
#include "compiler/upstream/UpstreamFlags.def"
  };
  for (const Row &row : kRows)
    if (row.opt == opt && config::holds(config, row.settings) &&
        (opt != Opt::ModelMaskPaddedVocab || mayPadVocabulary(config)))
      return config::parseTableValue(row.value, config::info(opt));
  return std::nullopt;
}

} // namespace shardc::upstream
