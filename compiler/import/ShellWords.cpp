#include "compiler/import/ShellWords.h"

namespace shardc::importer {
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

void ShellWordReader::readDoubleQuotes(ShellWord &word) {
  size_t open = at_++;
  appendText(word, "", /*quoted=*/true);
  while (!failed_ && at_ < text_.size() && peek() != '"')
    readQuotedPart(word, '"');
  if (!failed_ && !consume("\"")) {
    at_ = open;
    fail("a quote is not closed");
  }
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

void ShellWordReader::readBraceOperator(ShellPart &part, bool quoted) {
  for (llvm::StringRef op : {":-", ":=", ":+", ":?", "-", "=", "+", "?"})
    if (part.op.empty() && consume(op))
      part.op = op.str();
  if (part.op.empty())
    part.op = "foreign";
  auto argument = std::make_shared<ShellWord>();
  size_t begin = at_;
  while (!atEnd() && peek() != '}') {
    char c = peek();
    if (c == '"' && !quoted)
      readDoubleQuotes(*argument);
    else if (c == '"')
      ++at_;
    else if (c == '\'' && !quoted)
      readSingleQuotes(*argument);
    else
      readQuotedPart(*argument, '"');
  }
  argument->range = range(begin);
  part.argument = std::move(argument);
}

ShellWord parseShellQuoted(const ShellText &text, DiagEngine &diags, unsigned depth) {
  return ShellWordReader(text, diags, depth).readQuotedText();
}

} // namespace shardc::importer
