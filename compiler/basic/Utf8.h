// UTF-8 for the front end: counts code points and UTF-16 units, and makes text safe to print on a
// terminal. runtime/base/Utf8.h defines what is well-formed.
#pragma once

#include <string>

#include "runtime/base/Utf8.h"
#include "llvm/ADT/StringRef.h"

namespace shardc {

/// Number of code points; each ill-formed byte counts as one.
size_t countCodePoints(llvm::StringRef text);

/// Number of UTF-16 code units; each ill-formed byte counts as one.
size_t countUtf16Units(llvm::StringRef text);

/// Converts the text so that each code point has one printable column: control characters and
/// ill-formed bytes become `?`. Tabs are kept if `keepTabs`.
std::string printable(llvm::StringRef text, bool keepTabs = false);

} // namespace shardc
