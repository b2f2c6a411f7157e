#include "runtime/backend/cuda/CudaStream.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include <cuda.h>
#include <nvtx3/nvToolsExt.h>

#include "kernels/cuda/DriverFunction.h"
#include "runtime/backend/cuda/Check.h"
#include "runtime/backend/cuda/CommunicatorWatch.h"
#include "runtime/backend/cuda/CudaChannel.h"
#include "runtime/backend/cuda/CudaMemory.h"
#include "runtime/backend/cuda/GroupCall.h"
#include "runtime/backend/cuda/Kernels.h"
#include "runtime/backend/cuda/Tracer.h"
#include "runtime/base/Reports.h"

namespace shardc::cuda {
namespace {

/// Labels the work that this thread queues, for profilers: an op or a launch of a segment.
class Range {
public:
  explicit Range(const char *name) { nvtxRangePushA(name); }
  ~Range() { nvtxRangePop(); }
  Range(const Range &) = delete;
  Range &operator=(const Range &) = delete;
};

} // namespace

Result<std::unique_ptr<DeviceParams>> DeviceParams::create(Allocations &allocations) {
  void *data = nullptr;
  RETURN_IF_CUDA_ERROR(allocations.allocateDevice(&data, 3 * sizeof(int64_t)));
  return std::unique_ptr<DeviceParams>(new DeviceParams(static_cast<int64_t *>(data)));
}

DeviceParams::~DeviceParams() { cudaFree(data_); }

CudaGraph::~CudaGraph() {
  cudaSetDevice(device_);
  if (exec_)
    cudaGraphExecDestroy(exec_);
  if (graph_)
    cudaGraphDestroy(graph_);
}

Result<std::unique_ptr<CudaEvent>> CudaEvent::create(DeviceState &device, bool isTimed) {
  std::unique_ptr<CudaEvent> event(new CudaEvent(device, isTimed));
  RETURN_IF_CUDA_ERROR(cudaSetDevice(device.device));
  RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event->eager_, isTimed ? cudaEventDefault
                                                                        : cudaEventDisableTiming));
  RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event->captured_, cudaEventDisableTiming));
  return event;
}

CudaEvent::~CudaEvent() {
  cudaSetDevice(device_.device);
  for (cudaEvent_t event : {eager_, captured_})
    if (event)
      cudaEventDestroy(event);
}

bool CudaEvent::isDone() {
  // Sets the device, since a thread without one would create a context on the first device.
  return !recorded_ ||
         (cudaSetDevice(device_.device) == cudaSuccess && cudaEventQuery(eager_) == cudaSuccess);
}

Status CudaEvent::synchronize() {
  if (!recorded_)
    return Status::ok();
  return device_.watch->wait([&] { return cudaEventQuery(eager_); },
                             fmt::format("rank {}: an event", device_.rank));
}

double CudaEvent::secondsSince(hal::Event &earlier) {
  auto &from = static_cast<CudaEvent &>(earlier);
  float milliseconds = 0;
  if (isTimed_ && from.isTimed_ && recorded_ && from.recorded_) {
    if (cudaEventElapsedTime(&milliseconds, from.eager_, eager_) == cudaSuccess)
      return static_cast<double>(milliseconds) * 1e-3;
    cudaGetLastError(); // clears the error, so that the next launch does not report it
  }
  return std::numeric_limits<double>::quiet_NaN();
}

Result<std::unique_ptr<CudaMark>> CudaMark::create(DeviceState &device) {
  std::unique_ptr<CudaMark> mark(new CudaMark(device));
  RETURN_IF_CUDA_ERROR(cudaSetDevice(device.device));
  RETURN_IF_CUDA_ERROR(cudaHostAlloc(&mark->count_, sizeof(int64_t), cudaHostAllocDefault));
  *mark->count_ = 0;
  return mark;
}

CudaMark::~CudaMark() {
  cudaSetDevice(device_.device);
  cudaFreeHost(count_);
}

bool CudaMark::isPassed(int64_t launches) {
  return std::atomic_ref<int64_t>(*count_).load(std::memory_order_acquire) >= launches;
}

/// The wait also ends if the stream has no work left or cannot continue.
Status CudaMark::await(int64_t launches) {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(device_.device));
  return device_.watch->wait(
      [&] { return isPassed(launches) ? cudaSuccess : cudaStreamQuery(stream_); },
      fmt::format("rank {}: a launch", device_.rank));
}

