// Sums arrive as fp32 numbers; their divisors, such as the numbers of layers and tokens, are known
// from the plan. The plan's sizes are not trusted.
#include "runtime/run/StepValues.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include <fmt/format.h>

#include "runtime/base/Preference.h"

namespace shardc::run {

/// Finds which values the job reports: router losses with a coefficient other than 0, loads of
/// experts, losses of multi-token prediction, and figures of preference losses.
StepValues::StepValues(const plan::Plan &plan) {
  const plan::Job::Model &model = plan.job.model;
  using Kind = plan::Job::RouterBalancing;
  constexpr std::pair<Kind, RouterLoss> kKinds[] = {{Kind::AuxLoss, kBalanceLoss},
                                                    {Kind::SeqAuxLoss, kSequenceLoss},
                                                    {Kind::GlobalAuxLoss, kGlobalLoss}};
  size_t count = std::min(model.moeRouterLoadBalancingType.size(), model.moeAuxLossCoeff.size());
  for (size_t i = 0; i < count; ++i)
    for (auto [kind, loss] : kKinds)
      if (model.moeRouterLoadBalancingType[i] == kind)
        hasLoss_[loss] = std::strtod(model.moeAuxLossCoeff[i].c_str(), nullptr) != 0;
  hasLoss_[kZLoss] = model.moeZLossCoeff != 0;
  drops_ = model.moeExpertCapacityFactor > 0;
  double layers = 0;
  for (const plan::Cell &cell : plan.roles[0].cells)
    if (cell.kind == plan::CellKind::ExpertLoad) {
      layers = static_cast<double>(cell.type.shape[0]);
      columns_ = static_cast<size_t>(cell.type.shape[1]);
    }
  for (int64_t i = 1; i <= model.mtpNumLayers; ++i)
    predictions_.push_back(fmt::format("mtp_{} loss", i));
  hasOdds_ = plan.job.preference.loss == plan::Job::PreferenceLoss::Orpo;
  values_.resize(kRouterLosses + 4 + predictions_.size() + kPairMetrics);
  experts_ = static_cast<size_t>(model.numMoeExperts);
  choices_ = static_cast<double>(plan.job.train.globalBatchSize * model.seqLength) *
             static_cast<double>(model.moeRouterTopk) * layers;
}

std::span<const NamedValue> StepValues::of(const ReportedCells &cells) {
  count_ = 0;
  auto [losses, load, ahead, pairs] = cells;
  for (size_t kind = 0; kind < losses.size() && kind < hasLoss_.size(); ++kind)
    if (hasLoss_[kind])
      add(kRouterLossNames[kind], static_cast<double>(losses[kind]));
  if (!load.empty())
    addExperts(load);
  for (size_t i = 0; i < ahead.size() && i < predictions_.size(); ++i)
    add(predictions_[i], static_cast<double>(ahead[i]));
  if (pairs.size() == kPairMetrics && pairs[kPairs] > 0)
    addPairs(pairs);
  return {values_.data(), count_};
}

/// The means over pairs of a step, under the names that TRL logs.
void StepValues::addPairs(std::span<const float> sums) {
  auto mean = [&](PairMetric metric) {
    return static_cast<double>(sums[metric]) / static_cast<double>(sums[kPairs]);
  };
  add("rewards/chosen", mean(kChosenReward));
  add("rewards/rejected", mean(kRejectedReward));
  add("rewards/margins", mean(kChosenReward) - mean(kRejectedReward));
  add("rewards/accuracies", mean(kAccurate));
  add("logps/chosen", mean(kChosenLogp));
  add("logps/rejected", mean(kRejectedLogp));
  if (hasOdds_) {
    add("nll_loss", mean(kNll));
    add("log_odds_chosen", mean(kLogOdds));
  }
}

void StepValues::addExperts(std::span<const float> load) {
  float most = load[0], least = load[0];
  double rows = 0, imbalance = 0, layers = 0;
  const size_t experts = std::min(experts_, columns_); // the plan is not trusted
  for (size_t first = 0; experts > 0 && first + experts <= load.size(); first += columns_) {
    std::span<const float> layer = load.subspan(first, experts);
    auto [fewest, busiest] = std::ranges::minmax(layer);
    double sum = std::accumulate(layer.begin(), layer.end(), 0.0);
    most = std::max(most, busiest), least = std::min(least, fewest);
    rows += sum, layers += sum > 0 ? 1 : 0;
    imbalance += sum > 0 ? static_cast<double>(busiest) * static_cast<double>(experts) / sum : 0;
  }
  add("expert_rows_most", static_cast<double>(most));
  add("expert_rows_least", static_cast<double>(least));
  if (layers > 0)
    add("expert_imbalance", imbalance / layers);
  if (drops_)
    add("dropped_rows", choices_ - rows);
}

} // namespace shardc::run
