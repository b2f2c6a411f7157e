// Escapes texts for terminals and looks up the words of enumerations.
#include "runtime/plan/Text.h"

#include <algorithm>

#include "runtime/base/Crc32.h"
#include "runtime/base/Utf8.h"

namespace shardc::plan {

uint32_t textHash(std::string_view body) { return crc32(0, body.data(), body.size()); }

bool isPlainName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), isWordChar);
}

std::string printable(std::string_view text) { return escapeControls(text); }

std::string printableLines(std::string_view text) { return escapeControls(text, "\n\t"); }

std::string_view enumeratorName(const AttrInfo &info, int64_t value) {
  std::string_view rest = info.enumerators;
  for (int64_t i = 0; !rest.empty() && value >= 0; ++i) {
    size_t end = std::min(rest.find('|'), rest.size());
    if (i == value)
      return rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return {};
}

std::optional<int64_t> parseEnumerator(const AttrInfo &info, std::string_view word) {
  for (int64_t i = 0;; ++i) {
    std::string_view name = enumeratorName(info, i);
    if (name.empty())
      return std::nullopt;
    if (name == word)
      return i;
  }
}

bool isDefault(const Attr &attr) {
  const AttrInfo &info = attrInfo(attr.key);
  if (info.type == AttrInfo::Float)
    return attr.f == info.defaultValue;
  return attr.i == static_cast<int64_t>(info.defaultValue);
}

} // namespace shardc::plan
