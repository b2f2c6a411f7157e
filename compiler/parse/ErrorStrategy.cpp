#include "compiler/parse/ErrorStrategy.h"

#include "compiler/basic/Utf8.h"
#include "grammar/RecipeParser.h"

namespace shardc::parse {

using Grammar = grammar::RecipeParser;

namespace {

constexpr size_t kWordBytesMax = 40;

bool isListRule(size_t rule) { return rule == Grammar::RuleList || rule == Grammar::RuleGroup; }

bool startsValue(size_t type) {
  switch (type) {
  case Grammar::IDENT:
  case Grammar::RECIPE:
  case Grammar::EXTENDS:
  case Grammar::NUMBER:
  case Grammar::STRING:
  case Grammar::BAD_STRING:
  case Grammar::TRUE:
  case Grammar::FALSE:
  case Grammar::NONE:
  case Grammar::LBRACK:
  case Grammar::LPAREN:
  case Grammar::PLUS:
  case Grammar::MINUS:
    return true;
  default:
    return false;
  }
}

} // namespace

size_t ErrorStrategy::here(antlr4::Parser *parser) const {
  return parser->getCurrentToken()->getTokenIndex();
}

/// The text of a token in the form of messages, which shortens long tokens.
std::string ErrorStrategy::word(size_t index) const {
  llvm::StringRef text = tokens_[index].text;
  if (text.size() <= kWordBytesMax)
    return printable(text);
  size_t end = kWordBytesMax;
  while (end > 0 && (text[end] & 0xC0) == 0x80)
    --end;
  return printable(text.take_front(end)) + "...";
}

ErrorStrategy::Gap ErrorStrategy::gapAt(size_t index) const {
  size_t before = tokens_.previous(index);
  bool isLast = index == tokens_.endIndex();
  if (before != kNoToken && (isLast || tokens_.isFirstOnLine(index)))
    return {SourceRange(tokens_[before].range.end), false, word(before)};
  return {tokens_[index].range, true, word(index)};
}

/// Begins an error at this token. Returns false if no message must follow: the parser has not
/// advanced since the last error, or the cause was already reported (a dropped token, or a string
/// without its closing quote).
bool ErrorStrategy::begin(antlr4::Parser *parser, size_t index) {
  size_t before = tokens_.previous(index);
  bool isBehindString = before != kNoToken && tokens_[before].type == Grammar::BAD_STRING;
  bool isQuiet = inErrorRecoveryMode(parser) || tokens_.isBehindDropped(index) || isBehindString ||
                 tokens_[index].type == Grammar::BAD_STRING;
  beginErrorCondition(parser);
  return !isQuiet;
}

void ErrorStrategy::fail(antlr4::Parser *parser) { throw antlr4::InputMismatchException(parser); }

void ErrorStrategy::skipTo(antlr4::Parser *parser, size_t index) {
  while (here(parser) < index)
    parser->consume();
}

/// The index after a bracket and its contents. If the bracket has no partner, the index of the next
/// token.
size_t ErrorStrategy::skipBracket(size_t index) const {
  size_t partner = tokens_[index].partner;
  return tokens_.next(partner == kNoToken || partner < index ? index : partner);
}

/// Skips tokens up to a point at which the body or, if `inList`, the list can continue.
void ErrorStrategy::skip(antlr4::Parser *parser, bool inList) {
  size_t index = here(parser);
  while (index != tokens_.endIndex()) {
    size_t type = tokens_[index].type;
    bool endsElement = type == Grammar::COMMA || type == Grammar::RBRACK || type == Grammar::RPAREN;
    bool endsItem = tokens_.isItemHead(index) || (!inList && tokens_.isFirstOnLine(index));
    if (type == Grammar::RBRACE || endsItem || (inList && endsElement))
      break;
    bool opens = type == Grammar::LBRACE || type == Grammar::LBRACK || type == Grammar::LPAREN;
    index = opens ? skipBracket(index) : tokens_.next(index);
  }
  skipTo(parser, index);
}

void ErrorStrategy::sync(antlr4::Parser *parser) {
  antlr4::ParserRuleContext *context = parser->getContext();
  size_t rule = ruleOf(context);
  if (rule == Grammar::RuleBody && !context->children.empty())
    syncBody(parser);
  else if (isListRule(rule))
    syncList(parser);
  else if (rule == Grammar::RuleTail && std::exchange(isItemLost_, false))
    fail(parser);
  else if (rule == Grammar::RulePrimary)
    syncPrimary(parser);
}

/// In `a = 3 *` followed by a setting on the next line, the operand is missing, and the setting
/// must not be parsed as the operand.
void ErrorStrategy::syncPrimary(antlr4::Parser *parser) {
  size_t index = here(parser);
  bool isNextItem =
      tokens_.isSettingHead(index) || (tokens_.isFirstOnLine(index) && tokens_.isItemHead(index));
  if (!isNextItem || kind_ == InputKind::Setting)
    return;
  if (begin(parser, index))
    reportGap(diag::ExpectedValue, index);
  fail(parser);
}

void ErrorStrategy::syncBody(antlr4::Parser *parser) {
  for (size_t index = here(parser); !standsInBody(index); index = here(parser)) {
    if (begin(parser, index))
      reportInBody(index);
    bool opens = tokens_[index].type == Grammar::LBRACE;
    skipTo(parser, opens ? skipBracket(index) : tokens_.next(index));
    skip(parser, /*inList=*/false);
    // An error on the next line is a separate one.
    if (tokens_.isFirstOnLine(here(parser)))
      endErrorCondition(parser);
  }
}

bool ErrorStrategy::standsInBody(size_t index) const {
  size_t type = tokens_[index].type;
  return tokens_.isName(index) || type == Grammar::LET || type == Grammar::RBRACE ||
         type == Grammar::COMMA || type == Grammar::SEMICOLON || index == tokens_.endIndex();
}

/// Reports a token where a setting was expected, as precisely as the token allows.
void ErrorStrategy::reportInBody(size_t index) {
  const Lexeme &token = tokens_[index];
  bool isUnmatched =
      (token.type == Grammar::RBRACK || token.type == Grammar::RPAREN) && token.partner == kNoToken;
  if (token.type == Grammar::STRING)
    diags_.report(diag::QuotedName, token.range)
        .fixIt(FixIt::replace(token.range, token.text.drop_front().drop_back(),
                              FixItKind::Alternative));
  else if (isUnmatched)
    diags_.report(diag::UnmatchedClose, token.range, word(index));
  else if (token.type == Grammar::DOT)
    diags_.report(diag::UnquotedText, token.range);
  else
    diags_.report(diag::ExpectedSetting, token.range, word(index));
}

void ErrorStrategy::syncList(antlr4::Parser *parser) {
  size_t index = here(parser);
  size_t type = tokens_[index].type;
  bool isClose = type == Grammar::RBRACK || type == Grammar::RPAREN || type == Grammar::RBRACE;
  // A setting inside a list means that the list was not closed. The setting must not be lost.
  if (tokens_.isItemHead(index)) {
    if (begin(parser, index))
      reportUnclosedList(parser->getContext()->start->getTokenIndex(), index);
    fail(parser);
  }
  if (isClose || type == Grammar::COMMA || startsValue(type) || index == tokens_.endIndex())
    return;
  if (begin(parser, index))
    reportUnclosedList(parser->getContext()->start->getTokenIndex(), index);
  skip(parser, /*inList=*/true);
}

void ErrorStrategy::reportUnclosedList(size_t opener, size_t index) {
  const char *close = tokens_[opener].type == Grammar::LBRACK ? "]" : ")";
  Gap gap = gapAt(index);
  diags_.report(diag::ExpectedListEnd, gap.range, close, gap.isBefore, gap.text)
      .note(diag::OpenedHere, tokens_[opener].range, word(opener));
}

void ErrorStrategy::reportError(antlr4::Parser *parser, const antlr4::RecognitionException &) {
  size_t index = here(parser);
  antlr4::ParserRuleContext *context = parser->getContext();
  if (!begin(parser, index))
    return;
  switch (ruleOf(context)) {
  case Grammar::RuleTail:
    if (context->children.empty())
      reportGap(diag::ExpectedAssignOrBrace, index);
    else
      reportGap(diag::ExpectedValue, index);
    break;
  case Grammar::RuleLetItem:
  case Grammar::RuleAssign:
    reportGap(diag::ExpectedAssign, index);
    break;
  default:
    reportGap(diag::ExpectedValue, index);
    break;
  }
}

void ErrorStrategy::recover(antlr4::Parser *parser, std::exception_ptr) {
  antlr4::RuleContext *context = parser->getContext();
  size_t rule = ruleOf(context);
  bool isOutside = rule == Grammar::RuleRecipe || rule == Grammar::RuleRecipeFile;
  if (isOutside || kind_ == InputKind::Setting)
    return skipTo(parser, tokens_.endIndex());
  // After an error in a list itself, the list is abandoned; after an error in an element, the list
  // continues.
  bool inList = false;
  if (isListRule(rule))
    context = parentOf(context);
  for (; context && ruleOf(context) != Grammar::RuleBody && !inList; context = parentOf(context))
    inList = isListRule(ruleOf(context));
  skip(parser, inList);
}

} // namespace shardc::parse
