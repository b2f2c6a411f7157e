// The part of ErrorStrategy that handles a single missing or wrong token.
#include "compiler/basic/Suggest.h"
#include "compiler/parse/ErrorStrategy.h"
#include "grammar/RecipeParser.h"

namespace shardc::parse {

using Grammar = grammar::RecipeParser;

antlr4::Token *ErrorStrategy::recoverInline(antlr4::Parser *parser) {
  antlr4::ParserRuleContext *context = parser->getContext();
  switch (ruleOf(context)) {
  case Grammar::RuleRecipeFile:
  case Grammar::RuleSettingText:
    return recoverAtEnd(parser);
  case Grammar::RuleRecipe:
    return recoverHeader(parser);
  case Grammar::RuleExtendsClause:
    return recoverBase(parser);
  case Grammar::RuleName:
    return recoverName(parser);
  case Grammar::RuleBody:
    return context->children.empty() ? recoverOpenBrace(parser) : recoverCloseBrace(parser);
  case Grammar::RuleList:
  case Grammar::RuleGroup:
    return recoverListEnd(parser);
  default:
    fail(parser);
  }
}

antlr4::Token *ErrorStrategy::recoverAtEnd(antlr4::Parser *parser) {
  size_t index = here(parser);
  if (begin(parser, index)) {
    if (tokens_[index].type == Grammar::RBRACE)
      diags_.report(diag::UnmatchedClose, tokens_[index].range, word(index));
    else if (tokens_[index].type == Grammar::RECIPE && kind_ == InputKind::Recipe)
      diags_.report(diag::SecondRecipe, tokens_[index].range);
    else
      diags_.report(diag::TextAfterEnd, tokens_[index].range, word(index));
  }
  isStructureKnown_ = false;
  fail(parser);
}

/// Handles a file that does not begin with `recipe`.
antlr4::Token *ErrorStrategy::recoverHeader(antlr4::Parser *parser) {
  size_t index = here(parser);
  const Lexeme &token = tokens_[index];
  size_t behind = tokens_.next(index);
  size_t type = tokens_[behind].type;
  bool hasName = tokens_.isName(behind) && type != Grammar::EXTENDS;
  bool isMisspelt =
      token.type == Grammar::IDENT && hasName && editDistance(token.text, "recipe", 2) <= 2;
  bool isLoud = begin(parser, index);
  if (isMisspelt) {
    if (isLoud)
      diags_.report(diag::ExpectedRecipe, token.range, word(index))
          .fixIt(FixIt::replace(token.range, "recipe"));
    return parser->consume();
  }
  if (isLoud && index == tokens_.endIndex())
    diags_.report(diag::EmptyRecipe, token.range);
  else if (isLoud)
    diags_.report(diag::ExpectedRecipe, token.range, word(index));
  isStructureKnown_ = false;
  fail(parser);
}

/// Handles `extends base.recipe`, which lacks quotes, and `extends` without a base.
antlr4::Token *ErrorStrategy::recoverBase(antlr4::Parser *parser) {
  size_t first = here(parser);
  size_t end = first;
  while (end != tokens_.endIndex() && tokens_[end].type != Grammar::COMMA &&
         tokens_[end].type != Grammar::LBRACE && tokens_[end].type != Grammar::RBRACE)
    end = tokens_.next(end);
  if (begin(parser, first)) {
    Gap gap = gapAt(first);
    DiagBuilder report = diags_.report(diag::ExpectedBase, gap.range, gap.isBefore, gap.text);
    if (end != first) {
      SourceRange path(tokens_[first].range.begin, tokens_[tokens_.previous(end)].range.end);
      std::string quoted = "\"" + diags_.sources().text(path).str() + "\"";
      bool isOneWord =
          llvm::StringRef(quoted).find_first_of(" \t\r\n\\") == llvm::StringRef::npos &&
          llvm::StringRef(quoted).count('"') == 2;
      if (isOneWord)
        report.fixIt(FixIt::replace(path, quoted, FixItKind::Alternative));
    }
  }
  skipTo(parser, end);
  return parser->getCurrentToken();
}

antlr4::Token *ErrorStrategy::recoverName(antlr4::Parser *parser) {
  size_t index = here(parser);
  size_t type = tokens_[index].type;
  size_t parent = ruleOf(parentOf(parser->getContext()));
  if (begin(parser, index))
    reportGap(diag::ExpectedName, index);
  if (parent == Grammar::RuleRecipe) {
    // Continues with the block or the bases after a wrong name.
    bool isThere = type == Grammar::LBRACE || index == tokens_.endIndex();
    return isThere ? parser->getCurrentToken() : parser->consume();
  }
  bool goesOn = type == Grammar::ASSIGN || type == Grammar::ASSIGN_ALONE ||
                type == Grammar::COLON || type == Grammar::LBRACE;
  if (goesOn)
    return parser->getCurrentToken();
  isItemLost_ = parent == Grammar::RulePath;
  fail(parser);
}

antlr4::Token *ErrorStrategy::recoverOpenBrace(antlr4::Parser *parser) {
  size_t index = here(parser);
  antlr4::RuleContext *parent = parentOf(parser->getContext());
  if (ruleOf(parent) == Grammar::RuleTail)
    if (auto *label = static_cast<Grammar::TailContext *>(parent)->label())
      return recoverLabelled(parser, label->start->getTokenIndex());
  if (begin(parser, index))
    reportGap(diag::ExpectedOpenBrace, index);
  if (ruleOf(parent) != Grammar::RuleRecipe)
    fail(parser);
  size_t brace = index;
  while (brace != tokens_.endIndex() && tokens_[brace].type != Grammar::LBRACE)
    brace = tokens_.next(brace);
  // If there is no brace, or only one of a section, no recipe can be parsed.
  if (brace == tokens_.endIndex() || tokens_.isItemHead(index)) {
    isStructureKnown_ = false;
    fail(parser);
  }
  skipTo(parser, brace);
  return parser->consume();
}

/// Handles two names without a block after them: either `use_fsdp yes` lacks its '=', or the first
/// name is alone and the second one begins the next setting.
antlr4::Token *ErrorStrategy::recoverLabelled(antlr4::Parser *parser, size_t labelIndex) {
  size_t index = here(parser);
  size_t nameIndex = tokens_.previous(labelIndex);
  bool isOneLine = tokens_[nameIndex].line == tokens_[labelIndex].line;
  bool isSecondHead = tokens_.isItemHead(labelIndex);
  bool isLoud = begin(parser, index);
  if (isOneLine && !isSecondHead) {
    SourceRange end(tokens_[nameIndex].range.end);
    if (isLoud)
      diags_
          .report(diag::MissingAssign, tokens_[labelIndex].range, word(nameIndex), word(labelIndex))
          .fixIt(FixIt::insert(end.begin, " ="));
    fail(parser);
  }
  if (isLoud)
    reportGap(diag::ExpectedAssignOrBrace, labelIndex);
  parser->getInputStream()->seek(labelIndex);
  fail(parser);
}

/// Names the brace that has no partner, or else the one that began the current section.
antlr4::Token *ErrorStrategy::recoverCloseBrace(antlr4::Parser *parser) {
  size_t index = here(parser);
  isStructureKnown_ = false;
  if (begin(parser, index)) {
    size_t opener = tokens_.unclosedBrace();
    if (opener == kNoToken)
      opener = parser->getContext()->start->getTokenIndex();
    diags_.report(diag::ExpectedCloseBrace, gapAt(index).range)
        .note(diag::OpenedHere, tokens_[opener].range, word(opener));
  }
  fail(parser);
}

/// At a bracket of the other kind, reports it and takes it for the right one. At any other token,
/// the list is not closed.
antlr4::Token *ErrorStrategy::recoverListEnd(antlr4::Parser *parser) {
  size_t index = here(parser);
  size_t opener = parser->getContext()->start->getTokenIndex();
  size_t type = tokens_[index].type;
  if (type != Grammar::RBRACK && type != Grammar::RPAREN) {
    if (begin(parser, index))
      reportUnclosedList(opener, index);
    fail(parser);
  }
  const char *close = tokens_[opener].type == Grammar::LBRACK ? "]" : ")";
  if (begin(parser, index))
    diags_.report(diag::MismatchedClose, tokens_[index].range, close, word(index))
        .fixIt(FixIt::replace(tokens_[index].range, close, FixItKind::Alternative))
        .note(diag::OpenedHere, tokens_[opener].range, word(opener));
  return parser->consume();
}

} // namespace shardc::parse
