#include "test/unit/launchsim/FakeNetwork.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/launch/Wire.h"

namespace shardc::launch {
namespace {

constexpr int kFirst = 1 << 20; ///< lower descriptors are the system's
constexpr double kKeepAlive = 60;

/// Number of messages in `bytes`. The bytes of one call consist of whole messages.
uint64_t messagesIn(std::string_view bytes) {
  uint64_t count = 0;
  for (uint32_t head[4]; bytes.size() >= sizeof head; ++count) { // magic, kind, bytes, none
    std::memcpy(head, bytes.data(), sizeof head);
    size_t code = hasCode(static_cast<MessageKind>(head[1])) ? sizeof(AuthCode) : 0;
    bytes.remove_prefix(std::min(bytes.size(), sizeof head + head[2] + code));
  }
  return count;
}

} // namespace

FakeNetwork &FakeNetwork::only() {
  static FakeNetwork network;
  return network;
}

FakeNetwork::End::~End() {
  if (process >= 0)
    --only().usageOf(*this).connections;
  if (std::shared_ptr<End> peer = other.lock(); peer && !isGone && peer->endsAt < 0) {
    FakeNetwork &network = only();
    double last = peer->arriving.empty() ? 0 : peer->arriving.back().at;
    peer->endsAt = std::max(last, network.now + network.late(*this));
  }
}

void FakeNetwork::reset(uint64_t seed) {
  ends_.clear();
  usage_.clear();
  ports_.clear();
  names_.clear();
  random_.seed(seed);
  now = 100;
  machine = process = 0;
  faultChance = 0;
  slowChance = lateMost = 0.02;
  nextPort_ = 1000;
}

/// Seconds until bytes arrive: 0 within a machine, usually few between machines.
double FakeNetwork::late(const End &from) {
  if (from.machine == from.otherMachine)
    return 0;
  return chance() < slowChance ? 2 * chance() : lateMost * chance();
}

Usage &FakeNetwork::usageOf(const End &end) {
  auto of = static_cast<size_t>(end.process);
  int own = std::exchange(process, 0);
  usage_.resize(std::max(usage_.size(), of + 1));
  process = own;
  return usage_[of];
}

/// From here on, the connection belongs to the process that calls now.
void FakeNetwork::own(End &end) {
  end.process = process;
  Usage &own = usageOf(end);
  own.connectionsMost = std::max(own.connectionsMost, ++own.connections);
}

std::shared_ptr<FakeNetwork::End> FakeNetwork::at(int fd) const {
  auto index = static_cast<size_t>(fd - kFirst);
  return fd >= kFirst && index < ends_.size() ? ends_[index] : nullptr;
}

bool FakeNetwork::has(int fd) const { return fd >= kFirst; }

int FakeNetwork::add(std::shared_ptr<End> end) {
  int own = std::exchange(process, 0); // the list's memory belongs to no process
  ends_.push_back(std::move(end));
  process = own;
  return kFirst + static_cast<int>(ends_.size()) - 1;
}

int FakeNetwork::open(bool isNamed) {
  auto end = std::make_shared<End>();
  end->machine = machine;
  end->isNamed = isNamed;
  return add(std::move(end));
}

int FakeNetwork::duplicate(int fd) { return add(at(fd)); }

int FakeNetwork::close(int fd) {
  if (at(fd))
    ends_[static_cast<size_t>(fd - kFirst)].reset();
  return 0;
}

int FakeNetwork::bind(int fd, int port, const std::string &name) {
  std::shared_ptr<End> end = at(fd);
  if (end->isNamed ? !names_[name].expired() : port > 0 && !ports_[port].expired())
    return errno = EADDRINUSE, -1;
  end->name = name;
  end->port = port > 0 ? port : ++nextPort_;
  return 0;
}

int FakeNetwork::listen(int fd) {
  std::shared_ptr<End> end = at(fd);
  end->listensFor = process;
  if (end->isNamed)
    names_[end->name] = end;
  else
    ports_[end->port] = end;
  return 0;
}

int FakeNetwork::connect(int fd, int port, const std::string &name) {
  std::shared_ptr<End> end = at(fd);
  std::shared_ptr<End> listener = end->isNamed ? names_[name].lock() : ports_[port].lock();
  if (!listener || listener->isGone)
    return errno = ECONNREFUSED, -1;
  auto other = std::make_shared<End>();
  end->port = ++nextPort_;
  other->machine = end->otherMachine = listener->machine;
  other->port = end->otherPort = listener->port;
  other->otherMachine = end->machine;
  other->otherPort = end->port;
  other->isNamed = end->isNamed;
  end->other = other;
  other->other = end;
  if (!end->isNamed) {
    own(*end);
    usageOf(*end).parent = listener->listensFor;
  }
  listener->waiting.push_back(std::move(other));
  return 0;
}

int FakeNetwork::accept(int fd) {
  std::shared_ptr<End> end = at(fd);
  if (end->waiting.empty())
    return errno = EAGAIN, -1;
  std::shared_ptr<End> first = end->waiting.front();
  end->waiting.pop_front();
  if (!end->isNamed)
    own(*first);
  return add(std::move(first));
}

int64_t FakeNetwork::send(int fd, const char *data, size_t bytes) {
  std::shared_ptr<End> end = at(fd), other = end->other.lock();
  if (end->isGone)
    return static_cast<int64_t>(bytes);
  if (!other)
    return errno = EPIPE, -1;
  if (other->isGone)
    return static_cast<int64_t>(bytes);
  std::deque<Chunk> &queue = other->arriving;
  double at = std::max(now + late(*end), queue.empty() ? 0.0 : queue.back().at);
  Chunk chunk = {at, std::string(data, bytes), messagesIn({data, bytes})};
  if (end->process >= 0) {
    usageOf(*end).bytesOut += bytes;
    usageOf(*end).messagesOut += chunk.messages;
  }
  int fault = !end->isNamed && chance() < faultChance ? static_cast<int>(random_() % 4) : -1;
  if (fault == 0) // lost
    return static_cast<int64_t>(bytes);
  if (fault == 1) // changed
    chunk.bytes[random_() % bytes] ^= 1;
  if (fault == 2) // sent twice
    queue.push_back(chunk);
  queue.push_back(std::move(chunk));
  if (fault == 3 && queue.size() > 1) // swapped with the bytes sent before
    std::swap(queue.back().bytes, queue[queue.size() - 2].bytes);
  return static_cast<int64_t>(bytes);
}

int64_t FakeNetwork::receive(int fd, char *data, size_t bytes) {
  std::shared_ptr<End> end = at(fd);
  if (!end->arriving.empty() && end->arriving.front().at <= now) {
    const uint64_t messages = end->arriving.front().messages;
    std::string &first = end->arriving.front().bytes;
    size_t count = std::min(bytes, first.size());
    std::memcpy(data, first.data(), count);
    first.erase(0, count);
    bool isWhole = first.empty();
    if (isWhole)
      end->arriving.pop_front();
    moved += count;
    if (end->process >= 0) {
      usageOf(*end).bytesIn += count;
      usageOf(*end).messagesIn += isWhole ? messages : 0;
    }
    return static_cast<int64_t>(count);
  }
  bool isEnd = end->arriving.empty() && end->endsAt >= 0 && end->endsAt <= now;
  return isEnd ? 0 : (errno = EAGAIN, -1);
}

bool FakeNetwork::address(int fd, bool isOther, int &of, int &port) const {
  std::shared_ptr<End> end = at(fd);
  of = isOther ? end->otherMachine : end->machine;
  port = isOther ? end->otherPort : end->port;
  return true;
}

void FakeNetwork::vanish(int lost) {
  for (const std::shared_ptr<End> &end : ends_) {
    if (!end || end->machine != lost)
      continue;
    end->isGone = true;
    if (std::shared_ptr<End> other = end->other.lock(); other && other->endsAt < 0)
      other->endsAt = now + kKeepAlive;
  }
}

void FakeNetwork::look(std::vector<pollfd> &entries) const {
  for (pollfd &entry : entries) {
    std::shared_ptr<End> end = at(entry.fd);
    bool isReady = end && (!end->waiting.empty() ||
                           (!end->arriving.empty() && end->arriving.front().at <= now) ||
                           (end->endsAt >= 0 && end->endsAt <= now));
    entry.revents = isReady ? POLLIN : 0;
  }
}

} // namespace shardc::launch

