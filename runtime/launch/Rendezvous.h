// State that the components of the rendezvous server share: the job as the server knows it, and its
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

/// Prefix of a relay's answer to ranks that look for it while it cannot admit them; the reason
/// follows.
inline constexpr const char *kNotYet = "not yet: ";
inline constexpr size_t kFanOut = 32; ///< relays directly below a relay or rank 0's supervisor

/// The event that ends a start of the ranks.
struct Downfall {
  int exitStatus = 3;
  std::span<const Report> reports;
  int64_t step = 0;       ///< the last step that a rank is known to have completed
  bool isInOrder = false; ///< no fault: all ranks have saved, to continue with other ranks
};

/// The consequence of a Downfall.
struct Aftermath {
  bool startsAgain = false;
  std::optional<Report> last; ///< why the ranks do not start again
};

/// What supervisor and server know of a job.
struct JobOptions {
  uint64_t planHash = 0;
  std::optional<Report> problem; ///< why the job, or this rank, cannot run; reported immediately
  double timeoutSeconds = 600;   ///< time limit of one collective or exchange
  /// Returns a sentence about a stalled job: which rank fell behind, and where the others wait.
  /// `silent` is a rank without a sign of life, or -1.
  std::function<std::string(std::span<const RankProgress>, int silent)> explainStall;
  /// Describes a rank's position; empty if it has not begun.
  std::function<std::string(const RankProgress &)> describe;
  /// Records that a rank is late step after step, in the given step of the job; may be empty.
  std::function<void(const LateRank &late, int64_t step, const Hello &hello)> noteLate;
  /// Receives the reports of the one failure, and of the first refused connection; and warnings.
  ReportSink emit;
};

struct RendezvousOptions : JobOptions {
  /// Number of ranks; for an elastic job, of places, until its ranks are chosen.
  int64_t worldSize = 1;
  Key secret{};
  std::string job;          ///< distinguishes this launch from others that may have the same secret
  std::string where;        ///< address and port, for messages
  double joinSeconds = 600; ///< longest wait until all ranks have arrived
  /// Returns a text that distinguishes a rank in addition to its number, such as `, stage 2 of 4`;
  /// empty if there is none.
  std::function<std::string(int64_t rank)> stageOf;
  Attempt attempt; ///< the current start of the ranks
  /// Decides on a fault that ends this start: whether the ranks start again, or otherwise what is
  /// reported after the fault itself. If the function is empty, they never start again.
  std::function<Aftermath(const Downfall &)> judge;
  /// Chooses the ranks of an elastic job among its places, by the server's clock. Null: every
  /// process that registers is a rank. Must outlive the server.
  ElasticLeader *elastic = nullptr;
  /// Called with the ranks of an elastic job before they begin.
  std::function<void(const Crew &)> begins;
  /// Whether ranks have other supervisors, which connect again after a fault: the server stays to
  /// answer them.
  bool hasFollowers = false;
  size_t fanOut = kFanOut; ///< most relays below it; further ones are redirected to these
};

/// A connection, and its rank once that was admitted. Times are those of the server's clock.
struct Connection {
  Wire wire;
  Connection *via = nullptr; ///< the relay through which a rank is connected; null: by `wire`
  bool isCut = false;        ///< the rank behind a relay has left
  std::string address;       ///< address of the other end
  Nonce challenge{};
  std::optional<Hello> hello;       ///< from a rank; has the place's number until ranks are chosen
  int64_t place = -1;               ///< its number from the launcher
  std::optional<Standing> standing; ///< from a relay: its last combined report about its ranks
  bool isLeaving = false;           ///< was refused; is closed once the refusal is sent
  size_t entry = SIZE_MAX;          ///< index in the polled descriptors
  double since = 0;                 ///< when it was connected
  double heardAt = 0;
  bool isDone = false, isGone = false;
  bool isWelcome = false; ///< at a relay: has a rank of this start

  bool isOpen() const { return via ? !isCut && via->wire.isOpen() : wire.isOpen(); }
  void queue(MessageKind kind, std::string_view body);
  void close();
  bool isReady(std::span<const pollfd> entries) const {
    return entry < entries.size() && entries[entry].revents != 0;
  }
  /// Adds the descriptor that it polls.
  void addTo(std::vector<pollfd> &entries);
};

/// Connections of relays, or of each rank of a job, which are null until the rank was admitted.
using Connections = std::vector<std::unique_ptr<Connection>>;

inline constexpr double kLeaveSeconds = 5; ///< longest wait for ranks to end after a failure
/// The most that a clock advances between two steps of the loop. A longer gap means that the
/// process was stopped.
inline constexpr double kPauseSeconds = 1;
inline constexpr double kSilentSeconds = 2; ///< longest silence of a rank that is alive

} // namespace shardc::launch
