// Creates the CUDA backend's channels if ranks are in other processes: by MPI if available,
// otherwise by an exchange of the whole job, from which each group takes its own members'
// parts.
#pragma once

#include "runtime/backend/cuda/Options.h"
#include "runtime/hal/Peers.h"
#include "runtime/launch/MpiExchange.h"

namespace shardc::tools {

class PeerRendezvous final : public cuda::Rendezvous {
public:
  /// The peers outlive it; without `mpi` all goes by them.
  explicit PeerRendezvous(hal::Peers &peers, std::unique_ptr<launch::MpiExchange> mpi = nullptr)
      : peers_(peers), mpi_(std::move(mpi)) {}

  Result<std::vector<std::string>> gather(const std::string &key, const std::vector<int> &members,
                                          const std::string &mine) override;
  /// Ends MPI, if that is the way, once all channels are made; all ranks call it together. What is
  /// gathered afterwards goes by the peers.
  Status end();
  hal::Peers &peers() { return peers_; }

private:
  hal::Peers &peers_;
  std::unique_ptr<launch::MpiExchange> mpi_;
};

} // namespace shardc::tools
