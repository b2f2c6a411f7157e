// Recommendations of the user guide for training under Megatron FSDP. They apply only if the recipe
// names a GPU, since settings for speed are meaningless without one. Only `check --fix=recommended`
// applies the fix-its of these remarks.
#include "compiler/config/RulePredicates.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::config {

namespace {

/// Whether the guide's advice on FSDP applies to this recipe.
bool isAdvised(const RuleContext &ctx) {
  const Derived &d = ctx.derived();
  bool isOnGpu = d.gpu && !predict::device(*d.gpu).isHost();
  return isOnGpu && ctx.wantsFsdp() && !isVersion2(ctx) && !ctx.on(Opt::DistUseTorchFsdp2) &&
         d.strategy != ShardingStrategy::NoShard && d.shardGroup > 1;
}

/// Whether double buffering is possible. Two microbatches in flight need more units at the same
/// time than two slots hold.
bool canDoubleBuffer(const RuleContext &ctx) {
  return !ctx.on(Opt::ModelOverlapMoeExpertParallelComm);
}

/// Whether all units have equal sizes. Upstream hangs if registered buffers have different sizes.
bool areLayersAlike(const RuleContext &ctx) {
  bool hasDenseLayers = ctx.has(Opt::ModelNumMoeExperts) && ctx.has(Opt::ModelMoeLayerFreq);
  return !hasDenseLayers && !ctx.has(Opt::ModelMtpNumLayers);
}

/// Reports a recommendation. The remark is attached to the option if it is written, otherwise to
/// the flag that requests FSDP.
void recommend(RuleContext &ctx, Opt opt, const Value &value, llvm::ArrayRef<DiagArg> args = {}) {
  Opt place = ctx.isWritten(opt) ? opt : ctx.fsdpFlag();
  ctx.report({place}, args).fix(ctx.fixSet(opt, value, FixItKind::Recommended));
}

} // namespace

void ruleRecommendPerToken(RuleContext &ctx) {
  Opt opt = Opt::ModelCalculatePerTokenLoss;
  if (isAdvised(ctx) && !ctx.on(opt))
    recommend(ctx, opt, Value::ofBool(true));
}

void ruleRecommendMetaDevice(RuleContext &ctx) {
  Opt opt = Opt::ModelInitModelWithMetaDevice;
  if (isAdvised(ctx) && !ctx.on(opt))
    recommend(ctx, opt, Value::ofBool(true));
}

void ruleRecommendBf16Reduction(RuleContext &ctx) {
  Opt wire = Opt::DdpMegatronFsdpGradCommDtype;
  const Derived &d = ctx.derived();
  // With a single rank, upstream adds the accumulated gradient to itself if gradients are
  // communicated in a type of their own.
  bool isSingle =
      ctx.has(Opt::ModelNumMoeExperts) && d.expertDataParallel / d.dataParallelOuter <= 1;
  if (!isAdvised(ctx) || isSingle || d.wire != DType::F32 || d.compute != DType::BF16 ||
      !ctx.cfg().is(wire, FloatTypeOrAuto::Auto))
    return;
  // Only this option can make a bf16 model communicate gradients in fp32. It is written, or copied
  // from a field of mixed_precision that is written or comes from a preset.
  Opt cause = Opt::DdpGradReduceInFp32;
  if (!ctx.isWritten(cause))
    cause = ctx.isWritten(Opt::MixedPrecisionGradReduceInFp32) ? Opt::MixedPrecisionGradReduceInFp32
                                                               : Opt::MixedPrecisionPreset;
  recommend(ctx, wire, Value::ofEnum(FloatTypeOrAuto::Bf16), {pathOf(cause), arg(ctx, cause)});
}

void ruleRecommendDoubleBuffer(RuleContext &ctx) {
  Opt opt = Opt::DdpFsdpDoubleBuffer;
  if (isAdvised(ctx) && !ctx.on(opt) && canDoubleBuffer(ctx))
    recommend(ctx, opt, Value::ofBool(true), {DiagArg(spelling(ctx.derived().strategy))});
}

void ruleRecommendRegistered(RuleContext &ctx) {
  Opt opt = Opt::DdpNcclUb;
  const std::string *segments = ctx.variable("PYTORCH_CUDA_ALLOC_CONF");
  bool isHeld = segments && llvm::StringRef(*segments).contains("expandable_segments:True");
  if (isAdvised(ctx) && !ctx.on(opt) && !isHeld && canDoubleBuffer(ctx) && areLayersAlike(ctx))
    recommend(ctx, opt, Value::ofBool(true), {arg(ctx, Opt::ClusterGpu)});
}

void ruleRecommendConnections(RuleContext &ctx) {
  Opt opt = Opt::EnvCudaDeviceMaxConnections;
  const std::string *value = ctx.variable("CUDA_DEVICE_MAX_CONNECTIONS");
  if (!isAdvised(ctx) || !value || *value == "1") // another rule reports a single queue
    return;
  if (*value == "32" && !predict::device(*ctx.derived().gpu).isBeforeBlackwell())
    return;
  ctx.report({opt}, {DiagArg(*value)}).fix(ctx.fixRemove(opt, FixItKind::Recommended));
}

} // namespace shardc::config
