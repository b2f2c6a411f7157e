#include "compiler/lsp/Document.h"

#include <algorithm>

#include "compiler/basic/Utf8.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

namespace shardc::lsp {

namespace {

constexpr llvm::StringLiteral kFileScheme = "file://";

/// The length in bytes of the UTF-8 character at the start of `text`.
size_t charBytes(llvm::StringRef text) {
  auto first = static_cast<uint8_t>(text.front());
  size_t bytes = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  return std::min(bytes, text.size());
}

} // namespace

size_t Document::offsetOf(Position at) const {
  size_t begin = 0;
  for (uint32_t line = 0; line < at.line; ++line) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos)
      return text.size();
    begin = end + 1;
  }
  llvm::StringRef rest = llvm::StringRef(text).drop_front(begin);
  rest = rest.take_until([](char c) { return c == '\n'; }).rtrim('\r');
  size_t offset = begin;
  for (uint32_t units = 0; units < at.character && !rest.empty();) {
    size_t bytes = charBytes(rest);
    units += bytes == 4 ? 2 : 1;
    offset += bytes;
    rest = rest.drop_front(bytes);
  }
  return offset;
}

Position Document::positionOf(size_t offset) const {
  llvm::StringRef before = llvm::StringRef(text).take_front(offset);
  size_t lineBegin = before.rfind('\n');
  lineBegin = lineBegin == llvm::StringRef::npos ? 0 : lineBegin + 1;
  return {static_cast<uint32_t>(before.count('\n')),
          static_cast<uint32_t>(countUtf16Units(before.drop_front(lineBegin)))};
}

void Document::replace(Position begin, Position end, llvm::StringRef with) {
  size_t first = offsetOf(begin), last = offsetOf(end);
  if (last < first)
    std::swap(first, last);
  text.replace(first, last - first, with.str());
}

std::string pathOfUri(llvm::StringRef uri) {
  if (!uri.startswith(kFileScheme))
    return uri.str();
  llvm::StringRef rest = uri.drop_front(kFileScheme.size());
  rest = rest.drop_until([](char c) { return c == '/'; }); // skips the authority (host name)
  std::string path;
  while (!rest.empty()) {
    if (rest.front() == '%' && rest.size() >= 3 && llvm::isHexDigit(rest[1]) &&
        llvm::isHexDigit(rest[2])) {
      path += static_cast<char>(llvm::hexFromNibbles(rest[1], rest[2]));
      rest = rest.drop_front(3);
    } else {
      path += rest.front();
      rest = rest.drop_front();
    }
  }
  return path;
}

std::string uriOfPath(llvm::StringRef path) {
  bool isOther = path.take_front(32).contains(':') || path.startswith("<");
  if (isOther)
    return path.str();
  llvm::SmallString<256> absolute = path;
  (void)llvm::sys::fs::make_absolute(absolute); // on failure, `absolute` stays relative
  std::string uri = kFileScheme.str();
  for (char c : absolute) {
    bool isPlain = llvm::isAlnum(c) || llvm::StringRef("-._~/").contains(c);
    auto byte = static_cast<uint8_t>(c);
    if (isPlain)
      uri += c;
    else
      uri += {'%', llvm::hexdigit(byte >> 4), llvm::hexdigit(byte & 15)};
  }
  return uri;
}

} // namespace shardc::lsp
