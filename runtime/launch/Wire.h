// The messages between the processes of a job and rank 0's supervisor: small frames over TCP.
// Everything that is read has a size limit, and data that do not begin like a frame are ignored.
// Once both ends have proved that they know the job's secret, each frame has a number and an
// authentication code. A frame that was changed, dropped or repeated closes the connection; see
// docs/adr/0009-job-secret.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/Hmac.h"
#include "runtime/base/Report.h"
#include "runtime/base/Socket.h"

namespace shardc::launch {

inline constexpr uint32_t kProtocolVersion = 11;
inline constexpr int64_t kRanksMax = 1 << 20;
inline constexpr size_t kBlobBytesMax = 64 << 10; ///< maximum of one rank's part in an exchange
inline constexpr size_t kFrameBytesMax = 64 << 20;
/// Maximum of an exchange's result.
inline constexpr size_t kGatheredBytesMax = kFrameBytesMax - 1024;
inline constexpr size_t kRankFrameBytesMax = 256 << 10; ///< maximum of a frame that a rank sends
/// Maximum of a frame from an unidentified sender.
inline constexpr size_t kStrangerFrameBytesMax = 16 << 10;
/// Seconds without progress after which a job that was asked to end counts as stuck.
inline constexpr double kAskedSeconds = 20;
inline constexpr size_t kWordsMax = 17;    ///< progress words of a rank
inline constexpr size_t kReportsMax = 100; ///< maximum number from a rank that cannot continue

enum class MessageKind : uint32_t {
  // Messages of the handshake, without an authentication code:
  Challenge = 1, ///< to a new connection: a number that is used once
  Hello,         ///< from a rank: its identity, with a code that answers the challenge
  Refused,       ///< to a connection without a code or a place here
  // Messages with an authentication code:
  Admitted, ///< to a rank: it has a place in the job
  Welcome,  ///< to all ranks, once all have arrived
  Gather,   ///< a rank's part in an exchange
  Gathered, ///< the result of an exchange, for its members
  Progress,
  Lost,  ///< a rank does not answer another rank
  Fail,  ///< a rank cannot continue
  Bye,   ///< a rank has completed its work
  Alive, ///< to all, regularly: rank 0's supervisor is alive
  Abort, ///< to all: the job is over, and the reason was reported
  Grow,  ///< to rank 0: whether waiting places can be used at the next save
  Rest,  ///< from rank 0: all have saved and wait for an attempt with other ranks
  // Between a relay (Relay.h) and its parent:
  Redirect,  ///< to a relay: join below another relay, which has room
  Joined,    ///< from a relay: ranks have arrived
  Up,        ///< from a relay: a message of a rank
  Gone,      ///< from a relay: connections of ranks have ended
  GatherAll, ///< from a relay: the parts of several ranks in an exchange
  Beat,      ///< from a relay: the combined standing of its ranks
  Down,      ///< to a relay: a message for ranks
  Ask,       ///< to a relay: a question about its ranks (Survey.h)
  Answer,    ///< from a relay: the answer to Ask
  kLast = Answer
};
inline bool hasCode(MessageKind kind) { return kind > MessageKind::Refused; }

struct Message {
  MessageKind kind = MessageKind::Hello;
  std::string body;
};

/// Serialises the body of a message. Numbers are little-endian, and the length of a text precedes
/// it. Each message lists its fields once, in `fields`, for this class and for Unpacker, which has
/// the same functions.
class Packer {
public:
  Packer &number(auto value) { return append(static_cast<uint64_t>(value)); }
  Packer &text(std::string_view value);
  Packer &reports(std::span<const Report> values);
  /// Appends distinct ranks, in the given order. The ranks of a mesh's group are packed into a few
  /// numbers.
  Packer &ranks(const std::vector<int> &values);
  std::string take() { return std::move(bytes_); }

