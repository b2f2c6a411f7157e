// shardc explain: effective settings with provenance and reasons; what an option, a rule or a
// diagnostic is.
//
//   explain R.recipe                every setting that is not at its default
//   explain R.recipe ddp            the settings of a section
//   explain R.recipe ddp.nccl_ub    one setting
//   explain fsdp-checkpoint-format  an option, a rule or a diagnostic, without a recipe
//   explain "part of a message"     the rules that say it, or upstream's text that they answer to
#include <CLI/CLI.hpp>

#include "compiler/basic/Suggest.h"
#include "compiler/config/Explain.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

struct ExplainOptions {
  CommonOptions common;
  std::vector<std::string> words; ///< [recipe] [what]
};

int unknown(const std::string &what) {
  llvm::errs() << "shardc: error: nothing is called '" << what << "'";
  if (Suggestion near = suggest(what, config::explainableNames()); !near.names.empty())
    llvm::errs() << "; did you mean " << quotedList(near.names) << "?";
  llvm::errs() << "\n";
  return kInputErrors;
}

int explainAlone(const std::string &what) {
  if (const config::AliasInfo *alias = config::findAlias(what)) {
    for (config::Opt target : alias->targets)
      llvm::outs() << config::explainOption(config::info(target).path);
    return kFine;
  }
  for (const std::string &text :
       {config::explainOption(what), config::explainRule(what), config::explainDiagnostic(what),
        config::explainText(what)})
    if (!text.empty()) {
      llvm::outs() << text;
      return kFine;
    }
  return unknown(what);
}

bool isRecipe(const std::string &word) { return llvm::StringRef(word).endswith(".recipe"); }

int runExplain(ExplainOptions &options) {
  if (options.words.empty()) {
    llvm::errs() << "shardc: error: 'explain' takes a recipe, or the name of an option, a rule or "
                    "a diagnostic\n";
    return kUsage;
  }
  if (!isRecipe(options.words[0]))
    return explainAlone(options.words[0]);
  options.common.load.path = options.words[0];
  std::string what = options.words.size() > 1 ? options.words[1] : "";
  Session session(options.common);
  if (ExitStatus status = session.applyFlags(); status != kFine)
    return status;
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), options.common.load);
  if (!config)
    return session.finish();
  if (what.empty() || config::findSection(what)) {
    llvm::outs() << config::explainAll(*config, session.sources(), what);
    return kFine;
  }
  std::string text;
  if (const config::AliasInfo *alias = config::findAlias(what))
    for (config::Opt target : alias->targets)
      text += config::explainOption(*config, session.sources(), config::info(target).path);
  else
    text = config::explainOption(*config, session.sources(), what);
  if (text.empty())
    return explainAlone(what);
  llvm::outs() << text;
  return kFine;
}

} // namespace

void addExplain(CLI::App &app, int &status) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App *command =
      app.add_subcommand("explain", "effective settings, where they come from and why");
  command->add_option("words", options->words, "[R.recipe] [option, section, rule or diagnostic]")
      ->expected(0, 2);
  options->common.addTo(*command, /*needsRecipe=*/false);
  command->callback([options, &status] { status = runExplain(*options); });
}

} // namespace shardc::tools
