#include "compiler/basic/Utf8.h"

namespace shardc {

namespace {

/// Calls `each` with every UTF-8 sequence of the text. `length` is 0 for an ill-formed byte.
template <typename Function> void forEachSequence(llvm::StringRef text, Function each) {
  while (!text.empty()) {
    size_t length = utf8Length(text);
    each(text.take_front(length ? length : 1), length);
    text = text.drop_front(length ? length : 1);
  }
}

} // namespace

size_t countCodePoints(llvm::StringRef text) {
  size_t count = 0;
  forEachSequence(text, [&](llvm::StringRef, size_t) { ++count; });
  return count;
}

size_t countUtf16Units(llvm::StringRef text) {
  size_t count = 0;
  forEachSequence(text, [&](llvm::StringRef, size_t length) { count += length == 4 ? 2 : 1; });
  return count;
}

std::string printable(llvm::StringRef text, bool keepTabs) {
  std::string out;
  out.reserve(text.size());
  forEachSequence(text, [&](llvm::StringRef sequence, size_t length) {
    uint8_t first = static_cast<uint8_t>(sequence[0]);
    bool isC1Control = length == 2 && first == 0xC2 && static_cast<uint8_t>(sequence[1]) < 0xA0;
    bool isControl = (length == 1 && (first < 0x20 || first == 0x7F)) || isC1Control;
    if (first == '\t' && keepTabs)
      out += '\t';
    else if (length == 0 || isControl)
      out += '?';
    else
      out.append(sequence.data(), sequence.size());
  });
  return out;
}

bool appendUtf8(std::string &out, uint32_t codePoint) {
  auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (codePoint > 0x10FFFF || (codePoint >= 0xD800 && codePoint <= 0xDFFF))
    return false;
  if (codePoint < 0x80) {
    put(codePoint);
  } else if (codePoint < 0x800) {
    put(0xC0 | codePoint >> 6);
    put(0x80 | (codePoint & 0x3F));
  } else if (codePoint < 0x10000) {
    put(0xE0 | codePoint >> 12);
    put(0x80 | (codePoint >> 6 & 0x3F));
    put(0x80 | (codePoint & 0x3F));
  } else {
    put(0xF0 | codePoint >> 18);
    put(0x80 | (codePoint >> 12 & 0x3F));
    put(0x80 | (codePoint >> 6 & 0x3F));
    put(0x80 | (codePoint & 0x3F));
  }
  return true;
}

} // namespace shardc
