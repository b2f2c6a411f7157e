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

struct ShellVariable {
  bool isArray = false;
  bool isSet = true; ///< false: the script has unset it
  bool isExported = false;
  std::map<int64_t, ShellValue> elements; ///< by index; a plain variable is element 0
  SourceRange range;                      ///< of the last assignment
  /// Where a function sets it, which may happen at any time: it stays unknown.
  SourceRange setsAnytime;
};

class ShellValues {
public:
  ShellValues(const ShellSetting &setting, DiagEngine &diags);

  // --- what is not known
  // --------------------------------------------------------------------------
  static bool isKnown(llvm::StringRef text) { return !text.contains('\x01'); }
  /// The mark of something whose text in the script is `shown`.
  std::string mark(llvm::StringRef shown, SourceRange cause = {}, std::set<std::string> flags = {});
  /// The mark of something that follows from a text with marks: for their reasons.
  std::string markAs(llvm::StringRef shown, llvm::StringRef from);
  RanWord resolve(const ShellValue &value) const;
  /// Flags that stand in a part of the script, or in the variables that it names.
  std::set<std::string> flagsIn(llvm::StringRef script);

  // --- variables
  // ----------------------------------------------------------------------------------
  ShellVariable &assign(const std::string &name, ShellValue value, bool append);
  void assignElement(const std::string &name, llvm::StringRef index, ShellValue value, bool append);
  void assignArray(const std::string &name, std::vector<ShellValue> values, bool append,
                   SourceRange range);
  void unset(const std::string &name, SourceRange range);
  /// From here on its value depends on `cause`. With `keepsHead`, something may follow the value.
  void doubt(const std::string &name, SourceRange cause, llvm::StringRef script, bool keepsHead,
             bool isAnytime);
  /// Any variable may have changed, or been set.
  void doubtAll(SourceRange cause);
  void doubtArguments(SourceRange cause) { arguments_ = std::nullopt, argumentsCause_ = cause; }
  void setArguments(std::vector<ShellValue> arguments);
  void shiftArguments(size_t count);

  /// What a variable holds where it is used.
  struct Held {
    enum class Kind : uint8_t { Free, Unset, Set, Unknown };
    Kind kind = Kind::Free; ///< Free: the script never sets it
    bool isList = false;    ///< all elements, of which there may be none
    std::vector<ShellValue> words;
    bool isSet() const { return kind == Kind::Set && !words.empty(); }
  };
  Held look(llvm::StringRef name, llvm::StringRef index, llvm::StringRef shown);

  /// The value of an arithmetic expression whose expansions are done; nothing where it is not
  /// known.
  std::optional<int64_t> evaluate(llvm::StringRef expression);

  bool isInFunction = false;
  bool isJob = false; ///< Slurm has set its variables
  void exportVariable(const std::string &name);
  void finish(ShellRun &run) const;

  /// False when the script has grown beyond all measure; reported.
  bool spend(size_t bytes, SourceRange range);
  bool isExhausted() const { return budget_ == 0; }

private:
  Held lookArgument(llvm::StringRef name, llvm::StringRef shown);
  bool isEnvironments(llvm::StringRef name) const;
  ShellVariable &variable(const std::string &name);
  void settle(ShellVariable &variable, const std::string &name);

  DiagEngine &diags_;
  std::vector<ShellUnknown> unknown_; ///< by the number of the mark
  std::map<std::string, ShellVariable> variables_;
  std::vector<std::string> order_; ///< names by first assignment
  std::optional<std::vector<ShellValue>> arguments_;
  SourceRange argumentsCause_;
  SourceRange allCause_; ///< of doubtAll; not valid before it
  std::map<std::string, SourceRange> unset_;
  size_t budget_ = size_t{16} << 20;
};

} // namespace shardc::upstream
