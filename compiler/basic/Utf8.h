// UTF-8 for the front end: counts of code points and UTF-16 units, and a form that is safe to print
// on a terminal. base/Utf8.h says what is well-formed.
#pragma once

#include <string>

#include "runtime/base/Utf8.h"
#include "llvm/ADT/StringRef.h"

namespace shardc {

/// Number of code points; each ill-formed byte counts as one.
size_t countCodePoints(llvm::StringRef text);

/// Number of UTF-16 code units; each ill-formed byte counts as one.
size_t countUtf16Units(llvm::StringRef text);

/// One printable column for each code point: control characters and ill-formed bytes become `?`;
/// tabs stay if `keepTabs`.
std::string printable(llvm::StringRef text, bool keepTabs = false);

/// Appends the code point in UTF-8; false for surrogates and values beyond U+10FFFF.
bool appendUtf8(std::string &out, uint32_t codePoint);

} // namespace shardc
