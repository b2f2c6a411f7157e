#include "compiler/upstream/ShellWords.h"

namespace shardc::upstream {

std::vector<ShellValue> ShellWords::fieldsOf(const std::vector<llvm::StringRef> &words) {
  std::vector<ShellValue> values;
  for (llvm::StringRef word : words) {
    Into into{.splits = true};
    bool isProgram = word.startswith("<(") || word.startswith(">(");
    isProgram ? put(into, values_.mark(word), /*quoted=*/true, false)
              : readAll(into, word, /*quoted=*/false);
    for (Field &field : into.fields) {
      settleField(field, /*isWord=*/true);
      if (!field.text.empty() || field.hasQuotes)
        values.push_back(
            {std::move(field.text), field.range.isValid() ? field.range : range(word)});
    }
  }
  return values;
}

ShellValue ShellWords::valueOf(llvm::StringRef word) {
  Into into;
  readAll(into, word, /*quoted=*/false);
  settleField(into.fields.front(), /*isWord=*/false);
  return {std::move(into.fields.front().text), range(word)};
}

std::string ShellWords::quotedText(llvm::StringRef part) {
  Into into;
  readAll(into, part, /*quoted=*/true);
  return into.fields.front().text;
}

/// A part of the script, whatever stands around it.
void ShellWords::readAll(Into &into, llvm::StringRef part, bool quoted) {
  size_t at = std::exchange(at_, static_cast<size_t>(part.data() - text_.data()));
  size_t end = std::exchange(end_, at_ + part.size());
  if (enter())
    while (!atEnd())
      readPart(into, quoted);
  leave();
  at_ = at;
  end_ = end;
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

/// One character, quoted text or expansion.
void ShellWords::readPart(Into &into, bool quoted) {
  char c = peek(), next = peek(1);
  size_t begin = at_++;
  if (c == '\\' && next != '\0' && (!quoted || llvm::StringRef("$`\\\"\n").contains(next))) {
    if (!consume("\n") && !consume("\r\n"))
      putText(into, text_.substr(at_++, 1), /*quoted=*/true);
  } else if (c == '\'' && !quoted) {
    pass('\'');
    if (!failed_)
      putText(into, slice(begin + 1).drop_back(), /*quoted=*/true);
  } else if (c == '"' && !quoted) {
    pass('"', /*isQuoted=*/true);
    if (failed_)
      return;
    llvm::StringRef inside = slice(begin + 1).drop_back();
    readAll(into, inside, /*quoted=*/true);
    // `"${NAME[@]}"` alone makes no word where the array is empty, as other quotes do.
    bool isListAlone = inside == "$@" || (inside.startswith("${") && inside.endswith("[@]}") &&
                                          !inside.drop_front(2).contains('$'));
    into.fields.back().hasQuotes |= !isListAlone;
  } else if (c == '`') {
    pass('`');
    put(into, values_.mark(slice(begin)), quoted, /*splits=*/false);
  } else if (c == '$') {
    readDollar(into, quoted);
  } else {
    putText(into, slice(begin), quoted);
  }
}

void ShellWords::readDollar(Into &into, bool quoted) {
  size_t begin = at_ - 1;
  bool isAnsi = !quoted && peek() == '\'';
  if (!quoted && peek() == '"')
    return; // to be translated: like other quotes
  if (peek() == '{')
    return readBraces(into, quoted);
  if (passExpansion(quoted) && !failed_) {
    llvm::StringRef whole = slice(begin);
    if (isAnsi && !whole.contains('\\'))
      return putText(into, whole.drop_front(2).drop_back(), /*quoted=*/true);
    return whole.startswith("$((") && whole.endswith("))")
               ? readArithmetic(into, quoted, whole)
               : put(into, values_.mark(whole), quoted || isAnsi, /*splits=*/false);
  }
  if (isNameStart(peek()))
    at_ += rest().take_while(isNameChar).size();
  else if (peek() != '\0' && (llvm::isDigit(peek()) || llvm::StringRef("@*#?$!-").contains(peek())))
    ++at_;
  llvm::StringRef name = slice(begin + 1);
  if (name.empty())
    return putText(into, "$", quoted);
  putHeld(into, values_.look(name, "", slice(begin)), quoted, name == "@");
  if (values_.look(name, "", slice(begin)).kind == ShellHeld::Kind::Free)
    put(into, values_.mark(slice(begin)), quoted, /*splits=*/false);
}

void ShellWords::readArithmetic(Into &into, bool quoted, llvm::StringRef whole) {
  std::string expression = quotedText(whole.drop_front(3).drop_back(2));
  std::optional<int64_t> value =
      ShellValues::isKnown(expression) ? values_.evaluate(expression) : std::nullopt;
  std::string reasons = expression; // and those of the variables that it names
  for (llvm::StringRef left = expression; !value && !left.empty();) {
    llvm::StringRef name = left.take_while(isNameChar);
    if (!name.empty() && isNameStart(name.front()))
      reasons += joined(values_.look(name, "", name).words);
    left = left.drop_front(std::max<size_t>(name.size(), 1));
  }
  put(into, value ? std::to_string(*value) : values_.markAs(whole, reasons), quoted,
      value && into.splits);
}

void ShellWords::readBraces(Into &into, bool quoted) {
  size_t begin = at_++ - 1;
  pass('}', quoted);
  if (failed_)
    return;
  llvm::StringRef whole = slice(begin);
  llvm::StringRef body = whole.drop_front(2).drop_back();
  bool isNumber = !body.empty() && llvm::isDigit(body.front());
  llvm::StringRef name =
      body.startswith("@") || body.startswith("*")
          ? body.take_front(1)
          : body.take_while([&](char c) { return isNumber ? llvm::isDigit(c) : isNameChar(c); });
  llvm::StringRef op = body.drop_front(name.size());
  std::string index;
  if (!name.empty() && op.startswith("[") && op.contains(']')) {
    llvm::StringRef text = op.drop_front().split(']').first;
    index = text == "@" || text == "*" ? text.str() : quotedText(text);
    op = op.drop_front(text.size() + 2);
  }
  ShellHeld held = values_.look(name, index, op.empty() ? whole : name);
  llvm::StringRef sign = op.startswith(":") ? op.drop_front() : op;
  if (!name.empty() && !sign.empty() && llvm::StringRef("-=+?").contains(sign.front()))
    return applyOperator(into, quoted, name, index, whole, op);
  if (name.empty() || !op.empty()) // lengths, parts and replacements are a shell's
    return put(into, values_.markAs(whole, joined(held.words)), quoted, /*splits=*/false);
  if (held.kind == ShellHeld::Kind::Free)
    return put(into, values_.mark(whole), quoted, /*splits=*/false);
  putHeld(into, held, quoted, index == "@" || name == "@");
}

/// `${NAME:-word}` and its like.
void ShellWords::applyOperator(Into &into, bool quoted, llvm::StringRef name, llvm::StringRef index,
                               llvm::StringRef whole, llvm::StringRef op) {
  bool testsEmpty = op.consume_front(":");
  char sign = op.front();
  llvm::StringRef word = op.drop_front();
  ShellHeld held = values_.look(name, index, name);
  std::string all = joined(held.words);
  values_.spend(all.size() + 1);
  bool isUnknown =
      held.kind == ShellHeld::Kind::Unknown || (held.isList && !ShellValues::isKnown(all));
  // Of a value that is a mark alone, nobody knows whether it is empty.
  if (testsEmpty && held.words.size() == 1 && !ShellValues::isKnown(all))
    isUnknown |= values_.resolve({all, {}}).text == values_.resolve({all, {}}).unknown->shown;
  bool isSet = held.isSet() && !(testsEmpty && held.words.size() == 1 && all.empty());
  bool usesWord = !isUnknown && isSet == (sign == '+');
  // Quotes in a word between quotes are text or not, by what stands around them.
  isUnknown |= usesWord && quoted && word.find_first_of("'\"\\") != llvm::StringRef::npos;
  if (sign == '=' && (isUnknown || (usesWord && !runs_)))
    doubt(name, word);
  if (isUnknown || (usesWord && sign == '?'))
    return put(into, values_.markAs(whole, all), quoted, /*splits=*/false);
  if (!usesWord && sign != '+')
    return putHeld(into, held, quoted, index == "@" || name == "@");
  if (usesWord && sign == '=') {
    ShellValue value = quoted ? ShellValue{quotedText(word), range(whole)} : valueOf(word);
    put(into, value.text, quoted, into.splits);
    if (runs_)
      values_.assign(name.str(), {value}, /*append=*/false, /*isArray=*/false, range(whole));
    return;
  }
  bool splitsText = std::exchange(into.splitsText, true);
  if (usesWord)
    readAll(into, word, quoted);
  into.splitsText = splitsText;
  into.fields.back().hasQuotes |= quoted; // also nothing is a word between quotes
}

void ShellWords::doubtChanges(llvm::StringRef script) {
  // `x = 3` and `i++` in arithmetic, and in the index of an element.
  for (llvm::StringRef open : {"((", "["})
    for (size_t at = 0; (at = script.find(open, at)) != llvm::StringRef::npos; ++at) {
      llvm::StringRef expression =
          script.substr(at + open.size()).split(open == "[" ? "]" : "))").first;
      if (open == "[" && (at == 0 || !isNameChar(script[at - 1])))
        continue; // a test, or a pattern
      bool assigns = expression.contains("++") || expression.contains("--");
      for (size_t i = expression.find('='); i < expression.size(); i = expression.find('=', i + 1))
        if (expression.substr(i).startswith("=="))
          ++i;
        else
          assigns |= i == 0 || !llvm::StringRef("!<>").contains(expression[i - 1]);
      while (assigns && !expression.empty()) {
        llvm::StringRef name = expression.take_while(isNameChar);
        doubt(name, "");
        expression = expression.drop_front(std::max<size_t>(name.size(), 1));
      }
    }
  for (size_t at = 0; !runs_ && (at = script.find("${", at)) != llvm::StringRef::npos; ++at) {
    llvm::StringRef name = script.substr(at + 2).take_while(isNameChar);
    llvm::StringRef behind = script.substr(at + 2 + name.size());
    behind.consume_front(":");
    if (behind.startswith("="))
      doubt(name, behind);
  }
}

// --- results
// --------------------------------------------------------------------------------------

void ShellWords::putHeld(Into &into, const ShellHeld &held, bool quoted, bool apart) {
  for (size_t i = 0; i < held.words.size() && values_.spend(1); ++i) {
    if (i > 0 && apart && quoted && into.splits)
      into.fields.push_back({});
    else if (i > 0)
      put(into, " ", quoted, into.splits);
    size_t first = into.fields.size() - 1;
    put(into, held.words[i].text, quoted, into.splits);
    for (size_t at = first; at < into.fields.size() && held.isList; ++at)
      into.fields[at].range = held.words[i].range;
  }
}

void ShellWords::putText(Into &into, llvm::StringRef text, bool quoted) {
  if (!quoted)
    into.fields.back().bare += text;
  put(into, text, quoted, into.splits && into.splitsText);
}

/// Adds text to the last field; unquoted blanks begin a new one.
void ShellWords::put(Into &into, llvm::StringRef text, bool quoted, bool splits) {
  if (!values_.spend(text.size() + 1))
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
  for (char c : text)
    if (c != ' ' && c != '\t' && c != '\n') {
      fields.back().text += c;
      fields.back().bare += c == '*' || c == '?' || c == '[' ? std::string(1, c) : "";
    } else if (!fields.back().text.empty() || fields.back().hasQuotes) {
      fields.push_back({});
    }
}

} // namespace shardc::upstream
