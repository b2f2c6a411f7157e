// Words of commands that a person can copy.
#pragma once

#include <string>

#include "llvm/ADT/StringRef.h"

namespace shardc {

/// The text as one word of a shell, with quotes where it needs them.
std::string shellQuoted(llvm::StringRef text);

} // namespace shardc
