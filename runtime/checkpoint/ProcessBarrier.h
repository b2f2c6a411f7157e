// A barrier for the processes of one conversion, implemented by files in a folder. All processes
// can access the folder, since they write one checkpoint. It needs no network, so it works under
// torchrun, srun and mpirun. Each process writes heartbeats, and the others notice if they stop.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/FileOps.h"

namespace shardc::checkpoint {

/// The name of a job's meeting folder in a folder of checkpoints. Each job has another one, so that
/// jobs do not interfere.
std::string meetingPlace(const std::string &job);
/// Whether a folder name is that of a meeting folder.
bool isMeetingPlace(std::string_view name);

/// One rank's side. All ranks must call meet() equally often, and then leave().
class ProcessBarrier {
public:
  struct Options {
    std::chrono::seconds patience{600}; ///< for all ranks to arrive
    std::chrono::seconds silence{120};  ///< after this time without heartbeats, a process has ended
    Observers observers;
  };

  /// Joins the barrier in `folder`, which rank 0 creates, and waits for the other ranks. Leftovers
  /// of an earlier, interrupted job do no harm. Aborted if not all ranks arrive in time; Io at once
  /// if the folder cannot be created.
  static Result<std::unique_ptr<ProcessBarrier>> join(const std::string &folder, int rank,
                                                      int worldSize, Options options);
  ~ProcessBarrier();

  /// Waits for all ranks. Ok if every rank passed an ok status; otherwise the status of the lowest
  /// rank that did not. Aborted if a rank ends before it arrives.
  Status meet(const Status &status);
  /// Number of completed meetings of this rank.
  int meetings() const { return meetings_; }
  /// Call it after the last meeting. Rank 0 removes the folder after all others have left.
  void leave();

private:
  ProcessBarrier(std::string folder, int rank, int worldSize, Options options);
  /// Agrees on a session. Every rank except rank 0 writes a random name, and writes it again if the
  /// file disappears. Rank 0 collects all names and writes them under a random session name. A rank
  /// that finds its own name there knows that it has met the right job.
  Status findSession();
  /// Writes a rank's name for rank 0. The folder may not exist yet. If it cannot be created, rank 0
  /// has reported this and ended.
  Status showName(const std::string &name);
  void beat();
  std::string pathOf(const std::string &name) const { return folder_ + "/" + name; }
  /// Waits until a file of this barrier exists, and returns its contents. Fails if rank `from`
  /// ends.
  Result<std::string> await(const std::string &name, int from);

  std::string folder_, session_;
  int rank_ = 0, worldSize_ = 1, meetings_ = 0;
  bool hasLeft_ = false;
  Options options_;
  std::atomic<bool> isEnding_{false};
  std::thread heart_;
};

} // namespace shardc::checkpoint
