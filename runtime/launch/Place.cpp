#include "runtime/launch/Place.h"

#include <algorithm>

#include "runtime/base/Reports.h"

namespace shardc::launch {
namespace {

/// torch.distributed's own default.
constexpr int kDefaultMasterPort = 29500;
constexpr int kPortMax = 65535;

Status readRanks(const Environment &env, const LauncherVariables &names, Place &place) {
  place.launcher = names.launcher;
  ASSIGN_OR_RETURN(place.rank, env.number(names.rank, 0, kLaunchedRanksMax));
  ASSIGN_OR_RETURN(place.worldSize, env.number(names.worldSize, 1, kLaunchedRanksMax));
  ASSIGN_OR_RETURN(place.localRank, env.number(names.localRank, 0, kLaunchedRanksMax));
  if (names.localSize && env.has(names.localSize)) {
    ASSIGN_OR_RETURN(place.localSize, env.number(names.localSize, 1, kLaunchedRanksMax));
  }
  place.job = env.text(names.job[0]);
  return Status::ok();
}

/// MASTER_ADDR where it is set; otherwise what the launcher lets one conclude.
Status readMaster(const Environment &env, Place &place) {
  place.masterAddress = env.text("MASTER_ADDR");
  place.masterPort = kDefaultMasterPort;
  if (env.has("MASTER_PORT")) {
    ASSIGN_OR_RETURN(int64_t port, env.number("MASTER_PORT", 1, kPortMax));
    place.masterPort = static_cast<int>(port);
  }
  if (!place.masterAddress.empty())
    return Status::ok();
  bool isOneMachine = place.launcher == Launcher::OpenMpi &&
                      env.text("OMPI_COMM_WORLD_LOCAL_SIZE") == env.text("OMPI_COMM_WORLD_SIZE");
  if (place.launcher == Launcher::Slurm)
    place.masterAddress = firstHost(env.text("SLURM_STEP_NODELIST"));
  else if (isOneMachine)
    place.masterAddress = "127.0.0.1";
  if (place.masterAddress.empty())
    return makeStatus(
        report::LauncherEnvironment,
        fmt::format("the environment has no MASTER_ADDR, the address of rank 0's machine{}",
                    place.launcher == Launcher::OpenMpi
                        ? "; pass it with 'mpirun -x MASTER_ADDR=...'"
                        : ""));
  return Status::ok();
}

/// Jobs that share a machine get ports of their own.
void spreadPorts(const Environment &env, Place &place) {
  if (env.has("MASTER_PORT"))
    return;
  if (Result<int64_t> job = env.number("SLURM_JOB_ID", 0, int64_t{1} << 40); job.isOk())
    place.masterPort = 15000 + static_cast<int>(*job % 8000) * 2;
}

} // namespace

std::string launchName(const Place &place) {
  return fmt::format("{} {} {}", toString(place.launcher), place.masterPort, place.job);
}

Result<Place> findPlace(const GetEnv &get) {
  Environment env(get);
  Place place;
  const LauncherVariables *names = findLauncher(env);
  if (!names)
    return place;
  RETURN_IF_ERROR(readRanks(env, *names, place));
  RETURN_IF_ERROR(readMaster(env, place));
  if (place.launcher == Launcher::Slurm) {
    place.job += "." + env.text(names->job[1]);
    spreadPorts(env, place);
  }
  return place;
}

int64_t ranksSharingGpus(const Place &place, int64_t visible, int64_t onMachine) {
  if (place.launcher == Launcher::Plain)
    return onMachine;
  if (visible == 1)
    return 1;
  return place.localSize > 0 ? std::min(place.localSize, onMachine) : onMachine;
}

Result<int> rendezvousPort(const Place &place, int64_t optionPort) {
  int64_t port = optionPort > 0 ? optionPort : place.masterPort + 1;
  if (port < 1 || port > kPortMax)
    return makeStatus(
        report::LauncherEnvironment,
        fmt::format("MASTER_PORT is {}, and the next is not a port; set dist.rendezvous_port",
                    place.masterPort));
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
  size_t next = list.find_first_of(",[", close); // what follows the bracket is part of the name
  if (next != std::string_view::npos && list[next] == '[')
    return host + firstHost(list.substr(close + 1));
  return host +
         std::string(list.substr(close + 1, next == std::string_view::npos ? std::string_view::npos
                                                                           : next - close - 1));
}

} // namespace shardc::launch
