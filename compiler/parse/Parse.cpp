#include "compiler/parse/Parse.h"

#include <RuntimeMetaData.h>
#include <antlr4-runtime.h>
#include <vector>

#include "compiler/parse/ErrorStrategy.h"
#include "compiler/parse/Tokens.h"
#include "compiler/parse/ValueBuilder.h"
#include "grammar/RecipeParser.h"

namespace shardc {

namespace parse {

namespace {

using Grammar = grammar::RecipeParser;

/// Converts the parse tree to the Ast. Reports malformed input that the grammar accepts, and builds
/// the tree as if it had been written correctly.
class Builder {
public:
  Builder(const TokenList &tokens, ast::Ast &ast, DiagEngine &diags)
      : tokens_(tokens), ast_(ast), diags_(diags), values_(tokens, ast, diags) {}

  ast::Recipe *recipe(Grammar::RecipeFileContext *file) {
    const Lexeme &end = tokens_[tokens_.endIndex()];
    Grammar::RecipeContext *context = file->recipe();
    if (!context)
      return ast_.make<ast::Recipe>(SourceRange(end.range));
    size_t last = context->stop ? context->stop->getTokenIndex() : tokens_.endIndex();
    SourceRange range = tokens_[context->start->getTokenIndex()].range.joined(tokens_[last].range);
    auto *recipe = ast_.make<ast::Recipe>(range);
    if (std::optional<ast::Ident> name = ident(context->name()))
      recipe->name = *name;
    if (Grammar::ExtendsClauseContext *bases = context->extendsClause()) {
      std::vector<const ast::StringValue *> paths;
      for (antlr4::tree::TerminalNode *path : bases->STRING())
        if (!dynamic_cast<antlr4::tree::ErrorNode *>(path))
          paths.push_back(values_.string(path->getSymbol()->getTokenIndex()));
      recipe->bases = ast_.copy(llvm::ArrayRef<const ast::StringValue *>(paths));
    }
    Items items;
    recipeItems_ = &items;
    if (context->body())
      body(context->body(), items, /*isRecipe=*/true);
    recipe->items = ast_.copy(llvm::ArrayRef<const ast::Item *>(items));
    return recipe;
  }

  ast::Recipe *setting(Grammar::SettingTextContext *context) {
    SourceRange all(tokens_[0].range.begin, tokens_[tokens_.endIndex()].range.end);
    auto *recipe = ast_.make<ast::Recipe>(all);
    recipe->isSetting = true;
    Path names = context->path() ? path(context->path()) : Path();
    if (names.empty() || !context->value() || context->exception)
      return recipe;
    checkAssign(context->assign());
    const ast::Item *item = assignment(names, values_.value(context->value()));
    recipe->items = ast_.copy(llvm::ArrayRef<const ast::Item *>(item));
    return recipe;
  }

private:
  using Items = std::vector<const ast::Item *>;
  using Path = llvm::ArrayRef<ast::Ident>;

  void body(Grammar::BodyContext *context, Items &items, bool isRecipe) {
    for (antlr4::tree::ParseTree *child : context->children) {
      auto *next = dynamic_cast<Grammar::ItemContext *>(child);
      if (!next)
        continue;
      if (items.size() >= kBodyItemsMax) {
        diags_.report(diag::BodyTooLong, tokens_[next->start->getTokenIndex()].range,
                      kBodyItemsMax);
        return;
      }
      item(next, items, isRecipe);
    }
  }

  void item(Grammar::ItemContext *context, Items &items, bool isRecipe) {
    if (context->letItem())
      let(context->letItem(), isRecipe);
    else if (context->entry())
      entry(context->entry(), items);
    else if (context->COMMA() || context->SEMICOLON())
      separator(context->start->getTokenIndex());
  }

  void entry(Grammar::EntryContext *context, Items &items) {
    Path names = context->path() ? path(context->path()) : Path();
    if (names.empty() || !context->tail())
      return;
    const ast::Item *made =
        context->tail()->assign() ? assigned(context, names) : withoutAssign(context, names);
    if (made)
      items.push_back(made);
  }

