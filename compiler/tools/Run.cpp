// shardc run: compiles a recipe in memory (or takes a plan) and executes shardc-run, found beside
// itself, which gets the plan by a file descriptor. This process stays as parent and hands on its
// exit status.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compiler/tools/CkptTools.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/GroupMapOf.h"
#include "compiler/tools/Session.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

struct RunOptions {
  CommonOptions common;
  std::string program;
  std::string backend = "host", metrics;
  std::string groupFolder; ///< where the optimizer group of each parameter is written, if anywhere
  int64_t simulateRanks = 0;
  bool check = false, explain = false, noGraph = false;
};

/// shardc-run in the folder of this program.
std::string findRunner(const std::string &program) {
  std::error_code error;
  std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error)
    self = program;
  return (self.parent_path() / "shardc-run").string();
}

int fail(const std::string &what) {
  llvm::errs() << "shardc: error: cannot " << what << ": " << std::strerror(errno) << "\n";
  return kRunFailed;
}

/// A descriptor that holds the text and survives exec, or -1.
int makePlanFd(const std::string &text) {
  int fd = ::memfd_create("plan", 0);
  for (size_t at = 0; fd >= 0 && at < text.size();) {
    ssize_t written = ::write(fd, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR)
      continue;
    if (written < 0)
      return -1;
    at += static_cast<size_t>(written);
  }
  return fd < 0 || ::lseek(fd, 0, SEEK_SET) != 0 ? -1 : fd;
}

/// Starts the runner and waits; signals that stop a job reach the runner too and it ends the run
/// cleanly.
int execute(const std::string &runner, std::vector<std::string> arguments) {
  pid_t child = ::fork();
  if (child < 0)
    return fail("start '" + runner + "'");
  if (child == 0) {
    std::vector<char *> argv = {const_cast<char *>(runner.c_str())};
    for (std::string &argument : arguments)
      argv.push_back(argument.data());
    argv.push_back(nullptr);
    ::execv(runner.c_str(), argv.data());
    fail("execute '" + runner + "'");
    ::_exit(kRunFailed);
  }
  static pid_t target = 0;
  target = child;
  struct sigaction forward = {};
  forward.sa_handler = [](int signal) { ::kill(target, signal); };
  ::sigaction(SIGTERM, &forward, nullptr);
  // A terminal's interrupt reaches the whole process group; the runner answers it.
  ::signal(SIGINT, SIG_IGN);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR)
      return fail("wait for '" + runner + "'");
  if (WIFSIGNALED(status)) {
    llvm::errs() << "shardc: error: '" << runner << "' was ended by signal " << WTERMSIG(status)
                 << "\n";
    return kRunFailed;
  }
  return WEXITSTATUS(status);
}

int runRun(const RunOptions &options) {
  std::vector<std::string> arguments;
  const std::string &input = options.common.load.path;
  if (std::filesystem::path(input).extension() == ".plan") {
    if (!options.common.load.sets.empty() || !options.common.load.overlays.empty()) {
      llvm::errs() << "shardc: error: '--set' and '--overlay' change recipes; '" << input
                   << "' is a compiled plan\n";
      return kUsage;
    }
    if (Status status = dumpGroupMapOf(options.groupFolder, input); !status.isOk())
      return finishCkpt(status);
    arguments.push_back(input);
  } else {
    Session session(options.common);
    if (ExitStatus status = session.applyFlags(); status != kFine)
      return status;
    std::optional<config::Config> config =
        config::loadConfig(session.sources(), session.diags(), options.common.load);
    std::optional<Compiled> compiled;
    if (config)
      compiled = compile(*config, session.sources(), session.diags(), options.common, {});
    if (ExitStatus status = session.finish(); status != kFine || !compiled)
      return status == kFine ? kInputErrors : status;
    if (Status status = dumpGroupMap(options.groupFolder, compiled->plan); !status.isOk())
      return finishCkpt(status);
    int fd = makePlanFd(planText(*compiled));
    if (fd < 0)
      return fail("hand the plan over");
    arguments.push_back("--plan-fd=" + std::to_string(fd));
  }
  arguments.push_back("--backend=" + options.backend);
  if (!options.metrics.empty())
    arguments.push_back("--metrics=" + options.metrics);
  if (options.check)
    arguments.push_back("--check");
  if (options.explain)
    arguments.push_back("--explain");
  if (options.noGraph)
    arguments.push_back("--no-graph");
  if (options.simulateRanks > 0)
    arguments.push_back("--simulate-ranks=" + std::to_string(options.simulateRanks));
  return execute(findRunner(options.program), std::move(arguments));
}

} // namespace

void addRun(CLI::App &app, int &status, const char *program) {
  auto options = std::make_shared<RunOptions>();
  options->program = program;
  CLI::App *command =
      app.add_subcommand("run", "compile a recipe and train, or run a compiled plan");
  options->common.addTo(*command);
  command->add_option("--backend", options->backend, "where to run")
      ->check(CLI::IsMember({"host"}));
  command->add_option("--metrics", options->metrics, "file for one JSON object a step");
  command->add_option("--dump-param-to-param-group-map", options->groupFolder,
                      "folder for the optimizer group of each parameter, as 'ckpt group-map' makes");
  command->add_flag("--check", options->check, "run op by op and check every result");
  command->add_flag("--explain", options->explain, "print the kernel of every op");
  command->add_flag("--no-graph", options->noGraph, "queue every op by itself");
  command
      ->add_option("--simulate-ranks", options->simulateRanks,
                   "run all ranks of a plan for another backend on this machine")
      ->check(CLI::PositiveNumber);
  command->callback([options, &status] { status = runRun(*options); });
}

} // namespace shardc::tools
