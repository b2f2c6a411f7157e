// What the CUDA kernels of a run keep from call to call, and how they run: handles and plans of
// libraries, choices made by timing. Whoever runs kernels owns one; calls and queues carry it.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/api/Kernel.h"
#include "runtime/base/Refusals.h"
#include "runtime/base/Report.h"

namespace shardc::kernels::cuda {

struct GemmLibrary;
struct AttentionLibrary;

/// Which hand-written kernels may be launched before their predecessors have ended (Queue.h).
enum class DependentLaunches : uint8_t {
  Never,
  AfterOwn,     ///< after hand-written kernels
  AfterKernels, ///< after kernels of libraries too, which trigger nothing before their end
};

struct ContextOptions {
  /// Kernels of libraries keep the order of additions; hand-written kernels always do.
  bool deterministic = true;
  /// Hand-written kernels also compute products and attention, for tools that instrument kernels
  /// and fail in those of libraries. Slow.
  bool ownKernels = false;
  DependentLaunches dependentLaunches = DependentLaunches::Never;
  const Refusals *refusals = nullptr; ///< what a test refuses; outlives the context
  ReportSink tell; ///< takes warnings of slower kernels; the same ones may come again

  /// As the variables SHARDC_OWN_KERNELS and SHARDC_DEPENDENT_LAUNCHES say.
  static ContextOptions fromEnvironment();
};

/// Threads may use it concurrently. It outlives every graph that its kernels were captured in.
class Context final : public KernelContext {
public:
  explicit Context(const ContextOptions &options = {});

  const ContextOptions &options() const { return options_; }
  bool refuses(Service what) const { return options_.refusals && options_.refusals->refuses(what); }
  /// cuBLASLt's part, and cuDNN's; only Gemm.cpp and CudnnAttention.cpp know what is in them.
  GemmLibrary &gemm() const { return *gemm_; }
  AttentionLibrary &attention() const { return *attention_; }
  void tell(const Report &report) const {
    if (options_.tell)
      options_.tell(report);
  }

private:
  const ContextOptions options_;
  // Shared pointers know how to delete what is incomplete here.
  std::shared_ptr<GemmLibrary> gemm_;
  std::shared_ptr<AttentionLibrary> attention_; ///< null in a build without cuDNN
};

/// The context that a call carries.
Context &contextOf(const Call &call);

} // namespace shardc::kernels::cuda
