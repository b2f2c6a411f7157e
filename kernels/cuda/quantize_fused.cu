// Ops that compute a value and quantise it: gated activations, their gradients together with the
// recomputed activations, squared relu and its gradient, and norms recomputed from their
// statistics. (norm.cu has the norms themselves.) Bitwise equal to the sequence of CUDA kernels of
// the ops that they replace. Mapping: tiles as in quantize (quantize_tiles.cuh), with computed
// instead of loaded elements. Limited by memory: operands are read once, 8-bit numbers are written
// once per orientation.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/quantize_sources.cuh"
#include "kernels/cuda/quantize_tiles.cuh"

namespace shardc::kernels::cuda {
namespace {

/// The function that makes a kernel's target: targetOf, or targetOfDelayed for ops that record
/// amaxes.
using TargetOf = Target (*)(const Call &, int, int);

/// Enqueues an op that quantises one value, computed from x or from dy and x.
template <typename Source, TargetOf kTargetOf, int kIn, int kCopy> void runOne(const Call &call) {
  Source source = sourceOf<Source>(call);
  Mode mode = kIn == 1 ? modeOfQuantised({&call.in[0]}, call.out[0], source.cols)
                       : modeOfQuantised({&call.in[0], &call.in[1]}, call.out[0], source.cols);
  launchTiles(call, mode, source, {{{kTargetOf(call, kIn, kCopy)}}}, call.in[0].rows(),
              source.cols);
}

template <typename Source, int kIn> void runOneAmax(const Call &call) {
  Source source = sourceOf<Source>(call);
  auto *largest = clearLargest(call, 0);
  Mode mode = kIn == 1 ? modeOf({&call.in[0]}, source.cols)
                       : modeOf({&call.in[0], &call.in[1]}, source.cols);
  launchLargest(call, mode, source, {{largest}}, call.in[0].rows(), source.cols);
}

template <TargetOf kTargetOf, int kCopy> void runGeGlu(const Call &call) {
  byTanh<GeGluSource>(call, [&]<typename Source>() { runOne<Source, kTargetOf, 1, kCopy>(call); });
}

void runGeGluAmax(const Call &call) {
  byTanh<GeGluSource>(call, [&]<typename Source>() { runOneAmax<Source, 1>(call); });
}

/// Quantises both halves of dx to `gate`'s target, and the recomputed y to the results from `yt`
/// on.
template <typename Source> void runGatedBwd(const Call &call, const Target &gate, int yt) {
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
  launchTiles(call, modeOfQuantised({&dy, &x}, call.out[0], cols), sourceOf<Source>(call),
              {{{gate, 2 * cols}, {up, 2 * cols}, {y}}}, rows, cols);
}

template <typename Source> void runGatedBwdDelayed(const Call &call) {
  runGatedBwd<Source>(call, targetOfDelayed(call, 2, 3), 4);
}
template <typename Source> void runGatedBwdQuantize(const Call &call) {
  runGatedBwd<Source>(call, targetOf(call, 2, 2), 3);
}

template <typename Source> void runGatedBwdAmax(const Call &call) {
  const Tensor &dy = call.in[0], &x = call.in[1];
  unsigned *largest = clearLargest(call, 0);
  launchLargest(call, modeOf({&dy, &x}, dy.cols()), sourceOf<Source>(call),
                {{largest, largest, largest + 1}}, dy.rows(), dy.cols());
}

void runGeGluBwdDelayed(const Call &call) {
  byTanh<GeGluBwdSource>(call, [&]<typename Source>() { runGatedBwdDelayed<Source>(call); });
}
void runGeGluBwdQuantize(const Call &call) {
  byTanh<GeGluBwdSource>(call, [&]<typename Source>() { runGatedBwdQuantize<Source>(call); });
}
void runGeGluBwdAmax(const Call &call) {
  byTanh<GeGluBwdSource>(call, [&]<typename Source>() { runGatedBwdAmax<Source>(call); });
}

template <TargetOf kTargetOf, int kCopy> void runRmsNormAgain(const Call &call) {
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
                                       runOne<SwiGluSource, targetOfDelayed, 1, 3>,
                                       acceptsTiles<&host::kSwiGluQuantizeDelayed>};
const Kernel kSwiGluAmax = {"swiglu_amax_cuda", runOneAmax<SwiGluSource, 1>,
                            acceptsTiles<&host::kSwiGluAmax>};
const Kernel kSwiGluQuantize = {"swiglu_quantize_cuda", runOne<SwiGluSource, targetOf, 1, 2>,
                                acceptsTiles<&host::kSwiGluQuantize>};
const Kernel kSwiGluBwdQuantizeDelayed = {"swiglu_bwd_quantize_delayed_cuda",
                                          runGatedBwdDelayed<SwiGluBwdSource>,
                                          acceptsTiles<&host::kSwiGluBwdQuantizeDelayed>};
const Kernel kSwiGluBwdAmax = {"swiglu_bwd_amax_cuda", runGatedBwdAmax<SwiGluBwdSource>,
                               acceptsTiles<&host::kSwiGluBwdAmax>};
const Kernel kSwiGluBwdQuantize = {"swiglu_bwd_quantize_cuda", runGatedBwdQuantize<SwiGluBwdSource>,
                                   acceptsTiles<&host::kSwiGluBwdQuantize>};
const Kernel kGeGluQuantizeDelayed = {"geglu_quantize_delayed_cuda", runGeGlu<targetOfDelayed, 3>,
                                      acceptsTiles<&host::kGeGluQuantizeDelayed>};
const Kernel kGeGluAmax = {"geglu_amax_cuda", runGeGluAmax, acceptsTiles<&host::kGeGluAmax>};
const Kernel kGeGluQuantize = {"geglu_quantize_cuda", runGeGlu<targetOf, 2>,
                               acceptsTiles<&host::kGeGluQuantize>};
const Kernel kGeGluBwdQuantizeDelayed = {"geglu_bwd_quantize_delayed_cuda", runGeGluBwdDelayed,
                                         acceptsTiles<&host::kGeGluBwdQuantizeDelayed>};
const Kernel kGeGluBwdAmax = {"geglu_bwd_amax_cuda", runGeGluBwdAmax,
                              acceptsTiles<&host::kGeGluBwdAmax>};
const Kernel kGeGluBwdQuantize = {"geglu_bwd_quantize_cuda", runGeGluBwdQuantize,
                                  acceptsTiles<&host::kGeGluBwdQuantize>};
const Kernel kSquaredReluQuantizeDelayed = {"squared_relu_quantize_delayed_cuda",
                                            runOne<SquaredReluSource, targetOfDelayed, 1, 3>,
                                            acceptsTiles<&host::kSquaredReluQuantizeDelayed>};
const Kernel kSquaredReluAmax = {"squared_relu_amax_cuda", runOneAmax<SquaredReluSource, 1>,
                                 acceptsTiles<&host::kSquaredReluAmax>};
const Kernel kSquaredReluQuantize = {"squared_relu_quantize_cuda",
                                     runOne<SquaredReluSource, targetOf, 1, 2>,
                                     acceptsTiles<&host::kSquaredReluQuantize>};
const Kernel kSquaredReluBwdQuantizeDelayed = {"squared_relu_bwd_quantize_delayed_cuda",
                                               runOne<SquaredReluBwdSource, targetOfDelayed, 2, 3>,
                                               acceptsTiles<&host::kSquaredReluBwdQuantizeDelayed>};
const Kernel kSquaredReluBwdAmax = {"squared_relu_bwd_amax_cuda",
                                    runOneAmax<SquaredReluBwdSource, 2>,
                                    acceptsTiles<&host::kSquaredReluBwdAmax>};
const Kernel kSquaredReluBwdQuantize = {"squared_relu_bwd_quantize_cuda",
                                        runOne<SquaredReluBwdSource, targetOf, 2, 2>,
                                        acceptsTiles<&host::kSquaredReluBwdQuantize>};
const Kernel kRmsNormAgainQuantizeDelayed = {"rmsnorm_again_quantize_delayed_cuda",
                                             runRmsNormAgain<targetOfDelayed, 3>,
                                             acceptsTiles<&host::kRmsNormAgainQuantizeDelayed>};
const Kernel kRmsNormAgainQuantize = {"rmsnorm_again_quantize_cuda", runRmsNormAgain<targetOf, 2>,
                                      acceptsTiles<&host::kRmsNormAgainQuantize>};
const Kernel kLayerNormAgainQuantize = {"layernorm_again_quantize_cuda", runLayerNormAgain,
                                        acceptsTiles<&host::kLayerNormAgainQuantize>};

} // namespace shardc::kernels::cuda
