// Evaluates the right side of `=` to a constant: replaces `let` constants and does arithmetic.
// Units stay with their numbers until the option that takes them is known. Part of resolve.
#pragma once

#include <vector>

#include "compiler/ast/Ast.h"
#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"
#include "llvm/ADT/StringMap.h"

namespace shardc::config {

struct Constant {
  enum class Kind : uint8_t {
    Error, ///< reported; whoever meets it stays silent
    None,
    Bool,
    Int,
    Float,
    Size,     ///< `integer` bytes
    Duration, ///< `integer` milliseconds
    String,
    Name, ///< a word that is not a constant: an enumerator
    List,
  };
  Kind kind = Kind::Error;
  SourceRange range; ///< where it is used, not where a constant was defined
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<Constant> elements;
  size_t size = 1; ///< values that it holds, itself among them, and characters of their texts

  bool isNumber() const { return kind == Kind::Int || kind == Kind::Float; }
  double asNumber() const { return kind == Kind::Float ? number : static_cast<double>(integer); }
};

/// The maximum total size of a configuration's values, in values and characters. A name stands for
/// a copy of its constant, so without a limit a few lines of nested lists could fill any memory.
inline constexpr size_t kConstantSizeMax = size_t{2} << 20;

/// The maximum number of names that are searched, in all of a configuration, for suggestions for
/// misspelt constants.
inline constexpr size_t kSuggestionsMax = size_t{1} << 20;

/// The `let` constants in scope, and what is left of the limits above.
struct Scope {
  struct Definition {
    Constant value;
    SourceRange name;
  };
  llvm::StringMap<Definition> constants;
  size_t sizeLeft = kConstantSizeMax;
  size_t suggestionsLeft = kSuggestionsMax;
};

/// The value of an expression. Errors are reported and give Kind::Error. Subtracts the value's size
/// from the scope's limit.
Constant evaluate(const ast::Value &value, Scope &scope, DiagEngine &diags);

/// Describes a constant for messages: `the integer 3`, `the name 'adam'`.
std::string describe(const Constant &constant);

/// The constant as a value of `option`. Reports and gives nothing if it is of another type or
/// outside of the option's range; a near miss whose repair is certain is reported and gives the
/// repaired value.
std::optional<Value> convert(const Constant &constant, const OptionInfo &option, DiagEngine &diags);

/// The value of recipe text from one of our own tables (defaults, families); bad text is our own
/// fault.
Value parseTableValue(llvm::StringRef text, const OptionInfo &option);

} // namespace shardc::config
