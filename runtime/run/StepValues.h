// The values that a plan reports for a step in addition to its state: losses of routers, and the
// load of experts. The plan leaves sums over all ranks in cells; this code computes named numbers
// from them.
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
  std::string_view name; ///< lives as long as the StepValues
  double value = 0;
};

/// The cells that are read back beside the step state.
inline constexpr plan::CellKind kReportedCells[] = {
    plan::CellKind::RouterLosses, plan::CellKind::ExpertLoad, plan::CellKind::PredictionLosses,
    plan::CellKind::PreferenceSums};
inline constexpr size_t kReportedCount = std::size(kReportedCells);
/// The content of each after a step; empty if the plan has no such cell.
using ReportedCells = std::array<std::span<const float>, kReportedCount>;

class StepValues {
public:
  explicit StepValues(const plan::Plan &plan);

  /// By the names of upstream the losses that have a weight; "expert_rows_most" and
  /// "expert_rows_least", rows of the experts of all layers that have had the most and the fewest;
  /// "expert_imbalance", the busiest expert's rows over the mean's, averaged over layers, which
  /// `model.moe_predicted_imbalance` takes;
  /// "dropped_rows", choices of tokens for which no expert had room; "mtp_1 loss" and so on, as
  /// upstream's, of each token that is predicted further ahead; by TRL's names the means over pairs
  /// of answers. Valid until the next call.
  std::span<const NamedValue> of(const ReportedCells &cells);

private:
  void add(std::string_view name, double value) { values_[count_++] = {name, value}; }
  void addExperts(std::span<const float> load);
  void addPairs(std::span<const float> sums);

  std::array<bool, kRouterLosses> hasLoss_{};
  size_t experts_ = 0, columns_ = 1; ///< of a row of the load, which may be longer
  double choices_ = 0;               ///< of all tokens of a step, in all layers
  bool drops_ = false, hasOdds_ = false;
  std::vector<std::string> predictions_; ///< names of the multi-token prediction losses
  std::vector<NamedValue> values_;
  size_t count_ = 0;
};

} // namespace shardc::run
