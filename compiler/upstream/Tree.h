// A value as Megatron-LM and Megatron-Bridge write it, before anybody knows which option it is for:
// what the readers of YAML, of Python's literals, of command lines and of stored arguments have in
// common. Trees share their parts, so aliases in YAML cost nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compiler/basic/SourceLoc.h"
#include "llvm/ADT/StringRef.h"

namespace shardc::upstream {

struct Tree;
using TreePtr = std::shared_ptr<const Tree>;

struct Tree {
  enum class Kind : uint8_t {
    None,
    Bool,
    Int,
    Float,
    Text, ///< a string, or a word of a command line
    Name, ///< a word without quotes: a name of Python such as torch.bfloat16
    List, ///< lists and tuples
    Map,  ///< dictionaries, and calls with their keyword arguments
  };
  Kind kind = Kind::None;
  bool isUnknown = false; ///< the input does not decide the value: it is to be filled in
  SourceRange range;      ///< its location in the input; may be invalid
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string text; ///< of Text and Name
  std::string call; ///< of Map: the class or function that makes it, dotted; empty for a dictionary
  std::vector<TreePtr> items;                           ///< of List; positional arguments of a call
  std::vector<std::pair<std::string, TreePtr>> entries; ///< of Map

  bool isNone() const { return kind == Kind::None; }
  bool isWord() const { return kind == Kind::Text || kind == Kind::Name; }
  /// The value under a key, or null.
  const Tree *find(llvm::StringRef key) const;
  /// The last part of the dotted `call`.
  llvm::StringRef callName() const;
};

TreePtr makeText(llvm::StringRef text, SourceRange range, Tree::Kind kind = Tree::Kind::Text);

/// Parses an unquoted scalar of YAML or of an override: none, a boolean, a number or text.
TreePtr makeScalar(llvm::StringRef text, SourceRange range);

/// Integers and floats as Python writes them (`1_000`, `3e-4`, `-1`); false for anything else.
bool readInteger(llvm::StringRef text, int64_t &value);
bool readNumber(llvm::StringRef text, double &value);

/// The tree in one line for people, cut off after some length.
std::string describe(const Tree &tree);

/// The part after the last dot.
llvm::StringRef lastPart(llvm::StringRef dotted);

} // namespace shardc::upstream
