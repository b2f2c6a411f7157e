// Implements the faults that SHARDC_FAULT names, at the points where they occur.
#pragma once

#include <atomic>

#include "runtime/base/Refusals.h"
#include "runtime/exec/FaultHooks.h"
#include "runtime/run/Fault.h"

namespace shardc::run {

/// Applies a fault of this process: ends it, stops it, or closes its connections. Does nothing for
/// other kinds of faults.
void strikeProcess(FaultKind kind);

/// Injects the fault, once.
class InjectedFault final : public exec::FaultHooks {
public:
  /// `growsTo` is the number of ranks with which the job continues after its next save, or 0 if it
  /// does not change. Null if the job has its maximum size.
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

/// Services of libraries that are refused to one rank.
class InjectedRefusals final : public Refusals {
public:
  InjectedRefusals(const Fault &fault, int rank) : fault_(fault), rank_(rank) {}
  bool refuses(Service what) const override;

private:
  const Fault fault_;
  const int rank_;
};

} // namespace shardc::run
