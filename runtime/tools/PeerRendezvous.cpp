#include "runtime/tools/PeerRendezvous.h"

#include <cstdlib>
#include <utility>

#include "runtime/launch/JobPosition.h"

namespace shardc::tools {

Result<std::unique_ptr<PeerRendezvous>>
PeerRendezvous::begin(hal::Peers &peers, double timeoutSeconds, const ReportSink &tell) {
  std::unique_ptr<launch::MpiExchange> mpi;
  Result<launch::JobPosition> position = launch::findJobPosition(::getenv);
  if (position.isOk() && position->launcher == Launcher::OpenMpi) {
    launch::MpiOptions options;
    options.timeoutSeconds = timeoutSeconds;
    ASSIGN_OR_RETURN(mpi, launch::MpiExchange::begin(peers, options, tell));
  }
  return std::make_unique<PeerRendezvous>(peers, std::move(mpi));
}

PeerRendezvous::PeerRendezvous(hal::Peers &peers, std::unique_ptr<launch::MpiExchange> mpi)
    : peers_(peers), mpi_(std::move(mpi)) {
  if (mpi_)
    text_ = fmt::format("ids of communicators: by MPI, {}\n", mpi_->library());
}

Result<std::vector<std::string>> PeerRendezvous::gather(std::string_view key,
                                                        const std::vector<int> &members,
                                                        std::string_view mine) {
  return mpi_ ? mpi_->gather(std::string(key), members, std::string(mine))
              : peers_.exchange(key, members, mine, hal::Peers::Fold::Parts);
}

Result<std::string> PeerRendezvous::first(std::string_view key, const std::vector<int> &members,
                                          std::string_view mine) {
  constexpr auto kFirst = hal::Peers::Fold::First;
  std::vector<std::string> parts;
  if (mpi_) {
    ASSIGN_OR_RETURN(parts, mpi_->gather(std::string(key), members, std::string(mine)));
    parts = hal::Peers::folded(std::move(parts), kFirst);
  } else {
    ASSIGN_OR_RETURN(parts, peers_.exchange(key, members, mine, kFirst));
  }
  return std::move(parts.front());
}

Status PeerRendezvous::end() {
  auto mpi = std::exchange(mpi_, nullptr);
  return mpi ? mpi->end() : Status::ok();
}

} // namespace shardc::tools
