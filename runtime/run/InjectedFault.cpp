// The fault strikes once, on the rank that it names. Faults of a step wait for the launch of this
// step.
#include "runtime/run/InjectedFault.h"

#include <chrono>
#include <csignal>
#include <limits>
#include <stdexcept>
#include <thread>

#include <sys/socket.h>
#include <unistd.h>

namespace shardc::run {
namespace {

constexpr std::chrono::milliseconds kPlacesPoll{10};

void throwInjected(const kernels::Call &) { throw std::runtime_error("an exception was injected"); }

/// Writes a NaN to the first operand of the call's list. Works only in host memory.
void spoilInjected(const kernels::Call &call) {
  const kernels::Tensor &first = call.list[0];
  if (first.dtype == DType::F32 && first.numel() > 0)
    *static_cast<float *>(const_cast<void *>(static_cast<const void *>(first.data))) =
        std::numeric_limits<float>::quiet_NaN();
}

bool isOfProcess(FaultKind kind) {
  return kind == FaultKind::Kill || kind == FaultKind::Stop || kind == FaultKind::Exit ||
         kind == FaultKind::Cut;
}

/// Shuts down all connections, as a broken network would, so that no peer hears from this process
/// any more.
void closeConnections() {
  constexpr int kDescriptorsMax = 4096;
  for (int fd = 0; fd < kDescriptorsMax; ++fd) {
    sockaddr_storage own = {};
    socklen_t bytes = sizeof own;
    if (::getsockname(fd, reinterpret_cast<sockaddr *>(&own), &bytes) == 0 &&
        (own.ss_family == AF_INET || own.ss_family == AF_INET6))
      ::shutdown(fd, SHUT_RDWR);
  }
}

} // namespace

void strikeProcess(FaultKind kind) {
  constexpr int kOddStatus = 7;
  if (kind == FaultKind::Kill)
    ::raise(SIGKILL);
  if (kind == FaultKind::Stop)
    ::kill(::getpid(), SIGSTOP);
  if (kind == FaultKind::Exit)
    ::_exit(kOddStatus);
  if (kind == FaultKind::Cut)
    closeConnections();
}

void InjectedFault::beforeChannel(int rank) {
  if (fault_.strikes(FaultKind::StopInSetUp, rank))
    ::raise(SIGSTOP);
  while (fault_.strikes(FaultKind::HangInSetUp, rank))
    ::pause();
}

bool InjectedFault::isNow(const exec::LaunchPoint &point) const {
  bool isElsewhere =
      fault_.kind == FaultKind::CorruptMemory || fault_.kind == FaultKind::CorruptWeights;
  if (fault_.rank != point.rank || hasStruck_ || isElsewhere)
    return false;
  if (fault_.moment == FaultMoment::Evaluation)
    return point.isEvaluation && point.step >= fault_.step;
  return fault_.moment != FaultMoment::Save && point.step == fault_.step;
}

Status InjectedFault::beforeLaunch(const exec::LaunchPoint &point) {
  if (!isNow(point))
    return Status::ok();
  while (fault_.kind == FaultKind::Hang)
    ::pause();
  if (fault_.kind == FaultKind::AwaitPlaces) {
    while (growsTo_ != nullptr && growsTo_->load() == 0)
      std::this_thread::sleep_for(kPlacesPoll);
    return Status::ok();
  }
  if (fault_.kind == FaultKind::Throw || fault_.kind == FaultKind::NotANumber)
    return strikeKernel(point);
  if (isOfProcess(fault_.kind) && fault_.moment != FaultMoment::Collective) {
    hasStruck_ = true;
    strikeProcess(fault_.kind);
    return Status::ok();
  }
  return strikeCollective(point);
}

/// Launches a kernel that throws, or one that puts a NaN into the step's gradients.
Status InjectedFault::strikeKernel(const exec::LaunchPoint &point) {
  for (const exec::BoundOp &op : point.ops) {
    bool isThrow = fault_.kind == FaultKind::Throw;
    if (op.kind != exec::BoundOp::Kernel || (!isThrow && op.call->listCount == 0))
      continue;
    hasStruck_ = true;
    return point.compute.launch(isThrow ? throwInjected : spoilInjected, *op.call, op.label);
  }
  return Status::ok();
}

/// Injects an error into a collective. The progress word says that the rank is inside this
/// collective.
Status InjectedFault::strikeCollective(const exec::LaunchPoint &point) {
  for (size_t i = 0; i < point.ops.size(); ++i) {
    const exec::BoundOp &op = point.ops[i];
    if (op.kind != exec::BoundOp::Collective || op.channel->size() < 2)
      continue;
    hasStruck_ = true;
    RETURN_IF_ERROR(point.enter(i));
    RETURN_IF_ERROR(point.backend.synchronize());
    if (isOfProcess(fault_.kind)) {
      strikeProcess(fault_.kind);
      return Status::ok();
    }
    hal::TestPort *port = point.backend.testPort();
    if (!port)
      return makeStatus(StatusCode::Unavailable, "backend {} plants no errors",
                        point.backend.name());
    return port->injectError(point.compute,
                             fault_.kind == FaultKind::ChannelError ? hal::InjectedError::Channel
                                                                    : hal::InjectedError::Device,
                             *point.channel(i));
  }
  return Status::ok();
}

bool InjectedRefusals::refuses(Service what) const {
  switch (what) {
  case Service::Windows: // windows are one way to register buffers
    return fault_.strikes(FaultKind::RefusedWindows, rank_) ||
           fault_.strikes(FaultKind::RefusedBuffers, rank_);
  case Service::Buffers:
    return fault_.strikes(FaultKind::RefusedBuffers, rank_);
  case Service::Peers:
    return fault_.strikes(FaultKind::RefusedPeers, rank_);
  case Service::Attention:
    return fault_.strikes(FaultKind::RefusedAttention, rank_);
  }
  return false;
}

} // namespace shardc::run
