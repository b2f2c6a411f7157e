// Runs fused ops as the other ops that they equal (runtime/plan/Ops.def), one after the other,
// with the values between them in the call's workspace. The kernels of any backend can be the
// steps' kernels.
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "kernels/host/Check.h"

namespace shardc::kernels {

/// Returns the backend's kernel of an op, by its name in Ops.def; null if it has none.
using KernelFinder = const Kernel *(*)(std::string_view opName);

/// Each finds the kernels of steps by `find`. Steps whose results the call lacks are left out.
void runSteps(KernelFinder find, plan::OpKind kind, const Call &call);
/// Null, or why the steps cannot execute the call.
const char *refusalOfSteps(KernelFinder find, plan::OpKind kind, const Call &call);
/// Bytes of all values between the steps, and of the largest workspace of a step.
size_t bytesOfSteps(KernelFinder find, plan::OpKind kind, const Call &call);

/// The kernel that runs the steps of an op by the kernels of a backend.
template <KernelFinder kFind, plan::OpKind kKind> class StepsKernel {
  static constexpr char kEnd[] = "_by_steps";

  static void run(const Call &call) { runSteps(kFind, kKind, call); }
  static const char *accepts(const Call &call) { return refusalOfSteps(kFind, kKind, call); }
  static size_t workspaceBytes(const Call &call) { return bytesOfSteps(kFind, kKind, call); }

public:
  static constexpr Kernel kKernel = {host::kKernelName<kKind, kEnd>.data(), run, accepts,
                                     workspaceBytes};
};

/// The kernel that runs the steps of the op with this name; null if the op has no row FUSED or
/// FORM.
template <KernelFinder kFind> const Kernel *stepsKernelOf(std::string_view opName) {
  static constexpr std::pair<std::string_view, const Kernel *> kRows[] = {
#define FUSED(op, name, ...) {name, &StepsKernel<kFind, plan::OpKind::op>::kKernel},
#include "runtime/plan/Ops.def"
  };
  const auto *row =
      std::ranges::find(kRows, opName, &std::pair<std::string_view, const Kernel *>::first);
  return row == std::end(kRows) ? nullptr : row->second;
}

} // namespace shardc::kernels
