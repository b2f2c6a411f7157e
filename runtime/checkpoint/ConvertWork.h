// Code that the conversions share: it cuts tensors into pieces of rows and distributes the pieces
// to ranks.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/checkpoint/Convert.h"

namespace shardc::checkpoint {

struct HfModelFile;

/// A tensor to be converted: its size, and functions that read and save its rows.
struct ConvertJob {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  /// Reads a box into `dst`.
  std::function<Status(const Box &box, void *dst)> read;
  /// Saves a slice of the job's tensor, under the job's name; if not set, as addParam() saves a
  /// weight.
  std::function<Status(RankWriter &writer, const TensorSlice &slice)> write;
  bool isGated = false; ///< for addParam()
};

/// Adds up and reports the progress of several threads.
class ProgressSum {
public:
  ProgressSum(const ConvertProgress &emit, int64_t total) : emit_(emit), total_(total) {}
  void add(int64_t bytes);

private:
  const ConvertProgress &emit_;
  std::mutex mutex_;
  int64_t done_ = 0, total_ = 0;
};

/// Executes this rank's share of the jobs, on rank 0 after `objects`, and finishes the rank.
Status runJobs(const SaveTarget &out, std::vector<ConvertJob> jobs, int64_t pieceBytes,
               const ConvertProgress &progress, const ConvertRank &rank,
               const std::function<Status(RankWriter &)> &objects);

/// InvalidInput if an object names classes or functions that neither this program nor `kept` knows,
/// since a program that loads a copy could be made to run arbitrary code. `what` names the object
/// in messages.
Status checkNames(const Pickle &pickle, const std::string &what, const KeptNames &kept);
/// The record of a copied object, serialised again from its parsed graph.
Result<std::string> copyOfObject(const ArchiveReader &archive, const Pickle &pickle,
                                 const std::string &what, const KeptNames &kept);

/// Copies a file other than records. It is verified with all checksums that exist for it
/// (CheckpointReader::openFile). Links are refused, and a `.pt` file is copied as an object.
Status copyFile(const CheckpointReader &from, const std::string &name, const SaveTarget &out,
                const KeptNames &kept);
/// Copies all files of a folder and its subfolders in the same way.
Status copyFolder(const CheckpointReader &from, const std::string &name, const SaveTarget &out,
                  const KeptNames &kept);

/// Adds what the checkpoint of a converted model has besides tensors: its arguments, at iteration
/// 0, and the files of the Hugging Face model.
Status addModel(RankWriter &writer, const SaveTarget &out, PlainEntries args,
                std::span<const HfModelFile> files);

/// Adds files other than records: Megatron-Bridge's `run_config.yaml` and `train_state.pt`, and the
/// recipe, copied from the checkpoint. A missing `train_state.pt` is written from `state`.
Status addBridgeFiles(const CheckpointReader &from, const SaveTarget &out, const RunState &state,
                      const KeptNames &kept);

} // namespace shardc::checkpoint
