// Text of a shell script to its tree. Follows the shell's grammar where launch scripts use it;
// what it does not know (process substitution, coprocesses, extended patterns) reads as words.
#include "compiler/upstream/ShellWords.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

constexpr size_t kCommandsParsedMax = 20'000;

class Parser : public ShellWordReader {
public:
  using ShellWordReader::ShellWordReader;

  std::optional<ShellScript> run() {
    ShellList list = readList({});
    if (!failed_ && at_ < text_.size())
      fail("this closes nothing that is open");
    if (failed_)
      return std::nullopt;
    script_.list = std::move(list);
    return std::move(script_);
  }

private:
  /// Blanks, continued lines and comments; `#SBATCH` comments are kept.
  void skipBlanks() {
    while (!atEnd()) {
      if (isBlank(peek()))
        ++at_;
      else if (!consume("\\\n") && !consume("\\\r\n") && !skipComment())
        return;
    }
  }

  bool skipComment() {
    bool isLineBegin = at_ == 0 || text_[at_ - 1] == '\n';
    bool isFence = isLineBegin && text_.substr(at_).startswith("```");
    bool isWordBegin = at_ == 0 || endsWord(text_[at_ - 1]);
    if (!isFence && !(peek() == '#' && isWordBegin))
      return false;
    size_t begin = at_;
    at_ = std::min(text_.find('\n', at_), text_.size());
    llvm::StringRef line = text_.slice(begin, at_).rtrim();
    if (isLineBegin && line.consume_front("#SBATCH"))
      addDirective(line.split('#').first, begin);
    return true;
  }

  void addDirective(llvm::StringRef line, size_t begin) {
    llvm::SmallVector<llvm::StringRef> words;
    llvm::SplitString(line, words, " \t");
    for (llvm::StringRef text : words) {
      ShellWord word;
      word.parts.push_back({});
      word.parts.back().text = text.str();
      word.range = range(begin);
      script_.directives.push_back(std::move(word));
    }
  }

  void skipLines() {
    skipBlanks();
    while (!atEnd() && (peek() == '\n' || peek() == ';')) {
      if (peek() == ';' && peek(1) == ';')
        return;
      if (peek() == '\n')
        readDocuments();
      ++at_;
      skipBlanks();
    }
  }

  // --- commands ---------------------------------------------------------------------------------
  /// The reserved word that comes next, or nothing.
  std::string peekReserved() {
    size_t end = at_;
    while (end < text_.size() && !endsWord(text_[end]))
      ++end;
    return text_.slice(at_, end).str();
  }

  static bool contains(const std::vector<llvm::StringRef> &words, llvm::StringRef word) {
    return llvm::is_contained(words, word);
  }

  /// Commands until one of the words that close it, which is not consumed.
  ShellList readList(const std::vector<llvm::StringRef> &closers) {
    ShellList list;
    if (!enter())
      return list;
    skipLines();
    while (!atEnd() && peek() != ')' && !text_.substr(at_).startswith(";;") &&
           !contains(closers, peekReserved())) {
      size_t before = at_;
      ShellLink link;
      link.node = readCommand();
      link.next = readOperator();
      list.push_back(std::move(link));
      skipLines();
      if (++numCommands_ > kCommandsParsedMax)
        fail("it has too many commands");
      if (at_ == before)
        fail("this is not allowed here");
    }
    --depth_;
    return list;
  }

  std::string readOperator() {
    skipBlanks();
    for (llvm::StringRef op : {"&&", "||", "|&", "|"})
      if (consume(op)) {
        skipLines();
        return op == "|&" ? "|" : op.str();
      }
    if (!text_.substr(at_).startswith(";;") && (peek() == '&' || peek() == ';'))
      ++at_;
    return ";";
  }

  ShellNode readCommand() {
    skipBlanks();
    size_t begin = at_;
    ShellNode node = readAnyCommand();
    node.range = range(begin);
    skipRedirections(node);
    return node;
  }

