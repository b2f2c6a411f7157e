// The CUDA backend: its devices, and the channels between ranks of this and other processes.
#include <algorithm>
#include <cstdlib>

#include "kernels/cuda/RankSum.h"
#include "runtime/backend/cuda/Check.h"
#include "runtime/backend/cuda/CommunicatorWatch.h"
#include "runtime/backend/cuda/CudaChannel.h"
#include "runtime/backend/cuda/CudaMemory.h"
#include "runtime/backend/cuda/CudaStream.h"
#include "runtime/backend/cuda/Devices.h"
#include "runtime/backend/cuda/Kernels.h"
#include "runtime/backend/cuda/Links.h"
#include "runtime/backend/cuda/Options.h"
#include "runtime/backend/cuda/Tracer.h"

namespace shardc::cuda {
namespace {

class CudaDevice final : public hal::Device {
public:
  CudaDevice(int rank, int device, bool isAlone, CommunicatorWatch &watch,
             std::shared_ptr<Allocations> allocations, kernels::cuda::Context &kernels)
      : isAlone_(isAlone) {
    state_.rank = rank;
    state_.device = device;
    state_.watch = &watch;
    state_.allocations = std::move(allocations);
    state_.kernels = &kernels;
  }

  int rank() const override { return state_.rank; }

  Result<std::unique_ptr<hal::Buffer>> allocate(hal::MemoryKind kind, int64_t bytes,
                                                std::string_view name) override {
    return state_.allocations->allocateBuffer(state_.device, kind, bytes, name, !isAlone_);
  }

  Result<std::unique_ptr<hal::Stream>> createStream(std::string_view name,
                                                    hal::StreamUse use) override {
    ASSIGN_OR_RETURN(auto stream, CudaStream::create(state_, name, use));
    return std::unique_ptr<hal::Stream>(std::move(stream));
  }

  Result<std::unique_ptr<hal::Event>> createEvent() override {
    ASSIGN_OR_RETURN(auto event, CudaEvent::create(state_));
    return std::unique_ptr<hal::Event>(std::move(event));
  }

  Result<std::unique_ptr<hal::Event>> createTimedEvent() override {
    ASSIGN_OR_RETURN(auto event, CudaEvent::create(state_, true));
    return std::unique_ptr<hal::Event>(std::move(event));
  }

  Result<std::unique_ptr<hal::Mark>> createMark() override {
    ASSIGN_OR_RETURN(auto mark, CudaMark::create(state_));
    return std::unique_ptr<hal::Mark>(std::move(mark));
  }

  int64_t bytesFree(hal::MemoryKind kind) const override {
    return cuda::bytesFree(state_.device, kind);
  }
  hal::DeviceMemory memory() const override { return memoryOf(state_.device); }
  int64_t allocationCount() const override { return state_.allocations->count(); }
  std::string links() const override { return linksOf(state_.device); }

  DeviceState &state() { return state_; }

private:
  DeviceState state_;
  bool isAlone_; ///< the job has one rank, so nothing is registered with NCCL
};

class CudaBackend final : public hal::Backend, hal::TestPort {
public:
  /// `options` must name all devices and the kernels' context.
  explicit CudaBackend(const Options &options)
      : options_(options), allocations_(Allocations::create(options.guards)),
        watch_(options.timeoutSeconds, options.failed) {
    for (size_t i = 0; i < options.devices.size(); ++i) {
      owned_.push_back(std::make_unique<CudaDevice>(options.firstRank + static_cast<int>(i),
                                                    options.devices[i], options.worldSize == 1,
                                                    watch_, allocations_, *options.kernels));
      devices_.push_back(owned_.back().get());
    }
  }

  std::string_view name() const override { return "cuda"; }
  int worldSize() const override { return options_.worldSize; }
  bool devicesShareMemory() const override { return false; }
  bool hasReceiveBuffers() const override { return true; }
  std::span<hal::Device *const> devices() const override { return devices_; }

  Result<std::unique_ptr<hal::Channel>> createChannel(const hal::ChannelDesc &desc) override {
    RETURN_IF_ERROR(hal::checkMembers(desc, options_.worldSize));
    std::vector<DeviceState *> states;
    for (std::unique_ptr<CudaDevice> &device : owned_)
      states.push_back(&device->state());
    ASSIGN_OR_RETURN(auto channel, CudaChannel::create(desc, states, options_, watch_));
    return std::unique_ptr<hal::Channel>(std::move(channel));
  }

  void abort() override { watch_.abort(); }
  Status checkGuards() override { return allocations_->checkGuards(); }
  kernels::KernelContext *kernelContext() const override { return options_.kernels.get(); }
  std::string kernelsText() const override { return offeredText(options_.kernels->gpu()); }
  hal::TestPort *testPort() override { return this; }

  Status startTrace() override { return tracer_ ? tracer_->start() : hal::Backend::startTrace(); }
  Result<std::vector<trace::Span>> stopTrace() override {
    return tracer_ ? tracer_->stop() : hal::Backend::stopTrace();
  }

