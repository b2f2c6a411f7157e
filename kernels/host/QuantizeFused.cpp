// Ops that compute a value and quantise it. They execute the ops that they replace: the first
// writes the value to scratch, in the type that Ops.def specifies, and the others quantise it from
// there, so that fusion changes no bit. rmsnorm_again: y = x·rstd·w, as in rmsnorm. Limited by
// memory.
#include "kernels/host/Norm.h"
#include "kernels/host/Rows.h"
#include "runtime/base/Float8.h"

#include <algorithm>
#include <initializer_list>

namespace shardc::kernels::host {
namespace {

// rmsnorm_again

struct AgainBuffers {
  float *weight, *x;

  AgainBuffers(const Call &call, Scratch &scratch) {
    weight = scratch.take<float>(call.in[0].cols());
    x = scratch.take<float>(call.in[0].cols());
  }
};

const char *acceptsAgain(const Call &call) {
  SHARDC_REQUIRE_OK(checkNorm(call.in[0], call.out[0], call.in[1]));
  return checkStatistic(call.in[0], call.in[2]);
}

/// y = x · rstd · weight: the norm, computed again from the saved rstd.
void runAgain(const Call &call) {
  Scratch scratch(call);
  AgainBuffers buffers(call, scratch);
  const Tensor &x = call.in[0];
  const float *w = normWeight(call, call.in[1], buffers.weight);
  const auto *rstd = static_cast<const float *>(call.in[2].data);
  for (int64_t row = 0, rows = x.rows(), n = x.cols(); row < rows; ++row) {
    const float *from = readF32(x, row * n, n, buffers.x);
    float *y = targetF32(call.out[0], row * n, buffers.x);
    for (int64_t i = 0; i < n; ++i)
      y[i] = from[i] * rstd[row] * w[i];
    writeF32(call.out[0], row * n, n, y);
  }
}

const Kernel kRmsNormAgain = {"rmsnorm_again_host", runAgain, acceptsAgain,
                              workspaceOf<AgainBuffers>};

// the ops that an op replaces

class Steps {
public:
  struct Step {
    const Kernel *kernel = nullptr;
    Call call;
  };

  Steps(const Call &call, Scratch &scratch) : call_(call), scratch_(scratch) {}

  const Step *begin() const { return steps_; }
  const Step *end() const { return steps_ + count_; }

  /// A matrix in scratch memory with `cols` columns, otherwise like `like`.
  Tensor matrix(const Tensor &like, int64_t cols) {
    Tensor tensor = like;
    tensor.rank = 2;
    tensor.shape[0] = like.rows(), tensor.shape[1] = cols;
    tensor.data = scratch_.take<std::byte>(tensor.numel() * dtypeBytes(tensor.dtype));
    return tensor;
  }

  /// Adds a kernel call with the attributes of the whole op.
  Attrs &add(const Kernel &kernel, std::initializer_list<Tensor> in,
             std::initializer_list<Tensor> out) {
    Step &step = steps_[count_++];
    step.kernel = &kernel;
    step.call = call_;
    step.call.inCount = step.call.outCount = 0;
    for (const Tensor &operand : in)
      step.call.in[step.call.inCount++] = operand;
    for (const Tensor &result : out)
      step.call.out[step.call.outCount++] = result;
    size_t bytes = kernel.workspaceBytes ? kernel.workspaceBytes(step.call) : 0;
    step.call.workspace = scratch_.take<std::byte>(static_cast<int64_t>(bytes));
    step.call.workspaceBytes = bytes;
    return step.call.attrs;
  }

  /// Adds quantize_delayed of y. Its amaxes are the operands from `amax` on, its results the first
  /// three, and result `copy` if the call has it.
  void addDelayed(const Tensor &y, int amax, int copy) {
    const Tensor *in = call_.in + amax, *out = call_.out;
    if (call_.outCount > copy)
      add(kQuantizeDelayed, {y, in[0], in[1]}, {out[0], out[1], out[2], out[copy]});
    else
      add(kQuantizeDelayed, {y, in[0], in[1]}, {out[0], out[1], out[2]});
  }

  /// Adds quantize, which records no amax.
  void addQuantize(const Tensor &y, const Tensor &amax, int copy) {
    const Tensor *out = call_.out;
    if (call_.outCount > copy)
      add(kQuantize, {y, amax}, {out[0], out[1], out[copy]});
    else
      add(kQuantize, {y, amax}, {out[0], out[1]});
  }

