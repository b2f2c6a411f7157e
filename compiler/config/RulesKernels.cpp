// Rules for features that the kernels of the recipe's GPU do not support.
#include "compiler/config/RulePredicates.h"
#include "runtime/base/CudaLimits.h"
#include "runtime/base/KernelPath.h"

namespace shardc::config {
namespace {

bool runsOnGpu(const RuleContext &ctx) {
  return ctx.derived().gpu && !predict::device(*ctx.derived().gpu).isHost();
}

/// The number of channels of a head's queries and keys, and the option that determines it.
std::pair<int64_t, Opt> headChannels(const RuleContext &ctx) {
  if (ctx.on(Opt::ModelMultiLatentAttention))
    return {ctx.num(Opt::ModelQkHeadDim) + ctx.num(Opt::ModelQkPosEmbHeadDim), Opt::ModelQkHeadDim};
  return {ctx.derived().headSize, Opt::ModelKvChannels};
}

/// The gradient of the attention of the recipe's layers.
AttentionKind attentionOf(const RuleContext &ctx) {
  Opt chunk = Opt::ModelAttentionChunkSize;
  int64_t channels = headChannels(ctx).first;
  return {.type = ctx.derived().compute,
          .drops = ctx.cfg().getFloatOr(Opt::ModelAttentionDropout, 0) > 0,
          .hasDocuments = ctx.derived().splitsDocuments,
          .hasChunks = ctx.has(chunk) && ctx.num(chunk) < ctx.derived().seqLength,
          .isCapped = ctx.has(Opt::ModelAttnLogitSoftcapping),
          .channels = channels,
          .values = ctx.on(Opt::ModelMultiLatentAttention) ? ctx.num(Opt::ModelVHeadDim) : channels,
          .isGradient = true};
}

/// The most channels, up to `kind`'s, with which a kernel of the GPU computes the attention: of
/// queries, keys and, unless the attention is latent, values.
int64_t mostChannels(AttentionKind kind, const GpuTraits &gpu, bool isLatent) {
  while (kind.channels > 1 && attentionRefusal(kind, gpu)) {
    --kind.channels;
    kind.values = isLatent ? kind.values : kind.channels;
  }
  return kind.channels;
}

/// The location of a message about an option. If the recipe does not set the option, it is the
/// location of the GPU's option.
SourceRange placeOrGpu(const RuleContext &ctx, Opt opt) {
  SourceRange place = ctx.placeOf(opt);
  return place.isValid() ? place : ctx.cfg().range(Opt::ClusterGpu);
}

} // namespace

RULE_CODE(CudaKernelLimit) {
  if (!runsOnGpu(ctx))
    return;
  auto refuse = [&](CudaLimit limit, int64_t size, int64_t most, Opt opt) {
    if (size > most && !cfg()[opt].isPoisoned)
      reportAt(placeOrGpu(ctx, opt),
               {pathOf(opt), size, DiagArg(cudaLimit(limit).what), text(ClusterGpu), most});
  };
  auto judge = [&](CudaLimit limit, int64_t size, Opt opt) {
    refuse(limit, size, cudaLimit(limit).most, opt);
  };
  bool isLatent = on(ModelMultiLatentAttention);
  auto [channels, opt] = headChannels(ctx);
  judge(CudaLimit::HeadChannels, channels, opt);
  if (isLatent)
    judge(CudaLimit::HeadChannels, num(ModelVHeadDim), ModelVHeadDim);
  const AttentionKind kind = attentionOf(ctx);
  if (!cudaRefusal(CudaLimit::HeadChannels, std::max(kind.channels, kind.values)))
    refuse(CudaLimit::HeadChannels, channels,
           mostChannels(kind,
                        packagedTraits(static_cast<int>(predict::device(*d.gpu).architecture)),
                        isLatent),
           opt);
  judge(CudaLimit::NormColumns, d.hidden, ModelHiddenSize);
  if (has(ModelLinearAttentionFreq))
    for (Opt size : {ModelLinearKeyHeadDim, ModelLinearValueHeadDim})
      judge(CudaLimit::HeadChannels, num(size), size);
  if (has(ModelLinearAttentionFreq))
    judge(CudaLimit::ShortConvTaps, num(ModelLinearConvKernelDim), ModelLinearConvKernelDim);
  if (has(ModelHybridLayerPattern))
    for (Opt size : {ModelMambaStateDim, ModelMambaHeadDim})
      judge(CudaLimit::HeadChannels, num(size), size);
  if (has(ModelShortConvFreq))
    judge(CudaLimit::ShortConvTaps, num(ModelShortConvKernelDim), ModelShortConvKernelDim);
  if (isLatent)
    for (Opt rank : {ModelQLoraRank, ModelKvLoraRank})
      judge(CudaLimit::NormColumns, num(rank), rank);
  // Tensor-parallel ranks each have a part of the row, which another kernel normalises.
  if (on(ModelQkLayernorm) && on(ModelQkLayernormFullWidth) && d.tensorParallel == 1)
    judge(CudaLimit::NormColumns, d.numHeads * d.headSize, ModelQkLayernormFullWidth);
}

} // namespace shardc::config
