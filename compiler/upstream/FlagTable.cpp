#include "compiler/upstream/FlagTable.h"

#include <algorithm>
#include <map>
#include <vector>

#include "compiler/basic/Suggest.h"
#include "compiler/config/Evaluate.h"
#include "compiler/config/ForeignNames.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

using config::Opt;
using config::Value;
using Getter = std::function<const Value *(Opt)>;

constexpr UpstreamName kNames[] = {
#define UPSTREAM_NAME(kind, name, text) {NameKind::kind, name, text},
#include "compiler/upstream/UpstreamFlags.def"
};

/// Lookup tables by name.
struct Tables {
  llvm::StringMap<std::vector<FlagEffect>> byFlag;
  llvm::StringMap<llvm::StringRef> aliases, flagByAttribute;
  llvm::StringMap<std::vector<Opt>> byBridge;

  Tables() {
    for (const config::OptionInfo &option : config::options()) {
      if (!option.bridge.empty())
        byBridge[option.bridge].push_back(option.opt);
      if (!option.flag.empty())
        add(option.flag, {option.opt, option.flagNegates, {}});
    }
#define FLAG_ALIAS(other, flag) aliases[other] = flag;
#define FLAG_SETS(flag, option, value) add(flag, {Opt::option, false, value});
#include "compiler/upstream/UpstreamFlags.def"
  }

  void add(llvm::StringRef flag, FlagEffect effect) {
    byFlag[flag].push_back(effect);
    flagByAttribute.try_emplace(attributeOf(flag), flag);
  }
};

const Tables &tables() {
  static const Tables kTables;
  return kTables;
}

} // namespace

llvm::StringRef canonicalFlag(llvm::StringRef flag) {
  auto found = tables().aliases.find(flag);
  return found == tables().aliases.end() ? flag : found->second;
}

llvm::ArrayRef<FlagEffect> findFlag(llvm::StringRef flag) {
  auto found = tables().byFlag.find(flag);
  if (found == tables().byFlag.end() && canonicalFlag(flag) != flag)
    found = tables().byFlag.find(canonicalFlag(flag));
  if (found == tables().byFlag.end())
    return {};
  return found->second;
}

std::optional<llvm::StringRef> misspeltFlag(llvm::StringRef flag) {
  const config::ForeignName *foreign = config::findForeignName(flag);
  if (foreign && foreign->option)
    if (llvm::StringRef ours = config::info(*foreign->option).flag; !ours.empty())
      return ours;
  llvm::SmallVector<llvm::StringRef> known;
  for (const auto &entry : tables().byFlag)
    known.push_back(entry.getKey());
  return suggest(flag, known).theOne();
}

llvm::ArrayRef<UpstreamName> upstreamNames() { return kNames; }

const UpstreamName *findName(NameKind kind, llvm::StringRef name) {
  const auto *found = llvm::find_if(
      kNames, [&](const UpstreamName &row) { return row.kind == kind && row.name == name; });
  return found == std::end(kNames) ? nullptr : found;
}

bool choosesForeignData(llvm::StringRef flag) {
  return llvm::any_of(kNames, [attribute = attributeOf(flag)](const UpstreamName &row) {
    return row.kind == NameKind::DataFlag && attributeOf(row.name) == attribute;
  });
}

std::string attributeOf(llvm::StringRef flag) {
  std::string attribute = flag.ltrim('-').str();
  for (char &c : attribute)
    if (c == '-')
      c = '_';
  return attribute;
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

bool mayPadVocabulary(const Getter &get) {
  constexpr int64_t kDivisor = 128, kFactorMax = int64_t{1} << 30;
  auto integer = [&](Opt opt) {
    const Value *value = get(opt);
    return value != nullptr ? value->asInt() : nullptr;
  };
  auto factor = [&](Opt opt, int64_t preset) {
    const int64_t *value = integer(opt);
    return value != nullptr ? std::clamp(*value, int64_t{1}, kFactorMax) : preset;
  };
  const Value *pads = get(Opt::ModelShouldPadVocab);
  if (pads != nullptr && pads->asBool() != nullptr && !*pads->asBool())
    return false;
  const int64_t *vocab = integer(Opt::ModelVocabSize);
  return vocab == nullptr || *vocab % (factor(Opt::ModelMakeVocabSizeDivisibleBy, kDivisor) *
                                       factor(Opt::ModelTensorModelParallelSize, 1)) !=
                                 0;
}

namespace {

// The gates in the table: conditions on the options that are set.
bool always(const Getter &) { return true; }
bool padded(const Getter &get) { return mayPadVocabulary(get); }
bool pipeline(const Getter &get) {
  const Value *stages = get(Opt::ModelPipelineModelParallelSize);
  return stages != nullptr && stages->asInt() != nullptr && *stages->asInt() > 1;
}
template <Opt opt> bool given(const Getter &get) { return get(opt) != nullptr; }
template <Opt opt, auto value> bool is(const Getter &get) {
  const Value *held = get(opt);
  return held != nullptr && *held == Value::ofEnum(value);
}
template <Opt opt> bool on(const Getter &get) {
  const Value *held = get(opt);
  return held != nullptr && *held == Value::ofBool(true);
}

} // namespace

llvm::ArrayRef<CliDefault> cliDefaults() {
  using enum Opt;
  constexpr auto rotary = is<ModelPositionEmbeddingType, config::PositionEmbedding::Rope>;
  constexpr auto muon = is<OptimizerOptimizer, config::OptimizerKind::Muon>;
  static const CliDefault kDefaults[] = {
#define CLI_DEFAULT(option, value, gate) {option, value, gate},
#include "compiler/upstream/UpstreamFlags.def"
  };
  return kDefaults;
}

} // namespace shardc::upstream
