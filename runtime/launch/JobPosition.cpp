// Reads the launcher's environment once, at the start. Missing or contradictory variables are
// errors, since guesses would connect ranks of different jobs.
#include "runtime/launch/JobPosition.h"

#include <algorithm>

#include "runtime/base/Reports.h"

namespace shardc::launch {
namespace {

/// The default of torch.distributed.
constexpr int kDefaultMasterPort = 29500;
constexpr int kPortMax = 65535;

/// The rank is read again once the number of ranks is known, so that it is checked against it.
Status readRanks(const Environment &env, const LauncherVariables &names, JobPosition &position) {
  position.launcher = names.launcher;
  ASSIGN_OR_RETURN(position.rank, env.number(names.rank, 0, kLaunchedRanksMax));
  ASSIGN_OR_RETURN(position.worldSize, env.number(names.worldSize, 1, kLaunchedRanksMax));
  RETURN_IF_ERROR(env.number(names.rank, 0, position.worldSize - 1).status());
  ASSIGN_OR_RETURN(position.localRank, env.number(names.localRank, 0, kLaunchedRanksMax));
  if (env.has(names.localSize)) {
    ASSIGN_OR_RETURN(position.localSize, env.number(names.localSize, 1, kLaunchedRanksMax));
  }
  if (env.has(names.node)) {
    ASSIGN_OR_RETURN(position.node, env.number(names.node, 0, kLaunchedRanksMax));
  }
  position.job = env.text(names.job[0]);
  return Status::ok();
}

/// Reads MASTER_ADDR if it is set; otherwise derives the address from the launcher's variables.
Status readMaster(const Environment &env, JobPosition &position) {
  position.masterAddress = env.text("MASTER_ADDR");
  position.masterPort = kDefaultMasterPort;
  if (env.has("MASTER_PORT")) {
    ASSIGN_OR_RETURN(int64_t port, env.number("MASTER_PORT", 1, kPortMax));
    position.masterPort = static_cast<int>(port);
  }
  if (!position.masterAddress.empty())
    return Status::ok();
  bool isOneMachine =
      position.launcher == Launcher::Flux
          ? env.text("FLUX_JOB_NNODES") == "1"
          : position.launcher != Launcher::Torchrun && position.localSize == position.worldSize;
  if (position.launcher == Launcher::Slurm)
    position.masterAddress = firstHost(env.text("SLURM_STEP_NODELIST"));
  else if (isOneMachine)
    position.masterAddress = "127.0.0.1";
  if (position.masterAddress.empty())
    return makeStatus(
        report::LauncherEnvironment,
        "the environment has no MASTER_ADDR, the address of rank 0's machine{}",
        position.launcher == Launcher::OpenMpi ? "; pass it with 'mpirun -x MASTER_ADDR=...'" : "");
  return Status::ok();
}

/// Gives each Slurm job a port of its own, since several jobs may share a machine.
void spreadPorts(const Environment &env, JobPosition &position) {
  if (env.has("MASTER_PORT"))
    return;
  if (Result<int64_t> job = env.number("SLURM_JOB_ID", 0, int64_t{1} << 40); job.isOk())
    position.masterPort = 15000 + static_cast<int>(*job % 8000) * 2;
}

} // namespace

std::string launchName(const JobPosition &position) {
  return fmt::format("{} {} {}", toString(position.launcher), position.masterPort, position.job);
}

Result<JobPosition> findJobPosition(const GetEnv &get) {
  Environment env(get);
  JobPosition position;
  const LauncherVariables *names = findLauncher(env);
  if (!names)
    return position;
  RETURN_IF_ERROR(readRanks(env, *names, position));
  RETURN_IF_ERROR(readMaster(env, position));
  if (position.launcher == Launcher::Slurm) {
    position.job += "." + env.text(names->job[1]);
    spreadPorts(env, position);
  }
  return position;
}

int64_t ranksSharingGpus(const JobPosition &position, int64_t visible, int64_t onMachine) {
  if (position.launcher == Launcher::Plain)
    return onMachine;
  if (visible == 1)
    return 1;
  return position.localSize > 0 ? std::min(position.localSize, onMachine) : onMachine;
}

Result<int> rendezvousPort(const JobPosition &position, int64_t optionPort) {
  int64_t port = optionPort > 0 ? optionPort : position.masterPort + 1;
  if (port < 1 || port > kPortMax)
    return makeStatus(report::LauncherEnvironment,
                      "MASTER_PORT is {}, and the next is not a port; set dist.rendezvous_port",
                      position.masterPort);
  return static_cast<int>(port);
}

std::string firstHost(std::string_view list) {
  size_t end = list.find_first_of(",[");
  std::string host(list.substr(0, end));
  if (end == std::string_view::npos || list[end] == ',')
    return host;
  size_t close = list.find(']', end);
  if (close == std::string_view::npos)
    return "";
  std::string_view range = list.substr(end + 1, close - end - 1);
  host += range.substr(0, range.find_first_of(",-"));
  size_t next = list.find_first_of(",[", close); // text after the bracket is part of the name
  if (next != std::string_view::npos && list[next] == '[')
    return host + firstHost(list.substr(close + 1));
  return host +
         std::string(list.substr(close + 1, next == std::string_view::npos ? std::string_view::npos
                                                                           : next - close - 1));
}

} // namespace shardc::launch
