// A channel with members in other processes. It has one connection to each of them, and a thread
// that executes collectives one after the other, so that no worker waits for the network. The code
// that adds within a process also adds here, in rank order, so results are bitwise equal.
#pragma once

#include <condition_variable>
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

/// Listens on a port for connections of other processes, and keeps accepted connections until a
/// channel takes them. Connections of strangers are closed and delay nothing.
class Meeting {
public:
  /// Starts to listen, and exchanges addresses with the other ranks. All ranks call it together.
  static Result<std::unique_ptr<Meeting>> create(hal::Peers &peers);

  /// Returns one connection to each other member, by index in the group; the entry of this rank
  /// stays closed. All members must create their channels in the same order.
  Result<std::vector<Socket>> connect(const std::vector<int> &members);
  hal::Peers &peers() { return peers_; }

private:
  /// The first bytes on a connection, which the connecting side sends. The code is valid once, and
  /// at one rank only.
  struct Greeting {
    uint64_t channel;
    int64_t rank;
    AuthCode code;
  };
  struct At {
    std::string address;
    int port = 0;
    Nonce nonce{}; ///< for greetings to this rank; a new random number at each start of the job
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
  /// Accepts waiting connections. If too many connections have not sent their greeting yet, closes
  /// the oldest of these.
  Status takeArrivals();
  void readGreetings();
  /// Returns false when nothing more must be read: the connection was kept or closed.
  bool read(Pending &pending);

  hal::Peers &peers_;
  Socket listener_;
  std::vector<At> ranks_;
  std::vector<uint64_t> channelsWith_; ///< by rank: number of channels created so far
  std::vector<Pending> pending_;       ///< sorted by age, oldest first
  Status closedEarly_; ///< set if lack of descriptors closed a connection before its greeting
  std::set<std::pair<int64_t, uint64_t>> greeted_; ///< rank and channel
  std::vector<Early> early_;
};

/// This process's member of a channel whose other members are in other processes. All members must
/// issue the same collectives in the same order; a difference fails the collective with a message.
class RemoteMember {
public:
  using Done = std::function<void(void *tag, Status status)>;

  /// `members[index]` is this process. The channel's thread calls `done`.
  RemoteMember(hal::Peers &peers, std::string name, std::vector<int> members, int index,
               std::vector<Socket> sockets, Done done);
  ~RemoteMember();
  /// Starts the channel's thread; call it before the first collective. Exhausted if no descriptor
  /// or thread is left.
  Status startThread();

  /// Reserves memory for the data that a collective receives. Call it before the collective starts,
  /// and not while collectives that were reserved later are running.
  void reserve(const hal::Collective &collective);
  /// Starts a collective; `done` gets `tag` when it has ended. One collective at a time.
  void start(const hal::Collective &collective, const char *label, void *tag);
  /// Fails the current and all later collectives.
  void cancel();

private:
  struct Peer;
  struct Head;

  /// The thread of this channel. It takes one request at a time, and calls `done_` when the request
  /// has ended or the job is over.
  void run();
  Status perform(const hal::Collective &collective, const char *label);
  Status gather(const hal::Collective &collective, const char *label);
  /// Every member receives the others' versions of its own part, and adds them in rank order.
  Status reduceScatter(const hal::Collective &collective, const char *label);
  Status allReduce(const hal::Collective &collective, const char *label);
  /// Sends to, or receives from, the other member of a pair.
  Status transfer(const hal::Collective &collective, const char *label);
  /// Every member receives the whole operands of all others and computes the same sum.
  Status allReduceSmall(const hal::Collective &collective, const char *label);
  /// Part m of the operand goes to member m; its own part is copied.
  Status allToAll(const hal::Collective &collective, const char *label);
  /// All members exchange headers, so that members whose collectives differ are reported.
  Status shift(const hal::Collective &collective, const char *label);
  /// Reduces the slots of the receive buffer and `mine` in rank order, with the operation of
  /// `like`.
  void sumInto(const hal::Collective &like, const void *mine, int64_t count, void *out,
               bool accumulate);
  void begin(const hal::Collective &collective, const char *label, uint32_t phase);
  /// Sends and receives until all bytes are transferred. Members are served in any order, so no
  /// cycle of waits can occur.
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
  std::vector<hal::Collective> parts_;          ///< operands of a sum, by member
  std::vector<const hal::Collective *> partOf_; ///< pointers to `parts_`, for runPart()
  std::vector<pollfd> entries_;                 ///< one per other member, and one for wakeups
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
  Socket wakeup_; ///< wakes the thread
  std::thread thread_;
};

} // namespace shardc::host
