// Finds the failure that came first among those that are reported: a failed rank soon makes others
// fail, and their failures may arrive before its own.
#pragma once

#include <map>

#include "runtime/launch/Rendezvous.h"
#include "runtime/launch/StallDetector.h"

namespace shardc::launch {

class RootCause {
public:
  /// `options` must outlive it.
  explicit RootCause(const RendezvousOptions &options) : options_(options) {}

  /// A reported failure of a rank, or of the job (rank -1). Aborted means that its cause is
  /// elsewhere.
  struct Failure {
    int64_t rank = -1;
    StatusCode code = StatusCode::Internal;
    int exitStatus = 3;
    std::vector<Report> reports; ///< empty if the rank ended without one

    bool isEffect() const { return code == StatusCode::Aborted; }
    /// Whether it is an error of a device or a link. Such errors do not say which op they belong
    /// to.
    bool isOfDevice() const { return code == StatusCode::Aborted || code == StatusCode::Internal; }
  };
  void add(Failure failure, double now);
  /// Records that `rank` waits for the rank `lost` in `what` and gets no answer.
  void addLost(int64_t rank, int64_t lost, const std::string &what, double now);
  /// Records how a process ended.
  void noteEnd(int64_t pid, const std::string &how) { howEnded_[pid] = how; }

  /// The verdict that ends the job. decide() returns it once enough reports have arrived.
  struct Verdict {
    int exitStatus = 3;
    std::vector<Report> reports;
  };
  std::optional<Verdict> decide(const Connections &ranks, const StallDetector &progress,
                                double now) const;

private:
  bool isOneAccusedSilent() const;
  std::vector<Report> reportsOf(const Failure &failure, const Connections &ranks,
                                const StallDetector &progress) const;
  std::string stageOf(int64_t rank) const;
  std::string nameOf(int64_t rank) const;
  Report reportOfEnded(const Hello &rank, const std::string &position) const;

  const RendezvousOptions &options_;
  std::vector<Failure> failures_;
  std::map<int64_t, std::string> lostIn_;   ///< by lost rank: the op in which another rank waited
  std::map<int64_t, std::string> howEnded_; ///< by process
  double decideAt_ = -1;
};

} // namespace shardc::launch
