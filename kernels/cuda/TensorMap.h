// Tensor maps for the Tensor Memory Accelerator (TMA) of Hopper, which copies tiles of tensors.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

/// A tensor with three dimensions, innermost first, and the tile of a copy. A row of a tile has up
/// to 128 bytes; in shared memory rows are 128 bytes apart, and their 16-byte parts are swizzled by
/// row. Elements outside of the tensor are read as zeros and not written.
struct TiledTensor {
  const void *data;
  DType dtype; ///< f32, bf16, f16, or one of 8 bits
  int64_t extents[3];
  uint32_t tile[2]; ///< of the two inner dimensions
};

/// Encodes the tensor map. Returns false if the driver refuses or lacks the function.
bool encodeTensorMap(const TiledTensor &tensor, CUtensorMap &map);

} // namespace shardc::kernels::cuda
