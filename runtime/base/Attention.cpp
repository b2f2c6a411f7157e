#include "runtime/base/Attention.h"

namespace shardc {
namespace {

constexpr int64_t kAlignedChannels = 8; ///< 16 bytes of bf16 or f16

} // namespace

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
  // With several groups, the queries of a row do not have equal distances.
  bool isEven = kind.groups == 1 || kind.groups == kind.heads;
  if (kind.packed && (!isEven || kind.channels % kAlignedChannels != 0))
    return CudnnBar::Rows;
  return CudnnBar::None;
}

} // namespace shardc
