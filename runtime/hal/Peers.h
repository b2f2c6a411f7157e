// The other processes of a job, one per rank, as backends and the executor use them: small
// exchanges among all ranks, and reports of lost ranks. runtime/launch implements the transport.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Hmac.h"
#include "runtime/base/Status.h"

namespace shardc::hal {

/// All functions that involve several ranks block until the other ranks have called them. If the
/// job fails meanwhile, they return Aborted.
class Peers {
public:
  virtual ~Peers() = default;

  virtual int rank() const = 0;
  virtual int worldSize() const = 0;
  /// The launcher's number of this rank on its node. A machine may run several nodes.
  virtual int localRank() const = 0;
  /// Number of ranks on this machine.
  virtual int localSize() const = 0;
  /// This machine's address for ranks on other machines.
  virtual std::string address() const = 0;
  /// A key that only the ranks of this start of the job share. Each start of the job has another
  /// key.
  virtual Key jobKey() const = 0;

  /// The form in which members receive the parts of an exchange.
  enum class Fold : uint8_t {
    Parts,    ///< all parts, in the order of members
    First,    ///< the first part in that order that is not empty; empty if there is none
    Kinds,    ///< each distinct part once, with the members that sent it (kindsOf)
    Repeated, ///< like Kinds, but only parts that several members sent
    Most,     ///< parts are equally long lists of 8-byte numbers: the element-wise maximum
    kLast = Most
  };
  /// An exchange among `members`, or among all ranks if `members` is empty. The members call it
  /// with the same key, members and fold; other ranks do not take part. A part has at most 64 KiB.
  /// A rank can be in one exchange at a time. Messages show the key. Aborted once the job has
  /// failed.
  virtual Result<std::vector<std::string>> exchange(std::string_view key,
                                                    const std::vector<int> &members,
                                                    std::string_view mine, Fold fold) = 0;

  /// Applies `fold` to the parts of all members.
  static std::vector<std::string> folded(std::vector<std::string> parts, Fold fold);

  /// A distinct part, and the ranks that sent it.
  struct Kind {
    std::string part;
    std::vector<int> ranks;
  };
  /// Each distinct value once, in the order of the first rank that sent it; for `fold` Kinds or
  /// Repeated. A value that many ranks share is transferred once.
  Result<std::vector<Kind>> allKinds(std::string_view what, std::string_view mine,
                                     Fold fold = Fold::Kinds);
  /// The element-wise maximum over all ranks.
  Result<std::vector<int64_t>> allMost(std::string_view what, std::span<const int64_t> mine);

  /// The values of all ranks, by rank. All ranks must call it in the same order with the same
  /// `what`.
  Result<std::vector<std::string>> allGather(std::string_view what, std::string_view mine) {
    return exchange(what, {}, mine, Fold::Parts);
  }
  /// Like allGather(), for texts of any length.
  Result<std::vector<std::string>> allGatherLong(std::string_view what, std::string_view mine);
  /// Reports that `rank` did not answer in `what`; this ends the job.
  virtual void reportLost(int rank, std::string_view what) = 0;

  /// Number of earlier starts of the job's ranks; 0 for the first start.
  virtual int64_t attempt() const { return 0; }

  /// Reports at once why this rank cannot continue, since its cleanup may take long.
  virtual void reportFailure(const Status &) {}

  /// Returns once all ranks have called it.
  Status barrier(std::string_view what);
  /// Ok if every rank's status is ok; otherwise the status of the lowest rank that is not.
  Status agree(std::string_view what, const Status &mine);
};

} // namespace shardc::hal
