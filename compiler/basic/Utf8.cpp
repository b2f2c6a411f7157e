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
  forEachSequence(text, [&](llvm::StringRef sequence, size_t) {
    bool isKept = controlLength(sequence) == 0 || (keepTabs && sequence == "\t");
    out += isKept ? sequence.str() : "?";
  });
  return out;
}

} // namespace shardc
