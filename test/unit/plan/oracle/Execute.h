// What a plan trains, executed on the host in this process. Numbers are the oracle of meaning: they
// share no table and no rule with the verifier.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// A run from its start to its end.
struct Training {
  /// Of a step, or of an evaluation, which has no norm.
  struct Figures {
    bool isEvaluation = false;
    double loss = 0;
    float gradNorm = 0;
  };
  using Piece = std::pair<int64_t, std::string>; ///< a rank, and what it holds

  std::string problem; ///< why the run ended early; empty if it did not
  std::vector<Figures> figures;
  std::map<Piece, std::vector<uint8_t>> state; ///< what a checkpoint of each rank would hold
};

/// Runs all steps of the plan, over memory that is filled with NaN and between guards; with a seed,
/// in a random schedule that its streams and waits allow. The plan is verified, and its data is the
/// job's.
Training train(const Plan &plan, std::optional<uint64_t> schedule);

/// The first thing in which both differ by a bit, or nothing.
std::string differenceOf(const Training &one, const Training &other);

/// A plan that accepted mutations of it are held against.
class Reference {
public:
  explicit Reference(const Plan &plan);

  /// Why the plan does not run by itself, or runs differently in another schedule; empty if it is
  /// fine.
  const std::string &problem() const { return problem_; }
  /// What is wrong with an accepted mutation, which runs three times: schedules that give different
  /// numbers, or, where it has to train as the plan does, a run that fails or numbers that are not
  /// the plan's.
  std::string findBreak(const Plan &mutant, bool meansTheSame, uint64_t seed) const;

private:
  Training own_;
  std::string problem_;
};

} // namespace shardc::plan::oracle