  void field(const std::string &value) { text(value); }
  void field(const Nonce &value) { text(bytesOf(value)); }
  void field(const std::vector<Report> &value) { reports(value); }
  void ranks(const std::vector<int> &values, int64_t, const std::vector<bool> &) { ranks(values); }
  void ranks(const std::vector<int> &values, int64_t) { ranks(values); }
  void field(auto value, auto) { number(value); }
  void orNone(auto value, auto) { number(value + 1); }
  void seconds(double value, double most) {
    number(std::llround(std::clamp(value, 0.0, most) * 1e3));
  }
  void like(const std::string &value, const std::string &before) {
    number(value != before);
    if (value != before)
      text(value);
  }
  void list(const auto &values, auto, const auto &each) {
    number(values.size());
    for (const auto &value : values)
      each(value);
  }
  template <class T> void nested(const T &value, int64_t most) {
    Packer inner;
    T::fields(inner, value, most);
    text(inner.bytes_);
  }
  /// Cuts off reports that exceed the space of a frame.
  void fitting(std::vector<Report> values);
  void skipRest() {}
  void check(bool) {}

private:
  Packer &append(uint64_t value);

  std::string bytes_;
};

/// Parses a body. Once a field is missing, all further ones are empty and hasFailed() is true.
class Unpacker {
public:
  explicit Unpacker(std::string_view bytes) : left_(bytes) {}
  uint64_t number();
  std::string text();
  /// Reads up to kReportsMax reports; fails at an unknown id.
  std::vector<Report> reports();
  /// Reads a number up to `most`.
  uint64_t bounded(uint64_t most);
  /// Reads distinct numbers below `most`; fails at a number that is too large or occurred before.
  /// `isThere` has `most` bits, which mark the numbers that occurred.
  void ranks(std::vector<int> &values, int64_t most, std::vector<bool> &isThere);
  void ranks(std::vector<int> &values, int64_t most) {
    std::vector<bool> isThere(static_cast<size_t>(most));
    ranks(values, most, isThere);
  }
  bool hasFailed() const { return !isOk_; }
  /// Whether all fields were read and no bytes are left.
  bool isComplete() const { return isOk_ && left_.empty(); }

  void field(std::string &value) { value = text(); }
  void field(Nonce &value) { check(copyBytes(text(), value)); }
  void field(std::vector<Report> &value) { value = reports(); }
  template <class T> void field(T &value, auto most) {
    value = static_cast<T>(bounded(static_cast<uint64_t>(most)));
  }
  /// Reads a number from -1 to `most` - 1.
  void orNone(auto &value, auto most) {
    field(value, most);
    --value;
  }
  /// Reads a time in seconds, with a precision of a millisecond.
  void seconds(double &value, double most) {
    value = static_cast<double>(bounded(static_cast<uint64_t>(most * 1e3))) * 1e-3;
  }
  /// Reads a text that is encoded as one number if it equals `before`.
  void like(std::string &value, const std::string &before) {
    value = bounded(1) != 0 ? text() : before;
  }
  /// Reads up to `most` elements; `each` reads the fields of one.
  template <class List> void list(List &values, auto most, const auto &each) {
    for (uint64_t left = bounded(static_cast<uint64_t>(most)); left > 0 && isOk_; --left) {
      typename Element<typename List::value_type>::Type value{};
      each(value);
      if (isOk_)
        values.insert(values.end(), std::move(value));
    }
  }
  /// Reads a message inside this one.
  template <class T> void nested(T &value, int64_t most) {
    std::string body = text();
    Unpacker inner(body);
    T::fields(inner, value, most);
    check(inner.isComplete());
  }
  void fitting(std::vector<Report> &value) { field(value); }
  /// Ignores the remaining bytes, which may be in another format.
  void skipRest() { left_ = {}; }
  void check(bool isRight) { isOk_ = isOk_ && isRight; }

private:
  template <class T> struct Element { using Type = T; };
  template <class K, class V> struct Element<std::pair<const K, V>> {
    using Type = std::pair<K, V>;
  };

  std::string_view left_;
  bool isOk_ = true;
};

template <class T> std::string packed(const T &message) {
  Packer out;
  T::fields(out, message, 0);
  return out.take();
}

/// Parses a body; nothing if it is not a valid message of this kind. Ranks, places and their counts
/// must be below `ranks`.
template <class T> std::optional<T> unpacked(std::string_view body, int64_t ranks = kRanksMax) {
  Unpacker in(body);
  T message;
  T::fields(in, message, ranks);
  return in.isComplete() ? std::optional(std::move(message)) : std::nullopt;
}

/// The first message of a connection. A peer with another version cannot read what follows the
/// version, so it skips the rest.
struct Challenge {
  uint32_t version = kProtocolVersion;
  Nonce nonce{};

