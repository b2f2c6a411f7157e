// Converts the parse tree to the Ast. Reports malformed input that the grammar accepts, and builds
// the tree as if it had been written correctly. Internal to compiler/parse, since it includes
// ANTLR.
#pragma once

#include <vector>

#include "compiler/parse/ValueBuilder.h"

namespace shardc::parse {

class Builder {
public:
  using Grammar = grammar::RecipeParser;

  Builder(const TokenList &tokens, ast::Ast &ast, DiagEngine &diags)
      : tokens_(tokens), ast_(ast), diags_(diags), values_(tokens, ast, diags) {}

  ast::Recipe *recipe(Grammar::RecipeFileContext *context);
  ast::Recipe *setting(Grammar::SettingTextContext *context);

private:
  using Items = std::vector<const ast::Item *>;
  using Path = llvm::ArrayRef<ast::Ident>;

  void body(Grammar::BodyContext *context, Items &items, bool isRecipe);
  void item(Grammar::ItemContext *context, Items &items, bool isRecipe);
  void entry(Grammar::EntryContext *context, Items &items);
  void let(Grammar::LetItemContext *context, bool isRecipe);
  void separator(size_t tokenIndex);

  const ast::Item *assigned(Grammar::EntryContext *context, Path path);
  const ast::Item *withoutAssign(Grammar::EntryContext *context, Path path);
  const ast::Item *assignment(Path path, const ast::Value *value);
  const ast::Item *section(Path path, std::optional<ast::Ident> label,
                           Grammar::BodyContext *context);

  Path path(Grammar::PathContext *context);
  std::optional<ast::Ident> ident(Grammar::NameContext *context);
  void checkAssign(Grammar::AssignContext *context);
  void reportLoneAssign(size_t tokenIndex);
  std::string text(Path path) const;

  const TokenList &tokens_;
  ast::Ast &ast_;
  DiagEngine &diags_;
  ValueBuilder values_;
  Items *recipeItems_ = nullptr; ///< receives every `let`, wherever it was written
};

} // namespace shardc::parse
