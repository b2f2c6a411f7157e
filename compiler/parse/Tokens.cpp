#include "compiler/parse/Tokens.h"

#include <antlr4-runtime.h>

#include "compiler/basic/Utf8.h"
#include "compiler/parse/Literals.h"
#include "compiler/parse/Parse.h"
#include "grammar/RecipeLexer.h"
#include "grammar/RecipeParser.h"

namespace shardc::parse {

// Kinds of tokens are taken from the parser, since the lexer has only those that it creates itself.
using Kind = grammar::RecipeParser;

size_t TokenList::next(size_t index) const {
  do
    index += index < endIndex() ? 1 : 0;
  while (lexemes_[index].state != Lexeme::State::Seen);
  return index;
}

size_t TokenList::previous(size_t index) const {
  while (index > 0)
    if (lexemes_[--index].state == Lexeme::State::Seen)
      return index;
  return kNoToken;
}

bool TokenList::isName(size_t index) const {
  size_t type = lexemes_[index].type;
  return type == Kind::IDENT || type == Kind::RECIPE || type == Kind::EXTENDS;
}

size_t TokenList::behindPath(size_t index) const {
  size_t behind = next(index);
  while (lexemes_[behind].type == Kind::DOT && isName(next(behind)))
    behind = next(next(behind));
  return behind;
}

bool TokenList::isSettingHead(size_t index) const {
  size_t type = lexemes_[behindPath(index)].type;
  bool isAssign = type == Kind::ASSIGN || type == Kind::ASSIGN_ALONE || type == Kind::COLON;
  return isName(index) && isAssign;
}

bool TokenList::isItemHead(size_t index) const {
  if (lexemes_[index].type == Kind::LET)
    return isName(next(index));
  if (!isName(index))
    return false;
  size_t behind = behindPath(index);
  if (isName(behind) && lexemes_[behind].line == lexemes_[index].line)
    behind = next(behind);
  return lexemes_[behind].type == Kind::LBRACE || isSettingHead(index);
}

bool TokenList::isFirstOnLine(size_t index) const {
  size_t before = previous(index);
  return before == kNoToken || lexemes_[before].line != lexemes_[index].line;
}

bool TokenList::isBehindDropped(size_t index) const {
  while (index > 0 && lexemes_[--index].state != Lexeme::State::Seen)
    if (lexemes_[index].state == Lexeme::State::Dropped)
      return true;
  return false;
}

std::vector<std::unique_ptr<antlr4::Token>> TokenList::antlrTokens() const {
  std::vector<std::unique_ptr<antlr4::Token>> out;
  out.reserve(size());
  for (const Lexeme &lexeme : lexemes_) {
    auto token = std::make_unique<antlr4::CommonToken>(lexeme.type);
    token->setLine(lexeme.line);
    if (lexeme.state != Lexeme::State::Seen)
      token->setChannel(antlr4::Token::HIDDEN_CHANNEL);
    out.push_back(std::move(token));
  }
  return out;
}

/// Fills a TokenList, step by step.
class Scanner {
public:
  Scanner(BufferId buffer, InputKind kind, DiagEngine &diags)
      : buffer_(buffer), kind_(kind), diags_(diags), sources_(diags.sources()),
        text_(diags.sources().text(buffer)) {}

  std::optional<TokenList> run() {
    unsigned numErrorsBefore = diags_.numErrors();
    if (!checkText() || !split())
      return std::nullopt;
    reportFaults();
    joinUnits();
    list_.hasFaults_ = diags_.numErrors() != numErrorsBefore;
    if (!pairBrackets())
      return std::nullopt;
    if (kind_ == InputKind::Recipe)
      markLoneAssigns();
    return std::move(list_);
  }

private:
  Lexeme &at(size_t index) { return list_.lexemes_[index]; }
  SourceRange range(size_t begin, size_t end) const { return sources_.range(buffer_, begin, end); }

  bool checkText() {
    if (text_.size() > kRecipeBytesMax) {
      diags_.report(diag::FileTooLarge, range(0, 0), text_.size(), kRecipeBytesMax);
      return false;
    }
    if (std::optional<size_t> bad = findInvalidUtf8(text_)) {
      diags_.report(diag::NotUtf8, range(*bad, *bad + 1), *bad);
      return false;
    }
    return true;
  }

