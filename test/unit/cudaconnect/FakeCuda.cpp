// Replaces the calls of CUDA that the backend makes to create channels: memory is the host's, and
// enqueued work is done at once. Kernels and streams of the backend are not called there.
#include <cstdlib>
#include <cstring>

#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/cuda/PeerRows.h"
#include "kernels/cuda/RankSum.h"
#include "runtime/backend/cuda/CudaStream.h"

namespace {

thread_local int current = 0;

CUresult addressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  *base = address;
  *bytes = 0;
  return CUDA_SUCCESS;
}

} // namespace

cudaError_t cudaSetDevice(int device) {
  current = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t) { return "cudaError"; }
const char *cudaGetErrorString(cudaError_t) { return "an error"; }
cudaError_t cudaMalloc(void **data, size_t bytes) {
  *data = std::malloc(bytes);
  return *data ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned) { return cudaMalloc(data, bytes); }
cudaError_t cudaFreeHost(void *data) { return cudaFree(data); }
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  *free = *total = 1 << 20;
  return cudaSuccess;
}
cudaError_t cudaMemset(void *data, int value, size_t bytes) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *event) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *data) {
  std::memcpy(handle->reserved, &data, sizeof data);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void **data, cudaIpcMemHandle_t handle, unsigned) {
  std::memcpy(data, handle.reserved, sizeof *data);
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void *) { return cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **found, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *state) {
  *found = reinterpret_cast<void *>(&addressRange);
  *state = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

namespace shardc::kernels::cuda {
void launchRankSum(const RankSum &, Queue &) { std::abort(); }
void launchPeerRows(const PeerRows &, int, Queue &) { std::abort(); }
} // namespace shardc::kernels::cuda

namespace shardc::cuda {

Result<std::unique_ptr<CudaEvent>> CudaEvent::create(DeviceState &device, bool isTimed) {
  return std::unique_ptr<CudaEvent>(new CudaEvent(device, isTimed));
}
DeviceParams::~DeviceParams() = default;
CudaEvent::~CudaEvent() = default;
bool CudaEvent::isDone() { std::abort(); }
Status CudaEvent::synchronize() { std::abort(); }
double CudaEvent::secondsSince(hal::Event &) { std::abort(); }

} // namespace shardc::cuda
