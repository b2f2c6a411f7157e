// The other processes of a job, one per rank, as backends and the executor see them:
// small exchanges among all ranks, and reports of lost ranks. runtime/launch has the
// transport.
#pragma once

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
  /// What all ranks of this start of the job know, and nobody else: no other start has the same.
  virtual Key jobKey() const = 0;

  /// The values of all ranks, by rank. All ranks must call it in the same order with the same
  /// `what`, which messages name; up to 64 KiB per rank. Aborted once the job has failed.
  virtual Result<std::vector<std::string>> allGather(std::string_view what,
                                                     std::string_view mine) = 0;
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
