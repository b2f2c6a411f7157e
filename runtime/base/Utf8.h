// Checks whether bytes are UTF-8.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace shardc {

/// Bytes of the well-formed sequence at the head of the text; 0 if there is none: surrogates and
/// overlong forms count as ill-formed. After the Unicode standard's table 3-7.
size_t utf8Length(std::string_view text);

/// Offset of the first byte that begins no well-formed sequence, or nothing.
std::optional<size_t> findInvalidUtf8(std::string_view text);

inline bool isUtf8(std::string_view text) { return !findInvalidUtf8(text); }

} // namespace shardc
