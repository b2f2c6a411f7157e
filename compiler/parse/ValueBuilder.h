// Converts the parse tree of a value to ast::Value. Interprets literals and reports their errors.
// Internal to compiler/parse, since it includes ANTLR.
#pragma once

#include "compiler/ast/Ast.h"
#include "compiler/diag/Engine.h"
#include "compiler/parse/Literals.h"
#include "compiler/parse/Tokens.h"
#include "grammar/RecipeParser.h"

namespace shardc::parse {

class ValueBuilder {
public:
  using Grammar = grammar::RecipeParser;

  ValueBuilder(const TokenList &tokens, ast::Ast &ast, DiagEngine &diags)
      : tokens_(tokens), ast_(ast), diags_(diags) {}

  /// Never returns null: a part that could not be parsed becomes an ErrorValue.
  const ast::Value *value(Grammar::ValueContext *context);
  const ast::Value *literal(Grammar::LiteralContext *context);
  /// The value that a name stands for.
  const ast::Value *name(size_t tokenIndex);
  /// The base of `extends`, or null if it could not be read.
  const ast::StringValue *string(size_t tokenIndex);
  const ast::Value *error(SourceRange range) { return ast_.make<ast::ErrorValue>(range); }

private:
  /// A value, and the height of its tree. The height is limited so that recursive functions do not
  /// exhaust the stack.
  struct Built {
    const ast::Value *value;
    unsigned height = 1;
  };

  Built sum(antlr4::ParserRuleContext *context);
  Built product(Grammar::ProductContext *context);
  Built unary(Grammar::UnaryContext *context);
  Built primary(Grammar::PrimaryContext *context);
  Built literalOf(Grammar::LiteralContext *context);
  template <typename Operand, typename Make>
  Built chain(antlr4::ParserRuleContext *context, Make make);
  Built binary(size_t opIndex, Built left, Built right);
  Built list(antlr4::ParserRuleContext *context, bool isTuple);
  Built parenthesised(Built inner, SourceRange range);

  const ast::Value *token(size_t index);
  const ast::Value *number(size_t index);
  const ast::Value *numberFault(size_t index, const NumberLiteral &literal);
  void stringFault(size_t index, const StringFault &fault);
  SourceRange rangeOf(antlr4::ParserRuleContext *context) const;

  const TokenList &tokens_;
  ast::Ast &ast_;
  DiagEngine &diags_;
};

} // namespace shardc::parse
