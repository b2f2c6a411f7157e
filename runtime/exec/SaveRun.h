// Saves a run's state while it trains: which steps are due, what each rank writes, how many
// checkpoints stay. A save that fails is told once and training goes on; the next may succeed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/exec/SaveLayout.h"
#include "runtime/exec/SaveState.h"

namespace shardc::exec {

/// What keeps the plan's checkpoint options from being followed here, one sentence each; empty if
/// nothing does, or if it neither saves nor loads.
std::vector<std::string> checkCheckpointOptions(const plan::Plan &plan);

class Saver {
public:
  using Say = std::function<void(const std::string &)>;

  /// Makes the folder if need be and clears away what interrupted saves left there, which `say` is
  /// told. None if the plan does not save. The plan outlives the saver.
  static Result<std::unique_ptr<Saver>> create(const plan::Plan &plan, Say say);

  /// What the process begins with, where that is not the job's first step.
  void setBegin(const Progress &begin) { begin_ = begin; }
  bool isDue(int64_t step) const { return interval_ > 0 && step % interval_ == 0; }
  /// Saves the state after a step; nothing may be queued. Tells where it went.
  Status save(Executable &executable, const StepState &state);

private:
  Saver(const plan::Plan &plan, StateLayout layout, Say say);
  Status write(Executable &executable, const checkpoint::SaveTarget &target,
               const Progress &progress);
  Status writeRank(Executable &executable, size_t rank, const checkpoint::SaveTarget &target,
                   const Progress &progress);
  Status writeObjects(checkpoint::RankWriter &writer, const Progress &progress) const;
  Status writeSlice(const checkpoint::ParamSlice &slice, const StatePiece &piece,
                    checkpoint::RankWriter &writer) const;
  Status writePiece(Executable &executable, size_t rank, const StatePiece &piece,
                    checkpoint::RankWriter &writer);

  const plan::Plan *plan_;
  StateLayout layout_;
  Say say_;
  std::string root_;
  int64_t interval_ = 0, mostRecent_ = -1;
  bool savesOptimizer_ = true, savesRng_ = true;
  bool isTorchDist_ = false; ///< otherwise fsdp_dtensor
  Progress begin_;
  int64_t bytesWritten_ = 0;
  std::vector<uint8_t> buffer_; ///< one piece
};

} // namespace shardc::exec
