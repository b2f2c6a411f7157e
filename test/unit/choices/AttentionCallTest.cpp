// CUDA kernels refuse the same calls that `shardc check` refuses for a GPU: jobs are compiled for
// the host, and their attention ops and norms are tested against the conditions of the CUDA
// kernels. Needs no GPU.
#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "compiler/config/Steps.h"
#include "compiler/lower/Lower.h"
#include "compiler/passes/Pipeline.h"
#include "compiler/predict/Kernels.h"
#include "kernels/cuda/AttentionCall.h"
#include "runtime/base/CudaLimits.h"
#include "runtime/exec/CallShape.h"

namespace shardc {
namespace {

struct Job {
  std::string precision;
  bool isLatent = false;
  int64_t values = 128; ///< in latent attention, whose keys have 192
  double dropout = 0;
  bool hasDocuments = false;
  std::string context; ///< how two ranks exchange keys and values; empty: one rank
  int64_t channels = 16, hidden = 64;
  std::string more;
  std::string experts; ///< settings of the layers' experts

  std::string text() const {
    std::string model = fmt::format("num_layers = 1  hidden_size = {}  num_attention_heads = 4  "
                                    "seq_length = 16  vocab_size = 64 "
                                    "attention_dropout = {:.1f} {} {} ",
                                    hidden, dropout, more, experts);
    if (isLatent)
      model += fmt::format("multi_latent_attention = true  v_head_dim = {}", values);
    else
      model += fmt::format("kv_channels = {}", channels);
    if (!context.empty())
      model += fmt::format("  context_parallel_size = 2  cp_comm_type = {}", context);
    return fmt::format("recipe r {{\n{}\nmodel llama {{ {} }}\ndataset synthetic {{ {} }}\n"
                       "cluster {{ gpus_per_node = {} }}\n}}\n",
                       precision.empty() ? "" : "mixed_precision = " + precision, model,
                       hasDocuments ? "reset_attention_mask = true  eod_token = 0" : "",
                       context.empty() ? 1 : 2);
  }
};

/// The ids of a job's errors for this device; its plan if there are none.
struct Checked {
  std::set<std::string> errors;
  std::optional<plan::Plan> plan;
};

Checked check(const Job &job, const std::string &gpu) {
  SourceManager sources;
  DiagEngine diags(sources);
  config::LoadOptions options;
  options.sets = {"cluster.gpu=" + gpu};
  BufferId buffer = sources.addBuffer("r.recipe", job.text());
  std::optional<config::Config> config = config::loadConfig(sources, diags, buffer, options);
  Checked checked;
  for (const Diagnostic &message : diags.pending())
    if (message.severity == Severity::Error)
      checked.errors.insert(message.id);
  if (!config || !lower::findMissing(*config).empty())
    return checked;
  checked.plan = lower::lower(*config, sources);
  passes::Notes notes;
  passes::runPipeline(*checked.plan, {}, notes);
  return checked;
}

using plan::OpKind;

std::optional<kernels::cuda::AttentionOp> attentionOf(OpKind kind) {
  static const std::map<OpKind, kernels::cuda::AttentionOp> kOps = {
      {OpKind::Attention, {}},
      {OpKind::AttentionBwd, {.backward = true}},
      {OpKind::AttentionQkv, {.packed = true}},
      {OpKind::AttentionQkvBwd, {.backward = true, .packed = true}},
      {OpKind::AttentionPart, {.hasSlices = true}},
      {OpKind::AttentionPartBwd, {.backward = true, .hasSlices = true}}};
  auto of = kOps.find(kind);
  return of != kOps.end() ? std::optional(of->second) : std::nullopt;
}

/// The path that the backend takes on a GPU with these traits.
KernelPath backendPathOf(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &op,
                         const GpuTraits &gpu) {
  kernels::Call call = exec::shapeOf(plan, segment, op);
  if (auto attention = attentionOf(op.kind))
    return kernelPath(kernels::cuda::attentionKindOf(call, *attention), gpu);
  return predict::isGrouped(op) ? kernelPath(kernels::cuda::groupedKindOf(call), gpu)
                                : KernelPath::None;
}

/// Why the CUDA kernel of an op refuses its call, beyond what the host's kernel refuses.
const char *cudaRefusalOf(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &op,
                          const GpuTraits &gpu) {
  kernels::Call call = exec::shapeOf(plan, segment, op);
  auto isOneOf = [&](std::initializer_list<OpKind> kinds) {
    return std::ranges::find(kinds, op.kind) != kinds.end();
  };
  if (auto attention = attentionOf(op.kind))
    return kernels::cuda::attentionRefusal(call, *attention, gpu);
  if (isOneOf({OpKind::RmsNormBwd, OpKind::LayerNormBwd}))
    return cudaRefusal(CudaLimit::NormColumns, call.in[1].cols());
  if (isOneOf({OpKind::LatentHeads, OpKind::LatentHeadsBwd}))
    return cudaRefusal(CudaLimit::LatentRotatedChannels, call.attrs.rotary_dim);
  if (isOneOf({OpKind::Rope, OpKind::SplitQkvRope, OpKind::MergeQkvRope}))
    return cudaRefusal(CudaLimit::RotatedChannels, call.attrs.rotary_dim);
  if (op.kind == OpKind::SplitQkvNormRope)
    return cudaRefusal(CudaLimit::NormedHeadChannels, call.out[0].cols());
  if (op.kind == OpKind::MergeQkvNormRope)
    return cudaRefusal(CudaLimit::NormedHeadChannels, call.in[0].cols());
  return nullptr;
}

void forEachOp(const plan::Plan &plan, auto visit) {
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      for (const plan::Op &op : segment.ops)
        visit(segment, op);
}

std::set<std::string> refusalsOf(const plan::Plan &plan, const GpuTraits &gpu) {
  std::set<std::string> refusals;
  forEachOp(plan, [&](const plan::Segment &segment, const plan::Op &op) {
    if (const char *why = cudaRefusalOf(plan, segment, op, gpu))
      refusals.insert(why);
  });
  return refusals;
}

std::vector<Job> jobs() {
  std::vector<Job> all;
  for (const char *precision : {"", "bf16_mixed", "fp16_mixed"}) {
    for (bool isLatent : {true, false})
      for (double dropout : {0.0, 0.1})
        for (bool hasDocuments : {false, true})
          for (const char *context : {"", "p2p", "all_gather", "a2a"})
            all.push_back({.precision = precision,
                           .isLatent = isLatent,
                           .dropout = dropout,
                           .hasDocuments = hasDocuments,
                           .context = context});
    all.push_back({.precision = precision, .isLatent = true, .values = 192, .dropout = 0.1});
    all.push_back({.precision = precision, .hasDocuments = true, .channels = 64});
    for (const char *more : {"attn_logit_softcapping = 30.0", "attention_chunk_size = 8"})
      all.push_back({.precision = precision, .more = more});
    for (int64_t channels : {256, 288})
      for (const char *more : {"", "qk_layernorm = true"})
        all.push_back({.precision = precision, .channels = channels, .more = more});
    for (int64_t hidden : {16'384, 16'640})
      all.push_back({.precision = precision, .hidden = hidden, .more = "ffn_hidden_size = 64"});
    for (int64_t head : {192, 224})
      all.push_back({.precision = precision,
                     .isLatent = true,
                     .values = head + 64,
                     .more = fmt::format("qk_head_dim = {}", head)});
  }
  return all;
}

/// The traits of a device's GPUs.
GpuTraits traitsOf(const std::string &gpu) {
  return predict::traitsOf(predict::device(*predict::findDevice(gpu)));
}

class CudaKernelsOf : public testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(Devices, CudaKernelsOf, testing::Values("h100", "l40s"));

TEST_P(CudaKernelsOf, RefuseWhatTheCompilerRefuses) {
  const std::set<std::string> rules = {"cuda-kernel-limit"};
  const GpuTraits traits = traitsOf(GetParam());
  size_t refused = 0, compared = 0;
  for (const Job &job : jobs()) {
    SCOPED_TRACE(job.text());
    Checked host = check(job, "host"), gpu = check(job, GetParam());
    if (!host.errors.empty())
      continue; // there is no such job
    ASSERT_TRUE(host.plan);
    std::set<std::string> others = gpu.errors;
    for (const std::string &rule : rules)
      others.erase(rule);
    EXPECT_TRUE(others.empty()) << *others.begin();
    std::set<std::string> kernels = refusalsOf(*host.plan, traits);
    EXPECT_EQ(gpu.errors.empty(), kernels.empty())
        << (kernels.empty() ? "the kernels have it" : *kernels.begin());
    ++compared;
    refused += kernels.empty() ? 0 : 1;
    if (gpu.plan) { // the passes of the GPU's plan may choose other ops than those of the host's
      EXPECT_TRUE(refusalsOf(*gpu.plan, traits).empty());
    }
  }
  EXPECT_GT(compared, 100u);
  EXPECT_GT(refused, 10u);
}

/// The compiler predicts and warns by the kernels that the backend runs.
TEST(CudaKernels, TakeThePathsThatTheCompilerSays) {
  const std::string experts =
      "num_moe_experts = 4  moe_router_topk = 2  moe_ffn_hidden_size = 64  moe_grouped_gemm = true";
  std::vector<Job> all = jobs();
  for (const char *precision : {"", "bf16_mixed", "bf16_with_fp8_current_scaling_mixed",
                                "bf16_with_fp8_subchannel_scaling_mixed"})
    for (const char *more : {"", "add_bias_linear = true"})
      all.push_back({.precision = precision, .more = more, .experts = experts});
  all.push_back({.precision = "bf16_mixed", .hasDocuments = true, .channels = 64});
  std::map<KernelPath, size_t> taken;
  for (const char *gpu : {"a100", "h100", "b200", "l40s"})
    for (const Job &job : all) {
      SCOPED_TRACE(gpu + job.text());
      Checked checked = check(job, gpu);
      if (!checked.errors.empty() || !checked.plan)
        continue;
      const predict::Device &device = predict::device(*predict::findDevice(gpu));
      forEachOp(*checked.plan, [&](const plan::Segment &segment, const plan::Op &op) {
        KernelPath path = predict::pathOf(device, segment, op);
        EXPECT_EQ(path, backendPathOf(*checked.plan, segment, op, traitsOf(gpu)))
            << plan::opInfo(op).name;
        EXPECT_EQ(predict::isGrouped(op) || attentionOf(op.kind), path != KernelPath::None);
        ++taken[path];
      });
    }
  for (KernelPath path :
       {KernelPath::AttentionCudnn, KernelPath::AttentionWgmma, KernelPath::AttentionMma,
        KernelPath::AttentionPlain, KernelPath::GroupedWgmma, KernelPath::GroupedMma,
        KernelPath::GroupedPlain})
    EXPECT_GT(taken[path], 0u) << wordOf(info(path).group) << " by " << info(path).text;
}

} // namespace
} // namespace shardc
