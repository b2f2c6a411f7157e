// The CUDA backend: NVIDIA's GPUs, one process for each.
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
#include "runtime/base/Thread.h"
#include "runtime/exec/CallShape.h"
#include "runtime/exec/PlantedFault.h"
#include "runtime/exec/Preflight.h"
#include "runtime/launch/Place.h"
#include "runtime/tools/BackendEntry.h"
#include "runtime/tools/CudaOptions.h"
#include "runtime/tools/Job.h"
#include "runtime/tools/PeerRendezvous.h"
#include "runtime/tools/Tuning.h"

namespace shardc::tools {
namespace {

/// The device of this process, which no other rank has. InvalidInput if one has.
Result<int> ownDevice(hal::Peers &peers) {
  ASSIGN_OR_RETURN(int device, cuda::deviceOf(peers.localRank()));
  ASSIGN_OR_RETURN(std::vector<std::string> uuids,
                   peers.allGather("finding GPUs", cuda::uuidOf(device)));
  auto mine = uuids.begin() + peers.rank();
  auto same = std::find(uuids.begin(), mine, *mine);
  if (same != mine && !mine->empty())
    return makeStatus(StatusCode::InvalidInput,
                      "ranks {} and {} have the same GPU ({}); each needs one of its own",
                      same - uuids.begin(), peers.rank(), *mine);
  return device;
}

class CudaSession final : public BackendSession {
public:
  CudaSession(const plan::Plan &plan, const RunToolOptions &options)
      : plan_(plan), options_(options) {}

  std::string judgeDevices(hal::Peers *peers) override;
  Result<std::unique_ptr<hal::Backend>> makeBackend(hal::Peers *peers) override;
  std::function<Status(exec::Executable &)> beforeCapture() override;
  Status endMeeting() override { return rendezvous_ ? rendezvous_->end() : Status::ok(); }
  std::string meetingText() const override { return wayOfIds_; }
  std::vector<std::string> takeWarnings() override;

private:
  Result<std::unique_ptr<launch::MpiExchange>> beginMpi(hal::Peers &peers);
  void prepareBeside(int device);

