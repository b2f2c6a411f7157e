#include "runtime/tools/InjectedSaveFault.h"

#include <cerrno>

#include <unistd.h>

#include "runtime/run/InjectedFault.h"

namespace shardc::tools {
namespace {

/// Injects a fault after a given step, in the middle of a rank's file: from there on the disk is
/// full or never answers, or a fault of the process occurs once.
class InjectedSaveFault final : public checkpoint::FileFaults {
public:
  InjectedSaveFault(const run::Fault &fault, const std::atomic<uint64_t> &steps)
      : fault_(fault), steps_(steps) {}

  int beforeOperation() override {
    constexpr int kBefore = 3; // operations of the save that succeed before the fault
    if (steps_.load() < static_cast<uint64_t>(fault_.step))
      return 0;
    int number = operations_.fetch_add(1);
    if (fault_.kind == run::FaultKind::DiskFull)
      return number >= kBefore ? ENOSPC : 0;
    while (fault_.kind == run::FaultKind::StuckDisk && number >= kBefore)
      ::pause();
    if (number == kBefore)
      run::strikeProcess(fault_.kind);
    return 0;
  }

private:
  const run::Fault fault_;
  const std::atomic<uint64_t> &steps_;
  std::atomic<int> operations_{0};
};

} // namespace

std::unique_ptr<checkpoint::FileFaults> injectIntoSaves(const run::Fault &fault,
                                                        const ProcessContext &process) {
  int rank = process.client ? process.client->rank() : 0;
  if (fault.moment != run::FaultMoment::Save || fault.rank != rank)
    return nullptr;
  return std::make_unique<InjectedSaveFault>(fault, process.steps);
}

std::function<void(int64_t, std::span<uint8_t>)> injectIntoImages(const run::Fault &fault,
                                                                  const ProcessContext &process) {
  if (!process.client || !fault.strikes(run::FaultKind::CorruptMemory, process.client->rank()))
    return nullptr;
  return [from = fault.step](int64_t step, std::span<uint8_t> image) {
    if (step < from)
      return;
    image[image.size() / 2] ^= 1;
    run::strikeProcess(run::FaultKind::Kill);
  };
}

} // namespace shardc::tools
