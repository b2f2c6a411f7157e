// Quotes words of commands that users can copy.
#pragma once

#include <string>

#include "llvm/ADT/StringRef.h"

namespace shardc {

/// The text as one shell word, quoted if needed.
std::string shellQuoted(llvm::StringRef text);

/// The text as a string of a recipe, with control characters as escapes.
std::string recipeQuoted(llvm::StringRef text);

} // namespace shardc
