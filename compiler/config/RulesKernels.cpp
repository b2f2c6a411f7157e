// Rules for features that the kernels of the recipe's GPU do not support, or execute slowly.
#include "compiler/config/RulePredicates.h"
#include "runtime/base/Attention.h"
#include "runtime/base/CudaLimits.h"

namespace shardc::config {
namespace {

bool runsOnGpu(const RuleContext &ctx) {
  return ctx.derived().gpu && !predict::device(*ctx.derived().gpu).isHost();
}

/// Whether some layer attends to slices of sequences. Only the exchange of heads avoids slices.
bool hasSlices(const RuleContext &ctx) {
  Opt ways = Opt::ModelCpCommType;
  return ctx.derived().contextParallel > 1 &&
         (!ctx.has(ways) || !llvm::all_of(ctx.cfg().getEnums<CpCommType>(ways),
                                          [](CpCommType way) { return way == CpCommType::A2a; }));
}

/// Whether, in all layers, queries of slices attend to the keys of whole sequences.
bool gathersKeys(const RuleContext &ctx) {
  Opt ways = Opt::ModelCpCommType;
  return ctx.has(ways) && llvm::all_of(ctx.cfg().getEnums<CpCommType>(ways), [](CpCommType way) {
           return way == CpCommType::AllGather || way == CpCommType::A2a;
         });
}

/// Whether no layer has a window, according to a pattern of 1 or to a list.
bool areAllFull(const RuleContext &ctx) {
  Opt option = Opt::ModelWindowAttnSkipFreq;
  if (!ctx.has(option))
    return false;
  const Value::List &pattern = ctx.cfg().getList(option);
  int64_t full = pattern.size() == 1 ? 1 : 0;
  return llvm::all_of(pattern, [&](const Value &one) { return *one.asInt() == full; });
}

/// Whether some layer has an attention window.
bool hasWindow(const RuleContext &ctx) {
  Opt window = Opt::ModelWindowSize;
  return ctx.has(window) && !ctx.cfg().getList(window).empty() &&
         *ctx.cfg().getList(window).front().asInt() >= 0 && !areAllFull(ctx);
}

/// The number of channels of a head's queries and keys, and the option that determines it.
std::pair<int64_t, Opt> headChannels(const RuleContext &ctx) {
  if (ctx.on(Opt::ModelMultiLatentAttention))
    return {ctx.num(Opt::ModelQkHeadDim) + ctx.num(Opt::ModelQkPosEmbHeadDim), Opt::ModelQkHeadDim};
  return {ctx.derived().headSize, Opt::ModelKvChannels};
}

/// A setting that keeps cuDNN from computing the attention of some layer. `without`: the value that
/// avoids this without changing the model; empty if there is none.
struct Barred {
  AttentionKind kind;
  Opt opt;
  std::optional<Value> without;
};

/// Lists the settings that alone keep a layer from cuDNN's kernels, each with the value that would
/// not, if that value leaves the model as it is.
std::vector<Barred> barredSettings(const RuleContext &ctx) {
  const Derived &d = ctx.derived();
  AttentionKind plain{.type = d.compute,
                      .hasSlices = hasSlices(ctx),
                      .hasAllKeys = gathersKeys(ctx),
                      .channels = headChannels(ctx).first};
  plain.values =
      ctx.on(Opt::ModelMultiLatentAttention) ? ctx.num(Opt::ModelVHeadDim) : plain.channels;
  std::vector<Barred> all;
  auto add = [&](bool is, Opt opt, std::optional<Value> without, auto change) {
    AttentionKind kind = plain;
    change(kind);
    if (is && cudnnBarOf(kind) != CudnnBar::None && !ctx.cfg()[opt].isPoisoned)
      all.push_back({kind, opt, std::move(without)});
  };
  Opt dropout = Opt::ModelAttentionDropout, documents = ctx.derived().splitting;
  add(ctx.cfg().getFloatOr(dropout, 0) > 0, dropout, Value::ofFloat(0),
      [](AttentionKind &kind) { kind.drops = true; });
  std::optional<Value> joined; // packs always have documents
  if (documents != Opt::DatasetKind)
    joined = Value::ofBool(false);
  add(ctx.derived().splitsDocuments, documents, joined,
      [](AttentionKind &kind) { kind.hasDocuments = true; });
  // Without these settings it would be another model.
  add(hasWindow(ctx) && hasSlices(ctx), Opt::ModelWindowSize, {},
      [](AttentionKind &kind) { kind.hasWindow = true; });
  Opt chunk = Opt::ModelAttentionChunkSize;
  add(ctx.has(chunk) && ctx.num(chunk) < d.seqLength, chunk, {},
      [](AttentionKind &kind) { kind.hasChunks = true; });
  Opt cap = Opt::ModelAttnLogitSoftcapping;
  add(ctx.has(cap), cap, {}, [](AttentionKind &kind) { kind.isCapped = true; });
  return all;
}

/// The location of a message about an option. If the recipe does not set the option, as with
/// dropout, which is on by default, it is the location of the GPU's option.
SourceRange placeOf(const RuleContext &ctx, Opt opt) {
  SourceRange place = ctx.placeOf(opt);
  return place.isValid() ? place : ctx.cfg().range(Opt::ClusterGpu);
}

} // namespace

void ruleCudaCoreAttention(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (!runsOnGpu(ctx) || dtypeBytes(d.compute) != 2)
    return;
  for (const Barred &barred : barredSettings(ctx)) {
    bool isHopper = predict::device(*d.gpu).isHopper();
    if (attentionRefusal(barred.kind) || // the next rule reports these
        attentionKernels(barred.kind, isHopper) != AttentionKernels::Plain)
      continue;
    RuleReport report =
        ctx.reportAt(placeOf(ctx, barred.opt),
                     {pathOf(barred.opt), arg(ctx, barred.opt), arg(ctx, Opt::ClusterGpu),
                      DiagArg(d.compute == DType::BF16 ? "bf16" : "fp16")});
    if (barred.without)
      report.fix(ctx.fixSet(barred.opt, *barred.without, FixItKind::Recommended));
  }
}

void ruleCudaLimits(RuleContext &ctx) {
  if (!runsOnGpu(ctx))
    return;
  auto judge = [&](CudaLimit limit, int64_t size, Opt opt) {
    const CudaLimitInfo info = cudaLimit(limit);
    if (size > info.most && !ctx.cfg()[opt].isPoisoned)
      ctx.reportAt(placeOf(ctx, opt),
                   {pathOf(opt), size, DiagArg(info.what), arg(ctx, Opt::ClusterGpu), info.most});
  };
  const Derived &d = ctx.derived();
  bool isLatent = ctx.on(Opt::ModelMultiLatentAttention);
  auto [channels, opt] = headChannels(ctx);
  judge(CudaLimit::HeadChannels, channels, opt);
  if (isLatent)
    judge(CudaLimit::HeadChannels, ctx.num(Opt::ModelVHeadDim), Opt::ModelVHeadDim);
  judge(CudaLimit::NormColumns, d.hidden, Opt::ModelHiddenSize);
  if (isLatent)
    for (Opt rank : {Opt::ModelQLoraRank, Opt::ModelKvLoraRank})
      judge(CudaLimit::NormColumns, ctx.num(rank), rank);
  // Tensor-parallel ranks each have a part of the row, which another kernel normalises.
  if (ctx.on(Opt::ModelQkLayernorm) && ctx.on(Opt::ModelQkLayernormFullWidth) &&
      d.tensorParallel == 1)
    judge(CudaLimit::NormColumns, d.numHeads * d.headSize, Opt::ModelQkLayernormFullWidth);
}

} // namespace shardc::config
