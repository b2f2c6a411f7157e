#include "compiler/tools/Nodes.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <netdb.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compiler/basic/Utf8.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/EndSignals.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

void set(const char *name, const std::string &value) { ::setenv(name, value.c_str(), 1); }

/// The name of node 0 may exist only once its pod is known. Other nodes wait when they connect.
void awaitOwnName(const NodePlace &place) {
  constexpr int kSecondsMax = 600;
  addrinfo *found = nullptr;
  for (int i = 0; place.node == 0 && i < kSecondsMax; ++i) {
    if (::getaddrinfo(place.address.c_str(), nullptr, nullptr, &found) == 0)
      return ::freeaddrinfo(found);
    ::sleep(1);
  }
}

/// Makes this process a rank. It has a process group of its own, so that a terminal's signals reach
/// it once, by its parent.
void becomeRank(const NodePlace &place, int64_t ranks, int64_t local, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent)
    ::_exit(kRunFailed);
  set("RANK", std::to_string(place.node * ranks + local));
  set("WORLD_SIZE", std::to_string(place.nodes * ranks));
  set("LOCAL_RANK", std::to_string(local));
  set("LOCAL_WORLD_SIZE", std::to_string(ranks));
  set("GROUP_RANK", std::to_string(place.node));
  set("MASTER_ADDR", place.address);
  if (place.masterPort > 0)
    set("MASTER_PORT", std::to_string(place.masterPort));
}

/// Waits for the ranks, and passes signals on.
int await(std::vector<pid_t> ranks, const sigset_t &signals) {
  int worst = kFine;
  while (!ranks.empty()) {
    siginfo_t info = {};
    int number = ::sigwaitinfo(&signals, &info);
    if (number > 0 && number != SIGCHLD)
      for (pid_t rank : ranks)
        ::kill(rank, number);
    int status = 0;
    while (pid_t ended = ::waitpid(-1, &status, WNOHANG)) {
      if (ended < 0)
        break;
      std::erase(ranks, ended);
      worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : int{kRunFailed});
    }
  }
  return worst;
}

} // namespace

void addNodes(cli::Command &command, NodeOptions &options) {
  command
      .option("--nodes", options.nodes,
              "nodes of the job, on each of which this command starts that node's ranks; default: "
              "what the operator of a cluster sets (docs/environment.md)")
      .positive();
  command.option("--node-rank", options.node, "number of this node, from 0").nonNegative();
  command.option("--master", options.master,
                 "HOST[:PORT] of node 0, where ranks meet; default port: 29501");
}

std::optional<NodePlace> placeOfNode(const NodeOptions &options, ExitStatus &status) {
  Result<std::optional<NodePlace>> place = findNode(Environment(::getenv), options);
  if (place.isOk() && !*place && (options.node >= 0 || !options.master.empty()))
    place = makeStatus(StatusCode::InvalidInput, "--node-rank and --master need --nodes");
  if (place.isOk())
    return *place;
  llvm::errs() << "shardc: error: " << printable(place.status().message()) << "\n";
  status = kUsage;
  return std::nullopt;
}

std::optional<int> startRanks(const NodePlace &place, int64_t ranks) {
  awaitOwnName(place);
  sigset_t signals, before;
  sigemptyset(&signals);
  for (int number : endSignals())
    sigaddset(&signals, number);
  for (int number : {SIGCHLD, SIGUSR1, SIGUSR2})
    sigaddset(&signals, number);
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  std::vector<pid_t> started;
  pid_t parent = ::getpid();
  for (int64_t local = 0; local < ranks; ++local) {
    pid_t pid = ::fork();
    if (pid == 0) {
      becomeRank(place, ranks, local, parent);
      ::sigprocmask(SIG_SETMASK, &before, nullptr);
      return std::nullopt;
    }
    if (pid < 0) {
      llvm::errs() << "shardc: error: cannot start rank " << local
                   << " of this node: " << std::strerror(errno) << "\n";
      for (pid_t rank : started)
        ::kill(rank, SIGTERM);
      return std::max<int>(await(std::move(started), signals), kRunFailed);
    }
    started.push_back(pid);
  }
  return await(std::move(started), signals);
}

} // namespace shardc::tools
