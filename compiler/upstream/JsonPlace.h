// Where a field is in the text of a JSON object, for messages about values that a parser without
// places has read.
#pragma once

#include <optional>
#include <utility>

#include "llvm/ADT/StringRef.h"

namespace shardc::upstream {

/// The first and the last but one byte of a key, with its quotes, and of its value.
struct JsonPlace {
  std::pair<size_t, size_t> key, value;
};

/// The position of the field with this dotted name; the last one if there are several. Nothing if
/// the text lacks it or is not JSON. Keys with escapes are not found.
std::optional<JsonPlace> findJsonField(llvm::StringRef text, llvm::StringRef name);

} // namespace shardc::upstream
