// Ops that quantise where a value is made: swiglu, its gradient with swiglu again, and norms
// again from their statistics; what the CUDA kernels of the ops that they are made of do one after
// the other, to the bit. (Norms themselves are in norm.cu.) Mapping: tiles as of quantize
// (quantize_tiles.cuh), whose numbers come from the formula instead of memory. Limited by memory:
// operands read once, numbers of 8 bits written once in each form.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/quantize_sources.cuh"
#include "kernels/cuda/quantize_tiles.cuh"

namespace shardc::kernels::cuda {
namespace {

/// With what a target is made of: that of an op which looks at magnitudes, or of one that does not.
template <Target (*kTargetOf)(const Call &, int, int), int kCopy> void runSwiGlu(const Call &call) {
  const Tensor &x = call.in[0];
  int64_t cols = x.cols() / 2;
  launchTiles(call, modeOfQuantised({&x}, call.out[0], cols), SwiGluSource{dataOf(x), cols},
              {{{kTargetOf(call, 1, kCopy)}}}, x.rows(), cols);
}

void runSwiGluAmax(const Call &call) {
  const Tensor &x = call.in[0];
  int64_t cols = x.cols() / 2;
  auto *largest = clearLargest(call, 0);
  launchLargest(call, modeOf({&x}, cols), SwiGluSource{dataOf(x), cols}, {{largest}}, x.rows(),
                cols);
}

/// Results of dx by this target, and those of y from `yt` on.
void runSwiGluBwd(const Call &call, const Target &gate, int yt) {
  const Tensor &dy = call.in[0], &x = call.in[1];
  int64_t rows = dy.rows(), cols = dy.cols();
  Target up = gate, y = gate;
  up.q += cols;
  up.t += cols * rows;
  int64_t behind = call.attrs.y_slot - call.attrs.slot;
  y.q = nullptr;
  y.t = static_cast<uint8_t *>(call.out[yt].data);
  y.scale = static_cast<float *>(call.out[yt + 1].data);
  y.amax += behind;
  if (y.seen)
    y.seen += behind;
  y.isE5M2 = call.out[yt].dtype == DType::F8E5M2;
  launchTiles(call, modeOfQuantised({&dy, &x}, call.out[0], cols), swiGluBwdOf(call),
              {{{gate, 2 * cols}, {up, 2 * cols}, {y}}}, rows, cols);
}

void runSwiGluBwdDelayed(const Call &call) { runSwiGluBwd(call, targetOfDelayed(call, 2, 3), 4); }
void runSwiGluBwdQuantize(const Call &call) { runSwiGluBwd(call, targetOf(call, 2, 2), 3); }

void runSwiGluBwdAmax(const Call &call) {
  const Tensor &dy = call.in[0], &x = call.in[1];
  unsigned *largest = clearLargest(call, 0);
  launchLargest(call, modeOf({&dy, &x}, dy.cols()), swiGluBwdOf(call),
                {{largest, largest, largest + 1}}, dy.rows(), dy.cols());
}

template <Target (*kTargetOf)(const Call &, int, int), int kCopy>
void runRmsNormAgain(const Call &call) {
  const Tensor &x = call.in[0], &w = call.in[1];
  launchTiles(call, modeOfQuantised({&x, &w}, call.out[0], x.cols()), normAgainOf<false>(call),
              {{{kTargetOf(call, 3, kCopy)}}}, x.rows(), x.cols());
}

void runLayerNormAgain(const Call &call) {
  const Tensor &x = call.in[0], &w = call.in[1], &bias = call.in[2];
  launchTiles(call, modeOfQuantised({&x, &w, &bias}, call.out[0], x.cols()),
              normAgainOf<true>(call), {{{targetOf(call, 5, 2)}}}, x.rows(), x.cols());
}

} // namespace

const Kernel kSwiGluQuantizeDelayed = {"swiglu_quantize_delayed_cuda",
                                       runSwiGlu<targetOfDelayed, 3>,
                                       acceptsTiles<&host::kSwiGluQuantizeDelayed>};
const Kernel kSwiGluAmax = {"swiglu_amax_cuda", runSwiGluAmax, acceptsTiles<&host::kSwiGluAmax>};
const Kernel kSwiGluQuantize = {"swiglu_quantize_cuda", runSwiGlu<targetOf, 2>,
                                acceptsTiles<&host::kSwiGluQuantize>};
const Kernel kSwiGluBwdQuantizeDelayed = {"swiglu_bwd_quantize_delayed_cuda", runSwiGluBwdDelayed,
                                          acceptsTiles<&host::kSwiGluBwdQuantizeDelayed>};
const Kernel kSwiGluBwdAmax = {"swiglu_bwd_amax_cuda", runSwiGluBwdAmax,
                               acceptsTiles<&host::kSwiGluBwdAmax>};
const Kernel kSwiGluBwdQuantize = {"swiglu_bwd_quantize_cuda", runSwiGluBwdQuantize,
                                   acceptsTiles<&host::kSwiGluBwdQuantize>};
const Kernel kRmsNormAgainQuantizeDelayed = {"rmsnorm_again_quantize_delayed_cuda",
                                             runRmsNormAgain<targetOfDelayed, 3>,
                                             acceptsTiles<&host::kRmsNormAgainQuantizeDelayed>};
const Kernel kRmsNormAgainQuantize = {"rmsnorm_again_quantize_cuda", runRmsNormAgain<targetOf, 2>,
                                      acceptsTiles<&host::kRmsNormAgainQuantize>};
const Kernel kLayerNormAgainQuantize = {"layernorm_again_quantize_cuda", runLayerNormAgain,
                                        acceptsTiles<&host::kLayerNormAgainQuantize>};

} // namespace shardc::kernels::cuda
