// What the processes of a job say to rank 0's supervisor and hear from it: small framed messages
// over TCP. Everything that is read has a bound; what does not begin as ours is not looked at.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Socket.h"

namespace shardc::launch {

inline constexpr uint32_t kProtocolVersion = 2;
inline constexpr size_t kBlobBytesMax = 64 << 10; ///< of one rank in one exchange
inline constexpr size_t kFrameBytesMax = 64 << 20;
inline constexpr size_t kRankFrameBytesMax = 256 << 10; ///< of what a rank sends
inline constexpr size_t kStreamsMax = 16;               ///< progress words of a rank

enum class MessageKind : uint32_t {
  Hello = 1, ///< of a rank: who it is
  Welcome,   ///< to all, once all have come
  Gather,    ///< a rank's part in an exchange
  Gathered,  ///< everybody's
  Progress,
  Lost,  ///< a rank does not answer another one
  Fail,  ///< a rank cannot go on
  Bye,   ///< a rank has done its work
  Abort, ///< to all: the job is over, and the reason was told
  kLast = Abort
};

struct Message {
  MessageKind kind = MessageKind::Hello;
  std::string body;
};

/// Puts a body together. Numbers are little-endian, texts have their length before them.
class Packer {
public:
  Packer &number(uint64_t value);
  Packer &text(std::string_view value);
  std::string take() { return std::move(bytes_); }

private:
  std::string bytes_;
};

/// Takes a body apart; once something is missing, all that follows is empty and isOk() false.
class Unpacker {
public:
  explicit Unpacker(std::string_view bytes) : left_(bytes) {}
  uint64_t number();
  std::string text();
  /// A number up to `most`.
  uint64_t bounded(uint64_t most);
  bool hasFailed() const { return !isOk_; }
  /// True if everything was there, and nothing is left over.
  bool isComplete() const { return isOk_ && left_.empty(); }

private:
  std::string_view left_;
  bool isOk_ = true;
};

struct Hello {
  uint32_t version = kProtocolVersion;
  int64_t rank = 0, worldSize = 0;
  uint64_t planHash = 0;
  int64_t pid = 0, supervisor = 0; ///< processes to end if the rank does not answer
  std::string machine;             ///< tells one machine and its process numbers from another
  std::string host;                ///< its name, for people
  std::string job;
  std::string problem; ///< why this rank cannot take part; empty if it can

  std::string pack() const;
  static std::optional<Hello> unpack(std::string_view body);
};

struct Welcome {
  uint64_t key = 0;
  int64_t localSize = 1; ///< ranks of the receiver's machine
  std::string pack() const;
  static std::optional<Welcome> unpack(std::string_view body);
};

/// Where a rank stands.
struct Snapshot {
  uint64_t steps = 0;          ///< that have ended
  std::vector<uint32_t> words; ///< by stream
  bool operator==(const Snapshot &) const = default;
  std::string pack() const;
  static std::optional<Snapshot> unpack(std::string_view body);
};

/// Why a rank cannot go on. Aborted is a consequence: the cause is elsewhere.
struct Failure {
  StatusCode code = StatusCode::Internal;
  int exitStatus = 3;
  std::string text;
  std::string pack() const;
  static std::optional<Failure> unpack(std::string_view body);
};

/// The job is over. The processes named do not answer: who shares their machine ends them.
struct Abort {
  int exitStatus = 3;
  bool isTold = true; ///< otherwise the receiver says `text`
  std::string text;
  struct Process {
    std::string machine;
    int64_t pid = 0;
    int64_t parent = 0; ///< ends by itself unless it is stopped too
  };
  std::vector<Process> silent;
  std::string pack() const;
  static std::optional<Abort> unpack(std::string_view body);
};

/// A connection with its unsent and unread bytes. Calls never block.
class Wire {
public:
  Wire() = default;
  /// Frames beyond `bytesMax` are refused.
  explicit Wire(Socket socket, size_t bytesMax = kFrameBytesMax)
      : socket_(std::move(socket)), bytesMax_(bytesMax) {}

  int fd() const { return socket_.fd(); }
  const Socket &socket() const { return socket_; }
  bool isOpen() const { return socket_.isOpen(); }
  void close() { socket_.close(); }
  bool hasUnsent() const { return isOpen() && !unsent_.empty(); }

  void queue(MessageKind kind, std::string_view body);
  /// Sends what can be sent; false if the connection is gone.
  bool flush();
  /// Reads what has come; false if the other end has closed, failed, or is none of ours.
  bool receive();
  /// The next whole message.
  std::optional<Message> next();

private:
  Socket socket_;
  size_t bytesMax_ = kFrameBytesMax;
  std::string unsent_, unread_;
};

} // namespace shardc::launch
