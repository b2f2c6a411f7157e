// Upstream's checks on finetuning, adapters, and models that consist of several modules.
#include "compiler/config/Adapted.h"
#include "compiler/config/Effect.h"
#include "compiler/config/RulePredicates.h"
#include "compiler/model/Freeze.h"
#include "runtime/base/DType.h"

namespace shardc::config {

namespace {

bool finetunesWithContext(const RuleContext &ctx) {
  return ctx.on(Opt::DatasetFinetuning) && ctx.derived().contextParallel > 1;
}

} // namespace

RULE_IF(FinetuningContextPerTokenLoss, finetunesWithContext(ctx) && !on(ModelCalculatePerTokenLoss),
        report({ModelCalculatePerTokenLoss, ModelContextParallelSize, DatasetFinetuning})
            .set(ModelCalculatePerTokenLoss, true));
RULE_IF(FinetuningContextAverage, finetunesWithContext(ctx) && on(DdpAverageInCollective),
        report({DdpAverageInCollective, ModelContextParallelSize, DatasetFinetuning})
            .set(DdpAverageInCollective, false));

RULE_CODE(Freeze) {
  constexpr Opt kFreeze = ModelFreeze;
  if (!has(kFreeze) || !has(ModelNumLayers))
    return;
  if (model::Frozen read = model::readFrozen(textsOf(cfg(), kFreeze), d.numLayers); !read.isValid())
    report({kFreeze, ModelNumLayers}, {text(kFreeze), DiagArg(read.problem)})
        .remove(kFreeze, Alternative);
}

RULE_IF(KeepFrozenNeedsMemory,
        cfg().is(DdpKeepFrozen, KeepFrozen::IfFits) && has(ModelFreeze) && d.memoryBytes == 0,
        report({DdpKeepFrozen, ClusterGpu}).set(DdpKeepFrozen, KeepFrozen::Always, Alternative));
RULE_IF(FinetuneWithoutOptimizer,
        on(CheckpointFinetune) && on(CheckpointLoadOptim) && isWritten(CheckpointLoadOptim),
        report({CheckpointLoadOptim, CheckpointFinetune}).remove(CheckpointLoadOptim, Alternative));

// A run on synthetic data or on the host only rehearses the real one, so the base may have
// randomly initialised weights.
RULE_IF(PeftNeedsCheckpoint,
        has(PeftScheme) && !has(CheckpointPretrainedCheckpoint) &&
            !(cfg().is(DatasetKind, DatasetKind::Synthetic) || d.gpu == Gpu::Host),
        report({PeftScheme, CheckpointPretrainedCheckpoint}));

namespace {

/// The adapters of a recipe; empty without a scheme.
std::optional<model::AdapterTargets> targetsOf(const RuleContext &ctx) {
  if (!ctx.has(Opt::PeftScheme) || !ctx.has(Opt::ModelNumLayers))
    return std::nullopt;
  return adapterTargets(ctx.cfg());
}

/// Whether the predicate is true for an adapter of any layer.
template <typename Asks> bool anyAdapter(const RuleContext &ctx, Asks asks) {
  std::optional<model::AdapterTargets> targets = targetsOf(ctx);
  if (!targets || !targets->problem().empty())
    return false;
  constexpr int64_t kAskedMax = 4096;
  for (int64_t i = 0; i < std::min(ctx.derived().numLayers, kAskedMax); ++i)
    for (const auto &[stem, parts] : targets->of(i))
      if (asks(stem, parts))
        return true;
  return false;
}

} // namespace

RULE_CODE(PeftWithoutScheme) {
  if (has(PeftScheme))
    return;
  for (const OptionInfo &option : options())
    if (option.section == Section::Peft && isWritten(option.opt) && has(option.opt) &&
        option.opt != PeftScheme && !isLeftBehind(cfg(), option))
      return void(report({option.opt, PeftScheme}, {pathOf(option.opt)}));
}

RULE_CODE(PeftTargets) {
  constexpr Opt kAlphas = PeftTargetAlphas;
  const std::vector<double> alphas = numbersOf(cfg(), kAlphas);
  const size_t count = textsOf(cfg(), PeftTargets).size();
  if (has(PeftScheme) && has(kAlphas) &&
      (alphas.size() != count || !std::ranges::all_of(alphas, [](double a) { return a > 0; })))
    return void(report({kAlphas, PeftTargets},
                       {pathOf(kAlphas), text(kAlphas),
                        DiagArg(fmt::format("it needs numbers above 0, one for each of the {} "
                                            "entries of 'peft.targets'",
                                            count))})
                    .remove(kAlphas, Alternative));
  if (std::optional<model::AdapterTargets> targets = targetsOf(ctx);
      targets && !targets->problem().empty()) {
    const Opt which = targets->isProblemOfExclude() ? PeftExclude : PeftTargets;
    report({which, PeftScheme}, {pathOf(which), text(which), DiagArg(targets->problem())});
  }
}

RULE_CODE(PeftModulesToSave) {
  if (!has(PeftScheme) || !has(ModelNumLayers))
    return;
  if (model::Frozen read = model::readSaved(textsOf(cfg(), PeftModulesToSave), d.numLayers, d.tied);
      !read.isValid())
    report({PeftModulesToSave, PeftScheme}, {text(PeftModulesToSave), DiagArg(read.problem)})
        .remove(PeftModulesToSave, Alternative);
}

RULE_IF(PeftFreeze, has(PeftScheme) && has(ModelFreeze),
        report({ModelFreeze, PeftScheme}).remove(ModelFreeze));
RULE_IF(PeftInit,
        has(PeftScheme) && !cfg().is(PeftInit, AdapterInit::Xavier) &&
            !cfg().is(PeftInit, AdapterInit::Normal),
        report({PeftInit, PeftScheme}, {text(PeftInit)}).remove(PeftInit, Alternative));

namespace {

bool isOfExperts(std::string_view stem, const model::AdapterParts &) {
  return stem.starts_with("mlp.experts.");
}

} // namespace

RULE_IF(PeftDora, cfg().is(PeftScheme, PeftScheme::Dora) && anyAdapter(ctx, isOfExperts),
        report({PeftScheme, PeftTargets}).set(PeftScheme, PeftScheme::Lora, Alternative));

namespace {

/// Whether frozen weights are stored in 4 bits, with scales in either type.
bool hasBlocks(const RuleContext &ctx) {
  return ctx.has(Opt::PeftScheme) && ctx.has(Opt::PeftQuantize) &&
         !ctx.cfg().is(Opt::PeftQuantize, WeightFormat::Fp8);
}

} // namespace

RULE_IF(PeftFp8, hasBlocks(ctx) && has(ModelFp8),
        report({PeftQuantize, ModelFp8}, {text(PeftQuantize), text(ModelFp8)})
            .remove(ModelFp8, Alternative));

RULE_CODE(PeftQuantizeFp8) {
  if (!has(PeftScheme) || !cfg().is(PeftQuantize, WeightFormat::Fp8))
    return;
  const bool hasFp8 = has(ModelFp8);
  const bool isWhole = hasScalesOfTensors(ctx);
  const bool isDora = cfg().is(PeftScheme, PeftScheme::Dora);
  if (hasFp8 && isWhole && !isDora)
    return;
  const Opt other = !hasFp8 ? ModelFp8 : !isWhole ? ModelFp8Recipe : PeftScheme;
  report({PeftQuantize, other}, {pathOf(other), text(other),
                                 DiagArg(!hasFp8    ? "hybrid or e4m3"
                                         : !isWhole ? "tensorwise or delayed"
                                                    : "lora or canonical_lora")})
      .remove(PeftQuantize, Alternative);
}

RULE_IF(PeftFp8Gather, has(PeftScheme) && has(ModelFp8) && on(DdpFp8ParamGather),
        report({PeftScheme, DdpFp8ParamGather}));

namespace {

/// Rows of weights that are stored in blocks of 4 bits: a description, the option that sets their
/// length, and their length on a rank.
struct BlockRows {
  const char *of;
  Opt option;
  int64_t numbers;
};

/// The length of a rank's part of a row. 0 if the parts are not equal; then no block fits.
int64_t partOf(int64_t row, int64_t ranks) { return row % ranks == 0 ? row / ranks : 0; }

std::vector<BlockRows> rowsOfBlocks(const RuleContext &ctx) {
  const Derived &d = ctx.derived();
  const bool isLatent = ctx.on(Opt::ModelMultiLatentAttention);
  int64_t values = isLatent ? ctx.num(Opt::ModelVHeadDim) : d.headSize;
  std::vector<BlockRows> rows = {
      {"layers that take the residual stream", Opt::ModelHiddenSize, d.hidden},
      {"linear_proj", isLatent ? Opt::ModelVHeadDim : Opt::ModelNumAttentionHeads,
       partOf(d.numHeads * values, d.tensorParallel)}};
  if (adaptedModel(ctx.cfg()).has(model::FeedForward::Dense))
    rows.push_back({"linear_fc2", Opt::ModelFfnHiddenSize, partOf(d.ffnHidden, d.tensorParallel)});
  if (isLatent)
    rows.push_back({"linear_kv_up_proj", Opt::ModelKvLoraRank, ctx.num(Opt::ModelKvLoraRank)});
  if (isLatent && ctx.has(Opt::ModelQLoraRank))
    rows.push_back({"linear_q_up_proj", Opt::ModelQLoraRank, ctx.num(Opt::ModelQLoraRank)});
  if (Opt shared = Opt::ModelMoeSharedExpertIntermediateSize;
      ctx.has(Opt::ModelNumMoeExperts) && ctx.has(shared))
    rows.push_back(
        {"shared_experts.linear_fc2", shared, partOf(ctx.num(shared), d.tensorParallel)});
  return rows;
}

} // namespace

RULE_CODE(PeftQuantize) {
  if (!hasBlocks(ctx) || !has(ModelNumLayers))
    return;
  const int64_t needed =
      numbersIn(cfg().is(PeftQuantize, WeightFormat::Nf4) ? DType::NF4x64 : DType::NF4x512);
  for (const BlockRows &rows : rowsOfBlocks(ctx))
    if (rows.numbers % needed != 0 || rows.numbers == 0) {
      report({PeftQuantize, rows.option},
             {text(PeftQuantize), DiagArg(rows.of), rows.numbers, needed})
          .remove(PeftQuantize, Alternative);
      return;
    }
}

RULE_CODE(PeftDropout) {
  if (!has(PeftScheme) || cfg().getFloat(PeftDropout) == 0)
    return;
  auto takesParts = [](std::string_view stem, const model::AdapterParts &) {
    return stem.ends_with("linear_proj") || stem.ends_with("linear_fc2");
  };
  bool areCut = d.tensorParallel > 1 && anyAdapter(ctx, takesParts);
  bool isDora = cfg().is(PeftScheme, PeftScheme::Dora);
  if (isDora || anyAdapter(ctx, isOfExperts) || areCut)
    report({PeftDropout, isDora ? PeftScheme : PeftTargets},
           {text(PeftDropout),
            DiagArg(isDora   ? "'peft.scheme' is dora"
                    : areCut ? "tensor-parallel ranks have parts of what linear_proj and "
                               "linear_fc2 take"
                             : "experts have adapters")})
        .remove(PeftDropout, Alternative);
}

RULE_CODE(PeftLoraBias) {
  if (!has(PeftScheme) || !on(PeftLoraBias))
    return;
  auto areMixed = [](std::string_view, const model::AdapterParts &parts) {
    std::vector<double> alphas = parts.alphas;
    std::erase(alphas, 0.0); // parts without an adapter
    return std::ranges::adjacent_find(alphas, std::not_equal_to<>()) != alphas.end();
  };
  const char *why = cfg().is(PeftScheme, PeftScheme::Dora) ? "'peft.scheme' is dora"
                    : anyAdapter(ctx, isOfExperts)         ? "experts have adapters"
                    : anyAdapter(ctx, areMixed)
                        ? "the parts of a layer differ in their 'peft.target_alphas'"
                        : nullptr;
  if (why != nullptr)
    report({PeftLoraBias, PeftScheme}, {DiagArg(why)}).remove(PeftLoraBias, Alternative);
}

RULE_CODE(PeftKeyGroups) {
  auto isInParts = [](std::string_view stem, const model::AdapterParts &parts) {
    return stem == "self_attention.linear_qkv" && !parts.isJoint;
  };
  if (has(PeftScheme) && d.tensorParallel > d.numGroups && anyAdapter(ctx, isInParts))
    report({PeftTargets, ModelTensorModelParallelSize}, {d.tensorParallel, d.numGroups});
}

RULE_IF(MimoUnderFsdp, on(ModelMegatronMimo) && wantsFsdp(),
        report({ModelMegatronMimo, fsdpFlag()}));

} // namespace shardc::config
