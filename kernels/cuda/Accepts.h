// A CUDA kernel accepts the calls that the host kernel of its op accepts, by the same checks. Some
// add their own.
#pragma once

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Rows.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Scratch.h"

namespace shardc::kernels::cuda {

/// Returns null, or the reason why the host kernel refuses this call.
template <const Kernel *kOracle> const char *acceptsAs(const Call &call) {
  return kOracle->accepts(call);
}

constexpr Kernel kernelOf(const char *name, const char *(*accepts)(const Call &), KernelFn run,
                          size_t (*workspaceBytes)(const Call &) = nullptr) {
  return {name, run, accepts, workspaceBytes};
}
constexpr Kernel kernelOf(const char *name, const char *(*accepts)(const Call &),
                          const host::Work &work) {
  return {name, work.run, accepts, work.workspaceBytes};
}

/// Defines the kernel of a row: SHARDC_KERNEL(enumerator, accepts, run, [workspace]), or with
/// withBuffers<run> as the last argument. `accepts`, a template such as acceptsAs, gets the host
/// kernel of the row.
#define SHARDC_KERNEL(enumerator, accepts, ...)                                                    \
  const Kernel k##enumerator =                                                                     \
      kernelOf(kName##enumerator.text, accepts<&host::k##enumerator>, __VA_ARGS__)

using host::runWithBuffers;
using host::Scratch;
using host::withBuffers;
using host::workspaceOf;

} // namespace shardc::kernels::cuda