  /// Adds quantize_blocks of y, or of the transposed y, with the results from `first` on.
  void addBlocks(const Tensor &y, int first, bool isTransposed = false) {
    const Tensor *out = call_.out + first;
    add(kQuantizeBlocks, {y}, {out[0], out[1]}).transposed = isTransposed;
  }

private:
  const Call &call_;
  Scratch &scratch_;
  Step steps_[4];
  int count_ = 0;
};

using Describe = void (*)(const Call &call, Steps &steps);

template <Describe kDescribe> size_t bytesOf(const Call &call) {
  Scratch scratch;
  Steps steps(call, scratch);
  kDescribe(call, steps);
  return scratch.bytes();
}

template <Describe kDescribe> void run(const Call &call) {
  Scratch scratch(call);
  Steps steps(call, scratch);
  kDescribe(call, steps);
  for (const Steps::Step &step : steps)
    step.kernel->run(step.call);
}

template <Describe kDescribe, int kIn, int kOutMin, int kOutMax>
const char *accepts(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {kIn, kIn, kOutMin, kOutMax}));
  SHARDC_REQUIRE(!call.attrs.transposed || kOutMin < kOutMax, "the result is never transposed");
  Scratch scratch;
  Steps steps(call, scratch);
  kDescribe(call, steps);
  for (const Steps::Step &step : steps)
    SHARDC_REQUIRE_OK(step.kernel->accepts(step.call));
  return nullptr;
}

template <Describe kDescribe, int kIn, int kOutMin, int kOutMax = kOutMin>
constexpr Kernel kernelOf(const char *name) {
  return {name, run<kDescribe>, accepts<kDescribe, kIn, kOutMin, kOutMax>, bytesOf<kDescribe>};
}

/// Adds a norm and returns its y. From result `first` on, the call has the sum, if kAdds, and the
/// statistics.
template <bool kCentered, bool kAdds> Tensor normOf(const Call &call, int first, Steps &steps) {
  const Tensor *in = call.in, *out = call.out + first;
  const Tensor &x = kAdds ? out[0] : in[0];
  Tensor y = steps.matrix(x, x.cols());
  if constexpr (kCentered && kAdds)
    steps.add(kAddLayerNorm, {in[0], in[1], in[2], in[3]}, {out[0], y, out[1], out[2]});
  else if constexpr (kCentered)
    steps.add(kLayerNorm, {in[0], in[1], in[2]}, {y, out[0], out[1]});
  else if constexpr (kAdds)
    steps.add(kAddRmsNorm, {in[0], in[1], in[2]}, {out[0], y, out[1]});
  else
    steps.add(kRmsNorm, {in[0], in[1]}, {y, out[0]});
  return y;
}

Tensor rmsNormAgainOf(const Call &call, Steps &steps) {
  Tensor y = steps.matrix(call.in[0], call.in[0].cols());
  steps.add(kRmsNormAgain, {call.in[0], call.in[1], call.in[2]}, {y});
  return y;
}

/// Number of operands, and of results other than quantised ones, of a norm.
template <bool kCentered, bool kAdds> constexpr int kNormIn = 2 + int{kCentered} + int{kAdds};
template <bool kCentered, bool kAdds> constexpr int kNormOut = 1 + int{kCentered} + int{kAdds};

template <bool kCentered, bool kAdds> void normDelayed(const Call &call, Steps &steps) {
  steps.addDelayed(normOf<kCentered, kAdds>(call, 3, steps), kNormIn<kCentered, kAdds>,
                   kResultsMax);
}
template <bool kCentered, bool kAdds> void normAmax(const Call &call, Steps &steps) {
  Tensor y = normOf<kCentered, kAdds>(call, 0, steps);
  steps.add(kAmax, {y}, {call.out[kNormOut<kCentered, kAdds>]});
}
template <bool kCentered, bool kAdds> void normBlocks(const Call &call, Steps &steps) {
  steps.addBlocks(normOf<kCentered, kAdds>(call, 2, steps), 0);
}

Tensor layerNormAgainOf(const Call &call, Steps &steps) {
  Tensor y = steps.matrix(call.in[0], call.in[0].cols());
  steps.add(kLayerNormAgain, {call.in[0], call.in[1], call.in[2], call.in[3], call.in[4]}, {y});
  return y;
}

/// Adds a gated activation and returns its y. y has at least one column, even if x is too short.
template <const Kernel &kGated> Tensor gatedOf(const Call &call, Steps &steps) {
  const Tensor &x = call.in[0];
  Tensor y = steps.matrix(x, std::max<int64_t>(x.cols() / 2, 1));
  steps.add(kGated, {x}, {y});
  return y;
}

Tensor squaredReluOf(const Call &call, Steps &steps) {
  Tensor y = steps.matrix(call.in[0], call.in[0].cols());
  steps.add(kSquaredRelu, {call.in[0]}, {y});
  return y;
}

