// Of the failures that are heard of, finds the one that came first: a failed rank soon makes others
// fail, and their failures may arrive before its own.
#pragma once

#include <map>

#include "runtime/launch/Rendezvous.h"
#include "runtime/launch/StallDetector.h"

namespace shardc::launch {

class RootCause {
public:
  /// The options outlive it.
  explicit RootCause(const RendezvousOptions &options) : options_(options) {}

  /// A reported failure of a rank or of the job (-1). Aborted: its cause is elsewhere.
  struct Failure {
    int64_t rank = -1;
    StatusCode code = StatusCode::Internal;
    int exitStatus = 3;
    std::vector<Report> reports; ///< none if the rank ended without one

    bool isEffect() const { return code == StatusCode::Aborted; }
    /// An error of a device or a link. Such errors do not say which op they belong to.
    bool isOfDevice() const { return code == StatusCode::Aborted || code == StatusCode::Internal; }
  };
  void add(Failure failure, double now);
  /// A rank waits for `lost` in `what`, and gets no answer.
  void addLost(int64_t rank, int64_t lost, const std::string &what, double now);
  /// How a process has ended.
  void noteEnd(int64_t pid, const std::string &how) { howEnded_[pid] = how; }

  /// The verdict that ends the job, once enough reports have arrived to decide it.
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
  std::map<int64_t, std::string> lostIn_;   ///< by rank: where another one waited for it
  std::map<int64_t, std::string> howEnded_; ///< by process
  double decideAt_ = -1;
};

} // namespace shardc::launch
