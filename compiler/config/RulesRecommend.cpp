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
void recommend(RuleContext &ctx, Opt opt, const NewValue &value,
               llvm::ArrayRef<DiagArg> args = {}) {
  Opt place = ctx.isWritten(opt) ? opt : ctx.fsdpFlag();
  ctx.report({place}, args).set(opt, value, FixItKind::Recommended);
}

} // namespace

RULE_IF(RecommendedPerTokenLoss, isAdvised(ctx) && !on(ModelCalculatePerTokenLoss),
        recommend(ctx, ModelCalculatePerTokenLoss, true));
RULE_IF(RecommendedMetaDevice, isAdvised(ctx) && !on(ModelInitModelWithMetaDevice),
        recommend(ctx, ModelInitModelWithMetaDevice, true));

RULE_CODE(RecommendedBf16Reduction) {
  Opt wire = DdpMegatronFsdpGradCommDtype;
  // With a single rank, upstream adds the accumulated gradient to itself if gradients are
  // communicated in a type of their own.
  bool isSingle = has(ModelNumMoeExperts) && d.expertDataParallel / d.dataParallelOuter <= 1;
  if (!isAdvised(ctx) || isSingle || d.wire != DType::F32 || d.compute != DType::BF16 ||
      !cfg().is(wire, FloatTypeOrAuto::Auto))
    return;
  // Only this option can make a bf16 model communicate gradients in fp32. It is written, or copied
  // from a field of mixed_precision that is written or comes from a preset.
  Opt cause = DdpGradReduceInFp32;
  if (!isWritten(cause))
    cause = isWritten(MixedPrecisionGradReduceInFp32) ? MixedPrecisionGradReduceInFp32
                                                      : MixedPrecisionPreset;
  recommend(ctx, wire, FloatTypeOrAuto::Bf16, {pathOf(cause), text(cause)});
}

RULE_IF(RecommendedDoubleBuffer, isAdvised(ctx) && !on(DdpFsdpDoubleBuffer) && canDoubleBuffer(ctx),
        recommend(ctx, DdpFsdpDoubleBuffer, true, {DiagArg(spelling(d.strategy))}));

RULE_CODE(RecommendedRegisteredBuffers) {
  Opt opt = DdpNcclUb;
  const std::string *segments = variable("PYTORCH_CUDA_ALLOC_CONF");
  bool isHeld = segments && llvm::StringRef(*segments).contains("expandable_segments:True");
  if (isAdvised(ctx) && !on(opt) && !isHeld && canDoubleBuffer(ctx) && areLayersAlike(ctx))
    recommend(ctx, opt, true, {text(ClusterGpu)});
}

RULE_CODE(RecommendedConnections) {
  Opt opt = EnvCudaDeviceMaxConnections;
  const std::string *value = variable("CUDA_DEVICE_MAX_CONNECTIONS");
  if (!isAdvised(ctx) || !value || *value == "1") // another rule reports a single queue
    return;
  if (*value == "32" && !predict::device(*d.gpu).isBeforeBlackwell())
    return;
  report({opt}, {DiagArg(*value)}).remove(opt, Recommended);
}

} // namespace shardc::config
