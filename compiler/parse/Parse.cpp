#include "compiler/parse/Parse.h"

#include <RuntimeMetaData.h>
#include <antlr4-runtime.h>

#include "compiler/parse/Builder.h"
#include "compiler/parse/ErrorStrategy.h"
#include "compiler/parse/Tokens.h"
#include "grammar/RecipeParser.h"

namespace shardc {

namespace parse {

namespace {

using Grammar = grammar::RecipeParser;

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