  /// Runs ANTLR's lexer. It counts code points, which are converted to bytes.
  bool split() {
    antlr4::ANTLRInputStream input(text_.str());
    grammar::RecipeLexer lexer(&input);
    lexer.removeErrorListeners();
    size_t codePoint = 0;
    size_t byte = 0;
    auto byteAt = [&](size_t target) {
      for (; codePoint < target && byte < text_.size(); ++codePoint)
        do
          ++byte;
        while (byte < text_.size() && (text_[byte] & 0xC0) == 0x80);
      return byte;
    };
    // ANTLR's stream drops a byte order mark at the beginning.
    if (text_.startswith("\xEF\xBB\xBF"))
      byte = 3;
    while (true) {
      std::unique_ptr<antlr4::Token> token = lexer.nextToken();
      Lexeme lexeme;
      lexeme.type = token->getType();
      bool isEnd = lexeme.type == antlr4::Token::EOF;
      size_t begin = isEnd ? text_.size() : byteAt(token->getStartIndex());
      size_t end = isEnd ? begin : byteAt(token->getStopIndex() + 1);
      lexeme.range = range(begin, end);
      lexeme.text = text_.slice(begin, end);
      lexeme.line = static_cast<unsigned>(token->getLine());
      if (token->getChannel() != antlr4::Token::DEFAULT_CHANNEL)
        lexeme.state = Lexeme::State::Comment;
      list_.lexemes_.push_back(lexeme);
      if (isEnd)
        return true;
      if (list_.lexemes_.size() >= kTokensMax) {
        diags_.report(diag::TooManyWords, lexeme.range, kTokensMax);
        return false;
      }
    }
  }

  /// Reports tokens that no recipe may have. Neighbouring unknown characters are one error.
  void reportFaults() {
    for (size_t i = 0; i < list_.size(); ++i) {
      Lexeme &lexeme = at(i);
      if (lexeme.type == Kind::OTHER) {
        lexeme.state = Lexeme::State::Dropped;
        bool goesOn =
            i > 0 && at(i - 1).type == Kind::OTHER && at(i - 1).range.end == lexeme.range.begin;
        if (!goesOn)
          diags_.report(diag::UnexpectedCharacter, lexeme.range, lexeme.text);
      } else if (lexeme.type == Kind::HASH_COMMENT) {
        SourceLoc begin = lexeme.range.begin;
        diags_.report(diag::CommentMark, {begin, begin.advanced(1)}, "#")
            .fixIt(FixIt::replace({begin, begin.advanced(1)}, "//"));
      } else if (lexeme.type == Kind::BLOCK_COMMENT) {
        SourceLoc begin = lexeme.range.begin;
        diags_.report(diag::CommentMark, {begin, begin.advanced(2)}, "/*");
      } else if (lexeme.type == Kind::BAD_STRING) {
        reportBadString(lexeme);
      }
    }
  }

  /// A string in single quotes is read as if it had double quotes, so that no other errors follow.
  void reportBadString(Lexeme &lexeme) {
    char quote = lexeme.text[0];
    bool isClosed = lexeme.text.size() > 1 && lexeme.text.back() == quote;
    if (quote == '"' || !isClosed) {
      SourceLoc begin = lexeme.range.begin;
      diags_.report(diag::UnterminatedString, {begin, begin.advanced(1)}, std::string(1, quote));
      return;
    }
    std::optional<StringFault> fault;
    std::string value = decodeString(lexeme.text, fault);
    DiagBuilder report = diags_.report(diag::SingleQuotes, lexeme.range);
    if (!fault) {
      report.fixIt(FixIt::replace(lexeme.range, encodeString(value)));
      lexeme.type = Kind::STRING;
    }
  }