  void let(Grammar::LetItemContext *context, bool isRecipe) {
    const Lexeme &keyword = tokens_[context->start->getTokenIndex()];
    if (!isRecipe)
      diags_.report(diag::LetInSection, keyword.range);
    std::optional<ast::Ident> name = ident(context->name());
    if (!name)
      return;
    const ast::Value *value = nullptr;
    if (context->value()) {
      checkAssign(context->assign());
      value = values_.value(context->value());
    } else {
      if (context->ASSIGN_ALONE())
        reportLoneAssign(context->ASSIGN_ALONE()->getSymbol()->getTokenIndex());
      value = values_.error(SourceRange(name->range.end));
    }
    auto *let = ast_.make<ast::Let>(keyword.range.joined(value->range));
    let->name = *name;
    let->value = value;
    recipeItems_->push_back(let);
  }

  void separator(size_t tokenIndex) {
    const Lexeme &token = tokens_[tokenIndex];
    bool isTight = tokens_[tokens_.next(tokenIndex)].range.begin == token.range.end;
    diags_.report(diag::SettingSeparator, token.range, token.text)
        .fixIt(FixIt::replace(token.range, isTight ? " " : ""));
  }

  /// Builds `path = value`, and two malformed forms with an '=' before a block.
  const ast::Item *assigned(Grammar::EntryContext *context, Path names) {
    Grammar::TailContext *tail = context->tail();
    size_t assignIndex = tail->assign()->start->getTokenIndex();
    Grammar::BodyContext *block = tail->body();
    if (!block) {
      checkAssign(tail->assign());
      SourceRange nothing(tokens_[assignIndex].range.end);
      return assignment(names,
                        tail->value() ? values_.value(tail->value()) : values_.error(nothing));
    }
    if (!tail->value()) {
      diags_.report(diag::SectionAssign, tokens_[assignIndex].range)
          .fixIt(FixIt::remove(diags_.sources().removalRange(tokens_[assignIndex].range)));
      return section(names, std::nullopt, block);
    }
    // `mixed_precision = bf16_mixed { ... }`: a value that is a single name was meant as the
    // section's label.
    size_t first = tail->value()->start->getTokenIndex();
    size_t brace = block->start->getTokenIndex();
    if (tokens_.isName(first) && tokens_.next(first) == brace) {
      diags_.report(diag::SectionAssign, tokens_[assignIndex].range)
          .fixIt(FixIt::remove(diags_.sources().removalRange(tokens_[assignIndex].range)));
      return section(names, ast::Ident{tokens_[first].text, tokens_[first].range}, block);
    }
    checkAssign(tail->assign());
    diags_.report(diag::BlockAfterValue, tokens_[brace].range, text(names));
    return assignment(names, values_.value(tail->value()));
  }

  /// An entry without `=`: a section with a body, or a setting whose `=` is missing. Line breaks
  /// decide between the two, and each malformed form is reported once, as what the author most
  /// likely meant.
  const ast::Item *withoutAssign(Grammar::EntryContext *context, Path names) {
    Grammar::TailContext *tail = context->tail();
    if (tail->ASSIGN_ALONE()) {
      size_t assignIndex = tail->ASSIGN_ALONE()->getSymbol()->getTokenIndex();
      reportLoneAssign(assignIndex);
      return assignment(names, values_.error(SourceRange(tokens_[assignIndex].range.end)));
    }
    if (tail->literal()) {
      size_t first = tail->literal()->start->getTokenIndex();
      if (!tokens_.isBehindDropped(first))
        diags_.report(diag::MissingAssign, tokens_[first].range, text(names), tokens_[first].text)
            .fixIt(FixIt::insert(names.back().range.end, " ="));
      return assignment(names, values_.literal(tail->literal()));
    }
    if (!tail->body())
      return nullptr;
    std::optional<ast::Ident> label;
    if (tail->label())
      label = ident(tail->label()->name());
    bool hasBrace = !tail->body()->children.empty() &&
                    tokens_[tail->body()->start->getTokenIndex()].type == Grammar::LBRACE;
    size_t labelIndex = tail->label() ? tail->label()->start->getTokenIndex() : kNoToken;
    if (hasBrace && label && tokens_.isFirstOnLine(labelIndex)) {
      // The first name is alone on its line; the section starts on the next line.
      SourceRange end(names.back().range.end);
      diags_.report(diag::ExpectedAssignOrBrace, end, 0, names.back().text);
      return section(ast_.copy(llvm::ArrayRef<ast::Ident>(*label)), std::nullopt, tail->body());
    }
    if (hasBrace)
      return section(names, label, tail->body());
    // `use_fsdp yes`: the error strategy has already reported the missing '='.
    bool isMissingAssign =
        label && !tokens_.isFirstOnLine(labelIndex) && !tokens_.isItemHead(labelIndex);
    return isMissingAssign ? assignment(names, values_.name(labelIndex)) : nullptr;
  }

