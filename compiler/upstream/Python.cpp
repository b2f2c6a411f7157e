#include "compiler/upstream/Python.h"

#include "llvm/ADT/STLExtras.h"
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

  std::vector<PythonStatement> readText() {
    std::vector<PythonStatement> out;
    while (at_ < text_.size()) {
      skipLineSpace();
      if (at_ < text_.size() && !skipDocumentation())
        out.push_back(readStatement());
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

  bool skipDocumentation() {
    bool isText = text_.substr(at_).startswith("\"\"\"") || text_.substr(at_).startswith("'''");
    if (isText)
      skipStatement(at_);
    return isText;
  }

  /// Blanks before the statement's line; one more behind the head of a block in the same line.
  unsigned indentHere() const {
    size_t line = text_.rfind('\n', at_) + 1; // npos + 1 is the begin
    size_t first = text_.find_first_not_of(" \t", line);
    return static_cast<unsigned>(first - line) + (line == headLine_ && headEnd_ <= at_ ? 1 : 0);
  }

  PythonStatement readStatement() {
    PythonStatement statement;
    statement.indent = indentHere();
    size_t begin = at_;
    if (isBlock()) {
      statement.kind = PythonStatement::Kind::Block;
      headLine_ = text_.rfind('\n', at_) + 1;
      skipStatement(begin, ':');
      consume(':');
      headEnd_ = at_;
    } else if (bool isExact = true; readTargets(statement.targets, isExact)) {
      statement.kind = PythonStatement::Kind::Assignment;
      statement.value = readAssigned(isExact);
    } else {
      skipStatement(begin);
    }
    statement.text = text_.slice(begin, at_).rtrim().str();
    statement.range = range(begin);
    return statement;
  }

  llvm::StringRef wordHere() const {
    size_t end = at_;
    while (end < text_.size() && isNameChar(text_[end]))
      ++end;
    return text_.slice(at_, end);
  }

  bool isBlock() const {
    constexpr llvm::StringLiteral kHeads[] = {"if",    "elif",  "else",    "for", "while",
                                              "with",  "try",   "except",  "def", "class",
                                              "async", "match", "finally", "case"};
    llvm::StringRef word = wordHere();
    if (!llvm::is_contained(kHeads, word))
      return false;
    char next = at_ + word.size() < text_.size() ? text_[at_ + word.size()] : ' ';
    return next == ' ' || next == ':' || next == '(' || next == '\t';
  }

  /// `a = b =`, `a, b =`, `a[0] =`, `a +=`, `return`. `isExact` is false where the targets get
  /// something else than the value that follows.
  bool readTargets(std::vector<std::string> &targets, bool &isExact) {
    if (wordHere() == "return") {
      at_ += wordHere().size();
      targets = {"return"};
      return true;
    }
    size_t begin = at_, end = at_; // behind the last `=`
    std::vector<std::string> names;
    bool isPart = false;
    while (std::optional<std::string> name = readTarget(isPart)) {
      names.push_back(std::move(*name));
      skipSpace();
      skipAnnotation();
      if (consume(',')) {
        skipSpace();
        continue;
      }
      bool changes = peek() != '\0' && llvm::StringRef("+-*/%|&@").contains(peek());
      if (changes)
        at_ += peek() == peek(1) ? 2 : 1;
      if (peek() != '=' || peek(1) == '=')
        break;
      end = ++at_;
      isExact &= !changes && !isPart && names.size() == 1;
      targets.insert(targets.end(), names.begin(), names.end());
      names.clear();
      skipSpace();
    }
    at_ = end;
    return end != begin;
  }

  /// What is assigned; null where it is not a literal, name or call.
  TreePtr readAssigned(bool isExact) {
    skipSpace();
    size_t begin = at_;
    failed_ = false;
    TreePtr value = readValue();
    skipSpace();
    skipComment();
    bool isEnd = at_ >= text_.size() || peek() == '\n' || peek() == ';' || endsInComma();
    if (isExact && isEnd && !failed_)
      return value;
    failed_ = false;
    skipStatement(begin);
    return nullptr;
  }

  /// A comma as between arguments: at the end of the line, or before another `name=`.
  bool endsInComma() {
    size_t begin = at_;
    if (!consume(','))
      return false;
    skipSpace();
    skipComment();
    size_t behind = at_;
    std::vector<std::string> targets;
    bool isExact = true;
    bool isEnd = at_ >= text_.size() || peek() == '\n' || readTargets(targets, isExact);
    at_ = isEnd ? behind : begin;
    return isEnd;
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

  /// To the end of a statement that is not understood, outside of brackets and texts: the line's,
  /// or the sign.
  void skipStatement(size_t begin, char sign = '\n') {
    at_ = begin;
    int open = 0;
    while (at_ < text_.size() && ((peek() != '\n' && peek() != sign) || open > 0)) {
      char c = peek();
      open += c == '(' || c == '[' || c == '{' ? 1 : 0;
      open -= c == ')' || c == ']' || c == '}' ? 1 : 0;
      std::string ignored;
      if (c == '"' || c == '\'')
        readString(ignored);
      else
        at_ += c == '\\' && peek(1) == '\n' ? 2 : 1;
    }
    failed_ = false;
    depth_ = 0;
  }

  std::optional<std::string> readTarget(bool &isPart) {
    size_t begin = at_;
    while (isNameChar(peek()) || (peek() == '.' && isNameStart(peek(1))))
      ++at_;
    std::string target = text_.slice(begin, at_).str();
    if (target.empty() || !isNameStart(target.front()))
      return std::nullopt;
    // os.environ["NAME"]
    if (peek() == '[' && (peek(1) == '"' || peek(1) == '\'')) {
      size_t close = text_.find(peek(1), at_ + 2);
      if (close == llvm::StringRef::npos || close + 1 >= text_.size() || text_[close + 1] != ']')
        return std::nullopt;
      target += "." + text_.slice(at_ + 2, close).str();
      at_ = close + 2;
    } else if (peek() == '[') {
      isPart = true;
      skipStatement(at_, ']');
      consume(']');
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
  size_t headLine_ = llvm::StringRef::npos; ///< begin of the line of the last block's head
  size_t headEnd_ = 0;
  bool failed_ = false;
};

} // namespace

std::vector<PythonStatement> readPython(llvm::StringRef text, SourceLoc begin) {
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