  /// Joins `80 GiB` to one number, and reports it with a fix-it.
  void joinUnits() {
    for (size_t i = 0; i + 1 < list_.size(); ++i) {
      if (at(i).type != Kind::NUMBER || at(i).state != Lexeme::State::Seen)
        continue;
      size_t behind = list_.next(i);
      bool isUnit = at(behind).type == Kind::IDENT &&
                    llvm::is_contained(numberUnits(), at(behind).text) &&
                    at(behind).line == at(i).line && behind == i + 1 && !list_.isItemHead(behind) &&
                    decodeNumber(at(i).text).fault == NumberFault::None &&
                    decodeNumber(at(i).text).unit.empty();
      if (!isUnit)
        continue;
      SourceRange gap(at(i).range.end, at(behind).range.begin);
      diags_.report(diag::UnitApart, at(behind).range, at(i).text, at(behind).text)
          .fixIt(FixIt::remove(gap));
      at(i).range.end = at(behind).range.end;
      at(i).text = sources_.text(at(i).range);
      at(behind).state = Lexeme::State::Dropped;
    }
  }

  /// Finds the partner of each bracket. Reports an error and returns false if the nesting would
  /// exhaust the stack.
  bool pairBrackets() {
    std::vector<size_t> open;
    for (size_t i = 0; i < list_.size(); ++i) {
      switch (at(i).type) {
      case Kind::LBRACE:
      case Kind::LBRACK:
      case Kind::LPAREN:
        open.push_back(i);
        if (open.size() > kNestingMax) {
          diags_.report(diag::NestedTooDeep, at(i).range, kNestingMax);
          return false;
        }
        break;
      case Kind::RBRACE:
      case Kind::RBRACK:
      case Kind::RPAREN:
        closeBracket(i, open);
        break;
      default:
        break;
      }
    }
    auto isBrace = [&](size_t index) { return at(index).type == Kind::LBRACE; };
    auto last = std::find_if(open.rbegin(), open.rend(), isBrace);
    if (last == open.rend())
      list_.unclosedBrace_ = kNoToken; // every brace is closed, despite wrong indentation
    else if (list_.unclosedBrace_ == kNoToken)
      list_.unclosedBrace_ = *last;
    return true;
  }

  void closeBracket(size_t index, std::vector<size_t> &open) {
    bool isBrace = at(index).type == Kind::RBRACE;
    // A closing brace also closes brackets that are still open inside its section. A bracket of a
    // list never closes a section.
    while (isBrace && !open.empty() && at(open.back()).type != Kind::LBRACE)
      open.pop_back();
    if (open.empty() || (!isBrace && at(open.back()).type == Kind::LBRACE))
      return;
    size_t opener = open.back();
    open.pop_back();
    at(index).partner = opener;
    at(opener).partner = index;
    bool looksWrong = isBrace && list_.isFirstOnLine(index) && at(index).line != at(opener).line &&
                      indentation(index) != indentation(opener);
    if (looksWrong && list_.unclosedBrace_ == kNoToken)
      list_.unclosedBrace_ = opener;
  }

  /// The column of the first non-blank byte in the token's line.
  size_t indentation(size_t index) const {
    llvm::StringRef line = sources_.lineText(list_[index].range.begin);
    return line.size() - line.ltrim(" \t").size();
  }

  void markLoneAssigns() {
    for (size_t i = 0; i + 1 < list_.size(); ++i) {
      if (at(i).type != Kind::ASSIGN)
        continue;
      size_t behind = list_.next(i);
      size_t type = at(behind).type;
      bool isLone = type == Kind::RBRACE || type == antlr4::Token::EOF || type == Kind::LET;
      // The rest of the line is the value, unless it is a setting or section itself: `a = b ddp {
      // ...
      // }`.
      bool isNextItem =
          at(behind).line == at(i).line ? list_.isSettingHead(behind) : list_.isItemHead(behind);
      if (isLone || isNextItem)
        at(i).type = Kind::ASSIGN_ALONE;
    }
  }

  BufferId buffer_;
  InputKind kind_;
  DiagEngine &diags_;
  const SourceManager &sources_;
  llvm::StringRef text_;
  TokenList list_;
};

std::optional<TokenList> scanTokens(BufferId buffer, InputKind kind, DiagEngine &diags) {
  return Scanner(buffer, kind, diags).run();
}

} // namespace shardc::parse
