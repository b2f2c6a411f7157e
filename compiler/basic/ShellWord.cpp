#include "compiler/basic/ShellWord.h"

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
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool isHigh = c == 0xc2 &&
                        i + 1 < text.size() && // U+0080 to U+009F control terminals too
                        static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c == '"' || c == '\\')
      out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c < 0x20 || c == 0x7f || isHigh)
      out += fmt::format("\\u{{{:x}}}", isHigh ? static_cast<unsigned char>(text[++i]) : c);
    else
      out += text[i];
  }
  return out + '"';
}

} // namespace shardc
