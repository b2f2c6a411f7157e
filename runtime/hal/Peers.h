// The other processes of a job, one per rank, as backends and the executor see them:
// small exchanges among all ranks, and reports of lost ranks. runtime/launch has the
// transport.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Hmac.h"
#include "runtime/base/Status.h"

namespace shardc::hal {

class Peers {
public:
  virtual ~Peers() = default;

  virtual int rank() const = 0;
  virtual int worldSize() const = 0;
  /// Number of this rank on its node, as the launcher counts; a machine may be several nodes.
  virtual int localRank() const = 0;
  /// Number of ranks on this machine.
  virtual int localSize() const = 0;
  /// This machine's address for ranks on other machines.
  virtual std::string address() const = 0;
  /// A key that all ranks of this start of the job share, and nobody else: each start has another
  /// one.
  virtual Key jobKey() const = 0;

  /// Which parts of an exchange its members get.
  enum class Fold : uint8_t {
    Parts,    ///< all, in the order of members
    First,    ///< the first that is not empty, in that order, or an empty one
    Kinds,    ///< each that there is once, and which members have given it (kindsOf)
    Repeated, ///< of these, those that several have given
    Most,     ///< of parts that are equally many numbers of 8 bytes: the greatest of each
    kLast = Most
  };
  /// An exchange among some ranks; without members among all. The members call it with the same
  /// key, members and fold, and others take no part; up to 64 KiB per rank. A rank is in one
  /// exchange at a time. Messages name the key. Aborted once the job has failed.
  virtual Result<std::vector<std::string>> exchange(std::string_view key,
                                                    const std::vector<int> &members,
                                                    std::string_view mine, Fold fold) = 0;

  /// Applies `fold` to the parts of all members.
  static std::vector<std::string> folded(std::vector<std::string> parts, Fold fold);

  /// A part, and the ranks that have given it.
  struct Kind {
    std::string part;
    std::vector<int> ranks;
  };
  /// Each distinct value that ranks gave, once, in the order of the first rank that gave it; for
  /// `fold` Kinds or Repeated. A value of many ranks costs no more than that of one.
  Result<std::vector<Kind>> allKinds(std::string_view what, std::string_view mine,
                                     Fold fold = Fold::Kinds);
  /// The element-wise maximum over all ranks.
  Result<std::vector<int64_t>> allMost(std::string_view what, std::span<const int64_t> mine);

  /// The values of all ranks, by rank. All ranks must call it in the same order with the same
  /// `what`.
  Result<std::vector<std::string>> allGather(std::string_view what, std::string_view mine) {
    return exchange(what, {}, mine, Fold::Parts);
  }
  /// The same for texts of any length.
  Result<std::vector<std::string>> allGatherLong(std::string_view what, std::string_view mine);
  /// Reports that `rank` did not answer in `what`; this ends the job.
  virtual void reportLost(int rank, std::string_view what) = 0;

  /// Restarts of the job's ranks before this start of them.
  virtual int64_t attempt() const { return 0; }

  /// Reports at once why this rank cannot continue. Its cleanup afterwards may take long.
  virtual void reportFailure(const Status &) {}

  /// The bytes of rank `root`, on all ranks; those of the others are ignored.
  Result<std::string> broadcast(std::string_view what, int root, std::string_view bytes);
  /// Returns once all ranks have arrived.
  Status barrier(std::string_view what);
  /// Ok if every rank's status is ok; otherwise the status of the lowest rank that is not.
  Status agree(std::string_view what, const Status &mine);
};

} // namespace shardc::hal
