// Finds what a user may mean without knowing the exact name: the options of a section, those with
// the same bare name, and everything whose name or text contains a word. For `shardc explain`.
#pragma once

#include <string>
#include <vector>

#include "compiler/config/Options.h"

namespace shardc::config {

/// The options whose name in their section is `name` (`lr`, `save`), those of aliases included.
std::vector<Opt> optionsNamed(llvm::StringRef name);

/// A line each: path and what it is.
std::string listOptions(llvm::ArrayRef<Opt> options);

/// Describes a section, with a line for each of its options. Returns an empty text for an unknown
/// section.
std::string listSection(llvm::StringRef section);

/// Lists every option, rule and message whose name or text contains the word, ignoring case: one
/// line each, names before texts, at most `linesMax` of each table. Empty if nothing matches, or if
/// the word has fewer than three letters, which would match nearly everything.
std::string searchTables(llvm::StringRef word, size_t linesMax = 25);

} // namespace shardc::config