  ShellNode readAnyCommand() {
    std::string word = peekReserved();
    if (word == "if")
      return readIf();
    if (word == "case")
      return readCase();
    if (word == "for" || word == "while" || word == "until" || word == "select")
      return readLoop();
    if (word == "{" || peek() == '(')
      return readGroup();
    if (word == "!") {
      ++at_;
      ShellNode node = readCommand();
      node.negated = !node.negated;
      return node;
    }
    if (word == "function" || isFunctionHead())
      return readFunction();
    return readSimple();
  }

  void expectWord(llvm::StringRef word) {
    skipLines();
    if (peekReserved() == word)
      at_ += word.size();
    else
      fail(("expected '" + word + "'").str());
  }

  ShellNode readIf() {
    ShellNode node;
    node.kind = ShellNode::Kind::If;
    at_ += 2;
    do {
      ShellList condition = readList({"then"});
      expectWord("then");
      ShellList body = readList({"elif", "else", "fi"});
      node.branches.emplace_back(std::move(condition), std::move(body));
    } while (!failed_ && consume("elif"));
    if (peekReserved() == "else") {
      at_ += 4;
      node.body = readList({"fi"});
    }
    expectWord("fi");
    return node;
  }

  ShellNode readCase() {
    ShellNode node;
    node.kind = ShellNode::Kind::Case;
    at_ += 4;
    skipBlanks();
    node.words.push_back(readWord());
    expectWord("in");
    skipLines();
    while (!atEnd() && peekReserved() != "esac") {
      ShellCase one;
      consume("(");
      do {
        skipBlanks();
        one.patterns.push_back(readWord());
        skipBlanks();
      } while (consume("|"));
      if (!consume(")"))
        fail("expected ')' after a pattern");
      one.body = readList({"esac"});
      consume(";;");
      node.cases.push_back(std::move(one));
      skipLines();
    }
    expectWord("esac");
    return node;
  }

  ShellNode readLoop() {
    ShellNode node;
    node.kind = ShellNode::Kind::Loop;
    while (!atEnd() && peekReserved() != "do") {
      if (peek() == '\n' || endsWord(peek()))
        ++at_;
      else
        readWord();
      skipBlanks();
    }
    expectWord("do");
    node.body = readList({"done"});
    expectWord("done");
    return node;
  }

  ShellNode readGroup() {
    ShellNode node;
    node.kind = ShellNode::Kind::Group;
    bool isBrace = peek() == '{';
    ++at_;
    node.body =
        readList(isBrace ? std::vector<llvm::StringRef>{"}"} : std::vector<llvm::StringRef>{});
    if (!consume(isBrace ? "}" : ")"))
      fail(isBrace ? "expected '}'" : "expected ')'");
    return node;
  }

  bool isFunctionHead() const {
    size_t end = at_;
    while (end < text_.size() && (isNameChar(text_[end]) || text_[end] == '-'))
      ++end;
    llvm::StringRef behind = text_.substr(end).ltrim(" \t");
    return end > at_ && behind.consume_front("(") && behind.ltrim(" \t").startswith(")");
  }

  ShellNode readFunction() {
    ShellNode node;
    node.kind = ShellNode::Kind::Function;
    if (consume("function"))
      skipBlanks();
    size_t begin = at_;
    while (!atEnd() && (isNameChar(peek()) || peek() == '-'))
      ++at_;
    node.name = text_.slice(begin, at_).str();
    skipBlanks();
    if (consume("(")) {
      skipBlanks();
      consume(")");
    }
    skipLines();
    if (peek() != '{' && peek() != '(')
      fail("expected '{' after a function's name");
    else
      node.body = readGroup().body;
    return node;
  }

