// Autotuning of library algorithms per product. It happens before the first step, because timing
// overwrites operands and results.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Context.h"

namespace shardc::kernels::cuda {

/// A kernel and a call without addresses.
struct KernelShape {
  const Kernel *kernel;
  Call call;
};

/// Loads the libraries on a device and builds what their kernels cache for these shapes, whose
/// calls refer to the context. A separate thread may do this while memory and channels are created.
void prepareLibraries(Context &context, int device, std::span<const KernelShape> shapes);

/// Times the alternatives of the op of this call on the default stream, and blocks until done;
/// nothing else may be running. Does nothing for ops without alternatives. Products with a timed or
/// imported choice are not timed again.
void tune(std::string_view op, const Call &call);

/// Divides the timing among ranks: this context times every `ranks`-th distinct product that tune()
/// meets, starting with its own rank. All processes must meet the same products in the same order,
/// and exchange their choices.
void shareTuning(Context &context, int rank, int ranks);

/// Exports all timed choices as text, and imports those of another run or rank. Text for another
/// device or library is ignored.
std::string gemmChoices(Context &context);
void takeGemmChoices(Context &context, std::string_view text);

void tuneMatMul(const Call &call);
void tuneMatMulAdd(const Call &call);
void tuneMatMulScaled(const Call &call);
void tuneMatMulGelu(const Call &call);
void tuneMatMulGeluBwd(const Call &call);
void tuneLmLoss(const Call &call);
void tuneLmLossGrad(const Call &call);

} // namespace shardc::kernels::cuda
