#include "runtime/launch/Place.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

namespace shardc::launch {
namespace {

/// torch.distributed's own default.
constexpr int kDefaultMasterPort = 29500;
constexpr int64_t kRanksMax = 1 << 20;
constexpr int kPortMax = 65535;

class Reader {
public:
  explicit Reader(const GetEnv &get) : get_(get) {}

  bool has(const char *name) const { return get_(name) != nullptr && *get_(name) != '\0'; }
  std::string text(const char *name) const { return has(name) ? get_(name) : ""; }

  Result<int64_t> number(const char *name, int64_t least, int64_t most) const {
    if (!has(name))
      return makeStatus(StatusCode::InvalidInput, "the environment has no {}", name);
    std::string value = text(name);
    int64_t number = 0;
    auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || *end != '\0' || number < least || number > most)
      return makeStatus(StatusCode::InvalidInput, "{} is '{}'; it must be a number from {} to {}",
                        name, value, least, most);
    return number;
  }

private:
  const GetEnv &get_;
};

/// Names of one launcher's variables.
struct Names {
  Launcher launcher;
  const char *rank, *worldSize, *localRank;
  const char *localSize; ///< need not be set; null: the launcher has none
};
constexpr Names kTorchrun = {Launcher::Torchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {Launcher::OpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kSlurm = {Launcher::Slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                          nullptr};

Status readRanks(const Reader &env, const Names &names, Place &place) {
  place.launcher = names.launcher;
  ASSIGN_OR_RETURN(place.rank, env.number(names.rank, 0, kRanksMax));
  ASSIGN_OR_RETURN(place.worldSize, env.number(names.worldSize, 1, kRanksMax));
  ASSIGN_OR_RETURN(place.localRank, env.number(names.localRank, 0, kRanksMax));
  if (names.localSize && env.has(names.localSize)) {
    ASSIGN_OR_RETURN(place.localSize, env.number(names.localSize, 1, kRanksMax));
  }
  return Status::ok();
}

/// MASTER_ADDR where it is set; otherwise what the launcher lets one conclude.
Status readMaster(const Reader &env, Place &place) {
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
        StatusCode::InvalidInput,
        "the environment has no MASTER_ADDR, the address of rank 0's machine{}",
        place.launcher == Launcher::OpenMpi ? "; pass it with 'mpirun -x MASTER_ADDR=...'" : "");
  return Status::ok();
}

/// Jobs that share a machine get ports of their own.
void spreadPorts(const Reader &env, Place &place) {
  if (env.has("MASTER_PORT"))
    return;
  if (Result<int64_t> job = env.number("SLURM_JOB_ID", 0, int64_t{1} << 40); job.isOk())
    place.masterPort = 15000 + static_cast<int>(*job % 8000) * 2;
}

} // namespace

std::string_view toString(Launcher launcher) {
  switch (launcher) {
  case Launcher::Plain:
    return "plain";
  case Launcher::Torchrun:
    return "torchrun";
  case Launcher::OpenMpi:
    return "mpirun";
  case Launcher::Slurm:
    return "srun";
  }
  return "";
}

std::string launchName(const Place &place) {
  return fmt::format("{} {} {}", toString(place.launcher), place.masterPort, place.job);
}

/// The innermost launcher counts: torchrun may run in tasks of srun, and mpirun in a batch script.
/// A batch script itself has Slurm's variables but no step, and one task is a plain start.
Result<Place> findPlace(const GetEnv &get) {
  Reader env(get);
  Place place;
  if (env.has("RANK") || env.has("WORLD_SIZE")) {
    RETURN_IF_ERROR(readRanks(env, kTorchrun, place));
    place.job = env.text("TORCHELASTIC_RUN_ID");
  } else if (env.has("OMPI_COMM_WORLD_SIZE")) {
    RETURN_IF_ERROR(readRanks(env, kOpenMpi, place));
    place.job = env.text("PMIX_NAMESPACE");
  } else if (env.has("SLURM_STEP_NUM_TASKS") && env.text("SLURM_STEP_NUM_TASKS") != "1") {
    RETURN_IF_ERROR(readRanks(env, kSlurm, place));
    place.job = env.text("SLURM_JOB_ID") + "." + env.text("SLURM_STEP_ID");
  }
  if (place.launcher == Launcher::Plain)
    return place;
  RETURN_IF_ERROR(readMaster(env, place));
  if (place.launcher == Launcher::Slurm)
    spreadPorts(env, place);
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
    return makeStatus(StatusCode::InvalidInput,
                      "MASTER_PORT is {}, and the next is not a port; set dist.rendezvous_port",
                      place.masterPort);
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
