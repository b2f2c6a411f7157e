#include "runtime/tools/Backends.h"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "kernels/host/Blas.h"
#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Thread.h"
#include "runtime/base/Version.h"
#include "runtime/exec/CallShape.h"
#include "runtime/exec/Preflight.h"
#include "runtime/launch/Place.h"
#include "runtime/tools/Job.h"
#include "runtime/tools/Tuning.h"
#ifdef SHARDC_HAS_CUDA
#include "kernels/cuda/Fallbacks.h"
#include "kernels/cuda/Registry.h"
#include "kernels/cuda/Tuning.h"
#include "runtime/backend/cuda/Devices.h"
#include "runtime/backend/cuda/Options.h"
#include "runtime/backend/cuda/Versions.h"
#include "runtime/tools/CudaOptions.h"
#include "runtime/tools/PeerRendezvous.h"
#endif

namespace shardc::tools {
namespace {

int ranksOf(const plan::Plan &plan) {
  return static_cast<int>(std::min<int64_t>(plan.worldSize(), 1 << 20));
}

Result<std::unique_ptr<hal::Backend>> makeHost(const plan::Plan &plan,
                                               const RunToolOptions &options, hal::Peers *peers) {
  host::Options hostOptions;
  hostOptions.ranks = ranksOf(plan);
  hostOptions.peers = peers;
  hostOptions.workers = options.workers;
  if (peers && options.workers == 0) // the cores are shared
    hostOptions.workers =
        std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / peers->localSize());
  hostOptions.scheduleSeed = options.scheduleSeed;
  hostOptions.poison = options.scheduleSeed.has_value();
  hostOptions.guards = options.check || options.scheduleSeed.has_value();
  if (options.scheduleSeed && options.workers == 0)
    hostOptions.workers = 1; // one worker makes the schedule a function of the seed
  return host::makeBackend(hostOptions);
}

#ifdef SHARDC_HAS_CUDA
std::vector<std::string> warnings;          ///< not told yet
std::unique_ptr<PeerRendezvous> rendezvous; ///< outlives the backend; null: no other processes
std::string wayOfIds;                       ///< said at the start; empty: the usual one

/// Loading the libraries of products and attention from disk, and building attention's plans, takes
/// time. A separate thread does it while contexts, memory and communicators are created. A call
/// that needs a plan that is being built waits for it.
std::jthread preparation;

void prepareBeside(const plan::Plan &plan, int device) {
  std::vector<kernels::cuda::KernelShape> shapes;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      for (const plan::Op &op : segment.ops)
        if (std::string_view name = plan::opInfo(op.kind).name; name.starts_with("attention"))
          if (const kernels::Kernel *kernel = kernels::findCudaKernel(name))
            shapes.push_back({kernel, exec::shapeOf(segment, op)});
  // Without a thread for it each plan is made when it is first needed.
  static_cast<void>(startThread(preparation, [device, shapes = std::move(shapes)] {
    kernels::cuda::prepareLibraries(device, shapes);
  }));
}

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

/// Where mpirun has launched the job; null where ids go by the peers. Comes before threads of ours
/// that read the environment, since MPI changes it.
Result<std::unique_ptr<launch::MpiExchange>> beginMpi(const plan::Plan &plan, hal::Peers &peers) {
  Result<launch::Place> place = launch::findPlace(::getenv);
  if (!place.isOk() || place->launcher != Launcher::OpenMpi)
    return std::unique_ptr<launch::MpiExchange>();
  launch::MpiOptions options;
  options.timeoutSeconds = timeoutSeconds(plan);
  std::string why;
  ASSIGN_OR_RETURN(auto mpi, launch::MpiExchange::begin(peers, options, why));
  if (mpi)
    wayOfIds = fmt::format("ids of communicators: by MPI, {}\n", mpi->library());
  else
    warnings.push_back(fmt::format(
        "ids of communicators are exchanged by TCP although mpirun launched the ranks: {}", why));
  return mpi;
}

Result<std::unique_ptr<hal::Backend>> makeCuda(const plan::Plan &plan,
                                               const RunToolOptions &options, hal::Peers *peers) {
  kernels::setCudaDeterministic(plan.job.model.deterministicMode);
  cuda::Options cudaOptions = cudaOptionsOf(plan, options, peers ? peers->rank() : 0);
  if (peers) {
    ASSIGN_OR_RETURN(auto mpi, beginMpi(plan, *peers));
    rendezvous = std::make_unique<PeerRendezvous>(*peers, std::move(mpi));
    cudaOptions.rendezvous = rendezvous.get();
    ASSIGN_OR_RETURN(int device, ownDevice(*peers));
    cudaOptions.devices = {device};
    cudaOptions.failed = [peers](const Status &status) { peers->reportFailure(status); };
  }
  cudaOptions.timeoutSeconds = timeoutSeconds(plan);
  cudaOptions.warn = [](const std::string &text) { warnings.push_back(text); };
  if (options.fault.strikes(exec::FaultKind::RefusedAttention, cudaOptions.firstRank))
    kernels::cuda::refuseCudnnAttention();
  if (cudaOptions.devices.size() == 1 || cudaOptions.worldSize == 1)
    prepareBeside(plan, cudaOptions.devices.empty() ? 0 : cudaOptions.devices.front());
  return cuda::makeBackend(cudaOptions);
}
#endif

} // namespace

