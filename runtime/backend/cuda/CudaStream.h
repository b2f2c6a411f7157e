// Streams, events and graphs of the CUDA backend: thin wrappers of CUDA's objects. Checks before
// each call keep a refused call from invalidating a capture.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/Queue.h"
#include "runtime/backend/cuda/Options.h"
#include "runtime/hal/Stream.h"
#include "runtime/hal/TestPort.h"

namespace shardc::cuda {

class Allocations;
class CudaChannel;
class CudaStream;
class Tracer;
class CommunicatorWatch;

/// The parameters of a launch as kernels see them: step, microbatch and microbatches in device
/// memory. The first node of a graph writes them.
class DeviceParams {
public:
  /// Allocates the three numbers on the current device.
  static Result<std::unique_ptr<DeviceParams>> create(Allocations &allocations);
  ~DeviceParams();
  int64_t *data() const { return data_; }

private:
  explicit DeviceParams(int64_t *data) : data_(data) {}
  int64_t *data_;
};

/// State that the streams of one device share. A device has at most one capture at a time.
struct DeviceState {
  int rank = 0, device = 0;
  CudaStream *origin = nullptr; ///< the stream on which the current capture began
  uint64_t captureId = 0;       ///< number of the current capture
  std::unique_ptr<DeviceParams> params;
  cudaGraphNode_t paramsNode = nullptr;
  /// All streams of the device that exist.
  std::vector<CudaStream *> streams;
  std::shared_ptr<Allocations> allocations;
  kernels::cuda::Context *kernels = nullptr;
  CommunicatorWatch *watch = nullptr;
  Tracer *tracer = nullptr; ///< null if no trace was requested
};

/// An instantiated CUDA graph with its own launch parameters in device memory.
class CudaGraph final : public hal::Graph {
public:
  ~CudaGraph() override;

private:
  friend class CudaStream;
  int rank_ = 0, device_ = 0;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  cudaGraphNode_t paramsNode_ = nullptr;
  std::unique_ptr<DeviceParams> params_;
};

/// Uses two CUDA events, since a record in a capture must not hide the last record outside of
/// captures.
class CudaEvent final : public hal::Event {
public:
  /// A timed event records the time outside of captures only.
  static Result<std::unique_ptr<CudaEvent>> create(DeviceState &device, bool isTimed = false);
  ~CudaEvent() override;
  bool isDone() override;
  Status synchronize() override;
  double secondsSince(hal::Event &earlier) override;

private:
  friend class CudaStream;
  CudaEvent(DeviceState &device, bool isTimed) : device_(device), isTimed_(isTimed) {}

  DeviceState &device_;
  bool isTimed_; ///< applies outside of captures
  cudaEvent_t eager_ = nullptr, captured_ = nullptr;
  bool recorded_ = false;  ///< outside of captures
  uint64_t captureId_ = 0; ///< the capture that recorded it last, if that is the last record
};

/// A counter in host memory that one device thread increments in each launch.
class CudaMark final : public hal::Mark {
public:
  /// Allocates the counter in pinned memory, from 0.
  static Result<std::unique_ptr<CudaMark>> create(DeviceState &device);
  ~CudaMark() override;
  bool isPassed(int64_t launches) override;
  Status await(int64_t launches) override;

private:
  friend class CudaStream;
  explicit CudaMark(DeviceState &device) : device_(device) {}

  DeviceState &device_;
  cudaStream_t stream_ = nullptr; ///< the stream that captured it
  int64_t *count_ = nullptr;
};

/// One CUDA stream. Its functions make the stream's device current on the calling thread.
class CudaStream final : public hal::Stream {
public:
  static Result<std::unique_ptr<CudaStream>> create(DeviceState &device, std::string_view name,
                                                    hal::StreamUse use);
  ~CudaStream() override;

  Status launch(kernels::KernelFn kernel, kernels::Call &call, const char *label) override;
  Status copy(void *to, const void *from, int64_t bytes, const char *label) override;
  Status fill(void *to, uint8_t value, int64_t bytes, const char *label) override;
  Status collective(hal::Channel &channel, const hal::Collective &desc, const char *label) override;
  Status gathers(hal::Channel &channel, std::span<const hal::Part> parts) override;
  Status writeWord(uint32_t *to, uint32_t value) override;
  Status injectError(hal::InjectedError error, const hal::Channel &channel);
  Status record(hal::Event &event) override;
  Status mark(hal::Mark &mark) override;
  Status wait(hal::Event &event) override;
  Status beginCapture() override;
  Result<std::unique_ptr<hal::Graph>> endCapture() override;
  void abandonCapture() override;
  Status launch(hal::Graph &graph, const hal::LaunchParams &params) override;

  /// The stream for CUDA's and NCCL's functions. Work that is queued through it must be noted in
  /// the queue.
  cudaStream_t handle() const { return stream_; }
  const std::string &name() const { return name_; }

private:
  CudaStream(DeviceState &device, std::string name, cudaStream_t stream)
      : device_(device), name_(std::move(name)), stream_(stream), queue_(*device.kernels, stream) {}
  /// Makes the device current. With a label, work of this thread also belongs to that op in traces.
  Status use() const;
  Status use(const char *label) const;
  /// Notes that work other than a kernel is queued, so that the next kernel is launched only after
  /// that work has ended.
  Status useForOther(const char *label = nullptr);
  /// Makes the stream wait for this rank's earlier collectives on the channel, on any stream.
  Status enter(CudaChannel &channel);
  /// Captures the first node of each graph, which sets the launch's parameters.
  Status captureParams();
  /// Ends CUDA's capture for all streams that have joined it, even if CUDA reports an error.
  cudaError_t leaveCapture(cudaGraph_t *graph);

  DeviceState &device_;
  std::string name_;
  cudaStream_t stream_;
  kernels::cuda::Queue queue_; ///< `stream_` in the form that kernels use
  bool capturing_ = false;
};

} // namespace shardc::cuda
