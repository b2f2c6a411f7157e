// The variables of a script while it is read, and the values of which only a part is known. A text
// holds what is not known as a mark: a number between two control characters, which survives
// joining and splitting.
#pragma once

#include "compiler/upstream/Shell.h"

namespace shardc::upstream {

/// A value, maybe with marks, and where it was written.
struct ShellValue {
  std::string text;
  SourceRange range;
};

/// What a variable holds where it is used.
struct ShellHeld {
  enum class Kind : uint8_t { Free, Unset, Set, Unknown };
  Kind kind = Kind::Free; ///< Free: the script never sets it
  bool isList = false;    ///< all elements, of which there may be none
  std::vector<ShellValue> words;
  bool isSet() const { return kind == Kind::Set && !words.empty(); }
};

class ShellValues {
public:
  ShellValues(const ShellSetting &setting, bool isJob, DiagEngine &diags);

  static bool isKnown(llvm::StringRef text) { return !text.contains('\x01'); }
  /// The mark of something whose text in the script is `shown`.
  std::string mark(llvm::StringRef shown, SourceRange cause = {}, std::set<std::string> flags = {});
  /// The mark of something that follows from a text with marks: for their reasons.
  std::string markAs(llvm::StringRef shown, llvm::StringRef from);
  RanWord resolve(const ShellValue &value) const;

  void assign(const std::string &name, std::vector<ShellValue> values, bool append, bool isArray,
              SourceRange range);
  void unset(const std::string &name, SourceRange range);
  void exportVariable(const std::string &name);
  /// What assignments to it mean is a shell's to say.
  void setForeign(const std::string &name) { variable(name).isForeign = true; }
  /// From here on its value depends on `cause`, by this part of the script. With `keepsHead`,
  /// something may follow the value.
  void doubt(const std::string &name, SourceRange cause, llvm::StringRef script, bool keepsHead);
  /// Any variable may have changed, or been set.
  void doubtAll(SourceRange cause);
  void doubtArguments(SourceRange cause) { arguments_ = std::nullopt, argumentsCause_ = cause; }

  ShellHeld look(llvm::StringRef name, llvm::StringRef index, llvm::StringRef shown);
  /// The value of an arithmetic expression whose expansions are done; nothing where it is not
  /// known.
  std::optional<int64_t> evaluate(llvm::StringRef expression);

  void finish(ShellRun &run) const;

  /// False when the script has grown beyond all measure; reported.
  bool spend(size_t bytes, SourceRange range = {});

  bool isInFunction = false;

private:
  struct Variable {
    bool isArray = false, isSet = true, isExported = false, isForeign = false;
    std::vector<ShellValue> elements = {}; ///< the one of a plain variable
    SourceRange range = {};                ///< of the last assignment
  };

  Variable &variable(const std::string &name);
  void addFlags(std::set<std::string> &flags, llvm::StringRef script, llvm::StringRef except);
  bool isEnvironments(llvm::StringRef name) const;
  ShellHeld lookArgument(llvm::StringRef name, llvm::StringRef shown);

  DiagEngine &diags_;
  bool isJob_;                        ///< Slurm has set its variables
  std::vector<ShellUnknown> unknown_; ///< by the number of the mark
  std::map<std::string, Variable> variables_;
  std::vector<std::string> order_; ///< names by first assignment
  std::optional<std::vector<ShellValue>> arguments_;
  SourceRange argumentsCause_;
  SourceRange allCause_; ///< of doubtAll; not valid before it
  size_t budget_ = size_t{16} << 20;
};

/// All texts, one after the other.
std::string joined(const std::vector<ShellValue> &values, llvm::StringRef between = "");

} // namespace shardc::upstream
