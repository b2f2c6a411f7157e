// shardc lsp: the language server on standard input and output.
#include "compiler/lsp/Server.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"

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
  return lsp::Server(transport, further, common.load.measure).run() ? kFine : kInputErrors;
}

} // namespace

void addLsp(cli::Command &app, int &status) {
  cli::Command &command =
      app.addCommand("lsp", "language server for editors, on standard input and output");
  command.onUse([&status] { status = runLsp(); });
}

} // namespace shardc::tools
