// shardc lsp: the language server on standard input and output.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <unistd.h>

#include "compiler/lsp/Server.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Output.h"

namespace shardc::tools {
namespace {

struct CloseFile {
  void operator()(std::FILE *file) const { std::fclose(file); }
};
using OwnFile = std::unique_ptr<std::FILE, CloseFile>;

/// Moves a standard descriptor to another number and puts /dev/null in its place. So no document
/// can read the client's messages as the file '/dev/stdin', and nothing can write between the
/// server's messages. Null if the system refuses.
OwnFile takeOver(int fd, const char *mode) {
  int own = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  bool isReplaced = own >= 0 && nothing >= 0 && ::dup2(nothing, fd) == fd;
  ::close(nothing);
  return OwnFile(isReplaced ? ::fdopen(own, mode) : nullptr);
}

int runLsp() {
  OwnFile in = takeOver(STDIN_FILENO, "r"), out = takeOver(STDOUT_FILENO, "w");
  if (!in || !out) {
    printError("shardc: error: cannot open the client's streams: {}\n", std::strerror(errno));
    return kRunFailed;
  }
  lsp::Transport transport(in.get(), out.get());
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
