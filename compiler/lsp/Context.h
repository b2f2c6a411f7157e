// Finds which syntax is allowed at a position of a recipe. It reads only the text before the
// position, since incomplete text has no syntax tree. Completion, hover and definition use it.
#pragma once

#include <string>
#include <vector>

#include "compiler/config/Options.h"

namespace shardc::lsp {

enum class Expect : uint8_t {
  Nothing, ///< in a comment or a string
  Base,    ///< in the string of a base
  Recipe,  ///< before the recipe's opening brace
  Item,    ///< in the recipe's body: a section, a dotted option or `let`
  Option,  ///< in a section's braces: an option's name
  Kind,    ///< after the name of a section whose first word selects a kind
  Value,   ///< after an option's `=`
};

struct Context {
  Expect expect = Expect::Recipe;
  std::optional<config::Section> section; ///< the section around the position or before the dot
  std::string path;                       ///< for Value: the option's path or alias, if known
  std::string word;                       ///< the part of the word before the position
  size_t wordBegin = 0;                   ///< byte offset of `word`
  bool isInList = false;                  ///< for Value: the position is inside brackets
  std::vector<std::string> constants;     ///< names defined by `let` before the position
  std::vector<config::Opt> written;       ///< options already set in this block
};

/// The context at byte `offset`. In a dotted word, `Context::word` is the part after the last dot.
Context contextAt(llvm::StringRef text, size_t offset);

/// The path of the option whose name or value is at byte `offset`; empty if there is no option.
std::optional<std::string> optionPathAt(llvm::StringRef text, size_t offset);

/// Begin and end offset of the word around `offset`. A dot separates words.
std::pair<size_t, size_t> wordAt(llvm::StringRef text, size_t offset);

/// A part of a recipe: byte offsets of its name, and of the end of all of it.
struct Part {
  enum class Kind : uint8_t { Base, Section, Option, Constant, Use } kind; ///< use of a constant
  std::string name;
  size_t nameBegin, nameEnd, end;
  bool isInSection;
  bool isAt(size_t offset) const { return nameBegin <= offset && offset <= nameEnd; }
};
/// All parts of a recipe, in the order of the text. A word of a value that may be a constant is a
/// use.
std::vector<Part> partsOf(llvm::StringRef text);

/// The places of the constant at byte `offset`, its definition first; empty if there is none.
std::vector<Part> constantPlaces(llvm::StringRef text, size_t offset);

} // namespace shardc::lsp
