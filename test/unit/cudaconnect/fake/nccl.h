// Replaces NCCL's header: a library that counts members, the order of calls, and registrations.
// FakeNccl.cpp defines the calls.
#pragma once

#include <cstddef>

#include <cuda_runtime.h>

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum ncclDataType_t {
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt64 = 4,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9
};
enum ncclRedOp_t { ncclSum = 0, ncclMax = 2, ncclAvg = 4 };

using ncclComm_t = struct FakeCommunicator *;
using ncclWindow_t = struct FakeWindow *;
struct ncclUniqueId {
  char internal[128];
};
struct ncclConfig_t {
  int splitShare, CTAPolicy, minCTAs, maxCTAs, collnetEnable;
  const char *commName;
};
#define NCCL_CONFIG_INITIALIZER                                                                    \
  { 0, 0, 0, 0, 0, nullptr }
inline constexpr int NCCL_WIN_COLL_SYMMETRIC = 1, NCCL_CTA_POLICY_ZERO = 2;

const char *ncclGetErrorString(ncclResult_t error);
const char *ncclGetLastError(ncclComm_t communicator);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *communicator, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommSplit(ncclComm_t communicator, int color, int key, ncclComm_t *part,
                           ncclConfig_t *config);
ncclResult_t ncclCommDestroy(ncclComm_t communicator);
ncclResult_t ncclCommAbort(ncclComm_t communicator);
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *error);
ncclResult_t ncclCommRegister(ncclComm_t communicator, void *data, size_t bytes, void **handle);
ncclResult_t ncclCommDeregister(ncclComm_t communicator, void *handle);
ncclResult_t ncclCommWindowRegister(ncclComm_t communicator, void *data, size_t bytes,
                                    ncclWindow_t *window, int flags);
ncclResult_t ncclMemAlloc(void **data, size_t bytes);
ncclResult_t ncclMemFree(void *data);
ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream);
