#include "compiler/upstream/ShellWords.h"

namespace shardc::upstream {

void ShellWords::fail(llvm::StringRef what) {
  size_t at = std::min(at_, text_.size());
  if (!failed_)
    diags_.report(diag::ImportMalformed, range(at, at), (what + "; '--run' runs the script").str());
  failed_ = true;
}

// --- words
// ----------------------------------------------------------------------------------------

std::vector<ShellValue> ShellWords::readFields() {
  size_t begin = at_;
  Into into{.splits = true};
  readWord(into);
  std::vector<ShellValue> words;
  for (Field &field : into.fields) {
    settleField(field, /*isWord=*/true);
    if (!field.text.empty() || field.hasQuotes)
      words.push_back({std::move(field.text), field.range.isValid() ? field.range : range(begin)});
  }
  return words;
}

ShellValue ShellWords::readValue() {
  size_t begin = at_;
  Into into{.splits = false};
  readWord(into);
  settleField(into.fields.front(), /*isWord=*/false);
  return {std::move(into.fields.front().text), range(begin)};
}

/// Patterns of files, braces and `~` are the shell's to expand.
void ShellWords::settleField(Field &field, bool isWord) {
  llvm::StringRef bare = field.bare;
  bool isHome = bare.startswith("~") || bare.contains(":~");
  // `[0]*3+[1]*58`, a list of layers, and flags are the names of no files.
  bool isList = bare.startswith("--") ||
                bare.find_first_not_of("0123456789[]*+()., ") == llvm::StringRef::npos;
  bool isPattern = isWord && !isList && bare.find_first_of("*?[") != llvm::StringRef::npos;
  llvm::StringRef inner = bare.split('{').second.split('}').first;
  bool isBraces = isWord && bare.find('}', bare.find('{')) != llvm::StringRef::npos &&
                  (inner.contains(',') || inner.contains(".."));
  if (isHome || isPattern || isBraces)
    field.text = values_.markAs(values_.resolve({field.text, {}}).text, field.text);
}

void ShellWords::readWord(Into &into) {
  while (!atEnd() && !endsWord(peek()))
    readPart(into);
}

void ShellWords::readPart(Into &into) {
  char c = peek();
  if (c == '\\') {
    ++at_;
    if (consume("\n") || consume("\r\n") || atEnd())
      return;
    putText(into, text_.substr(at_, 1), /*quoted=*/true);
    ++at_;
  } else if (c == '\'') {
    size_t close = text_.slice(0, end_).find('\'', at_ + 1);
    if (close == llvm::StringRef::npos)
      return fail("a quote is not closed");
    putText(into, text_.slice(at_ + 1, close), /*quoted=*/true);
    at_ = close + 1;
  } else if (c == '"') {
    readDoubleQuotes(into);
  } else if (c == '`') {
    readQuotedPart(into, '"');
  } else if (c == '$') {
    readDollar(into, /*quoted=*/false);
  } else {
    putText(into, text_.substr(at_, 1), /*quoted=*/false);
    ++at_;
  }
}

void ShellWords::readDoubleQuotes(Into &into) {
  size_t open = at_++;
  // `"${NAME[@]}"` alone makes no word where the array is empty, as other quotes do.
  size_t close = passBrackets(open, '"', '"');
  llvm::StringRef inside = text_.slice(open + 1, close - 1);
  bool isListAlone = inside == "$@" || (inside.startswith("${") && inside.endswith("[@]}") &&
                                        !inside.drop_front(2).contains('$'));
  while (!atEnd() && peek() != '"')
    readQuotedPart(into, '"');
  if (!failed_ && !consume("\"")) {
    at_ = open;
    return fail("a quote is not closed");
  }
  if (!isListAlone)
    into.fields.back().hasQuotes = true;
}

/// One character or expansion between double quotes.
void ShellWords::readQuotedPart(Into &into, char quote) {
  char c = peek(), next = peek(1);
  if (c == '\\' && next == '\n') {
    at_ += 2;
  } else if (c == '\\' && (next == '$' || next == '`' || next == '\\' || next == quote)) {
    putText(into, text_.substr(at_ + 1, 1), /*quoted=*/true);
    at_ += 2;
  } else if (c == '$') {
    readDollar(into, /*quoted=*/true);
  } else if (c == '`') {
    size_t close = text_.slice(0, end_).find('`', at_ + 1);
    if (close == llvm::StringRef::npos)
      return fail("a quote is not closed");
    readSubstitution(into, /*quoted=*/true, close + 1);
  } else {
    putText(into, text_.substr(at_, 1), /*quoted=*/true);
    ++at_;
  }
}

/// `$'...'`: with the commonest escapes of C.
void ShellWords::readAnsiQuotes(Into &into) {
  size_t begin = at_;
  at_ += 2;
  std::string text;
  bool isForeign = false;
  while (at_ < end_ && peek() != '\'') {
    constexpr llvm::StringLiteral kLetters = "nt\\'\"", kMeanings = "\n\t\\'\"";
    size_t which = peek() == '\\' ? kLetters.find(peek(1)) : llvm::StringRef::npos;
    isForeign |= peek() == '\\' && which == llvm::StringRef::npos;
    text += which == llvm::StringRef::npos ? peek() : kMeanings[which];
    at_ += peek() == '\\' && peek(1) != '\0' ? 2 : 1;
  }
  if (!consume("'")) {
    at_ = begin;
    return fail("a quote is not closed");
  }
  if (isForeign)
    putUnknown(into, slice(begin), /*quoted=*/true);
  else
    putText(into, text, /*quoted=*/true);
}

// --- expansions
// -----------------------------------------------------------------------------------

void ShellWords::readDollar(Into &into, bool quoted) {
  size_t begin = at_;
  char next = peek(1);
  if (next == '\'' && !quoted)
    return readAnsiQuotes(into);
  if (next == '"' && !quoted) { // to be translated
    ++at_;
    return readDoubleQuotes(into);
  }
  if (next == '(' || next == '[') {
    size_t end = passBrackets(at_ + 1, next, next == '(' ? ')' : ']');
    bool isArithmetic = startsWith("$((") && text_.slice(0, end).endswith("))");
    return isArithmetic ? readArithmetic(into, quoted, end) : readSubstitution(into, quoted, end);
  }
  if (next == '{')
    return readBraces(into, quoted);
  size_t end = at_ + 1;
  if (isNameStart(next))
    while (end < end_ && isNameChar(text_[end]))
      ++end;
  else if (next != '\0' && (llvm::isDigit(next) || llvm::StringRef("@*#?$!-").contains(next)))
    ++end;
  std::string name = text_.slice(at_ + 1, end).str();
  if (name.empty()) {
    putText(into, "$", quoted);
    ++at_;
    return;
  }
  at_ = end;
  expandVariable(into, quoted, name, "", begin);
}

void ShellWords::readSubstitution(Into &into, bool quoted, size_t end) {
  size_t begin = at_;
  at_ = end;
  if (!failed_)
    putUnknown(into, slice(begin), quoted);
}

void ShellWords::readArithmetic(Into &into, bool quoted, size_t end) {
  size_t begin = at_;
  if (failed_ || !enter())
    return;
  llvm::StringRef expression = text_.slice(begin + 3, end - 2);
  doubtExpression(expression);
  at_ = begin;
  std::string expanded = expandIndex(expression);
  at_ = end;
  --depth_;
  std::optional<int64_t> value =
      ShellValues::isKnown(expanded) ? values_.evaluate(expanded) : std::nullopt;
  if (value)
    return put(into, std::to_string(*value), quoted, into.splits);
  // The reason is that of one of its variables.
  std::string reasons = expanded;
  for (size_t i = 0; i < expanded.size();) {
    llvm::StringRef name = llvm::StringRef(expanded).substr(i).take_while(isNameChar);
    if (!name.empty() && isNameStart(name.front()))
      for (const ShellValue &word : values_.look(name, "", name).words)
        reasons += word.text;
    i += std::max<size_t>(name.size(), 1);
  }
  put(into, values_.markAs(slice(begin), reasons), quoted, into.splits);
}

std::string ShellWords::expandIndex(llvm::StringRef expression) {
  size_t at = at_, end = end_;
  at_ = static_cast<size_t>(expression.data() - text_.data());
  end_ = at_ + expression.size();
  Into into{.splits = false};
  while (!atEnd())
    readQuotedPart(into, '\0');
  at_ = at;
  end_ = end;
  return into.fields.front().text;
}

/// Assignments in an expression (`x = 3`, `i++`): their variables are no longer known.
void ShellWords::doubtExpression(llvm::StringRef expression) {
  bool assigns = expression.contains("++") || expression.contains("--");
  for (size_t i = 0; i < expression.size(); ++i)
    if (expression[i] == '=') {
      bool isComparison = expression.substr(i).startswith("==") ||
                          (i > 0 && llvm::StringRef("=!<>").contains(expression[i - 1]));
      assigns |= !isComparison;
      i += expression.substr(i).startswith("==") ? 1 : 0;
    }
  while (assigns && !expression.empty()) {
    llvm::StringRef name = expression.take_while(isNameChar);
    if (!name.empty() && isNameStart(name.front()))
      doubtIn(name.str(), "");
    expression = expression.drop_front(std::max<size_t>(name.size(), 1));
  }
}

void ShellWords::doubtIn(const std::string &name, llvm::StringRef script, bool keepsHead,
                         bool isAnytime) {
  changesSkipped_ |= mode_ == Mode::Skip;
  if (mode_ == Mode::Maybe || mode_ == Mode::Skip)
    return; // collected before, or it does not happen
  SourceRange cause = mode_ == Mode::Run ? range(std::min(statement_, at_)) : cause_;
  values_.doubt(name, cause, script, keepsHead, isAnytime || values_.isInFunction);
}

void ShellWords::readBraces(Into &into, bool quoted) {
  size_t begin = at_;
  if (!enter())
    return;
  at_ += 2;
  std::string name, index;
  bool isPlain = readBraceName(name, index);
  if (isPlain && consume("}"))
    expandVariable(into, quoted, name, index, begin);
  else if (isPlain && !atEnd() &&
           (llvm::StringRef("-=+?").contains(peek()) ||
            (peek() == ':' && peek(1) != '\0' && llvm::StringRef("-=+?").contains(peek(1)))))
    applyOperator(into, quoted, name, index, begin);
  else { // lengths, parts, replacements
    at_ = begin;
    at_ = passBrackets(begin + 1, '{', '}');
    if (!failed_) {
      ShellValues::Held held = values_.look(name, index, name);
      std::string reasons;
      for (const ShellValue &word : held.words)
        reasons += word.text;
      put(into, values_.markAs(slice(begin), reasons), quoted, into.splits);
    }
  }
  --depth_;
}

/// The name and index after `${`; false where another form begins.
bool ShellWords::readBraceName(std::string &name, std::string &index) {
  size_t begin = at_;
  if (llvm::isDigit(peek()))
    while (llvm::isDigit(peek()))
      ++at_;
  else if (peek() == '@' || peek() == '*')
    ++at_;
  else
    while (isNameChar(peek()))
      ++at_;
  name = slice(begin).str();
  if (name.empty())
    return false;
  if (peek() == '[') {
    size_t open = at_, close = passBrackets(at_, '[', ']');
    if (failed_)
      return false;
    llvm::StringRef text = text_.slice(open + 1, close - 1);
    index = text == "@" || text == "*" ? text.str() : expandIndex(text);
    at_ = close;
  }
  return true;
}

void ShellWords::expandVariable(Into &into, bool quoted, const std::string &name,
                                const std::string &index, size_t begin) {
  ShellValues::Held held = values_.look(name, index, slice(begin));
  if (held.kind == ShellValues::Held::Kind::Free)
    return putUnknown(into, slice(begin), quoted);
  putHeld(into, held, quoted, name, index);
}

void ShellWords::putHeld(Into &into, const ShellValues::Held &held, bool quoted,
                         llvm::StringRef name, llvm::StringRef index) {
  bool apart = quoted && (index == "@" || name == "@") && into.splits;
  for (size_t i = 0; i < held.words.size() && !values_.isExhausted(); ++i) {
    if (i > 0 && apart)
      into.fields.push_back({});
    else if (i > 0)
      put(into, " ", quoted, into.splits);
    size_t first = into.fields.size() - 1;
    put(into, held.words[i].text, quoted, into.splits);
    for (size_t at = first; at < into.fields.size() && held.isList; ++at)
      into.fields[at].range = held.words[i].range;
  }
}

/// `${NAME:-word}` and its like, from the operator on.
void ShellWords::applyOperator(Into &into, bool quoted, const std::string &name,
                               const std::string &index, size_t begin) {
  using Kind = ShellValues::Held::Kind;
  bool testsEmpty = consume(":");
  char op = peek();
  ++at_;
  ShellValues::Held held = values_.look(name, index, name);
  std::string all;
  for (const ShellValue &word : held.words)
    all += word.text;
  values_.spend(all.size() + 1, {});
  bool isUnknown = held.kind == Kind::Unknown || (held.isList && !ShellValues::isKnown(all));
  // Of a value that is a mark alone, nobody knows whether it is empty.
  if (testsEmpty && held.words.size() == 1 && !ShellValues::isKnown(all))
    isUnknown |= values_.resolve({all, {}}).text == values_.resolve({all, {}}).unknown->shown;
  bool isSet = held.isSet() && !(testsEmpty && held.words.size() == 1 && all.empty());
  bool usesArgument = !isUnknown && isSet == (op == '+');
  size_t argument = at_;
  Into unused{.splits = into.splits};
  Mode mode = mode_;
  if (!usesArgument)
    mode_ = Mode::Skip; // an assignment in it does not happen
  Into &target = usesArgument && op != '=' && op != '?' ? into : unused;
  bool splitsText = std::exchange(target.splitsText, true);
  if (op == '=')
    target.splits = false;
  readArgument(target, quoted);
  target.splitsText = splitsText;
  mode_ = mode;
  llvm::StringRef written = text_.slice(argument, at_);
  if (!failed_ && !consume("}")) {
    at_ = begin;
    return fail("a brace is not closed");
  }
  if (op == '=' && (isUnknown || (usesArgument && mode_ != Mode::Run)))
    doubtIn(name, written);
  if (isUnknown || (usesArgument && op == '?'))
    return put(into, values_.markAs(slice(begin), all), quoted, into.splits);
  if (usesArgument && op == '=') {
    std::string value = unused.fields.front().text;
    if (mode_ == Mode::Run)
      values_.assign(name, {value, range(begin)}, /*append=*/false);
    return put(into, value, quoted, into.splits);
  }
  if (!usesArgument && op != '+')
    putHeld(into, held, quoted, name, index);
  else if (!usesArgument && quoted) // nothing, which is a word of its own between quotes
    into.fields.back().hasQuotes = true;
}

/// Up to the brace that closes it. Between double quotes, single ones are text.
void ShellWords::readArgument(Into &into, bool quoted) {
  while (!atEnd() && peek() != '}') {
    if (peek() == '"') {
      readDoubleQuotes(into);
    } else if (quoted && startsWith("\\}")) {
      ++at_;
      putText(into, "}", /*quoted=*/true);
      ++at_;
    } else if (quoted) {
      readQuotedPart(into, '"');
    } else {
      readPart(into);
    }
  }
}

// --- results
// --------------------------------------------------------------------------------------

void ShellWords::putText(Into &into, llvm::StringRef text, bool quoted) {
  if (!quoted)
    into.fields.back().bare += text;
  put(into, text, quoted, into.splits && into.splitsText);
}

/// Adds text to the last field; unquoted blanks begin a new one.
void ShellWords::put(Into &into, llvm::StringRef text, bool quoted, bool splits) {
  if (!values_.spend(text.size() + 1, {}))
    return;
  std::vector<Field> &fields = into.fields;
  if (quoted || !splits) {
    fields.back().text += text.str();
    fields.back().hasQuotes |= quoted;
    return;
  }
  if (!splitsAsUsual_ && !text.empty()) {
    fields.back().text += values_.markAs(values_.resolve({text.str(), {}}).text, text);
    return;
  }
  for (char c : text) {
    bool isGap = c == ' ' || c == '\t' || c == '\n';
    if (!isGap) {
      fields.back().text += c;
      fields.back().bare += c == '*' || c == '?' || c == '[' ? std::string(1, c) : "";
    } else if (!fields.back().text.empty() || fields.back().hasQuotes) {
      fields.push_back({});
    }
  }
}

void ShellWords::putUnknown(Into &into, llvm::StringRef shown, bool quoted) {
  put(into, values_.mark(shown), quoted, /*splits=*/false);
}

std::optional<llvm::StringRef> ShellWords::peekSubscript(size_t offset) const {
  llvm::StringRef rest = text_.slice(offset, end_);
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

size_t ShellWords::passBrackets(size_t at, char open, char close) {
  size_t begin = at++;
  unsigned depth = 1;
  for (; at < end_; ++at) {
    char c = text_[at];
    if (c == '\\') {
      ++at;
    } else if (c == close && --depth == 0) {
      return at + 1;
    } else if (c == open) {
      ++depth;
    } else if (c == '\'' && close != '"' && close != '}') {
      at = std::min(text_.find('\'', at + 1), end_);
    } else if (c == '"' && close != '"') {
      while (++at < end_ && text_[at] != '"')
        at += text_[at] == '\\' ? 1 : 0;
    }
  }
  at_ = begin;
  fail(close == ')'   ? "a bracket is not closed"
       : close == '}' ? "a brace is not closed"
                      : "a quote is not closed");
  return end_;
}

} // namespace shardc::upstream
