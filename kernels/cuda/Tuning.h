// Choices that take time: which of the library's algorithms is fastest for the products inside of a
// call. Made before anything runs, since operands and results are written over.
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

/// Loads the libraries on a device and makes what their kernels keep for these shapes, so that this
/// can go on in a thread of its own while memory and channels are made.
void prepareLibraries(int device, std::span<const KernelShape> shapes);

/// Times what the op of this call leaves open, on the call's stream, and returns when it has ended;
/// nothing for ops that leave nothing open. A product that was timed, or is among the choices taken
/// over, is not timed again.
void tune(std::string_view op, const Call &call);

/// Of the products that `tune` meets, each one time, this process times every `ranks`-th from its
/// own rank on. The processes meet the same ones in the same order, and exchange their choices.
void shareTuning(int rank, int ranks);

/// All choices made by timing so far, as text; and taking over those of another run or rank. Text
/// for another device or library is passed over.
std::string gemmChoices();
void takeGemmChoices(std::string_view text);

/// For tests: from here on cuDNN serves no attention.
void refuseCudnnAttention();

void tuneMatMul(const Call &call);
void tuneMatMulGelu(const Call &call);
void tuneMatMulGeluBwd(const Call &call);
void tuneLmLoss(const Call &call);
void tuneLmLossGrad(const Call &call);

} // namespace shardc::kernels::cuda
