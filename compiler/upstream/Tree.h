// A value from Megatron-LM or Megatron-Bridge that is not yet assigned to an option. The readers of
// YAML, Python, command lines and stored arguments all return it. Trees share subtrees, so aliases
// in YAML are not copied.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compiler/basic/SourceLoc.h"
#include "llvm/ADT/StringRef.h"

namespace shardc::upstream {

/// A call that replaces a value the input does not determine; its argument is the reason.
inline constexpr llvm::StringLiteral kUnknownCall = "shardc.unknown";
/// A field that stands for all unset fields of a section; its value is what they depend on.
inline constexpr llvm::StringLiteral kUnknownRest = "_unknown_";

struct Tree;
using TreePtr = std::shared_ptr<const Tree>;

struct Tree {
  enum class Kind : uint8_t {
    None,
    Bool,
    Int,
    Float,
    Text, ///< a string, or a word of a command line
    Name, ///< an unquoted name of Python, such as torch.bfloat16
    List, ///< lists and tuples
    Map,  ///< dictionaries, and calls with their keyword arguments
  };
  Kind kind = Kind::None;
  bool isUnknown = false; ///< the input does not determine the value
  SourceRange range;      ///< location in the input; may be invalid
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string text; ///< the value of Text and Name
  std::string call; ///< for Map: the dotted name of the called class or function; else empty
  std::vector<TreePtr> items; ///< the items of List; positional arguments of a call
  std::vector<std::pair<std::string, TreePtr>> entries; ///< of Map

  bool isNone() const { return kind == Kind::None; }
  /// Whether a field with this value is like an unset field: None, false or empty.
  bool saysNothing() const;
  bool isWord() const { return kind == Kind::Text || kind == Kind::Name; }
  /// The value of a key; null if there is none.
  const Tree *find(llvm::StringRef key) const;
  /// The last part of the dotted name `call`.
  llvm::StringRef callName() const;
};

TreePtr makeText(llvm::StringRef text, SourceRange range, Tree::Kind kind = Tree::Kind::Text);

/// Parses an unquoted scalar of YAML or of an override: none, a boolean, a number or text.
TreePtr makeScalar(llvm::StringRef text, SourceRange range);

/// Parse numbers as Python writes them (`1_000`, `3e-4`, `-1`); return false for any other text.
bool readInteger(llvm::StringRef text, int64_t &value);
bool readNumber(llvm::StringRef text, double &value);

/// A description of the value in one line, shortened if it is long.
std::string describe(const Tree &tree);

/// The part after the last dot.
llvm::StringRef lastPart(llvm::StringRef dotted);

} // namespace shardc::upstream
