// Rules on Muon, which updates whole matrices.
#include "compiler/config/RulePredicates.h"
#include "runtime/base/NewtonSchulz.h"

namespace shardc::config {

namespace {

constexpr Opt kKind = Opt::OptimizerOptimizer;

bool isMuon(const RuleContext &ctx) {
  return ctx.cfg().is(kKind, OptimizerKind::Muon) || ctx.cfg().is(kKind, OptimizerKind::DistMuon);
}

/// The option that divides matrices among ranks, and its value; empty if no option does.
struct TensorRanks {
  Opt option;
  int64_t count;
};
std::optional<TensorRanks> tensorRanks(const RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (d.tensorParallel > 1)
    return TensorRanks{Opt::ModelTensorModelParallelSize, d.tensorParallel};
  if (d.expertTensorParallel > 1)
    return TensorRanks{Opt::ModelExpertTensorParallelSize, d.expertTensorParallel};
  return std::nullopt;
}

} // namespace

RULE_IF(MuonFp16, isMuon(ctx) && on(ModelFp16),
        report({kKind, ModelFp16}, {text(kKind), pathOf(ModelFp16)}));

RULE_CODE(MuonCubicSteps) {
  auto expected = static_cast<int64_t>(nsSteps(NsCoefficients::Cubic5).size());
  int64_t steps = num(OptimizerMuonNumNsSteps);
  if (isMuon(ctx) && cfg().is(OptimizerMuonCoefficientType, MuonCoefficients::Cubic5) &&
      steps != expected)
    report({OptimizerMuonCoefficientType, OptimizerMuonNumNsSteps}, {expected, steps})
        .set(OptimizerMuonNumNsSteps, expected);
}

RULE_CODE(MuonBlockwise) {
  constexpr Opt kMode = OptimizerMuonTpMode;
  std::optional<TensorRanks> ranks = tensorRanks(ctx);
  if (isMuon(ctx) && ranks && cfg().is(kMode, MuonTpMode::Blockwise))
    report({kMode, ranks->option}, {pathOf(ranks->option), ranks->count});
}

RULE_IF(MuonHeadsDivided,
        isMuon(ctx) && d.tensorParallel > 1 && on(OptimizerMuonSplitQkvPerHead) &&
            cfg().is(OptimizerMuonTpMode, MuonTpMode::Distributed),
        report({OptimizerMuonSplitQkvPerHead, OptimizerMuonTpMode}, {d.tensorParallel})
            .set(OptimizerMuonTpMode, MuonTpMode::Duplicated));
RULE_IF(MuonUnderFsdp, isMuon(ctx) && wantsFsdp(), report({fsdpFlag(), kKind}, {text(kKind)}));

} // namespace shardc::config
