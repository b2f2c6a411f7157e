// Shared by the conversions: cuts tensors into pieces of rows, and distributes the pieces to ranks.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/checkpoint/Convert.h"

namespace shardc::checkpoint {

/// A tensor to be converted: its size, and functions that read and save its rows.
struct ConvertJob {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  /// Reads a box into `dst`.
  std::function<Status(const Box &box, void *dst)> read;
  /// Saves it: a slice of the job's tensor, under the job's name.
  std::function<Status(RankWriter &writer, const TensorSlice &slice)> write;
};

/// Tells how far several threads have come together.
class ProgressSum {
public:
  ProgressSum(const ConvertProgress &emit, int64_t total) : emit_(emit), total_(total) {}
  void add(int64_t bytes);

private:
  const ConvertProgress &emit_;
  std::mutex mutex_;
  int64_t done_ = 0, total_ = 0;
};

/// Calls `work` with 0 to `threads` - 1, each on a thread of its own, and returns the first failure
/// by number. `work` is to end soon when `isFailed` becomes true. Exhausted, with `work` called by
/// some threads or none, if the system gives no more threads.
Status onThreads(int threads,
                 const std::function<Status(int thread, const std::atomic<bool> &isFailed)> &work);

/// Runs this rank's share of the jobs, `objects` on rank 0 before them, and finishes the rank.
Status runJobs(const SaveTarget &out, std::vector<ConvertJob> jobs, int64_t pieceBytes,
               const ConvertProgress &progress, const ConvertRank &rank,
               const std::function<Status(RankWriter &)> &objects);

/// InvalidInput if an object names classes or functions that this program does not know, other than
/// those in `kept`: a program that loads a copy of it could be made to run any code. `what` names
/// the object for people.
Status checkNames(const Pickle &pickle, const std::string &what, const KeptNames &kept);
/// The record of a copied object, written anew from its parsed graph.
Result<std::string> copyOfObject(const ArchiveReader &archive, const Pickle &pickle,
                                 const std::string &what, const KeptNames &kept);

/// Copies a file that lies beside the records of a checkpoint. What checksums there are of it are
/// compared before (CheckpointReader::openFile); links are refused, and a `.pt` file is an object.
Status copyFile(const CheckpointReader &from, const std::string &name, const SaveTarget &out,
                const KeptNames &kept);
/// The same for all files of a folder and of its subfolders.
Status copyFolder(const CheckpointReader &from, const std::string &name, const SaveTarget &out,
                  const KeptNames &kept);

/// Adds the files beside the records: Megatron-Bridge's `run_config.yaml` and `train_state.pt`, and
/// the recipe, copied from the checkpoint. If it has no `train_state.pt`, that is written from
/// `state`.
Status addBridgeFiles(const CheckpointReader &from, const SaveTarget &out, const RunState &state,
                      const KeptNames &kept);

} // namespace shardc::checkpoint
