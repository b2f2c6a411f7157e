// The syntactic context of a position in a recipe, from the words before it only, since incomplete
// text has no syntax tree. Completion, hover and definition use it.
#pragma once

#include <string>
#include <vector>

#include "compiler/config/Options.h"

namespace shardc::lsp {

enum class Expect : uint8_t {
  Nothing, ///< inside a comment or a string
  Recipe,  ///< before the recipe's brace
  Item,    ///< in the recipe's body: a section, a dotted option, `let`
  Option,  ///< in a section
  Kind,    ///< after the name of a section that has a kind
  Value,   ///< after an option's `=`
};

struct Context {
  Expect expect = Expect::Recipe;
  std::optional<config::Section> section; ///< around the place, or before the dot
  std::string path;                       ///< for Value: the option's path or alias, if known
  std::string word;                       ///< the word that touches the place from the left
  size_t wordBegin = 0;                   ///< its first byte
  bool isInList = false;                  ///< for Value: inside brackets
  std::vector<std::string> constants;     ///< names of `let` so far
  std::vector<config::Opt> written;       ///< options written in this block so far
};

/// Examines the text up to byte `offset`. For a dotted word, `word` is the part after the last dot.
Context contextAt(llvm::StringRef text, size_t offset);

/// The option at byte `offset`: its name or its value. Empty elsewhere.
std::optional<std::string> optionPathAt(llvm::StringRef text, size_t offset);

/// The first and the end byte of the word around `offset`; dots do not belong to it.
std::pair<size_t, size_t> wordAt(llvm::StringRef text, size_t offset);

/// The base that the `extends` string around `offset` names; empty if there is none.
std::string baseAt(llvm::StringRef text, size_t offset);

} // namespace shardc::lsp