  ShellNode readSimple() {
    ShellNode node;
    while (true) {
      skipBlanks();
      bool isTest = !node.words.empty() && node.words.front().plain() == "[[" &&
                    node.words.back().plain() != "]]";
      if (isTest && !atEnd() && peek() != '\n') {
        node.words.push_back(readTestWord());
        continue;
      }
      if (atEnd() || peek() == '\n' || peek() == ';' || peek() == '&' || peek() == '|' ||
          peek() == ')')
        break;
      if (skipRedirection(node))
        continue;
      if (peek() == '(') {
        fail("a bracket is not allowed here");
        break;
      }
      readSimpleItem(node);
    }
    return node;
  }

  void readSimpleItem(ShellNode &node) {
    std::optional<ShellAssignment> assignment;
    if (node.words.empty() || isDeclaration(node.words.front().plain()))
      assignment = readAssignment();
    if (assignment)
      node.assignments.push_back(std::move(*assignment));
    else
      node.words.push_back(readWord());
  }

  static bool isDeclaration(llvm::StringRef word) {
    return word == "export" || word == "declare" || word == "local" || word == "readonly" ||
           word == "typeset" || word == "env";
  }

  /// A word between [[ and ]], where operators of the shell are ordinary words.
  ShellWord readTestWord() {
    size_t begin = at_;
    for (llvm::StringRef op : {"&&", "||", "<", ">", "(", ")"})
      if (consume(op)) {
        ShellWord word;
        word.parts.push_back({});
        word.parts.back().text = op.str();
        word.range = range(begin);
        return word;
      }
    ShellWord word = readWord();
    if (at_ == begin) // ; & or |, which no test holds
      fail("a test must end with ']]' before this");
    return word;
  }

  std::optional<ShellAssignment> readAssignment() {
    size_t end = at_;
    if (end >= text_.size() || !isNameStart(text_[end]))
      return std::nullopt;
    while (end < text_.size() && isNameChar(text_[end]))
      ++end;
    llvm::StringRef name = text_.slice(at_, end), subscript;
    if (std::optional<llvm::StringRef> found = peekSubscript(end)) {
      subscript = *found;
      end += subscript.size() + 2;
    }
    llvm::StringRef behind = text_.substr(end);
    bool append = behind.consume_front("+=");
    if (!append && !behind.consume_front("="))
      return std::nullopt;
    ShellAssignment assignment;
    assignment.name = name.str();
    assignment.index = subscript.str();
    assignment.append = append;
    at_ = text_.size() - behind.size();
    if (peek() == '(' && subscript.empty())
      readElements(assignment);
    else
      assignment.value = readWord();
    return assignment;
  }

  void readElements(ShellAssignment &assignment) {
    ++at_;
    assignment.isArray = true;
    while (!failed_) {
      skipBlanks();
      if (consume("\n"))
        continue;
      if (atEnd() || consume(")"))
        break;
      size_t before = at_;
      ShellElement element;
      std::optional<llvm::StringRef> index = peekSubscript(at_);
      if (index && !index->empty() && text_[at_ + index->size() + 2] == '=') {
        element.index = index->str();
        at_ += index->size() + 3;
      }
      element.word = readWord();
      assignment.elements.push_back(std::move(element));
      if (at_ == before)
        fail("this is not allowed in an array");
    }
    if (!failed_ && text_[at_ - 1] != ')')
      fail("expected ')' at the end of an array");
  }

  // --- redirections -----------------------------------------------------------------------------
  void skipRedirections(ShellNode &node) {
    skipBlanks();
    while (skipRedirection(node))
      skipBlanks();
  }

  bool skipRedirection(ShellNode &node) {
    size_t ahead = 0;
    while (llvm::isDigit(peek(ahead)))
      ++ahead;
    bool isBoth = ahead == 0 && peek() == '&' && peek(1) == '>';
    if (peek(ahead) != '<' && peek(ahead) != '>' && !isBoth)
      return false;
    at_ += ahead + (isBoth ? 1 : 0);
    if (consume("<<<")) {
      skipBlanks();
      readWord();
      return true;
    }
    if (consume("<<")) {
      bool stripsTabs = consume("-");
      skipBlanks();
      openDocument(node, stripsTabs);
      return true;
    }
    ++at_;
    for (llvm::StringRef more : {">", "&", "|"})
      consume(more);
    skipBlanks();
    if (peek() == '(')
      readGroup();
    else
      readWord();
    return true;
  }