  static void fields(auto &io, auto &it, int64_t) {
    io.field(it.version, UINT32_MAX);
    if (it.version != kProtocolVersion)
      return io.skipRest();
    io.field(it.nonce);
  }
};

struct Hello {
  uint32_t version = kProtocolVersion;
  std::string job; ///< distinguishes this launch from others that may have the same secret
  Nonce nonce{};
  /// Numbers from the launcher. In an elastic job, they are the place and the number of places.
  int64_t rank = 0, worldSize = 0;
  uint64_t planHash = 0;
  int64_t pid = 0;
  int64_t relayPort = 0; ///< from a relay: the port at which it accepts connections; 0 from a rank
  std::string machine;   ///< identifies the machine on which `pid` is valid
  std::string host;      ///< name of the machine, for messages
  std::string gpu;       ///< its GPU there, for messages; empty on the host
  std::vector<Report> problems; ///< why this rank cannot take part

  /// If the version differs from this program's, only the version and the job are read.
  static void fields(auto &io, auto &it, int64_t) {
    io.field(it.version, UINT32_MAX);
    io.field(it.job);
    if (it.version != kProtocolVersion)
      return io.skipRest();
    io.field(it.nonce);
    io.field(it.rank, kRanksMax);
    io.field(it.worldSize, kRanksMax);
    io.field(it.planHash, UINT64_MAX);
    io.field(it.pid, INT32_MAX);
    io.field(it.relayPort, UINT16_MAX);
    io.field(it.machine);
    io.field(it.host);
    io.field(it.gpu);
    io.field(it.problems);
  }
  /// Serialises the hello with the authentication code that answers the challenge.
  std::string pack(const Key &secret, const Nonce &challenge) const;
  /// Returns the body without its authentication code if the code is right; otherwise nothing. A
  /// right code proves that the sender knows the secret and has written the body for this
  /// challenge.
  static std::optional<std::string_view> open(std::string_view body, const Key &secret,
                                              const Nonce &challenge);
};

/// The keys of a connection, derived from the secret and the random numbers of both ends.
struct WireKeys {
  Key toServer, toRank;
  WireKeys(const Key &secret, const Nonce &challenge, const Nonce &hello);
};

/// Why a connection was refused. It has no authentication code, so it ends only this attempt to
/// join.
struct Refusal {
  enum Reason : uint8_t { AnotherSecret, AnotherVersion, AnotherJob, Complete, kLast = Complete };
  Reason reason = AnotherSecret;

  static void fields(auto &io, auto &it, int64_t) { io.field(it.reason, kLast); }
};

struct Welcome {
  Nonce nonce{};          ///< identifies this start of the job
  int64_t rank = 0;       ///< of the receiver
  int64_t worldSize = 1;  ///< ranks of this start
  int64_t localSize = 1;  ///< ranks of the receiver's machine
  bool isSpeaker = false; ///< reports the loss of rank 0's supervisor
  int64_t attempt = 0;    ///< starts of the ranks before this one
  int64_t savedStep = -1; ///< the run's own save to load; -1: as its options say

  static void fields(auto &io, auto &it, int64_t) {
    io.field(it.nonce);
    io.field(it.rank, kRanksMax);
    io.field(it.worldSize, kRanksMax);
    io.field(it.localSize, kRanksMax);
    io.field(it.isSpeaker, 1);
    io.field(it.attempt, INT32_MAX);
    io.orNone(it.savedStep, INT64_MAX);
  }
};

/// A rank's position.
struct RankProgress {
  uint64_t steps = 0;          ///< the last step that this process has completed; 0: none
  std::vector<uint32_t> words; ///< by stream, then that of the microbatch if it is reported
  /// Whether it was asked to end. From then on `activity` grows while the process does something
  /// that the words do not show: it computes, or writes a save.
  bool isAsked = false;
  uint64_t activity = 0;
  uint32_t phase = 0; ///< index of the job's plan whose ops the words number
  bool operator==(const RankProgress &) const = default;

