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

void ruleMuonFp16(RuleContext &ctx) {
  if (isMuon(ctx) && ctx.on(Opt::ModelFp16))
    ctx.report({kKind, Opt::ModelFp16}, {arg(ctx, kKind), pathOf(Opt::ModelFp16)});
}

void ruleMuonCubicSteps(RuleContext &ctx) {
  auto expected = static_cast<int64_t>(nsSteps(NsCoefficients::Cubic5).size());
  int64_t steps = ctx.num(Opt::OptimizerMuonNumNsSteps);
  if (isMuon(ctx) && ctx.cfg().is(Opt::OptimizerMuonCoefficientType, MuonCoefficients::Cubic5) &&
      steps != expected)
    ctx.report({Opt::OptimizerMuonCoefficientType, Opt::OptimizerMuonNumNsSteps}, {expected, steps})
        .fix(ctx.fixSet(Opt::OptimizerMuonNumNsSteps, Value::ofInt(expected)));
}

void ruleMuonBlockwise(RuleContext &ctx) {
  constexpr Opt kMode = Opt::OptimizerMuonTpMode;
  std::optional<TensorRanks> ranks = tensorRanks(ctx);
  if (isMuon(ctx) && ranks && ctx.cfg().is(kMode, MuonTpMode::Blockwise))
    ctx.report({kMode, ranks->option}, {pathOf(ranks->option), ranks->count});
}

void ruleMuonHeadsDivided(RuleContext &ctx) {
  int64_t ranks = ctx.derived().tensorParallel;
  if (isMuon(ctx) && ranks > 1 && ctx.on(Opt::OptimizerMuonSplitQkvPerHead) &&
      ctx.cfg().is(Opt::OptimizerMuonTpMode, MuonTpMode::Distributed))
    ctx.report({Opt::OptimizerMuonSplitQkvPerHead, Opt::OptimizerMuonTpMode}, {ranks})
        .fix(ctx.fixSet(Opt::OptimizerMuonTpMode, Value::ofEnum(MuonTpMode::Duplicated)));
}

void ruleMuonUnderFsdp(RuleContext &ctx) {
  if (isMuon(ctx) && ctx.wantsFsdp())
    ctx.report({ctx.fsdpFlag(), kKind}, {arg(ctx, kKind)});
}

} // namespace shardc::config
