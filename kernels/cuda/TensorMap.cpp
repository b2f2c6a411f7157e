// Encodes a tensor of three dimensions, with the 128-byte swizzle that the tensor cores expect.
// Parts of a tile outside of the tensor are read as 0. The function that encodes belongs to the
// driver's library, so it is looked up at run time.
#include "kernels/cuda/TensorMap.h"

#include <cuda_runtime.h>

#include "kernels/cuda/DriverFunction.h"

namespace shardc::kernels::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

CUtensorMapDataType typeOf(DType dtype) {
  return dtypeBytes(dtype) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
         : dtype == DType::BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
         : dtype == DType::F16  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

} // namespace

bool encodeTensorMap(const TiledTensor &tensor, CUtensorMap &map) {
  static const auto encode = reinterpret_cast<Encode>(findDriverFunction("cuTensorMapEncodeTiled"));
  if (!encode)
    return false;
  cuuint64_t extents[3], strides[2];
  for (int d = 0; d < 3; ++d)
    extents[d] = static_cast<cuuint64_t>(tensor.extents[d]);
  strides[0] = extents[0] * static_cast<cuuint64_t>(dtypeBytes(tensor.dtype));
  strides[1] = strides[0] * extents[1];
  const cuuint32_t tile[3] = {tensor.tile[0], tensor.tile[1], 1}, steps[3] = {1, 1, 1};
  return encode(&map, typeOf(tensor.dtype), 3, const_cast<void *>(tensor.data), extents, strides,
                tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

} // namespace shardc::kernels::cuda
