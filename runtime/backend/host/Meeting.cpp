// Connects processes whose ranks are members of one channel.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>

#include <sys/socket.h>

#include "runtime/backend/host/Remote.h"

namespace shardc::host {
namespace {

constexpr double kConnectSeconds = 60;
constexpr double kGreetingSeconds = 10; ///< time limit for a new connection to send its greeting
constexpr size_t kPendingMax = 64;      ///< without a greeting; a new one closes the oldest
constexpr int kPollMilliseconds = 500;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

} // namespace

Result<std::unique_ptr<Meeting>> Meeting::create(hal::Peers &peers) {
  std::unique_ptr<Meeting> meeting(new Meeting(peers));
  ASSIGN_OR_RETURN(meeting->listener_, listenOn(peers.address(), 0));
  Nonce nonce = randomBytes32();
  std::string mine =
      fmt::format("{}{} {}", bytesOf(nonce), portOf(meeting->listener_), peers.address());
  ASSIGN_OR_RETURN(std::vector<std::string> all, peers.allGather("addresses of ranks", mine));
  for (const std::string &text : all) {
    At at;
    size_t space = text.find(' ', at.nonce.size());
    if (space == std::string::npos)
      return makeStatus(StatusCode::Internal, "a rank sent no address");
    copyBytes(std::string_view(text).substr(0, at.nonce.size()), at.nonce);
    std::from_chars(text.data() + at.nonce.size(), text.data() + space, at.port);
    at.address = text.substr(space + 1);
    meeting->ranks_.push_back(std::move(at));
  }
  meeting->channelsWith_.resize(all.size());
  return meeting;
}

Meeting::Greeting Meeting::greetingTo(int rank, uint64_t channel, int64_t from) const {
  Greeting greeting = {channel, from, {}};
  std::string_view what(reinterpret_cast<const char *>(&greeting), offsetof(Greeting, code));
  greeting.code = authCode(peers_.jobKey(),
                           {"channel", bytesOf(ranks_[static_cast<size_t>(rank)].nonce), what});
  return greeting;
}

/// The higher rank connects to the lower rank. The lower rank may still be busy with earlier
/// channels, but the system keeps connections until they are accepted, so no cycle of waits can
/// occur.
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
      if (socket.status().code() == StatusCode::Exhausted) // this rank has no descriptor left
        return socket.status();
      Greeting greeting = greetingTo(other, channel, self);
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
  double begin = now();
  while (true) {
    for (Early &early : early_)
      if (early.rank == rank && early.channel == channel) {
        Socket socket = std::move(early.socket);
        std::erase_if(early_, [](const Early &entry) { return !entry.socket.isOpen(); });
        return socket;
      }
    if (now() - begin > kConnectSeconds) {
      RETURN_IF_ERROR(closedEarly_); // this rank's connection may have been closed early
      peers_.reportLost(rank, "connecting channels");
      return makeStatus(StatusCode::Aborted, "rank {}: it has not connected for {} s", rank,
                        kConnectSeconds);
    }
    std::vector<pollfd> entries = {{listener_.fd(), POLLIN, 0}};
    for (const Pending &pending : pending_)
      entries.push_back({pending.socket.fd(), POLLIN, 0});
    ::poll(entries.data(), entries.size(), kPollMilliseconds);
    readGreetings();
    RETURN_IF_ERROR(takeArrivals());
  }
}

Status Meeting::takeArrivals() {
  for (size_t i = 0; i < kPendingMax; ++i) {
    Result<Socket> socket = acceptOne(listener_);
    if (socket.status().code() == StatusCode::Exhausted && !pending_.empty()) {
      closedEarly_ = socket.status();
      pending_.erase(pending_.begin());
      continue;
    }
    RETURN_IF_ERROR(socket.status());
    if (!socket->isOpen())
      break;
    if (pending_.size() == kPendingMax)
      pending_.erase(pending_.begin());
    pending_.push_back({std::move(*socket), now()});
    readGreetings(); // the greeting usually has arrived already
  }
  return Status::ok();
}

void Meeting::readGreetings() {
  std::erase_if(pending_, [this](Pending &pending) {
    return !read(pending) || now() - pending.since > kGreetingSeconds;
  });
}

bool Meeting::read(Pending &pending) {
  while (pending.received < sizeof pending.greeting) {
    ssize_t got =
        ::recv(pending.socket.fd(), reinterpret_cast<char *>(&pending.greeting) + pending.received,
               sizeof pending.greeting - pending.received, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      return true;
    if (got <= 0)
      return false;
    pending.received += static_cast<size_t>(got);
  }
  const Greeting &greeting = pending.greeting;
  bool isMember =
      isSame(greeting.code, greetingTo(peers_.rank(), greeting.channel, greeting.rank).code) &&
      greeted_.emplace(greeting.rank, greeting.channel).second; // a second greeting is a replay
  if (isMember)
    early_.push_back(
        {static_cast<int>(greeting.rank), greeting.channel, std::move(pending.socket)});
  return false;
}

} // namespace shardc::host
