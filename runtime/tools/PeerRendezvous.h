// How ranks in several processes agree while channels are created: by MPI if mpirun launched them
// and it is there, otherwise by way of rank 0's supervisor.
#pragma once

#include <memory>

#include "runtime/hal/Peers.h"
#include "runtime/hal/Rendezvous.h"
#include "runtime/launch/MpiExchange.h"

namespace shardc::tools {

class PeerRendezvous final : public hal::Rendezvous {
public:
  /// Begins MPI where mpirun has launched the job. All ranks call it together, before any thread
  /// reads the environment, which MPI changes; the peers outlive it.
  static Result<std::unique_ptr<PeerRendezvous>> begin(hal::Peers &peers, double timeoutSeconds,
                                                       const ReportSink &tell);
  /// The peers outlive it; without `mpi` all goes by them.
  explicit PeerRendezvous(hal::Peers &peers, std::unique_ptr<launch::MpiExchange> mpi = nullptr);

  Result<std::vector<std::string>> gather(std::string_view key, const std::vector<int> &members,
                                          std::string_view mine) override;
  Result<std::string> first(std::string_view key, const std::vector<int> &members,
                            std::string_view mine) override;
  /// Ends MPI, if that is the way, once all channels are made; all ranks call it together. What is
  /// exchanged afterwards goes by the peers.
  Status end();
  hal::Peers &peers() { return peers_; }
  /// A line about the way; empty if it is the usual one.
  const std::string &text() const { return text_; }

private:
  hal::Peers &peers_;
  std::unique_ptr<launch::MpiExchange> mpi_;
  std::string text_;
};

} // namespace shardc::tools
