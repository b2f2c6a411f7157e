// What the conversions share: tensors cut into pieces of rows, and the pieces dealt to the ranks.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/checkpoint/Convert.h"

namespace shardc::checkpoint {

/// A tensor to be converted: how big it is, and what reads rows of it and saves them.
struct ConvertJob {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  /// Reads the box at `offset` of `shape` into `dst`.
  std::function<Status(ShapeView offset, ShapeView shape, void *dst)> read;
  /// Saves it.
  std::function<Status(RankWriter &writer, const Shape &offset, const Shape &shape,
                       const void *data)>
      write;
};

/// Tells how far several threads have come together.
class ProgressSum {
public:
  ProgressSum(const ConvertProgress &tell, int64_t total) : tell_(tell), total_(total) {}
  void add(int64_t bytes);

private:
  const ConvertProgress &tell_;
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

/// Copies a file, which has its name once it is whole and synced.
Status copyFile(const std::string &from, const std::string &to);
/// Copies all files of a folder and of those in it, and syncs them.
Status copyTree(const std::string &from, const std::string &to);

/// What lies beside the records: Megatron-Bridge's `run_config.yaml` and `train_state.pt` and the
/// recipe, as they are in the folder `in`; `train_state.pt` is made of `state` where it is not
/// there.
Status addBridgeFiles(const std::string &in, const SaveTarget &out, const RunState &state);

} // namespace shardc::checkpoint
