// What stands at the right of `=` as a constant: names of `let` constants replaced, arithmetic
// done. Units stay with their numbers until the option is known that takes them. Part of resolve.
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
    Name, ///< a word that is no constant: an enumerator
    List,
  };
  Kind kind = Kind::Error;
  SourceRange range; ///< where it is used, not where a constant was defined
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<Constant> elements;

  bool isNumber() const { return kind == Kind::Int || kind == Kind::Float; }
  double asNumber() const { return kind == Kind::Float ? number : static_cast<double>(integer); }
};

/// The `let` constants in scope.
struct Scope {
  struct Definition {
    Constant value;
    SourceRange name;
  };
  llvm::StringMap<Definition> constants;
};

/// The value of an expression; errors are reported and give Kind::Error.
Constant evaluate(const ast::Value &value, const Scope &scope, DiagEngine &diags);

/// What a constant is, for messages: `the integer 3`, `the name 'adam'`.
std::string describe(const Constant &constant);

/// The constant as a value of `option`. Reports and gives nothing if it is of another type or
/// outside of the option's range; a near miss whose repair is certain is reported and gives the
/// repaired value.
std::optional<Value> convert(const Constant &constant, const OptionInfo &option, DiagEngine &diags);

/// The value of recipe text from one of our own tables (defaults, families); bad text is our own
/// fault.
Value parseTableValue(llvm::StringRef text, const OptionInfo &option);

} // namespace shardc::config
