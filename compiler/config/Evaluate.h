// Evaluates the right side of `=` to a constant: replaces `let` constants and does arithmetic. A
// number keeps its unit until it is converted to the type of an option. Part of resolve.
#pragma once

#include <vector>

#include "compiler/ast/Ast.h"
#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"
#include "llvm/ADT/StringMap.h"

namespace shardc::config {

/// The value of an expression before it is converted to an option's type; `kind` says which member
/// is set.
struct Constant {
  enum class Kind : uint8_t {
    Error, ///< the error was reported; users of the constant stay silent
    None,
    Bool,
    Int,
    Float,
    Size,     ///< `integer` bytes
    Duration, ///< `integer` milliseconds
    String,
    Name, ///< a word that is not defined by `let`: an enumerator
    List,
  };
  Kind kind = Kind::Error;
  SourceRange range; ///< the location of the use, not of the constant's definition
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<Constant> elements;
  size_t size = 1; ///< number of contained values, including itself, plus characters of their texts

  bool isNumber() const { return kind == Kind::Int || kind == Kind::Float; }
  double asNumber() const { return kind == Kind::Float ? number : static_cast<double>(integer); }
};

/// The maximum total size of a configuration's values, in values plus characters. Each use of a
/// constant copies it, so without a limit a few lines of nested lists could fill any memory.
inline constexpr size_t kConstantSizeMax = size_t{2} << 20;

/// The maximum number of names that are compared with misspelt constants, in the whole
/// configuration, to make suggestions.
inline constexpr size_t kSuggestionsMax = size_t{1} << 20;

/// The `let` constants in scope, and what remains of the limits above.
struct Scope {
  struct Definition {
    Constant value;
    SourceRange name;
  };
  llvm::StringMap<Definition> constants;
  size_t sizeLeft = kConstantSizeMax;
  size_t suggestionsLeft = kSuggestionsMax;
};

/// Evaluates an expression. Reports errors and returns Kind::Error for them. Subtracts the value's
/// size from the scope's limit.
Constant evaluate(const ast::Value &value, Scope &scope, DiagEngine &diags);

/// Describes a constant for messages: `the integer 3`, `the name 'adam'`.
std::string describe(const Constant &constant);

/// Converts the constant to a value of `option`. If it has another type or is out of range, reports
/// an error. If the error has a certain repair, returns the repaired value, otherwise nothing.
std::optional<Value> convert(const Constant &constant, const OptionInfo &option, DiagEngine &diags);

/// Parses recipe text from one of our own tables (defaults, families). Invalid text is a bug in the
/// table and aborts.
Value parseTableValue(llvm::StringRef text, const OptionInfo &option);

/// A value that a model family, or a preset of mixed_precision, sets.
template <typename Kind> struct KindRow {
  Kind kind;
  Opt opt;
  llvm::StringRef text;
};
llvm::ArrayRef<KindRow<ModelFamily>> familyRows();
llvm::ArrayRef<KindRow<PrecisionPreset>> presetRows();

/// A field of mixed_precision or comm_overlap, and an option to which it is copied if the recipe
/// does not set the option.
struct CopiedField {
  Opt field, option;
};
llvm::ArrayRef<CopiedField> copiedFields();

/// The default that the table gives an option; none if it has no default.
const Value &tableDefault(Opt opt);

} // namespace shardc::config
