// A channel with members in other processes: one connection to each of them, used by this channel
// only, and a thread that executes collectives one after the other, so that no worker waits for the
// network. Sums are made in rank order by the same code as within a process, so both are bitwise
// equal.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <poll.h>

#include "runtime/base/Socket.h"
#include "runtime/hal/Channel.h"
#include "runtime/hal/Peers.h"

namespace shardc::host {

/// The port on which other processes connect to this one, and accepted connections that no channel
/// has taken yet. Connections of strangers are closed and delay nothing.
class Meeting {
public:
  /// Listens, and learns where the others do; all ranks call it together.
  static Result<std::unique_ptr<Meeting>> create(hal::Peers &peers);

  /// One connection to each other member, by index in the group; the own place stays closed. All
  /// members make their channels in the same order.
  Result<std::vector<Socket>> connect(const std::vector<int> &members);
  hal::Peers &peers() { return peers_; }

private:
  /// The first bytes on a connection, which one end sends. The code is right once, at one rank.
  struct Greeting {
    uint64_t channel;
    int64_t rank;
    AuthCode code;
  };
  struct At {
    std::string address;
    int port = 0;
    Nonce nonce{}; ///< of this start's greetings to that rank
  };
  struct Pending {
    Socket socket;
    double since = 0;
    Greeting greeting{};
    size_t received = 0;
  };
  struct Early {
    int rank;
    uint64_t channel;
    Socket socket;
  };

  explicit Meeting(hal::Peers &peers) : peers_(peers) {}
  Greeting greetingTo(int rank, uint64_t channel, int64_t from) const;
  Result<Socket> acceptOf(int rank, uint64_t channel);
  Status takeArrivals();
  void readGreetings();
  bool read(Pending &pending);

  hal::Peers &peers_;
  Socket listener_;
  std::vector<At> ranks_;
  std::vector<uint64_t> channelsWith_; ///< by rank: channels made so far
  std::vector<Pending> pending_;       ///< oldest first
  Status closedEarly_; ///< why a connection was closed before it had said anything: no descriptors
  std::set<std::pair<int64_t, uint64_t>> greeted_; ///< rank and channel
  std::vector<Early> early_;
};

class RemoteMember {
public:
  using Done = std::function<void(void *tag, Status status)>;

  /// `members[index]` is this process; `done` is called on the channel's thread.
  RemoteMember(hal::Peers &peers, std::string name, std::vector<int> members, int index,
               std::vector<Socket> sockets, Done done);
  ~RemoteMember();
  /// Starts the channel's thread; call before the first collective. Exhausted if no descriptor or
  /// thread is left.
  Status startThread();

  /// Reserves memory for a collective's received data. Call it before the collective starts, and
  /// not while collectives with later reservations are running.
  void reserve(const hal::Collective &collective);
  /// Carries out a collective; `tag` comes back with its end. One at a time.
  void start(const hal::Collective &collective, const char *label, void *tag);
  /// Ends all current and future collectives with an error.
  void cancel();

private:
  struct Peer;
  struct Head;

  void run();
  Status perform(const hal::Collective &collective, const char *label);
  Status gather(const hal::Collective &collective, const char *label);
  Status reduceScatter(const hal::Collective &collective, const char *label);
  Status allReduce(const hal::Collective &collective, const char *label);
  Status transfer(const hal::Collective &collective, const char *label);
  Status allReduceSmall(const hal::Collective &collective, const char *label);
  Status allToAll(const hal::Collective &collective, const char *label);
  Status shift(const hal::Collective &collective, const char *label);
  void sumInto(const hal::Collective &like, const void *mine, int64_t count, void *out,
               bool accumulate);
  void begin(const hal::Collective &collective, const char *label, uint32_t phase);
  Status exchange(const char *label);
  Status checkHead(const Peer &peer, const char *label) const;
  Status lose(const Peer &peer, const char *label);
  uint8_t *receiveBuffer(int member) const;

  hal::Peers &peers_;
  std::string name_;
  std::vector<int> members_;
  int index_;
  Done done_;
  std::vector<std::unique_ptr<Peer>> others_;
  std::vector<hal::Collective> parts_;          ///< of a sum, by member
  std::vector<const hal::Collective *> partOf_; ///< the same, as the arithmetic takes them
  std::vector<pollfd> entries_;                 ///< one for each other member, and to be woken
  uint64_t sequence_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<uint8_t[]>> receiveBuffers_; ///< the last one is the largest
  uint8_t *receiveBuffer_ = nullptr;
  int64_t receiveBufferBytes_ = 0, slotBytes_ = 0;
  hal::Collective request_;
  const char *label_ = "";
  void *tag_ = nullptr;
  bool hasRequest_ = false, isStopping_ = false;
  bool isCancelled_ = false;
  Socket wakeup_; ///< of the thread
  std::thread thread_;
};

} // namespace shardc::host
