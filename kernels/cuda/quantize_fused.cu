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

SHARDC_KERNEL(SwiGluQuantizeDelayed, acceptsTiles, runOne<SwiGluSource, targetOfDelayed, 1, 3>);
SHARDC_KERNEL(SwiGluAmax, acceptsTiles, runOneAmax<SwiGluSource, 1>);
SHARDC_KERNEL(SwiGluQuantize, acceptsTiles, runOne<SwiGluSource, targetOf, 1, 2>);
SHARDC_KERNEL(SwiGluBwdQuantizeDelayed, acceptsTiles, runGatedBwdDelayed<SwiGluBwdSource>);
SHARDC_KERNEL(SwiGluBwdAmax, acceptsTiles, runGatedBwdAmax<SwiGluBwdSource>);
SHARDC_KERNEL(SwiGluBwdQuantize, acceptsTiles, runGatedBwdQuantize<SwiGluBwdSource>);
SHARDC_KERNEL(GeGluQuantizeDelayed, acceptsTiles, runGeGlu<targetOfDelayed, 3>);
SHARDC_KERNEL(GeGluAmax, acceptsTiles, runGeGluAmax);
SHARDC_KERNEL(GeGluQuantize, acceptsTiles, runGeGlu<targetOf, 2>);
SHARDC_KERNEL(GeGluBwdQuantizeDelayed, acceptsTiles, runGeGluBwdDelayed);
SHARDC_KERNEL(GeGluBwdAmax, acceptsTiles, runGeGluBwdAmax);
SHARDC_KERNEL(GeGluBwdQuantize, acceptsTiles, runGeGluBwdQuantize);
SHARDC_KERNEL(SquaredReluQuantizeDelayed, acceptsTiles, runOne<SquaredReluSource, targetOfDelayed, 1, 3>);
SHARDC_KERNEL(SquaredReluAmax, acceptsTiles, runOneAmax<SquaredReluSource, 1>);
SHARDC_KERNEL(SquaredReluQuantize, acceptsTiles, runOne<SquaredReluSource, targetOf, 1, 2>);
SHARDC_KERNEL(SquaredReluBwdQuantizeDelayed, acceptsTiles, runOne<SquaredReluBwdSource, targetOfDelayed, 2, 3>);
SHARDC_KERNEL(SquaredReluBwdAmax, acceptsTiles, runOneAmax<SquaredReluBwdSource, 2>);
SHARDC_KERNEL(SquaredReluBwdQuantize, acceptsTiles, runOne<SquaredReluBwdSource, targetOf, 2, 2>);
SHARDC_KERNEL(RmsNormAgainQuantizeDelayed, acceptsTiles, runRmsNormAgain<targetOfDelayed, 3>);
SHARDC_KERNEL(RmsNormAgainQuantize, acceptsTiles, runRmsNormAgain<targetOf, 2>);
SHARDC_KERNEL(LayerNormAgainQuantize, acceptsTiles, runLayerNormAgain);

} // namespace shardc::kernels::cuda
