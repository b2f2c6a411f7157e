// What the plan's printer and parser agree on: which names need no quotes, enumerators, default
// attributes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Characters of words: names, keywords and numbers.
constexpr bool isWordChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-' || c == '$';
}

/// Digits of the hash in a plan's first line.
inline constexpr size_t kHashDigits = 8;

/// The hash of a plan's text below its first line and the page of comments: CRC-32, which finds
/// damage in transport, careless edits, and ranks that were given different plans.
uint32_t textHash(std::string_view body);

/// True if the name needs no quotes.
bool isPlainName(std::string_view name);

/// The text with control characters as `\xNN`: as they are, a plan could write into the terminal.
std::string printable(std::string_view text);
/// The same for a text of several lines, which stay.
std::string printableLines(std::string_view text);

/// The word of an enumeration attribute's value; empty if it has none.
std::string_view enumeratorName(const AttrInfo &info, int64_t value);

/// The value of an enumeration attribute's word.
std::optional<int64_t> parseEnumerator(const AttrInfo &info, std::string_view word);

/// True if the attribute has its table row's default, which is not printed.
bool isDefault(const Attr &attr);

} // namespace shardc::plan
