#include "compiler/upstream/Python.h"

#include "llvm/ADT/StringExtras.h"

namespace shardc::upstream {
namespace {

constexpr unsigned kPythonDepthMax = 40;
constexpr size_t kValuesMax = 200'000;

bool isNameStart(char c) { return llvm::isAlpha(c) || c == '_'; }
bool isNameChar(char c) { return llvm::isAlnum(c) || c == '_'; }

class PythonReader {
public:
  PythonReader(llvm::StringRef text, SourceLoc begin, bool isLenient)
      : text_(text), begin_(begin), isLenient_(isLenient) {}

  PythonText readText() {
    PythonText out;
    while (at_ < text_.size()) {
      skipLineSpace();
      if (at_ >= text_.size())
        break;
      readStatement(out);
    }
    return out;
  }

  TreePtr readWhole() {
    skipSpace();
    TreePtr value = readValue();
    skipSpace();
    return at_ == text_.size() && !failed_ ? value : nullptr;
  }

private:
  SourceRange range(size_t begin) const {
    if (!begin_.isValid())
      return {};
    return {SourceLoc::fromRaw(begin_.raw() + begin), SourceLoc::fromRaw(begin_.raw() + at_)};
  }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool consume(char c) {
    if (peek() != c || at_ >= text_.size())
      return false;
    ++at_;
    return true;
  }
  void skipComment() {
    if (peek() == '#')
      at_ = std::min(text_.find('\n', at_), text_.size());
  }
  /// Blank lines, comments, indentation and the fences of quoted code.
  void skipLineSpace() {
    while (at_ < text_.size()) {
      skipComment();
      bool isFence = text_.substr(at_).startswith("```");
      if (isFence)
        at_ = std::min(text_.find('\n', at_), text_.size());
      else if (llvm::isSpace(peek()) || peek() == ';')
        ++at_;
      else if (peek() != '#')
        return;
    }
  }
  /// Inside of brackets line breaks are blanks.
  void skipSpace() {
    while (at_ < text_.size()) {
      if (peek() == '#' && depth_ > 0)
        skipComment();
      else if (peek() == ' ' || peek() == '\t' || peek() == '\r' || (peek() == '\n' && depth_ > 0))
        ++at_;
      else if (peek() == '\\' && (peek(1) == '\n'))
        at_ += 2;
      else
        return;
    }
  }

  void readStatement(PythonText &out) {
    size_t begin = at_;
    std::string target = readTarget();
    skipSpace();
    skipAnnotation();
    bool isAssignment = !target.empty() && peek() == '=' && peek(1) != '=';
    if (isAssignment) {
      ++at_;
      skipSpace();
      size_t valueBegin = at_;
      failed_ = false;
      TreePtr value = readValue();
      skipSpace();
      skipComment();
      bool isEnd = at_ >= text_.size() || peek() == '\n' || peek() == ';' || peek() == ',';
      if (!isEnd || failed_)
        value = nullptr;
      if (value == nullptr)
        skipStatement(valueBegin);
      else
        consume(',');
      out.assignments.push_back({std::move(target), std::move(value), range(begin)});
      return;
    }
    skipStatement(begin);
    out.others.push_back({text_.slice(begin, at_).rtrim().str(), range(begin)});
  }

  /// `: int` between a target and its value.
  void skipAnnotation() {
    if (peek() != ':')
      return;
    size_t end = at_;
    while (end < text_.size() && text_[end] != '=' && text_[end] != '\n')
      ++end;
    if (end < text_.size() && text_[end] == '=')
      at_ = end;
  }

  /// To the end of a statement that is not understood: the line's, or that of brackets it opens.
  void skipStatement(size_t begin) {
    at_ = begin;
    int open = 0;
    while (at_ < text_.size() && (peek() != '\n' || open > 0)) {
      char c = peek();
      open += c == '(' || c == '[' || c == '{' ? 1 : 0;
      open -= c == ')' || c == ']' || c == '}' ? 1 : 0;
      ++at_;
    }
    depth_ = 0;
  }

  std::string readTarget() {
    size_t begin = at_;
    while (isNameChar(peek()) || (peek() == '.' && isNameStart(peek(1))))
      ++at_;
    std::string target = text_.slice(begin, at_).str();
    if (target.empty() || !isNameStart(target.front()))
      return {};
    // os.environ["NAME"]
    if (peek() == '[' && (peek(1) == '"' || peek(1) == '\'')) {
      size_t close = text_.find(peek(1), at_ + 2);
      if (close == llvm::StringRef::npos || close + 1 >= text_.size() || text_[close + 1] != ']')
        return {};
      target += "." + text_.slice(at_ + 2, close).str();
      at_ = close + 2;
    }
    return target;
  }

  TreePtr fail() {
    failed_ = true;
    return nullptr;
  }

  TreePtr readValue() {
    if (++numValues_ > kValuesMax || depth_ > kPythonDepthMax)
      return fail();
    char c = peek();
    if (c == '\'' || c == '"')
      return readStrings();
    if (c == '[' || c == '(')
      return readList(c == '[' ? ']' : ')');
    if (c == '{')
      return readMap();
    if (isLenient_)
      return readLenientWord();
    if (isNameStart(c) || llvm::isDigit(c) || c == '-' || c == '+' || c == '.')
      return readWord();
    return fail();
  }

  /// Literals side by side are one.
  TreePtr readStrings() {
    size_t begin = at_;
    std::string text;
    while ((peek() == '\'' || peek() == '"') && !failed_) {
      readString(text);
      size_t behind = at_;
      skipSpace();
      if (peek() != '\'' && peek() != '"')
        at_ = behind;
    }
    return failed_ ? nullptr : makeText(text, range(begin));
  }

