#include "test/unit/cudaconnect/FakeNccl.h"

#include <chrono>
#include <cstring>

#include <fmt/format.h>

namespace shardc::cuda {
namespace {

constexpr auto kForever = std::chrono::seconds(20); ///< longer than anything in these tests

/// Per thread: number of open groups. NCCL waits for other ranks at the end of the outermost group.
thread_local int groupDepth = 0;
thread_local std::vector<std::pair<std::string, int>> awaited;

} // namespace

FakeNccl &FakeNccl::only() {
  static FakeNccl library;
  return library;
}

void FakeNccl::reset() {
  std::lock_guard lock(mutex_);
  groups.clear();
  wrong.clear();
  came_.clear();
  refuses = nullptr;
  open = 0;
}

ncclResult_t FakeNccl::begin() {
  ++groupDepth;
  return ncclSuccess;
}

ncclResult_t FakeNccl::end() {
  if (--groupDepth > 0)
    return ncclSuccess;
  std::vector<Wait> waits;
  for (auto &[what, size] : awaited)
    waits.push_back({what, size});
  awaited.clear();
  return await(waits);
}

ncclResult_t FakeNccl::await(const std::vector<Wait> &waits) {
  std::unique_lock lock(mutex_);
  for (const Wait &wait : waits)
    if (!changed_.wait_for(lock, kForever, [&] { return came_[wait.what] >= wait.size; })) {
      wrong.push_back(
          fmt::format("{} of {} ranks came to '{}'", came_[wait.what], wait.size, wait.what));
      return ncclSystemError;
    }
  return ncclSuccess;
}

std::string FakeNccl::makeId() {
  std::lock_guard lock(mutex_);
  return fmt::format("id {}", ++ids_);
}

void FakeNccl::together(FakeCommunicator &of, const std::string &call) {
  std::string what = fmt::format("{} {}", of.group, call);
  {
    std::lock_guard lock(mutex_);
    of.calls.push_back(call);
    ++came_[what];
    changed_.notify_all();
  }
  awaited.emplace_back(what, of.size);
  if (groupDepth == 0) {
    ++groupDepth;
    end();
  }
}

ncclResult_t FakeNccl::join(const std::string &group, int rank, int size,
                            const ncclConfig_t &config, ncclComm_t *to) {
  auto own = std::make_shared<FakeCommunicator>();
  own->group = group;
  own->rank = rank;
  own->size = size;
  own->config = config;
  {
    std::lock_guard lock(mutex_);
    auto &members = groups[group];
    for (const auto &[other, known] : members)
      if (known->size != size)
        wrong.push_back(
            fmt::format("'{}' has {} ranks for one and {} for another", group, size, known->size));
    if (rank < 0 || rank >= size || !members.emplace(rank, own).second)
      wrong.push_back(fmt::format("rank {} of '{}' is none, or there twice", rank, group));
    ++open;
  }
  *to = own.get();
  together(*own, "init");
  return ncclSuccess;
}

ncclResult_t FakeNccl::note(FakeCommunicator &of, const std::string &call) {
  std::lock_guard lock(mutex_);
  of.calls.push_back(call);
  return ncclSuccess;
}

ncclResult_t FakeNccl::leave(FakeCommunicator *of) {
  std::lock_guard lock(mutex_);
  of->calls.push_back("end");
  --open;
  return ncclSuccess;
}

} // namespace shardc::cuda

using shardc::cuda::FakeNccl;

const char *ncclGetErrorString(ncclResult_t) { return "refused"; }
const char *ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGroupStart() { return FakeNccl::only().begin(); }
ncclResult_t ncclGroupEnd() { return FakeNccl::only().end(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  *id = {};
  FakeNccl::only().makeId().copy(id->internal, sizeof id->internal);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *communicator, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
  std::string group(id.internal, strnlen(id.internal, sizeof id.internal));
  if (FakeNccl::only().isRefused("init", rank))
    return ncclSystemError;
  return FakeNccl::only().join(group, rank, size, *config, communicator);
}

/// All ranks of the parent must call it equally often.
ncclResult_t ncclCommSplit(ncclComm_t of, int, int key, ncclComm_t *part, ncclConfig_t *config) {
  std::string group = fmt::format("{}, split {}", of->group, ++of->splits);
  FakeNccl::only().together(*of, fmt::format("split {}", of->splits));
  return FakeNccl::only().join(group, key, of->size, *config, part);
}

ncclResult_t ncclCommDestroy(ncclComm_t of) { return FakeNccl::only().leave(of); }
ncclResult_t ncclCommAbort(ncclComm_t of) { return FakeNccl::only().leave(of); }

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t of, void *data, size_t bytes, void **handle) {
  if (!data || bytes == 0 || FakeNccl::only().isRefused("register", of->rank))
    return ncclInvalidUsage;
  ++of->registered;
  *handle = data;
  return FakeNccl::only().note(*of, "register");
}

ncclResult_t ncclCommDeregister(ncclComm_t of, void *) {
  --of->registered;
  return FakeNccl::only().note(*of, "deregister");
}

/// If the driver or the links do not support windows, it returns neither an error nor a window.
ncclResult_t ncclCommWindowRegister(ncclComm_t of, void *data, size_t bytes, ncclWindow_t *window,
                                    int flags) {
  if (flags != NCCL_WIN_COLL_SYMMETRIC || !data || bytes == 0)
    return ncclInvalidUsage;
  FakeNccl::only().together(*of, fmt::format("window of {} bytes", bytes));
  bool isGiven = !FakeNccl::only().isRefused("window", of->rank);
  of->windows += isGiven;
  *window = isGiven ? reinterpret_cast<ncclWindow_t>(data) : nullptr;
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **data, size_t bytes) {
  return cudaMalloc(data, bytes) == cudaSuccess ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclMemFree(void *data) {
  cudaFree(data);
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *, void *, size_t count, ncclDataType_t type, ncclComm_t of,
                           cudaStream_t) {
  return FakeNccl::only().note(*of, fmt::format("all_gather {} {}", count, static_cast<int>(type)));
}
ncclResult_t ncclReduceScatter(const void *, void *, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t of, cudaStream_t) {
  return FakeNccl::only().note(*of, fmt::format("reduce_scatter {} {} {}", count,
                                                static_cast<int>(type), static_cast<int>(op)));
}
ncclResult_t ncclAllReduce(const void *, void *, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t of, cudaStream_t) {
  return FakeNccl::only().note(
      *of, fmt::format("all_reduce {} {} {}", count, static_cast<int>(type), static_cast<int>(op)));
}
ncclResult_t ncclSend(const void *, size_t count, ncclDataType_t, int peer, ncclComm_t of,
                      cudaStream_t) {
  return FakeNccl::only().note(*of, fmt::format("send {} to {}", count, peer));
}
ncclResult_t ncclRecv(void *, size_t count, ncclDataType_t, int peer, ncclComm_t of, cudaStream_t) {
  return FakeNccl::only().note(*of, fmt::format("recv {} of {}", count, peer));
}