  const plan::Plan &plan_;
  const RunToolOptions &options_;
  std::unique_ptr<exec::PlantedRefusals> refusals_;
  std::shared_ptr<kernels::cuda::Context> kernels_;
  std::vector<std::string> warnings_;          ///< not told yet
  std::unique_ptr<PeerRendezvous> rendezvous_; ///< null: no other processes
  std::string wayOfIds_;                       ///< empty: the usual one
  /// Loading the libraries of products and attention from disk, and building attention's plans,
  /// takes time. A separate thread does it while contexts, memory and communicators are created. A
  /// call that needs a plan that is being built waits for it. Destroyed first, which waits for it.
  std::jthread preparation_;
};

void CudaSession::prepareBeside(int device) {
  std::vector<kernels::cuda::KernelShape> shapes;
  for (const plan::Role &role : plan_.roles)
    for (const plan::Segment &segment : role.segments)
      for (const plan::Op &op : segment.ops)
        if (const plan::OpInfo &info = plan::opInfo(op.kind);
            info.work.cost == plan::CostClass::Attention)
          if (const kernels::Kernel *kernel = kernels::findCudaKernel(info.name)) {
            shapes.push_back({kernel, exec::shapeOf(segment, op)});
            shapes.back().call.context = kernels_.get();
          }
  // Without a thread for it each plan is made when it is first needed.
  static_cast<void>(
      startThread(preparation_, [kernels = kernels_, device, shapes = std::move(shapes)] {
        kernels::cuda::prepareLibraries(*kernels, device, shapes);
      }));
}

/// Where mpirun has launched the job; null where ids go by the peers. Comes before threads of ours
/// that read the environment, since MPI changes it.
Result<std::unique_ptr<launch::MpiExchange>> CudaSession::beginMpi(hal::Peers &peers) {
  Result<launch::Place> place = launch::findPlace(::getenv);
  if (!place.isOk() || place->launcher != Launcher::OpenMpi)
    return std::unique_ptr<launch::MpiExchange>();
  launch::MpiOptions mpiOptions;
  mpiOptions.timeoutSeconds = timeoutSeconds(plan_);
  std::string why;
  ASSIGN_OR_RETURN(auto mpi, launch::MpiExchange::begin(peers, mpiOptions, why));
  if (mpi)
    wayOfIds_ = fmt::format("ids of communicators: by MPI, {}\n", mpi->library());
  else
    warnings_.push_back(fmt::format(
        "ids of communicators are exchanged by TCP although mpirun launched the ranks: {}", why));
  return mpi;
}

Result<std::unique_ptr<hal::Backend>> CudaSession::makeBackend(hal::Peers *peers) {
  cuda::Options cudaOptions = cudaOptionsOf(plan_, options_, peers ? peers->rank() : 0);
  refusals_ = std::make_unique<exec::PlantedRefusals>(options_.fault, cudaOptions.firstRank);
  kernels::cuda::ContextOptions kernelOptions = kernels::cuda::ContextOptions::fromEnvironment();
  kernelOptions.deterministic = plan_.job.model.deterministicMode;
  kernelOptions.refusals = refusals_.get();
  kernels_ = std::make_shared<kernels::cuda::Context>(kernelOptions);
  cudaOptions.kernels = kernels_;
  cudaOptions.refusals = refusals_.get();
  if (peers) {
    ASSIGN_OR_RETURN(auto mpi, beginMpi(*peers));
    rendezvous_ = std::make_unique<PeerRendezvous>(*peers, std::move(mpi));
    cudaOptions.rendezvous = rendezvous_.get();
    ASSIGN_OR_RETURN(int device, ownDevice(*peers));
    cudaOptions.devices = {device};
    cudaOptions.failed = [peers](const Status &status) { peers->reportFailure(status); };
  }
  cudaOptions.timeoutSeconds = timeoutSeconds(plan_);
  cudaOptions.warn = [this](const std::string &text) { warnings_.push_back(text); };
  if (cudaOptions.devices.size() == 1 || cudaOptions.worldSize == 1)
    prepareBeside(cudaOptions.devices.empty() ? 0 : cudaOptions.devices.front());
  return cuda::makeBackend(cudaOptions);
}

/// Only asked where there is a backend.
std::vector<std::string> CudaSession::takeWarnings() {
  std::vector<std::string> texts = std::exchange(warnings_, {});
  for (std::string &text : kernels_->fallbacks().take())
    texts.push_back(std::move(text));
  return texts;
}

/// A kind of GPU that the plan was not made for is warned of, by rank 0.
std::string CudaSession::judgeDevices(hal::Peers *peers) {
  if (std::string problem = cuda::versionProblem(); !problem.empty())
    return problem;
  Result<int> count = cuda::deviceCount();
  if (!count.isOk() || *count == 0) // without any, the backend says why
    return "";
  auto localRank = static_cast<int>(peers ? peers->localRank() : 0);
  exec::VisibleGpus gpus = {*count, cuda::nameOf(localRank < *count ? localRank : 0)};
  Result<launch::Place> place = launch::findPlace(::getenv);
  int64_t sharing = peers ? peers->localSize() : 1;
  if (peers && place.isOk())
    sharing = launch::ranksSharingGpus(*place, *count, sharing);
  if (std::string problem = exec::checkGpuCount(plan_, gpus, sharing); !problem.empty())
    return problem;
  std::string warning = exec::gpuKindWarning(plan_, gpus);
  if (!warning.empty() && (!peers || peers->rank() == 0))
    fmt::print(stderr, "shardc-run: warning: {}\n", warning);
  return "";
}

std::function<Status(exec::Executable &)> CudaSession::beforeCapture() {
  if (plan_.job.model.deterministicMode)
    return nullptr;
  return [this](exec::Executable &executable) {
    return tuneProducts(executable, *kernels_, rendezvous_ ? &rendezvous_->peers() : nullptr);
  };
}

std::unique_ptr<BackendSession> beginCudaSession(const plan::Plan &plan,
                                                 const RunToolOptions &options) {
  return std::make_unique<CudaSession>(plan, options);
}

} // namespace

extern const BackendEntry cudaBackend;
const BackendEntry cudaBackend = {
    .name = "cuda",
    .traits = {.isOnGpus = true, .queuesNodes = true},
    .findKernel = kernels::findCudaKernel,
    .libraryVersions = cuda::libraryVersions,
    .setVariables = cuda::setVariables,
    .beginSession = beginCudaSession,
};

} // namespace shardc::tools
