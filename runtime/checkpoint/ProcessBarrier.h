// The rendezvous of the processes of one conversion: a folder visible to all of them, since they
// write one checkpoint. It needs no network, so it works under torchrun, srun and mpirun. Each
// process sends heartbeats; the others notice one that stops.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/FileOps.h"

namespace shardc::checkpoint {

/// The name of a job's meeting place in a folder of checkpoints; no other job's, so that one that
/// is refused there leaves another alone.
std::string meetingPlace(const std::string &job);
/// Whether a folder is called so.
bool isMeetingPlace(std::string_view name);

class ProcessBarrier {
public:
  struct Options {
    std::chrono::seconds patience{600}; ///< for all to come
    std::chrono::seconds silence{120};  ///< without a sign of life, a process counts as ended
    Observers observers;
  };

  /// Comes to `folder`, which rank 0 makes, and waits for the other ranks. What an earlier,
  /// interrupted job left there does no harm. Aborted if not all come in time; Io at once where
  /// nothing can be made there.
  static Result<std::unique_ptr<ProcessBarrier>> join(const std::string &folder, int rank,
                                                      int worldSize, Options options);
  static Result<std::unique_ptr<ProcessBarrier>> join(const std::string &folder, int rank,
                                                      int worldSize);
  ~ProcessBarrier();

  /// Waits for all. Ok if every rank brought an ok status, else the first rank's that did not.
  /// Aborted if one of them ends before it comes.
  Status meet(const Status &status);
  /// How often this rank has met the others.
  int meetings() const { return meetings_; }
  /// Call it after the last barrier: rank 0 removes the folder once the others have left.
  void leave();

private:
  ProcessBarrier(std::string folder, int rank, int worldSize, Options options);
  Status findSession();
  Status showName(const std::string &name);
  void beat();
  std::string pathOf(const std::string &name) const { return folder_ + "/" + name; }
  /// Waits until a file of this session is there and gives its contents; watches rank `from`.
  Result<std::string> await(const std::string &name, int from);

  std::string folder_, session_;
  int rank_ = 0, worldSize_ = 1, meetings_ = 0;
  bool hasLeft_ = false;
  Options options_;
  std::atomic<bool> isEnding_{false};
  std::thread heart_;
};

} // namespace shardc::checkpoint
