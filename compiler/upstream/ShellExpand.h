// Expands a script's words: variables, arrays, defaults, arithmetic, splitting. Values that the
// script does not determine (a variable that it never sets, the output of a program) remain visible
// as `${NAME}` or `$(...)`.
#pragma once

#include <map>

#include "compiler/upstream/Shell.h"

namespace shardc::upstream {

/// A shell variable: one word, or an array of them.
struct ShellVariable {
  bool isArray = false;
  std::map<int64_t, RanWord> elements; ///< by index; a plain variable is element 0
  bool exported = false;
  SourceRange range; ///< of the last assignment

  std::vector<RanWord> words() const;
};

class ShellState {
public:
  explicit ShellState(DiagEngine &diags) : diags_(diags) {}

  /// The fields that a word becomes: none, one or several.
  std::vector<RanWord> expand(const ShellWord &word);
  /// The one text that it becomes where nothing is split: in assignments and conditions. With
  /// `unsetIsEmpty`, variables that the script does not set are empty, as they are for the shell.
  std::string expandOne(const ShellWord &word, bool unsetIsEmpty = false);

  void assign(const ShellAssignment &assignment);
  void set(const std::string &name, std::string value, SourceRange range);
  void unset(const std::string &name) { variables_.erase(name); }
  const ShellVariable *find(const std::string &name) const;
  void markExported(const std::string &name) { variables_[name].exported = true; }

  /// Arguments of a function while it runs; those of the script itself are not known.
  std::vector<RanWord> positional;
  bool isInFunction = false;
  std::map<std::string, ShellVariable> &variables() { return variables_; }
  /// Names in the order of their first assignment.
  const std::vector<std::string> &order() const { return order_; }

  /// False when the script has grown beyond all measure; reported.
  bool spend(size_t bytes, SourceRange range);
  bool isExhausted() const { return budget_ == 0; }

private:
  struct Field {
    std::string text;
    bool hasQuotes = false;
    SourceRange range = {}; ///< of the element that it comes from, if it comes from an array
  };
  using Fields = std::vector<Field>;

  /// The value of a variable at the point of its use.
  struct Held {
    bool isKnown = false; ///< false: the script never sets it
    bool isList = false;  ///< all elements, of which there may be none
    std::vector<RanWord> words;
    bool isSet() const { return !words.empty(); }
  };

  Held look(const ShellPart &part, SourceRange range);
  std::optional<int64_t> indexOf(const std::string &expression, const ShellVariable *array);
  void expandPart(const ShellPart &part, SourceRange range, Fields &fields, bool splits);
  void expandArgument(const ShellPart &part, Fields &fields, bool splits);
  void assignArray(const ShellAssignment &assignment);
  void appendText(Fields &fields, llvm::StringRef text, bool quoted, bool splits);
  void appendWords(Fields &fields, const std::vector<RanWord> &words, const ShellPart &part,
                   bool splits);
  bool applyOperator(const ShellPart &part, const Held &held, Fields &fields, bool splits);
  std::optional<int64_t> evaluate(llvm::StringRef text);
  std::string arithmetic(llvm::StringRef text);
  std::string unsetText(const ShellPart &part) const;

  DiagEngine &diags_;
  std::map<std::string, ShellVariable> variables_;
  std::vector<std::string> order_;
  size_t budget_ = size_t{16} << 20;
  bool unsetIsEmpty_ = false;
  unsigned depth_ = 0;
};

} // namespace shardc::upstream
