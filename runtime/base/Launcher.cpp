// Has one table of environment variables per launcher; the first launcher whose variables are set
// counts.
#include "runtime/base/Launcher.h"

#include <charconv>

#include "runtime/base/Reports.h"

namespace shardc {
namespace {

constexpr LauncherVariables kTorchrun = {
    Launcher::Torchrun, "RANK",
    "WORLD_SIZE",       "LOCAL_RANK",
    "LOCAL_WORLD_SIZE", {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"}};
constexpr LauncherVariables kOpenMpi = {
    Launcher::OpenMpi,
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"}};
constexpr LauncherVariables kSlurm = {
    Launcher::Slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID", nullptr,        {"SLURM_JOB_ID", "SLURM_STEP_ID", nullptr}};

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

Result<int64_t> Environment::number(const char *name, int64_t least, int64_t most) const {
  if (!has(name))
    return makeStatus(report::LauncherEnvironment, "the environment has no {}", name);
  std::string value = text(name);
  int64_t number = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || *end != '\0' || number < least || number > most)
    return makeStatus(report::LauncherEnvironment, "{} is '{}'; it must be a number from {} to {}",
                      name, value, least, most);
  return number;
}

const LauncherVariables *findLauncher(const Environment &environment) {
  if (environment.has(kTorchrun.rank) || environment.has(kTorchrun.worldSize))
    return &kTorchrun;
  if (environment.has(kOpenMpi.worldSize))
    return &kOpenMpi;
  if (environment.has(kSlurm.worldSize) && environment.text(kSlurm.worldSize) != "1")
    return &kSlurm;
  return nullptr;
}

} // namespace shardc
