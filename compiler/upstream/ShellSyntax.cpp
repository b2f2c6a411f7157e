#include "compiler/upstream/ShellSyntax.h"

#include "llvm/ADT/Twine.h"

namespace shardc::upstream {

void ShellCursor::fail(llvm::StringRef what) {
  if (!failed_)
    diags_.report(diag::ImportMalformed, range(text_.substr(at_, 0)),
                  (what + "; '--run' runs the script").str());
  failed_ = true;
}

bool ShellCursor::enter() {
  constexpr unsigned kDepthMax = 100;
  if (++depth_ > kDepthMax)
    fail("it is nested too deep");
  return !failed_;
}

void ShellCursor::pass(char close, bool isQuoted) {
  size_t begin = at_;
  if (!enter())
    return;
  while (!atEnd() && peek() != close) {
    char c = peek();
    ++at_;
    if (close == '\'' && !isQuoted)
      continue; // between single quotes all is text
    if (c == '\\' && at_ < end_)
      ++at_;
    else if (c == '`' || (c == '\'' && !isQuoted && close != '\''))
      at_ = std::max(rest().find(c) + 1, size_t{1}) + at_;
    else if (c == '"' && close != '\'')
      pass('"', /*isQuoted=*/true);
    else if (c == '$' && close != '\'')
      passExpansion(isQuoted);
    else if ((c == '(' && close == ')') || (c == '[' && close == ']'))
      pass(close);
  }
  leave();
  if (failed_ || consume(llvm::StringRef(&close, 1)))
    return;
  at_ = begin - 1;
  fail(close == ')' || close == ']' ? "a bracket is not closed"
       : close == '}'               ? "a brace is not closed"
                                    : "a quote is not closed");
}

bool ShellCursor::passExpansion(bool isQuoted) {
  if (!isQuoted && consume("'")) {
    pass('\'', /*isQuoted=*/true);
    return true;
  }
  size_t which = llvm::StringRef("({[").find(peek());
  if (atEnd() || which == llvm::StringRef::npos)
    return false;
  ++at_;
  pass(llvm::StringRef(")}]")[which], isQuoted && which == 1);
  return true;
}

namespace {

constexpr size_t kItemsMax = 40'000, kNestedMax = 100;

/// Keywords inside of statements, and those that may stand before them in these.
struct Inner {
  llvm::StringLiteral word, behind;
  bool closes;
};
constexpr Inner kInner[] = {
    {"then", "if elif", false},
    {"elif", "then", false},
    {"else", "then", false},
    {"fi", "then else", true},
    {"do", "for select while until", false},
    {"done", "do", true},
    {";;", "pattern", false},
    {";&", "pattern", false},
    {";;&", "pattern", false},
    {"esac", "case pattern ;; ;& ;;&", true},
    {"}", "{", true},
    {")", "(", true},
};

class ShellParser : ShellCursor {
public:
  ShellParser(BufferId script, DiagEngine &diags) : ShellCursor(script, diags) {}

  std::optional<ShellScript> parse() {
    if (text_.find_first_of(llvm::StringRef("\x01\x02", 2)) != llvm::StringRef::npos)
      fail("it has control characters");
    for (skipLines(); !atEnd(); skipLines()) {
      size_t begin = at_;
      parseItem();
      if (script_.items.size() > kItemsMax)
        fail("it has too many commands");
      if (at_ == begin)
        fail("this is not allowed here");
    }
    if (!open_.empty())
      fail(("'" + script_.items[open_.back().first].word + "' is not closed").str());
    if (isFunctionOpen_)
      fail("expected '{' after a function's name");
    return failed_ ? std::nullopt : std::optional(std::move(script_));
  }

private:
  using Kind = ShellItem::Kind;
  using After = ShellItem::After;

  struct Open {
    size_t first, last; ///< keywords of the statement: the one that opens it, and the last one
    bool isFunction;
  };

  // --- between statements
  // -------------------------------------------------------------------------
  /// The keyword that comes next, or what stands in its place.
  llvm::StringRef peekWord() const {
    for (llvm::StringRef bracket : {";;&", ";;", ";&", "(", ")"})
      if (rest().startswith(bracket))
        return bracket;
    return rest().take_until(endsWord);
  }

