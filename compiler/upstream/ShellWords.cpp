#include "compiler/upstream/ShellWords.h"

#include "llvm/Support/ConvertUTF.h"

namespace shardc::upstream {
namespace {

void appendText(ShellWord &word, llvm::StringRef text, bool quoted) {
  bool joins = !word.parts.empty() && word.parts.back().kind == ShellPart::Kind::Text &&
               word.parts.back().quoted == quoted;
  if (!joins) {
    word.parts.push_back({});
    word.parts.back().quoted = quoted;
  }
  word.parts.back().text += text.str();
}

/// Whether the parts from `first` on are `"${NAME[@]}"` and nothing else: such quotes make no word
/// where the array is empty, as others do.
bool isListAlone(const ShellWord &word, size_t first) {
  if (first == word.parts.size())
    return false;
  for (size_t i = first; i < word.parts.size(); ++i) {
    const ShellPart &part = word.parts[i];
    bool isList = part.kind == ShellPart::Kind::Variable && part.op.empty() &&
                  (part.index == "@" || part.name == "@");
    if (!isList)
      return false;
  }
  return true;
}

void addCommand(ShellWord &word, llvm::StringRef text) {
  word.parts.push_back({});
  word.parts.back().kind = ShellPart::Kind::Command;
  word.parts.back().text = text.str();
}

} // namespace

ShellWord ShellWordReader::readQuotedText() {
  ShellWord word;
  size_t begin = at_;
  while (!failed_ && at_ < text_.size())
    readQuotedPart(word, '\0');
  word.range = range(begin);
  return word;
}

ShellWord ShellWordReader::readWord() {
  ShellWord word;
  size_t begin = at_;
  while (!atEnd() && !endsWord(peek())) {
    char c = peek();
    if (c == '\\')
      readEscape(word);
    else if (c == '\'')
      readSingleQuotes(word);
    else if (c == '"')
      readDoubleQuotes(word);
    else if (c == '`')
      readBackquotes(word);
    else if (c == '$')
      readDollar(word, /*quoted=*/false);
    else
      addText(word, c, /*quoted=*/false);
  }
  word.range = range(begin);
  return word;
}

void ShellWordReader::addText(ShellWord &word, char c, bool quoted) {
  appendText(word, llvm::StringRef(&c, 1), quoted);
  ++at_;
}

void ShellWordReader::readEscape(ShellWord &word) {
  ++at_;
  if (consume("\n") || consume("\r\n") || atEnd())
    return;
  addText(word, peek(), /*quoted=*/true);
}

void ShellWordReader::readSingleQuotes(ShellWord &word) {
  size_t end = text_.find('\'', at_ + 1);
  if (end == llvm::StringRef::npos)
    return fail("a quote is not closed");
  appendText(word, text_.slice(at_ + 1, end), /*quoted=*/true);
  at_ = end + 1;
}

/// `$'...'`, with the escapes of C.
void ShellWordReader::readAnsiQuotes(ShellWord &word) {
  size_t open = at_;
  at_ += 2;
  std::string text;
  while (at_ < text_.size() && peek() != '\'') {
    if (peek() == '\\' && at_ + 1 < text_.size())
      readAnsiEscape(text);
    else
      text += text_[at_++];
  }
  if (!consume("'")) {
    at_ = open;
    return fail("a quote is not closed");
  }
  // A byte of zero ends the text, as strings of the shell end there.
  appendText(word, llvm::StringRef(text).split('\0').first, /*quoted=*/true);
}

/// The value of up to `digitsMax` digits.
uint32_t ShellWordReader::readDigits(unsigned base, unsigned digitsMax) {
  uint32_t value = 0;
  for (unsigned i = 0; i < digitsMax; ++i, ++at_) {
    unsigned digit = llvm::hexDigitValue(peek());
    if (digit >= base)
      break;
    value = value * base + digit;
  }
  return value;
}

void ShellWordReader::readAnsiEscape(std::string &text) {
  constexpr llvm::StringLiteral kLetters = "abeEfnrtv\\'\"?";
  constexpr llvm::StringLiteral kMeanings = "\a\b\x1b\x1b\f\n\r\t\v\\'\"?";
  char letter = peek(1);
  if (size_t which = kLetters.find(letter); which != llvm::StringRef::npos) {
    at_ += 2;
    text += kMeanings[which];
    return;
  }
  if (letter >= '0' && letter <= '7') {
    ++at_;
    text += static_cast<char>(readDigits(8, 3));
    return;
  }
  bool isHex = llvm::hexDigitValue(peek(2)) < 16;
  if (letter == 'x' && isHex) {
    at_ += 2;
    text += static_cast<char>(readDigits(16, 2));
  } else if ((letter == 'u' || letter == 'U') && isHex) {
    at_ += 2;
    char encoded[UNI_MAX_UTF8_BYTES_PER_CODE_POINT], *end = encoded;
    if (llvm::ConvertCodePointToUTF8(readDigits(16, letter == 'u' ? 4 : 8), end))
      text.append(encoded, end);
  } else if (letter == 'c' && at_ + 2 < text_.size()) {
    text += static_cast<char>(peek(2) == '?' ? 0x7f : peek(2) & 0x1f);
    at_ += 3;
  } else { // no escape: both characters stay
    text += {'\\', letter};
    at_ += 2;
  }
}

void ShellWordReader::readDoubleQuotes(ShellWord &word) {
  size_t open = at_++, first = word.parts.size();
  while (!failed_ && at_ < text_.size() && peek() != '"')
    readQuotedPart(word, '"');
  if (!failed_ && !consume("\"")) {
    at_ = open;
    fail("a quote is not closed");
  }
  if (!isListAlone(word, first))
    appendText(word, "", /*quoted=*/true);
}

/// One character or expansion between double quotes, or in a here-document.
void ShellWordReader::readQuotedPart(ShellWord &word, char quote) {
  char c = peek();
  if (c == '\\') {
    char next = peek(1);
    bool isEscape = next == '$' || next == '`' || next == '\\' || (quote != '\0' && next == quote);
    if (next == '\n') {
      at_ += 2;
    } else if (isEscape) {
      ++at_;
      addText(word, peek(), /*quoted=*/true);
    } else {
      addText(word, c, /*quoted=*/true);
    }
  } else if (c == '$') {
    readDollar(word, /*quoted=*/true);
  } else if (c == '`' && quote != '\0') {
    readBackquotes(word);
  } else {
    addText(word, c, /*quoted=*/true);
  }
}

void ShellWordReader::readBackquotes(ShellWord &word) {
  size_t end = text_.find('`', at_ + 1);
  if (end == llvm::StringRef::npos)
    return fail("a quote is not closed");
  addCommand(word, text_.slice(at_ + 1, end));
  at_ = end + 1;
}

void ShellWordReader::readDollar(ShellWord &word, bool quoted) {
  char next = peek(1);
  if (next == '\'' && !quoted)
    return readAnsiQuotes(word);
  if (next == '"' && !quoted) { // to be translated, for which nothing is known here
    ++at_;
    return readDoubleQuotes(word);
  }
  if (next == '(')
    return readParenthesis(word, quoted);
  if (next == '{')
    return readBraces(word, quoted);
  size_t end = at_ + 1;
  if (isNameStart(next))
    while (end < text_.size() && isNameChar(text_[end]))
      ++end;
  else if (llvm::isDigit(next) || next == '@' || next == '*' || next == '#' || next == '?' ||
           next == '$')
    ++end;
  if (end == at_ + 1)
    return addText(word, '$', quoted);
  word.parts.push_back({});
  ShellPart &part = word.parts.back();
  part.kind = ShellPart::Kind::Variable;
  part.quoted = quoted;
  part.name = text_.slice(at_ + 1, end).str();
  at_ = end;
}

/// `$((...))` and `$(...)`: the text up to the bracket that closes it.
void ShellWordReader::readParenthesis(ShellWord &word, bool quoted) {
  size_t begin = at_;
  bool isArithmetic = peek(2) == '(';
  unsigned open = 0;
  size_t end = at_ + 1;
  do {
    char c = text_[end];
    open += c == '(' ? 1 : 0;
    open -= c == ')' ? 1 : 0;
    ++end;
  } while (open > 0 && end < text_.size());
  if (open > 0)
    return fail("a bracket is not closed");
  llvm::StringRef inner = text_.slice(begin + 2, end - 1);
  at_ = end;
  addCommand(word, inner);
  word.parts.back().quoted = quoted;
  if (isArithmetic && inner.startswith("(") && inner.endswith(")")) {
    word.parts.back().kind = ShellPart::Kind::Arithmetic;
    word.parts.back().text = inner.drop_front().drop_back().str();
  }
}

void ShellWordReader::readBraces(ShellWord &word, bool quoted) {
  size_t open = at_;
  if (!enter())
    return;
  at_ += 2;
  ShellPart part;
  part.kind = ShellPart::Kind::Variable;
  part.quoted = quoted;
  if (peek() == '#' && peek(1) != '}') {
    part.op = "#";
    ++at_;
  }
  size_t begin = at_;
  if (llvm::isDigit(peek()) || peek() == '@' || peek() == '*' || peek() == '#')
    ++at_;
  else
    while (isNameChar(peek()))
      ++at_;
  part.name = text_.slice(begin, at_).str();
  if (consume("[")) {
    size_t close = std::min(text_.find(']', at_), text_.size());
    part.index = text_.slice(at_, close).str();
    at_ = std::min(close + 1, text_.size());
  }
  if (peek() != '}')
    readBraceOperator(part, quoted);
  --depth_;
  if (failed_)
    return;
  if (!consume("}")) {
    at_ = open;
    return fail("a brace is not closed");
  }
  word.parts.push_back(std::move(part));
}

std::optional<llvm::StringRef> ShellWordReader::peekSubscript(size_t offset) const {
  llvm::StringRef rest = text_.substr(offset);
  if (!rest.startswith("["))
    return std::nullopt;
  size_t close = rest.find_first_of("]\n");
  if (close == llvm::StringRef::npos || rest[close] != ']')
    return std::nullopt;
  llvm::StringRef behind = rest.substr(close + 1);
  if (!behind.startswith("=") && !behind.startswith("+="))
    return std::nullopt;
  return rest.slice(1, close);
}

void ShellWordReader::readBraceOperator(ShellPart &part, bool quoted) {
  for (llvm::StringRef op : {":-", ":=", ":+", ":?", "-", "=", "+", "?"})
    if (part.op.empty() && consume(op))
      part.op = op.str();
  if (part.op.empty())
    part.op = "foreign";
  auto argument = std::make_shared<ShellWord>();
  size_t begin = at_;
  readBraceArgument(*argument, quoted);
  argument->range = range(begin);
  part.argument = std::move(argument);
}

/// Up to the brace that closes it. Between double quotes, single ones are text.
void ShellWordReader::readBraceArgument(ShellWord &argument, bool quoted) {
  while (!atEnd() && peek() != '}') {
    char c = peek();
    if (c == '"') {
      readDoubleQuotes(argument);
    } else if (quoted && c == '\\' && peek(1) == '}') {
      ++at_;
      addText(argument, '}', /*quoted=*/true);
    } else if (quoted) {
      readQuotedPart(argument, '"');
    } else if (c == '\\') {
      readEscape(argument);
    } else if (c == '\'') {
      readSingleQuotes(argument);
    } else if (c == '`') {
      readBackquotes(argument);
    } else if (c == '$') {
      readDollar(argument, /*quoted=*/false);
    } else {
      addText(argument, c, /*quoted=*/false);
    }
  }
}

ShellWord parseShellQuoted(const ShellText &text, DiagEngine &diags, unsigned depth) {
  return ShellWordReader(text, diags, depth).readQuotedText();
}

} // namespace shardc::upstream
