#include "compiler/tools/Pager.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <sys/ioctl.h>
#include <unistd.h>

namespace shardc::tools {
namespace {

/// The command of the pager; empty: no pager.
std::string pagerCommand() {
  const char *terminal = std::getenv("TERM");
  if (!terminal || std::string_view(terminal) == "dumb")
    return "";
  for (const char *name : {"SHARDC_PAGER", "PAGER"})
    if (const char *command = std::getenv(name))
      return std::string_view(command) == "cat" ? "" : command;
  return "less";
}

/// The size of the terminal; zeros if standard output is none, or does not know it.
winsize terminalSize() {
  winsize size = {};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size : winsize{};
}

bool fitsTerminal(std::string_view text) {
  int rows = terminalSize().ws_row;
  return rows == 0 || std::count(text.begin(), text.end(), '\n') < rows;
}

bool writePlain(std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
         std::fflush(stdout) == 0;
}

} // namespace

size_t terminalColumns() { return terminalSize().ws_col; }

bool showText(std::string_view text) {
  std::string command = pagerCommand();
  if (::isatty(STDOUT_FILENO) != 1 || command.empty() || fitsTerminal(text))
    return writePlain(text);
  std::fflush(stdout);
  ::setenv("LESS", "FRX", /*overwrite=*/0); // quit if the text fits, keep colours and screen
  auto *before = std::signal(SIGPIPE, SIG_IGN);
  std::FILE *pager = ::popen(command.c_str(), "w");
  if (pager)
    std::fwrite(text.data(), 1, text.size(), pager);
  constexpr int kNotFound = 127 << 8; // status of a shell that does not find the command
  bool isShown = pager && ::pclose(pager) != kNotFound;
  std::signal(SIGPIPE, before);
  return isShown || writePlain(text);
}

} // namespace shardc::tools
