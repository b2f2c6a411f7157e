// The position of this process in its job, from its launcher's environment (base/Launcher.h).
// Without a launcher it is a plain start.
#pragma once

#include <string>

#include "runtime/base/Launcher.h"
#include "runtime/base/Status.h"

namespace shardc::launch {

struct JobPosition {
  Launcher launcher = Launcher::Plain;
  int64_t rank = 0, worldSize = 1;
  int64_t localRank = 0;     ///< on its node, as the launcher counts
  int64_t node = -1;         ///< its node's number, as the launcher counts; -1 if it does not say
  int64_t localSize = 0;     ///< ranks of its node, as the launcher counts; 0 if it does not say
  std::string masterAddress; ///< where rank 0 runs
  int masterPort = 0;        ///< the launcher's own port there
  std::string job;           ///< what the launcher calls this job; empty if it has no name for it
};

/// Distinguishes a launch from others that may have the same secret. A launcher's name for its job
/// may be nothing but a default; its port is its own.
std::string launchName(const JobPosition &position);

/// Reads the environment. InvalidInput where variables contradict each other, are not numbers, or
/// lack one that is needed. The rendezvous refuses a rank beyond the world size, so that the
/// message is printed once.
Result<JobPosition> findJobPosition(const GetEnv &get);

/// How many ranks share the `visible` GPUs of this one, where `onMachine` ranks run on its machine.
/// Only those of its node do: a launcher may have several nodes on one machine, each with GPUs of
/// its own, and where one GPU is visible it may have shown each rank its own.
int64_t ranksSharingGpus(const JobPosition &position, int64_t visible, int64_t onMachine);

/// Where rank 0 listens: `optionPort`, or the port after the launcher's own. InvalidInput if that
/// is not a port.
Result<int> rendezvousPort(const JobPosition &position, int64_t optionPort);

/// The first host of a Slurm list: `n[03-05,9],m1` begins with n03. Empty if it cannot be read.
std::string firstHost(std::string_view list);

} // namespace shardc::launch