  /// Blanks, continued lines and comments; `#SBATCH` comments are kept.
  void skipBlanks() {
    while (!atEnd())
      if (isBlank(peek()))
        ++at_;
      else if (!consume("\\\n") && !consume("\\\r\n") && !skipComment())
        return;
  }

  bool skipComment() {
    bool isLineBegin = at_ == 0 || text_[at_ - 1] == '\n';
    bool isFence = isLineBegin && rest().startswith("```");
    if (!isFence && !(peek() == '#' && (at_ == 0 || endsWord(text_[at_ - 1]))))
      return false;
    llvm::StringRef whole = rest().split('\n').first, line = whole.rtrim();
    at_ += whole.size();
    llvm::SmallVector<llvm::StringRef> words;
    if (isLineBegin && line.consume_front("#SBATCH"))
      llvm::SplitString(line.split(" #").first, words, " \t");
    for (llvm::StringRef word : words)
      script_.directives.push_back({word.str(), range(whole), nullptr});
    return true;
  }

  void skipLines() {
    skipBlanks();
    while (!atEnd() && (peek() == '\n' || (peek() == ';' && peek(1) != ';' && peek(1) != '&'))) {
      if (peek() == '\n' && documentsEnd_ > at_)
        at_ = documentsEnd_ - 1;
      ++at_;
      skipBlanks();
    }
  }

  // --- statements
  // ---------------------------------------------------------------------------------
  void parseItem() {
    ShellItem item;
    item.after = std::exchange(after_, After::Any);
    for (; peekWord() == "!" || peekWord() == "time"; skipBlanks()) {
      item.isNegated ^= peek() == '!';
      at_ += peekWord().size();
    }
    size_t begin = at_;
    item.word = peekWord();
    item.kind = Kind::Keyword;
    bool opens = isOneOf(item.word, {"if", "while", "until", "{", "(", "for", "select", "case"});
    if (isFunctionOpen_ && !opens)
      return fail("expected '{' after a function's name");
    const auto *inner =
        llvm::find_if(kInner, [&](const Inner &one) { return one.word == item.word; });
    bool isPattern = !open_.empty() &&
                     isOneOf(script_.items[open_.back().last].word, {"case", ";;", ";&", ";;&"});
    if (isPattern && item.word != "esac") {
      parsePatterns(item);
      link(std::move(item), "pattern", /*closes=*/false);
    } else if (inner != std::end(kInner)) {
      at_ += item.word.size();
      link(std::move(item), inner->behind, inner->closes);
    } else if (rest().startswith("((")) {
      passBracket();
      item.kind = Kind::Arithmetic;
      item.words.push_back(slice(begin));
      addSimple(std::move(item), begin);
    } else if (opens) {
      at_ += item.word.size();
      openStatement(std::move(item));
    } else if (isFunctionHead()) {
      parseFunction(item);
    } else {
      item.kind = item.word == "[[" ? Kind::Test : Kind::Command;
      item.kind == Kind::Test ? parseTest(item) : parseCommand(item);
      addSimple(std::move(item), begin);
    }
  }

  void addSimple(ShellItem item, size_t begin) {
    if (std::exchange(isFunctionOpen_, false))
      fail("expected '{' after a function's name");
    item.text = slice(begin).rtrim();
    item.end = script_.items.size() + 1;
    script_.items.push_back(std::move(item));
    endStatement(script_.items.size() - 1);
  }

  /// Redirections of a statement, and the operator behind it.
  void endStatement(size_t first) {
    ShellItem &item = script_.items[first];
    for (skipBlanks(); !atEnd() && passRedirection(item);)
      skipBlanks();
    item.isElsewhere |= item.after == After::Pipe || item.word == "(";
    for (auto [op, after] : {std::pair("&&", After::Success), std::pair("||", After::Failure),
                             std::pair("|&", After::Pipe), std::pair("|", After::Pipe)})
      if (consume(op)) {
        after_ = after;
        item.isElsewhere |= after == After::Pipe;
        return skipLines();
      }
    item.isElsewhere |= peek() == '&';
    at_ += peek() == '&' ? 1 : 0;
  }