  struct Pending {
    std::string delimiter;
    bool expands;
    bool stripsTabs; ///< at the beginning of each line
  };

  void openDocument(ShellNode &node, bool stripsTabs) {
    ShellWord word = readWord();
    Pending pending{"", true, stripsTabs};
    for (const ShellPart &part : word.parts) {
      pending.delimiter += part.text;
      pending.expands &= !part.quoted;
    }
    if (pending.delimiter.empty())
      fail("expected the word that ends the here-document");
    node.documents.push_back(readAhead(pending));
  }

  /// Reads the document's body now, and lets the line's end skip it: the body follows the line, so
  /// it begins after the last document that the line has opened.
  ShellWord readAhead(const Pending &pending) {
    size_t lineEnd = text_.find('\n', at_);
    size_t begin = bodyEnd_ > at_                     ? bodyEnd_
                   : lineEnd == llvm::StringRef::npos ? text_.size()
                                                      : lineEnd + 1;
    size_t end = begin;
    while (end < text_.size()) {
      size_t next = std::min(text_.find('\n', end), text_.size());
      llvm::StringRef line = text_.slice(end, next).rtrim('\r');
      bool isLast = (pending.stripsTabs ? line.ltrim('\t') : line) == pending.delimiter;
      size_t lineBegin = end;
      end = std::min(next + 1, text_.size());
      if (isLast) {
        bodyEnd_ = end;
        return bodyWord(begin, lineBegin, pending);
      }
    }
    bodyEnd_ = text_.size();
    return bodyWord(begin, text_.size(), pending);
  }

  static std::string withoutTabs(llvm::StringRef body) {
    std::string text;
    while (!body.empty()) {
      auto [line, rest] = body.split('\n');
      text += line.ltrim('\t');
      text += line.size() < body.size() ? "\n" : "";
      body = rest;
    }
    return text;
  }

  ShellWord bodyWord(size_t begin, size_t end, const Pending &pending) {
    std::string stripped;
    llvm::StringRef body = text_.slice(begin, end);
    if (pending.stripsTabs) {
      stripped = withoutTabs(body);
      body = stripped;
    }
    if (!pending.expands) {
      ShellWord word;
      word.parts.push_back({});
      word.parts.back().text = body.str();
      word.range = source_.begin.isValid() ? SourceRange(loc(begin), loc(end)) : source_.whole;
      return word;
    }
    // Where tabs went, only the document as a whole has a place.
    bool isInPlace = source_.begin.isValid() && !pending.stripsTabs;
    SourceRange whole = source_.begin.isValid() ? SourceRange(loc(begin), loc(end)) : source_.whole;
    ShellText inner{body, isInPlace ? loc(begin) : SourceLoc(), whole};
    return parseShellQuoted(inner, diags_, depth_);
  }

  /// At a line's end: after the documents that it has opened.
  void readDocuments() {
    if (bodyEnd_ > at_)
      at_ = bodyEnd_ - 1;
  }

  size_t bodyEnd_ = 0; ///< end of the here-documents that the current line has opened
  size_t numCommands_ = 0;
  ShellScript script_;
};

} // namespace

std::string ShellWord::plain() const {
  if (parts.size() != 1 || parts.front().kind != ShellPart::Kind::Text || parts.front().quoted)
    return {};
  return parts.front().text;
}

std::optional<ShellScript> parseShell(const ShellText &text, DiagEngine &diags, unsigned depth) {
  return Parser(text, diags, depth).run();
}

} // namespace shardc::upstream
