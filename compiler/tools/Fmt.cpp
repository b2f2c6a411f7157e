// shardc fmt: formats recipes in place.
#include "compiler/basic/Format.h"
#include "compiler/basic/Utf8.h"
#include "compiler/parse/Format.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Io.h"
#include "runtime/base/RecipeVariables.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

struct FmtOptions {
  CommonOptions common;
  std::vector<std::string> files;
  bool check = false, print = false;
};

/// The first line in which the text differs from the formatted text, and the line that fmt writes
/// there.
std::string firstDifference(llvm::StringRef found, llvm::StringRef formatted) {
  for (unsigned line = 1;; ++line) {
    auto [have, moreFound] = found.split('\n');
    auto [want, moreFormatted] = formatted.split('\n');
    if (have != want || moreFound.empty() || moreFormatted.empty())
      return have != want ? fmt::format("{}: not formatted; fmt writes '{}'", line, want)
                          : fmt::format("{}: not formatted at its end", line);
    found = moreFound;
    formatted = moreFormatted;
  }
}

/// Formats one file. Returns kInputErrors if it does not parse or, with --check, if fmt would
/// change it.
int formatFile(const std::string &path, const FmtOptions &options) {
  Session session(options.common);
  Result<BufferId> buffer = session.sources().loadFile(path);
  if (!buffer.isOk()) {
    session.diags().report(diag::CannotReadFile, SourceRange(), buffer.status().message());
    return session.finish();
  }
  std::optional<std::string> text = formatRecipe(*buffer, session.diags());
  if (int status = session.finish(); status != kFine || !text)
    return status == kFine ? kInputErrors : status;
  bool same = llvm::StringRef(*text) == session.sources().text(*buffer);
  if (options.print)
    return writeOutput("", *text);
  if (same)
    return kFine;
  if (options.check) {
    llvm::errs() << printable(path) << ":"
                 << printable(
                        withoutSecrets(firstDifference(session.sources().text(*buffer), *text)))
                 << "\n";
    return kInputErrors;
  }
  return rewriteFile(path, *text, path);
}

} // namespace

void addFmt(cli::Command &app, int &status) {
  auto options = std::make_shared<FmtOptions>();
  cli::Command &command = app.addCommand("fmt", "format recipes in place").alsoCalled({"format"});
  command.option("files", options->files, "recipe files").required();
  command.flag("--check", options->check,
               "only list the files that are not formatted, with the first line that differs");
  command.flag("--stdout", options->print, "print instead of writing the file");
  command.onUse([options, &status] {
    for (const std::string &file : options->files)
      status = std::max(status, formatFile(file, *options));
  });
}

} // namespace shardc::tools
