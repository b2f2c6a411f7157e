// The values that a plan reports for a step in addition to its state: router losses and the load of
// experts. The plan leaves sums over all ranks in cells, from which this code computes named
// numbers.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Router.h"
#include "runtime/plan/Plan.h"

namespace shardc::run {

struct NamedValue {
  std::string_view name; ///< valid as long as the StepValues
  double value = 0;
};

/// The cells that are read back with the step state.
inline constexpr plan::CellKind kReportedCells[] = {
    plan::CellKind::RouterLosses, plan::CellKind::ExpertLoad, plan::CellKind::PredictionLosses,
    plan::CellKind::PreferenceSums};
inline constexpr size_t kReportedCount = std::size(kReportedCells);
/// The content of each of these cells after a step; empty if the plan has no such cell.
using ReportedCells = std::array<std::span<const float>, kReportedCount>;

class StepValues {
public:
  explicit StepValues(const plan::Plan &plan);

  /// Computes the values: losses with a weight, under upstream's names; "expert_rows_most" and
  /// "expert_rows_least", the largest and smallest number of rows of an expert over all layers;
  /// "expert_imbalance", the rows of the busiest expert divided by the mean, averaged over layers,
  /// which `model.moe_predicted_imbalance` expects; "dropped_rows", the choices of tokens for which
  /// the expert had no capacity; "mtp_1 loss" and so on, as upstream, for each further predicted
  /// token; and means over pairs of answers, under TRL's names. The result is valid until the next
  /// call.
  std::span<const NamedValue> of(const ReportedCells &cells);

private:
  void add(std::string_view name, double value) { values_[count_++] = {name, value}; }
  void addExperts(std::span<const float> load);
  void addPairs(std::span<const float> sums);

  std::array<bool, kRouterLosses> hasLoss_{};
  size_t experts_ = 0, columns_ = 1; ///< numbers in a row of the load, which may have more columns
  double choices_ = 0;               ///< choices of all tokens of a step, over all layers
  bool drops_ = false, hasOdds_ = false;
  std::vector<std::string> predictions_; ///< names of multi-token prediction losses
  std::vector<NamedValue> values_;
  size_t count_ = 0;
};

} // namespace shardc::run
