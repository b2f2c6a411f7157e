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

/// Loads the libraries on a device and builds what their kernels cache for these shapes, for
/// example cuDNN graphs. The calls must refer to the context. A separate thread may call it while
/// memory and channels are created.
void prepareLibraries(Context &context, int device, std::span<const KernelShape> shapes);

/// Times the alternatives of this call's op on the default stream, and blocks until done. Nothing
/// else may run meanwhile. Does nothing for ops without alternatives and for products with a timed
/// or imported choice.
void tune(std::string_view op, const Call &call);

/// Divides the timing among ranks: this context times every `ranks`-th of the distinct products
/// that tune() meets, starting with number `rank`. All processes must call tune() for the same
/// products in the same order, and then exchange their choices.
void shareTuning(Context &context, int rank, int ranks);

/// Exports all timed choices as text, and imports those of another run or rank. Text for another
/// device or library is ignored.
std::string gemmChoices(Context &context);
void takeGemmChoices(Context &context, std::string_view text);

/// What tune() calls for each op that has alternatives.
void tuneMatMul(const Call &call);
void tuneMatMulAdd(const Call &call);
void tuneMatMulScaled(const Call &call);
void tuneMatMulGelu(const Call &call);
void tuneMatMulGeluBwd(const Call &call);
void tuneLmLoss(const Call &call);
void tuneLmLossGrad(const Call &call);

} // namespace shardc::kernels::cuda
