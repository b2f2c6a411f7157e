#include "runtime/backend/host/Remote.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <sys/socket.h>
#include <unistd.h>

#include "runtime/backend/host/Collectives.h"
#include "runtime/base/Thread.h"

namespace shardc::host {
namespace {

using hal::Collective;
using hal::CollectiveKind;

/// Up to this size, a rank sends the whole operand of an all_reduce to every other rank: one
/// exchange instead of two.
constexpr int64_t kSmallBytes = 16 << 10;

int64_t bytesOf(int64_t count, DType type) { return count * dtypeBytes(type); }

/// The range [begin, end) of elements of an all_reduce that member `part` reduces.
std::pair<int64_t, int64_t> chunkOf(int64_t count, int64_t part, int64_t size) {
  return {count * part / size, count * (part + 1) / size};
}

} // namespace

/// The header of each exchange, which describes the sender's collective.
struct RemoteMember::Head {
  uint64_t sequence;
  int64_t count;
  uint32_t phase;
  uint8_t kind, inType, outType, average;
  int64_t by;
  std::array<char, 96> label;

  bool agreesWith(const Head &other) const {
    return sequence == other.sequence && count == other.count && phase == other.phase &&
           isOtherSideOf(other) && inType == other.inType && outType == other.outType &&
           average == other.average && by == other.by;
  }
  bool isOtherSideOf(const Head &other) const {
    auto mine = static_cast<CollectiveKind>(kind), theirs = static_cast<CollectiveKind>(other.kind);
    return isPointToPoint(mine) ? isPointToPoint(theirs) && mine != theirs : mine == theirs;
  }
};

/// Another member, and the bytes to send to it and to receive from it.
struct RemoteMember::Peer {
  int member = 0; ///< index in the group
  Socket socket;
  Head out{}, in{};
  const uint8_t *send = nullptr;
  uint8_t *receive = nullptr;
  int64_t sendBytes = 0, receiveBytes = 0;
  int64_t sent = 0, received = 0; ///< including headers
  bool isDone() const {
    auto head = static_cast<int64_t>(sizeof(Head));
    return sent == head + sendBytes && received == head + receiveBytes;
  }
  bool push();
  bool pull();
};

/// Sends as many bytes as the connection accepts now; false if the connection is closed.
bool RemoteMember::Peer::push() {
  auto head = static_cast<int64_t>(sizeof(Head));
  while (sent < head + sendBytes) {
    const void *from =
        sent < head ? reinterpret_cast<const uint8_t *>(&out) + sent : send + (sent - head);
    int64_t bytes = sent < head ? head - sent : head + sendBytes - sent;
    // MSG_MORE must not be set if no data follows: the system would delay the header by 200 ms.
    int more = sent < head && sendBytes > 0 ? MSG_MORE : 0;
    ssize_t moved =
        ::send(socket.fd(), from, static_cast<size_t>(bytes), MSG_NOSIGNAL | MSG_DONTWAIT | more);
    if (moved > 0)
      sent += moved;
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      return true;
    else if (errno != EINTR)
      return false;
  }
  return true;
}

bool RemoteMember::Peer::pull() {
  auto head = static_cast<int64_t>(sizeof(Head));
  while (received < head + receiveBytes) {
    void *to =
        received < head ? reinterpret_cast<uint8_t *>(&in) + received : receive + (received - head);
    int64_t bytes = received < head ? head - received : head + receiveBytes - received;
    ssize_t moved = ::recv(socket.fd(), to, static_cast<size_t>(bytes), MSG_DONTWAIT);
    if (moved > 0) {
      received += moved;
      if (received == head)
        return true; // the caller checks the header before data is written to memory
    } else if (moved == 0) {
      return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

RemoteMember::RemoteMember(hal::Peers &peers, std::string name, std::vector<int> members, int index,
                           std::vector<Socket> sockets, Done done)
    : peers_(peers), name_(std::move(name)), members_(std::move(members)), index_(index),
      done_(std::move(done)), parts_(members_.size()), partOf_(members_.size()) {
  for (size_t m = 0; m < members_.size(); ++m) {
    partOf_[m] = &parts_[m];
    if (static_cast<int>(m) == index_)
      continue;
    others_.push_back(std::make_unique<Peer>());
    others_.back()->member = static_cast<int>(m);
    others_.back()->socket = std::move(sockets[m]);
  }
  entries_.resize(others_.size() + 1);
}

Status RemoteMember::startThread() {
  ASSIGN_OR_RETURN(wakeup_, makeWakeup());
  return shardc::startThread(thread_, [this] { run(); });
}

RemoteMember::~RemoteMember() {
  {
    std::lock_guard lock(mutex_);
    isStopping_ = true;
  }
  cancel();
  if (thread_.joinable())
    thread_.join();
}

/// Enlarges the receive buffer for the collective, if its kind needs one: one slot per member, each
/// a multiple of a cache line of 64 bytes.
void RemoteMember::reserve(const Collective &collective) {
  auto size = static_cast<int64_t>(members_.size());
  int64_t slot = bytesOf(collective.count, collective.inType);
  if (!isSum(collective.kind) && collective.kind != CollectiveKind::AllReduceMax)
    return;
  if (!hasParts(collective.kind) && slot > kSmallBytes)
    slot = bytesOf((collective.count + size - 1) / size, collective.inType);
  slot = (slot + 63) / 64 * 64;
  std::lock_guard lock(mutex_);
  if (slot <= slotBytes_)
    return;
  receiveBuffers_.push_back(std::make_unique<uint8_t[]>(static_cast<size_t>(slot * size)));
  slotBytes_ = slot; // earlier buffers stay, since a running collective may use them
}

void RemoteMember::start(const Collective &collective, const char *label, void *tag) {
  {
    std::lock_guard lock(mutex_);
    request_ = collective;
    label_ = label;
    tag_ = tag;
    hasRequest_ = true;
    receiveBuffer_ = receiveBuffers_.empty() ? nullptr : receiveBuffers_.back().get();
    receiveBufferBytes_ = slotBytes_;
  }
  changed_.notify_one();
}

void RemoteMember::cancel() {
  {
    std::lock_guard lock(mutex_);
    isCancelled_ = true;
  }
  wake(wakeup_);
  changed_.notify_one();
}

void RemoteMember::run() {
  sigset_t all; // the main thread handles signals
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  while (true) {
    Collective request;
    const char *label = "";
    void *tag = nullptr;
    bool isCancelled = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return hasRequest_ || isStopping_; });
      if (!hasRequest_)
        return;
      hasRequest_ = false;
      request = request_;
      label = label_;
      tag = tag_;
      isCancelled = isCancelled_;
    }
    Status status =
        isCancelled ? Status(StatusCode::Aborted, "the job is over") : perform(request, label);
    done_(tag, std::move(status));
  }
}

/// `sequence_` counts the collectives of the channel. Members send it with each exchange, so that a
/// member whose collectives are in another order is found.
Status RemoteMember::perform(const Collective &collective, const char *label) {
  std::array<const Collective *, 1> one = {&collective};
  if (Status status = checkMembers(one); !status.isOk())
    return std::move(status).withContext(fmt::format("'{}'", label));
  ++sequence_;
  switch (collective.kind) {
  case CollectiveKind::AllGather:
    return gather(collective, label);
  case CollectiveKind::ReduceScatter:
    return reduceScatter(collective, label);
  case CollectiveKind::AllReduce:
  case CollectiveKind::AllReduceMax:
    return bytesOf(collective.count, collective.inType) <= kSmallBytes
               ? allReduceSmall(collective, label)
               : allReduce(collective, label);
  case CollectiveKind::Send:
  case CollectiveKind::Recv:
    return transfer(collective, label);
  case CollectiveKind::AllToAll:
    return allToAll(collective, label);
  case CollectiveKind::Shift:
    return shift(collective, label);
  }
  return Status::ok();
}

uint8_t *RemoteMember::receiveBuffer(int member) const {
  return receiveBuffer_ + member * receiveBufferBytes_;
}

void RemoteMember::begin(const Collective &collective, const char *label, uint32_t phase) {
  Head head = {};
  head.sequence = sequence_;
  head.count = collective.count;
  head.phase = phase;
  head.kind = static_cast<uint8_t>(collective.kind);
  head.inType = static_cast<uint8_t>(collective.inType);
  head.outType = static_cast<uint8_t>(collective.outType);
  head.average = collective.average;
  head.by = collective.by;
  std::strncpy(head.label.data(), label, head.label.size() - 1);
  for (std::unique_ptr<Peer> &peer : others_) {
    peer->out = head;
    peer->sent = peer->received = peer->sendBytes = peer->receiveBytes = 0;
  }
}

Status RemoteMember::gather(const Collective &collective, const char *label) {
  int64_t bytes = bytesOf(collective.count, collective.inType);
  auto *out = static_cast<uint8_t *>(collective.out);
  begin(collective, label, 0);
  for (std::unique_ptr<Peer> &peer : others_) {
    peer->send = static_cast<const uint8_t *>(collective.in);
    peer->receive = out + peer->member * bytes;
    peer->sendBytes = peer->receiveBytes = bytes;
  }
  if (out + index_ * bytes != collective.in) // its part may already lie in its own slot
    std::memcpy(out + index_ * bytes, collective.in, static_cast<size_t>(bytes));
  return exchange(label);
}

Status RemoteMember::transfer(const Collective &collective, const char *label) {
  bool sends = collective.kind == CollectiveKind::Send;
  begin(collective, label, 0);
  Peer &peer = *others_.front();
  int64_t bytes = bytesOf(collective.count, collective.inType);
  (sends ? peer.sendBytes : peer.receiveBytes) = bytes;
  if (sends)
    peer.send = static_cast<const uint8_t *>(collective.in);
  else
    peer.receive = static_cast<uint8_t *>(collective.out);
  return exchange(label);
}

Status RemoteMember::allToAll(const Collective &collective, const char *label) {
  int64_t bytes = bytesOf(collective.count, collective.inType);
  auto *in = static_cast<const uint8_t *>(collective.in);
  auto *out = static_cast<uint8_t *>(collective.out);
  begin(collective, label, 0);
  for (std::unique_ptr<Peer> &peer : others_) {
    peer->send = in + peer->member * bytes;
    peer->receive = out + peer->member * bytes;
    peer->sendBytes = peer->receiveBytes = bytes;
  }
  std::memcpy(out + index_ * bytes, in + index_ * bytes, static_cast<size_t>(bytes));
  return exchange(label);
}

Status RemoteMember::shift(const Collective &collective, const char *label) {
  auto size = static_cast<int64_t>(members_.size());
  int64_t bytes = bytesOf(collective.count, collective.inType);
  int64_t to = memberBehind(index_, collective.by, size);
  int64_t from = memberBehind(index_, -collective.by, size);
  begin(collective, label, 0);
  for (std::unique_ptr<Peer> &peer : others_) {
    if (peer->member == to)
      peer->send = static_cast<const uint8_t *>(collective.in), peer->sendBytes = bytes;
    if (peer->member == from)
      peer->receive = static_cast<uint8_t *>(collective.out), peer->receiveBytes = bytes;
  }
  if (from == index_)
    std::memcpy(collective.out, collective.in, static_cast<size_t>(bytes));
  return exchange(label);
}

void RemoteMember::sumInto(const Collective &like, const void *mine, int64_t count, void *out,
                           bool accumulate) {
  bool isSummed = isSum(like.kind);
  for (size_t m = 0; m < members_.size(); ++m) {
    parts_[m] = like;
    if (isSummed)
      parts_[m].kind = CollectiveKind::ReduceScatter;
    parts_[m].in = static_cast<int>(m) == index_ ? mine : receiveBuffer(static_cast<int>(m));
    parts_[m].out = out;
    parts_[m].count = count;
    parts_[m].accumulate = accumulate;
  }
  // A sum is executed as a reduce-scatter whose part 0 covers all elements. A maximum has a part
  // for each member.
  for (size_t part = 0; part < (isSummed ? 1 : members_.size()); ++part)
    runPart(partOf_, static_cast<int>(part));
}

Status RemoteMember::reduceScatter(const Collective &collective, const char *label) {
  int64_t bytes = bytesOf(collective.count, collective.inType);
  auto *in = static_cast<const uint8_t *>(collective.in);
  begin(collective, label, 0);
  for (std::unique_ptr<Peer> &peer : others_) {
    peer->send = in + peer->member * bytes;
    peer->receive = receiveBuffer(peer->member);
    peer->sendBytes = peer->receiveBytes = bytes;
  }
  RETURN_IF_ERROR(exchange(label));
  sumInto(collective, in + index_ * bytes, collective.count, collective.out, collective.accumulate);
  return Status::ok();
}

Status RemoteMember::allReduceSmall(const Collective &collective, const char *label) {
  int64_t bytes = bytesOf(collective.count, collective.inType);
  begin(collective, label, 0);
  for (std::unique_ptr<Peer> &peer : others_) {
    peer->send = static_cast<const uint8_t *>(collective.in);
    peer->receive = receiveBuffer(peer->member);
    peer->sendBytes = peer->receiveBytes = bytes;
  }
  RETURN_IF_ERROR(exchange(label));
  sumInto(collective, collective.in, collective.count, collective.out, false);
  return Status::ok();
}

/// 1. Each member receives everybody's version of its own chunk and reduces them. 2. All members
/// receive all chunks.
Status RemoteMember::allReduce(const Collective &collective, const char *label) {
  auto size = static_cast<int64_t>(members_.size());
  auto [begin_, end] = chunkOf(collective.count, index_, size);
  auto *in = static_cast<const uint8_t *>(collective.in);
  auto *out = static_cast<uint8_t *>(collective.out);
  begin(collective, label, 0);
  for (std::unique_ptr<Peer> &peer : others_) {
    auto [theirs, theirEnd] = chunkOf(collective.count, peer->member, size);
    peer->send = in + bytesOf(theirs, collective.inType);
    peer->sendBytes = bytesOf(theirEnd - theirs, collective.inType);
    peer->receive = receiveBuffer(peer->member);
    peer->receiveBytes = bytesOf(end - begin_, collective.inType);
  }
  RETURN_IF_ERROR(exchange(label));
  uint8_t *mine = out + bytesOf(begin_, collective.outType);
  sumInto(collective, in + bytesOf(begin_, collective.inType), end - begin_, mine, false);
  begin(collective, label, 1);
  for (std::unique_ptr<Peer> &peer : others_) {
    auto [theirs, theirEnd] = chunkOf(collective.count, peer->member, size);
    peer->send = mine;
    peer->sendBytes = bytesOf(end - begin_, collective.outType);
    peer->receive = out + bytesOf(theirs, collective.outType);
    peer->receiveBytes = bytesOf(theirEnd - theirs, collective.outType);
  }
  return exchange(label);
}

Status RemoteMember::exchange(const char *label) {
  std::vector<pollfd> &entries = entries_;
  while (true) {
    bool isDone = true;
    for (size_t i = 0; i < others_.size(); ++i) {
      Peer &peer = *others_[i];
      bool hadHead = peer.received >= static_cast<int64_t>(sizeof(Head));
      if (!peer.push() || !peer.pull())
        return lose(peer, label);
      if (!hadHead && peer.received == static_cast<int64_t>(sizeof(Head))) {
        RETURN_IF_ERROR(checkHead(peer, label));
        if (!peer.pull())
          return lose(peer, label);
      }
      isDone = isDone && peer.isDone();
      bool wantsOut = peer.sent < static_cast<int64_t>(sizeof(Head)) + peer.sendBytes;
      bool wantsIn = peer.received < static_cast<int64_t>(sizeof(Head)) + peer.receiveBytes;
      short events = static_cast<short>((wantsIn ? POLLIN : 0) | (wantsOut ? POLLOUT : 0));
      entries[i] = {events ? peer.socket.fd() : -1, events, 0};
    }
    if (isDone)
      return Status::ok();
    entries.back() = {wakeup_.fd(), POLLIN, 0};
    ::poll(entries.data(), entries.size(), -1);
    if (entries.back().revents != 0)
      return makeStatus(StatusCode::Aborted, "'{}': the job is over", label);
  }
}

Status RemoteMember::checkHead(const Peer &peer, const char *label) const {
  if (peer.in.agreesWith(peer.out))
    return Status::ok();
  std::string theirs(peer.in.label.data(), ::strnlen(peer.in.label.data(), peer.in.label.size()));
  return makeStatus(StatusCode::InvalidInput,
                    "collective on channel '{}': members disagree: rank {} is at '{}' with {} "
                    "elements, rank {} at '{}' with {}",
                    name_, members_[static_cast<size_t>(index_)], label, peer.out.count,
                    members_[static_cast<size_t>(peer.member)], theirs, peer.in.count);
}

Status RemoteMember::lose(const Peer &peer, const char *label) {
  int rank = members_[static_cast<size_t>(peer.member)];
  peers_.reportLost(rank, label);
  return makeStatus(StatusCode::Aborted, "'{}' on channel '{}': rank {} does not answer", label,
                    name_, rank);
}

} // namespace shardc::host
