#include "compiler/basic/ShellWord.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/base/Utf8.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc {

std::string shellQuoted(llvm::StringRef text) {
  bool isPlain = !text.empty() && llvm::all_of(text, [](char c) {
    return llvm::isAlnum(c) || llvm::StringRef("_-./+,:=@%").contains(c);
  });
  if (isPlain)
    return text.str();
  // A terminal that shows the word, such as that of an export, must not obey its control
  // characters.
  if (std::string escaped = escapeControls(text.str(), "\n\t"); escaped != text) {
    std::string out = "$'";
    for (char c : text)
      out += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
    return escapeControls(out + "'", "\n\t");
  }
  std::string out = "'";
  for (char c : text)
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string recipeQuoted(llvm::StringRef text) {
  std::string out = "\"";
  while (!text.empty()) {
    const char c = text.front();
    const size_t length = controlLength(text);
    if (c == '"' || c == '\\')
      out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (length > 0 && isUtf8(text.take_front(length)))
      out += fmt::format("\\u{{{:x}}}", codePointAt(text));
    else
      out += c;
    text = text.drop_front(std::max<size_t>(length, 1));
  }
  return out + '"';
}

} // namespace shardc
