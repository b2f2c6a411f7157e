// Checks whether bytes are UTF-8, and makes texts safe for terminals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardc {

/// Length in bytes of the well-formed sequence at the start of the text, after table 3-7 of the
/// Unicode standard; 0 if there is none. Surrogates and overlong forms are ill-formed.
size_t utf8Length(std::string_view text);

/// Offset of the first byte that does not begin a well-formed sequence; nothing if there is none.
std::optional<size_t> findInvalidUtf8(std::string_view text);

/// Length in bytes of the character at the start of the text if a terminal may interpret it as a
/// command: ASCII control characters, U+0080 to U+009F, those that change the direction of text,
/// and bytes that are not UTF-8, which some terminals interpret as the second. Otherwise 0.
size_t controlLength(std::string_view text);

/// The first code point of a text that is not empty, or its first byte if that is ill-formed.
uint32_t codePointAt(std::string_view text);

/// Writes characters that control a terminal, and bytes that are not UTF-8, as `\\xNN`, except
/// those in `kept`.
std::string escapeControls(std::string_view text, std::string_view kept = {});

/// Whether the whole text is well-formed; an empty text is.
inline bool isUtf8(std::string_view text) { return !findInvalidUtf8(text); }

} // namespace shardc
