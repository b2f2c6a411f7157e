// The unfinished recipe of an importer: the settings understood so far, by option, and those that
// could not be converted. Reports each finding at its location in the input and lists it in the
// recipe, so that nothing is dropped silently.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"
#include "compiler/upstream/Tree.h"

namespace shardc::upstream {

/// How a request for the size of a vocabulary begins; the name of the tokenizer follows.
inline constexpr std::string_view kVocabularyOf = "the vocabulary of ";

class RecipeBuilder {
public:
  explicit RecipeBuilder(DiagEngine &diags) : diags_(diags), items_(config::kNumOptions) {}

  DiagEngine &diags() { return diags_; }

  /// What the input says; later values replace earlier ones.
  void set(config::Opt opt, config::Value value, SourceRange range);
  template <typename E> void setEnum(config::Opt opt, E value, SourceRange range) {
    set(opt, config::Value::ofEnum(value), range);
  }
  void setBool(config::Opt opt, bool value, SourceRange range) {
    set(opt, config::Value::ofBool(value), range);
  }
  /// Reads the value; reports what cannot be read. `name` is the option's name in the input.
  bool read(config::Opt opt, const Tree &tree, llvm::StringRef name);
  /// Sets upstream's default of an option that the input does not set, if shardc's default differs.
  void setUpstreamDefault(config::Opt opt, config::Value value);
  void clear(config::Opt opt) { items_[index(opt)].reset(); }
  /// Like doubt(), and says so only if nothing sets it later.
  void setUnknown(config::Opt opt, llvm::StringRef what, SourceRange range);
  /// Reports a data setting that cannot be converted. The recipe then asks for a path and does not
  /// run, since it would otherwise train with synthetic data.
  void setUnknownData(llvm::StringRef what, SourceRange range);
  /// After all settings: asks for settings that are still unknown, and says of which kind the data
  /// are.
  void finishUnknown();

  bool has(config::Opt opt) const { return items_[index(opt)].has_value(); }
  /// The value, or null.
  const config::Value *get(config::Opt opt) const;
  SourceRange range(config::Opt opt) const;
  bool isOn(config::Opt opt) const;
  std::optional<int64_t> integer(config::Opt opt) const;
  template <typename E> bool is(config::Opt opt, E value) const {
    const config::Value *held = get(opt);
    return held != nullptr && *held == config::Value::ofEnum(value);
  }

  /// Options of the env section, and other variables by their name. `none` where the input unsets
  /// one.
  void setVariable(llvm::StringRef name, config::Value value, SourceRange range);
  /// All of them depend on what the input does not show.
  void forgetVariables(llvm::StringRef what, SourceRange range);

  /// A part of the input without counterpart in a recipe: a warning, and a line of the recipe.
  void leaveOut(llvm::StringRef text, SourceRange range);
  /// The same for a flag that is misspelt, as `meant` is spelt.
  void leaveOutMisspelt(llvm::StringRef flag, llvm::StringRef text, llvm::StringRef meant,
                        SourceRange range);
  /// The same for an input without effect in a recipe, with the reason: a remark.
  void leaveOutIdle(llvm::StringRef text, llvm::StringRef why, SourceRange range);
  /// Something that the input does not say and the recipe needs.
  void ask(llvm::StringRef what, config::Opt opt, SourceRange range) {
    ask(what, config::info(opt).path, range);
  }
  void ask(llvm::StringRef what, llvm::StringRef path, SourceRange range);
  /// The same for a setting that the input mentions without deciding it; an earlier value is
  /// dropped.
  void doubt(llvm::StringRef what, config::Opt opt, SourceRange range);
  bool isDoubted(config::Opt opt) const;
  /// Words of a command line that the input does not say: they may hold any setting.
  void askWords(llvm::StringRef what, SourceRange range);
  /// Reports that the recipe has the value that was meant, although upstream reads the input
  /// differently.
  void meant(llvm::StringRef text, SourceRange range);

  /// Of input that names every option which has a value: no value where it does not name one that
  /// the family has.
  void setUnnamedOfFamily();
  /// Drops what shardc does anyway, from input that names every option whether it matters or not.
  void dropDefaults();
  /// Whether anything was understood.
  bool isEmpty() const;

  /// The recipe, not yet formatted.
  std::string print(llvm::StringRef name, llvm::StringRef source) const;

private:
  struct Item {
    config::Value value;
    SourceRange range;
    bool isUpstreamDefault = false;
  };

  void addAsked(llvm::StringRef what, llvm::StringRef path, SourceRange range,
                std::optional<config::Opt> doubted);
  static size_t index(config::Opt opt) { return static_cast<size_t>(opt); }
  std::string printSection(const config::SectionInfo &section, bool upstreamDefaults) const;

  DiagEngine &diags_;
  std::vector<std::optional<Item>> items_;
  std::map<std::string, Item> variables_;
  std::map<config::Opt, std::pair<std::string, SourceRange>> unknown_;
  std::string unknownData_;
  SourceRange unknownDataRange_;
  std::vector<std::string> leftOut_;
  /// Lines to fill in, and the option of those that doubt one.
  std::vector<std::pair<std::optional<config::Opt>, std::string>> asked_;
};

} // namespace shardc::upstream