  void openStatement(ShellItem item) {
    skipBlanks();
    if (item.word == "case") {
      item.words.push_back(passWord());
      skipLines();
      if (!consume("in"))
        fail("expected 'in'");
    }
    if (item.word == "for" || item.word == "select") {
      size_t begin = at_;
      if (rest().startswith("(("))
        passBracket();
      if (at_ > begin)
        item.words.push_back(slice(begin));
      while (!atEnd() && peek() != ';' && peek() != '\n') {
        item.words.push_back(passWord());
        if (item.words.back().empty())
          return fail("this is not allowed in a loop's words");
        skipBlanks();
      }
    }
    size_t at = script_.items.size();
    if (open_.size() >= kNestedMax)
      return fail("it is nested too deep");
    open_.push_back({at, at, std::exchange(isFunctionOpen_, false)});
    script_.items.push_back(std::move(item));
  }

  /// A keyword or pattern inside of a statement, behind one of these.
  void link(ShellItem item, llvm::StringRef behind, bool closes) {
    size_t at = script_.items.size();
    llvm::StringRef last = open_.empty() ? "" : script_.items[open_.back().last].word;
    if (item.kind == Kind::Pattern)
      item.word = "pattern";
    else if (last.empty() || !llvm::is_contained(llvm::split(behind, ' '), last))
      return fail(("'" + item.word + "' closes nothing that is open").str());
    if (failed_)
      return;
    script_.items[open_.back().last].next = at;
    open_.back().last = at;
    script_.items.push_back(std::move(item));
    if (!closes)
      return;
    Open closed = open_.back();
    open_.pop_back();
    script_.items[closed.first].end = at + 1;
    if (closed.isFunction)
      script_.items[closed.first - 1].end = at + 1;
    endStatement(closed.first);
  }

  void parsePatterns(ShellItem &item) {
    item.kind = Kind::Pattern;
    consume("(");
    do {
      skipBlanks();
      item.words.push_back(passWord());
      skipBlanks();
    } while (consume("|"));
    if (!consume(")"))
      fail("expected ')' after a pattern");
  }

  bool isFunctionHead() const {
    llvm::StringRef behind = rest().drop_while(
        [](char c) { return isNameChar(c) || llvm::StringRef("-:.").contains(c); });
    bool isNamed = behind.size() < rest().size();
    behind = behind.ltrim(" \t");
    return peekWord() == "function" ||
           (isNamed && behind.consume_front("(") && behind.ltrim(" \t").startswith(")"));
  }

  void parseFunction(ShellItem &item) {
    item.kind = Kind::Function;
    if (consume("function"))
      skipBlanks();
    item.word = rest().take_until(endsWord);
    at_ += item.word.size();
    skipBlanks();
    if (consume("(")) {
      skipBlanks();
      consume(")");
    }
    script_.items.push_back(std::move(item));
    isFunctionOpen_ = true;
  }

  // --- simple statements
  // --------------------------------------------------------------------------
  void parseCommand(ShellItem &item) {
    while (true) {
      skipBlanks();
      if (atEnd() || llvm::StringRef("\n;|)").contains(peek()) || (peek() == '&' && peek(1) != '>'))
        return;
      if (passRedirection(item))
        continue;
      if (peek() == '(')
        return fail("a bracket is not allowed here");
      if ((!item.words.empty() && !item.declares()) || !parseAssignment(item))
        item.words.push_back(passWord());
    }
  }

  /// Between `[[` and `]]`, where operators of the shell are ordinary words.
  void parseTest(ShellItem &item) {
    for (at_ += 2; !failed_;) {
      for (skipBlanks(); consume("\n");)
        skipBlanks();
      size_t begin = at_;
      if (passWord() == "]]")
        return;
      for (llvm::StringRef op : {"&&", "||", "<", ">", "(", ")", "|"})
        if (at_ == begin && consume(op))
          break;
      if (at_ == begin)
        return fail("a test must end with ']]' before this");
      item.words.push_back(slice(begin));
    }
  }

  void passBracket() {
    ++at_;
    pass(')');
  }

