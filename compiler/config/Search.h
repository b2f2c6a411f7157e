// Finds what a user may mean by an inexact name, for `shardc explain`: the options of a section,
// those with the same bare name, and everything whose name or text contains a word.
#pragma once

#include <string>
#include <vector>

#include "compiler/config/Options.h"

namespace shardc::config {

/// The options whose name inside their section is `name` (`lr`, `save`), including targets of
/// aliases.
std::vector<Opt> optionsNamed(llvm::StringRef name);

/// One line per option: path and doc.
std::string listOptions(llvm::ArrayRef<Opt> options);

/// Describes a section, with a line for each of its options. Returns an empty text for an unknown
/// section.
std::string listSection(llvm::StringRef section);

/// Lists every option, rule and message whose name or text contains the word, ignoring case: one
/// line each, names before texts, at most `linesMax` of each table. Empty if nothing matches, or if
/// the word has fewer than three letters, which would match nearly everything.
std::string searchTables(llvm::StringRef word, size_t linesMax = 25);

} // namespace shardc::config
