// How the CUDA backend runs: which ranks of the job this process holds, on which devices, how
// processes find each other, and how sums over ranks are formed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/hal/Backend.h"

namespace shardc::cuda {

/// How the processes of a job agree on a communicator before they have one.
class Rendezvous {
public:
  virtual ~Rendezvous() = default;
  /// What each member of a group gave, in their order. All processes of the job call it together,
  /// each for a group of its own: how often must not depend on what one group finds out. The
  /// members of a group have the same key, and no other exchange of theirs has.
  virtual Result<std::vector<std::string>>
  gather(const std::string &key, const std::vector<int> &members, const std::string &mine) = 0;
};

struct Options {
  int worldSize = 1;
  int firstRank = 0; ///< of this process; the others follow
  std::vector<int>
      devices; ///< CUDA device of each rank of this process; empty: as many as ranks, from 0
  /// Needed where not all ranks are in this process; outlives the backend.
  Rendezvous *rendezvous = nullptr;
  /// Registrations that are treated as refused by NCCL, to test what happens then.
  bool refuseWindows = false, refuseLocal = false;
  /// Sums over machines are formed in the network, where NCCL finds one that can.
  bool collectiveNetwork = false;
  /// Is told, once a channel and process, why less is registered than was asked for.
  std::function<void(const std::string &)> warn;
  /// Is told of an error of a device or a channel before communicators are ended, which takes long
  /// where the device does not answer.
  std::function<void(const Status &)> failed;
  bool guards = false;       ///< zones around every buffer that checkGuards() looks at
  bool canTrace = false;     ///< loads what traces need, which costs some speed
  double timeoutSeconds = 0; ///< longest wait for queued work; 0 is for ever
};

/// Sets the environment variables by which NCCL is told how this backend uses it; what the user has
/// set stays. Threads may read the environment at any time and none may change it beside them, so
/// a program that has threads before it makes a backend calls this before them.
void setVariables();

/// Makes the backend, and sets those variables if nobody has. Unavailable if there are fewer
/// devices than ranks or one cannot be used; InvalidInput for ranks that do not fit the world.
Result<std::unique_ptr<hal::Backend>> makeBackend(const Options &options);

} // namespace shardc::cuda
