// Finds the location of a field in the text of a JSON object, for messages about values from a
// parser that does not keep locations.
#pragma once

#include <optional>
#include <utility>

#include "llvm/ADT/StringRef.h"

namespace shardc::upstream {

/// Byte ranges, each with an exclusive end, of a key with its quotes and of its value.
struct JsonPlace {
  std::pair<size_t, size_t> key, value;
};

/// The location of the field with a dotted name; the last one if there are several. Empty if there
/// is no such field or the text is not JSON. Keys that contain escapes are not found.
std::optional<JsonPlace> findJsonField(llvm::StringRef text, llvm::StringRef name);

} // namespace shardc::upstream