  llvm::StringRef passWord() {
    size_t begin = at_;
    while (!atEnd() && !endsWord(peek())) {
      char c = peek();
      ++at_;
      if (c == '\\')
        at_ += consume("\r\n") || atEnd() ? 0 : 1;
      else if (c == '\'' || c == '`')
        pass(c);
      else if (c == '"')
        pass('"', /*isQuoted=*/true);
      else if (c == '$')
        passExpansion(/*isQuoted=*/false);
    }
    return slice(begin);
  }

  bool parseAssignment(ShellItem &item) {
    size_t begin = at_;
    ShellAssignment assignment;
    assignment.name = rest().take_while(isNameChar);
    bool isNamed = !assignment.name.empty() && isNameStart(assignment.name.front());
    at_ += assignment.name.size();
    if (isNamed && peek() == '[' && rest().split('\n').first.contains("=")) {
      assignment.hasIndex = true;
      ++at_;
      pass(']');
    }
    assignment.append = consume("+=");
    if (failed_ || !isNamed || (!assignment.append && !consume("="))) {
      at_ = failed_ ? at_ : begin;
      return false;
    }
    size_t value = at_;
    if (peek() == '(' && !assignment.hasIndex)
      parseElements(assignment);
    else
      assignment.values.push_back(passWord());
    assignment.script = slice(value);
    item.assignments.push_back(std::move(assignment));
    return true;
  }

  void parseElements(ShellAssignment &assignment) {
    ++at_;
    assignment.isArray = true;
    while (!atEnd()) {
      skipBlanks();
      if (consume("\n"))
        continue;
      if (consume(")"))
        return;
      assignment.values.push_back(passWord());
      if (assignment.values.back().empty())
        return fail("this is not allowed in an array");
    }
    fail("expected ')' at the end of an array");
  }

  /// `<(...)` is a word, the rest concerns files.
  bool passRedirection(ShellItem &item) {
    size_t begin = at_;
    auto passProgram = [&] {
      bool isProgram = (peek() == '<' || peek() == '>') && peek(1) == '(';
      at_ += isProgram ? 1 : 0;
      if (isProgram)
        passBracket();
      return isProgram;
    };
    if (passProgram()) {
      item.words.push_back(slice(begin));
      return true;
    }
    at_ += rest().take_while(llvm::isDigit).size();
    if (!(at_ == begin && consume("&>")) && !consume("<") && !consume(">")) {
      at_ = begin;
      return false;
    }
    if (text_[at_ - 1] == '<' && peek() == '<' && peek(1) != '<') {
      ++at_;
      skipDocument(consume("-"));
      return true;
    }
    for (llvm::StringRef more : {"<<", ">", "&", "|"})
      consume(more);
    skipBlanks();
    if (!passProgram())
      passWord();
    return true;
  }

  /// A here-document begins behind the line, or behind the last one that the line has opened.
  void skipDocument(bool stripsTabs) {
    skipBlanks();
    std::string delimiter;
    for (char c : passWord())
      if (c != '\'' && c != '"' && c != '\\')
        delimiter += c;
    if (delimiter.empty())
      return fail("expected the word that ends the here-document");
    size_t at = documentsEnd_ > at_ ? documentsEnd_ : at_ + rest().split('\n').first.size() + 1;
    llvm::StringRef left = text_.substr(at);
    for (bool isEnd = false; !left.empty() && !isEnd;) {
      auto [line, behind] = left.split('\n');
      llvm::StringRef text = line.rtrim('\r');
      isEnd = (stripsTabs ? text.ltrim('\t') : text) == delimiter;
      left = behind;
    }
    documentsEnd_ = end_ - left.size();
  }

  ShellScript script_;
  std::vector<Open> open_;
  After after_ = After::Any;    ///< of the last statement
  bool isFunctionOpen_ = false; ///< the next statement is one's body
  size_t documentsEnd_ = 0;     ///< of the here-documents that the current line has opened
};

} // namespace

std::optional<ShellScript> parseShell(BufferId script, DiagEngine &diags) {
  return ShellParser(script, diags).parse();
}

} // namespace shardc::upstream
