// Text compressed for a place in another text, such as the specification in a plan.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc {

/// Compresses with zlib and writes the result in base64, without line breaks.
std::string packText(std::string_view text);

/// The text that packText() packed. Errors: InvalidInput if `packed` is damaged or the text is
/// longer than `bytesMax`.
Result<std::string> unpackText(std::string_view packed, size_t bytesMax);

} // namespace shardc
