// The recipe that an importer builds: the settings read so far, and those that could not be
// converted. Each finding is reported at its location in the input and listed in the recipe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"
#include "compiler/upstream/Tree.h"

namespace shardc::upstream {

/// Settings of the input have the origin Recipe, and upstream's defaults the origin Default.
class RecipeBuilder : public config::Config {
public:
  /// `program`: the one whose defaults the recipe has.
  explicit RecipeBuilder(DiagEngine &diags, llvm::StringRef program = "Upstream")
      : diags_(diags), program_(program) {}

  DiagEngine &diags() { return diags_; }

  /// Sets an option as in the input; a later value replaces an earlier one.
  void set(config::Opt opt, config::Value value, SourceRange range);
  template <typename E> void setEnum(config::Opt opt, E value, SourceRange range) {
    set(opt, config::Value::ofEnum(value), range);
  }
  void setBool(config::Opt opt, bool value, SourceRange range) {
    set(opt, config::Value::ofBool(value), range);
  }
  /// Reads the value of an option; reports it and returns false if it cannot be read. `name` is the
  /// option's name in the input.
  bool read(config::Opt opt, const Tree &tree, llvm::StringRef name);
  /// Sets an option that the input leaves at upstream's default, which differs from shardc's. Does
  /// nothing if the input sets the option or leaves it undecided.
  void setUpstreamDefault(config::Opt opt, config::Value value);
  void clear(config::Opt opt) { setting(opt) = {}; }
  /// Like doubt(), but reports it only in finishUnknown(), unless the option is set before.
  void setUnknown(config::Opt opt, llvm::StringRef what, SourceRange range);
  /// Reports data that cannot be converted. The recipe then asks for a path and does not run
  /// without it; otherwise it would train with synthetic data.
  void setUnknownData(llvm::StringRef what, SourceRange range);
  /// Call after all settings: asks for options that are still unknown, and sets the kind of the
  /// data.
  void finishUnknown();

  /// Whether the option is set, possibly to `none`.
  bool isSet(config::Opt opt) const { return (*this)[opt].from.origin != config::Origin::Unset; }

  /// Sets an environment variable, which may be an option of the section `env`. `none` unsets it.
  void setVariable(llvm::StringRef name, config::Value value, SourceRange range);

  /// Reports a warning for a part of the input that recipes cannot express, and lists it in the
  /// recipe.
  void leaveOut(llvm::StringRef text, SourceRange range);
  /// Like leaveOut, for a misspelled flag; `meant` is the correct spelling.
  void leaveOutMisspelt(llvm::StringRef flag, llvm::StringRef text, llvm::StringRef meant,
                        SourceRange range);
  /// Like leaveOut, for input without effect in a recipe; reports only a remark, with the reason.
  void leaveOutIdle(llvm::StringRef text, llvm::StringRef why, SourceRange range);
  /// Like leaveOut, for input that the user must convert as `how` says.
  void leaveToUser(llvm::StringRef text, llvm::StringRef how, SourceRange range);
  /// Asks the user, in the recipe, for a value that it needs but the input does not contain.
  void ask(llvm::StringRef what, config::Opt opt, SourceRange range) {
    ask(what, config::info(opt).path, range);
  }
  void ask(llvm::StringRef what, llvm::StringRef path, SourceRange range,
           std::optional<config::Opt> doubted = {});
  /// Asks for the vocabulary size, unless it is set or the input has no tokenizer.
  void askVocabulary(const Tree &tokenizer);
  /// Like ask, for an option whose value in the input is unknown; removes an earlier value.
  void doubt(llvm::StringRef what, config::Opt opt, SourceRange range);
  bool isDoubted(config::Opt opt) const;
  /// Reports words of a command line whose text is unknown; they may contain any setting.
  void askWords(llvm::StringRef what, SourceRange range);
  /// Reports that the recipe does what the input intends, although upstream reads the input
  /// differently.
  void meant(llvm::StringRef text, SourceRange range) {
    diags_.report(diag::ImportMeant, range, text);
  }

  /// For input that contains all options with a value: sets options to `none` if the family has a
  /// default for them but the input does not contain them.
  void setUnnamedOfFamily();
  /// The settings, and the values that a recipe derives for the others.
  config::Config withDefaults() const;
  /// For input that contains all options: removes those whose value is shardc's default.
  void dropDefaults();
  /// For input that contains all options: removes those of the model that have no effect.
  void dropIdle();
  /// Whether no setting has been read.
  bool isEmpty() const;

  /// The text of the recipe, not yet formatted.
  std::string print(llvm::StringRef name, llvm::StringRef source) const;

private:
  void listAsked(llvm::StringRef line, std::optional<config::Opt> doubted = {});
  std::string printSections(config::Origin origin) const;

  DiagEngine &diags_;
  llvm::StringRef program_;
  std::map<config::Opt, std::pair<std::string, SourceRange>> unknown_;
  std::pair<std::string, SourceRange> unknownData_;
  std::optional<SourceRange> savesNever_; ///< where the input sets save_interval to 0
  std::vector<std::string> leftOut_;
  /// Lines that ask for a value; if doubt() added the line, with the option.
  std::vector<std::pair<std::optional<config::Opt>, std::string>> asked_;
};

} // namespace shardc::upstream
