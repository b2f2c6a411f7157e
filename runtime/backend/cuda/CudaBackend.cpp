// The CUDA backend: its devices, and the channels between ranks of this and other processes.
#include <algorithm>
#include <cstdlib>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/cuda/RankSum.h"
#include "runtime/backend/cuda/Check.h"
#include "runtime/backend/cuda/CommunicatorWatch.h"
#include "runtime/backend/cuda/CudaChannel.h"
#include "runtime/backend/cuda/CudaMemory.h"
#include "runtime/backend/cuda/CudaStream.h"
#include "runtime/backend/cuda/Devices.h"
#include "runtime/backend/cuda/Kernels.h"
#include "runtime/backend/cuda/Options.h"
#include "runtime/backend/cuda/Tracer.h"

namespace shardc::cuda {
namespace {

namespace fs = std::filesystem;

/// The NVML functions that are used. NVML is part of the driver and is loaded at run time if
/// present.
class Nvml {
public:
  using Handle = void *;

  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (!library_)
      return;
    find(init_, "nvmlInit_v2");
    find(shutdown_, "nvmlShutdown");
    find(byBusId_, "nvmlDeviceGetHandleByPciBusId_v2");
    find(linkState_, "nvmlDeviceGetNvLinkState");
    find(pcieGeneration_, "nvmlDeviceGetMaxPcieLinkGeneration");
    find(pcieWidth_, "nvmlDeviceGetMaxPcieLinkWidth");
    isReady_ = init_ && shutdown_ && byBusId_ && linkState_ && pcieGeneration_ && pcieWidth_ &&
               init_() == 0;
  }
  ~Nvml() {
    if (isReady_)
      shutdown_();
    if (library_)
      ::dlclose(library_);
  }

  Handle find(const char *busId) const {
    Handle handle = nullptr;
    return isReady_ && byBusId_(busId, &handle) == 0 ? handle : nullptr;
  }
  /// Number of NVLinks that are up.
  int nvlinks(Handle handle) const {
    constexpr unsigned kLinksMax = 18;
    int count = 0;
    for (unsigned link = 0; link < kLinksMax; ++link) {
      int state = 0;
      count += linkState_(handle, link, &state) == 0 && state == 1;
    }
    return count;
  }
  std::string pcie(Handle handle) const {
    unsigned generation = 0, width = 0;
    return pcieGeneration_(handle, &generation) == 0 && pcieWidth_(handle, &width) == 0
               ? fmt::format("PCIe {} x{}", generation, width)
               : "PCIe unknown";
  }

private:
  template <typename Entry> void find(Entry &entry, const char *name) {
    entry = reinterpret_cast<Entry>(::dlsym(library_, name));
  }

  void *library_;
  bool isReady_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*byBusId_)(const char *, Handle *) = nullptr;
  int (*linkState_)(Handle, unsigned, int *) = nullptr;
  int (*pcieGeneration_)(Handle, unsigned *) = nullptr;
  int (*pcieWidth_)(Handle, unsigned *) = nullptr;
};

std::string firstLine(const fs::path &path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<fs::path> entriesOf(const fs::path &folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    entries.push_back(at->path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

/// The network adapters of this machine; `classFolder` is /sys/class.
std::string networkOf(const std::string &classFolder) {
  std::string text;
  auto add = [&](const std::string &name, const std::string &rate) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, rate);
  };
  for (const fs::path &adapter : entriesOf(fs::path(classFolder) / "infiniband"))
    for (const fs::path &port : entriesOf(adapter / "ports"))
      if (std::string rate = firstLine(port / "rate"); !rate.empty())
        add(adapter.filename(), rate);
  std::error_code ignored;
  for (const fs::path &adapter : entriesOf(fs::path(classFolder) / "net"))
    if (fs::exists(adapter / "device", ignored)) { // a physical adapter, not a virtual one
      std::string speed = firstLine(adapter / "speed");
      add(adapter.filename(),
          speed.empty() || speed[0] == '-' ? "of unknown speed" : speed + " Mb/sec");
    }
  return text.empty() ? "no network adapters" : text;
}

/// One line, for example "18 NVLinks, PCIe 5 x16; mlx5_0 400 Gb/sec". Facts that cannot be
/// determined are reported as unknown.
std::string linksOf(int device) {
  char busId[32] = "";
  Nvml nvml;
  Nvml::Handle handle = nullptr;
  if (cudaDeviceGetPCIBusId(busId, sizeof busId, device) == cudaSuccess)
    handle = nvml.find(busId);
  std::string own = handle ? fmt::format("{} NVLinks, {}", nvml.nvlinks(handle), nvml.pcie(handle))
                           : "NVLink and PCIe unknown";
  return fmt::format("{}; {}", own, networkOf("/sys/class"));
}

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
