// Watches the progress of this process's ranks while they run. If other processes have ranks, the
// progress is sent to rank 0's supervisor. If all ranks are here, the watch ends a run that is
// stuck, or that was asked to end and cannot.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/tools/Job.h"

namespace shardc::tools {

/// Watches the rank of a single-rank process before it has streams, until this object is destroyed
/// or a ProgressWatch replaces it. In the meantime, messages name the channel that is being
/// created.
class SetUpWatch {
public:
  /// `process` must outlive the watch.
  explicit SetUpWatch(ProcessContext &process);
  ~SetUpWatch();

private:
  ProcessContext &process_;
};

class ProgressWatch {
public:
  /// All arguments must outlive the watch. `isWriting` returns whether files of a save are being
  /// written; any thread may call it.
  ProgressWatch(exec::Executable &executable, ProcessContext &process,
                std::function<bool()> isWriting);
  ~ProgressWatch();
  /// Begins to watch. Exhausted if no thread can be started.
  Status start();

private:
  void run();
  launch::RankProgress read(size_t rank);
  void noteActivity();
  [[noreturn]] void end(const std::string &why);

  exec::Executable &executable_;
  ProcessContext &process_;
  std::function<bool()> isWriting_;
  // Used only by the reading thread:
  std::vector<launch::RankProgress> last_;
  uint64_t activity_ = 0;
  double lookedAt_ = 0, usedThen_ = 0; ///< seconds at the last check: clock, and processor time
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool isStopping_ = false;
  std::thread thread_;
};

} // namespace shardc::tools