void finishPreparation() {
#ifdef SHARDC_HAS_CUDA
  if (preparation.joinable())
    preparation.join();
#endif
}

Status endMeeting() {
#ifdef SHARDC_HAS_CUDA
  if (rendezvous)
    return rendezvous->end();
#endif
  return Status::ok();
}

std::string meetingText() {
#ifdef SHARDC_HAS_CUDA
  return wayOfIds;
#else
  return "";
#endif
}

std::vector<std::string> takeWarnings() {
#ifdef SHARDC_HAS_CUDA
  std::vector<std::string> texts = std::exchange(warnings, {});
  for (std::string &text : kernels::cuda::takeFallbacks())
    texts.push_back(std::move(text));
  return texts;
#else
  return {};
#endif
}

std::vector<std::string> backendNames() {
#ifdef SHARDC_HAS_CUDA
  return {"host", "cuda"};
#else
  return {"host"};
#endif
}

std::string versionLines() {
  std::string libraries =
      fmt::format("{}, fmt {}.{}.{}, CLI11 {}", kernels::host::blasVersion(), FMT_VERSION / 10000,
                  FMT_VERSION / 100 % 100, FMT_VERSION % 100, cli::libraryVersion());
#ifdef SHARDC_HAS_CUDA
  libraries += ", " + cuda::libraryVersions();
#endif
  return fmt::format("shardc-run {}\nbackends: {}\nlibraries: {}", versionText(),
                     fmt::join(backendNames(), ", "), libraries);
}

exec::FindKernel findKernelOf([[maybe_unused]] const std::string &backend) {
#ifdef SHARDC_HAS_CUDA
  if (backend == "cuda")
    return kernels::findCudaKernel;
#endif
  return kernels::findHostKernel;
}

std::string judgeGpus([[maybe_unused]] const plan::Plan &plan,
                      [[maybe_unused]] const RunToolOptions &options,
                      [[maybe_unused]] hal::Peers *peers) {
#ifdef SHARDC_HAS_CUDA
  if (options.backend != "cuda")
    return "";
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
  if (std::string problem = exec::checkGpuCount(plan, gpus, sharing); !problem.empty())
    return problem;
  std::string warning = exec::gpuKindWarning(plan, gpus);
  if (!warning.empty() && (!peers || peers->rank() == 0))
    fmt::print(stderr, "shardc-run: warning: {}\n", warning);
#endif
  return "";
}

std::function<Status(exec::Executable &)>
preparationOf([[maybe_unused]] const plan::Plan &plan,
              [[maybe_unused]] const RunToolOptions &options) {
#ifdef SHARDC_HAS_CUDA
  if (options.backend == "cuda" && !plan.job.model.deterministicMode)
    return [](exec::Executable &executable) {
      return tuneProducts(executable, rendezvous ? &rendezvous->peers() : nullptr);
    };
#endif
  return nullptr;
}

Result<std::unique_ptr<hal::Backend>>
makeBackend(const plan::Plan &plan, const RunToolOptions &options, hal::Peers *peers) {
#ifdef SHARDC_HAS_CUDA
  if (options.backend == "cuda")
    return makeCuda(plan, options, peers);
#endif
  return makeHost(plan, options, peers);
}

} // namespace shardc::tools
