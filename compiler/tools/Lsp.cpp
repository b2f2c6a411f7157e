// shardc lsp: the language server on standard input and output.
#include <CLI/CLI.hpp>

#include "compiler/lsp/Server.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"

namespace shardc::tools {
namespace {

int runLsp() {
  lsp::Transport transport(stdin, stdout);
  CommonOptions common;
  auto further = [&](const config::Config &config, SourceManager &sources, DiagEngine &diags) {
    CompileOptions options;
    options.mustExecute = false;
    compile(config, sources, diags, common, options);
  };
  return lsp::Server(transport, further).run() ? kFine : kInputErrors;
}

} // namespace

void addLsp(CLI::App &app, int &status) {
  CLI::App *command =
      app.add_subcommand("lsp", "language server for editors, on standard input and output");
  command->callback([&status] { status = runLsp(); });
}

} // namespace shardc::tools
