#include "runtime/run/PlantedFault.h"

#include <csignal>
#include <stdexcept>

#include <unistd.h>

namespace shardc::run {
namespace {

void throwPlanted(const kernels::Call &) { throw std::runtime_error("an exception was planted"); }

} // namespace

void PlantedFault::beforeChannel(int rank) {
  if (fault_.strikes(FaultKind::StopInSetUp, rank))
    ::raise(SIGSTOP);
  while (fault_.strikes(FaultKind::HangInSetUp, rank))
    ::pause();
}

/// The progress word says that the rank is inside the collective that the error would strike.
Status PlantedFault::beforeLaunch(const exec::LaunchPoint &point) {
  if (fault_.step != point.step || fault_.rank != point.rank)
    return Status::ok();
  while (fault_.kind == FaultKind::Hang)
    ::pause();
  for (size_t i = 0; i < point.ops.size() && !hasStruck_; ++i) {
    const exec::BoundOp &op = point.ops[i];
    if (fault_.kind == FaultKind::Throw && op.kind == exec::BoundOp::Kernel) {
      hasStruck_ = true;
      return point.compute.launch(throwPlanted, *op.call, op.label);
    }
    if (fault_.kind == FaultKind::Throw || op.kind != exec::BoundOp::Collective ||
        op.channel->size() < 2)
      continue;
    hasStruck_ = true;
    RETURN_IF_ERROR(point.enter(i));
    RETURN_IF_ERROR(point.backend.synchronize());
    hal::TestPort *port = point.backend.testPort();
    if (!port)
      return makeStatus(StatusCode::Unavailable, "backend {} plants no errors",
                        point.backend.name());
    return port->plantError(point.compute,
                            fault_.kind == FaultKind::ChannelError ? hal::PlantedError::Channel
                                                                   : hal::PlantedError::Device,
                            *point.channel(i));
  }
  return Status::ok();
}

bool PlantedRefusals::refuses(Service what) const {
  switch (what) {
  case Service::Windows: // which are a way to register buffers
    return fault_.strikes(FaultKind::RefusedWindows, rank_) ||
           fault_.strikes(FaultKind::RefusedBuffers, rank_);
  case Service::Buffers:
    return fault_.strikes(FaultKind::RefusedBuffers, rank_);
  case Service::Attention:
    return fault_.strikes(FaultKind::RefusedAttention, rank_);
  }
  return false;
}

} // namespace shardc::run
