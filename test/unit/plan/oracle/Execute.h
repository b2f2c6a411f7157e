// Trains a plan on the host in this process. The resulting numbers are an oracle that shares no
// table and no rule with the verifier.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// The results of a run.
struct Training {
  /// The figures of a step, or of an evaluation, whose norm is 0.
  struct Figures {
    bool isEvaluation = false;
    double loss = 0;
    float gradNorm = 0;
  };
  using Piece = std::pair<int64_t, std::string>; ///< rank and name

  std::string problem;    ///< why the run ended early; empty if it did not
  bool isRefused = false; ///< a run refuses the plan's form before its first step
  std::vector<Figures> figures;
  /// The state that a checkpoint would contain, by rank.
  std::map<Piece, std::vector<uint8_t>> state;
};

/// Runs all steps of the plan on its job's data, with memory between guards that is filled with
/// NaN. With a seed, ops run in a random schedule that streams and waits allow. The plan must be
/// verified.
Training train(const Plan &plan, std::optional<uint64_t> schedule);

/// The first bitwise difference; empty if there is none.
std::string differenceOf(const Training &one, const Training &other);

/// A plan with which its accepted mutations are compared.
class Reference {
public:
  explicit Reference(const Plan &plan);

  /// Why the plan does not run, or trains differently in another schedule; empty if neither is so.
  const std::string &problem() const { return problem_; }
  /// Runs an accepted mutation three times. Returns a text if schedules give different numbers, or,
  /// for a mutation that must train like the plan, if a run fails or gives other numbers than the
  /// plan. Empty if nothing is wrong.
  std::string findBreak(const Plan &mutant, bool meansTheSame, uint64_t seed) const;

private:
  Training own_;
  std::string problem_;
};

} // namespace shardc::plan::oracle
