// Ops that compute a value and quantise it in blocks of 1 by 128, also transposed: the gradients of
// gated activations together with the recomputed activations, and rmsnorm recomputed from its
// statistic. Bitwise equal to the sequence of CUDA kernels of the ops that they replace. Mapping:
// quantize_block_tiles.cuh. Limited by memory: operands are read once, 8-bit numbers are written
// once per orientation.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/quantize_block_tiles.cuh"

namespace shardc::kernels::cuda {
namespace {

using blocktiles::BlockForm;
using blocktiles::launchBlockTiles;

/// The target whose numbers and scales begin `numbers` and `scales` elements later.
BlockTarget behind(BlockTarget to, int64_t numbers, int64_t scales) {
  to.q += numbers;
  to.scales = static_cast<float *>(to.scales) + scales;
  return to;
}

/// One kernel quantizes three matrices: the gradients of gate and up, which are halves of the same
/// rows, plain and transposed, and the activation, only transposed.
template <typename Source> void runGatedBwd(const Call &call) {
  const Tensor &dy = call.in[0], &x = call.in[1];
  int64_t rows = dy.rows(), cols = dy.cols();
  BlockTarget q = blockTargetOf(call, 0), t = blockTargetOf(call, 2);
  BlockForm gate = {q, 2 * cols, t, 2 * cols};
  BlockForm up = {behind(q, cols, cols / kBlockCols * rows), 2 * cols, behind(t, cols * rows, cols),
                  2 * cols};
  BlockForm y = {{}, 0, blockTargetOf(call, 4), cols};
  launchBlockTiles<true>(call, modeOfQuantised({&dy, &x}, call.out[0], cols),
                         sourceOf<Source>(call), {{gate, up, y}}, rows, cols);
}

void runGeGluBwd(const Call &call) {
  byTanh<GeGluBwdSource>(call, [&]<typename Source>() { runGatedBwd<Source>(call); });
}

void runRmsNormAgain(const Call &call) {
  const Tensor &x = call.in[0], &w = call.in[1];
  launchBlockTiles<false>(call, modeOf({&x, &w}, x.cols()), normAgainOf<false>(call),
                          {{{{}, 0, blockTargetOf(call, 0), x.cols()}}}, x.rows(), x.cols());
}

template <const Kernel *kOracle> const char *acceptsGatedBwd(const Call &call) {
  if (const char *reason = acceptsTiles<kOracle>(call))
    return reason;
  return call.in[0].cols() % kBlockCols != 0 ? "rows of dy are not whole blocks of 128" : nullptr;
}

} // namespace

SHARDC_KERNEL(SwiGluBwdQuantizeBlocks, acceptsGatedBwd, runGatedBwd<SwiGluBwdSource>);
SHARDC_KERNEL(GeGluBwdQuantizeBlocks, acceptsGatedBwd, runGeGluBwd);
SHARDC_KERNEL(RmsNormAgainQuantizeBlocks, acceptsTiles, runRmsNormAgain);

} // namespace shardc::kernels::cuda
