// Recommendations of the user guide for training under Megatron FSDP. Only `check
// --fix=recommended` applies the fix-it of each remark. They apply if the recipe names a GPU:
// settings for speed are meaningless without one.
#include "compiler/config/RulePredicates.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::config {

namespace {

/// Whether the guide's advice on FSDP is meant for this recipe.
bool isAdvised(const RuleContext &ctx) {
  const Derived &d = ctx.derived();
  bool isOnGpu = d.gpu && !predict::device(*d.gpu).isHost();
  return isOnGpu && ctx.wantsFsdp() && !isVersion2(ctx) && !ctx.on(Opt::DistUseTorchFsdp2) &&
         d.strategy != ShardingStrategy::NoShard && d.shardGroup > 1;
}

/// Two microbatches in flight need more units at once than two slots hold.
bool canDoubleBuffer(const RuleContext &ctx) {
  return !ctx.on(Opt::ModelOverlapMoeExpertParallelComm);
}

/// Whether all units have one size; registered buffers of others hang upstream.
bool areLayersAlike(const RuleContext &ctx) {
  bool hasDenseLayers = ctx.has(Opt::ModelNumMoeExperts) && ctx.has(Opt::ModelMoeLayerFreq);
  return !hasDenseLayers && !ctx.has(Opt::ModelMtpNumLayers);
}

/// The remark is attached to the option if it is written, otherwise to the flag that asks for FSDP.
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
  // With one rank, upstream adds the accumulated gradient to itself if the wire has a type of its
  // own.
  bool isSingle =
      ctx.has(Opt::ModelNumMoeExperts) && d.expertDataParallel / d.dataParallelOuter <= 1;
  if (!isAdvised(ctx) || isSingle || d.wire != DType::F32 || d.compute != DType::BF16 ||
      !ctx.cfg().is(wire, FloatTypeOrAuto::Auto))
    return;
  // Nothing else widens the wire of a bf16 model. The option is written, or a field of
  // mixed_precision that is copied to it is, or it comes from a preset.
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
  if (!isAdvised(ctx) || !value || *value == "1") // one queue is an error of its own
    return;
  if (*value == "32" && !predict::device(*ctx.derived().gpu).isBeforeBlackwell())
    return;
  ctx.report({opt}, {DiagArg(*value)}).fix(ctx.fixRemove(opt, FixItKind::Recommended));
}

} // namespace shardc::config
