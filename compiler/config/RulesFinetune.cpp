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

void ruleFinetuneContextLoss(RuleContext &ctx) {
  if (finetunesWithContext(ctx) && !ctx.on(Opt::ModelCalculatePerTokenLoss))
    ctx.report(
           {Opt::ModelCalculatePerTokenLoss, Opt::ModelContextParallelSize, Opt::DatasetFinetuning})
        .fix(ctx.fixSet(Opt::ModelCalculatePerTokenLoss, Value::ofBool(true)));
}

void ruleFinetuneContextAverage(RuleContext &ctx) {
  if (finetunesWithContext(ctx) && ctx.on(Opt::DdpAverageInCollective))
    ctx.report({Opt::DdpAverageInCollective, Opt::ModelContextParallelSize, Opt::DatasetFinetuning})
        .fix(ctx.fixSet(Opt::DdpAverageInCollective, Value::ofBool(false)));
}

void ruleFreezeForm(RuleContext &ctx) {
  constexpr Opt kFreeze = Opt::ModelFreeze;
  if (!ctx.has(kFreeze) || !ctx.has(Opt::ModelNumLayers))
    return;
  if (model::Frozen read = model::readFrozen(textsOf(ctx.cfg(), kFreeze), ctx.derived().numLayers);
      !read.isValid())
    ctx.report({kFreeze, Opt::ModelNumLayers}, {arg(ctx, kFreeze), DiagArg(read.problem)})
        .fix(ctx.fixRemove(kFreeze, FixItKind::Alternative));
}

void ruleKeepFrozenMemory(RuleContext &ctx) {
  if (ctx.cfg().is(Opt::DdpKeepFrozen, KeepFrozen::IfFits) && ctx.has(Opt::ModelFreeze) &&
      ctx.derived().memoryBytes == 0)
    ctx.report({Opt::DdpKeepFrozen, Opt::ClusterGpu})
        .fix(ctx.fixSet(Opt::DdpKeepFrozen, Value::ofEnum(KeepFrozen::Always),
                        FixItKind::Alternative));
}

void ruleFinetuneOptimizer(RuleContext &ctx) {
  Opt optimizer = Opt::CheckpointLoadOptim;
  if (ctx.on(Opt::CheckpointFinetune) && ctx.on(optimizer) && ctx.isWritten(optimizer))
    ctx.report({optimizer, Opt::CheckpointFinetune})
        .fix(ctx.fixRemove(optimizer, FixItKind::Alternative));
}

void rulePeftCheckpoint(RuleContext &ctx) {
  // A run on synthetic data or on the host only rehearses the real one, so the base may have
  // randomly initialised weights.
  bool isRehearsal =
      ctx.cfg().is(Opt::DatasetKind, DatasetKind::Synthetic) || ctx.derived().gpu == Gpu::Host;
  if (ctx.has(Opt::PeftScheme) && !ctx.has(Opt::CheckpointPretrainedCheckpoint) && !isRehearsal)
    ctx.report({Opt::PeftScheme, Opt::CheckpointPretrainedCheckpoint});
}

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
  constexpr int64_t kLayersMax = 4096;
  for (int64_t i = 0; i < std::min(ctx.derived().numLayers, kLayersMax); ++i)
    for (bool hasExperts : {false, true})
      for (const auto &[stem, parts] : targets->of(i, hasExperts))
        if (asks(stem, parts))
          return true;
  return false;
}

} // namespace

void rulePeftWithoutScheme(RuleContext &ctx) {
  if (ctx.has(Opt::PeftScheme))
    return;
  for (const OptionInfo &option : options())
    if (option.section == Section::Peft && ctx.isWritten(option.opt) && ctx.has(option.opt) &&
        option.opt != Opt::PeftScheme && !isLeftBehind(ctx.cfg(), option))
      return void(ctx.report({option.opt, Opt::PeftScheme}, {pathOf(option.opt)}));
}