Tensor squaredReluBwdOf(const Call &call, Steps &steps) {
  Tensor dx = steps.matrix(call.in[1], call.in[1].cols());
  steps.add(kSquaredReluBwd, {call.in[0], call.in[1]}, {dx});
  return dx;
}

/// Adds the ops that compute the value to quantise, from the first kIn operands.
using Make = Tensor (*)(const Call &call, Steps &steps);

template <Make kMake, int kIn> void makeDelayed(const Call &call, Steps &steps) {
  steps.addDelayed(kMake(call, steps), kIn, 3);
}
template <Make kMake, int kIn> void makeQuantized(const Call &call, Steps &steps) {
  steps.addQuantize(kMake(call, steps), call.in[kIn], 2);
}
template <Make kMake> void makeAmax(const Call &call, Steps &steps) {
  steps.add(kAmax, {kMake(call, steps)}, {call.out[0]});
}
template <Make kMake, bool kTransposed> void makeBlocks(const Call &call, Steps &steps) {
  steps.addBlocks(kMake(call, steps), 0, kTransposed);
}

struct Gradients {
  Tensor dx, y;
};

template <const Kernel &kGatedBwd> Gradients gradientsOf(const Call &call, Steps &steps) {
  const Tensor &dy = call.in[0], &x = call.in[1];
  Gradients made = {steps.matrix(x, x.cols()), steps.matrix(dy, dy.cols())};
  steps.add(kGatedBwd, {dy, x}, {made.dx, made.y});
  return made;
}

/// Sets the attributes for y, which is quantised transposed.
void takeAttrsOfY(Attrs &attrs) {
  attrs.slot = attrs.y_slot;
  attrs.transposed = true;
}

template <const Kernel &kGatedBwd> void gatedBwdDelayed(const Call &call, Steps &steps) {
  Gradients made = gradientsOf<kGatedBwd>(call, steps);
  steps.addDelayed(made.dx, 2, 3);
  takeAttrsOfY(steps.add(kQuantizeDelayed, {made.y, call.in[2], call.in[3]},
                         {call.out[4], call.out[5], call.out[2]}));
}

template <const Kernel &kGatedBwd> void gatedBwdQuantize(const Call &call, Steps &steps) {
  Gradients made = gradientsOf<kGatedBwd>(call, steps);
  steps.addQuantize(made.dx, call.in[2], 2);
  takeAttrsOfY(steps.add(kQuantize, {made.y, call.in[2]}, {call.out[3], call.out[4]}));
}

/// Amax i of a tensor of amaxes.
Tensor amaxAt(const Tensor &all, int64_t i) {
  Tensor one = all;
  one.rank = 1, one.shape[0] = 1;
  one.data = static_cast<float *>(all.data) + i;
  return one;
}

template <const Kernel &kGatedBwd> void gatedBwdBlocks(const Call &call, Steps &steps) {
  Gradients made = gradientsOf<kGatedBwd>(call, steps);
  steps.addBlocks(made.dx, 0);
  steps.addBlocks(made.dx, 2, true);
  steps.addBlocks(made.y, 4, true);
}

template <const Kernel &kGatedBwd> void gatedBwdAmax(const Call &call, Steps &steps) {
  Gradients made = gradientsOf<kGatedBwd>(call, steps);
  steps.add(kAmax, {made.dx}, {amaxAt(call.out[0], 0)});
  steps.add(kAmax, {made.y}, {amaxAt(call.out[0], 1)});
}

/// Checks an op whose results begin with kForms quantised tensors, each followed by its scales.
template <Describe kDescribe, int kIn, int kOut, int kForms = 1>
const char *acceptsBlocks(const Call &call) {
  SHARDC_REQUIRE_OK((accepts<kDescribe, kIn, kOut, kOut>)(call));
  for (int form = 0; form < kForms; ++form) {
    const Tensor &q = call.out[2 * form], &scale = call.out[2 * form + 1];
    Extents want = scalesOf(ScaleBlocks::Rows128, {q.rows(), q.cols()});
    SHARDC_REQUIRE(scale.dtype == DType::F32 && scale.shape[0] == want.rows &&
                       scale.shape[1] == want.cols,
                   "the scales are not those of blocks of 1 by 128");
  }
  return nullptr;
}

template <const Kernel &kGatedBwd> const char *acceptsGatedBwdBlocks(const Call &call) {
  SHARDC_REQUIRE_OK((acceptsBlocks<gatedBwdBlocks<kGatedBwd>, 2, 6, 3>)(call));
  SHARDC_REQUIRE(call.out[0].dtype == call.out[2].dtype, "the forms of dx differ in type");
  SHARDC_REQUIRE(call.in[0].cols() % blockOf(ScaleBlocks::Rows128).cols == 0,
                 "rows of dy are not whole blocks of 128");
  return nullptr;
}