  const ast::Item *assignment(Path names, const ast::Value *value) {
    SourceRange pathRange = names.front().range.joined(names.back().range);
    auto *made = ast_.make<ast::Assignment>(pathRange.joined(value->range));
    made->path = names;
    made->pathRange = pathRange;
    made->value = value;
    return made;
  }

  const ast::Item *section(Path names, std::optional<ast::Ident> label,
                           Grammar::BodyContext *context) {
    size_t open = context->start->getTokenIndex();
    size_t close = tokens_[open].partner;
    SourceRange pathRange = names.front().range.joined(names.back().range);
    if (names.size() > 1)
      diags_.report(diag::DottedSection, pathRange, text(names));
    Items items;
    body(context, items, /*isRecipe=*/false);
    SourceRange end = close == kNoToken ? tokens_[open].range : tokens_[close].range;
    // A dotted name means nested sections; the innermost one has the block.
    ast::Section *made = nullptr;
    for (const ast::Ident &name : llvm::reverse(names)) {
      auto *outer = ast_.make<ast::Section>(pathRange.joined(end));
      outer->name = name;
      outer->openBrace = tokens_[open].range.begin;
      outer->closeBrace = close == kNoToken ? SourceLoc() : tokens_[close].range.begin;
      outer->label = made ? std::nullopt : label;
      outer->head = label && !made ? name.range.joined(label->range) : name.range;
      if (made)
        items.assign(1, made);
      outer->items = ast_.copy(llvm::ArrayRef<const ast::Item *>(items));
      made = outer;
    }
    return made;
  }

  Builder::Path path(Grammar::PathContext *context) {
    llvm::SmallVector<ast::Ident, 4> names;
    for (antlr4::tree::ParseTree *child : context->children) {
      auto *name = dynamic_cast<Grammar::NameContext *>(child);
      if (!name)
        continue;
      std::optional<ast::Ident> found = ident(name);
      if (!found)
        return {}; // a partial path would set another option
      names.push_back(*found);
    }
    return ast_.copy(llvm::ArrayRef<ast::Ident>(names));
  }

  std::optional<ast::Ident> ident(Grammar::NameContext *context) {
    if (!context || context->exception || context->children.empty())
      return std::nullopt;
    size_t index = context->start->getTokenIndex();
    if (!tokens_.isName(index))
      return std::nullopt;
    return ast::Ident{tokens_[index].text, tokens_[index].range};
  }

  void checkAssign(Grammar::AssignContext *context) {
    if (!context || !context->COLON())
      return;
    SourceRange colon = tokens_[context->start->getTokenIndex()].range;
    diags_.report(diag::ColonAssign, colon).fixIt(FixIt::replace(colon, " ="));
  }

  void reportLoneAssign(size_t tokenIndex) {
    SourceRange end(tokens_[tokenIndex].range.end);
    if (!tokens_.isBehindDropped(tokens_.next(tokenIndex)))
      diags_.report(diag::ExpectedValue, end, 0, "=");
  }

  std::string text(Path names) const {
    std::string out;
    for (const ast::Ident &name : names)
      out += (out.empty() ? "" : ".") + name.text.str();
    return out;
  }