/// `cudaStreamNonBlocking`: the stream does not synchronise with CUDA's default stream.
Result<std::unique_ptr<CudaStream>> CudaStream::create(DeviceState &device, std::string_view name,
                                                       hal::StreamUse use) {
  int least = 0, greatest = 0;
  RETURN_IF_CUDA_ERROR(cudaSetDevice(device.device));
  RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  // Kernels of transfers are few, and other work waits for them, so they get the multiprocessors
  // that become free first.
  bool isTransfer = use == hal::StreamUse::Transfer;
  cudaStream_t made = nullptr;
  RETURN_IF_CUDA_ERROR(
      cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, isTransfer ? greatest : least));
  std::unique_ptr<CudaStream> stream(new CudaStream(device, std::string(name), made));
  device.streams.push_back(stream.get());
  return stream;
}

CudaStream::~CudaStream() {
  std::erase(device_.streams, this);
  cudaSetDevice(device_.device);
  cudaStreamDestroy(stream_);
}

Status CudaStream::use() const {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(device_.device));
  return Status::ok();
}

Status CudaStream::use(const char *label) const {
  if (device_.tracer)
    device_.tracer->setOrigin(name_, label);
  return use();
}

Status CudaStream::useForOther(const char *label) {
  queue_.noteOther();
  return label ? use(label) : use();
}

Status CudaStream::launch(kernels::KernelFn kernel, kernels::Call &call, const char *label) {
  Range range(label);
  RETURN_IF_ERROR(use(label));
  call.stream = &queue_;
  call.context = device_.kernels;
  call.launch = capturing_ ? device_.params->data() : nullptr;
  kernel(call);
  if (std::optional<Report> error = queue_.takeError())
    return Status(*error).withContext(label);
  if (cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    return toStatus(error, label, __FILE__, __LINE__);
  return Status::ok();
}

namespace {

/// Up to this size, a kernel copies to the host about as fast as a copy engine.
constexpr int64_t kWordsBytesMax = 16 << 10;

/// Whether this is a copy of a few whole words from device memory to pinned host memory.
bool areFewForHost(const void *to, const void *from, int64_t bytes) {
  constexpr auto kWord = static_cast<int64_t>(sizeof(uint32_t));
  auto isWhole = [](uint64_t at) { return at % kWord == 0; };
  auto isIn = [](const void *at, cudaMemoryType type) {
    cudaPointerAttributes found{};
    return cudaPointerGetAttributes(&found, at) == cudaSuccess && found.type == type;
  };
  return bytes > 0 && bytes <= kWordsBytesMax && isWhole(static_cast<uint64_t>(bytes)) &&
         isWhole(reinterpret_cast<uintptr_t>(to)) && isWhole(reinterpret_cast<uintptr_t>(from)) &&
         isIn(to, cudaMemoryTypeHost) && isIn(from, cudaMemoryTypeDevice);
}

} // namespace

Status CudaStream::copy(void *to, const void *from, int64_t bytes, const char *label) {
  Range range(label);
  RETURN_IF_ERROR(useForOther(label));
  cudaError_t error = cudaSuccess;
  if (!capturing_ && areFewForHost(to, from, bytes)) { // see CopyWords.cu
    launchCopyWords(stream_, static_cast<uint32_t *>(to), static_cast<const uint32_t *>(from),
                    bytes / static_cast<int64_t>(sizeof(uint32_t)));
    error = cudaGetLastError();
  } else {
    error = cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_);
  }
  return error == cudaSuccess ? Status::ok() : toStatus(error, label, __FILE__, __LINE__);
}

Status CudaStream::fill(void *to, uint8_t value, int64_t bytes, const char *label) {
  Range range(label);
  RETURN_IF_ERROR(useForOther(label));
  cudaError_t error = cudaMemsetAsync(to, value, static_cast<size_t>(bytes), stream_);
  return error == cudaSuccess ? Status::ok() : toStatus(error, label, __FILE__, __LINE__);
}

Status CudaStream::enter(CudaChannel &channel) {
  CudaChannel::Member *member = channel.memberOf(device_.rank);
  if (!member)
    return makeStatus(StatusCode::Internal, "rank {} is not a member of channel '{}'", device_.rank,
                      channel.desc().name);
  uint64_t captureId = capturing_ ? device_.captureId : 0;
  if (member->lastStream && member->lastStream != this && member->lastCapture == captureId) {
    RETURN_IF_ERROR(member->lastStream->record(*member->order));
    RETURN_IF_ERROR(wait(*member->order));
  }
  member->lastStream = this;
  member->lastCapture = captureId;
  return Status::ok();
}

