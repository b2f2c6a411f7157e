// The CUDA backend: NVIDIA GPUs, with one process for each.
#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "kernels/cuda/Context.h"
#include "kernels/cuda/Registry.h"
#include "kernels/cuda/Tuning.h"
#include "runtime/backend/cuda/Devices.h"
#include "runtime/backend/cuda/Options.h"
#include "runtime/backend/cuda/Versions.h"
#include "runtime/base/KernelPath.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Thread.h"
#include "runtime/exec/CallShape.h"
#include "runtime/launch/JobPosition.h"
#include "runtime/launch/Rendezvous.h"
#include "runtime/run/InjectedFault.h"
#include "runtime/run/Preflight.h"
#include "runtime/tools/BackendEntry.h"
#include "runtime/tools/CudaOptions.h"
#include "runtime/tools/Job.h"
#include "runtime/tools/PeerRendezvous.h"
#include "runtime/tools/Tuning.h"

namespace shardc::tools {
namespace {

constexpr std::string_view kCudaKernels[] = {
#define CUDA_KERNEL(enumerator, op, family, dtypes) #enumerator,
#include "kernels/Kernels.def"
};
#define FORM(producer, quantizer, ...)                                                             \
  static_assert(                                                                                   \
      std::ranges::find(kCudaKernels, std::string_view(#producer #quantizer)) !=                   \
          std::end(kCudaKernels),                                                                  \
      "Kernels.def has a CUDA row for each FORM row, but none for " #producer #quantizer);
#include "runtime/plan/Ops.def"

/// Returns the device of this process. InvalidInput if another rank has the same device.
Result<int> ownDevice(hal::Peers &peers) {
  ASSIGN_OR_RETURN(int device, cuda::deviceOf(peers.localRank()));
  ASSIGN_OR_RETURN(
      std::vector<hal::Peers::Kind> shared,
      peers.allKinds("finding GPUs", cuda::uuidOf(device), hal::Peers::Fold::Repeated));
  for (const hal::Peers::Kind &gpu : shared) {
    bool isOwn = std::ranges::find(gpu.ranks, peers.rank()) != gpu.ranks.end();
    if (isOwn && gpu.ranks.front() != peers.rank() && !gpu.part.empty())
      return makeStatus(report::GpuShared, gpu.ranks.front(), peers.rank(), gpu.part);
  }
  return device;
}

class CudaSession final : public BackendSession {
public:
  CudaSession(const plan::Plan &plan, const RunToolOptions &options, ReportSink emit)
      : plan_(plan), options_(options), emit_(std::move(emit)) {}

  /// Rank 0 warns of a kind of GPU for which the plan was not made.
  Status judgeDevices(hal::Peers *peers) override {
    RETURN_IF_ERROR(cuda::checkVersions());
    Result<int> count = cuda::deviceCount();
    if (!count.isOk() || *count == 0) // the backend reports later why there are none
      return Status::ok();
    auto localRank = static_cast<int>(peers ? peers->localRank() : 0);
    run::VisibleGpus gpus = {*count, cuda::nameOf(localRank < *count ? localRank : 0)};
    Result<launch::JobPosition> position = launch::findJobPosition(::getenv);
    int64_t sharing = peers ? peers->localSize() : 1;
    if (peers && position.isOk())
      sharing = launch::ranksSharingGpus(*position, *count, sharing);
    RETURN_IF_ERROR(run::checkGpuCount(plan_, gpus, sharing));
    if (!peers || peers->rank() == 0)
      run::judgeGpuKind(plan_, gpus, options_.console.sink());
    return Status::ok();
  }

  /// Creates the kernels' context and the backend. With `peers`, this process has one rank and one
  /// GPU; otherwise it has all ranks of the job.
  Result<std::unique_ptr<hal::Backend>> makeBackend(hal::Peers *peers) override {
    cuda::Options cudaOptions = cudaOptionsOf(plan_, options_, peers ? peers->rank() : 0);
    refusals_ = std::make_unique<run::InjectedRefusals>(options_.fault, cudaOptions.firstRank);
    kernels::cuda::ContextOptions kernelOptions = kernels::cuda::ContextOptions::fromEnvironment();
    kernelOptions.deterministic = plan_.job.model.deterministicMode;
    kernelOptions.refusals = refusals_.get();
    kernelOptions.emit = emit_;
    kernelOptions.multiprocessors = plan_.multiprocessors;
    kernels_ = std::make_shared<kernels::cuda::Context>(kernelOptions);
    cudaOptions.kernels = kernels_;
    cudaOptions.refusals = refusals_.get();
    peers_ = peers;
    if (peers) {
      rendezvous_ = std::make_unique<PeerRendezvous>(*peers);
      cudaOptions.rendezvous = rendezvous_.get();
      ASSIGN_OR_RETURN(int device, ownDevice(*peers));
      cudaOptions.devices = {device};
      cudaOptions.failed = [peers](const Status &status) { peers->reportFailure(status); };
    }
    // The job's stall detector can tell which rank is late, so its time limit must expire first.
    cudaOptions.timeoutSeconds = timeoutSeconds(plan_) + 2 * launch::kSilentSeconds;
    cudaOptions.emit = emit_;
    if (cudaOptions.devices.size() == 1 || cudaOptions.worldSize == 1)
      prepareBeside(cudaOptions.devices.empty() ? 0 : cudaOptions.devices.front());
    RETURN_IF_ERROR(checkKernelPaths());
    ASSIGN_OR_RETURN(std::unique_ptr<hal::Backend> backend, cuda::makeBackend(cudaOptions));
    // From here on, the process's device is the current one.
    RETURN_IF_ERROR(run::compareKernels(peers, offeredText(kernels_->gpu()), emit_));
    return backend;
  }

  std::function<Status(exec::Executable &)> beforeCapture() override {
    if (plan_.job.model.deterministicMode)
      return nullptr;
    return [this](exec::Executable &executable) {
      return tuneProducts(executable, *kernels_, peers_);
    };
  }
  std::function<void(std::string_view, const kernels::Call &)> chooser() override {
    return [](std::string_view op, const kernels::Call &call) { kernels::cuda::tune(op, call); };
  }
  std::string deviceName(int localRank) override {
    Result<int> device = cuda::deviceOf(localRank);
    return device.isOk() ? cuda::nameOf(*device) : "";
  }

private:
  void prepareBeside(int device) {
    std::vector<kernels::cuda::KernelShape> shapes;
    for (const plan::Role &role : plan_.roles)
      for (const plan::Segment &segment : role.segments)
        for (const plan::Op &op : segment.ops)
          if (const plan::OpInfo &info = plan::opInfo(op);
              info.work.cost == plan::CostClass::Attention)
            if (const kernels::Kernel *kernel = kernels::findCudaKernel(info.name)) {
              shapes.push_back({kernel, exec::shapeOf(plan_, segment, op)});
              shapes.back().call.context = kernels_.get();
            }
    // If the thread cannot be started, each plan is built when it is first needed.
    static_cast<void>(
        startThread(preparation_, [kernels = kernels_, device, shapes = std::move(shapes)] {
          kernels::cuda::prepareLibraries(*kernels, device, shapes);
        }));
  }

  const plan::Plan &plan_;
  const RunToolOptions &options_;
  ReportSink emit_;
  std::unique_ptr<run::InjectedRefusals> refusals_;
  std::shared_ptr<kernels::cuda::Context> kernels_;
  hal::Peers *peers_ = nullptr; ///< null without other processes
  std::unique_ptr<PeerRendezvous> rendezvous_;
  /// Loading the libraries of products and attention from disk, and building attention's plans,
  /// takes time. This thread does it while contexts, memory and communicators are created. A call
  /// that needs a plan that is being built waits for it. It is destroyed first, which waits for the
  /// thread.
  std::jthread preparation_;
};

int countDevices() {
  Result<int> count = cuda::deviceCount();
  return count.isOk() ? *count : 0;
}

std::unique_ptr<BackendSession> beginCudaSession(const plan::Plan &plan,
                                                 const RunToolOptions &options, ReportSink emit) {
  return std::make_unique<CudaSession>(plan, options, std::move(emit));
}

} // namespace

extern const BackendEntry cudaBackend;
const BackendEntry cudaBackend = {
    .name = "cuda",
    .traits = {.isOnGpus = true, .queuesNodes = true},
    .findKernel = kernels::findCudaKernel,
    .libraryVersions = cuda::libraryVersions,
    .refusal = nullptr,
    .countDevices = countDevices,
    .setVariables = [](const plan::Plan &plan) { cuda::setVariables(plan.roles.size() > 1); },
    .beginSession = beginCudaSession,
};

} // namespace shardc::tools
