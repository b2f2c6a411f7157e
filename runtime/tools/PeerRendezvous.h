// How the CUDA backend's channels come to be where ranks are in other processes: an exchange of all
// of the job, of which each group takes its own members' parts.
#pragma once

#include "runtime/backend/cuda/Options.h"
#include "runtime/hal/Peers.h"

namespace shardc::tools {

class PeerRendezvous final : public cuda::Rendezvous {
public:
  /// The peers outlive it.
  explicit PeerRendezvous(hal::Peers &peers) : peers_(peers) {}

  Result<std::vector<std::string>> gather(const std::string &key, const std::vector<int> &members,
                                          const std::string &mine) override;
  hal::Peers &peers() { return peers_; }

private:
  hal::Peers &peers_;
};

} // namespace shardc::tools