Status CudaStream::collective(hal::Channel &channel, const hal::Collective &desc,
                              const char *label) {
  Range range(label);
  RETURN_IF_ERROR(useForOther(label));
  auto &cudaChannel = static_cast<CudaChannel &>(channel);
  RETURN_IF_ERROR(enter(cudaChannel));
  Status issued = cudaChannel.issue(*cudaChannel.memberOf(device_.rank), desc, queue_);
  queue_.noteOther();
  return std::move(issued).withContext(label);
}

/// NCCL executes the all-gathers of a group call with one kernel.
Status CudaStream::gathers(hal::Channel &channel, std::span<const hal::Part> parts) {
  const char *label = parts.front().label;
  Range range(label);
  RETURN_IF_ERROR(useForOther(label));
  auto &cudaChannel = static_cast<CudaChannel &>(channel);
  RETURN_IF_ERROR(enter(cudaChannel));
  CudaChannel::Member &member = *cudaChannel.memberOf(device_.rank);
  GroupCall group;
  RETURN_IF_CUDA_ERROR(group.begin());
  for (const hal::Part &part : parts)
    if (Status issued = cudaChannel.issue(member, *part.desc, queue_); !issued.isOk())
      return std::move(issued).withContext(part.label);
  RETURN_IF_CUDA_ERROR(group.end());
  queue_.noteOther();
  return Status::ok();
}

/// The device's front end writes the word, without a kernel. In a capture, the write becomes a
/// node.
Status CudaStream::writeWord(uint32_t *to, uint32_t value) {
  using Write = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
  static void *const entry = kernels::cuda::findDriverFunction("cuStreamWriteValue32");
  RETURN_IF_ERROR(useForOther("progress"));
  if (!entry)
    return Status(StatusCode::Unavailable, "the driver has no cuStreamWriteValue32");
  CUresult result = reinterpret_cast<Write>(entry)(stream_, reinterpret_cast<CUdeviceptr>(to),
                                                   value, CU_STREAM_WRITE_VALUE_DEFAULT);
  if (result != CUDA_SUCCESS)
    return makeStatus(StatusCode::Internal, "rank {} {}: cuStreamWriteValue32 failed with error {}",
                      device_.rank, name_, static_cast<int>(result));
  return Status::ok();
}

/// A real error of a channel is found while a collective hangs, so this rank's work hangs too.
Status CudaStream::injectError(hal::InjectedError error, const hal::Channel &channel) {
  RETURN_IF_ERROR(useForOther("injected error"));
  if (error == hal::InjectedError::Channel) {
    launchHold(stream_);
    device_.watch->injectError(channel.desc().name);
  } else {
    launchTrap(stream_);
  }
  RETURN_IF_CUDA_ERROR(cudaGetLastError());
  return Status::ok();
}

Status CudaStream::record(hal::Event &event) {
  RETURN_IF_ERROR(use());
  auto &cudaEvent = static_cast<CudaEvent &>(event);
  RETURN_IF_CUDA_ERROR(
      cudaEventRecord(capturing_ ? cudaEvent.captured_ : cudaEvent.eager_, stream_));
  if (capturing_) {
    cudaEvent.captureId_ = device_.captureId;
  } else {
    cudaEvent.recorded_ = true;
    cudaEvent.captureId_ = 0;
  }
  return Status::ok();
}

Status CudaStream::mark(hal::Mark &mark) {
  RETURN_IF_ERROR(useForOther());
  auto &cudaMark = static_cast<CudaMark &>(mark);
  cudaMark.stream_ = stream_;
  launchPassMark(stream_, cudaMark.count_);
  RETURN_IF_CUDA_ERROR(cudaGetLastError());
  return Status::ok();
}

Status CudaStream::wait(hal::Event &event) {
  RETURN_IF_ERROR(useForOther());
  auto &cudaEvent = static_cast<CudaEvent &>(event);
  if (device_.origin && cudaEvent.captureId_ == device_.captureId) {
    RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(stream_, cudaEvent.captured_));
    capturing_ = true;
    return Status::ok();
  }
  if (!cudaEvent.recorded_)
    return Status::ok();
  // CUDA would also refuse this, and invalidate the capture.
  if (capturing_)
    return makeStatus(StatusCode::Internal,
                      "rank {} {}: a capture waits for an event recorded outside of it",
                      device_.rank, name_);
  RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(stream_, cudaEvent.eager_));
  return Status::ok();
}