  const TokenList &tokens_;
  ast::Ast &ast_;
  DiagEngine &diags_;
  ValueBuilder values_;
  Items *recipeItems_ = nullptr; ///< receives every `let`, wherever it was written
};

/// One run of ANTLR over a list of tokens, with all objects to which its parse tree refers.
class Run {
public:
  explicit Run(const TokenList &tokens)
      : source_(tokens.antlrTokens()), stream_(&source_), parser_(&stream_) {
    parser_.removeErrorListeners();
  }

  Grammar &parser() { return parser_; }
  void setMode(antlr4::atn::PredictionMode mode) {
    parser_.getInterpreter<antlr4::atn::ParserATNSimulator>()->setPredictionMode(mode);
  }

private:
  antlr4::ListTokenSource source_;
  antlr4::CommonTokenStream stream_;
  Grammar parser_;
};

/// Runs `rule` with the fast prediction mode, which accepts every correct input. After an error,
/// runs it again with full prediction, to get good messages. `build` creates the result from the
/// final run.
template <typename Rule, typename Build>
void runTwice(const TokenList &tokens, InputKind kind, DiagEngine &diags, Rule rule, Build build) {
  unsigned numErrorsBefore = diags.numErrors();
  size_t faultIndex = 0;
  {
    Run quick(tokens);
    quick.setMode(antlr4::atn::PredictionMode::SLL);
    quick.parser().setErrorHandler(std::make_shared<antlr4::BailErrorStrategy>());
    try {
      return build((quick.parser().*rule)(), /*isStructureKnown=*/true);
    } catch (const antlr4::ParseCancellationException &) {
      faultIndex = quick.parser().getCurrentToken()->getTokenIndex();
    }
  }
  Run full(tokens);
  full.setMode(antlr4::atn::PredictionMode::LL);
  auto strategy = std::make_shared<ErrorStrategy>(tokens, kind, diags);
  full.parser().setErrorHandler(strategy);
  auto *tree = (full.parser().*rule)();
  build(tree, strategy->isStructureKnown());
  // If the grammar refuses an input, an error must be reported, even if all messages about it were
  // suppressed as consequences.
  bool wasSilent = diags.numErrors() == numErrorsBefore && !tokens.hasFaults();
  if (wasSilent)
    diags.report(diag::ExpectedSetting, tokens[faultIndex].range, tokens[faultIndex].text);
}

} // namespace

} // namespace parse

std::unique_ptr<ast::Ast> parseRecipe(BufferId buffer, DiagEngine &diags) {
  auto ast = std::make_unique<ast::Ast>();
  std::optional<parse::TokenList> tokens =
      parse::scanTokens(buffer, parse::InputKind::Recipe, diags);
  if (!tokens) {
    auto *recipe = ast->make<ast::Recipe>(SourceRange(diags.sources().loc(buffer, 0)));
    recipe->isStructureKnown = false;
    ast->setRecipe(recipe);
    return ast;
  }
  parse::runTwice(*tokens, parse::InputKind::Recipe, diags, &parse::Grammar::recipeFile,
                  [&](parse::Grammar::RecipeFileContext *tree, bool isStructureKnown) {
                    ast::Recipe *recipe = parse::Builder(*tokens, *ast, diags).recipe(tree);
                    recipe->isStructureKnown = isStructureKnown;
                    ast->setRecipe(recipe);
                  });
  return ast;
}

std::unique_ptr<ast::Ast> parseSetting(BufferId buffer, DiagEngine &diags) {
  auto ast = std::make_unique<ast::Ast>();
  std::optional<parse::TokenList> tokens =
      parse::scanTokens(buffer, parse::InputKind::Setting, diags);
  if (!tokens) {
    auto *recipe = ast->make<ast::Recipe>(SourceRange(diags.sources().loc(buffer, 0)));
    recipe->isSetting = true;
    ast->setRecipe(recipe);
    return ast;
  }
  parse::runTwice(*tokens, parse::InputKind::Setting, diags, &parse::Grammar::settingText,
                  [&](parse::Grammar::SettingTextContext *tree, bool) {
                    ast->setRecipe(parse::Builder(*tokens, *ast, diags).setting(tree));
                  });
  return ast;
}

std::string parserVersion() { return antlr4::RuntimeMetaData::getRuntimeVersion(); }

} // namespace shardc
