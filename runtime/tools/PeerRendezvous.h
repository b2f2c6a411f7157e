// How ranks in several processes agree while channels are created: through rank 0's supervisor,
// however they were launched.
#pragma once

#include "runtime/hal/Peers.h"
#include "runtime/hal/Rendezvous.h"

namespace shardc::tools {

class PeerRendezvous final : public hal::Rendezvous {
public:
  /// `peers` must outlive it.
  explicit PeerRendezvous(hal::Peers &peers) : peers_(peers) {}

  Result<std::vector<std::string>> gather(std::string_view key, const std::vector<int> &members,
                                          std::string_view mine) override {
    return peers_.exchange(key, members, mine, hal::Peers::Fold::Parts);
  }
  Result<std::string> first(std::string_view key, const std::vector<int> &members,
                            std::string_view mine) override {
    ASSIGN_OR_RETURN(auto parts, peers_.exchange(key, members, mine, hal::Peers::Fold::First));
    return std::move(parts.front());
  }

private:
  hal::Peers &peers_;
};

} // namespace shardc::tools