Status CudaStream::beginCapture() {
  RETURN_IF_ERROR(useForOther());
  if (device_.origin)
    return makeStatus(StatusCode::Internal, "rank {}: a capture is already active", device_.rank);
  ASSIGN_OR_RETURN(device_.params, DeviceParams::create(*device_.allocations));
  // The capture is relaxed, since libraries may load kernels meanwhile: this and other threads may
  // call anything.
  RETURN_IF_CUDA_ERROR(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  device_.origin = this;
  ++device_.captureId;
  capturing_ = true;
  Status begun = captureParams();
  if (!begun.isOk())
    abandonCapture();
  return begun;
}

Status CudaStream::captureParams() {
  launchSetParams(stream_, device_.params->data(), 0, 0, 1);
  RETURN_IF_CUDA_ERROR(cudaGetLastError());
  cudaStreamCaptureStatus state;
  const cudaGraphNode_t *nodes = nullptr;
  size_t count = 0;
  RETURN_IF_CUDA_ERROR(
      cudaStreamGetCaptureInfo(stream_, &state, nullptr, nullptr, &nodes, nullptr, &count));
  SHARDC_CHECK(count == 1, "a capture begins with {} nodes", count);
  device_.paramsNode = nodes[0];
  return Status::ok();
}

/// Ends the capture that began on this stream, and instantiates and uploads the graph, so that its
/// first launch takes no longer than later ones. All streams that joined must have been joined
/// again.
Result<std::unique_ptr<hal::Graph>> CudaStream::endCapture() {
  RETURN_IF_ERROR(useForOther());
  if (device_.origin != this)
    return makeStatus(StatusCode::Internal, "rank {} {}: no capture was started on this stream",
                      device_.rank, name_);
  auto graph = std::make_unique<CudaGraph>();
  graph->rank_ = device_.rank;
  graph->device_ = device_.device;
  graph->params_ = std::move(device_.params);
  graph->paramsNode_ = device_.paramsNode;
  cudaError_t error = leaveCapture(&graph->graph_);
  if (error == cudaErrorStreamCaptureUnjoined) {
    cudaGetLastError();
    return makeStatus(StatusCode::Internal,
                      "rank {} {}: the capture ends without joining another stream", device_.rank,
                      name_);
  }
  RETURN_IF_CUDA_ERROR(error);
  // Nodes get the priorities of the streams from which they were captured.
  RETURN_IF_CUDA_ERROR(
      cudaGraphInstantiate(&graph->exec_, graph->graph_, cudaGraphInstantiateFlagUseNodePriority));
  RETURN_IF_CUDA_ERROR(cudaGraphUpload(graph->exec_, stream_));
  size_t nodes = 0;
  RETURN_IF_CUDA_ERROR(cudaGraphGetNodes(graph->graph_, nullptr, &nodes));
  graph->setNodes(static_cast<int64_t>(nodes));
  return std::unique_ptr<hal::Graph>(std::move(graph));
}

cudaError_t CudaStream::leaveCapture(cudaGraph_t *graph) {
  cudaError_t error = cudaStreamEndCapture(stream_, graph);
  for (CudaStream *stream : device_.streams)
    stream->capturing_ = false;
  device_.origin = nullptr;
  return error;
}

/// The caller has already reported the error that led here, so later calls must not report it
/// again.
void CudaStream::abandonCapture() {
  if (device_.origin != this)
    return;
  cudaSetDevice(device_.device);
  for (CudaStream *stream : device_.streams) {
    stream->queue_.noteOther();
    stream->queue_.takeError();
  }
  cudaGraph_t graph = nullptr;
  if (leaveCapture(&graph) == cudaSuccess && graph)
    cudaGraphDestroy(graph);
  device_.params.reset();
  cudaGetLastError();
}

Status CudaStream::launch(hal::Graph &graph, const hal::LaunchParams &params) {
  Range range(graph.label().c_str());
  RETURN_IF_ERROR(useForOther());
  auto &cudaGraph = static_cast<CudaGraph &>(graph);
  if (capturing_)
    return makeStatus(StatusCode::Internal, "rank {} {}: a graph is launched inside a capture",
                      device_.rank, name_);
  if (cudaGraph.rank_ != device_.rank)
    return makeStatus(StatusCode::Internal, "rank {}: the graph belongs to rank {}", device_.rank,
                      cudaGraph.rank_);
  RETURN_IF_CUDA_ERROR(updateSetParams(cudaGraph.exec_, cudaGraph.paramsNode_,
                                       cudaGraph.params_->data(), params.step, params.microbatch,
                                       params.microbatches));
  RETURN_IF_CUDA_ERROR(cudaGraphLaunch(cudaGraph.exec_, stream_));
  return Status::ok();
}

} // namespace shardc::cuda
