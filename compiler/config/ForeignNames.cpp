#include "compiler/config/ForeignNames.h"

#include <algorithm>

#include "compiler/basic/Format.h"
#include "llvm/ADT/StringMap.h"

namespace shardc::config {

std::string foldName(llvm::StringRef name) {
  std::string folded = name.ltrim('-').str();
  std::replace(folded.begin(), folded.end(), '-', '_');
  return folded;
}

namespace {

constexpr llvm::StringLiteral kMegatronLm = "Megatron-LM";

/// Fields of Hugging Face's models that equal an option of section `model`.
struct ModelField {
  llvm::StringRef field, option;
};

constexpr ModelField kModelFields[] = {
#define HF_COPY(architectures, field, option, type, fallback) {field, option},
#include "runtime/checkpoint/HfFields.def"
};

/// A synonym of a flag of Megatron-LM.
struct OtherFlag {
  llvm::StringRef other, flag;
};

constexpr OtherFlag kOtherFlags[] = {
#define FLAG_ALIAS(other, flag) {other, flag},
#include "compiler/upstream/UpstreamFlags.def"
};

/// A flag of Megatron-LM that sets an option to a fixed value.
struct SettingFlag {
  llvm::StringRef flag;
  Opt option;
  llvm::StringRef value;
};

constexpr SettingFlag kSettingFlags[] = {
#define FLAG_SETS(flag, option, value) {flag, Opt::option, value},
#include "compiler/upstream/UpstreamFlags.def"
};

struct ForeignTables {
  std::vector<ForeignName> names;
  llvm::StringMap<size_t> byName, bySection;

  ForeignTables() {
#define FOREIGN(name, program, option) add(name, program, Opt::option);
#define FOREIGN_OTHER(name, program, advice) add(name, program, {}, advice);
#define FOREIGN_SECTION(name, program, section) addSection(name, program, Section::section);
#include "compiler/config/ForeignNames.def"
    for (const ModelField &field : kModelFields)
      if (std::optional<Opt> opt = findOption(("model." + field.option).str()))
        addUnlessOwn(field.field, "Hugging Face", *opt);
    addFlags();
  }

  void addFlags() {
    llvm::StringMap<Opt> byFlag;
    for (const OptionInfo &option : options())
      if (!option.flag.empty()) {
        byFlag.try_emplace(option.flag, option.opt);
        addFlag(option.flag, option);
      }
    for (const OtherFlag &flag : kOtherFlags)
      if (auto found = byFlag.find(flag.flag); found != byFlag.end())
        addFlag(flag.other, info(found->second));
    for (const SettingFlag &flag : kSettingFlags)
      addUnlessOwn(foldName(flag.flag), kMegatronLm, {}, assignment(info(flag.option), flag.value));
  }

  void addFlag(llvm::StringRef flag, const OptionInfo &option) {
    if (option.flagNegates)
      addUnlessOwn(foldName(flag), kMegatronLm, {}, assignment(option, "false"));
    else
      addUnlessOwn(foldName(flag), kMegatronLm, option.opt);
  }

  static std::string assignment(const OptionInfo &option, llvm::StringRef value) {
    return fmt::format("write '{} = {}'", option.path, value);
  }

  /// Adds a name, unless one of our own options has that name.
  void addUnlessOwn(llvm::StringRef name, llvm::StringRef program, std::optional<Opt> opt,
                    std::string advice = {}) {
    for (const OptionInfo &option : options())
      if (option.name == name)
        return;
    add(name, program, opt, std::move(advice));
  }

  void add(llvm::StringRef name, llvm::StringRef program, std::optional<Opt> opt,
           std::string advice = {}) {
    if (byName.try_emplace(name, names.size()).second)
      names.push_back({name.str(), program, opt, std::nullopt, std::move(advice)});
  }

  void addSection(llvm::StringRef name, llvm::StringRef program, Section section) {
    bySection.try_emplace(name, names.size());
    names.push_back({name.str(), program, std::nullopt, section, {}});
  }
};

const ForeignTables &foreignTables() {
  static const ForeignTables kForeignTables;
  return kForeignTables;
}

const ForeignName *findIn(const llvm::StringMap<size_t> &index, llvm::StringRef name) {
  auto found = index.find(foldName(name));
  return found == index.end() ? nullptr : &foreignTables().names[found->second];
}

} // namespace

llvm::ArrayRef<ForeignName> foreignNames() { return foreignTables().names; }

const ForeignName *findForeignName(llvm::StringRef name) {
  return findIn(foreignTables().byName, name);
}

const ForeignName *findForeignSection(llvm::StringRef name) {
  return findIn(foreignTables().bySection, name);
}

llvm::StringRef nameInSection(const OptionInfo &option) {
  if (option.name != option.path)
    return option.name;
  for (const AliasInfo &alias : aliases())
    if (alias.targets.size() == 1 && alias.targets.front() == option.opt &&
        alias.path.startswith((option.path + ".").str()))
      return alias.path.split('.').second;
  return option.name;
}

std::string describeForeignName(const ForeignName &foreign) {
  if (!foreign.option && !foreign.section)
    return fmt::format("'{}' is {}'s name; {}", foreign.name, foreign.program, foreign.advice);
  return fmt::format("'{}' is {}'s name of '{}'", foreign.name, foreign.program,
                     foreign.option ? info(*foreign.option).path : info(*foreign.section).name);
}

} // namespace shardc::config
