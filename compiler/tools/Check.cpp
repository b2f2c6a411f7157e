// shardc check: all errors, warnings and remarks of a recipe, including whether the plan fits.
#include "compiler/ast/Dump.h"
#include "compiler/basic/Format.h"
#include "compiler/basic/Numbers.h"
#include "compiler/basic/Utf8.h"
#include "compiler/diag/FixItApply.h"
#include "compiler/diag/VerifyConsumer.h"
#include "compiler/lower/Lower.h"
#include "compiler/parse/Parse.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Io.h"
#include "runtime/base/Output.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

struct CheckOptions {
  CommonOptions common;
  std::vector<std::string> recipes;
  std::string fix; ///< empty, "applied" or "recommended"
  bool verifyDiagnostics = false;
  bool splitInput = false;
  bool dumpAst = false;
  bool canRun = false; ///< a recipe that cannot be compiled is an error
};

/// Parses, configures and compiles a recipe. Writes nothing.
void checkBuffer(BufferId buffer, SourceManager &sources, DiagEngine &diags,
                 const CommonOptions &common) {
  std::optional<config::Config> config = config::loadConfig(sources, diags, buffer, common.load);
  if (!config)
    return;
  CompileOptions compileOptions;
  compileOptions.mustExecute = false;
  compileOptions.saysIfUnchecked = true;
  compile(*config, sources, diags, common, compileOptions);
}

/// Maximum number of rounds. Fix-its for the same place take a round each, and so do those of
/// messages that appear only after a fix. If this many rounds do not suffice, two fix-its undo each
/// other.
constexpr unsigned kFixRoundsMax = 16;

/// Applies the fix-its and writes the changed files. Adds the number of applied fix-its to
/// `numApplied`.
ExitStatus writeFixes(const Session &session, const CheckOptions &options, unsigned &numApplied) {
  bool recommended = options.fix == "recommended";
  FixItResult fixed = applyFixIts(session.sources(), session.diags().pending(), recommended);
  for (const auto &[buffer, text] : fixed.texts)
    if (rewriteFile(session.sources().name(buffer).str(), text, options.common.load.path) != kFine)
      return kRunFailed;
  numApplied += fixed.texts.empty() ? 0 : fixed.numApplied;
  return kFine;
}

/// Applies the fix-its of all messages, and repeats this for the messages of the result until no
/// fix-it is left. Adds the number of applied fix-its to `numApplied`.
ExitStatus applyFixes(const CheckOptions &options, unsigned &numApplied) {
  for (unsigned round = 0; round < kFixRoundsMax; ++round) {
    unsigned before = numApplied;
    Session session(options.common);
    if (round == 0)
      checkRecipe(session, options.common);
    else
      config::loadConfig(session.sources(), session.diags(), options.common.load);
    if (ExitStatus status = writeFixes(session, options, numApplied); status != kFine)
      return status;
    if (numApplied == before)
      break;
  }
  return kFine;
}

/// Reports how many fix-its were applied, and how many messages remain; those are printed
/// afterwards.
void reportFixes(unsigned numApplied, const DiagEngine &diags) {
  if (numApplied == 0)
    return;
  std::string left;
  if (diags.numErrors() > 0)
    left = formatCount(diags.numErrors(), "error");
  if (diags.numWarnings() > 0)
    left += (left.empty() ? "" : " and ") + formatCount(diags.numWarnings(), "warning");
  llvm::errs() << "shardc: " << formatCount(numApplied, "fix-it") << " applied; "
               << (left.empty() ? "nothing is left to mend" : "left: " + left) << "\n";
}

/// Checks one case of a file of expected diagnostics. Returns whether messages and expectations
/// agree.
bool verifyPart(const InputPart &part, const CheckOptions &options) {
  const CommonOptions &common = options.common;
  SourceManager sources;
  DiagEngine diags(sources);
  config::registerGroups(diags);
  for (const std::string &flag : common.warningFlags)
    static_cast<void>(diags.flags().apply("-W" + flag)); // the command line was checked
  diags.setErrorLimit(0);
  BufferId buffer = sources.addBuffer(common.load.path, part.text, part.firstLine);
  VerifyConsumer consumer(sources, buffer, /*ignoreRemarks=*/true);
  diags.addConsumer(consumer);
  if (options.dumpAst)
    parseRecipe(buffer, diags);
  else
    checkBuffer(buffer, sources, diags, common);
  diags.finish();
  return consumer.check(llvm::errs());
}