  void readString(std::string &out) {
    char quote = peek();
    bool isLong = text_.substr(at_).startswith(std::string(3, quote));
    std::string end(isLong ? 3 : 1, quote);
    at_ += end.size();
    while (at_ < text_.size() && !text_.substr(at_).startswith(end)) {
      if (peek() == '\n' && !isLong) {
        failed_ = true;
        return;
      }
      if (peek() == '\\' && (peek(1) == '\\' || peek(1) == quote))
        ++at_;
      out += text_[at_++];
    }
    if (at_ >= text_.size())
      failed_ = true;
    at_ = std::min(at_ + end.size(), text_.size());
  }

  TreePtr readList(char close) {
    auto list = std::make_shared<Tree>();
    list->kind = Tree::Kind::List;
    size_t begin = at_++;
    ++depth_;
    bool hasComma = false;
    skipSpace();
    while (!failed_ && !consume(close)) {
      TreePtr item = readValue();
      if (item == nullptr)
        return fail();
      list->items.push_back(std::move(item));
      skipSpace();
      if (consume(','))
        hasComma = true;
      else if (peek() != close)
        return fail();
      skipSpace();
    }
    --depth_;
    list->range = range(begin);
    // Brackets around one value group it, as `(1)` does.
    if (close == ')' && list->items.size() == 1 && !hasComma)
      return list->items.front();
    return list;
  }

  TreePtr readMap() {
    auto map = std::make_shared<Tree>();
    map->kind = Tree::Kind::Map;
    size_t begin = at_++;
    ++depth_;
    skipSpace();
    while (!failed_ && !consume('}')) {
      TreePtr key = isLenient_ && peek() != '"' && peek() != '\'' ? readLenientWord() : readValue();
      skipSpace();
      if (key == nullptr || !key->isWord() || !consume(':'))
        return fail();
      skipSpace();
      TreePtr value = readValue();
      if (value == nullptr)
        return fail();
      map->entries.emplace_back(key->text, std::move(value));
      skipSpace();
      if (!consume(',') && peek() != '}')
        return fail();
      skipSpace();
    }
    --depth_;
    map->range = range(begin);
    return map;
  }

  /// Anything up to the end of an element, as Hydra's overrides are written.
  TreePtr readLenientWord() {
    size_t begin = at_;
    while (at_ < text_.size() && peek() != ',' && peek() != ']' && peek() != '}' && peek() != ')' &&
           peek() != ':' && (depth_ == 0 || peek() != '\n'))
      ++at_;
    // Outside of brackets, commas and colons are part of the text.
    if (depth_ == 0)
      at_ = text_.size();
    return makeScalar(text_.slice(begin, at_).trim(), range(begin));
  }

  /// A number, a name, or a call.
  TreePtr readWord() {
    size_t begin = at_;
    if (isNameStart(peek()))
      return readName();
    ++at_;
    while (isNameChar(peek()) || peek() == '.' ||
           ((peek() == '-' || peek() == '+') && llvm::toLower(text_[at_ - 1]) == 'e'))
      ++at_;
    TreePtr value = makeScalar(text_.slice(begin, at_), range(begin));
    return value->isWord() ? fail() : value;
  }

  TreePtr readName() {
    size_t begin = at_;
    while (isNameChar(peek()) || (peek() == '.' && isNameStart(peek(1))))
      ++at_;
    llvm::StringRef name = text_.slice(begin, at_);
    if (name == "True" || name == "False" || name == "None" || name == "true" || name == "false" ||
        name == "null")
      return makeScalar(name, range(begin));
    if (peek() != '(')
      return makeText(name, range(begin), Tree::Kind::Name);
    return readCall(begin, name);
  }

  TreePtr readCall(size_t begin, llvm::StringRef name) {
    auto map = std::make_shared<Tree>();
    map->kind = Tree::Kind::Map;
    map->call = name.str();
    ++at_;
    ++depth_;
    skipSpace();
    while (!failed_ && !consume(')')) {
      if (!readArgument(*map))
        return fail();
      skipSpace();
      if (!consume(',') && peek() != ')')
        return fail();
      skipSpace();
    }
    --depth_;
    map->range = range(begin);
    return map;
  }

  bool readArgument(Tree &map) {
    size_t begin = at_;
    while (isNameChar(peek()))
      ++at_;
    std::string key = text_.slice(begin, at_).str();
    skipSpace();
    bool isKeyword = !key.empty() && isNameStart(key.front()) && peek() == '=' && peek(1) != '=';
    if (!isKeyword)
      at_ = begin;
    else
      ++at_;
    skipSpace();
    TreePtr value = readValue();
    if (value == nullptr)
      return false;
    if (isKeyword)
      map.entries.emplace_back(std::move(key), std::move(value));
    else
      map.items.push_back(std::move(value));
    return true;
  }

  llvm::StringRef text_;
  SourceLoc begin_;
  bool isLenient_;
  size_t at_ = 0;
  unsigned depth_ = 0;
  size_t numValues_ = 0;
  bool failed_ = false;
};

} // namespace

PythonText readPython(llvm::StringRef text, SourceLoc begin) {
  return PythonReader(text, begin, /*isLenient=*/false).readText();
}

TreePtr readPythonValue(llvm::StringRef text, SourceLoc begin) {
  return PythonReader(text, begin, /*isLenient=*/false).readWhole();
}

TreePtr readOverrideValue(llvm::StringRef text, SourceRange range) {
  TreePtr value = PythonReader(text, SourceLoc(), /*isLenient=*/true).readWhole();
  if (value == nullptr)
    return makeText(text, range);
  auto placed = std::make_shared<Tree>(*value);
  placed->range = range;
  return placed;
}

} // namespace shardc::upstream
