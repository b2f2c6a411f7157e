// An injected fault: its effects at the points that SHARDC_FAULT names.
#pragma once

#include <atomic>

#include "runtime/base/Refusals.h"
#include "runtime/exec/FaultHooks.h"
#include "runtime/run/Fault.h"

namespace shardc::run {

/// Applies the fault to this process: ends or stops it, or closes its connections. Does nothing for
/// faults of other kinds.
void strikeProcess(FaultKind kind);

/// Strikes once.
class InjectedFault final : public exec::FaultHooks {
public:
  /// `growsTo` is the size with which the job goes on behind its next save, 0 if it stays as it is;
  /// null if it has its largest size.
  InjectedFault(const Fault &fault, const std::atomic<int64_t> *growsTo)
      : fault_(fault), growsTo_(growsTo) {}
  void beforeChannel(int rank) override;
  Status beforeLaunch(const exec::LaunchPoint &point) override;

private:
  bool isNow(const exec::LaunchPoint &point) const;
  Status strikeCollective(const exec::LaunchPoint &point);
  Status strikeKernel(const exec::LaunchPoint &point);

  const Fault fault_;
  const std::atomic<int64_t> *growsTo_;
  bool hasStruck_ = false;
};

/// What libraries refuse to one rank.
class InjectedRefusals final : public Refusals {
public:
  InjectedRefusals(const Fault &fault, int rank) : fault_(fault), rank_(rank) {}
  bool refuses(Service what) const override;

private:
  const Fault fault_;
  const int rank_;
};

} // namespace shardc::run
