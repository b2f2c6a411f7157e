// The settings of CUDA kernels, and the state that they keep between calls: library handles, cached
// plans and autotuning choices. Whoever executes kernels owns one; calls and queues refer to it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/api/Kernel.h"
#include "runtime/base/KernelPath.h"
#include "runtime/base/Refusals.h"
#include "runtime/base/Report.h"

namespace shardc::kernels::cuda {

struct GemmLibrary;
struct AttentionLibrary;

/// Which hand-written kernels may use programmatic dependent launch (Queue.h).
enum class DependentLaunches : uint8_t {
  Never,
  AfterOwn,     ///< after hand-written kernels
  AfterKernels, ///< also after library kernels, which only trigger at their end
};

/// Settings that hold for the whole life of a context.
struct ContextOptions {
  /// Library kernels add in a fixed order. Hand-written kernels always do.
  bool deterministic = true;
  /// Hand-written kernels also compute products and attention, for tools that fail when they
  /// instrument library kernels. Slow.
  bool ownKernels = false;
  DependentLaunches dependentLaunches = DependentLaunches::Never;
  /// Paths of KernelPaths.def that are taken wherever they serve an op, as text of forcePaths().
  std::string paths;
  /// Multiprocessors of the device that the plan names; 0: those of the device that is current.
  int multiprocessors = 0;
  const Refusals *refusals = nullptr; ///< failures that a test injects; outlives the context
  ReportSink emit; ///< receives warnings about slower kernels, possibly repeatedly

  /// Options from the environment variables SHARDC_OWN_KERNELS, SHARDC_DEPENDENT_LAUNCHES and
  /// SHARDC_KERNEL_PATH.
  static ContextOptions fromEnvironment();
};

/// Thread-safe. Must outlive every graph that its kernels were captured in.
class Context final : public KernelContext {
public:
  explicit Context(const ContextOptions &options = {});

  const ContextOptions &options() const { return options_; }
  bool refuses(Service what) const { return options_.refusals && options_.refusals->refuses(what); }
  /// What the device that is current at the first call offers. Without a device, what an H200 does.
  const GpuTraits &gpu() const;
  int multiprocessors() const { return gpu(), multiprocessors_; }
  /// State of cuBLASLt and of cuDNN. Only Gemm.cpp and CudnnAttention.cpp define these types.
  GemmLibrary &gemm() const { return *gemm_; }
  AttentionLibrary &attention() const { return *attention_; }
  void emit(const Report &report) const {
    if (options_.emit)
      options_.emit(report);
  }

private:
  const ContextOptions options_;
  mutable std::once_flag isFound_;
  mutable GpuTraits gpu_;
  mutable int multiprocessors_ = 0;
  // Shared pointers can delete types that are incomplete here.
  std::shared_ptr<GemmLibrary> gemm_;
  std::shared_ptr<AttentionLibrary> attention_; ///< null in a build without cuDNN
};

/// The context that a call carries.
Context &contextOf(const Call &call);

} // namespace shardc::kernels::cuda
