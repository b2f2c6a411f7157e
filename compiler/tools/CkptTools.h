// Helpers of the subcommands of `shardc ckpt`: messages, output folder, cooperating ranks, progress
// bar.
#pragma once

#include <memory>
#include <string>

#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/Convert.h"
#include "runtime/checkpoint/FolderLock.h"
#include "runtime/checkpoint/ProcessBarrier.h"

namespace shardc::cli {
class Command;
}

namespace shardc::tools {

/// Each adds one subcommand; its callback stores the exit status in `status`.
void addCkptInspect(cli::Command &ckpt, int &status);
void addCkptList(cli::Command &ckpt, int &status);
void addCkptVerify(cli::Command &ckpt, int &status);
void addCkptDiff(cli::Command &ckpt, int &status);
void addCkptConvert(cli::Command &ckpt, int &status);
void addCkptHf(cli::Command &ckpt, int &status);
void addPeftImport(cli::Command &import, int &status);
void addPeftExport(cli::Command &outer, int &status);
void addCkptMerge(cli::Command &ckpt, int &status);
void addCkptReshard(cli::Command &ckpt, int &status);
void addCkptGroups(cli::Command &ckpt, int &status);

/// A value's text, shortened for one line of a report.
std::string shortened(const std::string &text);

/// Number of names or faults that a report lists; the rest is only counted.
constexpr size_t kListed = 20;

/// Observers that interrupt a save after a signal that StopOnSignal handles.
checkpoint::Observers ckptObservers();
/// The exit status for a status. Prints a failure first.
int finishCkpt(const Status &status);
/// Signal handler while in scope: the first SIGINT, SIGTERM or SIGHUP stops a search, or a save and
/// removes what it has written. A second signal ends the process at once, unless that removal is
/// under way. Ignored signals stay ignored.
class StopOnSignal {
public:
  StopOnSignal();
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal &) = delete;
  StopOnSignal &operator=(const StopOnSignal &) = delete;

  static bool isAsked(); ///< whether a signal came
  /// Like finishCkpt(); 128 plus the signal's number if a signal ended the work.
  static int finish(const Status &status);
};
/// Prints a report on standard error. Thread-safe.
void reportCkpt(const Report &report);

/// `--keep-name MODULE.NAME`, any number of times.
void addKeptNames(cli::Command &command, checkpoint::KeptNames &names);

/// Adds `--threads` to a command that several ranks may run; 0 lets JobRanks::threadsOr() choose.
void addThreads(cli::Command &command, int &threads);

/// Default number of threads.
int defaultThreads();

/// The location at which a command writes a new checkpoint: `out` itself if its name is `iter_*` or
/// `release`, otherwise a folder for the iteration in `out`. In both cases the tracker file will
/// name the checkpoint, unless it already names a later one. InvalidInput if the checkpoint exists,
/// or would be inside another checkpoint.
Result<checkpoint::SaveTarget> outputTarget(const std::string &out, int64_t iteration);

/// Locks the target's parent folder (created if missing) and removes leftovers of interrupted
/// saves. Call it before saving. Errors: Unavailable if another process saves there; InvalidInput
/// if another process has created the target meanwhile.
Status lockTarget(const checkpoint::SaveTarget &target, checkpoint::FolderLock &lock);

/// Like lockTarget(), for an output that is not a checkpoint: while the lock is held, no other
/// command creates it. Unavailable if another process holds the lock; InvalidInput inside a
/// checkpoint.
Status lockOutput(const std::string &folder, checkpoint::FolderLock &lock);

/// Prints the path and contents of the checkpoint that a command made from `in`.
void reportMade(const std::string &in, const checkpoint::SaveTarget &target);

/// The iteration that a checkpoint records; 0 if it records none.
Result<int64_t> iterationOf(const std::string &folder);

/// Input checkpoint and output location of a command.
struct CkptEnds {
  std::string in;
  checkpoint::SaveTarget target;
};

/// Finds the input and the output: findCheckpoint(in), and outputTarget(out) with the iteration of
/// the input.
Result<CkptEnds> findEnds(const std::string &in, const std::string &out);

/// The ranks of one command started by torchrun, srun or mpirun, found through their environment.
class JobRanks {
public:
  /// InvalidInput if the numbers in the environment are inconsistent.
  static Result<JobRanks> fromEnvironment();

  int rank() const { return rank_; }
  int worldSize() const { return worldSize_; }
  bool isFirst() const { return rank_ == 0; }
  /// The requested number of threads. If it is 0: one if there are several ranks, otherwise the
  /// default.
  int threadsOr(int wanted) const {
    return wanted > 0 ? wanted : worldSize_ > 1 ? 1 : defaultThreads();
  }
  /// Synchronises all ranks at the output location. Call it first, so that no rank waits for a rank
  /// that failed earlier.
  Status join(const std::string &out);
  /// Starts the work: rank 0 locks the target for all ranks (lockTarget). Returns the first failure
  /// of any rank. A rank that found no target passes its failure.
  Status begin(const Result<checkpoint::SaveTarget> &target);
  /// This rank for conversion functions; valid as long as this object.
  checkpoint::ConvertRank convertRank(int threads) const;
  /// Ends the work with this rank's result; removes the rendezvous folder and the lock.
  void leave(const Status &status);
  /// The exit status, like StopOnSignal::finish(); only rank 0 prints.
  int finish(const Status &status) const;

private:
  int rank_ = 0, worldSize_ = 1;
  bool isRootNew_ = false;
  std::string job_, root_;
  checkpoint::FolderLock lock_;
  std::unique_ptr<checkpoint::ProcessBarrier> barrier_;
};

/// For a command that only one process executes. Returns the exit status of the other ranks, or
/// that of an inconsistent environment, after printing a message; empty on rank 0.
std::optional<int> leftToFirst();
/// Such a command, which a signal may stop. Returns the exit status.
int runOnFirst(const std::function<Status()> &work);

/// A conversion into the folder `out` that all ranks of a launcher share.
struct RankWork {
  const std::string &in, &out;
  const char *what; ///< for the progress bar
  int threads;      ///< see JobRanks::threadsOr()
  std::function<Result<checkpoint::SaveTarget>()> findTarget;
  std::function<Status(const checkpoint::SaveTarget &, const checkpoint::ConvertRank &,
                       const checkpoint::ConvertProgress &)>
      convert;
  std::function<void()> remark = [] {}; ///< called on rank 0 after the conversion
};
/// Synchronises this rank with the others, converts, and reports the result. A failure of one rank
/// ends the work of all. Returns the exit status.
int runOnRanks(const RankWork &work);

/// A progress line on a terminal; prints nothing elsewhere.
class ProgressBar {
public:
  explicit ProgressBar(std::string what, bool isShown = true);
  ~ProgressBar(); ///< clears the line
  /// A callback for conversions; valid as long as this object.
  checkpoint::ConvertProgress callback();

private:
  void show(int64_t done, int64_t total);

  std::string what_;
  bool isShown_ = false, hasLine_ = false;
  int64_t lastPercent_ = -1;
};

/// Summary of a finished checkpoint, such as "39 tensors, 1.2 MiB in 4 files".
std::string contentsText(const std::string &folder);

} // namespace shardc::tools
