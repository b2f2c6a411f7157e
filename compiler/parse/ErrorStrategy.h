// Reports text that ANTLR cannot match, and decides where parsing continues: at the next setting or
// section, or after the brace. One fault causes one message. Internal to compiler/parse, since it
// includes ANTLR.
#pragma once

#include <antlr4-runtime.h>

#include "compiler/diag/Engine.h"
#include "compiler/parse/Tokens.h"

namespace shardc::parse {

inline size_t ruleOf(antlr4::RuleContext *context) { return context->getRuleIndex(); }

inline antlr4::RuleContext *parentOf(antlr4::RuleContext *context) {
  return static_cast<antlr4::RuleContext *>(context->parent);
}

class ErrorStrategy : public antlr4::DefaultErrorStrategy {
public:
  ErrorStrategy(const TokenList &tokens, InputKind kind, DiagEngine &diags)
      : tokens_(tokens), kind_(kind), diags_(diags) {}

  /// Called before each decision. Skips tokens that cannot occur in a body or list, so that the
  /// loop over its items continues.
  void sync(antlr4::Parser *parser) override;
  /// Called if one token does not match. Continues as if the right token had been there, or throws.
  antlr4::Token *recoverInline(antlr4::Parser *parser) override;
  void reportError(antlr4::Parser *parser, const antlr4::RecognitionException &e) override;
  void recover(antlr4::Parser *parser, std::exception_ptr e) override;

  /// Whether braces matched and there was no text outside the recipe. Otherwise it is unknown which
  /// settings belong to which section.
  bool isStructureKnown() const { return isStructureKnown_; }

private:
  /// Location and wording of a message about a missing token: after the last token or before the
  /// next one.
  struct Gap {
    SourceRange range;
    bool isBefore;
    std::string text;
  };

  size_t here(antlr4::Parser *parser) const;
  Gap gapAt(size_t index) const;
  std::string word(size_t index) const;
  template <typename... Args>
  void reportGap(const TypedDiag<diag::Int, Args...> &row, size_t index) {
    Gap gap = gapAt(index);
    diags_.report(row, gap.range, gap.isBefore, gap.text);
  }

  bool begin(antlr4::Parser *parser, size_t index);
  [[noreturn]] void fail(antlr4::Parser *parser);
  void skipTo(antlr4::Parser *parser, size_t index);
  void skip(antlr4::Parser *parser, bool inList);
  size_t skipBracket(size_t index) const;

  void syncBody(antlr4::Parser *parser);
  bool standsInBody(size_t index) const;
  void syncPrimary(antlr4::Parser *parser);
  void syncList(antlr4::Parser *parser);
  void reportInBody(size_t index);
  void reportUnclosedList(size_t opener, size_t index);

  // One function for each rule with a token that may be missing. Defined in InlineRecovery.cpp.
  antlr4::Token *recoverAtEnd(antlr4::Parser *parser);
  antlr4::Token *recoverHeader(antlr4::Parser *parser);
  antlr4::Token *recoverBase(antlr4::Parser *parser);
  antlr4::Token *recoverName(antlr4::Parser *parser);
  antlr4::Token *recoverOpenBrace(antlr4::Parser *parser);
  antlr4::Token *recoverLabelled(antlr4::Parser *parser, size_t labelIndex);
  antlr4::Token *recoverCloseBrace(antlr4::Parser *parser);
  antlr4::Token *recoverListEnd(antlr4::Parser *parser);

  const TokenList &tokens_;
  InputKind kind_;
  DiagEngine &diags_;
  bool isStructureKnown_ = true;
  bool isItemLost_ = false; ///< a path could not be parsed, so the rest of its setting is skipped
};

} // namespace shardc::parse
