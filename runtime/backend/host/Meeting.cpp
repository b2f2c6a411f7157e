// How processes that hold members of a channel connect to each other.
#include <algorithm>

#include "runtime/backend/host/Remote.h"

namespace shardc::host {
namespace {

constexpr double kConnectSeconds = 60;
constexpr double kHelloSeconds = 10;

/// The first bytes on a connection.
struct Greeting {
  uint64_t key;
  uint64_t channel;
  int64_t rank;
};

} // namespace

Result<std::unique_ptr<Meeting>> Meeting::create(hal::Peers &peers) {
  std::unique_ptr<Meeting> meeting(new Meeting(peers));
  ASSIGN_OR_RETURN(meeting->listener_, listenOn(peers.address(), 0));
  std::string mine = fmt::format("{} {}", portOf(meeting->listener_), peers.address());
  ASSIGN_OR_RETURN(std::vector<std::string> all, peers.allGather("where ranks are", mine));
  for (const std::string &text : all) {
    size_t space = text.find(' ');
    if (space == std::string::npos)
      return makeStatus(StatusCode::Internal, "a rank is at '{}'", text);
    meeting->ranks_.push_back({text.substr(space + 1), std::atoi(text.c_str())});
  }
  meeting->channelsWith_.resize(all.size());
  return meeting;
}

/// The higher rank connects to the lower one, which may still be busy with earlier channels: the
/// system keeps connections until they are accepted, so nobody waits in a circle.
Result<std::vector<Socket>> Meeting::connect(const std::vector<int> &members) {
  std::vector<Socket> sockets(members.size());
  int self = peers_.rank();
  for (bool isAccepting : {false, true})
    for (size_t m = 0; m < members.size(); ++m) {
      int other = members[m];
      if (other == self || (other > self) != isAccepting)
        continue;
      auto index = static_cast<size_t>(other);
      uint64_t channel = channelsWith_[index]++;
      if (isAccepting) {
        ASSIGN_OR_RETURN(sockets[m], acceptOf(other, channel));
        continue;
      }
      Result<Socket> socket = connectTo(ranks_[index].address, ranks_[index].port, kConnectSeconds);
      Greeting greeting = {peers_.jobKey(), channel, self};
      Status status = socket.isOk() ? sendAll(*socket, &greeting, sizeof greeting, kConnectSeconds)
                                    : socket.status();
      if (!status.isOk()) {
        peers_.reportLost(other, "connecting channels");
        return makeStatus(StatusCode::Aborted, "rank {}: {}", other, status.message());
      }
      sockets[m] = std::move(*socket);
    }
  return sockets;
}

Result<Socket> Meeting::acceptOf(int rank, uint64_t channel) {
  while (true) {
    for (Early &early : early_)
      if (early.rank == rank && early.channel == channel) {
        Socket socket = std::move(early.socket);
        std::erase_if(early_, [](const Early &entry) { return !entry.socket.isOpen(); });
        return socket;
      }
    Result<Socket> socket = acceptFrom(listener_, kConnectSeconds);
    if (!socket.isOk()) {
      peers_.reportLost(rank, "connecting channels");
      return makeStatus(StatusCode::Aborted, "rank {}: {}", rank, socket.status().message());
    }
    Greeting greeting = {};
    if (receiveAll(*socket, &greeting, sizeof greeting, kHelloSeconds).isOk() &&
        greeting.key == peers_.jobKey()) // otherwise a stranger
      early_.push_back({static_cast<int>(greeting.rank), greeting.channel, std::move(*socket)});
  }
}

} // namespace shardc::host