void rulePeftTargets(RuleContext &ctx) {
  constexpr Opt kAlphas = Opt::PeftTargetAlphas;
  const std::vector<double> alphas = numbersOf(ctx.cfg(), kAlphas);
  const size_t targets = textsOf(ctx.cfg(), Opt::PeftTargets).size();
  if (ctx.has(Opt::PeftScheme) && ctx.has(kAlphas) &&
      (alphas.size() != targets || !std::ranges::all_of(alphas, [](double a) { return a > 0; })))
    return void(ctx.report({kAlphas, Opt::PeftTargets},
                           {pathOf(kAlphas), arg(ctx, kAlphas),
                            DiagArg(fmt::format("it needs numbers above 0, one for each of the {} "
                                                "entries of 'peft.targets'",
                                                targets))})
                    .fix(ctx.fixRemove(kAlphas, FixItKind::Alternative)));
  if (std::optional<model::AdapterTargets> targets = targetsOf(ctx);
      targets && !targets->problem().empty()) {
    const Opt which = targets->isProblemOfExclude() ? Opt::PeftExclude : Opt::PeftTargets;
    ctx.report({which, Opt::PeftScheme},
               {pathOf(which), arg(ctx, which), DiagArg(targets->problem())});
  }
}

void rulePeftSaved(RuleContext &ctx) {
  if (!ctx.has(Opt::PeftScheme) || !ctx.has(Opt::ModelNumLayers))
    return;
  if (model::Frozen read = model::readSaved(textsOf(ctx.cfg(), Opt::PeftModulesToSave),
                                            ctx.derived().numLayers, ctx.derived().tied);
      !read.isValid())
    ctx.report({Opt::PeftModulesToSave, Opt::PeftScheme},
               {arg(ctx, Opt::PeftModulesToSave), DiagArg(read.problem)})
        .fix(ctx.fixRemove(Opt::PeftModulesToSave, FixItKind::Alternative));
}

void rulePeftFreeze(RuleContext &ctx) {
  if (ctx.has(Opt::PeftScheme) && ctx.has(Opt::ModelFreeze))
    ctx.report({Opt::ModelFreeze, Opt::PeftScheme}).fix(ctx.fixRemove(Opt::ModelFreeze));
}

void rulePeftInit(RuleContext &ctx) {
  if (ctx.has(Opt::PeftScheme) && !ctx.cfg().is(Opt::PeftInit, AdapterInit::Xavier) &&
      !ctx.cfg().is(Opt::PeftInit, AdapterInit::Normal))
    ctx.report({Opt::PeftInit, Opt::PeftScheme}, {arg(ctx, Opt::PeftInit)})
        .fix(ctx.fixRemove(Opt::PeftInit, FixItKind::Alternative));
}

namespace {

bool isOfExperts(std::string_view stem, const model::AdapterParts &) {
  return stem.starts_with("mlp.experts.");
}

} // namespace

void rulePeftDora(RuleContext &ctx) {
  if (ctx.cfg().is(Opt::PeftScheme, PeftScheme::Dora) && anyAdapter(ctx, isOfExperts))
    ctx.report({Opt::PeftScheme, Opt::PeftTargets})
        .fix(ctx.fixSet(Opt::PeftScheme, Value::ofEnum(PeftScheme::Lora), FixItKind::Alternative));
}

namespace {

/// Whether frozen weights are stored in 4 bits, with scales in either type.
bool hasBlocks(const RuleContext &ctx) {
  return ctx.has(Opt::PeftScheme) && ctx.has(Opt::PeftQuantize) &&
         !ctx.cfg().is(Opt::PeftQuantize, WeightFormat::Fp8);
}

} // namespace

void rulePeftFp8(RuleContext &ctx) {
  if (hasBlocks(ctx) && ctx.has(Opt::ModelFp8))
    ctx.report({Opt::PeftQuantize, Opt::ModelFp8},
               {arg(ctx, Opt::PeftQuantize), arg(ctx, Opt::ModelFp8)})
        .fix(ctx.fixRemove(Opt::ModelFp8, FixItKind::Alternative));
}

void rulePeftQuantizeFp8(RuleContext &ctx) {
  if (!ctx.has(Opt::PeftScheme) || !ctx.cfg().is(Opt::PeftQuantize, WeightFormat::Fp8))
    return;
  const bool hasFp8 = ctx.has(Opt::ModelFp8);
  const bool isWhole = ctx.cfg().is(Opt::ModelFp8Recipe, Fp8Recipe::Tensorwise) ||
                       ctx.cfg().is(Opt::ModelFp8Recipe, Fp8Recipe::Delayed);
  const bool isDora = ctx.cfg().is(Opt::PeftScheme, PeftScheme::Dora);
  if (hasFp8 && isWhole && !isDora)
    return;
  const Opt other = !hasFp8 ? Opt::ModelFp8 : !isWhole ? Opt::ModelFp8Recipe : Opt::PeftScheme;
  ctx.report({Opt::PeftQuantize, other}, {pathOf(other), arg(ctx, other),
                                          DiagArg(!hasFp8    ? "hybrid or e4m3"
                                                  : !isWhole ? "tensorwise or delayed"
                                                             : "lora or canonical_lora")})
      .fix(ctx.fixRemove(Opt::PeftQuantize, FixItKind::Alternative));
}

