// Lists, in order, what keeps a layer from cuDNN's kernels. The first reason found is the one in
// messages.
#include "runtime/base/Attention.h"

#include <algorithm>

#include "runtime/base/CudaLimits.h"

namespace shardc {
namespace {

constexpr int64_t kAlignedChannels = 8; ///< 16 bytes of bf16 or f16

} // namespace

/// Each condition is something that cuDNN's fused attention, as the backend builds it, does not
/// compute.
CudnnBar cudnnBarOf(const AttentionKind &kind) {
  if (kind.type != DType::BF16 && kind.type != DType::F16)
    return CudnnBar::Type;
  if (kind.drops)
    return CudnnBar::Dropout;
  if (kind.hasDocuments)
    return CudnnBar::Documents;
  if (kind.hasWindow && kind.hasSlices)
    return CudnnBar::SlidingWindow;
  if (kind.hasChunks)
    return CudnnBar::Chunks;
  if (kind.isCapped)
    return CudnnBar::SoftCap;
  if (kind.hasUnknownOrder)
    return CudnnBar::Positions;
  // With several groups, the queries in a row of packed heads are not evenly spaced.
  bool isEven = kind.groups == 1 || kind.groups == kind.heads;
  if (kind.packed && (!isEven || kind.channels % kAlignedChannels != 0))
    return CudnnBar::Rows;
  return CudnnBar::None;
}

bool hasTileKernels(const AttentionKind &kind) {
  return (kind.type == DType::BF16 || kind.type == DType::F16) && !kind.drops &&
         (kind.isCausal || (!kind.hasDocuments && !kind.hasSlices)) &&
         (!kind.hasSlices || (kind.hasAllKeys && !kind.hasUnknownOrder)) &&
         kind.channels == kind.values && (kind.channels == 64 || kind.channels == 128);
}

AttentionKernels attentionKernels(const AttentionKind &kind, bool isHopper) {
  if (cudnnBarOf(kind) == CudnnBar::None)
    return AttentionKernels::Cudnn;
  return isHopper && hasTileKernels(kind) ? AttentionKernels::Tiles : AttentionKernels::Plain;
}

const char *attentionRefusal(const AttentionKind &kind) {
  return cudaRefusal(CudaLimit::HeadChannels, std::max(kind.channels, kind.values));
}

} // namespace shardc
