// The position of this process in its job, derived from its launcher's environment
// (base/Launcher.h). Without a launcher it is a plain start.
#pragma once

#include <string>

#include "runtime/base/Hmac.h"
#include "runtime/base/Launcher.h"
#include "runtime/base/Report.h"
#include "runtime/base/Status.h"

namespace shardc::launch {

struct JobPosition {
  Launcher launcher = Launcher::Plain;
  int64_t rank = 0, worldSize = 1;
  int64_t localRank = 0;     ///< number of the rank on its node, from the launcher
  int64_t node = -1;         ///< number of its node, from the launcher; -1 if it does not say
  int64_t localSize = 0;     ///< ranks of its node, from the launcher; 0 if it does not say
  std::string masterAddress; ///< the address of rank 0
  int masterPort = 0;        ///< the launcher's own port at that address
  std::string job;           ///< the launcher's name of this job; empty if it has none
};

/// Returns a text that distinguishes a launch from others that may have the same secret. The text
/// includes the launcher's port, since the job name may be a mere default.
std::string launchName(const JobPosition &position);

/// Reads the environment. InvalidInput if variables contradict each other, are not numbers, or a
/// required one is missing. A rank beyond the world size is accepted here: the rendezvous refuses
/// it, so that the message is printed once.
Result<JobPosition> findJobPosition(const GetEnv &get);

/// Returns the number of ranks that share the `visible` GPUs of this rank, if `onMachine` ranks run
/// on its machine. Only the ranks of its node share them, since a launcher may place several nodes
/// on one machine, each with its own GPUs. If only one GPU is visible, the launcher may have
/// assigned each rank its own.
int64_t ranksSharingGpus(const JobPosition &position, int64_t visible, int64_t onMachine);

/// Returns the port on which rank 0 listens: `optionPort`, or the port after the launcher's own.
/// InvalidInput if that is not a valid port.
Result<int> rendezvousPort(const JobPosition &position, int64_t optionPort);

/// Returns the first host of a Slurm host list: n03 for `n[03-05,9],m1`. Empty if the list cannot
/// be parsed.
std::string firstHost(std::string_view list);

/// What a rank, or the relay of a machine's ranks, needs to join the job.
struct JoinOptions {
  std::string address; ///< address of rank 0's supervisor
  int port = 0;
  /// The launcher's numbers; in an elastic job, the place and the number of places.
  int64_t rank = 0, worldSize = 1;
  bool isElastic = false;
  /// Whether ranks that lose rank 0's supervisor are started again. The loss is then not reported.
  bool startsAgain = false;
  Key secret{};
  std::string job;
  /// The name under which ranks of this machine find its relay (Relay.h); empty: they connect to
  /// rank 0's supervisor.
  std::string relayName;
  double joinSeconds = 600; ///< longest wait until all ranks have arrived
  ReportSink emit;          ///< receives what no other process can report
};

} // namespace shardc::launch
