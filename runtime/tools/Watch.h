// Looks at the progress of this process' ranks while they run. With ranks in other processes it
// goes to the supervisor of rank 0; with all of them here this is who ends a run that is stuck, or
// that was asked to end and cannot.
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

/// Looks at a rank in a process of its own before it has streams, until it is destroyed or a Watch
/// takes its place: what is told then is the channel that is being made.
class SetUpWatch {
public:
  /// The crew outlives the watch.
  explicit SetUpWatch(Crew &crew);
  ~SetUpWatch();

private:
  Crew &crew_;
};

class Watch {
public:
  /// All outlive the watch. `isWriting` says whether files of a save are being written; any thread
  /// calls it.
  Watch(exec::Executable &executable, Crew &crew, std::function<bool()> isWriting);
  ~Watch();
  /// Begins to watch. Exhausted where no thread can be started for it.
  Status start();

private:
  void run();
  launch::Snapshot read(size_t rank);
  void noteActivity();
  [[noreturn]] void end(const std::string &why);

  exec::Executable &executable_;
  Crew &crew_;
  std::function<bool()> isWriting_;
  // Of the thread that reads.
  std::vector<launch::Snapshot> last_;
  uint64_t activity_ = 0;
  double lookedAt_ = 0, usedThen_ = 0; ///< seconds of the clock, and of this process' cores
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool isStopping_ = false;
  std::thread thread_;
};

} // namespace shardc::tools
