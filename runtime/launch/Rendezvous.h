// State that the parts of the rendezvous server share: the job as the server knows it, and
// connections.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <poll.h>

#include "runtime/launch/Elastic.h"
#include "runtime/launch/LateRanks.h"
#include "runtime/launch/Restarts.h"
#include "runtime/launch/Standing.h"
#include "runtime/launch/Wire.h"

namespace shardc::launch {

/// Begins what a relay answers to ranks that look for it and cannot come in yet; the reason
/// follows.
inline constexpr const char *kNotYet = "not yet: ";
inline constexpr size_t kFanOut = 32; ///< relays below a relay, or below rank 0's supervisor

/// What ends a start of the ranks.
struct Downfall {
  int exitStatus = 3;
  std::span<const Report> reports;
  int64_t step = 0;       ///< the last that some rank has ended, as far as is known
  bool isInOrder = false; ///< nothing has failed: all ranks have saved, to go on as other ranks
};

/// What comes of it.
struct Aftermath {
  bool startsAgain = false;
  std::optional<Report> last; ///< why not
};

struct RendezvousOptions {
  int64_t worldSize = 1; ///< of an elastic job: its places, until its ranks are chosen
  uint64_t planHash = 0;
  Key secret{};
  std::string job; ///< distinguishes this launch from others that may have the same secret
  std::optional<Report> problem; ///< why the job cannot run, reported immediately
  std::string where;             ///< address and port, for messages
  double timeoutSeconds = 600;   ///< longest stay in one collective or exchange
  double joinSeconds = 600;      ///< until all ranks have come
  /// A sentence about a stalled job: which rank fell behind, and where the others wait. `silent` is
  /// a rank without a sign of life, or -1.
  std::function<std::string(std::span<const RankProgress>, int silent)> explainStall;
  /// A rank's position as text; empty if it has not begun.
  std::function<std::string(const RankProgress &)> describe;
  /// A text that distinguishes a rank in addition to its number, such as `, stage 2 of 4`; empty if
  /// there is none.
  std::function<std::string(int64_t rank)> stageOf;
  /// Notes a rank that is late step after step, in some step of the job; empty: nowhere.
  std::function<void(const LateRank &late, int64_t step, const Hello &hello)> noteLate;
  Attempt attempt; ///< which start of the ranks this is
  /// Decides about a fault that ends this start: whether the ranks start again, or else what is to
  /// be told after the fault itself. Empty: they never do.
  std::function<Aftermath(const Downfall &)> judge;
  /// Chooses the ranks of an elastic job among its places, by the server's clock; null: every
  /// process that comes is a rank. Outlives the server.
  ElasticLeader *elastic = nullptr;
  /// Told the ranks of an elastic job before they begin.
  std::function<void(const Crew &)> begins;
  /// Ranks have supervisors elsewhere, which ask again after a fault: there is time to answer.
  bool hasFollowers = false;
  size_t fanOut = kFanOut; ///< relays that it takes; further ones go to these
  /// Takes the reports of the one failure, and of the first connection that was refused.
  ReportSink emit;
};

/// A connection, and the rank behind it once it was admitted. Times are of the server's clock.
struct Connection {
  Wire wire;
  Connection *via = nullptr; ///< the relay by way of which a rank is connected; null: by `wire`
  bool isCut = false;        ///< such a rank has left
  std::string address;       ///< the other end's
  Nonce challenge{};
  std::optional<Hello> hello;       ///< of a rank; its number is the place's until ranks are chosen
  int64_t place = -1;               ///< its number as the launcher counts
  std::optional<Standing> standing; ///< of a relay: its ranks together, when it was heard last
  bool isLeaving = false;           ///< was refused: closed once the refusal is sent
  size_t entry = SIZE_MAX;          ///< among what is waited for
  double since = 0;                 ///< connected
  double heardAt = 0;
  bool isDone = false, isGone = false;
  bool isWelcome = false; ///< has a rank of this start, at a relay

  bool isOpen() const { return via ? !isCut && via->wire.isOpen() : wire.isOpen(); }
  void queue(MessageKind kind, std::string_view body);
  void close();
  bool isReady(std::span<const pollfd> entries) const {
    return entry < entries.size() && entries[entry].revents != 0;
  }
  /// Adds the descriptors to poll.
  void addTo(std::vector<pollfd> &entries);
};

/// Connections of relays; or of each rank of a job, null until it was admitted.
using Connections = std::vector<std::unique_ptr<Connection>>;

inline constexpr double kLeaveSeconds = 5;  ///< for ranks to leave once the job has failed
inline constexpr double kPauseSeconds = 1;  ///< beyond this between two steps a process was stopped
inline constexpr double kSilentSeconds = 2; ///< a rank says something this often

} // namespace shardc::launch
