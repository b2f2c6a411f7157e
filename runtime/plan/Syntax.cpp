// Escapes texts for terminals and looks up the words of enumerations.
#include "runtime/plan/Text.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/base/Crc32.h"
#include "runtime/base/Utf8.h"

namespace shardc::plan {

uint32_t textHash(std::string_view body) { return crc32(0, body.data(), body.size()); }

bool isPlainName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), isWordChar);
}

namespace {

/// Whether a terminal may interpret the character as a command: ASCII control characters, U+0080 to
/// U+009F, and bytes that are not UTF-8, which some terminals interpret as the latter.
bool isControl(std::string_view character) {
  auto lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1)
    return lead < 0x20 || lead >= 0x7f;
  return lead == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

} // namespace

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    std::string_view character = text.substr(0, std::max<size_t>(utf8Length(text), 1));
    text.remove_prefix(character.size());
    if (!isControl(character))
      out += character;
    else
      for (char c : character)
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out;
}

std::string printableLines(std::string_view text) {
  std::string out;
  for (size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = text.find_first_of("\n\t", begin);
    if (begin > 0)
      out += text[begin - 1];
    out += printable(text.substr(begin, end - begin));
  }
  return out;
}

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
