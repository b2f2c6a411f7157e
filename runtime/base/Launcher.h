// Who started this process as one of several ranks: torchrun (also variables set by hand), mpirun
// or srun. The one place that knows their environment variables.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc {

enum class Launcher : uint8_t { Plain, Torchrun, OpenMpi, Slurm };
std::string_view toString(Launcher launcher);

/// Value of an environment variable, or null.
using GetEnv = std::function<const char *(const char *name)>;

/// The environment; an empty variable counts as not set.
class Environment {
public:
  explicit Environment(GetEnv get) : get_(std::move(get)) {}

  bool has(const char *name) const {
    const char *value = get_(name);
    return value && *value != '\0';
  }
  std::string text(const char *name) const { return has(name) ? get_(name) : ""; }
  /// InvalidInput, with the name, if it is not set or not a number in the range.
  Result<int64_t> number(const char *name, int64_t least, int64_t most) const;

private:
  GetEnv get_;
};

/// Names of a launcher's variables.
struct LauncherVariables {
  Launcher launcher;
  const char *rank, *worldSize, *localRank;
  const char *localSize; ///< need not be set; null: the launcher has none
  /// What the ranks of a job have in common and those of others do not, the name that the launcher
  /// has for it first; they need not be set, and some are null.
  std::array<const char *, 3> job;
};

/// Ranks of a job that a launcher may have.
inline constexpr int64_t kLaunchedRanksMax = 1 << 20;

/// The launcher of this process, the innermost where there are several: torchrun may run in tasks
/// of srun, and mpirun in a batch script. Null for a plain start: a batch script itself has Slurm's
/// variables but no step, and one task is a plain start too.
const LauncherVariables *findLauncher(const Environment &environment);

} // namespace shardc
