#include "compiler/upstream/JsonPlace.h"

#include <algorithm>

namespace shardc::upstream {
namespace {

constexpr unsigned kDepthMax = 200;

class Finder {
public:
  explicit Finder(llvm::StringRef text) : text_(text) {}

  std::optional<JsonPlace> find(llvm::StringRef name) {
    skipBlanks();
    if (!readObject(name, /*depth=*/0))
      return std::nullopt;
    return found_;
  }

private:
  void skipBlanks() {
    while (at_ < text_.size() && llvm::StringRef(" \t\r\n").contains(text_[at_]))
      ++at_;
  }
  bool take(char c) {
    skipBlanks();
    bool isThere = at_ < text_.size() && text_[at_] == c;
    at_ += isThere ? 1 : 0;
    return isThere;
  }

  /// Reads a string from its opening quote to after its closing quote.
  bool readString() {
    if (!take('"'))
      return false;
    while (at_ < text_.size() && text_[at_] != '"')
      at_ += text_[at_] == '\\' ? 2 : 1;
    return at_++ < text_.size();
  }

  /// Reads the entries of an object and stores the location of the entry `name`; an empty name
  /// matches no entry.
  bool readObject(llvm::StringRef name, unsigned depth) {
    if (!take('{'))
      return false;
    if (take('}'))
      return true;
    do {
      skipBlanks();
      size_t begin = at_;
      if (!readString())
        return false;
      JsonPlace place;
      place.key = {begin, at_};
      llvm::StringRef key = text_.slice(begin + 1, at_ - 1);
      if (!take(':'))
        return false;
      skipBlanks();
      place.value.first = at_;
      auto [outer, rest] = name.split('.');
      if (!readValue(key == outer ? rest : "", depth + 1))
        return false;
      place.value.second = at_;
      if (!name.empty() && key == name)
        found_ = place;
    } while (take(','));
    return take('}');
  }

  bool readValue(llvm::StringRef name, unsigned depth) {
    if (at_ >= text_.size() || depth > kDepthMax)
      return false;
    if (text_[at_] == '{')
      return readObject(name, depth);
    if (text_[at_] == '"')
      return readString();
    if (text_[at_] != '[') {
      at_ = std::min(text_.find_first_of(" \t\r\n,]}", at_), text_.size());
      return true;
    }
    ++at_;
    if (take(']'))
      return true;
    do {
      skipBlanks();
      if (!readValue("", depth + 1))
        return false;
    } while (take(','));
    return take(']');
  }

  llvm::StringRef text_;
  size_t at_ = 0;
  std::optional<JsonPlace> found_;
};

} // namespace

std::optional<JsonPlace> findJsonField(llvm::StringRef text, llvm::StringRef name) {
  return Finder(text).find(name);
}

} // namespace shardc::upstream