  /// Enables tracing. Call it before any capture.
  Status makeTraceable() {
    std::unordered_map<int, int> ranks;
    for (std::unique_ptr<CudaDevice> &device : owned_)
      ranks[device->state().device] = device->rank();
    ASSIGN_OR_RETURN(tracer_, Tracer::create(std::move(ranks)));
    for (std::unique_ptr<CudaDevice> &device : owned_)
      device->state().tracer = tracer_.get();
    return Status::ok();
  }

  Status synchronize() override {
    for (std::unique_ptr<CudaDevice> &device : owned_) {
      RETURN_IF_CUDA_ERROR(cudaSetDevice(device->state().device));
      for (CudaStream *stream : device->state().streams)
        RETURN_IF_ERROR(watch_.wait([&] { return cudaStreamQuery(stream->handle()); },
                                    fmt::format("rank {} {}", device->rank(), stream->name())));
    }
    return Status::ok();
  }

  Status waitForAny(std::span<hal::Event *const> events) override {
    return watch_.wait(
        [&] {
          bool isOneDone = std::ranges::any_of(events, [](hal::Event *e) { return e->isDone(); });
          cudaError_t error = cudaPeekAtLastError(); // a failed query leaves its error here
          return isOneDone ? cudaSuccess : error == cudaSuccess ? cudaErrorNotReady : error;
        },
        "one of several events");
  }

private:
  Status injectError(hal::Stream &stream, hal::InjectedError error,
                     const hal::Channel &channel) override {
    return static_cast<CudaStream &>(stream).injectError(error, channel);
  }

  Options options_;
  std::shared_ptr<Allocations> allocations_;
  CommunicatorWatch watch_;
  std::unique_ptr<Tracer> tracer_; ///< null if no trace was requested
  std::vector<std::unique_ptr<CudaDevice>> owned_;
  std::vector<hal::Device *> devices_;
};

/// The ranks of this process must be among those of the job, and a connection is needed if others
/// have the rest.
Status checkRanks(const Options &options) {
  int ranks = static_cast<int>(options.devices.size());
  if (options.worldSize < 1 || options.firstRank < 0 ||
      options.firstRank + ranks > options.worldSize)
    return makeStatus(StatusCode::InvalidInput, "ranks {} to {} are not among {}",
                      options.firstRank, options.firstRank + ranks - 1, options.worldSize);
  if (ranks < options.worldSize && !options.rendezvous)
    return makeStatus(StatusCode::InvalidInput,
                      "{} of {} ranks are in other processes, and there is no connection to them",
                      options.worldSize - ranks, options.worldSize);
  return Status::ok();
}

} // namespace

/// NCCL_GRAPH_MIXING_SUPPORT is 0, since captured and uncaptured calls of one communicator never
/// run at the same time here. NCCL_GRAPH_REGISTER is 0, since channels register their memory when
/// they are created (ddp.nccl_ub). Otherwise NCCL registers the buffers that it finds in a capture.
/// Sends from such buffers into unregistered receive buffers hung (2.28.9): see ADR 7.
///
/// A pipeline stage gets as many hardware queues as CUDA allows. A queue executes its kernels in
/// order, and with CUDA's default of eight queues, several branches of a graph share one. Then
/// products and reductions that are queued after a receive wait for the other stage as well. Jobs
/// without stages are up to 1 % slower with more queues: see ADR 59.
void setVariables(bool hasPipelines) {
  constexpr int kKeep = 0; // 0 keeps values that the user has set
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", kKeep);
  setenv("NCCL_GRAPH_REGISTER", "0", kKeep);
  if (hasPipelines)
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", kKeep);
}

/// Loads on every device the kernels that may run beside NCCL's: a later load would wait for all
/// running work, which may in turn wait for a rank of this thread.
Result<std::unique_ptr<hal::Backend>> makeBackend(const Options &options) {
  Options complete = options;
  if (complete.devices.empty())
    for (int device = 0; device < complete.worldSize; ++device)
      complete.devices.push_back(device);
  if (!complete.kernels)
    complete.kernels =
        std::make_shared<kernels::cuda::Context>(kernels::cuda::ContextOptions::fromEnvironment());
  RETURN_IF_ERROR(checkRanks(complete));
  ASSIGN_OR_RETURN(int count, deviceCount());
  for (int device : complete.devices) {
    if (device < 0 || device >= count)
      return makeStatus(StatusCode::Unavailable, "CUDA device {} is not one of {}", device, count);
    RETURN_IF_CUDA_ERROR(cudaSetDevice(device));
    RETURN_IF_CUDA_ERROR(cudaFree(nullptr)); // creates the context, so later figures include it
    RETURN_IF_CUDA_ERROR(kernels::cuda::loadRankSum());
    RETURN_IF_CUDA_ERROR(kernels::cuda::loadPeerRows());
    RETURN_IF_CUDA_ERROR(loadSetParams());
    RETURN_IF_CUDA_ERROR(loadPassMark());
    RETURN_IF_CUDA_ERROR(loadCopyWords());
  }
  setVariables(/*hasPipelines=*/false);
  auto backend = std::make_unique<CudaBackend>(complete);
  if (complete.canTrace)
    RETURN_IF_ERROR(backend->makeTraceable());
  return std::unique_ptr<hal::Backend>(std::move(backend));
}

} // namespace shardc::cuda
