// The other processes of a job, one a rank, as backends and the executor need them: small exchanges
// that every rank takes part in, and what is told when a rank is lost. The transport is
// runtime/launch's.
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
  /// Number of this rank on its node, as the launcher counts: a machine may be several nodes of it.
  virtual int localRank() const = 0;
  /// Ranks of this machine.
  virtual int localSize() const = 0;
  /// This machine's address as ranks on other machines reach it.
  virtual std::string address() const = 0;
  /// What all ranks of this start of the job know, and nobody else: no other start has the same.
  virtual Key jobKey() const = 0;

  /// What every rank gave, by rank. All ranks call it in the same order with the same `what`, which
  /// messages name; up to 64 KiB a rank. Aborted once the job has failed.
  virtual Result<std::vector<std::string>> allGather(std::string_view what,
                                                     std::string_view mine) = 0;
  /// The same with texts of any length.
  Result<std::vector<std::string>> allGatherLong(std::string_view what, std::string_view mine);
  /// Tells the job that `rank` did not answer in `what`; the job is over then.
  virtual void reportLost(int rank, std::string_view what) = 0;

  /// Tells the job at once why this rank cannot go on. What it does afterwards may take long.
  virtual void reportFailure(const Status &) {}

  /// The bytes of rank `root`, on all ranks; the others' count for nothing.
  Result<std::string> broadcast(std::string_view what, int root, std::string_view bytes);
  /// Returns once all ranks have come.
  Status barrier(std::string_view what);
  /// Ok if every rank's status is; otherwise the lowest rank's that is not.
  Status agree(std::string_view what, const Status &mine);
};

} // namespace shardc::hal
