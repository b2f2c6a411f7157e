// What the plan's printer and parser agree on: which names need no quotes, enumerators, default
// attributes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Characters of words: names, keywords and numbers.
constexpr bool isWordChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-' || c == '$';
}

/// True if the name can stand without quotes.
bool isPlainName(std::string_view name);

/// The word of an enumeration attribute's value; empty if it has none.
std::string_view enumeratorName(const AttrInfo &info, int64_t value);

/// The value of an enumeration attribute's word.
std::optional<int64_t> parseEnumerator(const AttrInfo &info, std::string_view word);

/// True if the attribute has its table row's default, which is not printed.
bool isDefault(const Attr &attr);

} // namespace shardc::plan
