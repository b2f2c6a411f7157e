// Detects the launcher that started this process as one of several ranks: torchrun (or variables
// set by hand), mpirun or srun. Only this code knows their environment variables.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc {

/// What started this process; Plain if nothing did that sets variables for ranks.
enum class Launcher : uint8_t { Plain, Torchrun, OpenMpi, Slurm };
/// The name for messages.
std::string_view toString(Launcher launcher);

/// Returns the value of an environment variable, or null.
using GetEnv = std::function<const char *(const char *name)>;

/// Access to the environment. An empty variable counts as not set.
class Environment {
public:
  explicit Environment(GetEnv get) : get_(std::move(get)) {}

  bool has(const char *name) const {
    const char *value = get_(name);
    return value && *value != '\0';
  }
  std::string text(const char *name) const { return has(name) ? get_(name) : ""; }
  /// The variable as a number. InvalidInput, with the name, if it is not set or is not a number in
  /// the range.
  Result<int64_t> number(const char *name, int64_t least, int64_t most) const;

private:
  GetEnv get_;
};

/// Names of a launcher's variables.
struct LauncherVariables {
  Launcher launcher;
  const char *rank, *worldSize, *localRank;
  const char *localSize; ///< may be unset; null: the launcher has no such variable
  /// Variables that all ranks of a job share and that differ between jobs, starting with the
  /// launcher's own name for the job. Each may be unset; missing entries are null.
  std::array<const char *, 3> job;
};

/// Limit on the number of ranks that a launcher may start.
inline constexpr int64_t kLaunchedRanksMax = 1 << 20;

/// The launcher of this process. If there are several, the innermost one: torchrun may run in tasks
/// of srun, and mpirun in a batch script. Null if the process was started without a launcher. That
/// includes a batch script, which has Slurm's variables but no step, and a single task.
const LauncherVariables *findLauncher(const Environment &environment);

} // namespace shardc