int runVerify(const CheckOptions &options) {
  Result<std::string> text = readFile(options.common.load.path, kRecipeBytesMax);
  if (!text.isOk()) {
    llvm::errs() << "shardc: error: " << printable(text.status().message()) << "\n";
    return kInputErrors;
  }
  std::vector<InputPart> parts = {{*text, 1}};
  if (options.splitInput)
    parts = splitInput(*text);
  bool good = true;
  for (const InputPart &part : parts)
    good &= verifyPart(part, options);
  return good ? kFine : kInputErrors;
}

int runDumpAst(const CheckOptions &options) {
  Session session(options.common);
  Result<BufferId> buffer = session.sources().loadFile(options.common.load.path);
  if (!buffer.isOk()) {
    session.diags().report(diag::CannotReadFile, SourceRange(), buffer.status().message());
    return session.finish();
  }
  std::unique_ptr<ast::Ast> tree = parseRecipe(*buffer, session.diags());
  if (!session.diags().hasErrors())
    printOut("{}", ast::dump(tree->recipe(), session.sources()));
  return session.finish();
}

/// If a valid recipe cannot be compiled, reports that as the last message, so that users do not
/// expect the recipe to run.
void warnWhereNothingRuns(const config::Config &config, DiagEngine &diags) {
  llvm::StringSet<> said;
  std::vector<std::string> lacks;
  std::vector<lower::Missing> missing = lower::findMissing(config);
  for (const lower::Missing &item : missing)
    if (said.insert(item.what).second)
      lacks.push_back(fmt::format("{} ('{}')", item.what, config::info(item.option).path));
  if (lacks.empty())
    return;
  diags.flush();
  diags.report(diag::CannotBeCompiled, config.range(missing.front().option),
               llvm::join(lacks, ", "));
}

/// Prints the variables of section `env`, which libraries of the run read.
void printVariables(const config::Config &config) {
  auto print = [](llvm::StringRef name, const std::string *value) {
    if (value)
      llvm::errs() << "shardc: a run sets the environment's " << name << " = \""
                   << printable(*value) << "\"\n";
  };
  for (const config::OptionInfo &option : config::options())
    if (option.section == config::Section::Env)
      print(option.name, config[option.opt].value.asString());
  for (const config::EnvVariable &variable : config.env())
    print(variable.name, variable.setting.value.asString());
}

int checkOne(const CheckOptions &options) {
  if (options.verifyDiagnostics)
    return runVerify(options);
  if (options.dumpAst)
    return runDumpAst(options);
  unsigned numApplied = 0;
  if (!options.fix.empty())
    if (ExitStatus status = applyFixes(options, numApplied); status != kFine)
      return status;
  Session session(options.common);
  std::optional<config::Config> config =
      checkRecipe(session, options.common, /*mustExecute=*/options.canRun);
  reportFixes(numApplied, session.diags());
  if (config && !options.canRun)
    warnWhereNothingRuns(*config, session.diags());
  ExitStatus status = session.finish();
  if (config)
    printVariables(*config);
  return status;
}

int runCheck(CheckOptions &options) {
  if (options.recipes.size() > 1 && options.common.diagFormat == "sarif") {
    llvm::errs() << "shardc: error: a SARIF document describes one recipe\n";
    return kUsage;
  }
  int status = kFine;
  for (const std::string &recipe : options.recipes) {
    options.common.load.path = recipe;
    status = std::max(status, checkOne(options));
  }
  return status;
}

} // namespace

void addCheck(cli::Command &app, int &status) {
  auto options = std::make_shared<CheckOptions>();
  options->common.remarks = "counted";
  cli::Command &command =
      app.addCommand("check", "report every error, warning and remark of a recipe")
          .alsoCalled({"validate", "verify", "lint"});
  command.option("recipe", options->recipes, "recipe files, each checked separately").required();
  options->common.addTo(command, /*needsRecipe=*/false);
  command
      .flag("--fix{applied}", options->fix,
            "apply fix-its; --fix=recommended also the recommended settings")
      .oneOf({"applied", "recommended"});
  command.flag("--verify-diagnostics", options->verifyDiagnostics,
               "compare messages with the recipe's expected-... comments");
  command.flag("--split-input-file", options->splitInput,
               "check each part between '// -----' lines separately");
  command.flag("--can-run", options->canRun,
               "refuse a recipe that cannot be compiled to a plan that runs");
  command.flag("--dump-ast", options->dumpAst, "print the syntax tree and stop after parsing");
  command.onUse([options, &status] { status = runCheck(*options); });
}

} // namespace shardc::tools
