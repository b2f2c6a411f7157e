// Detects what started this process: as one of several ranks (torchrun, mpirun, ...) or as one of
// several nodes, whose ranks it then starts. Only Launchers.def knows their environment variables.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc {

/// What started this process; Plain if nothing did that sets variables for ranks.
enum class Launcher : uint8_t {
  Plain,
#define LAUNCHER(Name, ...) Name,
#include "runtime/base/Launchers.def"
};
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

/// Names of a launcher's variables, as Launchers.def explains them; "" for one that it lacks.
struct LauncherVariables {
  Launcher launcher;
  const char *text, *rank, *worldSize, *localRank, *localSize, *node;
  std::array<const char *, 3> job; ///< missing entries are null
};
/// The same for what starts a process per node.
struct NodeVariables {
  const char *text, *nodes, *node, *ranks, *address, *port;
};
std::span<const LauncherVariables> launchers();
std::span<const NodeVariables> nodeLaunchers();

/// Limit on the number of ranks that a launcher may start.
inline constexpr int64_t kLaunchedRanksMax = 1 << 20;

/// The launcher of this process. If there are several, the innermost one: torchrun may run in tasks
/// of srun, and mpirun in a batch script. Null if the process was started without a launcher. That
/// includes a batch script, which has Slurm's variables but no step, and a single task.
const LauncherVariables *findLauncher(const Environment &environment);

/// What a user says about this node of a job; takes the place of what the environment says.
struct NodeOptions {
  int64_t nodes = 0;  ///< 0: not said
  int64_t node = -1;  ///< -1: not said
  int64_t ranks = 0;  ///< of each node; 0: not said
  std::string master; ///< HOST[:PORT] of node 0, where ranks meet
};

/// One of several nodes of a job, whose ranks this process starts.
struct NodePlace {
  int64_t nodes = 1, node = 0;
  int64_t ranks = 0;   ///< of each node; 0: not said
  std::string address; ///< of node 0
  int masterPort = 0;  ///< torchrun's; ranks meet at the next one. 0: the default
};

/// The node that this process is to start the ranks of; nothing if it is itself a rank, or if
/// neither the options nor the environment say that there are nodes. InvalidInput if something is
/// missing or no number.
Result<std::optional<NodePlace>> findNode(const Environment &environment,
                                          const NodeOptions &options);

} // namespace shardc