template <bool kCentered, bool kAdds> constexpr Kernel delayedKernelOf(const char *name) {
  return kernelOf<normDelayed<kCentered, kAdds>, kNormIn<kCentered, kAdds> + 2,
                  kNormOut<kCentered, kAdds> + 3>(name);
}
template <bool kCentered, bool kAdds> constexpr Kernel amaxKernelOf(const char *name) {
  return kernelOf<normAmax<kCentered, kAdds>, kNormIn<kCentered, kAdds>,
                  kNormOut<kCentered, kAdds> + 1>(name);
}
template <bool kCentered, bool kAdds> constexpr Kernel blocksKernelOf(const char *name) {
  constexpr Describe kDescribe = normBlocks<kCentered, kAdds>;
  return {name, run<kDescribe>,
          acceptsBlocks<kDescribe, kNormIn<kCentered, kAdds>, kNormOut<kCentered, kAdds> + 2>,
          bytesOf<kDescribe>};
}

template <const Kernel &kGatedBwd> const char *acceptsGatedBwdAmax(const Call &call) {
  SHARDC_REQUIRE_OK((accepts<gatedBwdAmax<kGatedBwd>, 2, 1, 1>)(call));
  SHARDC_REQUIRE(isVector(call.out[0], 2), "the amaxes are not two");
  return nullptr;
}

template <Make kMake, int kIn> constexpr Kernel makeDelayedOf(const char *name) {
  return kernelOf<makeDelayed<kMake, kIn>, kIn + 2, 3, 4>(name);
}
template <Make kMake, int kIn> constexpr Kernel makeQuantizedOf(const char *name) {
  return kernelOf<makeQuantized<kMake, kIn>, kIn + 1, 2, 3>(name);
}
template <Make kMake, int kIn> constexpr Kernel makeAmaxOf(const char *name) {
  return kernelOf<makeAmax<kMake>, kIn, 1>(name);
}
template <Make kMake, int kIn, bool kTransposed = false>
constexpr Kernel makeBlocksOf(const char *name) {
  constexpr Describe kDescribe = makeBlocks<kMake, kTransposed>;
  return {name, run<kDescribe>, acceptsBlocks<kDescribe, kIn, 2>, bytesOf<kDescribe>};
}

template <const Kernel &kGatedBwd> constexpr Kernel bwdDelayedOf(const char *name) {
  return kernelOf<gatedBwdDelayed<kGatedBwd>, 4, 6>(name);
}
template <const Kernel &kGatedBwd> constexpr Kernel bwdQuantizedOf(const char *name) {
  return kernelOf<gatedBwdQuantize<kGatedBwd>, 3, 5>(name);
}
template <const Kernel &kGatedBwd> constexpr Kernel bwdAmaxOf(const char *name) {
  constexpr Describe kDescribe = gatedBwdAmax<kGatedBwd>;
  return {name, run<kDescribe>, acceptsGatedBwdAmax<kGatedBwd>, bytesOf<kDescribe>};
}
template <const Kernel &kGatedBwd> constexpr Kernel bwdBlocksOf(const char *name) {
  constexpr Describe kDescribe = gatedBwdBlocks<kGatedBwd>;
  return {name, run<kDescribe>, acceptsGatedBwdBlocks<kGatedBwd>, bytesOf<kDescribe>};
}

} // namespace

const Kernel kRmsNormQuantizeDelayed =
    delayedKernelOf<false, false>("rmsnorm_quantize_delayed_host");
const Kernel kAddRmsNormQuantizeDelayed =
    delayedKernelOf<false, true>("add_rmsnorm_quantize_delayed_host");
const Kernel kLayerNormQuantizeDelayed =
    delayedKernelOf<true, false>("layernorm_quantize_delayed_host");
const Kernel kAddLayerNormQuantizeDelayed =
    delayedKernelOf<true, true>("add_layernorm_quantize_delayed_host");
const Kernel kRmsNormAmax = amaxKernelOf<false, false>("rmsnorm_amax_host");
const Kernel kAddRmsNormAmax = amaxKernelOf<false, true>("add_rmsnorm_amax_host");
const Kernel kLayerNormAmax = amaxKernelOf<true, false>("layernorm_amax_host");
const Kernel kAddLayerNormAmax = amaxKernelOf<true, true>("add_layernorm_amax_host");
const Kernel kRmsNormQuantizeBlocks = blocksKernelOf<false, false>("rmsnorm_quantize_blocks_host");
const Kernel kAddRmsNormQuantizeBlocks =
    blocksKernelOf<false, true>("add_rmsnorm_quantize_blocks_host");
