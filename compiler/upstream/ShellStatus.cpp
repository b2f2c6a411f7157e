#include "compiler/upstream/ShellStatus.h"

#include <functional>
#include <span>

#include "llvm/Support/GlobPattern.h"

namespace shardc::upstream {
namespace {

struct TestWord {
  std::string text;   ///< after expansion, without marks
  bool isBare = true; ///< stands so in the script: may be an operator of `[[`
};

using Words = std::span<const TestWord>;
using ArithmeticValue = std::function<std::optional<int64_t>(llvm::StringRef)>;

/// Nothing for patterns with lists of characters.
std::optional<bool> matchesWord(llvm::StringRef pattern, llvm::StringRef text) {
  if (pattern.find_first_of("[\\(") != llvm::StringRef::npos)
    return std::nullopt;
  llvm::Expected<llvm::GlobPattern> glob = llvm::GlobPattern::create(pattern);
  if (!glob) {
    llvm::consumeError(glob.takeError());
    return std::nullopt;
  }
  return glob->match(text);
}

/// `[[` has arithmetic, `[` decimal numbers alone.
class Test {
public:
  explicit Test(const ArithmeticValue &evaluate) : evaluate_(evaluate) {}

  /// `||` binds less than `&&`. What is behind a part that decides does not matter.
  std::optional<bool> of(Words words) const {
    for (llvm::StringRef op : {"||", "&&"})
      if (size_t at = find(words, op); at < words.size()) {
        std::optional<bool> left = of(words.first(at));
        bool decides = op == "||";
        return left && *left != decides ? of(words.subspan(at + 1)) : left;
      }
    return term(words);
  }

private:
  size_t find(Words words, llvm::StringRef op) const {
    size_t at = 0;
    while (at < words.size() && !isOperator(words[at], op))
      ++at;
    return at;
  }

  bool isDouble() const { return evaluate_ != nullptr; }
  bool isOperator(const TestWord &word, llvm::StringRef op) const {
    return word.text == op && (word.isBare || !isDouble()) &&
           (isDouble() || (op != "&&" && op != "||"));
  }

  std::optional<bool> term(Words words) const {
    if (words.size() > 1 && isOperator(words[0], "!")) {
      if (words.size() == 3 && comparesText(words[1].text)) // `[ ! = x ]`
        return std::nullopt;
      std::optional<bool> rest = term(words.subspan(1));
      return rest ? std::optional(!*rest) : std::nullopt;
    }
    switch (words.size()) {
    case 0:
      return isDouble() ? std::nullopt : std::optional(false);
    case 1:
      return !words[0].text.empty();
    case 2:
      for (llvm::StringRef op : {"-n", "-z"})
        if (isOperator(words[0], op))
          return words[1].text.empty() == (op == "-z");
      return std::nullopt;
    case 3:
      return compare(words[0].text, words[1], words[2]);
    default:
      return std::nullopt;
    }
  }

  static bool comparesText(llvm::StringRef op) { return op == "=" || op == "==" || op == "!="; }

  std::optional<bool> compare(llvm::StringRef left, const TestWord &op,
                              const TestWord &right) const {
    if (isDouble() && !op.isBare)
      return std::nullopt;
    if (comparesText(op.text)) {
      // Between quotes a pattern is a text, which these words do not tell.
      std::optional<bool> isSame =
          isDouble() ? matchesWord(right.text, left) : std::optional(left == right.text);
      if (isDouble() && !right.isBare && right.text.find_first_of("*?\\") != std::string::npos)
        return std::nullopt;
      return isSame ? std::optional(*isSame == (op.text != "!=")) : std::nullopt;
    }
    std::optional<int64_t> a = number(left), b = number(right.text);
    if (!a || !b)
      return std::nullopt;
    return op.text == "-eq"   ? std::optional(*a == *b)
           : op.text == "-ne" ? std::optional(*a != *b)
           : op.text == "-lt" ? std::optional(*a < *b)
           : op.text == "-le" ? std::optional(*a <= *b)
           : op.text == "-gt" ? std::optional(*a > *b)
           : op.text == "-ge" ? std::optional(*a >= *b)
                              : std::nullopt;
  }

  /// `[` takes decimal numbers alone, also 08.
  std::optional<int64_t> number(llvm::StringRef text) const {
    if (isDouble())
      return evaluate_(text);
    int64_t value = 0;
    return text.getAsInteger(10, value) ? std::nullopt : std::optional(value);
  }

  const ArithmeticValue &evaluate_;
};

} // namespace

/// Blanks and continued lines.
void ShellTests::skipToWord() {
  while (!atEnd() && (isBlank(peek()) ? ++at_ > 0 : consume("\\\n") || consume("\\\r\n")))
    ;
}

std::optional<bool> ShellTests::readStatus() {
  bool isNegated = false;
  skipToWord();
  for (; peekWord() == "!"; skipToWord()) {
    ++at_;
    isNegated = !isNegated;
  }
  llvm::StringRef name = peekWord();
  if (functions_.count(name.str()) != 0 || text_.contains("nocasematch"))
    return std::nullopt;
  std::optional<bool> status;
  if (name == "true" || name == "false") {
    at_ += name.size();
    status = name == "true";
  } else if (isOneOf(name, {"[", "[[", "test"})) {
    at_ += name.size();
    status = readTest(name);
  }
  skipToWord();
  bool stands =
      atEnd() || llvm::StringRef("\n;)#").contains(peek()) || startsWith("&&") || startsWith("||");
  return stands && !failed_ && status ? std::optional(*status != isNegated) : std::nullopt;
}

std::optional<bool> ShellTests::readTest(llvm::StringRef name) {
  bool isDouble = name == "[[";
  llvm::StringRef close = isDouble ? "]]" : name == "[" ? "]" : "";
  std::vector<TestWord> words;
  changesSkipped_ = false;
  while (true) {
    skipToWord();
    while (isDouble && consume("\n"))
      skipToWord();
    if (!close.empty() && peekWord() == close) {
      at_ += close.size();
      break;
    }
    if (isDouble && (startsWith("&&") || startsWith("||"))) {
      words.push_back({text_.substr(at_, 2).str()});
      at_ += 2;
      continue;
    }
    if (atEnd() || endsWord(peek())) {
      if (!close.empty())
        return std::nullopt;
      break;
    }
    size_t begin = at_;
    std::vector<ShellValue> values = isDouble ? std::vector{readValue()} : readFields();
    for (ShellValue &value : values) {
      if (!ShellValues::isKnown(value.text))
        return std::nullopt;
      bool isBare = value.text == slice(begin);
      words.push_back({std::move(value.text), isBare});
    }
  }
  if (changesSkipped_)
    return std::nullopt;
  ArithmeticValue evaluate;
  if (isDouble)
    evaluate = [this](llvm::StringRef text) { return values_.evaluate(text); };
  return Test(evaluate).of(words);
}

std::optional<bool> ShellTests::readPattern(llvm::StringRef text) {
  size_t begin = at_;
  ShellValue pattern = readValue();
  bool isBare = slice(begin) == pattern.text;
  if (!ShellValues::isKnown(pattern.text) || text_.contains("nocasematch") ||
      (!isBare && pattern.text.find_first_of("*?[\\") != std::string::npos))
    return std::nullopt;
  return matchesWord(pattern.text, text);
}

} // namespace shardc::upstream
