// Tensor maps: how the copy engine of Hopper sees a tensor whose tiles it moves.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

/// A tensor of three dimensions, the innermost first, and the tile that a copy moves. A tile's rows
/// have up to 128 bytes, in shared memory 128 apart, their 16-byte parts swizzled by the row.
/// Elements of a tile that lie outside of the tensor are read as zeros and not written.
struct TiledTensor {
  const void *data;
  DType dtype; ///< f32, bf16, f16, or one of 8 bits
  int64_t extents[3];
  uint32_t tile[2]; ///< of the two inner dimensions
};

/// Describes it to the copy engine. Returns false if the driver refuses, or has no such function.
bool encodeTensorMap(const TiledTensor &tensor, CUtensorMap &map);

} // namespace shardc::kernels::cuda
