// The conditions of the rows of KernelPaths.def. The first reason found is the one in messages.
#include "runtime/base/KernelPath.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <span>
#include <type_traits>

#include <fmt/format.h>

#include "runtime/base/CudaLimits.h"
#include "runtime/base/Reports.h"

namespace shardc {
namespace {

constexpr int64_t kAlignedNumbers = 8; ///< 16 bytes of bf16 or f16

/// Versions of the libraries with which packages are built.
constexpr int kPackagedCudnn = 91900, kPackagedCublasLt = 130100;

bool is16Bit(DType type) { return type == DType::BF16 || type == DType::F16; }

/// The widest heads whose gradients cuDNN computes: nvidia-cudnn-frontend 1.32.0,
/// scaled_dot_product_flash_attention.h, and the support matrix of cuDNN 9.18.
const char *cudnnRefusalOfHeads(const AttentionKind &kind, const GpuTraits &gpu) {
  constexpr int kWithWideGradients = 92300; // of 256 channels on 10.x
  const int64_t wider = std::max(kind.channels, kind.values);
  if (wider > 256)
    return "more than 256 channels";
  const bool isLatent = kind.channels == 192 && kind.values == 128;
  const int major = gpu.capability / 10;
  if (!kind.isGradient || wider <= 128 || major == 9 ||
      (major == 10 && (isLatent || gpu.cudnn >= kWithWideGradients)))
    return nullptr;
  return "gradients of more than 128 channels";
}

/// Each condition is something that cuDNN's fused attention, as the backend builds it, does not
/// compute.
const char *cudnnRefusal(const AttentionKind &kind, const GpuTraits &gpu) {
  if (!is16Bit(kind.type))
    return "neither bf16 nor fp16";
  if (kind.drops)
    return "dropout, whose masks are the plan's";
  if (kind.hasDocuments)
    return "documents";
  if (kind.hasWindow && kind.hasSlices) // the distance of positions differs from that of rows
    return "a window in slices of sequences";
  if (kind.hasChunks)
    return "chunks";
  if (kind.isCapped) // our graphs do not apply tanh to scores
    return "a soft cap";
  if (kind.hasUnknownOrder)
    return "positions that only operands have";
  // With several groups, the queries in a row of packed heads are not evenly spaced.
  bool isEven = kind.groups == 1 || kind.groups == kind.heads;
  if (kind.packed && (!isEven || kind.channels % kAlignedNumbers != 0))
    return "rows in which heads are not evenly spaced";
  return cudnnRefusalOfHeads(kind, gpu);
}

/// Tiles of queries need one range of keys, whose ends do not decrease from query to query.
const char *refusalOfMask(const AttentionKind &kind) {
  if (!kind.isCausal && (kind.hasDocuments || kind.hasSlices))
    return "documents or slices without a causal mask";
  return kind.hasSlices && (!kind.hasAllKeys || kind.hasUnknownOrder)
             ? "slices without the keys of whole sequences"
             : nullptr;
}

const char *wgmmaRefusal(const AttentionKind &kind, const GpuTraits &) {
  if (!is16Bit(kind.type))
    return "neither bf16 nor fp16";
  if (kind.drops)
    return "dropout";
  if (const char *why = refusalOfMask(kind))
    return why;
  if (kind.channels != kind.values || (kind.channels != 64 && kind.channels != 128))
    return "heads of other than 64 or 128 channels";
  return nullptr;
}

const char *mmaRefusal(const AttentionKind &kind, const GpuTraits &) {
  if (!is16Bit(kind.type))
    return "neither bf16 nor fp16";
  if (const char *why = refusalOfMask(kind))
    return why;
  if (std::max(kind.channels, kind.values) > 256)
    return "more than 256 channels";
  return kind.channels % kAlignedNumbers != 0 || kind.values % kAlignedNumbers != 0
             ? "heads that are not a multiple of 8 channels"
             : nullptr;
}

/// Tiles of 32 rows in fp32, one number wider than the head: of q and k, and of v and, for
/// gradients, of dO (plain_attention.cu).
const char *plainRefusal(const AttentionKind &kind, const GpuTraits &gpu) {
  if (const char *why = cudaRefusal(CudaLimit::HeadChannels, std::max(kind.channels, kind.values)))
    return why;
  int64_t columns = 2 * (kind.channels + 1) + (kind.isGradient ? 2 : 1) * (kind.values + 1);
  return 32 * 4 * columns > int64_t{gpu.sharedKiB} << 10
             ? "heads that do not fit into the shared memory of a block"
             : nullptr;
}

const char *wgmmaRefusal(const GroupedKind &kind, const GpuTraits &) {
  const bool is8Bit = kind.type == DType::F8E4M3;
  if (!is8Bit && !is16Bit(kind.type))
    return "fp32";
  if (!kind.hasOneType)
    return "operands or results of several types";
  if (kind.hasSmallBlocks)
    return "scales of 32 numbers";
  if (kind.m % kAlignedNumbers != 0 || (!is8Bit && kind.k % kAlignedNumbers != 0))
    return "rows that are not a multiple of 8 numbers";
  return kind.groups > kGroupsOfTilesMax ? "more than 1024 groups" : nullptr;
}

const char *mmaRefusal(const GroupedKind &kind, const GpuTraits &) {
  if (!is16Bit(kind.type))
    return "neither bf16 nor fp16";
  if (!kind.hasOneType)
    return "operands or results of several types";
  return kind.m % kAlignedNumbers != 0 || kind.k % kAlignedNumbers != 0
             ? "rows that are not a multiple of 8 numbers"
             : nullptr;
}

const char *mmaRefusal(const DeltaKind &kind, const GpuTraits &) {
  if (kind.type != DType::BF16)
    return "not bf16";
  if (kind.keys != 64 && kind.keys != 128)
    return "keys of other than 64 or 128 channels";
  if (kind.isScan)
    return kind.values % 8 != 0 ? "values that are not a multiple of 8 channels" : nullptr;
  return kind.values % 64 != 0 ? "values that are not a multiple of 64 channels" : nullptr;
}

const char *wgmmaRefusal(const SymmetricKind &kind, const GpuTraits &) {
  if (kind.side % kAlignedNumbers != 0 || kind.depth % kAlignedNumbers != 0)
    return "rows that are not a multiple of 8 numbers";
  return kind.side > kSymmetricSideMax ? "matrices of more than 16384 rows" : nullptr;
}

const char *noRefusal(const auto &, const GpuTraits &) { return nullptr; }

constexpr KernelPathInfo kPaths[] = {
    {KernelPath::None, PathGroup::Launch, "none", 0, 0, 0, 0, "no kernel"},
#define PATH(enumerator, group, word, from, to, code, shared, serves, text)                        \
  {KernelPath::enumerator, PathGroup::group, word, from, to, code, shared, text},
#include "runtime/base/KernelPaths.def"
};
static_assert(std::size(kPaths) == kKernelPathCount);
constexpr std::span<const KernelPathInfo> kChoices = std::span(kPaths).subspan(1); ///< without None

/// Why a GPU does not offer a path; null if it does.
const char *refusalOf(KernelPath path, const GpuTraits &gpu) {
  const KernelPathInfo &row = info(path);
  if (gpu.capability < row.from || gpu.capability > row.to)
    return "another architecture";
  if (gpu.code[static_cast<size_t>(path)] < row.code)
    return "no machine code for this architecture";
  if (gpu.sharedKiB < row.sharedKiB)
    return "more shared memory than a block has";
  return row.path == KernelPath::AttentionCudnn && gpu.cudnn == 0 ? "not in this build, or not used"
                                                                  : nullptr;
}

template <typename Kind>
const char *refusalOf(KernelPath path, const Kind &kind, const GpuTraits &gpu) {
  if (const char *why = refusalOf(path, gpu))
    return why;
#define PATH(enumerator, group, word, from, to, code, shared, serves, text)                        \
  if constexpr (std::is_same_v<Kind, group##Kind>)                                                 \
    if (path == KernelPath::enumerator)                                                            \
      return serves(kind, gpu);
#include "runtime/base/KernelPaths.def"
  return "another op";
}

template <typename Kind> KernelPath firstOf(const Kind &kind, const GpuTraits &gpu) {
  KernelPath forced = gpu.forced[static_cast<size_t>(Kind::kGroup)];
  if (forced != KernelPath::None && !refusalOf(forced, kind, gpu))
    return forced;
  for (const KernelPathInfo &row : kChoices)
    if (row.group == Kind::kGroup && !refusalOf(row.path, kind, gpu))
      return row.path;
  return KernelPath::None;
}

} // namespace

const KernelPathInfo &info(KernelPath path) { return kPaths[static_cast<size_t>(path)]; }

std::string_view wordOf(PathGroup group) {
  static constexpr std::string_view kWords[] = {"attention", "grouped", "symmetric", "launch",
                                                "delta"};
  static_assert(std::size(kWords) == kPathGroupCount);
  return kWords[static_cast<size_t>(group)];
}

/// CUDA C++ Programming Guide 13.0, table of technical specifications per compute capability.
int sharedKiBOf(int capability) {
  switch (capability) {
  case 80:
  case 87:
    return 163;
  case 86:
  case 89:
    return 99;
  default:
    return capability >= 90 && capability < 120 ? 227 : 99;
  }
}

GpuTraits packagedTraits(int capability) {
  GpuTraits gpu;
  gpu.capability = capability;
  gpu.sharedKiB = sharedKiBOf(capability);
  gpu.cudnn = kPackagedCudnn, gpu.cublasLt = kPackagedCublasLt;
  gpu.code.fill(INT_MAX);
  return gpu;
}

std::string_view forcePaths(std::string_view text, GpuTraits &gpu) {
  while (!text.empty()) {
    std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    auto row = std::ranges::find_if(kChoices, [&](const KernelPathInfo &each) {
      return part == fmt::format("{}:{}", wordOf(each.group), each.word);
    });
    if (row == kChoices.end())
      return part;
    gpu.forced[static_cast<size_t>(row->group)] = row->path;
  }
  return {};
}

Status checkKernelPaths() {
  GpuTraits ignored;
  const char *text = std::getenv("SHARDC_KERNEL_PATH");
  std::string_view unknown = forcePaths(text ? text : "", ignored);
  return unknown.empty() ? Status::ok() : makeStatus(report::UnknownKernelPath, unknown);
}

std::string offeredText(const GpuTraits &gpu) {
  std::string text = fmt::format("{}.{}", gpu.capability / 10, gpu.capability % 10);
  for (size_t g = 0; g < kPathGroupCount; ++g) {
    text += fmt::format("{} {}", g == 0 ? ":" : ",", wordOf(static_cast<PathGroup>(g)));
    if (gpu.forced[g] != KernelPath::None)
      text += fmt::format(" {} (forced)", info(gpu.forced[g]).word);
    for (const KernelPathInfo &row : kChoices)
      if (static_cast<size_t>(row.group) == g && !refusalOf(row.path, gpu))
        text += fmt::format(" {}", row.word);
  }
  return text + (gpu.cudnn > 0 ? fmt::format("; cuDNN {}", gpu.cudnn) : "");
}

KernelPath kernelPath(const AttentionKind &kind, const GpuTraits &gpu) {
  return firstOf(kind, gpu);
}
KernelPath kernelPath(const GroupedKind &kind, const GpuTraits &gpu) { return firstOf(kind, gpu); }
KernelPath kernelPath(const SymmetricKind &kind, const GpuTraits &gpu) {
  return firstOf(kind, gpu);
}
KernelPath kernelPath(const LaunchKind &kind, const GpuTraits &gpu) { return firstOf(kind, gpu); }
KernelPath kernelPath(const DeltaKind &kind, const GpuTraits &gpu) { return firstOf(kind, gpu); }

const char *pathRefusal(KernelPath path, const AttentionKind &kind, const GpuTraits &gpu) {
  return refusalOf(path, kind, gpu);
}
const char *pathRefusal(KernelPath path, const GroupedKind &kind, const GpuTraits &gpu) {
  return refusalOf(path, kind, gpu);
}
const char *pathRefusal(KernelPath path, const DeltaKind &kind, const GpuTraits &gpu) {
  return refusalOf(path, kind, gpu);
}

const char *attentionRefusal(const AttentionKind &kind, const GpuTraits &gpu) {
  return kernelPath(kind, gpu) == KernelPath::None
             ? refusalOf(KernelPath::AttentionPlain, kind, gpu)
             : nullptr;
}

} // namespace shardc
