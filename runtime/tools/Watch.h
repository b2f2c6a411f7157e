// Looks at the progress of this process' ranks while they run. With ranks in other processes it
// goes to the supervisor of rank 0; with all of them here this is who ends a run that is stuck.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

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
  /// Both outlive the watch.
  Watch(exec::Executable &executable, Crew &crew);
  ~Watch();

private:
  void run();
  launch::Snapshot read(size_t rank) const;

  exec::Executable &executable_;
  Crew &crew_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool isStopping_ = false;
  std::thread thread_;
};

} // namespace shardc::tools