void rulePeftFp8Gather(RuleContext &ctx) {
  if (ctx.has(Opt::PeftScheme) && ctx.has(Opt::ModelFp8) && ctx.on(Opt::DdpFp8ParamGather))
    ctx.report({Opt::PeftScheme, Opt::DdpFp8ParamGather});
}

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
  if (adaptedModel(ctx.cfg()).hasDense)
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

void rulePeftQuantize(RuleContext &ctx) {
  if (!hasBlocks(ctx) || !ctx.has(Opt::ModelNumLayers))
    return;
  const int64_t needed = numbersIn(
      ctx.cfg().is(Opt::PeftQuantize, WeightFormat::Nf4) ? DType::NF4x64 : DType::NF4x512);
  for (const BlockRows &rows : rowsOfBlocks(ctx))
    if (rows.numbers % needed != 0 || rows.numbers == 0) {
      ctx.report({Opt::PeftQuantize, rows.option},
                 {arg(ctx, Opt::PeftQuantize), DiagArg(rows.of), rows.numbers, needed})
          .fix(ctx.fixRemove(Opt::PeftQuantize, FixItKind::Alternative));
      return;
    }
}

void rulePeftDropout(RuleContext &ctx) {
  if (!ctx.has(Opt::PeftScheme) || ctx.cfg().getFloat(Opt::PeftDropout) == 0)
    return;
  auto takesParts = [](std::string_view stem, const model::AdapterParts &) {
    return stem.ends_with("linear_proj") || stem.ends_with("linear_fc2");
  };
  bool areCut = ctx.derived().tensorParallel > 1 && anyAdapter(ctx, takesParts);
  bool isDora = ctx.cfg().is(Opt::PeftScheme, PeftScheme::Dora);
  if (isDora || anyAdapter(ctx, isOfExperts) || areCut)
    ctx.report({Opt::PeftDropout, isDora ? Opt::PeftScheme : Opt::PeftTargets},
               {arg(ctx, Opt::PeftDropout),
                DiagArg(isDora   ? "'peft.scheme' is dora"
                        : areCut ? "tensor-parallel ranks have parts of what linear_proj and "
                                   "linear_fc2 take"
                                 : "experts have adapters")})
        .fix(ctx.fixRemove(Opt::PeftDropout, FixItKind::Alternative));
}

void rulePeftLoraBias(RuleContext &ctx) {
  if (!ctx.has(Opt::PeftScheme) || !ctx.on(Opt::PeftLoraBias))
    return;
  auto areMixed = [](std::string_view, const model::AdapterParts &parts) {
    std::vector<double> alphas = parts.alphas;
    std::erase(alphas, 0.0); // parts without an adapter
    return std::ranges::adjacent_find(alphas, std::not_equal_to<>()) != alphas.end();
  };
  const char *why = ctx.cfg().is(Opt::PeftScheme, PeftScheme::Dora) ? "'peft.scheme' is dora"
                    : anyAdapter(ctx, isOfExperts)                  ? "experts have adapters"
                    : anyAdapter(ctx, areMixed)
                        ? "the parts of a layer differ in their 'peft.target_alphas'"
                        : nullptr;
  if (why != nullptr)
    ctx.report({Opt::PeftLoraBias, Opt::PeftScheme}, {DiagArg(why)})
        .fix(ctx.fixRemove(Opt::PeftLoraBias, FixItKind::Alternative));
}

void rulePeftKeyGroups(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  auto isInParts = [](std::string_view stem, const model::AdapterParts &parts) {
    return stem == "self_attention.linear_qkv" && !parts.isJoint;
  };
  if (ctx.has(Opt::PeftScheme) && d.tensorParallel > d.numGroups && anyAdapter(ctx, isInParts))
    ctx.report({Opt::PeftTargets, Opt::ModelTensorModelParallelSize},
               {d.tensorParallel, d.numGroups});
}

void ruleMimoFsdp(RuleContext &ctx) {
  if (ctx.on(Opt::ModelMegatronMimo) && ctx.wantsFsdp())
    ctx.report({Opt::ModelMegatronMimo, ctx.fsdpFlag()});
}

} // namespace shardc::config
