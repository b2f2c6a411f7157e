// Timed choices: the fastest library algorithm for each product inside a call. Made before anything
// runs, because timing overwrites operands and results.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

/// A kernel, and a call of it without addresses.
struct KernelShape {
  const Kernel *kernel;
  Call call;
};

/// Loads the libraries on a device and builds what their kernels keep for these shapes. A separate
/// thread may do this while memory and channels are created.
void prepareLibraries(int device, std::span<const KernelShape> shapes);

/// Times the alternatives of the op of this call on the call's stream, and returns when that has
/// ended; does nothing for ops without alternatives. A product that was timed or imported is not
/// timed again.
void tune(std::string_view op, const Call &call);

/// Lets this process time every `ranks`-th of the distinct products that `tune` meets, from its own
/// rank on. All processes meet the same products in the same order, and exchange choices.
void shareTuning(int rank, int ranks);

/// Exports all timed choices as text, and imports those of another run or rank. Text for another
/// device or library is ignored.
std::string gemmChoices();
void takeGemmChoices(std::string_view text);

/// For tests: from now on cuDNN refuses attention.
void refuseCudnnAttention();

void tuneMatMul(const Call &call);
void tuneMatMulGelu(const Call &call);
void tuneMatMulGeluBwd(const Call &call);
void tuneLmLoss(const Call &call);
void tuneLmLossGrad(const Call &call);

} // namespace shardc::kernels::cuda
