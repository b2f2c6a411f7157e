// The connection of a rank without its process: greets, then sends and receives messages. One
// thread can have many of them.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include <poll.h>
#include <unistd.h>

#include "runtime/launch/Exchange.h"

namespace shardc::launch {

class SocketRank {
public:
  SocketRank(int64_t rank, int64_t worldSize, const Key &secret, std::string machine)
      : rank_(rank), worldSize_(worldSize), secret_(secret), machine_(std::move(machine)) {}

  /// Connects to the server or relay of its machine. Not ok if nobody listens.
  Status connect(const std::string &address, int port, double seconds = 10) {
    ASSIGN_OR_RETURN(Socket socket, connectTo(address, port, seconds));
    wire_ = Wire(std::move(socket));
    return Status::ok();
  }
  bool isConnected() const { return wire_.isOpen(); }
  bool isAdmitted() const { return isAdmitted_; }
  const std::optional<Welcome> &welcome() const { return welcome_; }
  int64_t rank() const { return rank_; }
  Wire &wire() { return wire_; }
  void close() { wire_.close(); }

  void send(MessageKind kind, std::string_view body) {
    wire_.queue(kind, body);
    wire_.flush();
  }
  void gather(const std::string &key, const std::vector<int> &members, const std::string &bytes,
              hal::Peers::Fold fold) {
    send(MessageKind::Gather, packed(GatherPart{key, fold, members, bytes}));
  }
  void progress(uint32_t word, uint64_t steps = 0) {
    send(MessageKind::Progress, packed(RankProgress{steps, {word}}));
  }

  /// Takes received messages, without waiting.
  void step() {
    if (!wire_.isOpen())
      return;
    bool isAlive = wire_.receive();
    while (std::optional<Message> message = wire_.next()) {
      take(*message);
      isAlive = isAlive && wire_.receive();
    }
    if (!wire_.flush() || !isAlive)
      wire_.close();
  }
  /// Results of exchanges, oldest first.
  std::deque<std::vector<std::string>> gathered;
  std::optional<Abort> aborted;
  bool isRefused = false;
  int64_t growsTo = 0; ///< the size to which the job can grow, if rank 0 was told of one
  uint64_t heard = 0;  ///< number of messages

private:
  void take(const Message &message) {
    ++heard;
    if (message.kind == MessageKind::Challenge && !wire_.isSealed()) {
      Challenge challenge = *unpacked<Challenge>(message.body);
      Hello hello;
      hello.job = "j";
      hello.nonce = randomBytes32();
      hello.rank = rank_;
      hello.worldSize = worldSize_;
      hello.planHash = 7;
      hello.pid = 1'000'000'000 + rank_;
      hello.machine = machine_;
      hello.host = machine_;
      wire_.queue(MessageKind::Hello, hello.pack(secret_, challenge.nonce));
      WireKeys keys(secret_, challenge.nonce, hello.nonce);
      wire_.seal(keys.toServer, keys.toRank);
    } else if (message.kind == MessageKind::Admitted) {
      isAdmitted_ = true;
    } else if (message.kind == MessageKind::Welcome) {
      welcome_ = unpacked<Welcome>(message.body);
    } else if (message.kind == MessageKind::Gathered) {
      std::vector<std::string> parts;
      Unpacker in(message.body);
      while (!in.isComplete() && !in.hasFailed())
        parts.push_back(in.text());
      gathered.push_back(std::move(parts));
    } else if (message.kind == MessageKind::Abort) {
      aborted = unpacked<Abort>(message.body);
    } else if (message.kind == MessageKind::Refused) {
      isRefused = true;
    } else if (message.kind == MessageKind::Grow) {
      growsTo = static_cast<int64_t>(Unpacker(message.body).bounded(1 << 20));
    }
  }

  int64_t rank_, worldSize_;
  Key secret_;
  std::string machine_;
  Wire wire_;
  bool isAdmitted_ = false;
  std::optional<Welcome> welcome_;
};

} // namespace shardc::launch
