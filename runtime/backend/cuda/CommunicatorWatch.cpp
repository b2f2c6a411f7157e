#include "runtime/backend/cuda/CommunicatorWatch.h"

#include <thread>

#include "runtime/backend/cuda/Check.h"

namespace shardc::cuda {

void CommunicatorWatch::add(ncclComm_t communicator, std::string name) {
  std::lock_guard lock(mutex_);
  communicators_.push_back({communicator, std::move(name)});
}

void CommunicatorWatch::remove(ncclComm_t communicator) {
  std::lock_guard lock(mutex_);
  std::erase_if(communicators_,
                [&](const Named &named) { return named.communicator == communicator; });
}

void CommunicatorWatch::addStop(uint32_t *stop) {
  std::lock_guard lock(mutex_);
  stops_.push_back(stop);
}

void CommunicatorWatch::removeStop(uint32_t *stop) {
  std::lock_guard lock(mutex_);
  std::erase(stops_, stop);
}

Status CommunicatorWatch::findError() {
  std::lock_guard lock(mutex_);
  for (const Named &named : communicators_) {
    ncclResult_t error = ncclSuccess, asked = ncclSuccess;
    if (named.name == injected_)
      error = ncclRemoteError;
    else
      asked = ncclCommGetAsyncError(named.communicator, &error);
    if (asked == ncclSuccess && error != ncclSuccess && error != ncclInProgress)
      return makeStatus(StatusCode::Aborted, "channel '{}': {}", named.name,
                        ncclGetErrorString(error));
  }
  return Status::ok();
}

void CommunicatorWatch::abort() {
  std::lock_guard lock(mutex_);
  failed_ = true;
  for (uint32_t *stop : stops_)
    std::atomic_ref(*stop).store(1);
  for (const Named &named : communicators_)
    static_cast<void>(ncclCommAbort(named.communicator));
  communicators_.clear(); // aborting frees them
}

void CommunicatorWatch::injectError(std::string name) {
  std::lock_guard lock(mutex_);
  injected_ = std::move(name);
}

Status CommunicatorWatch::fail(Status status) {
  if (report_)
    report_(status);
  abort();
  return status;
}

/// Polls instead of calling cudaEventSynchronize, since a collective whose peer has died never
/// ends. NCCL reports a lost peer only to those who ask, and then all communicators must be
/// aborted.
Status CommunicatorWatch::wait(const std::function<cudaError_t()> &query, const std::string &what) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin = Clock::now(), nextLook = begin + std::chrono::milliseconds(10);
  for (int64_t turn = 0;; ++turn) {
    cudaError_t state = query();
    if (state == cudaSuccess)
      return Status::ok();
    if (state != cudaErrorNotReady)
      return fail(toStatus(state, what.c_str(), __FILE__, __LINE__));
    // Spins first, since most waits are for work that is about to end.
    if (turn > 1000)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (Clock::now() < nextLook)
      continue;
    nextLook = Clock::now() + std::chrono::milliseconds(10);
    if (Status error = findError(); !error.isOk())
      return fail(std::move(error));
    double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (timeoutSeconds_ > 0 && seconds > timeoutSeconds_)
      return fail(
          makeStatus(StatusCode::Aborted, "{} has not ended within {} s", what, timeoutSeconds_));
  }
}

} // namespace shardc::cuda
