// Replaces CUDA's header. Declares the calls that the CUDA backend makes to create channels, so
// that this code is compiled and run without CUDA. FakeCuda.cpp defines the calls; memory is the
// host's.
#pragma once

#include <cstddef>
#include <cstdint>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotReady = 600,
  cudaErrorPeerAccessAlreadyEnabled = 704
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };

using cudaStream_t = struct FakeStream *;
using cudaEvent_t = struct FakeEvent *;
using cudaGraph_t = struct FakeGraph *;
using cudaGraphExec_t = struct FakeGraphExec *;
using cudaGraphNode_t = struct FakeGraphNode *;
struct cudaIpcMemHandle_t {
  char reserved[64];
};

inline constexpr unsigned cudaStreamNonBlocking = 1, cudaHostAllocPortable = 1,
                          cudaHostAllocMapped = 2, cudaIpcMemLazyEnablePeerAccess = 1,
                          cudaEnableDefault = 0;

cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaGetLastError();
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaMalloc(void **data, size_t bytes);
cudaError_t cudaFree(void *data);
cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *data);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMemset(void *data, int value, size_t bytes);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned flags);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *data);
cudaError_t cudaIpcOpenMemHandle(void **data, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void *data);
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *state);