// Replaces functions of the system; calls for descriptors outside the network are passed on.
namespace {

using shardc::launch::FakeNetwork;

FakeNetwork &network() { return FakeNetwork::only(); }

int portOf(const sockaddr *address) {
  return ntohs(reinterpret_cast<const sockaddr_in *>(address)->sin_port);
}

std::string nameOf(const sockaddr *address, socklen_t bytes) {
  const char *path = reinterpret_cast<const sockaddr_un *>(address)->sun_path;
  return address->sa_family == AF_UNIX
             ? std::string(path + 1, bytes - offsetof(sockaddr_un, sun_path) - 1)
             : "";
}

int tellAddress(int fd, bool isOther, sockaddr *address, socklen_t *bytes) {
  int machine = 0, port = 0;
  network().address(fd, isOther, machine, port);
  sockaddr_in own = {};
  own.sin_family = AF_INET;
  own.sin_port = htons(static_cast<uint16_t>(port));
  own.sin_addr.s_addr = htonl(static_cast<uint32_t>(INADDR_LOOPBACK + machine));
  std::memcpy(address, &own, std::min<size_t>(*bytes, sizeof own));
  *bytes = sizeof own;
  return 0;
}

} // namespace

extern "C" {

int socket(int domain, int, int) noexcept { return network().open(domain == AF_UNIX); }
int close(int fd) {
  return network().has(fd) ? network().close(fd) : static_cast<int>(::syscall(SYS_close, fd));
}
int bind(int fd, const sockaddr *address, socklen_t bytes) noexcept {
  return network().bind(fd, portOf(address), nameOf(address, bytes));
}
int listen(int fd, int) noexcept { return network().listen(fd); }
int connect(int fd, const sockaddr *address, socklen_t bytes) {
  return network().connect(fd, portOf(address), nameOf(address, bytes));
}
int accept4(int fd, sockaddr *, socklen_t *, int) { return network().accept(fd); }
int setsockopt(int, int, int, const void *, socklen_t) noexcept { return 0; }
int getsockname(int fd, sockaddr *address, socklen_t *bytes) noexcept {
  return tellAddress(fd, false, address, bytes);
}
int getpeername(int fd, sockaddr *address, socklen_t *bytes) noexcept {
  return tellAddress(fd, true, address, bytes);
}
ssize_t send(int fd, const void *data, size_t bytes, int) {
  return network().send(fd, static_cast<const char *>(data), bytes);
}
ssize_t recv(int fd, void *data, size_t bytes, int) {
  return network().receive(fd, static_cast<char *>(data), bytes);
}
}