const Kernel kLayerNormQuantizeBlocks =
    blocksKernelOf<true, false>("layernorm_quantize_blocks_host");
const Kernel kAddLayerNormQuantizeBlocks =
    blocksKernelOf<true, true>("add_layernorm_quantize_blocks_host");

const Kernel kRmsNormAgainQuantizeDelayed =
    makeDelayedOf<rmsNormAgainOf, 3>("rmsnorm_again_quantize_delayed_host");
const Kernel kRmsNormAgainQuantize =
    makeQuantizedOf<rmsNormAgainOf, 3>("rmsnorm_again_quantize_host");
const Kernel kRmsNormAgainQuantizeBlocks =
    makeBlocksOf<rmsNormAgainOf, 3, true>("rmsnorm_again_quantize_blocks_host");
const Kernel kLayerNormAgainQuantize =
    makeQuantizedOf<layerNormAgainOf, 5>("layernorm_again_quantize_host");

const Kernel kSwiGluQuantizeDelayed =
    makeDelayedOf<gatedOf<kSwiGlu>, 1>("swiglu_quantize_delayed_host");
const Kernel kSwiGluAmax = makeAmaxOf<gatedOf<kSwiGlu>, 1>("swiglu_amax_host");
const Kernel kSwiGluQuantize = makeQuantizedOf<gatedOf<kSwiGlu>, 1>("swiglu_quantize_host");
const Kernel kSwiGluQuantizeBlocks =
    makeBlocksOf<gatedOf<kSwiGlu>, 1>("swiglu_quantize_blocks_host");

const Kernel kGeGluQuantizeDelayed =
    makeDelayedOf<gatedOf<kGeGlu>, 1>("geglu_quantize_delayed_host");
const Kernel kGeGluAmax = makeAmaxOf<gatedOf<kGeGlu>, 1>("geglu_amax_host");
const Kernel kGeGluQuantize = makeQuantizedOf<gatedOf<kGeGlu>, 1>("geglu_quantize_host");
const Kernel kGeGluQuantizeBlocks = makeBlocksOf<gatedOf<kGeGlu>, 1>("geglu_quantize_blocks_host");

const Kernel kSquaredReluQuantizeDelayed =
    makeDelayedOf<squaredReluOf, 1>("squared_relu_quantize_delayed_host");
const Kernel kSquaredReluAmax = makeAmaxOf<squaredReluOf, 1>("squared_relu_amax_host");
const Kernel kSquaredReluQuantize = makeQuantizedOf<squaredReluOf, 1>("squared_relu_quantize_host");
const Kernel kSquaredReluQuantizeBlocks =
    makeBlocksOf<squaredReluOf, 1>("squared_relu_quantize_blocks_host");

const Kernel kSquaredReluBwdQuantizeDelayed =
    makeDelayedOf<squaredReluBwdOf, 2>("squared_relu_bwd_quantize_delayed_host");
const Kernel kSquaredReluBwdAmax = makeAmaxOf<squaredReluBwdOf, 2>("squared_relu_bwd_amax_host");
const Kernel kSquaredReluBwdQuantize =
    makeQuantizedOf<squaredReluBwdOf, 2>("squared_relu_bwd_quantize_host");

const Kernel kSwiGluBwdQuantizeDelayed =
    bwdDelayedOf<kSwiGluBwd>("swiglu_bwd_quantize_delayed_host");
const Kernel kSwiGluBwdAmax = bwdAmaxOf<kSwiGluBwd>("swiglu_bwd_amax_host");
const Kernel kSwiGluBwdQuantize = bwdQuantizedOf<kSwiGluBwd>("swiglu_bwd_quantize_host");
const Kernel kSwiGluBwdQuantizeBlocks = bwdBlocksOf<kSwiGluBwd>("swiglu_bwd_quantize_blocks_host");

const Kernel kGeGluBwdQuantizeDelayed = bwdDelayedOf<kGeGluBwd>("geglu_bwd_quantize_delayed_host");
const Kernel kGeGluBwdAmax = bwdAmaxOf<kGeGluBwd>("geglu_bwd_amax_host");
const Kernel kGeGluBwdQuantize = bwdQuantizedOf<kGeGluBwd>("geglu_bwd_quantize_host");
const Kernel kGeGluBwdQuantizeBlocks = bwdBlocksOf<kGeGluBwd>("geglu_bwd_quantize_blocks_host");

} // namespace shardc::kernels::host
