// Shared by the subcommands of `shardc ckpt`: messages, the output folder, cooperating ranks, and
// the progress bar.
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

/// A value's text for a line of a report, cut where it is long.
std::string shortened(const std::string &text);

/// How many names or faults a report lists before it only counts the rest.
constexpr size_t kListed = 20;

/// Who looks on while a command writes files: the signals that StopOnSignal takes.
checkpoint::Onlookers ckptOnlookers();
/// The exit status for a status; a failure is printed first.
int finishCkpt(const Status &status);
/// While it lives, the first SIGINT, SIGTERM or SIGHUP makes a save end soon, and what it has
/// written is removed; a second one ends the process at once, unless it is removing that already.
/// Ignored signals stay ignored.
class StopOnSignal {
public:
  StopOnSignal();
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal &) = delete;
  StopOnSignal &operator=(const StopOnSignal &) = delete;

  /// As finishCkpt; 128 and the signal's number where one has ended the work.
  static int finish(const Status &status);
};
/// Prints a report on standard error. Any thread may call it.
void tellCkpt(const Report &report);

/// `--keep-name MODULE.NAME`, any number of times.
void addKeptNames(cli::Command &command, checkpoint::KeptNames &names);

/// `--threads` for a command that several ranks may run; if unset (0), JobRanks::threadsOr chooses.
void addThreads(cli::Command &command, int &threads);

/// How many threads work where the user does not say.
int defaultThreads();

/// Where a command that makes a checkpoint puts it: `out` itself if that is called `iter_*` or
/// `release`, else a folder for the iteration in `out`. The tracker names it in both cases, unless
/// a later one is there.
/// InvalidInput if it is there already, or is to lie inside a checkpoint.
Result<checkpoint::SaveTarget> outputTarget(const std::string &out, int64_t iteration);

/// Before something is saved there: locks the target's folder of checkpoints, which is made where
/// it is missing, and clears away what interrupted saves left in it. Unavailable if another process
/// saves there, InvalidInput if one has made the target meanwhile.
Status lockTarget(const checkpoint::SaveTarget &target, checkpoint::FolderLock &lock);

/// The same for a command that makes a folder which is no checkpoint: while the lock is held, no
/// other makes it. Unavailable if another process does, InvalidInput inside of a checkpoint.
Status lockOutput(const std::string &folder, checkpoint::FolderLock &lock);

/// Says what a command has made of `in`.
void tellMade(const std::string &in, const checkpoint::SaveTarget &target);

/// The iteration that a checkpoint says it is of; 0 if it says none.
Result<int64_t> iterationOf(const std::string &folder);

/// The checkpoint that a command reads, and where the one that it makes goes.
struct CkptEnds {
  std::string in;
  checkpoint::SaveTarget target;
};

/// Finds both: findCheckpoint(in), and outputTarget(out) with the iteration of what was found.
Result<CkptEnds> findEnds(const std::string &in, const std::string &out);

/// The processes that torchrun, srun or mpirun started for one command, found by their environment.
class JobRanks {
public:
  /// InvalidInput where the environment's numbers do not fit together.
  static Result<JobRanks> fromEnvironment();

  int rank() const { return rank_; }
  int worldSize() const { return worldSize_; }
  bool isFirst() const { return rank_ == 0; }
  /// The number of threads that the user wants; if unset (0), one if there are other ranks.
  int threadsOr(int wanted) const {
    return wanted > 0 ? wanted : worldSize_ > 1 ? 1 : defaultThreads();
  }
  /// First of all, since from now on no rank waits for one that was refused: all meet where `out`
  /// is to be.
  Status join(const std::string &out);
  /// Before the work: the first rank locks the target (lockTarget) for all. The first failure of
  /// all, which a rank brings that found no target.
  Status begin(const Result<checkpoint::SaveTarget> &target);
  /// For the conversions; valid as long as this object.
  checkpoint::ConvertRank convertRank(int threads) const;
  /// After the work, with what came of it here; removes the meeting place and the lock.
  void leave(const Status &status);
  /// The exit status, as StopOnSignal::finish; the first rank speaks for all.
  int finish(const Status &status) const;

private:
  int rank_ = 0, worldSize_ = 1;
  bool isRootNew_ = false;
  std::string job_, root_;
  checkpoint::FolderLock lock_;
  std::unique_ptr<checkpoint::ProcessBarrier> barrier_;
};

/// For a command that one process does: the exit status of the other ranks, which say so, and of an
/// environment whose numbers do not fit together. None on the first.
std::optional<int> leftToFirst();

/// One line on a terminal that shows how far the work has come; nothing elsewhere.
class ProgressBar {
public:
  explicit ProgressBar(std::string what, bool isShown = true);
  ~ProgressBar();
  checkpoint::ConvertProgress callback();

private:
  void show(int64_t done, int64_t total);

  std::string what_;
  bool isShown_ = false, hasLine_ = false;
  int64_t lastPercent_ = -1;
};

/// "39 tensors, 1.2 MiB in 4 files": what a finished checkpoint holds.
std::string contentsText(const std::string &folder);

} // namespace shardc::tools