  static void fields(auto &io, auto &it, int64_t) {
    io.field(it.steps, UINT64_MAX);
    io.field(it.isAsked, 1);
    io.field(it.activity, UINT64_MAX);
    io.field(it.phase, UINT32_MAX);
    io.list(it.words, kWordsMax, [&io](auto &word) { io.field(word, UINT32_MAX); });
  }
};

/// Why a rank cannot continue. Aborted marks a consequence, whose cause is elsewhere.
struct Failure {
  StatusCode code = StatusCode::Internal;
  int exitStatus = 3;
  bool isReported = false; ///< the failure was reported
  std::vector<Report> reports;
  /// Returns the failure of a rank that ends with this status.
  static Failure of(const Status &status, int exitStatus) {
    return {.code = status.code(), .exitStatus = exitStatus, .reports = {status.report()}};
  }

  static void fields(auto &io, auto &it, int64_t) {
    io.field(it.code, StatusCode::Internal);
    io.field(it.exitStatus, 255);
    io.field(it.isReported, 1);
    io.fitting(it.reports);
  }
};

/// The exit status of a rank whose job starts its ranks again. No supervisor exits with it.
inline constexpr int kAgainStatus = 75;

/// Ends a rank: either the job is over and its failure was reported, or all ranks start again
/// (kAgainStatus). The processes in `silent` do not respond, and a rank on their machine kills
/// them.
struct Abort {
  int exitStatus = 3;
  struct Process {
    std::string machine;
    int64_t pid = 0;
  };
  std::vector<Process> silent;

  static void fields(auto &io, auto &it, int64_t) {
    io.field(it.exitStatus, 255);
    io.list(it.silent, kRanksMax, [&io](auto &process) {
      io.field(process.machine);
      io.field(process.pid, INT32_MAX);
    });
  }
};

/// The traffic of connections.
struct Traffic {
  uint64_t sentBytes = 0, sentFrames = 0, readBytes = 0, readFrames = 0;
  Traffic &operator+=(const Traffic &other) {
    sentBytes += other.sentBytes, sentFrames += other.sentFrames;
    readBytes += other.readBytes, readFrames += other.readFrames;
    return *this;
  }
};

/// A connection with its unsent and unread bytes. No function blocks.
class Wire {
public:
  Wire() = default;
  /// Frames larger than `bytesMax` are refused.
  explicit Wire(Socket socket, size_t bytesMax = kFrameBytesMax)
      : socket_(std::move(socket)), bytesMax_(bytesMax) {}

  int fd() const { return socket_.fd(); }
  const Socket &socket() const { return socket_; }
  bool isOpen() const { return socket_.isOpen(); }
  void close() { socket_.close(); }
  bool hasUnsent() const { return isOpen() && !unsent_.empty(); }
  bool hasUnread() const { return !unread_.empty(); }

  /// Sets the keys. From then on, messages with an authentication code can be sent and read.
  void seal(const Key &sending, const Key &reading) { keys_ = {sending, reading}; }
  /// Answers the challenge of the other end, and sets the keys.
  void introduce(const Hello &own, const Key &secret, const Nonce &challenge);
  bool isSealed() const { return keys_.has_value(); }
  void setBytesMax(size_t bytesMax) { bytesMax_ = bytesMax; }

  void queue(MessageKind kind, std::string_view body);
  /// Sends as much as possible without blocking. Returns false if the connection is gone.
  bool flush();
  /// Reads the received bytes. Returns false if the other end has closed the connection, has
  /// failed, or is not part of this job.
  bool receive();
  /// Returns the next complete message, or nothing. Closes the connection if its authentication
  /// code is wrong.
  std::optional<Message> next();
  /// Does all three: calls `handle` for each message that has arrived, until the connection is
  /// closed. Returns false if the connection is gone.
  bool serve(const auto &handle) {
    bool isAlive = receive();
    while (std::optional<Message> message = next()) {
      handle(*message);
      isAlive = isAlive && receive();
    }
    return flush() && isAlive;
  }
  const Traffic &traffic() const { return traffic_; }

private:
  struct Keys {
    Key sending, reading;
    uint64_t sent = 0, read = 0; ///< numbers of frames that had an authentication code
  };

  Socket socket_;
  size_t bytesMax_ = kFrameBytesMax;
  std::string unsent_, unread_;
  std::optional<Keys> keys_;
  Traffic traffic_;
};

} // namespace shardc::launch
