// Finds the failure that came first among those that are reported: a failed rank soon makes others
// fail, and their failures may arrive before its own. Waits a moment after the first report, since
// effects may be reported before their cause. Then reports the failure with the smallest weight: a
// cause before an effect.
#pragma once

#include <algorithm>
#include <map>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Reports.h"
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
  void add(Failure failure, double now) {
    for (Failure &known : failures_)
      if (known.rank == failure.rank && failure.rank >= 0) {
        if (known.isEffect() && !failure.isEffect())
          known = std::move(failure);
        return;
      }
    failures_.push_back(std::move(failure));
    if (decideAt_ < 0)
      decideAt_ = now + kEffectSeconds;
    if (!failures_.back().isEffect())
      decideAt_ = std::min(decideAt_, now + kCauseSeconds);
  }

  /// Records that `rank` waits for the rank `lost` in `what` and gets no answer.
  void addLost(int64_t rank, int64_t lost, const std::string &what, double now) {
    if (lost < options_.worldSize)
      lostIn_.emplace(lost, fmt::format("{} waited for it in '{}'", nameOf(rank), what));
    add({rank, StatusCode::Aborted, kFailureStatus, {makeReport(report::RankLost, lost, what)}},
        now);
  }

  /// Records how a process ended.
  void noteEnd(int64_t pid, const std::string &how) { howEnded_[pid] = how; }

  /// The verdict that ends the job. decide() returns it once enough reports have arrived.
  struct Verdict {
    int exitStatus = 3;
    std::vector<Report> reports;
  };
  std::optional<Verdict> decide(const Connections &ranks, const StallDetector &progress,
                                double now) const {
    if (decideAt_ < 0)
      return std::nullopt;
    bool hasHeardAll = static_cast<int64_t>(failures_.size()) >= options_.worldSize;
    auto first = std::ranges::min_element(failures_, [](const Failure &a, const Failure &b) {
      return std::pair(weightOf(a), a.rank) < std::pair(weightOf(b), b.rank);
    });
    // Another rank may have failed in the same way.
    if (now < decideAt_ && !hasHeardAll && (weightOf(*first) != 0 || first->rank >= 0))
      return std::nullopt;
    if (now < decideAt_ + kAccusedSeconds && first->isEffect() && isOneAccusedSilent())
      return std::nullopt;
    return Verdict{first->exitStatus, reportsOf(*first, ranks, progress)};
  }

private:
  static constexpr double kCauseSeconds =
      0.5; ///< from a first failure to the verdict: other causes may arrive later
  static constexpr double kEffectSeconds = 2; ///< the same if only effects have been reported
  static constexpr double kAccusedSeconds =
      20; ///< additional time for a lost rank to report the cause, if it still runs

  /// The weight of a failure: 0 for a cause, 1 for a cause with the code Unavailable, such as a
  /// rank whose connection was lost, 2 for an effect.
  static int weightOf(const RootCause::Failure &failure) {
    return failure.isEffect() ? 2 : failure.code == StatusCode::Unavailable ? 1 : 0;
  }

  /// Whether a rank that another rank has lost has not reported its own failure yet. It closes its
  /// connections first, and under load its report may arrive much later.
  bool isOneAccusedSilent() const {
    return std::ranges::any_of(lostIn_, [this](const auto &lost) {
      return std::ranges::find(failures_, lost.first, &Failure::rank) == failures_.end();
    });
  }

  std::vector<Report> reportsOf(const Failure &failure, const Connections &ranks,
                                const StallDetector &progress) const {
    if (failure.rank < 0)
      return failure.reports;
    std::string position = options_.describe ? options_.describe(progress.last(failure.rank)) : "";
    if (failure.reports.empty())
      return {reportOfEnded(*ranks[static_cast<size_t>(failure.rank)]->hello, position)};
    bool isCommon =
        options_.worldSize > 1 && static_cast<int64_t>(failures_.size()) == options_.worldSize &&
        std::ranges::all_of(failures_,
                            [&](const Failure &other) { return other.reports == failure.reports; });
    std::vector<Report> reports = failure.reports;
    for (Report &report : reports) {
      if (report.text.starts_with("rank "))
        continue;
      std::string stage = stageOf(failure.rank);
      if (failure.isOfDevice() && !position.empty())
        report.text =
            fmt::format("rank {}{}: {}; it was {}", failure.rank, stage, report.text, position);
      else if (!isCommon)
        report.text = fmt::format("rank {}{}: {}", failure.rank, stage, report.text);
    }
    return reports;
  }

  std::string stageOf(int64_t rank) const { return options_.stageOf ? options_.stageOf(rank) : ""; }

  /// Returns the rank as the subject of a sentence.
  std::string nameOf(int64_t rank) const {
    std::string stage = stageOf(rank);
    return fmt::format("rank {}{}{}", rank, stage, stage.empty() ? "" : ",");
  }

  Report reportOfEnded(const Hello &rank, const std::string &position) const {
    auto how = howEnded_.find(rank.pid);
    std::string stage = stageOf(rank.rank);
    std::string text =
        fmt::format("rank {} (process {} on {}{}{}{}) {}", rank.rank, rank.pid, rank.host,
                    rank.gpu.empty() ? "" : ", ", rank.gpu, stage,
                    how != howEnded_.end() ? how->second : "ended without a message");
    auto lost = lostIn_.find(rank.rank);
    if (lost != lostIn_.end())
      text += "; " + lost->second;
    // In a pipeline, report the stage's own microbatch too, since it differs from that of the ranks
    // that wait.
    if (!position.empty() && (lost == lostIn_.end() || !stage.empty()))
      text += "; it was " + position;
    return makeReport(report::RankEnded, text);
  }

  const RendezvousOptions &options_;
  std::vector<Failure> failures_;
  std::map<int64_t, std::string> lostIn_;   ///< by lost rank: the op in which another rank waited
  std::map<int64_t, std::string> howEnded_; ///< by process
  double decideAt_ = -1;
};

} // namespace shardc::launch
