// Where in a recipe a place is, from the words before it alone: what is being typed has no syntax
// tree yet. Completion, hover and definition ask it.
#pragma once

#include <string>
#include <vector>

#include "compiler/config/Options.h"

namespace shardc::lsp {

enum class Expect : uint8_t {
  Nothing, ///< inside of a comment or a string
  Recipe,  ///< before the recipe's brace
  Item,    ///< in the recipe's body: a section, a dotted option, `let`
  Option,  ///< in a section
  Kind,    ///< behind the name of a section that takes a word
  Value,   ///< behind an option's `=`
};

struct Context {
  Expect expect = Expect::Recipe;
  std::optional<config::Section> section; ///< around the place, or before the dot
  std::string path;                       ///< for Value: the option's path or alias, if known
  std::string word;                       ///< the word that touches the place from the left
  size_t wordBegin = 0;                   ///< its first byte
  bool isInList = false;                  ///< for Value: inside of brackets
  std::vector<std::string> constants;     ///< names of `let` so far
  std::vector<config::Opt> written;       ///< options written in this block so far
};

/// Looks at the text up to byte `offset`. Of a dotted word, `word` is the part behind the last dot.
Context contextAt(llvm::StringRef text, size_t offset);

/// The option that stands at byte `offset`: its name, or its value. Nothing elsewhere.
std::optional<std::string> optionPathAt(llvm::StringRef text, size_t offset);

/// The first and the end byte of the word around `offset`; dots do not belong to it.
std::pair<size_t, size_t> wordAt(llvm::StringRef text, size_t offset);

/// The base that the `extends` string around `offset` names; empty if there is none.
std::string baseAt(llvm::StringRef text, size_t offset);

} // namespace shardc::lsp
